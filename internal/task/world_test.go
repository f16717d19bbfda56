package task

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"joiner/internal/enrich"
	"joiner/internal/keys"
	"joiner/internal/metrics"
	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/internal/sampled"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	marketTopic = "market-updates"
	noteTopic   = "notifications"
	alertTopic  = "enriched-alerts"
	deadTopic   = "enriched-alerts-dlq"
)

// world is everything around a task, in memory: two logs, their ends, a sink.
type world struct {
	t    testing.TB
	task *Task
	opts Options
	// watch is told of the task's keys.
	watch *keys.Watch

	mu      sync.Mutex
	logs    [record.Sides]fakeLog
	sent    []*record.Output
	hold    bool // outputs are not settled
	refuse  func(o *record.Output) error
	asks    int // ends asked for
	endErr  error
	endHold bool // questions are not answered
	held    []func()
	resumes int
	commits []record.Offsets
	prices  func(q Query) Answer
	owns    map[int32]bool
	home    func(symbol string) (int32, bool)
	former  func(symbol string) []int32
	tries   uint64 // of the log
	waiting bool
}

// fakeLog is one partition: invisible records are control or aborted ones.
type fakeLog struct {
	start, end int64
	recs       []record.Record
}

func newWorld(t testing.TB, change func(*Options)) *world {
	w := &world{t: t, owns: map[int32]bool{}}
	market, err := enrich.NewMarketDecoder(enrich.MarketOptions{Symbol: "key", Price: "price", EventTime: "record", EventTimeUnit: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	note, err := enrich.NewNoteDecoder(enrich.NoteOptions{Symbol: "key", EventTime: "record", EventTimeUnit: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	m := metrics.New(prometheus.NewRegistry(), metrics.Options{Topics: [record.Sides]string{marketTopic, noteTopic}})
	w.watch = keys.New(keys.Options{
		Topics: [record.Sides]string{marketTopic, noteTopic}, Partitioners: [record.Sides]string{"murmur2", "murmur2"},
		Places: w, Faults: sampled.New(zap.NewNop(), nil),
	})
	w.opts = Options{
		Index: 3, Mine: [record.Sides]bool{true, true},
		Topics: [record.Sides]string{marketTopic, noteTopic}, Alerts: alertTopic,
		DeadLetters: deadTopic, DeadLetterPartition: func() int32 { return 3 },
		Market: market, Note: note, Placement: w,
		Waiting: NewWaiting(100), OnMiss: Emit, OnUnavailable: Emit,
		Ends: w, Log: w, Sink: w, Flow: w,
		Commit:  w.commit,
		Drain:   5 * time.Second,
		Metrics: m.Partition(3, [record.Sides]bool{true, true}),
		Keys:    w.watch.Partition(3),
		Logger:  zaptest.NewLogger(t),
		Faults:  sampled.New(zap.NewNop(), nil),
	}
	if change != nil {
		change(&w.opts)
	}
	return w
}

// start makes the task and begins its claims; below 0 is a group without
// commits.
func (w *world) start(market, note int64) *Task {
	w.task = New(w.opts)
	if w.opts.Mine[record.Market] {
		w.task.Start(record.Market, market)
	}
	if w.opts.Mine[record.Notification] {
		w.task.Start(record.Notification, note)
	}
	return w.task
}

func (w *world) stop() {
	w.task.Freeze()
	<-w.task.Done()
}

// put appends a record to a side's log without offering it.
func (w *world) put(side record.Side, key, value string, at record.Millis) record.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &w.logs[side]
	r := record.Record{Offset: l.end, Timestamp: at, Key: []byte(key), Value: []byte(value)}
	if value == "" {
		r.Value = nil
	}
	l.recs = append(l.recs, r)
	l.end++
	return r
}

// control appends an offset that no reader sees.
func (w *world) control(side record.Side) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logs[side].end++
}

// offer delivers records in one batch.
func (w *world) offer(side record.Side, recs ...record.Record) {
	w.task.Full(side)
	w.task.Deliver(side, recs, recs[len(recs)-1].Offset+1, -1, w.endOf(side))
	synctest.Wait()
}

// fetch is a response that brings no records, only what it says of the end.
func (w *world) fetch(side record.Side) {
	if w.task.Full(side) {
		return
	}
	end := w.endOf(side)
	w.task.Deliver(side, w.task.Batch(side), end, end, end)
	synctest.Wait()
}

func (w *world) endOf(side record.Side) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs[side].end
}

func (w *world) tick(symbol, price string, at record.Millis) {
	w.offer(record.Market, w.put(record.Market, symbol, `{"price":`+price+`}`, at))
}

func (w *world) note(symbol string, at record.Millis) {
	w.offer(record.Notification, w.put(record.Notification, symbol, `{"user":"u"}`, at))
}

func sideOf(topic string) record.Side {
	if topic == marketTopic {
		return record.Market
	}
	return record.Notification
}

// Ask implements Ends.
func (w *world) Ask(topic string, _ int32, _ bool, done func(int64, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asks++
	end, err := w.logs[sideOf(topic)].end, w.endErr
	if w.endHold {
		w.held = append(w.held, func() { done(end, err) })
		return
	}
	go done(end, err)
}

// answerHeld answers the questions that were held.
func (w *world) answerHeld() {
	w.mu.Lock()
	held := w.held
	w.held, w.endHold = nil, false
	w.mu.Unlock()
	for _, f := range held {
		f()
	}
}

// Bounds implements Log.
func (w *world) Bounds(_ context.Context, topic string, _ int32) (start, end int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &w.logs[sideOf(topic)]
	return l.start, l.end, nil
}

// Read implements Log.
func (w *world) Read(_ context.Context, topic string, _ int32, from, to int64, each func([]record.Record) error, progress func(int64)) error {
	w.mu.Lock()
	recs := slices.Clone(w.logs[sideOf(topic)].recs)
	w.mu.Unlock()
	for _, r := range recs {
		if r.Offset < from || r.Offset >= to {
			continue
		}
		if err := each([]record.Record{r}); err != nil {
			return err
		}
		progress(r.Offset + 1)
	}
	return nil
}

// Tries implements Log.
func (w *world) Tries(string, int32) (n uint64, waiting bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tries, w.waiting
}

// Send implements Sink.
func (w *world) Send(outputs []*record.Output) {
	w.mu.Lock()
	w.sent = append(w.sent, outputs...)
	hold, refuse := w.hold, w.refuse
	w.mu.Unlock()
	if hold {
		return
	}
	for _, o := range outputs {
		var err error
		if refuse != nil {
			err = refuse(o)
		}
		o.Owner.Settled(o, err)
	}
}

// Drop implements Sink.
func (w *world) Drop(record.Owner) int { return 0 }

// settle acknowledges the i-th output that was sent.
func (w *world) settle(i int) {
	w.mu.Lock()
	o := w.sent[i]
	w.mu.Unlock()
	o.Owner.Settled(o, nil)
}

// Resume implements Flow; the task holds its lock.
func (w *world) Resume(record.Side) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resumes++
}

func (w *world) commit(_ context.Context, t *Task) error {
	cut, _ := t.Cut()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commits = append(w.commits, cut)
	return nil
}

// Home, Former and WellPlaced implement Placement.
func (w *world) Home(symbol []byte) (int32, bool) {
	if w.home == nil {
		return w.opts.Index, true
	}
	return w.home(string(symbol))
}

func (w *world) Former(symbol []byte) []int32 {
	if w.former == nil {
		return nil
	}
	return w.former(string(symbol))
}

func (w *world) WellPlaced(_ record.Side, key []byte) bool {
	home, ok := w.Home(key)
	return !ok || home == w.opts.Index
}

// Expected, Partitions and Detective implement keys.Places.
func (w *world) Expected(_ record.Side, key []byte) (int32, bool) { return w.Home(key) }
func (w *world) Partitions(record.Side) int32                     { return 6 }
func (w *world) Detective(record.Side) *placement.Detective       { return placement.NewDetective(6) }

// Owns implements Prices.
func (w *world) Owns(partition int32) bool {
	return w.owns[partition] || partition == w.opts.Index && w.opts.Mine[record.Market]
}

// pricesOf adapts the world's answers to Prices; the world's own Ask is Ends'.
type pricesOf struct{ *world }

// Ask implements Prices.
func (p pricesOf) Ask(_ context.Context, q Query, done func(Answer)) {
	go func() { done(p.prices(q)) }()
}

// outputs lists what was sent, a line each, in order.
func (w *world) outputs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for _, o := range w.sent {
		lines = append(lines, describe(w.t, o))
	}
	return lines
}

// describe puts an output into words: key, source offset, price or reason.
func describe(t testing.TB, o *record.Output) string {
	t.Helper()
	source := header(o, "joiner-source")
	if o.Topic == deadTopic {
		return fmt.Sprintf("dead %s %s %s", o.Key, source, header(o, "joiner-error-kind"))
	}
	price := "none"
	alert, err := enrich.ParseAlert(o.Value)
	if err != nil {
		t.Fatalf("alert %s: %v", o.Value, err)
	}
	if alert.Market != nil {
		price = alert.Market.Price
	}
	return fmt.Sprintf("%s %s %s %s %s", o.Key, source, price, alert.Locality, alert.Result)
}

func header(o *record.Output, name string) string {
	for _, h := range slices.Backward(o.Headers) {
		if string(h.Key) == name {
			return string(h.Value)
		}
	}
	return ""
}
