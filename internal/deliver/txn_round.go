package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"joiner/internal/record"
)

// transaction is one of the transactor's. It hears of its outputs from the
// writer; the tasks hear of them when it has committed.
type transaction struct {
	began   time.Time
	member  Generation
	shares  []share
	outputs []*record.Output // of all shares, by topic
	more    bool             // outputs were left out for their size
	// trial: its tasks are on probation.
	trial    bool
	patience time.Duration // with outputs of which none gets written

	mu      sync.Mutex
	left    int // outputs that are not written yet
	refused []outcome
	broken  error         // why it cannot be committed
	changed chan struct{} // capacity 1: left is 0, or broken or refused is set
}

// share is a task's part of a transaction.
type share struct {
	step
	part    *part
	outputs []*record.Output
}

// Settled implements record.Owner, for the writer.
func (x *transaction) Settled(o *record.Output, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.left--
	var refusal *record.Refused
	switch {
	case errors.As(err, &refusal):
		x.refused = append(x.refused, outcome{o, err})
	case err != nil && x.broken == nil:
		x.broken = err
	}
	if x.left == 0 || err != nil {
		signal(x.changed)
	}
}

// refusals are the outputs that their topics will never take. A sender may still
// be telling of others: those are found again in the next transaction.
func (x *transaction) refusals() []outcome {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.refused)
}

// written waits until all outputs are in all in-sync replicas.
func (x *transaction) written(ctx context.Context) error {
	stuck := time.NewTimer(x.patience)
	defer stuck.Stop()
	before, due := len(x.outputs), false
	for {
		x.mu.Lock()
		left, refused, broken := x.left, len(x.refused), x.broken
		x.mu.Unlock()
		switch {
		case broken != nil:
			return broken
		case refused > 0:
			return errRefused
		case left == 0:
			return nil
		case due && left == before:
			return fmt.Errorf("%d of %d outputs are not written: %w", left, len(x.outputs), errStuck)
		case due:
			before, due = left, false
			stuck.Reset(x.patience)
		}
		select {
		case <-x.changed:
		case <-stuck.C: // looked at with what has come meanwhile: the process may have stood still
			due = true
		case <-ctx.Done():
			return fmt.Errorf("%d of %d outputs are not written: %w", left, len(x.outputs), errSlow)
		}
	}
}

var (
	// errRefused: a topic will never take one of the outputs.
	errRefused = errors.New("an output was refused")
	// errSlow: there were more outputs than could be written in time.
	errSlow = errors.New("out of time")
	// errStuck: no output is being written any more.
	errStuck = errors.New("no progress")
	// errGone: a task ended without waiting for the transaction any longer.
	errGone = errors.New("a task of it has gone")
)

// round makes one transaction, if there is something to write or to commit, and
// first whatever the one before has left to do.
func (t *Transactor) round(ctx context.Context) {
	callers := t.takeCallers()
	if !t.ready(ctx) {
		t.putBack(callers)
		t.soon(lastPause)
		return
	}
	if pause := time.Until(t.notBefore); pause > 0 {
		t.putBack(callers)
		t.soon(pause)
		return
	}
	member, ok := t.o.Member()
	switch {
	case !ok:
		reply(callers, ErrNoMember)
		return
	case member == t.refused && time.Since(t.refusedSince) < refusedFor: // until the next generation is known
		reply(callers, errMovedOn)
		return
	}
	x, callers := t.collect(member, callers)
	if x == nil {
		reply(callers, nil)
		return
	}
	if t.standing == fenced && !t.remake(ctx) {
		t.putBack(callers)
		t.soon(lastPause)
		return
	}
	err := t.commit(ctx, x)
	if x.more {
		signal(t.kick)
		if err == nil {
			t.putBack(callers) // theirs may be among what was left out
			return
		}
	}
	reply(callers, err)
}

// soon makes another round after a pause, where the interval is longer: what has
// failed is not to wait for it, nor is who closes a task.
func (t *Transactor) soon(pause time.Duration) {
	if pause < t.o.Interval {
		time.AfterFunc(pause, func() { signal(t.kick) })
	}
}

// ready sees to it that the producer may be used, or that it needs nothing
// before it is.
func (t *Transactor) ready(ctx context.Context) bool {
	if t.standing == fresh && !t.remake(ctx) {
		return false
	}
	return t.open == nil || t.resolve(ctx)
}

// remake makes the producer anew, which aborts its transaction or waits for its
// end. Where that fails the next round tries again.
func (t *Transactor) remake(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	w := wait{since: time.Now()}
	if last := t.wait.Load(); last != nil {
		w = *last
	}
	t.wait.Store(&w)
	p, err := t.o.Coordinator.Init(ctx)
	if err != nil {
		t.doubt = time.Now()
		t.wait.Store(&wait{since: w.since, err: err})
		if ctx.Err() == nil || !errors.Is(ctx.Err(), context.Canceled) {
			t.faults.Warn("producer", "the transactional producer cannot be made anew, trying again", errorField(err))
		}
		return false
	}
	t.use(p)
	return true
}

// collect puts a transaction together. It returns nil where there is nothing to
// write or to commit, and the callers that wait for it; others it answers.
func (t *Transactor) collect(member Generation, callers []*caller) (*transaction, []*caller) {
	t.waiting.Store(0)
	t.crowd.Store(0)
	x := &transaction{began: time.Now(), member: member, changed: make(chan struct{}, 1)}
	parts, callers := t.parts(member, callers)
	room := t.most
	progress := false
	taken := make(map[int32]bool, len(parts))
	x.trial = len(parts) > 0 && parts[0].strikes > 0
	x.patience = patienceWith(parts)
	for _, p := range parts {
		s, size, more := t.shareOf(p, room)
		x.more = x.more || more
		if x.trial && len(s.outputs) == 0 {
			t.acquit(p) // what could not be written is not wanted any more
		}
		if !s.changed[record.Market] && !s.changed[record.Notification] {
			callers = answered(callers, p) // whatever others have left to do
			continue
		}
		if taken[p.task.Index()] {
			continue
		}
		taken[p.task.Index()] = true
		room -= size
		x.shares = append(x.shares, s)
		x.outputs = append(x.outputs, s.outputs...)
		progress = progress || waits(callers, p)
		if room <= 0 {
			x.more = true
			break
		}
	}
	// Progress alone is not worth a transaction every interval.
	if len(x.outputs) == 0 && (len(x.shares) == 0 || !progress && time.Since(t.quiet) < max(idlePace, t.o.Interval)) {
		return nil, callers
	}
	slices.SortStableFunc(x.outputs, func(a, b *record.Output) int { return strings.Compare(a.Topic, b.Topic) })
	x.left = len(x.outputs)
	return x, callers
}

// patienceWith is how long a transaction of these tasks waits for outputs of which
// none gets written. A trial is short, since all others wait for it, but in the
// end as long as any: or a leader that is merely slow would be given up for ever.
func patienceWith(parts []*part) time.Duration {
	strikes := 0
	for _, p := range parts {
		strikes = max(strikes, p.strikes)
	}
	if strikes == 0 {
		return stuckAfter
	}
	return min(probation<<(strikes-1), stuckAfter)
}

// parts lists the tasks that may take part, beginning with another each time
// but with those that somebody waits for first. It returns the callers that
// wait for these, and answers those that nothing can be done for. Tasks on
// probation have a transaction to themselves.
func (t *Transactor) parts(member Generation, callers []*caller) (parts []*part, waiting []*caller) {
	all := t.registered()
	now := time.Now()
	why := make(map[Participant]error, len(all)) // nil: it may take part
	trial := false
	for _, p := range all {
		err := t.excluded(p, member, now)
		why[p.task] = err
		trial = trial || err == nil && p.strikes > 0
	}
	var later []*caller
	for _, c := range callers {
		i := slices.IndexFunc(all, func(p *part) bool { return p.task == c.task })
		switch {
		case i < 0:
			c.answer <- ErrDropped
		case why[c.task] != nil:
			c.answer <- fmt.Errorf("transaction of partition %d: %w", c.task.Index(), why[c.task])
		case trial && all[i].strikes == 0:
			later = append(later, c)
		default:
			waiting = append(waiting, c)
		}
	}
	if len(later) > 0 {
		t.putBack(later)
		signal(t.kick)
	}
	for _, p := range all {
		if why[p.task] == nil && (p.strikes > 0) == trial {
			parts = append(parts, p)
		}
	}
	slices.SortStableFunc(parts, func(a, b *part) int { return rank(waiting, a) - rank(waiting, b) })
	return parts, waiting
}

func rank(waiting []*caller, p *part) int {
	if waits(waiting, p) {
		return 0
	}
	return 1
}

// answered tells those that wait for a task that it has all committed, and returns
// the others.
func answered(callers []*caller, p *part) []*caller {
	return slices.DeleteFunc(callers, func(c *caller) bool {
		if c.task != p.task {
			return false
		}
		c.answer <- nil
		return true
	})
}

func waits(callers []*caller, p *part) bool {
	return slices.ContainsFunc(callers, func(c *caller) bool { return c.task == p.task })
}

// registered lists the tasks by index, beginning with another each time.
func (t *Transactor) registered() []*part {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*part, 0, len(t.tasks))
	for _, p := range t.tasks {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *part) int { return int(a.task.Index() - b.task.Index()) })
	if len(all) == 0 {
		return nil
	}
	t.turn = (t.turn + 1) % len(all)
	return slices.Concat(all[t.turn:], all[:t.turn])
}

// excluded tells why a task may not take part, nil where it may.
func (t *Transactor) excluded(p *part, member Generation, now time.Time) error {
	switch {
	case p.dropped:
		return ErrDropped
	case p.until.After(now):
		return &PartitionFaults{Faults: p.faults, Err: fmt.Errorf("outputs cannot be written: %v", p.faults)}
	case !t.o.May(p.task, member):
		return errMovedOn
	}
	return nil
}

// shareOf is what a task has for a transaction with room for that many bytes of
// outputs, and how many it takes. What no broker would take is told to the task
// and ends its share.
func (t *Transactor) shareOf(p *part, room int) (s share, size int, more bool) {
	s.part = p
	for {
		s.outputs, s.to, s.has, more = p.task.Sendable(s.outputs[:0], room)
		bad := t.o.Writer.refusals(s.outputs)
		if len(bad) == 0 {
			break
		}
		for _, r := range bad {
			r.out.Owner.Settled(r.out, r.err)
		}
	}
	for _, o := range s.outputs {
		size += sizeOf(o)
	}
	for side := range record.Sides {
		s.changed[side] = s.has[side] && s.to[side] > p.done[side]
	}
	return s, size, more
}

// commit runs a transaction to its end, whatever that is.
func (t *Transactor) commit(ctx context.Context, x *transaction) error {
	t.quiet = x.began
	began, lost, err := t.attempt(ctx, x)
	if err == nil {
		t.o.Writer.leave()
		t.committed(x)
		return nil
	}
	return t.failed(x, began, lost, err)
}

// attempt makes the requests of a transaction. began tells whether the
// coordinator may have heard of it; lost that its end was asked for and not
// answered.
func (t *Transactor) attempt(ctx context.Context, x *transaction) (began, lost bool, err error) {
	// The rest of the timeout is for the end, which must not come too late.
	whole, cancelWhole := context.WithTimeout(ctx, t.o.Timeout)
	defer cancelWhole()
	ctx, cancel := context.WithTimeout(whole, t.o.Timeout*8/10)
	defer cancel()
	c := t.o.Coordinator
	if x.trial {
		if err := t.o.Writer.leaderless(x.outputs); err != nil {
			return false, false, err
		}
	}
	if len(x.outputs) > 0 {
		if err := c.AddPartitions(ctx, t.producer, partitionsOf(x.outputs)); err != nil {
			var faults *PartitionFaults
			return !errors.As(err, &faults), false, err
		}
		t.o.Writer.write(x)
	}
	// The offsets go out while the records are being replicated.
	if err := c.AddOffsets(ctx, t.producer, x.member.Group); err != nil {
		return true, false, err
	}
	if err := c.CommitOffsets(ctx, t.producer, x.member, t.offsets(x)); err != nil {
		return true, false, err
	}
	if err := t.allThere(x); err != nil {
		return true, false, err
	}
	if err := x.written(ctx); err != nil {
		return true, false, err
	}
	lost, err = c.End(whole, t.producer, true)
	return true, lost, err
}

// allThere fails where a task has gone before its offsets were pending. It may
// have begun anew by now, even in the same generation (a follower that joins
// again does not end it), from the offsets that it found: then these outputs are
// joined a second time. Once offsets are pending, whoever begins waits for them.
func (t *Transactor) allThere(x *transaction) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range x.shares {
		p := x.shares[i].part
		if t.tasks[p.task] != p {
			return fmt.Errorf("partition %d: %w", p.task.Index(), errGone)
		}
	}
	return nil
}

func partitionsOf(outputs []*record.Output) map[string][]int32 {
	all := make(map[string][]int32)
	for _, o := range outputs {
		if !slices.Contains(all[o.Topic], o.Partition) {
			all[o.Topic] = append(all[o.Topic], o.Partition)
		}
	}
	return all
}

func (t *Transactor) offsets(x *transaction) map[string]map[int32]int64 {
	all := make(map[string]map[int32]int64, record.Sides)
	for i := range x.shares {
		s := &x.shares[i]
		for side, topic := range t.o.Topics {
			if !s.changed[side] {
				continue
			}
			if all[topic] == nil {
				all[topic] = make(map[int32]int64, len(x.shares))
			}
			all[topic][s.part.task.Index()] = s.to[side]
		}
	}
	return all
}

// committed tells the tasks of a transaction that it has.
func (t *Transactor) committed(x *transaction) {
	t.o.OnOutcome(Committed)
	t.refused, t.failures, t.notBefore = Generation{}, 0, time.Time{}
	if x.began.Sub(t.doubt) > t.o.Timeout {
		t.doubt = time.Time{} // whatever was not answered then would have fenced this one
	}
	t.most = min(2*t.most, mostBytes)
	for i := range x.shares {
		t.settle(&x.shares[i])
	}
}

func (t *Transactor) settle(s *share) {
	for side, changed := range s.changed {
		if changed {
			s.part.done[side] = s.to[side]
		}
	}
	for _, o := range s.outputs {
		o.Owner.Settled(o, nil)
	}
	s.part.task.Committed(s.part.done)
	if len(s.outputs) > 0 {
		t.acquit(s.part)
	}
}

// acquit ends a task's probation.
func (t *Transactor) acquit(p *part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.strikes, p.faults = 0, nil
}
