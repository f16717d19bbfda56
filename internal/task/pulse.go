package task

import (
	"fmt"
	"time"

	"joiner/internal/record"
)

// overdue is what a place may take beyond everything that bounds it, before it
// counts as forgotten.
const overdue = time.Minute

// Pulses shows what the task's parts have to do by themselves now, and what they
// have done. What waits for a broker, for another pod or for a clock is no work
// of theirs: each of those waits is bounded or begun again elsewhere, where it
// is watched as well. It never waits for the task, which may be stuck. One watch
// may call it.
func (t *Task) Pulses() []record.Pulse {
	if t.State() == Closed {
		return nil
	}
	if !record.TryLock(&t.mu) {
		return []record.Pulse{{Part: "lock", Work: "somebody holds the task's lock", Done: t.laps.Load()}}
	}
	pulses := []record.Pulse{t.closePulse()}
	switch t.State() {
	case Fresh, Restoring:
		pulses = append(pulses, t.restorePulse())
	case Running:
		pulses = append(pulses, t.mergePulse(), t.queuePulse())
	}
	t.mu.Unlock()
	if t.State() == Running {
		pulses = append(pulses, t.ledger.pulse())
	}
	return pulses
}

// closePulse: a task that was told to take nothing more has to close, within
// what bounds it: Drain for the outputs, and for the commit.
func (t *Task) closePulse() record.Pulse {
	p := record.Pulse{Part: "close", Done: t.laps.Load()}
	since := t.closing.Load()
	switch {
	case !t.frozen.Load() && since == 0:
	case since == 0:
		p.Work = "the task is to be handed over and goes on"
	case time.Since(t.made)-time.Duration(since) > 3*t.o.Drain:
		p.Work = fmt.Sprintf("the task is being handed over and does not end, %s after it began to", 3*t.o.Drain)
	}
	return p
}

// restorePulse: once the claims have begun, the log is asked, and what it brings
// is applied. A question under way is the broker's to answer.
func (t *Task) restorePulse() record.Pulse {
	p := record.Pulse{Part: "restore", Done: uint64(t.marks.restored)}
	waits := false
	for side := range record.Sides {
		if !t.o.Mine[side] {
			continue
		}
		if !t.in[side].started {
			return p // the group has not told where it stands
		}
		tries, waiting := t.o.Log.Tries(t.o.Topics[side], t.o.Index)
		p.Done += tries
		waits = waits || waiting
	}
	// The checkpoint asks brokers, and the disk; neither is the log's to answer.
	if !waits && !t.marks.loading && !t.frozen.Load() {
		p.Work = fmt.Sprintf("the prices of %s/%d are to be read back, %d records are left",
			t.o.Topics[record.Market], t.o.Index, t.remaining())
	}
	return p
}

// mergePulse: the merge has to come round, within a second where there is
// nothing to do.
func (t *Task) mergePulse() record.Pulse {
	p := record.Pulse{Part: "merge", Done: t.laps.Load()}
	held := t.in[record.Market].held + t.in[record.Notification].held
	waiting := len(t.inbox.answers) + len(t.inbox.refused) + len(t.inbox.lookups)
	if within := p.Done%2 == 1; within || held+waiting > 0 {
		p.Work = fmt.Sprintf("%d records and %d answers and questions wait to be merged, from offset %d of %s and %d of %s on",
			held, waiting, t.marks.position[record.Market], t.o.Topics[record.Market],
			t.marks.position[record.Notification], t.o.Topics[record.Notification])
	}
	return p
}

// queuePulse: a merge that comes round takes a record unless something that it
// can name keeps it from that, and an input that is paused is full.
func (t *Task) queuePulse() record.Pulse {
	p := record.Pulse{Part: "queue"}
	held := 0
	for side := range record.Sides {
		in := &t.in[side]
		p.Done += uint64(t.marks.position[side])
		held += in.held
		if in.paused && in.held == 0 {
			p.Work = fmt.Sprintf("%s/%d is not being read, though its queue is empty", t.o.Topics[side], t.o.Index)
		}
	}
	lap := t.laps.Load()
	if t.looked.Swap(lap) == lap && lap%2 == 1 {
		p.Work = "" // it does not come round, which is mergePulse's to tell
		return p
	}
	if held > 0 && t.marks.held == unheld {
		p.Work = fmt.Sprintf("%d records wait to be merged, and nothing keeps them from it", held)
	}
	return p
}

// pulse: whatever a place waits for, it comes to an end: the patience with other
// owners, and then join.wait, in which they are asked again. A place that is
// filled is the sink's.
func (l *ledger) pulse() record.Pulse {
	p := record.Pulse{Part: "places"}
	if !record.TryLock(&l.mu) {
		p.Work = "somebody holds the ledger's lock"
		return p
	}
	defer l.mu.Unlock()
	first := l.root.next
	if first == &l.root || first.sent {
		return p
	}
	limit := l.t.o.Wait + l.t.o.Patience + overdue
	if time.Since(first.taken) < limit {
		return p
	}
	p.Done = uint64(first.rec.Offset)
	p.Work = fmt.Sprintf("the record at offset %d of %s has no outcome %s after it was merged, and no commit passes it",
		first.rec.Offset, l.t.o.Topics[first.side], limit)
	return p
}
