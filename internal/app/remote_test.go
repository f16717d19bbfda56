package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"joiner/internal/config"
	"joiner/internal/enrich"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/remote"
	"joiner/internal/server"
	"joiner/internal/task"
)

// lookups adds up one outcome over pods.
func lookups(outcome metrics.LookupOutcome, pods ...*pod) (n int) {
	for _, p := range pods {
		n += int(testutil.ToFloat64(p.metrics.Remote.Lookups[outcome]))
	}
	return n
}

// owners waits until every market partition has an owner among the pods, all of
// which are ready.
func (s *stage) owners(n int32, pods ...*pod) []*pod {
	s.t.Helper()
	owners := make([]*pod, n)
	await(s.t, func() string {
		clear(owners)
		for _, p := range pods {
			if r := p.Ready(); !r.Ready {
				return fmt.Sprintf("not ready: %v", r.Reasons)
			}
			for partition := range n {
				if p.Member().Owns(partition) {
					owners[partition] = p
				}
			}
		}
		for partition, p := range owners {
			if p == nil {
				return fmt.Sprintf("nobody owns partition %d", partition)
			}
		}
		return ""
	})
	return owners
}

// traffic sends a tick for each symbol and then rounds of notifications.
func (s *stage) traffic(at time.Time, rounds int) {
	for i, symbol := range symbols {
		s.send("market-updates", home(symbol), symbol, fmt.Sprintf(`{"price":%d.50}`, i), at)
	}
	s.notify(at, 0, rounds)
}

func (s *stage) notify(at time.Time, from, to int) {
	for round := from; round < to; round++ {
		for _, symbol := range symbols {
			s.send("notifications", home(symbol), symbol, `{"user":"u1"}`, at.Add(time.Duration(round+1)*time.Second))
		}
	}
}

// priced checks that alerts have their symbol's price, found where it is said.
func priced(t *testing.T, alerts []*sarama.ConsumerMessage, locality record.Locality) {
	t.Helper()
	for _, m := range alerts {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatalf("%s: %v", m.Value, err)
		}
		i := -1
		for j, symbol := range symbols {
			if symbol == string(m.Key) {
				i = j
			}
		}
		if a.Market == nil || a.Market.Price != fmt.Sprintf("%d.50", i) || a.Locality != locality {
			t.Errorf("symbol %q: %s", m.Key, m.Value)
		}
		if want := fmt.Sprintf("%d/", home(string(m.Key))); !strings.HasPrefix(string(headerOf(m, "joiner-market")), want) {
			t.Errorf("symbol %q: joiner-market %s, want %s…", m.Key, headerOf(m, "joiner-market"), want)
		}
	}
}

func headerOf(m *sarama.ConsumerMessage, name string) (value []byte) {
	for _, h := range m.Headers {
		if string(h.Key) == name {
			value = h.Value
		}
	}
	return value
}

func roundRobin(c *config.Config) { c.Group.Strategy = "roundrobin" }

// No partition meets its like: all 30 prices cross the network, and are right.
// The pods know each other by certificates and a token.
func TestRemoteJoins(t *testing.T) {
	files := newPeerFiles(t)
	s := newStage(t, allTopics()...)
	var pods []*pod
	for range 4 {
		pods = append(pods, s.start(func(c *config.Config) {
			roundRobin(c)
			c.Peer.TLS = config.PeerTLS{Enabled: true, CAFile: files.ca, CertFile: files.cert, KeyFile: files.key, ClientAuth: true}
			c.Peer.TokenFile = files.token
			c.Peer.AllowedNames = []string{"127.0.0.0/8"}
		}))
	}
	s.owners(partitions, pods...)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	s.traffic(at, 3)
	priced(t, s.alerts("enriched-alerts", 30), record.Remote)
	if n := lookups(metrics.LookupHit, pods...); n < 30 {
		t.Errorf("%d hits counted, want 30 or more", n)
	}
	// The token changes: who reads it is taken, the connections stay.
	if err := os.WriteFile(files.token, []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.notify(at, 3, 4)
	priced(t, s.alerts("enriched-alerts", 40), record.Remote)
	for _, p := range pods {
		for i, symbol := range symbols {
			now, err := p.PriceNow(t.Context(), []byte(symbol))
			if err != nil || !now.Found || now.Price.Text != fmt.Sprintf("%d.50", i) || now.Partition != home(symbol) || now.Owner == "" {
				t.Errorf("%q now: %+v, %v", symbol, now, err)
			}
		}
		if now, err := p.PriceNow(t.Context(), []byte("NONE")); err != nil || now.Found {
			t.Errorf("a symbol that nobody knows: %+v, %v", now, err)
		}
	}
}

// peerFiles are what pods need to know each other.
type peerFiles struct{ ca, cert, key, token string }

func newPeerFiles(t *testing.T) peerFiles {
	t.Helper()
	dir := t.TempDir()
	f := peerFiles{filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "token")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pods"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for file, text := range map[string][]byte{
		f.ca: cert, f.cert: cert, f.token: []byte("one\n"),
		f.key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// With join.max_idle owners of market partitions alone, whose ticks wait for
// nobody, answer while ticks keep coming, and not only once they stop.
func TestRemoteJoinsWhileTicksCome(t *testing.T) {
	s := newStage(t, allTopics()...)
	var pods []*pod
	for range 4 {
		pods = append(pods, s.start(func(c *config.Config) {
			roundRobin(c)
			c.Join.MaxIdle = time.Hour // no end stands still for so long
			c.Join.History = time.Hour
		}))
	}
	s.owners(partitions, pods...)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			for _, symbol := range symbols {
				_, _, err := s.sync.SendMessage(&sarama.ProducerMessage{
					Topic: "market-updates", Partition: home(symbol), Key: sarama.StringEncoder(symbol),
					Value: sarama.StringEncoder(fmt.Sprintf(`{"price":%d}`, i)), Timestamp: time.Now(),
				})
				if err != nil {
					t.Error(err)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	s.alerts("market-updates", 2*len(symbols)) // each symbol has a price by now
	for range 3 {
		for _, symbol := range symbols {
			s.send("notifications", home(symbol), symbol, `{"user":"u1"}`, time.Now())
		}
	}
	for _, m := range s.alerts("enriched-alerts", 3*len(symbols)) {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatal(err)
		}
		if a.Result != record.Hit || a.Locality != record.Remote || a.NotAsOf || a.Market.AgeMS < 0 {
			t.Errorf("symbol %q: %s", m.Key, m.Value)
		}
	}
}

// Where looking up is off, prices of other pods are counted misses, and nobody
// is asked.
func TestRemoteLookupOff(t *testing.T) {
	s := newStage(t, allTopics()...)
	var pods []*pod
	for range 4 {
		pods = append(pods, s.start(func(c *config.Config) { roundRobin(c); c.Join.RemoteLookup = false }))
	}
	s.owners(partitions, pods...)
	s.traffic(time.Now().Add(-time.Minute), 1)
	for _, m := range s.alerts("enriched-alerts", 10) {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatal(err)
		}
		if a.Market != nil || a.Locality != record.Remote || a.Result != record.Miss || headerOf(m, "joiner-market") != nil {
			t.Errorf("%s", m.Value)
		}
	}
	for o := range metrics.LookupOutcomes {
		if n := lookups(o, pods...); n != 0 {
			t.Errorf("%d %s", n, o)
		}
	}
}

// relay passes connections on, or holds up what comes through them, as if the
// process behind it stood still.
type relay struct {
	ln     net.Listener
	to     atomic.Value // string
	mu     sync.Mutex
	closed bool
	conns  []net.Conn
	gate   chan struct{} // closed: open
	ended  sync.WaitGroup
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln, gate: make(chan struct{})}
	close(r.gate)
	r.ended.Go(r.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		r.mu.Lock()
		r.closed = true
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.mu.Unlock()
		r.ended.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return
		}
		to, _ := r.to.Load().(string)
		out, err := net.Dial("tcp", to)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		if r.closed {
			_, _ = in.Close(), out.Close()
		}
		r.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			r.ended.Go(func() { r.pass(way[0], way[1]) })
		}
	}
}

func (r *relay) pass(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		gate := r.gate
		r.mu.Unlock()
		<-gate
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// stall holds everything up until the returned function is called.
func (r *relay) stall() (goOn func()) {
	gate := make(chan struct{})
	r.mu.Lock()
	r.gate = gate
	r.mu.Unlock()
	return func() { close(gate) }
}

// An owner that does not answer costs time-outs, which are counted, and then the
// right answers come. Meanwhile notifications of others go on.
func TestOwnerThatStandsStill(t *testing.T) {
	s := newStage(t, allTopics()...)
	var pods []*pod
	var relays []*relay
	for range 4 {
		r := newRelay(t)
		p := s.start(func(c *config.Config) {
			roundRobin(c)
			c.Peer.Advertise = r.ln.Addr().String()
			c.Join.RemoteTimeout = 50 * time.Millisecond
		})
		await(t, func() string {
			if p.PeerAddr() == nil {
				return "no peer listener"
			}
			return ""
		})
		r.to.Store(p.PeerAddr().String())
		pods, relays = append(pods, p), append(relays, r)
	}
	owners := s.owners(partitions, pods...)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	s.traffic(at, 1)
	priced(t, s.alerts("enriched-alerts", 10), record.Remote)
	still := owners[home(symbols[0])]
	var goOn func()
	for i, p := range pods {
		if p == still {
			goOn = relays[i].stall()
		}
	}
	s.notify(at, 1, 3)
	await(t, func() string {
		if lookups(metrics.LookupTimeout, pods...) == 0 {
			return "no time-out counted"
		}
		return ""
	})
	others := 10
	for _, symbol := range symbols {
		if owners[home(symbol)] != still {
			others += 2
		}
	}
	priced(t, s.alerts("enriched-alerts", others), record.Remote)
	silent := fmt.Sprintf("look-ups: owner %s at %s does not answer since 2", still.o.Identity, still.o.Config.Peer.Advertise)
	noted := func(want bool) {
		t.Helper()
		await(t, func() string {
			some := false
			for _, p := range pods {
				r := p.Ready()
				if !r.Ready {
					t.Fatalf("not ready: %v", r.Reasons)
				}
				for _, note := range r.Notes {
					some = some || strings.HasPrefix(note, silent)
				}
			}
			if some != want {
				return fmt.Sprintf("a note %q: %t", silent, some)
			}
			return ""
		})
	}
	noted(true)
	goOn()
	priced(t, s.alerts("enriched-alerts", 30), record.Remote)
	noted(false)
}

// A member advertises an address where a pod of another group answers: it is
// refused, and the joins end as configured.
func TestForeignAddressIsUnavailable(t *testing.T) {
	s := newStage(t, allTopics()...)
	foreign := s.start(func(c *config.Config) { c.Group.ID = "others" })
	foreign.awaitReady()
	var pods []*pod
	for range 4 {
		pods = append(pods, s.start(func(c *config.Config) {
			roundRobin(c)
			c.Peer.Advertise = foreign.PeerAddr().String()
			c.Join.RemotePatience = 300 * time.Millisecond
			c.Join.OnUnavailable = "dead_letter"
		}))
	}
	s.owners(partitions, pods...)
	s.traffic(time.Now().Add(-time.Minute), 1)
	for _, m := range s.alerts("enriched-alerts-dlq", 10) {
		if got := string(headerOf(m, "joiner-error-kind")); got != string(record.Unavailable) {
			t.Errorf("dead letter of kind %s", got)
		}
	}
	if lookups(metrics.LookupMoved, pods...) == 0 || lookups(metrics.LookupHit, pods...)+lookups(metrics.LookupMiss, pods...) != 0 {
		t.Error("a foreign pod was not refused")
	}
}

// Nobody knows how the market's producers place keys: every owner is asked.
func TestCustomPlacementAcrossPods(t *testing.T) {
	s := newStage(t, allTopics()...)
	var pods []*pod
	for range 3 {
		pods = append(pods, s.start(func(c *config.Config) { c.Topics.Partitioner = "custom" }))
	}
	owners := s.owners(partitions, pods...)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	place := func(i int) int32 { return int32(i % partitions) }
	for i, symbol := range symbols {
		s.send("market-updates", place(i), symbol, fmt.Sprintf(`{"price":%d.50}`, i), at)
		// An older one elsewhere, which must not be taken.
		s.send("market-updates", (place(i)+3)%partitions, symbol, `{"price":-1}`, at.Add(-time.Second))
		s.send("notifications", (place(i)+1)%partitions, symbol, `{}`, at.Add(time.Second))
		s.send("notifications", (place(i)+2)%partitions, fmt.Sprint("NONE", i), `{}`, at.Add(time.Second))
	}
	remote := 0
	for _, m := range s.alerts("enriched-alerts", 2*len(symbols)) {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatal(err)
		}
		i := -1
		for j, symbol := range symbols {
			if symbol == string(m.Key) {
				i = j
			}
		}
		cited := string(headerOf(m, "joiner-market"))[:2]
		if i < 0 {
			if a.Market != nil || a.Result != record.Miss || a.Locality != record.Local || cited != fmt.Sprintf("%d/", m.Partition) {
				t.Errorf("%q: %s, joiner-market %s", m.Key, m.Value, cited)
			}
			continue
		}
		local := record.Remote
		if owners[place(i)] == owners[m.Partition] {
			local = record.Local
		} else {
			remote++
		}
		if a.Market == nil || a.Market.Price != fmt.Sprintf("%d.50", i) || a.Locality != local || cited != fmt.Sprintf("%d/", place(i)) {
			t.Errorf("%q: %s, joiner-market %s", m.Key, m.Value, cited)
		}
	}
	if remote == 0 {
		t.Error("no price crossed the network")
	}
}

// After the topics have grown, and grown again, a symbol's price still lies where
// a former count put it, maybe in another pod: it is asked there before it is a
// miss.
func TestGrowthAsksTheFormerOwner(t *testing.T) {
	s := newStage(t, allTopics()...)
	pods := []*pod{s.start(nil), s.start(nil)}
	s.owners(partitions, pods...)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	s.traffic(at, 1)
	priced(t, s.alerts("enriched-alerts", 10), record.Local)
	admin, err := sarama.NewClusterAdminFromClient(s.client)
	if err != nil {
		t.Fatal(err)
	}
	var owners []*pod
	for _, n := range []int32{partitions + 1, 2 * partitions} {
		for _, topic := range allTopics() {
			if err := admin.CreatePartitions(topic.Name, n, nil, false); err != nil {
				t.Fatal(err)
			}
		}
		owners = s.owners(n, pods...)
	}
	await(t, func() string {
		if err := s.client.RefreshMetadata(); err != nil {
			return err.Error()
		}
		if n, err := s.client.Partitions("notifications"); err != nil || len(n) != 2*partitions {
			return fmt.Sprintf("%d partitions, %v", len(n), err)
		}
		return ""
	})
	homeNow := func(symbol string) int32 {
		n, known := pods[0].places.Home([]byte(symbol))
		if !known {
			t.Fatal("no home")
		}
		return n
	}
	moved, remote := 0, 0
	for _, symbol := range symbols {
		n := homeNow(symbol)
		s.send("notifications", n, symbol, `{}`, at.Add(time.Minute))
		if n == home(symbol) {
			continue
		}
		moved++
		if owners[n] != owners[home(symbol)] {
			remote++
		}
	}
	if moved == 0 {
		t.Fatal("no symbol has moved")
	}
	var alerts []*sarama.ConsumerMessage
	await(t, func() string {
		alerts = s.alertsOf("enriched-alerts", 2*partitions)
		if len(alerts) < 20 {
			return fmt.Sprintf("%d alerts", len(alerts))
		}
		return ""
	})
	seen := 0
	for _, m := range alerts {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatal(err)
		}
		if a.Market == nil || string(headerOf(m, "joiner-market"))[:2] != fmt.Sprintf("%d/", home(string(m.Key))) {
			t.Errorf("%q: %s, joiner-market %s", m.Key, m.Value, headerOf(m, "joiner-market"))
		}
		if a.Locality == record.Remote {
			seen++
		}
	}
	if seen != remote {
		t.Errorf("%d remote joins, want %d of %d symbols that have moved", seen, remote, moved)
	}
}

// alertsOf reads what is in a topic of n partitions now.
func (s *stage) alertsOf(topic string, n int32) (got []*sarama.ConsumerMessage) {
	s.t.Helper()
	consumer, err := sarama.NewConsumerFromClient(s.client)
	if err != nil {
		s.t.Fatal(err)
	}
	defer consumer.Close()
	for p := range n {
		end, err := s.client.GetOffset(topic, p, sarama.OffsetNewest)
		if err != nil {
			s.t.Fatal(err)
		}
		if end == 0 {
			continue
		}
		pc, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
		if err != nil {
			s.t.Fatal(err)
		}
		for range end {
			got = append(got, <-pc.Messages())
		}
		pc.AsyncClose() // Close would wait for a fetch under way
	}
	return got
}

// Before there is a group, the reason is told instead of a price.
// While only the market topic has grown, nobody reads its new partitions. That is no
// miss: nobody can say that there is no price. What is asked of them waits, and is
// answered once the other topic has grown as well, by the former partition where the
// new one has no tick yet.
func TestPartitionsThatNobodyReadsYetAreWaitedFor(t *testing.T) {
	s := newStage(t, allTopics()...)
	pod := s.start(func(c *config.Config) { c.Join.RemotePatience = 10 * time.Minute })
	s.owners(partitions, pod)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	s.traffic(at, 1)
	priced(t, s.alerts("enriched-alerts", 10), record.Local)
	admin, err := sarama.NewClusterAdminFromClient(s.client)
	if err != nil {
		t.Fatal(err)
	}
	grow := func(topics ...string) {
		for _, topic := range topics {
			if err := admin.CreatePartitions(topic, 2*partitions, nil, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	grow("enriched-alerts", "enriched-alerts-dlq", "market-updates")
	await(t, func() string {
		if n := pod.places.Partitions(record.Market); n != 2*partitions {
			return fmt.Sprintf("%d partitions", n)
		}
		return ""
	})
	moved := 0
	for _, symbol := range symbols {
		if n, _ := pod.places.Home([]byte(symbol)); n < partitions {
			continue
		}
		moved++
		s.send("notifications", home(symbol), symbol, `{}`, at.Add(time.Minute))
	}
	await(t, func() string {
		if n, _ := sum(t, pod.Registry(), "joiner_partition_records_total", "notifications"); n != float64(10+moved) || moved == 0 {
			return fmt.Sprintf("%v notifications have been read, %d have moved", n, moved)
		}
		return ""
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, symbol := range symbols {
		if n, _ := pod.places.Home([]byte(symbol)); n < partitions {
			continue
		}
		var unknown *NoPriceError
		if _, err := pod.PriceNow(ctx, []byte(symbol)); !errors.As(err, &unknown) || unknown.Reason != remote.NoOwner {
			t.Errorf("a user who asks meanwhile: %v", err)
		}
	}
	grow("notifications")
	await(t, func() string {
		if err := s.client.RefreshMetadata(); err != nil {
			return err.Error()
		}
		if n, err := s.client.Partitions("enriched-alerts"); err != nil || len(n) != 2*partitions {
			return fmt.Sprintf("%d partitions, %v", len(n), err)
		}
		return ""
	})
	var alerts []*sarama.ConsumerMessage
	await(t, func() string {
		if alerts = s.alertsOf("enriched-alerts", 2*partitions); len(alerts) < 10+moved {
			return fmt.Sprintf("%d alerts", len(alerts))
		}
		return ""
	})
	priced(t, alerts, record.Local)
}

func TestPriceNowBeforeThereIsAGroup(t *testing.T) {
	c := config.Default()
	a, err := New(Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	var reason *NoPriceError
	if _, err := a.PriceNow(context.Background(), []byte("BBCA")); !errors.As(err, &reason) || reason.Reason == "" {
		t.Errorf("%v", err)
	}
	if now, err := a.PriceNow(context.Background(), nil); err != nil || now.Found {
		t.Errorf("the empty symbol, which nobody needs to be asked for: %+v, %v", now, err)
	}
}

// Whatever keeps a price from being known has a reason that a user is told.
func TestEveryUnknownPriceHasAReason(t *testing.T) {
	for outcome, want := range map[task.Outcome]string{
		task.Unanswered: server.ReasonRestoring, task.NotAsked: server.ReasonNoOwner, task.Found: "", task.NoPrice: "",
	} {
		failure := remote.Failure{}
		if outcome == task.Unanswered {
			failure = remote.Failure{Reason: remote.Restoring, Owner: "b"}
		}
		var reason *NoPriceError
		switch err := notKnown(task.Answer{Outcome: outcome}, failure); {
		case want == "" && err == nil:
		case !errors.As(err, &reason) || reasonOf(reason.Reason) != want:
			t.Errorf("outcome %d: %v, want %q", outcome, err, want)
		}
	}
}

// One attempt at least, and an owner may let join.max_idle pass.
func TestLookupPatience(t *testing.T) {
	for _, c := range []struct{ patience, idle, want time.Duration }{
		{30 * time.Second, 0, 30 * time.Second},
		{0, 0, 200 * time.Millisecond},
		{30 * time.Second, time.Minute, 90 * time.Second},
	} {
		j := config.Join{RemoteTimeout: 200 * time.Millisecond, RemotePatience: c.patience, MaxIdle: c.idle}
		if got := lookupPatience(j); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
