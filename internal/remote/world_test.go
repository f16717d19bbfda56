package remote

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"joiner/internal/assign"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits in tests, against hanging only.
const patience = 30 * time.Second

// fake is a pod as a Group: everything that it believes, set by the test.
type fake struct {
	mu    sync.Mutex
	s     Standing
	out   bool // it has no standing
	dead  bool // the coordinator is silent
	dir   *assign.Directory
	table map[int32]*table
	parts int32
	gate  chan struct{} // while it is open the pod stands still, as a stopped process does
}

func newFake(id string) *fake {
	return &fake{
		s:     Standing{Cluster: "c", Group: "g", Topic: "market", TopicID: "t", Generation: 5, Self: id},
		table: make(map[int32]*table), parts: 4,
		dir: &assign.Directory{Generation: 5},
	}
}

func (f *fake) wait() {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (f *fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fake) Standing() (Standing, bool) {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s, !f.out
}

func (f *fake) Alive() bool {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.dead
}

func (f *fake) Owns(partition int32) bool {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table[partition] != nil
}

func (f *fake) Table(partition int32) Table {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.table[partition]; t != nil && !t.missing {
		return t
	}
	return nil
}

func (f *fake) Directory() *assign.Directory {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dir
}

func (f *fake) Partitions() int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.parts
}

// table is one partition's prices: the symbol's text, at event time 1000.
type table struct {
	mu       sync.Mutex
	prices   map[string]string
	state    task.State
	freezing bool
	missing  bool // owned, and no task yet
	hold     bool // answers wait for release
	held     []func()
	busy     bool
	mute     string // this symbol is never answered
	before   func() // runs before an answer is given
	time     record.Millis
	asOf     bool
	partNo   int32
	asked    []task.Query
}

func tableOf(partition int32, prices map[string]string) *table {
	return &table{prices: prices, state: task.Running, time: 1000, asOf: true, partNo: partition}
}

func (t *table) Lookup(_ context.Context, q task.Query, done func(task.Answer)) task.Ticket {
	t.mu.Lock()
	t.asked = append(t.asked, q)
	hold, before, busy := t.hold || t.mute == q.Symbol, t.before, t.busy
	if t.hold {
		t.held = append(t.held, func() { done(t.answer(q.Symbol)) })
	}
	t.mu.Unlock()
	switch {
	case hold:
	case busy:
		done(task.Answer{Outcome: task.Busy})
	default:
		go func() {
			if before != nil {
				before()
			}
			done(t.answer(q.Symbol))
		}()
	}
	return task.Ticket{Task: 9, Seq: uint64(len(q.Symbol))}
}

func (t *table) release() {
	t.mu.Lock()
	held := t.held
	t.held, t.hold = nil, false
	t.mu.Unlock()
	for _, f := range held {
		f()
	}
}

func (t *table) answer(symbol string) task.Answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freezing {
		return task.Answer{Outcome: task.Moved}
	}
	text, known := t.prices[symbol]
	a := task.Answer{Outcome: task.NoPrice, Partition: t.partNo, Next: 8, Known: true, Held: known}
	if text != "" {
		a.Outcome, a.AsOf, a.Held = task.Found, t.asOf, false
		a.Price = record.Price{Text: text, EventTime: t.time, Partition: t.partNo, Offset: 7}
	}
	return a
}

func (t *table) Newest(symbol []byte) task.Answer { return t.answer(string(symbol)) }

func (t *table) State() task.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

func (t *table) Freezing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.freezing
}

// serve opens a listener for a group and enters it into nobody's directory.
func serve(t testing.TB, g Group, change func(*ServerOptions)) *Server {
	t.Helper()
	o := ServerOptions{Listen: "127.0.0.1:0", Group: g, Log: zap.NewNop()}
	if change != nil {
		change(&o)
	}
	s, err := Listen(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// asker is a client with its counters.
type asker struct {
	*Client
	reg *prometheus.Registry
	m   *metrics.Metrics
}

func ask(t testing.TB, g Group, change func(*ClientOptions)) *asker {
	t.Helper()
	a := &asker{reg: prometheus.NewRegistry()}
	a.m = metrics.New(a.reg, metrics.Options{})
	o := ClientOptions{Group: g, Timeout: 5 * time.Second, Patience: patience, Metrics: &a.m.Remote, Log: zap.NewNop()}
	if change != nil {
		change(&o)
	}
	var err error
	if a.Client, err = NewClient(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// count is one outcome of joiner_remote_lookups_total.
func (a *asker) count(o metrics.LookupOutcome) int {
	return int(testutil.ToFloat64(a.m.Remote.Lookups[o]))
}

// one asks for one symbol and waits for the answer.
func (a *asker) one(t testing.TB, partition int32, symbol string) task.Answer {
	t.Helper()
	got := make(chan task.Answer, 1)
	a.Ask(context.Background(), task.Query{Symbol: symbol, Partition: partition, Except: task.AnyPartition, At: 1500}, Everywhere, func(x task.Answer) { got <- x })
	return a.get(t, got)
}

func (a *asker) get(t testing.TB, got chan task.Answer) task.Answer {
	t.Helper()
	select {
	case x := <-got:
		return x
	case <-time.After(patience):
		t.Fatal("no answer")
		return task.Answer{}
	}
}

// patiently has try ask with a patience of first, and with twice as much each
// time until try has seen what it looks for: how far a question comes within a
// span of time is for the machine to say.
func patiently(t testing.TB, what string, first time.Duration, try func(limit time.Duration) bool) {
	t.Helper()
	for limit := first; !try(limit); limit *= 2 {
		if limit > patience {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// directory says who owns the partitions; "" nobody.
func directory(generation int32, members map[string]string, owners ...string) *assign.Directory {
	d := &assign.Directory{
		Generation: generation, Owners: map[string][]string{"market": owners},
		Partitions: map[string]int32{"market": int32(len(owners))}, Moving: map[string][]int32{},
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if address, ok := members[id]; ok {
			d.Members = append(d.Members, assign.Member{Identity: assign.Identity{ID: id, Address: address}})
		}
	}
	for p, owner := range owners {
		if owner == "" {
			d.Moving["market"] = append(d.Moving["market"], int32(p))
		}
	}
	return d
}

// pair is an asker "a" and an owner "b" of partition 1.
type pair struct {
	asker  *fake
	owner  *fake
	table  *table
	server *Server
	client *asker
}

func newPair(t testing.TB, changeServer func(*ServerOptions), changeClient func(*ClientOptions)) *pair {
	t.Helper()
	p := &pair{asker: newFake("a"), owner: newFake("b"), table: tableOf(1, map[string]string{"BBCA": "9150.25", "GONE": ""})}
	p.owner.table[1] = p.table
	p.server = serve(t, p.owner, changeServer)
	d := directory(5, map[string]string{"a": "", "b": p.server.Addr().String()}, "a", "b", "b", "b")
	p.asker.dir, p.owner.dir = d, d
	p.client = ask(t, p.asker, changeClient)
	return p
}

func symbolOf(p int32) string            { return "s" + strconv.Itoa(int(p)) }
func textOf(p int32, version int) string { return fmt.Sprintf("%d.%d", version, p) }

func newMetrics() *metrics.Metrics { return metrics.New(prometheus.NewRegistry(), metrics.Options{}) }
