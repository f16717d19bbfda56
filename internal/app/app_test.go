package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"joiner/internal/config"
	"joiner/internal/embedded"
	"joiner/internal/enrich"
	"joiner/internal/kube"
	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/internal/server"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

const (
	partitions = 6
	patience   = 60 * time.Second // against hanging only
)

// bench is an embedded cluster with the four topics, and joiners on it.
type stage struct {
	t       *testing.T
	cluster *embedded.Cluster
	sync    sarama.SyncProducer
	client  sarama.Client
	log     *zap.Logger // of the pods; nil: the test's own, warnings only
	addrs   []string    // of another cluster than cluster

	kubernetes kube.Options // that the pods run in; zero: none
}

func newStage(t *testing.T, topics ...embedded.Topic) *stage {
	t.Helper()
	cluster, err := embedded.Start(embedded.Options{Brokers: 3, Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return stageOn(t, cluster)
}

func stageOn(t *testing.T, cluster *embedded.Cluster) *stage {
	t.Helper()
	c := sarama.NewConfig()
	c.Version = sarama.V3_6_0_0
	c.Producer.Return.Successes = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	client, err := sarama.NewClient(cluster.Addrs(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = producer.Close() })
	return &stage{t: t, cluster: cluster, sync: producer, client: client}
}

func topics(names ...string) (list []embedded.Topic) {
	for _, name := range names {
		list = append(list, embedded.Topic{Name: name, Partitions: partitions})
	}
	return list
}

func allTopics() []embedded.Topic {
	return topics("market-updates", "notifications", "enriched-alerts", "enriched-alerts-dlq")
}

func (s *stage) config() config.Config {
	c := config.Default()
	if c.Kafka.Brokers = s.addrs; s.addrs == nil {
		c.Kafka.Brokers = s.cluster.Addrs()
	}
	c.Kafka.MetadataRefresh = time.Second
	c.HTTP.Listen = "127.0.0.1:0"
	c.Peer.Listen = "127.0.0.1:0"
	c.Group.HeartbeatInterval = 100 * time.Millisecond
	c.Delivery.CommitInterval = 100 * time.Millisecond
	return c
}

// pod is one running joiner.
type pod struct {
	*App
	t    *testing.T
	stop func() error
}

func (s *stage) start(change func(*config.Config)) *pod {
	s.t.Helper()
	c := s.config()
	if change != nil {
		change(&c)
	}
	log := s.log
	if log == nil {
		log = zaptest.NewLogger(s.t, zaptest.Level(zapcore.WarnLevel))
	}
	a, err := New(Options{Config: c, Logger: log, Kubernetes: s.kubernetes})
	if err != nil {
		s.t.Fatal(err)
	}
	a.fateLimit, a.host = patience, "here"
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	p := &pod{App: a, t: s.t}
	stopped := false
	p.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	s.t.Cleanup(func() {
		if err := p.stop(); err != nil {
			s.t.Errorf("stop: %v", err)
		}
	})
	return p
}

func (p *pod) awaitReady() {
	p.t.Helper()
	await(p.t, func() string {
		if r := p.Ready(); !r.Ready {
			return fmt.Sprintf("not ready: %v", r.Reasons)
		}
		return ""
	})
}

// await polls until cond has nothing to complain about.
func await(t *testing.T, cond func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		complaint := cond()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(complaint)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func home(symbol string) int32 {
	p, err := placement.New(placement.Options{Topic: "t", Partitioner: "murmur2"})
	if err != nil {
		panic(err)
	}
	n, _ := p.Partition([]byte(symbol), partitions)
	return n
}

func (s *stage) send(topic string, partition int32, key, value string, at time.Time) {
	s.t.Helper()
	m := &sarama.ProducerMessage{Topic: topic, Partition: partition, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value), Timestamp: at}
	if _, _, err := s.sync.SendMessage(m); err != nil {
		s.t.Fatal(err)
	}
}

// alerts reads n records of a topic.
func (s *stage) alerts(topic string, n int) []*sarama.ConsumerMessage {
	s.t.Helper()
	consumer, err := sarama.NewConsumerFromClient(s.client)
	if err != nil {
		s.t.Fatal(err)
	}
	defer consumer.Close()
	all := make(chan *sarama.ConsumerMessage)
	end := make(chan struct{})
	defer close(end)
	for p := range int32(partitions) {
		pc, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
		if err != nil {
			s.t.Fatal(err)
		}
		defer pc.AsyncClose()
		go func() {
			for m := range pc.Messages() {
				select {
				case all <- m:
				case <-end:
				}
			}
		}()
	}
	var got []*sarama.ConsumerMessage
	timeout := time.After(patience)
	for len(got) < n {
		select {
		case m := <-all:
			got = append(got, m)
		case <-timeout:
			s.t.Fatalf("%s: %d records, want %d", topic, len(got), n)
		}
	}
	return got
}

var symbols = []string{"BBCA", "BRK.B", "M&M.NS", "日経225", "a/b", "..", "\xff\xfe", "AAPL", "MSFT", "BTC-USD"}

func TestFourMembersJoinLocally(t *testing.T) {
	s := newStage(t, allTopics()...)
	var pods []*pod
	for range 4 {
		pods = append(pods, s.start(nil))
	}
	for _, p := range pods {
		p.awaitReady()
	}
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	for i, symbol := range symbols {
		s.send("market-updates", home(symbol), symbol, fmt.Sprintf(`{"price":%d.50}`, i), at)
	}
	for round := range 3 {
		for _, symbol := range symbols {
			s.send("notifications", home(symbol), symbol, `{"user":"u1"}`, at.Add(time.Duration(round+1)*time.Second))
		}
	}
	for _, m := range s.alerts("enriched-alerts", 30) {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatalf("%s: %v", m.Value, err)
		}
		i := slices.Index(symbols, string(m.Key))
		if a.Market == nil || a.Market.Price != fmt.Sprintf("%d.50", i) || a.Locality != record.Local {
			t.Errorf("symbol %q: %s", m.Key, m.Value)
		}
		if m.Partition != home(string(m.Key)) {
			t.Errorf("symbol %q is in partition %d", m.Key, m.Partition)
		}
	}
	// Both topics' committed lag returns to 0.
	await(t, func() string {
		for _, p := range pods {
			for _, ts := range p.Member().Status().Tasks {
				if ts.Committed != ts.Position {
					return fmt.Sprintf("partition %d: position %s, committed %s", ts.Index, ts.Position, ts.Committed)
				}
			}
		}
		return ""
	})
	total := 0
	for _, p := range pods {
		total += len(p.Member().Status().Tasks)
	}
	if total != partitions {
		t.Errorf("%d tasks in all, want %d", total, partitions)
	}
}

// A partition that moves brings its prices: notifications after a rebalance
// are hits at once.
func TestMoveBringsPrices(t *testing.T) {
	s := newStage(t, allTopics()...)
	first := s.start(nil)
	first.awaitReady()
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	for _, symbol := range symbols {
		s.send("market-updates", home(symbol), symbol, `{"price":1}`, at)
		s.send("notifications", home(symbol), symbol, `{}`, at)
	}
	s.alerts("enriched-alerts", len(symbols))
	second := s.start(nil)
	await(t, func() string {
		if n := len(second.Member().Status().Tasks); n != partitions/2 {
			return fmt.Sprintf("the second pod has %d tasks", n)
		}
		return ""
	})
	second.awaitReady()
	for _, symbol := range symbols {
		s.send("notifications", home(symbol), symbol, `{}`, at.Add(time.Second))
	}
	seen := map[string]int{}
	for _, m := range s.alerts("enriched-alerts", 2*len(symbols)) {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatal(err)
		}
		if a.Market == nil {
			t.Errorf("%q has no price after the move: %s", m.Key, m.Value)
		}
		seen[string(m.Key)]++
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	await(t, func() string {
		if n := len(second.Member().Status().Tasks); n != partitions {
			return fmt.Sprintf("the second pod has %d tasks after the first left", n)
		}
		return ""
	})
}

// A pod that comes costs two generations, in which the others give up what is its
// own and it gets that, and one more for each other that gives up after the rest
// had joined again; one that goes costs one. Nobody asks for more.
func TestGenerationsOfAScale(t *testing.T) {
	s := newStage(t, allTopics()...)
	pods := []*pod{s.start(nil)}
	pods[0].awaitReady()
	generation := func() int32 { g, _ := pods[0].Member().Generation(); return g }
	scaled := func(what string, before, least, most int32) {
		t.Helper()
		await(t, func() string {
			n := 0
			for _, p := range pods {
				p.awaitReady()
				n += len(p.Member().Status().Tasks)
			}
			if n != partitions {
				return fmt.Sprintf("%s: %d tasks", what, n)
			}
			return ""
		})
		if n := generation() - before; n < least || n > most {
			t.Errorf("%s: %d generations, want %d to %d", what, n, least, most)
		}
		for _, p := range pods {
			if n := p.Member().Asks(); n > 0 {
				t.Errorf("%s: a pod has asked for a rebalance %d times", what, n)
			}
		}
	}
	before := generation()
	pods = append(pods, s.start(nil))
	scaled("1 to 2", before, 2, 2)
	before = generation()
	pods = append(pods, s.start(nil))
	scaled("2 to 3", before, 2, 3)
	before = generation()
	if err := pods[2].stop(); err != nil {
		t.Fatal(err)
	}
	pods = pods[:2]
	await(t, func() string {
		if generation() == before {
			return "3 to 2: no generation yet"
		}
		return ""
	})
	scaled("3 to 2", before, 1, 1)
}

// What a task may take to close lies within a handover.
func TestHandoverCoversTheDrain(t *testing.T) {
	conf := config.Default()
	for _, rebalance := range []time.Duration{time.Second, 30 * time.Second, time.Hour} {
		conf.Group.RebalanceTimeout = rebalance
		if limit := 2*drain(conf) + conf.Group.HeartbeatInterval; handover(conf) < limit {
			t.Errorf("group.rebalance_timeout %v: a handover may take %v, closing a task takes up to %v", rebalance, handover(conf), limit)
		}
	}
}

// More pods than partitions: the spare is ready, with nothing to do.
func TestSpareIsReady(t *testing.T) {
	s := newStage(t, allTopics()...)
	var pods []*pod
	for range partitions + 1 {
		pods = append(pods, s.start(nil))
	}
	spares := 0
	for _, p := range pods {
		p.awaitReady()
	}
	await(t, func() string {
		spares = 0
		for _, p := range pods {
			if len(p.Member().Status().Tasks) == 0 {
				spares++
			}
		}
		if spares != 1 {
			return fmt.Sprintf("%d spares", spares)
		}
		return ""
	})
}

func TestMissingOutputTopicIsNamed(t *testing.T) {
	s := newStage(t, topics("market-updates", "notifications", "enriched-alerts-dlq")...)
	p := s.start(nil)
	s.send("notifications", home("BBCA"), "BBCA", `{}`, time.Now())
	await(t, func() string {
		r := p.Ready()
		for _, reason := range r.Reasons {
			if r.Assigned && reason == `output topic enriched-alerts does not exist: it needs 6 partitions, as the inputs have; create it or set topics.create: true` {
				return ""
			}
		}
		return fmt.Sprint(r)
	})
	if err := s.client.RefreshMetadata(); err != nil {
		t.Fatal(err)
	}
	admin, err := sarama.NewClusterAdminFromClient(s.client)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTopic("enriched-alerts", &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false); err != nil {
		t.Fatal(err)
	}
	p.awaitReady()
	s.alerts("enriched-alerts", 1)
	if n := len(s.alerts("enriched-alerts-dlq", 0)); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func TestTopicsAreCreated(t *testing.T) {
	s := newStage(t, topics("market-updates", "notifications")...)
	p := s.start(func(c *config.Config) { c.Topics.Create = true })
	p.awaitReady()
	s.send("notifications", home("BBCA"), "BBCA", `[]`, time.Now())
	s.send("notifications", home("BBCA"), "BBCA", `{}`, time.Now())
	s.alerts("enriched-alerts", 1)
	s.alerts("enriched-alerts-dlq", 1)
}

func TestStartLatest(t *testing.T) {
	s := newStage(t, allTopics()...)
	at := time.Now().Add(-time.Minute)
	for range 5 {
		s.send("notifications", home("BBCA"), "BBCA", `{"old":true}`, at)
	}
	s.send("market-updates", home("BBCA"), "BBCA", `{"price":3}`, at)
	p := s.start(func(c *config.Config) { c.Notification.Start = "latest" })
	p.awaitReady()
	s.send("notifications", home("BBCA"), "BBCA", `{"old":false}`, at)
	m := s.alerts("enriched-alerts", 1)[0]
	a, err := enrich.ParseAlert(m.Value)
	if err != nil || string(a.Notification) != `{"old":false}` || a.Market == nil || a.Market.Price != "3" {
		t.Errorf("%s, %v", m.Value, err)
	}
}

func TestProbes(t *testing.T) {
	s := newStage(t, allTopics()...)
	p := s.start(nil)
	p.awaitReady()
	get := func(path string) (int, []byte) {
		resp, err := http.Get("http://" + p.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, body
	}
	if code, _ := get("/livez"); code != http.StatusOK {
		t.Errorf("/livez %d", code)
	}
	code, body := get("/readyz")
	var r server.Readiness
	if err := json.Unmarshal(body, &r); err != nil || code != http.StatusOK || !r.Ready || !r.Assigned || !r.CaughtUp || r.Restoring {
		t.Errorf("/readyz %d %s %v", code, body, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Without brokers the pod lives, is not ready and says why, and stops at once.
func TestBrokersAway(t *testing.T) {
	c := config.Default()
	c.Kafka.Brokers = []string{"127.0.0.1:1"}
	c.HTTP.Listen = "127.0.0.1:0"
	c.Peer.Listen = "127.0.0.1:0"
	a, err := New(Options{Config: c, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	await(t, func() string {
		if a.Addr() == nil {
			return "not listening"
		}
		return ""
	})
	if r := a.Ready(); r.Ready || len(r.Reasons) == 0 {
		t.Errorf("%+v", r)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

// A topic that is made anew while the pod runs begins at its start: what it
// holds is joined, not skipped up to the old position.
func TestNotificationsMadeAnewWhileRunning(t *testing.T) {
	s := newStage(t, allTopics()...)
	p := s.start(nil)
	p.awaitReady()
	at := time.Now().Add(-time.Minute)
	for range 5 {
		s.send("notifications", home("BBCA"), "BBCA", `{"life":1}`, at)
	}
	s.alerts("enriched-alerts", 5)
	admin, err := sarama.NewClusterAdminFromClient(s.client)
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.DeleteTopic("notifications"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTopic("notifications", &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false); err != nil {
		t.Fatal(err)
	}
	if err := s.client.RefreshMetadata("notifications"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.send("notifications", home("BBCA"), "BBCA", `{"life":2}`, at)
	}
	second := 0
	for _, m := range s.alerts("enriched-alerts", 7) {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			t.Fatal(err)
		}
		if string(a.Notification) == `{"life":2}` {
			second++
		}
	}
	if second != 2 {
		t.Errorf("%d alerts of the new topic, want 2", second)
	}
}
