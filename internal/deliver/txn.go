package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/sampled"
)

// Producer is what the broker knows a transactional producer by.
type Producer struct {
	ID    int64
	Epoch int16
}

// Coordinator makes the requests that a transaction consists of beside its
// records. Each of them repeats what may pass until ctx ends; errors wrap
// Kafka's codes.
type Coordinator interface {
	// Init makes this process the only producer under its transactional id.
	// A transaction of the one before is over when it returns.
	Init(ctx context.Context) (Producer, error)
	// AddPartitions fails with *PartitionFaults, and adds none, where some
	// cannot be written to.
	AddPartitions(ctx context.Context, p Producer, partitions map[string][]int32) error
	AddOffsets(ctx context.Context, p Producer, group string) error
	// CommitOffsets fails where g is not a member of the current generation, and
	// with *PartitionFaults where some input partitions are not there.
	CommitOffsets(ctx context.Context, p Producer, g Generation, offsets map[string]map[int32]int64) error
	// End commits or aborts; lost tells, with an error, that an attempt was
	// not answered, so that the transaction may have ended either way.
	End(ctx context.Context, p Producer, commit bool) (lost bool, err error)
	// Committed returns what the group has, once nothing of it is pending any
	// more; -1 where it has nothing.
	Committed(ctx context.Context, partitions map[string][]int32) (map[string]map[int32]int64, error)
}

// PartitionFaults says which output partitions cannot be written to, by Kafka's
// name for the reason.
type PartitionFaults struct {
	Faults []Fault
	Err    error
}

func (f *PartitionFaults) Error() string { return f.Err.Error() }

// Unwrap returns the reason.
func (f *PartitionFaults) Unwrap() error { return f.Err }

// Participant is a task as the transactor sees it. Its methods must not block
// and must not call the transactor. The owner of its outputs is the task
// itself.
type Participant interface {
	record.Owner
	Committable
	// Sendable appends the outputs that a transaction may hold, up to about limit
	// bytes, in order: those of all places up to the first that is not filled,
	// or whose output was refused. With them belongs the cut that it returns:
	// it passes these outputs and no others. The halves are as in Cut; more
	// tells that the limit ended it. The outputs stay the task's until they are
	// settled, and are returned again until then.
	Sendable(outputs []*record.Output, limit int) (ready []*record.Output, cut record.Offsets, halves [record.Sides]bool, more bool)
}

// ErrDropped says that a task was given up: its member, or its producer, is not
// who the brokers take for the one any more.
var ErrDropped = errors.New("deliver: fenced, the task is given up")

// Outcome is how a transaction ended.
type Outcome uint8

// The outcomes of a transaction.
const (
	Committed Outcome = iota
	Aborted           // undone; what it held goes out again
	Fenced            // by the group or by another producer: the tasks are given up
	Unknown           // no answer to its end; what the group has committed tells
	Outcomes          // their number
)

func (o Outcome) String() string {
	return [...]string{"committed", "aborted", "fenced", "unknown"}[o]
}

// TransactorOptions are what a Transactor needs.
type TransactorOptions struct {
	// Interval between transactions, more than 0. A lot of outputs makes one
	// sooner.
	Interval time.Duration
	// Timeout after which the coordinator aborts a transaction, as given to
	// it; more than 0.
	Timeout time.Duration
	// Writer is transactional (Options.TransactionalID) and used by nobody
	// else; the caller runs and closes it.
	Writer      *Writer
	Coordinator Coordinator
	// Member returns who commits, and false while the pod is not in the group.
	Member func() (Generation, bool)
	// May reports whether the group lets this pod commit the task in that
	// generation: it has the partition, or its loss came with the generation.
	// The group's coordinator looks at the generation only. Nil: it does.
	May func(task Participant, g Generation) bool
	// Topics are the names of the two inputs.
	Topics [record.Sides]string
	// OnFenced hears that all tasks were given up: the member has to join the
	// group again. It must not block. May be nil.
	OnFenced func()
	// OnOutcome hears of each transaction. May be nil.
	OnOutcome func(Outcome)
	Log       *zap.Logger // nil: nothing is logged
}

// Transactor writes outputs and commits progress exactly once: every interval
// it makes one transaction of what the pod's tasks have ready and of the
// offsets that belong to it. It takes the place of a Writer, as the tasks' sink,
// and of a Committer. There is one a pod; its methods may be called from any
// goroutine.
//
// A task keeps its outputs until they are committed. So nothing here is lost
// with a transaction that fails: the next one is made of the same outputs and
// those that came meanwhile, of the tasks that are left.
type Transactor struct {
	o      TransactorOptions
	log    *zap.Logger
	faults *sampled.Log

	kick    chan struct{} // there is something to do before the interval ends
	waiting atomic.Int64  // bytes handed over since outputs were last collected
	crowd   atomic.Int64  // and outputs
	turns   turns         // rounds so far

	mu      sync.Mutex
	tasks   map[Participant]*part
	callers []*caller

	// The rest belongs to Run, and before it to Init.

	producer Producer
	standing standing
	// wait is why and since when the producer cannot be made anew; nil: it can.
	wait atomic.Pointer[wait]
	// doubt is when an attempt to make the producer came to no answer before one
	// did; zero: none has. It may still be carried out, and then fences ourselves.
	doubt time.Time
	// open is a transaction whose outcome nobody has told yet.
	open *transaction
	// refused is the generation that the group does not take any more, and since
	// when.
	refused      Generation
	refusedSince time.Time
	// most is about how many bytes of outputs a transaction may hold.
	most  int
	turn  int       // of the task to begin with
	quiet time.Time // when the last transaction began
	// failures in a row, and when the next transaction may begin after them.
	failures  int
	notBefore time.Time
}

// standing is where the producer stands.
type standing uint8

const (
	fresh  standing = iota // none yet, or it is to be made anew at once
	usable                 // it may begin a transaction
	fenced                 // somebody else has its id: made anew when there is something to write
)

// part is what the transactor knows of a task. Guarded by the lock but for done,
// which is Run's.
type part struct {
	task Participant
	done record.Offsets // that the group has from us; -1 nothing
	// dropped: it was given up and takes part in nothing any more.
	dropped bool
	// strikes counts the transactions in a row that its output partitions
	// failed, faults says why. It is on probation then: until the time until
	// it sits out, and its next transaction is without the others.
	strikes int
	until   time.Time
	faults  []Fault
}

// caller waits in CommitNow. The answer is nil once a transaction that began
// later has committed all that the task had ready, or there was nothing.
type caller struct {
	task   Participant
	answer chan error // capacity 1
}

// The bounds of a transaction's outputs, in bytes. One that expires is made
// smaller: or it would expire for ever where the brokers are slow.
const (
	mostBytes  = 32 << 20
	leastBytes = 64 << 10
	// plentyBytes handed over make a transaction before its time.
	plentyBytes = 4 << 20
	// So many do, too: a task's ledger is full of small ones before they are
	// plenty of bytes, and it would wait for the interval.
	plentyOutputs = 1 << 14
)

const (
	// idlePace is how often progress without outputs is committed.
	idlePace = time.Second
	// A task sits out so long after its output partitions could not be written
	// to, twice as long each time.
	faultPause   = time.Second
	longestPause = 8 * time.Second
	// stuckAfter is how long a transaction waits for outputs of which none
	// gets written, and probation how long the first time after that happened.
	stuckAfter = 3 * time.Second
	probation  = time.Second
	// After a transaction that failed the next one waits so long, twice as long
	// each time.
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
	// refusedFor is how long the next generation is waited for before the one
	// that was refused is tried again: the group may have thought better of it.
	refusedFor = 2 * time.Second
	// grace is how long a transaction under way goes on after Run was ended.
	grace = time.Second
)

// NewTransactor returns a transactor that does not run yet. It fails where an
// option is missing.
func NewTransactor(o TransactorOptions) (*Transactor, error) {
	if o.Interval <= 0 || o.Timeout <= 0 {
		return nil, fmt.Errorf("deliver: interval %s and timeout %s of transactions must be more than 0", o.Interval, o.Timeout)
	}
	if o.Writer == nil || o.Writer.txnID == nil || o.Coordinator == nil || o.Member == nil {
		return nil, errors.New("deliver: a transactor needs a transactional Writer, Coordinator and Member")
	}
	if o.Topics[record.Market] == o.Topics[record.Notification] {
		return nil, fmt.Errorf("deliver: both inputs are topic %q", o.Topics[record.Market])
	}
	if o.May == nil {
		o.May = func(Participant, Generation) bool { return true }
	}
	if o.OnFenced == nil {
		o.OnFenced = func() {}
	}
	if o.OnOutcome == nil {
		o.OnOutcome = func(Outcome) {}
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return &Transactor{
		o: o, log: o.Log, faults: sampled.New(o.Log, nil),
		kick:  make(chan struct{}, 1),
		tasks: make(map[Participant]*part),
		most:  mostBytes,
	}, nil
}

// Init makes the producer, so that whatever a predecessor left open under the
// same id is over before the group is joined. Call it before Run.
func (t *Transactor) Init(ctx context.Context) error {
	p, err := t.o.Coordinator.Init(ctx)
	if err != nil {
		return fmt.Errorf("transactional producer: %w", err)
	}
	t.use(p)
	return nil
}

func (t *Transactor) use(p Producer) {
	t.producer, t.standing = p, usable
	t.wait.Store(nil)
	t.o.Writer.enter(p)
	t.log.Info("got a transactional producer", zap.Int64("producer_id", p.ID), zap.Int16("epoch", p.Epoch))
}

// Register adds a task. Its first pair is committed whatever it is, so that a
// group without commits has some.
func (t *Transactor) Register(task Participant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tasks[task] == nil {
		t.tasks[task] = &part{task: task, done: record.Offsets{-1, -1}}
	}
}

// Unregister removes a task. A transaction under way may still hold its
// outputs, and settle them.
func (t *Transactor) Unregister(task Participant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.tasks, task)
}

// Send hears that a task has outputs; Sendable gives them. It never blocks.
func (t *Transactor) Send(outputs []*record.Output) {
	n := 0
	for _, o := range outputs {
		n += len(o.Key) + len(o.Value)
	}
	if t.waiting.Add(int64(n)) >= plentyBytes || t.crowd.Add(int64(len(outputs))) >= plentyOutputs {
		signal(t.kick)
	}
}

// Drop returns how many of the owner's outputs were ready and are not
// committed.
func (t *Transactor) Drop(owner record.Owner) int {
	task, ok := owner.(Participant)
	if !ok {
		return 0
	}
	left, _, _, _ := task.Sendable(nil, mostBytes)
	return len(left)
}

// Faults lists the partitions whose outputs wait for a person, for readiness.
func (t *Transactor) Faults() []Fault {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Fault
	for _, p := range t.tasks {
		out = append(out, p.faults...)
	}
	return out
}

// Waits says what all transactions wait for, and since when; "" nothing. An abort
// is over only when every partition of the transaction has its marker, so it may
// be an output partition without a leader.
func (t *Transactor) Waits() string {
	return t.wait.Load().tell("transactions wait for the producer to be made anew,", "its coordinator has not answered yet")
}

// CommitNow commits all that a registered task has ready, and its offsets, and
// tries again while what fails may pass and ctx lasts. It returns nil once the
// group has them, ErrNoMember outside the group, ErrDropped where the task was
// given up, else why it could not be.
func (t *Transactor) CommitNow(ctx context.Context, task Participant) error {
	var fault error // of the try before: it tells more than a deadline
	for {
		a := &caller{task: task, answer: make(chan error, 1)}
		t.mu.Lock()
		t.callers = append(t.callers, a)
		t.mu.Unlock()
		signal(t.kick)
		var err error
		select {
		case err = <-a.answer:
		case <-ctx.Done():
			t.withdraw(a)
			return fmt.Errorf("transaction of partition %d: %w", task.Index(), errors.Join(ctx.Err(), fault))
		}
		if err == nil || !retried(err) {
			return err
		}
		fault = err
	}
}

func (t *Transactor) withdraw(a *caller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.callers {
		if t.callers[i] == a {
			t.callers = append(t.callers[:i], t.callers[i+1:]...)
			return
		}
	}
}

// takeCallers returns who waits for the next transaction.
func (t *Transactor) takeCallers() []*caller {
	t.mu.Lock()
	defer t.mu.Unlock()
	callers := t.callers
	t.callers = nil
	return callers
}

// putBack lets callers of CommitNow wait for another transaction.
func (t *Transactor) putBack(callers []*caller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.callers = append(callers, t.callers...)
}

// Run makes transactions until ctx is done. The tasks have committed for the
// last time by then.
func (t *Transactor) Run(ctx context.Context) error {
	ticker := time.NewTicker(t.o.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-t.kick:
		case <-ctx.Done():
			reply(t.takeCallers(), ctx.Err())
			t.leave(ctx)
			return nil
		}
		t.turns.begin(ctx, 6*t.o.Timeout)
		t.roundWithin(ctx)
		t.turns.end()
	}
}

// leave aborts what a failed transaction left open, or its outputs would hide all
// that others write behind them until it times out.
func (t *Transactor) leave(ctx context.Context) {
	if t.standing != fresh {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	t.remake(ctx)
}

// roundWithin lets a transaction that is under way when ctx ends come to its
// end, or its offsets would be pending for a while.
func (t *Transactor) roundWithin(ctx context.Context) {
	round, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-round.Done():
		}
	})
	defer stop()
	t.round(round)
}

func reply(callers []*caller, err error) {
	for _, a := range callers {
		a.answer <- err
	}
}
