package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"joiner/internal/assign"
	"joiner/internal/enrich"
	"joiner/internal/kafka"
	"joiner/internal/keys"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/sampled"
	"joiner/internal/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	marketTopic = "market-updates"
	noteTopic   = "notifications"
)

var both = [record.Sides]bool{true, true}

// world is everything around a member, in memory: its group, a fetcher, and
// what its tasks need.
type world struct {
	t      *testing.T
	m      *Member
	group  *fakeGroup
	market *enrich.MarketDecoder
	note   *enrich.NoteDecoder
	all    *metrics.Metrics
	gen    int32

	mu         sync.Mutex
	events     []string
	tasks      []*task.Task
	halves     [][record.Sides]bool
	feeds      []*fakeFeed
	sent       []*record.Output
	pauses     []time.Duration // what joiner_task_pause_seconds observed
	interrupts int
	commits    chan struct{} // closed: last commits go through at once
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, commits: make(chan struct{})}
	close(w.commits)
	var err error
	w.market, err = enrich.NewMarketDecoder(enrich.MarketOptions{Symbol: "key", Price: "price", EventTime: "record", EventTimeUnit: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	w.note, err = enrich.NewNoteDecoder(enrich.NoteOptions{Symbol: "key", EventTime: "record", EventTimeUnit: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	w.all = metrics.New(prometheus.NewRegistry(), metrics.Options{Topics: [record.Sides]string{marketTopic, noteTopic}})
	w.all.Group.TaskPause = prometheus.ObserverFunc(func(s float64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pauses = append(w.pauses, time.Duration(s*float64(time.Second)))
	})
	w.m = New(Options{
		Topics:  [record.Sides]string{marketTopic, noteTopic},
		NewTask: w.newTask,
		Fetcher: func() Fetcher { return w },
		Interrupt: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.interrupts++
		},
		Metrics: &w.all.Group, Logger: zaptest.NewLogger(t),
	})
	return w
}

// joined returns a world whose member is in a session. Its end is the test's.
func joined(t *testing.T) *world {
	w := newWorld(t)
	w.group = newFakeGroup(w)
	w.group.run()
	synctest.Wait()
	return w
}

// interrupted counts the interrupts so far.
func (w *world) interrupted() int {
	synctest.Wait() // the stop runs beside what ended the context
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.interrupts
}

func (w *world) event(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

// happened returns the events since it was last asked.
func (w *world) happened() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	if got := w.happened(); !slices.Equal(got, want) {
		w.t.Errorf("happened: %q, want %q", got, want)
	}
}

// assign is the member's next assignment, with a directory in which nobody has
// the rest.
func (w *world) assign(market, note []int32) {
	w.gen++
	d := &assign.Directory{
		Generation: w.gen, Members: []assign.Member{{MemberID: "me"}, {MemberID: "you"}},
		Owners:     map[string][]string{marketTopic: make([]string, 12), noteTopic: make([]string, 12)},
		Partitions: map[string]int32{marketTopic: 12, noteTopic: 12},
	}
	for _, p := range market {
		d.Owners[marketTopic][p] = "me"
	}
	for _, p := range note {
		d.Owners[noteTopic][p] = "me"
	}
	w.assignWith(d, market, note)
}

func (w *world) assignWith(d *assign.Directory, market, note []int32) {
	w.m.OnAssigned(assign.Assignment{
		Generation: w.gen, Directory: d,
		Claims: map[string][]int32{marketTopic: market, noteTopic: note},
	})
}

// newTask is the member's Factory.
func (w *world) newTask(index int32, halves [record.Sides]bool, flow task.Flow) *task.Task {
	t := task.New(task.Options{
		Index: index, Mine: halves, Topics: [record.Sides]string{marketTopic, noteTopic},
		Alerts: "enriched-alerts", DeadLetterPartition: func() int32 { return index },
		Market: w.market, Note: w.note, Placement: home(index), Waiting: task.NewWaiting(0),
		OnMiss: task.Emit, OnUnavailable: task.Emit,
		Ends: ends{}, Log: logs{}, Sink: sent{w}, Flow: flow,
		Prices: nobody{},
		Commit: func(_ context.Context, t *task.Task) error {
			w.event("commit %d", t.Index())
			<-w.commits
			return nil
		},
		Drain: time.Second, Metrics: w.all.Partition(index, halves), Logger: zaptest.NewLogger(w.t),
		Keys:   keys.New(keys.Options{Faults: sampled.New(zap.NewNop(), nil)}).Partition(index), // nothing is misplaced
		Faults: sampled.New(zap.NewNop(), nil),
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks = append(w.tasks, t)
	w.halves = append(w.halves, halves)
	return t
}

// Add implements Fetcher.
func (w *world) Add(topic string, partition int32, at Start, sink kafka.Sink) Feed {
	f := &fakeFeed{w: w, name: fmt.Sprintf("%s/%d", topic, partition), sink: sink}
	w.event("read %s from %d", f.name, at.Offset)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.feeds = append(w.feeds, f)
	return f
}

// fakeFeed is a partition that the member reads.
type fakeFeed struct {
	w    *world
	name string
	sink kafka.Sink
}

func (f *fakeFeed) Wake()   { f.w.event("wake %s", f.name) }
func (f *fakeFeed) Remove() { f.w.event("remove %s", f.name) }

// deliver is a response with one record, at the partition's end.
func (f *fakeFeed) deliver(r record.Record) {
	next := r.Offset + 1
	f.sink.Full()
	f.sink.Deliver(append(f.sink.Batch(), r), next, next, next)
}

// fakeGroup is the member's consumer group: sessions that the test ends.
type fakeGroup struct {
	sarama.ConsumerGroup // what the member has no business to call
	w                    *world
	consume              func(ctx context.Context, h sarama.ConsumerGroupHandler) error

	session *fakeSession
	end     chan error
	claims  []*fakeClaim // guarded by world.mu
	cancel  context.CancelFunc
	result  chan error
}

func newFakeGroup(w *world) *fakeGroup {
	g := &fakeGroup{w: w, end: make(chan error), result: make(chan error, 1)}
	g.consume = g.oneSession
	return g
}

func (g *fakeGroup) run() {
	ctx, cancel := context.WithCancel(g.w.t.Context())
	g.cancel = cancel
	go func() { g.result <- g.w.m.Run(ctx, g) }()
}

// stop ends Run and expects it to be content.
func (g *fakeGroup) stop() {
	g.w.t.Helper()
	g.cancel()
	if err := <-g.result; err != nil {
		g.w.t.Errorf("Run: %v", err)
	}
}

func (g *fakeGroup) Consume(ctx context.Context, topics []string, h sarama.ConsumerGroupHandler) error {
	if !slices.Equal(topics, []string{marketTopic, noteTopic}) {
		return fmt.Errorf("subscribed to %q", topics)
	}
	return g.consume(ctx, h)
}

// oneSession is a session as sarama has it: until its end, or the context's.
func (g *fakeGroup) oneSession(ctx context.Context, h sarama.ConsumerGroupHandler) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.session = &fakeSession{ctx: ctx, cancel: cancel}
	if err := h.Setup(g.session); err != nil {
		return err
	}
	select {
	case err = <-g.end:
	case <-ctx.Done():
	}
	cancel()
	g.w.mu.Lock()
	claims := g.claims
	g.claims = nil
	g.w.mu.Unlock()
	for _, c := range claims {
		<-c.returned
	}
	return errors.Join(err, h.Cleanup(g.session))
}

func (g *fakeGroup) Pause(partitions map[string][]int32) {
	for topic, list := range partitions {
		for _, p := range list {
			g.w.event("pause %s/%d", topic, p)
		}
	}
}

type fakeSession struct {
	sarama.ConsumerGroupSession // what the member has no business to call
	ctx                         context.Context
	cancel                      context.CancelFunc
}

func (s *fakeSession) MemberID() string         { return "me-1" }
func (s *fakeSession) GenerationID() int32      { return 7 }
func (s *fakeSession) Context() context.Context { return s.ctx }

// fakeClaim is a claim that its ConsumeClaim runs on.
type fakeClaim struct {
	sarama.ConsumerGroupClaim // what the member has no business to call
	w                         *world
	topic                     string
	index                     int32
	initial                   int64
	messages                  chan *sarama.ConsumerMessage
	returned                  chan struct{}
}

func (c *fakeClaim) Topic() string                            { return c.topic }
func (c *fakeClaim) Partition() int32                         { return c.index }
func (c *fakeClaim) InitialOffset() int64                     { return c.initial }
func (c *fakeClaim) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

// begin starts a claim, which a message lies in already, and lets it settle.
// As in sarama the session ends with the first ConsumeClaim that returns
// without its claim being revoked.
func (w *world) begin(topic string, index int32) *fakeClaim {
	c := &fakeClaim{
		w: w, topic: topic, index: index, initial: 5,
		messages: make(chan *sarama.ConsumerMessage, 1), returned: make(chan struct{}),
	}
	c.messages <- &sarama.ConsumerMessage{Topic: topic, Partition: index, Offset: 5}
	s := w.group.session
	w.mu.Lock()
	w.group.claims = append(w.group.claims, c)
	w.mu.Unlock()
	go func() {
		defer close(c.returned)
		if err := w.m.ConsumeClaim(s, c); err != nil {
			w.t.Errorf("claim of %s/%d: %v", topic, index, err)
		}
	}()
	synctest.Wait()
	return c
}

// close is what sarama does with a revoked claim.
func (c *fakeClaim) close() {
	close(c.messages)
	synctest.Wait()
}

// ended reports whether ConsumeClaim has returned.
func (c *fakeClaim) ended() bool {
	synctest.Wait()
	select {
	case <-c.returned:
		return true
	default:
		return false
	}
}

func (w *world) wantEnded(want bool, claims ...*fakeClaim) {
	w.t.Helper()
	for _, c := range claims {
		if got := c.ended(); got != want {
			w.t.Errorf("claim of %s/%d ended: %t, want %t", c.topic, c.index, got, want)
		}
	}
}

// value reads a counter or a gauge.
func value(c prometheus.Collector) float64 { return testutil.ToFloat64(c) }

// The rest is what a task needs and these tests do not look at.

// ends says that every partition ends where the claims begin.
type ends struct{}

func (ends) Ask(_ string, _ int32, _ bool, done func(int64, error)) { go done(5, nil) }

// logs are partitions with five offsets and no visible record.
type logs struct{}

func (logs) Bounds(context.Context, string, int32) (start, end int64, err error) { return 0, 5, nil }

func (logs) Tries(string, int32) (n uint64, waiting bool) { return 0, false }

func (logs) Read(context.Context, string, int32, int64, int64, func([]record.Record) error, func(int64)) error {
	return nil
}

// sent acknowledges everything at once.
type sent struct{ w *world }

func (s sent) Send(outputs []*record.Output) {
	s.w.mu.Lock()
	s.w.sent = append(s.w.sent, outputs...)
	s.w.mu.Unlock()
	for _, o := range outputs {
		o.Owner.Settled(o, nil)
	}
}

func (s sent) Drop(record.Owner) int { return 0 }

// home is a placement under which every symbol lies here.
type home int32

func (h home) Home([]byte) (int32, bool)           { return int32(h), true }
func (h home) Former([]byte) []int32               { return nil }
func (h home) WellPlaced(record.Side, []byte) bool { return true }

// nobody answers look-ups.
type nobody struct{}

func (nobody) Owns(int32) bool { return false }
func (nobody) Ask(_ context.Context, _ task.Query, done func(task.Answer)) {
	go done(task.Answer{Outcome: task.NotAsked})
}
