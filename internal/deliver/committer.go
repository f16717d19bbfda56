package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/sampled"
)

// ErrNoMember says that this pod is not in the group at the moment, so that
// nothing can be committed.
var ErrNoMember = errors.New("deliver: no member of the group")

// Generation names the member in whose name offsets are committed. The group's
// coordinator refuses them once the group has moved on.
type Generation struct {
	Group      string
	MemberID   string
	InstanceID string // "" for a dynamic member
	Generation int32
}

// Committable is a task as the committer sees it. Its methods must not block
// and must not call the committer.
type Committable interface {
	// Index is the task's partition index.
	Index() int32
	// Cut returns the newest cut of the merged sequence whose earlier outputs
	// are all acknowledged, and which halves the task has; a negative offset
	// is not known yet.
	Cut() (record.Offsets, [record.Sides]bool)
	// Committed tells that the group has the pair; a half that the task does
	// not have is -1. Calls for one task come one after the other.
	Committed(record.Offsets)
}

// CommitterOptions are what a Committer needs.
type CommitterOptions struct {
	// Interval between commits, more than 0.
	Interval time.Duration
	// Timeout of one periodic commit; 0 is 10 s.
	Timeout time.Duration
	// Member returns who commits, and false while the pod is not in the group.
	Member func() (Generation, bool)
	// Commit sends offsets, by topic and partition, and returns what became of
	// each partition, where nil and absent mean done, or why there was no
	// answer at all. Calls come one after the other, so it must return soon
	// after ctx is done: a revoked task waits for its turn.
	Commit func(ctx context.Context, g Generation, offsets map[string]map[int32]int64) (map[string]map[int32]error, error)
	// Topics are the names of the two inputs.
	Topics [record.Sides]string
	// OnResult hears of each request: whether all of it was taken. May be nil.
	OnResult func(ok bool)
	Log      *zap.Logger // nil: nothing is logged
}

// Committer commits the progress of a pod's tasks, pairs that changed, in one
// request an interval. There is one a pod: requests follow each other, and
// each takes its pairs when its turn has come, so that none carries an older
// pair than the one before. Its methods may be called from any goroutine.
type Committer struct {
	o      CommitterOptions
	faults *sampled.Log
	turn   chan struct{} // held by whoever commits
	turns  turns         // taken so far

	// wait is since when commits fail; nil: they do not, or there is nothing to
	// commit. Written by whoever has the turn.
	wait atomic.Pointer[wait]

	mu    sync.Mutex
	tasks map[Committable]*progress
}

// progress is what the group has of a task: -1 nothing from us yet. Guarded by
// the turn.
type progress struct {
	task Committable
	done record.Offsets
}

// NewCommitter returns a committer. It fails where an option is missing.
func NewCommitter(o CommitterOptions) (*Committer, error) {
	if o.Interval <= 0 {
		return nil, fmt.Errorf("deliver: commit interval %s must be more than 0", o.Interval)
	}
	if o.Member == nil || o.Commit == nil {
		return nil, errors.New("deliver: a committer needs Member and Commit")
	}
	if o.Topics[record.Market] == o.Topics[record.Notification] {
		return nil, fmt.Errorf("deliver: both inputs are topic %q", o.Topics[record.Market])
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.OnResult == nil {
		o.OnResult = func(bool) {}
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return &Committer{
		o:      o,
		faults: sampled.New(o.Log, nil),
		turn:   make(chan struct{}, 1),
		tasks:  make(map[Committable]*progress),
	}, nil
}

// Register adds a task. Its first pair is committed whatever it is, so that a
// group without commits has some. Tasks must be comparable.
func (c *Committer) Register(task Committable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tasks[task] == nil {
		c.tasks[task] = &progress{task: task, done: record.Offsets{-1, -1}}
	}
}

// Unregister removes a task. A request under way may still carry its pair.
func (c *Committer) Unregister(task Committable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tasks, task)
}

// Run commits every interval until ctx is done; what fails goes out again with
// the next. It commits nothing at the end: tasks do that with CommitNow.
func (c *Committer) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.o.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.commitAll(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *Committer) commitAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	if !c.begin(ctx) {
		return
	}
	defer c.end()
	// Errors are counted and logged where they arise; the next interval is
	// the retry.
	_ = c.commit(ctx, c.registered())
}

// CommitNow commits one task's pair at once, after whatever commit is under
// way, and tries again while what fails may pass and ctx lasts. It returns nil
// once the group has the pair (without a request where it had it already),
// ErrNoMember outside the group, else the errors of its partitions.
func (c *Committer) CommitNow(ctx context.Context, task Committable) error {
	var fault error // of the try before: it tells more than a deadline
	for {
		err := c.commitOne(ctx, task)
		if fault != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return fault
		}
		if err == nil || !passing(err) {
			return err
		}
		fault = err
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return err
		}
	}
}
func (c *Committer) commitOne(ctx context.Context, task Committable) error {
	if !c.begin(ctx) {
		return fmt.Errorf("commit of partition %d: %w", task.Index(), ctx.Err())
	}
	defer c.end()
	return c.commit(ctx, []*progress{c.progressOf(task)})
}

// progressOf returns what is known of a task; one that is not registered
// starts from nothing.
func (c *Committer) progressOf(task Committable) *progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.tasks[task]; p != nil {
		return p
	}
	return &progress{task: task, done: record.Offsets{-1, -1}}
}

func (c *Committer) registered() []*progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*progress, 0, len(c.tasks))
	for _, p := range c.tasks {
		all = append(all, p)
	}
	return all
}

func (c *Committer) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tasks)
}

func (c *Committer) begin(ctx context.Context) bool {
	select {
	case c.turn <- struct{}{}:
		c.turns.begin(ctx, 3*c.o.Timeout)
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Committer) end() {
	c.turns.end()
	<-c.turn
}

// step is what a request changes for one task.
type step struct {
	of      *progress
	to      record.Offsets
	has     [record.Sides]bool // the halves that the task has
	changed [record.Sides]bool // and that the request carries
}

// commit sends the pairs that changed. It holds the turn.
func (c *Committer) commit(ctx context.Context, tasks []*progress) error {
	steps, offsets := c.collect(tasks)
	if len(steps) == 0 {
		if len(tasks) >= c.count() {
			c.wait.Store(nil) // what could not be committed is somebody else's now
		}
		return nil
	}
	member, ok := c.o.Member()
	if !ok {
		return ErrNoMember
	}
	c.waits(nil)
	answers, err := c.o.Commit(ctx, member, offsets)
	if err == nil {
		err = c.apply(steps, answers)
	} else {
		err = fmt.Errorf("commit of %d partitions: %w", len(steps), err)
	}
	c.o.OnResult(err == nil)
	if err == nil {
		c.wait.Store(nil)
	} else {
		c.waits(err)
		c.faults.Warn("commit "+causeOf(err), "offsets were not committed", zap.Error(err),
			zap.String("group", member.Group), zap.Int32("generation", member.Generation), zap.String("member_id", member.MemberID))
	}
	return err
}

// collect asks the tasks for their cuts and returns what is new.
func (c *Committer) collect(tasks []*progress) ([]step, map[string]map[int32]int64) {
	var steps []step
	var offsets map[string]map[int32]int64
	for _, p := range tasks {
		s := step{of: p}
		s.to, s.has = p.task.Cut()
		any := false
		for side := range record.Sides {
			// A pair never goes backwards: what is lower is not news.
			if !s.has[side] || s.to[side] <= p.done[side] {
				continue
			}
			s.changed[side], any = true, true
			topic := c.o.Topics[side]
			if offsets == nil {
				offsets = make(map[string]map[int32]int64, record.Sides)
			}
			if offsets[topic] == nil {
				offsets[topic] = make(map[int32]int64, len(tasks))
			}
			offsets[topic][p.task.Index()] = s.to[side]
		}
		if any {
			steps = append(steps, s)
		}
	}
	return steps, offsets
}

// apply notes what the group took and tells the tasks.
func (c *Committer) apply(steps []step, answers map[string]map[int32]error) error {
	var errs []error
	for i := range steps {
		s := &steps[i]
		failed := c.applyStep(s, answers)
		errs = append(errs, failed...)
		if len(failed) == 0 {
			s.of.task.Committed(s.of.done)
		}
	}
	return errors.Join(errs...)
}

func (c *Committer) applyStep(s *step, answers map[string]map[int32]error) (failed []error) {
	index := s.of.task.Index()
	for side := range record.Sides {
		if !s.changed[side] {
			continue
		}
		topic := c.o.Topics[side]
		if err := answers[topic][index]; err != nil {
			failed = append(failed, fmt.Errorf("commit of offset %d of %s/%d: %w", s.to[side], topic, index, err))
			continue
		}
		s.of.done[side] = s.to[side]
	}
	return failed
}

// causeOf names an error for sampling, without its offsets.
func causeOf(err error) string {
	var code sarama.KError
	if errors.As(err, &code) {
		return errorName(code)
	}
	return "no answer"
}

// passing reports whether a failed commit may succeed when it is sent again in
// the name of the same member. Where some partitions failed for good, their
// error decides.
func passing(err error) bool {
	for _, final := range []error{
		ErrNoMember, context.Canceled, context.DeadlineExceeded,
		// The group has moved on, or is about to: its next generation's owner
		// starts from what is committed.
		sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId,
		sarama.ErrRebalanceInProgress, sarama.ErrFencedInstancedId,
		sarama.ErrGroupAuthorizationFailed, sarama.ErrTopicAuthorizationFailed,
		sarama.ErrUnknownTopicOrPartition, sarama.ErrInvalidGroupId,
		sarama.ErrOffsetMetadataTooLarge, sarama.ErrInvalidCommitOffsetSize,
		sarama.ErrUnsupportedVersion, sarama.ErrClosedClient,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}
