package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"joiner/internal/embedded"
	"joiner/internal/enrich"
	"joiner/internal/record"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// fakes makes pods that share one fake joiner: it owns partitions as sarama's
// own strategies deal them out (copartition is an index modulo the members) and
// joins as little as the orchestration needs. What a real joiner does is not
// tested here.
type fakes struct {
	t     *testing.T
	price func(string) string // what the market said -> what the alert says

	mu   sync.Mutex
	pods []*fakePod
	stop func()
}

func (f *fakes) newPod(_ context.Context, o PodOptions) (Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &fakePod{f: f, o: o}
	if f.pods = append(f.pods, p); len(f.pods) == 1 {
		f.stop = f.startJoining(o)
	}
	f.assign(o)
	return p, nil
}

func (f *fakes) assign(o PodOptions) {
	all := map[string][]int32{}
	for _, topic := range []string{o.Topics.MarketUpdates, o.Topics.Notifications} {
		for p := range int32(partitions) {
			all[topic] = append(all[topic], p)
		}
	}
	members := map[string]sarama.ConsumerGroupMemberMetadata{}
	for _, p := range f.pods {
		members[p.o.Name] = sarama.ConsumerGroupMemberMetadata{Topics: []string{o.Topics.MarketUpdates, o.Topics.Notifications}}
	}
	plan := sarama.BalanceStrategyPlan{}
	var err error
	switch o.Strategy {
	case "range":
		plan, err = sarama.NewBalanceStrategyRange().Plan(members, all)
	case "roundrobin":
		plan, err = sarama.NewBalanceStrategyRoundRobin().Plan(members, all)
	case "sticky":
		plan, err = sarama.NewBalanceStrategySticky().Plan(members, all)
	default:
		for topic, ps := range all {
			for _, p := range ps {
				plan.Add(f.pods[int(p)%len(f.pods)].o.Name, topic, p)
			}
		}
	}
	if err != nil {
		f.t.Error(err)
	}
	for _, p := range f.pods {
		p.owned = plan[p.o.Name]
	}
}

// owner returns the pod that owns a partition.
func (f *fakes) owner(topic string, partition int32) *fakePod {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pods {
		if slices.Contains(p.owned[topic], partition) {
			return p
		}
	}
	return nil
}

// startJoining answers notifications once every tick is there.
func (f *fakes) startJoining(o PodOptions) func() {
	log, err := openLog(o.Brokers)
	if err != nil {
		f.t.Error(err)
		return func() {}
	}
	ticks, stopTicks, err := log.read(o.Topics.MarketUpdates)
	if err != nil {
		f.t.Error(err)
	}
	notes, stopNotes, err := log.read(o.Topics.Notifications)
	if err != nil {
		f.t.Error(err)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		want := len(newData(time.Now()).ticks)
		for n := 0; ; {
			in := ticks
			if n == want {
				in = notes
			}
			select {
			case m := <-in:
				if n < want {
					n++
					f.merge(o, m)
					continue
				}
				f.join(log, o, m)
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		stopTicks()
		stopNotes()
		log.close()
	}
}

func (f *fakes) merge(o PodOptions, m *sarama.ConsumerMessage) {
	var tick struct{ Price json.Number }
	if err := json.Unmarshal(m.Value, &tick); err != nil {
		f.t.Error(err)
	}
	p := f.owner(o.Topics.MarketUpdates, m.Partition)
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.table == nil {
		p.table = map[string]record.Price{}
	}
	p.table[string(m.Key)] = record.Price{
		Text: f.price(tick.Price.String()), EventTime: record.MillisOf(m.Timestamp), Partition: m.Partition, Offset: m.Offset,
	}
}

func (f *fakes) join(log *brokerLog, o PodOptions, m *sarama.ConsumerMessage) {
	pod, market := f.owner(o.Topics.Notifications, m.Partition), f.owner(o.Topics.MarketUpdates, m.Partition)
	at := record.MillisOf(m.Timestamp)
	match := enrich.Match{Symbol: m.Key, Locality: record.Local, Result: record.Hit}
	if pod != market {
		match.Locality = record.Remote
	}
	f.mu.Lock()
	price, found := market.table[string(m.Key)]
	f.mu.Unlock()
	if found {
		match.Price, match.PriceTime = []byte(price.Text), price.EventTime
		match.Partition, match.Offset = price.Partition, price.Offset
	} else {
		match.Result = record.Miss
	}
	f.mu.Lock()
	pod.joins++
	f.mu.Unlock()
	// Twice: at least once is what is promised, and what the demo must cope with.
	for range 2 {
		_, _, err := log.producer.SendMessage(&sarama.ProducerMessage{
			Topic: o.Topics.EnrichedAlerts, Partition: m.Partition, Key: sarama.ByteEncoder(m.Key),
			Value:   sarama.ByteEncoder(enrich.AppendAlert(nil, m.Value, at, &match)),
			Headers: []sarama.RecordHeader{{Key: []byte("joiner-source"), Value: fmt.Appendf(nil, "%s/%d/%d", m.Topic, m.Partition, m.Offset)}},
		})
		if err != nil {
			f.t.Error(err)
		}
	}
}

type fakePod struct {
	f     *fakes
	o     PodOptions
	owned map[string][]int32
	table map[string]record.Price
	joins int
}

func (p *fakePod) Status() Status {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return Status{Ready: true, Owned: p.owned}
}

func (p *fakePod) JoinTimes() []time.Duration {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return slices.Repeat([]time.Duration{2500 * time.Nanosecond}, p.joins)
}

func (p *fakePod) Stop(context.Context) error {
	p.f.mu.Lock()
	p.f.pods = slices.DeleteFunc(p.f.pods, func(other *fakePod) bool { return other == p })
	last := len(p.f.pods) == 0
	p.f.mu.Unlock()
	if last {
		p.f.stop()
	}
	return nil
}

func asItCame(price string) string { return price }

func TestEveryStrategyIsPlayed(t *testing.T) {
	f := &fakes{t: t, price: asItCame}
	var progress bytes.Buffer
	report, err := Run(t.Context(), Options{NewPod: f.newPod, Progress: &progress})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range report.Strategies {
		names = append(names, s.Name)
		if s.Local+s.Remote != 30 || s.Enriched != 30 || s.Miss != 0 || s.Unavailable != 0 {
			t.Errorf("%+v", s)
		}
		if s.JoinP50 != 2.5 || s.JoinP99 != 2.5 {
			t.Errorf("join times of %s: %v and %v µs, want 2.5", s.Name, s.JoinP50, s.JoinP99)
		}
		if s.MovedMinimum != 2 || s.Moved < s.MovedMinimum {
			t.Errorf("%s moved %d, at least %d", s.Name, s.Moved, s.MovedMinimum)
		}
		switch s.Name {
		case "copartition", "range":
			if s.Local != 30 {
				t.Errorf("%s: %d local, want 30", s.Name, s.Local)
			}
		case "roundrobin":
			if s.Remote != 30 {
				t.Errorf("%s: %d remote, want 30", s.Name, s.Remote)
			}
		}
		if !strings.Contains(progress.String(), s.Name+": a fifth member joins\n") {
			t.Errorf("progress does not tell of %s: %s", s.Name, progress.String())
		}
	}
	if !slices.Equal(names, Strategies()) {
		t.Errorf("strategies %v, want %v", names, Strategies())
	}
}

func TestWrongPriceFails(t *testing.T) {
	f := &fakes{t: t, price: func(p string) string { return p + "1" }}
	report, err := Run(t.Context(), Options{NewPod: f.newPod, Strategies: []string{"range"}})
	if err == nil || !strings.Contains(err.Error(), "strategy range: ") || !strings.Contains(err.Error(), "got the price") {
		t.Fatalf("%+v, %v", report, err)
	}
}

// holder is a pod that tells what it is told to tell.
type holder struct {
	status  func() Status
	stopped error
}

func (h holder) Status() Status             { return h.status() }
func (h holder) JoinTimes() []time.Duration { return nil }
func (h holder) Stop(context.Context) error { return h.stopped }

func TestGroupThatDoesNotSettleIsDescribed(t *testing.T) {
	stopping := errors.New("will not stop")
	_, err := Run(t.Context(), Options{
		Patience: 100 * time.Millisecond,
		NewPod: func(context.Context, PodOptions) (Pod, error) {
			return holder{stopped: stopping, status: func() Status {
				return Status{Reasons: []string{"being restored"}, Owned: map[string][]int32{"market-updates": {0}}}
			}}, nil
		},
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for _, part := range []string{"strategy copartition", "m1: being restored", "market-updates/0 has 4 owners", "notifications/5 has 0 owners"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
}

func TestPodThatDoesNotStart(t *testing.T) {
	refused := errors.New("refused")
	var stopped atomic.Int32
	_, err := Run(t.Context(), Options{NewPod: func(_ context.Context, o PodOptions) (Pod, error) {
		if o.Name == "m3" {
			return nil, refused
		}
		return stopCounter{&stopped}, nil
	}})
	if !errors.Is(err, refused) || !strings.Contains(err.Error(), "m3") || stopped.Load() != 2 {
		t.Fatalf("%v, %d pods stopped", err, stopped.Load())
	}
}

type stopCounter struct{ n *atomic.Int32 }

func (s stopCounter) Status() Status             { return Status{} }
func (s stopCounter) JoinTimes() []time.Duration { return nil }
func (s stopCounter) Stop(context.Context) error { s.n.Add(1); return nil }

func TestDataCoversEveryPartition(t *testing.T) {
	c, err := embedded.Start(embedded.Options{Topics: []embedded.Topic{{Name: "t", Partitions: partitions}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	log, err := openLog(c.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	defer log.close()
	d := newData(time.Unix(1_700_000_000, 0))
	if len(d.notes) != 30 || len(d.last) != 10 {
		t.Fatalf("%d notifications of %d symbols", len(d.notes), len(d.last))
	}
	if err := log.send("t", d.notes); err != nil {
		t.Fatal(err)
	}
	messages, stop, err := log.read("t")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	seen := map[int32]bool{}
	for range d.notes {
		seen[(<-messages).Partition] = true
	}
	if len(seen) != partitions {
		t.Fatalf("partitions %v, want all of %d", seen, partitions)
	}
}

func TestMoves(t *testing.T) {
	own := func(ps ...int32) ownership { return ownershipOf(map[string][]int32{"a": ps}) }
	for name, c := range map[string]struct {
		before, after []ownership
		moved, least  int
	}{
		"nothing":       {[]ownership{own(0, 1), own(2)}, []ownership{own(0, 1), own(2)}, 0, 0},
		"one to a new":  {[]ownership{own(0, 1), own(2, 3)}, []ownership{own(0), own(2, 3), own(1)}, 1, 1},
		"all shuffled":  {[]ownership{own(0, 1), own(2, 3)}, []ownership{own(2), own(0, 1), own(3)}, 4, 1},
		"larger shares": {[]ownership{own(0), own(1, 2, 3)}, []ownership{own(0), own(1, 2), own(3)}, 1, 1},
	} {
		if got := moved(c.before, c.after); got != c.moved {
			t.Errorf("%s: moved %d, want %d", name, got, c.moved)
		}
		if got := movedMinimum(c.before, len(c.after)); got != c.least {
			t.Errorf("%s: least %d, want %d", name, got, c.least)
		}
	}
}

// TestMovedMinimumIsTheLeast compares with every way to choose who gets the
// larger shares.
func TestMovedMinimumIsTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 6), 1, 5).Draw(t, "owned")
		members := len(sizes) + rapid.IntRange(0, 2).Draw(t, "joining")
		var before []ownership
		total := 0
		for _, n := range sizes {
			own := ownership{}
			for range n {
				own[topicPartition{"a", int32(total)}] = true
				total++
			}
			before = append(before, own)
		}
		least := total
		for larger := range 1 << members {
			n, count := 0, 0
			for i := range members {
				share := total / members
				if larger>>i&1 == 1 {
					share, count = share+1, count+1
				}
				if i < len(sizes) {
					n += max(0, sizes[i]-share)
				}
			}
			if count == total%members {
				least = min(least, n)
			}
		}
		if got := movedMinimum(before, members); got != least {
			t.Fatalf("%v over %d members: %d, want %d", sizes, members, got, least)
		}
	})
}

func TestQuantile(t *testing.T) {
	var all []time.Duration
	for i := range 30 {
		all = append(all, time.Duration(i+1))
	}
	if p50, p99 := quantile(all, 50), quantile(all, 99); p50 != 15 || p99 != 30 {
		t.Errorf("median %d, 99th %d, want 15 and 30", p50, p99)
	}
	if got := quantile(nil, 50); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}

func TestReportForPeopleAndPrograms(t *testing.T) {
	r := Report{Strategies: []Strategy{
		{Name: "copartition", Local: 30, Enriched: 30, Moved: 2, MovedMinimum: 2, JoinP50: 1.25, JoinP99: 12},
		{Name: "roundrobin", Remote: 30, Enriched: 29, Miss: 1, Moved: 9, MovedMinimum: 2, JoinP50: 950, JoinP99: 21000},
	}}
	var text bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	want := `     strategy  local  remote  miss  unavailable  enriched  join p50  join p99  moved  least
  copartition     30       0     0            0        30    1.2 µs   12.0 µs      2      2
   roundrobin      0      30     1            0        29  950.0 µs   21.0 ms      9      2
`
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	wantJSON := `{"strategies":[{"name":"copartition","local":30,"remote":0,"miss":0,"unavailable":0,"enriched":30,"moved":2,"moved_minimum":2,"join_p50_us":1.25,"join_p99_us":12},` +
		`{"name":"roundrobin","local":0,"remote":30,"miss":1,"unavailable":0,"enriched":29,"moved":9,"moved_minimum":2,"join_p50_us":950,"join_p99_us":21000}]}`
	if string(b) != wantJSON {
		t.Errorf("got %s", b)
	}
}
