package task

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"joiner/internal/record"
)

// prepare waits for the claims, learns where the merge begins and fills the
// table up to there. It reports false where the task was frozen before it
// could run.
func (t *Task) prepare() bool {
	if !t.awaitClaims() {
		return false
	}
	began := time.Now()
	for side := range record.Sides {
		if !t.o.Mine[side] {
			continue
		}
		if !t.locate(side) {
			return false
		}
	}
	if !t.restore() {
		return false
	}
	if t.o.Mine[record.Market] {
		t.o.Metrics.RestoreDuration.Observe(time.Since(began).Seconds())
	}
	t.ledger.add(nil, nil, t.merge.pos) // a group without commits gets its first one now
	return true
}

// awaitClaims waits until the claims of all halves have begun: only they know
// where the group stands.
func (t *Task) awaitClaims() bool {
	for {
		if t.frozen.Load() {
			return false
		}
		if t.started() {
			return true
		}
		<-t.wake
	}
}

func (t *Task) started() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for side := range record.Sides {
		if t.o.Mine[side] && !t.in[side].started {
			return false
		}
	}
	return true
}

// locate learns a side's start and, for the market, the end that the first
// catch-up counts down to.
func (t *Task) locate(side record.Side) bool {
	start, end, err := t.bounds(side)
	if err != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	in := &t.in[side]
	from := in.initial
	if from < 0 {
		from = start
	}
	if in.position < 0 {
		in.position = from
	}
	in.hw = max(in.hw, end)
	t.showWaiting(side)
	t.merge.pos[side] = from
	t.marks.position[side] = from
	if side == record.Market {
		t.target = end
		t.marks.caughtUp = from >= end
		t.marks.first = in.initial < 0
		t.marks.restored, t.marks.restore = start, in.initial
		t.o.Metrics.SetRestoreRemaining(t.remaining())
	}
	return true
}

// showWaiting shows how far a side reaches and what of it waits, before the
// merge runs, which shows it then. Called with mu held.
func (t *Task) showWaiting(side record.Side) {
	m, in := t.o.Metrics, &t.in[side]
	m.SetHighWatermark(side, in.hw)
	switch {
	case len(in.pending) > 0:
		m.SetNext(side, in.pending[0].recs[0].Timestamp)
	case in.position >= in.hw:
		m.ClearNext(side)
	}
}

// bounds asks for a partition's log start and end until it gets an answer or
// the task is frozen.
func (t *Task) bounds(side record.Side) (start, end int64, err error) {
	for {
		start, end, err = t.o.Log.Bounds(t.ctx, t.o.Topics[side], t.o.Index)
		if err == nil || t.ctx.Err() != nil {
			return start, end, err
		}
		t.o.Faults.Warn("bounds "+t.o.Topics[side], "cannot learn where a partition begins and ends, trying again",
			zap.Int32("partition", t.o.Index),
			zap.String("topic", t.o.Topics[side]), zap.Error(err))
		if !t.pause(askAgain * 5) {
			return 0, 0, t.ctx.Err()
		}
	}
}

// pause sleeps; it reports false where the task was frozen meanwhile.
func (t *Task) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// restore reads the market topic up to where the market claim begins. A group
// without a commit has nothing to restore: the merge fills the table.
func (t *Task) restore() bool {
	if !t.o.Mine[record.Market] {
		return true
	}
	t.mu.Lock()
	to := t.in[record.Market].initial
	t.mu.Unlock()
	if to <= 0 && !t.keeps() {
		return true
	}
	for {
		err := t.restoreTo(to)
		if err == nil {
			return true
		}
		if t.ctx.Err() != nil {
			return false
		}
		if errors.Is(err, ErrGone) {
			t.log.Warn("restore cannot be finished, the partition begins anew", zap.Error(err))
			t.o.Gone(t, record.Market, to)
			return false
		}
		t.o.Faults.Warn("restore", "restore failed, starting it again", zap.Int32("partition", t.o.Index), zap.Error(err))
		if !t.pause(askAgain * 5) {
			return false
		}
	}
}

func (t *Task) restoreTo(to int64) error {
	topic := t.o.Topics[record.Market]
	start, end, err := t.o.Log.Bounds(t.ctx, topic, t.o.Index)
	if err != nil {
		return fmt.Errorf("restore %s: %w", t.where(record.Market, to), err)
	}
	t.state.Store(int32(Restoring))
	began := time.Now()
	from := t.load(start, to, end)
	t.restoredTo(from)
	if from >= to {
		return t.ctx.Err()
	}
	err = t.o.Log.Read(t.ctx, topic, t.o.Index, from, to, t.restoreBatch, t.restoredTo)
	if err != nil {
		return fmt.Errorf("restore %s: %w", t.where(record.Market, to), err)
	}
	t.restoredTo(to)
	t.log.Info("restored", zap.String("topic", topic), zap.Int64("from", from), zap.Int64("to", to),
		zap.Int("symbols", t.table.Symbols()), zap.Duration("took", time.Since(began)))
	return nil
}

// errFrozen ends a restore whose task has lost its partition.
var errFrozen = errors.New("task frozen")

// restoreBatch puts records into the table. A bad one was dead-lettered when
// it was merged; here it only counts as read.
func (t *Task) restoreBatch(recs []record.Record) error {
	if t.frozen.Load() {
		return errFrozen
	}
	t.o.Metrics.Restored.Add(float64(len(recs)))
	t.table.Lock()
	defer t.table.Unlock()
	for i := range recs {
		tick, bad := t.o.Market.Decode(&recs[i])
		if bad != nil {
			t.table.Advance(recs[i].Offset)
			continue
		}
		t.table.Apply(&tick, recs[i].Offset)
	}
	return nil
}

func (t *Task) restoredTo(position int64) {
	t.mu.Lock()
	t.marks.restored = position
	left := t.remaining()
	t.mu.Unlock()
	t.o.Metrics.SetRestoreRemaining(left)
	t.idle() // full queues hear nothing of the ends, and lag is counted up to them
}

// load fills the table from its checkpoint and returns from where the log has to
// be read.
func (t *Task) load(start, committed, end int64) (from int64) {
	if !t.keeps() {
		return start
	}
	t.setLoading(true)
	defer t.setLoading(false)
	return t.o.Checkpoint.Load(t.ctx, t.table, start, committed, end)
}

func (t *Task) setLoading(loading bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.marks.loading = loading
}

// keeps reports whether the table is kept in checkpoints: it is the market
// half's.
func (t *Task) keeps() bool { return t.o.Checkpoint != nil && t.o.Mine[record.Market] }

// progress is where the task stands, for its checkpoints.
func (t *Task) progress() Progress {
	committed, _ := t.ledger.snapshot()
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Progress{
		Position:  t.marks.position[record.Market],
		Committed: committed[record.Market],
		Next:      t.marks.next,
	}
	in := &t.in[record.Market]
	p.Behind = p.Position < in.hw
	if p.Committed < 0 && in.started {
		p.Committed = in.initial // by whoever had the partition before
	}
	return p
}
