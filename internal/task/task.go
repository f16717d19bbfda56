package task

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"joiner/internal/enrich"
	"joiner/internal/keys"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/sampled"
	"joiner/internal/state"
)

// Policy says what becomes of a notification without a price.
type Policy string

// The policies of join.on_miss and join.on_unavailable.
const (
	Emit         Policy = "emit"
	ToDeadLetter Policy = "dead_letter"
	DropIt       Policy = "drop"
)

// MaxFormer is how many partitions of former counts a join asks at most.
const MaxFormer = 8

// Placement tells where the market topic keeps a symbol, and whether a
// consumed key lies where its topic's partitioner puts it.
type Placement interface {
	// Home returns the market partition of the symbol; ok is false where
	// nobody can know it.
	Home(symbol []byte) (partition int32, ok bool)
	// Former returns the partitions under the counts that the topic had before
	// it grew, newest first: none where it did not grow, and maybe some of them
	// twice. No more than MaxFormer are looked at.
	Former(symbol []byte) (partitions []int32)
	// WellPlaced judges a consumed key, or a tick's symbol where that is not its
	// key; partitions of the earlier counts are
	// well placed.
	WellPlaced(side record.Side, key []byte) bool
}

// Options is all that a task needs. Every field without a remark is required.
type Options struct {
	Index  int32
	Mine   [record.Sides]bool // the halves that this pod owns
	Topics [record.Sides]string
	Alerts string

	DeadLetters         string       // "": bad records are counted and skipped
	DeadLetterPartition func() int32 // where the index's dead letters go

	Market    *enrich.MarketDecoder
	Note      *enrich.NoteDecoder
	Placement Placement

	History       time.Duration // join.history
	MaxIdle       time.Duration // join.max_idle
	Wait          time.Duration // join.wait
	Waiting       *Waiting      // the pod's allowance, shared by its tasks
	OnMiss        Policy
	OnUnavailable Policy

	Ends   Ends
	Log    Log
	Sink   Sink
	Prices Prices
	Flow   Flow
	// Gone hears that the table cannot be restored, since the log has not what it
	// is to be made of any more: the task does nothing from then on, and its
	// owner replaces it. It must not block.
	Gone func(t *Task, side record.Side, at int64)
	// Checkpoint keeps the table; nil: nobody does.
	Checkpoint Checkpoint

	// Commit commits the task's pair for the last time; it is called once,
	// after the last output that will be acknowledged was.
	Commit func(ctx context.Context, t *Task) error
	// Settle commits what the sink has of a closing task, where outputs are
	// settled by being committed; nil: the sink settles by itself.
	Settle func(ctx context.Context, t *Task) error
	// Drain bounds how long a closing task waits for its sent outputs.
	Drain time.Duration
	// Patience is how long Prices take at most to answer all the questions of one
	// attempt; it only tells Pulses what has been forgotten.
	Patience time.Duration

	Metrics *metrics.Task
	Keys    *keys.Partition
	Logger  *zap.Logger
	// Faults logs bad records, the first of a kind at once and later ones
	// sparingly; the pod's tasks share it.
	Faults *sampled.Log

	Limits Limits // zero fields mean DefaultLimits
}

// Limits bounds what a task holds in memory.
type Limits struct {
	QueueRecords int // an input above it is paused, below half of it resumed
	QueueBytes   int // likewise
	Places       int // notifications without an acknowledged output; bad ticks may be as many again
	PlaceBytes   int // and what their outputs hold
}

// DefaultLimits are the measured marks: smaller ones stall the fetches of a
// broker, larger ones bring nothing.
func DefaultLimits() Limits {
	return Limits{QueueRecords: 8192, QueueBytes: 2 << 20, Places: 1 << 15, PlaceBytes: 16 << 20}
}

// Waiting is the number of notifications that may wait for a first price in
// one pod (join.max_waiting).
type Waiting struct {
	left atomic.Int64
}

// NewWaiting allows max notifications to wait.
func NewWaiting(maxWaiting int) *Waiting {
	w := &Waiting{}
	w.left.Store(int64(maxWaiting))
	return w
}

func (w *Waiting) take() bool {
	if w.left.Add(-1) >= 0 {
		return true
	}
	w.left.Add(1)
	return false
}

func (w *Waiting) give() { w.left.Add(1) }

// State is where a task is in its life.
type State int32

// The states of a task.
const (
	Fresh     State = iota // made, no market position known yet
	Restoring              // the table is being filled
	Running                // merging
	Frozen                 // takes nothing more; what was sent is awaited
	Closed                 // committed for the last time and forgotten
)

func (s State) String() string {
	return [...]string{"new", "restoring", "running", "frozen", "closed"}[s]
}

// Task runs one partition index. Make it with New; it lives until both of its
// halves have ended.
type Task struct {
	o      Options
	log    *zap.Logger
	table  *state.Table
	ctx    context.Context
	cancel context.CancelFunc
	made   time.Time
	id     uint64        // told from every other task's, here or elsewhere
	wake   chan struct{} // capacity 1: something changed
	ready  chan struct{} // closed once Running
	done   chan struct{} // closed once Closed

	state     atomic.Int32
	frozen    atomic.Bool
	abandoned atomic.Int64
	laps      atomic.Uint64 // of the merge; odd within one, even while it sleeps
	looked    atomic.Uint64 // laps, when Pulses was last called
	closing   atomic.Int64  // when the task became Frozen, since it was made; 0 not yet

	// Shared with claims and callbacks.
	mu     sync.Mutex
	in     [record.Sides]input
	seq    uint64 // counts batches and questions received: the clock of Ends
	inbox  inbox
	target int64 // market end seen at the start; -1 unknown
	marks  progressMarks

	ledger ledger

	merge mergeState // the merge goroutine's own
}

// progressMarks are what Status and the metrics read of the merge.
type progressMarks struct {
	position [record.Sides]int64
	next     record.Millis // timestamp of the tick that waits
	caughtUp bool
	first    bool
	loading  bool  // the checkpoint is being read
	restored int64 // position of the restore
	restore  int64 // where it ends
	held     hold  // what kept the merge from going on at the end of its last lap
}

// inbox collects what other goroutines have for the merge.
type inbox struct {
	answers []placeAnswer
	refused []refusal
	lookups []*lookup
	open    int // lookups that are not answered, those with the merge included
}

// New makes a task and starts its goroutine. The claims of the halves that are
// mine are then started by the caller, who freezes the task when one of them
// ends.
func New(o Options) *Task {
	t := build(o)
	go t.run()
	return t
}

// build makes a task without its goroutine.
func build(o Options) *Task {
	o.Limits = o.Limits.withDefaults()
	if o.Faults == nil {
		o.Faults = sampled.New(o.Logger, nil)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &Task{
		o:      o,
		log:    o.Logger.With(zap.Int32("partition", o.Index)),
		table:  state.New(o.Index, o.History),
		ctx:    ctx,
		cancel: cancel,
		made:   time.Now(),
		id:     max(rand.Uint64(), 1),
		wake:   make(chan struct{}, 1),
		ready:  make(chan struct{}),
		done:   make(chan struct{}),
		target: -1,
	}
	t.ledger.init(t)
	t.merge.init()
	o.Metrics.SetTable(t.table)
	o.Metrics.SetHottest(o.Keys.Share)
	o.Metrics.SetUnsettled(t.ledger.oldest)
	return t
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.QueueRecords == 0 {
		l.QueueRecords = d.QueueRecords
	}
	if l.QueueBytes == 0 {
		l.QueueBytes = d.QueueBytes
	}
	if l.Places == 0 {
		l.Places = d.Places
	}
	if l.PlaceBytes == 0 {
		l.PlaceBytes = d.PlaceBytes
	}
	return l
}

// Index returns the partition index.
func (t *Task) Index() int32 { return t.o.Index }

// Mine reports which halves of the index this task has.
func (t *Task) Mine() [record.Sides]bool { return t.o.Mine }

// State returns where the task is in its life.
func (t *Task) State() State { return State(t.state.Load()) }

// Freezing reports whether the task has been told to take nothing more.
func (t *Task) Freezing() bool { return t.frozen.Load() }

// Ready is closed when the task is Running: restored, and about to join.
func (t *Task) Ready() <-chan struct{} { return t.ready }

// Done is closed when the task is Closed.
func (t *Task) Done() <-chan struct{} { return t.done }

// Abandoned is the number of outputs that were sent and not acknowledged when
// the task gave up waiting for them; it is known once Options.Commit is called.
func (t *Task) Abandoned() int { return int(t.abandoned.Load()) }

// Freeze makes the task take nothing more from either input: the first end of a
// half freezes both, since a closed half is not a caught-up half. It only sets a
// flag, so it may be called under anybody's locks.
func (t *Task) Freeze() {
	t.frozen.Store(true)
	t.cancel() // ends a restore under way
	t.poke()
}

// poke wakes the merge.
func (t *Task) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Status is a snapshot of a task for readiness and the status page.
type Status struct {
	Index            int32
	Mine             [record.Sides]bool // the halves that this pod owns
	State            State
	FirstCatchUp     bool  // the group had no commit: the merge itself fills the table
	CaughtUp         bool  // the market end seen at the start has been merged or restored
	RestoreRemaining int64 // records (offsets) left of the restore or the first catch-up
	Position         record.Offsets
	Committed        record.Offsets // the group's: by this task, or where its claim began; -1 where nothing was committed yet
	End              record.Offsets // the highest end heard of, at least the position; -1 unknown
	Symbols          int
	Unsettled        int // outputs and waiting notifications
}

// Status returns a snapshot.
func (t *Task) Status() Status {
	t.mu.Lock()
	s := Status{
		Index:            t.o.Index,
		Mine:             t.o.Mine,
		State:            t.State(),
		FirstCatchUp:     t.marks.first,
		CaughtUp:         t.marks.caughtUp || !t.o.Mine[record.Market],
		RestoreRemaining: t.remaining(),
		Position:         t.marks.position,
		End:              record.Offsets{-1, -1},
	}
	began := record.Offsets{-1, -1}
	for side := range s.End {
		if t.in[side].started {
			s.End[side] = max(t.in[side].hw, s.Position[side])
			began[side] = t.in[side].initial
		}
	}
	t.mu.Unlock()
	s.Symbols = t.table.Symbols()
	s.Committed, s.Unsettled = t.ledger.snapshot()
	for side := range s.Committed {
		if s.Committed[side] < 0 {
			s.Committed[side] = max(began[side], -1) // below it: the group had no commit
		}
	}
	return s
}

// remaining counts down the restore and then the first catch-up. Called with
// mu held.
func (t *Task) remaining() int64 {
	if !t.o.Mine[record.Market] {
		return 0
	}
	if t.State() <= Restoring {
		return max(t.marks.restore-t.marks.restored, 0)
	}
	if t.marks.caughtUp || t.target < 0 {
		return 0
	}
	return max(t.target-t.marks.position[record.Market], 0)
}
