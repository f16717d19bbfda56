package task

import (
	"joiner/internal/enrich"
	"joiner/internal/record"
)

// lookup is another task's question. It is answered when the merge stands
// where a notification of that event time would be joined, so that both
// answers are the same.
type lookup struct {
	q    Query
	seq  uint64 // Task.seq when it came
	done func(Answer)
}

// Lookup answers from this task's table once its merge has reached the event
// time asked for, or stands at the end of its partition. done is called
// exactly once, from the merge or, after the task has been frozen, with Moved.
func (t *Task) Lookup(q Query, done func(Answer)) {
	t.mu.Lock()
	if t.frozen.Load() || !t.o.Mine[record.Market] {
		t.mu.Unlock()
		done(Answer{Outcome: Moved})
		return
	}
	t.seq++ // an end that was asked for before proves nothing about this question
	t.inbox.lookups = append(t.inbox.lookups, &lookup{q: q, seq: t.seq, done: done})
	t.mu.Unlock()
	t.poke()
}

// serveLookups answers those whose moment has come.
func (t *Task) serveLookups() {
	m := &t.merge
	if len(m.lookups) == 0 {
		return
	}
	b := &m.cur[record.Market]
	if b.empty() {
		t.refill(record.Market)
	}
	t.decodeTick(b)
	left := m.lookups[:0]
	for _, l := range m.lookups {
		if !t.reached(l) {
			left = append(left, l)
			continue
		}
		l.done(t.answer(l.q))
	}
	clear(m.lookups[len(left):])
	m.lookups = left
}

// reached reports whether every tick up to the event time that could be read
// when the question came is in the table.
func (t *Task) reached(l *lookup) bool {
	b := &t.merge.cur[record.Market]
	if !b.empty() {
		return b.head.bad == nil && b.head.time > l.q.At
	}
	return t.emptySide(record.Market, l.seq, true).State == enrich.AtEnd
}

func (t *Task) answer(q Query) Answer {
	a := Answer{Outcome: NoPrice, Partition: t.o.Index, Next: t.table.Next(), Known: true}
	v, found, asOf := t.table.Price([]byte(q.Symbol), q.At)
	if !found {
		return a
	}
	a.Outcome = Found
	a.AsOf = asOf
	a.Price = record.Price{Text: string(v.Text), EventTime: v.EventTime, Partition: t.o.Index, Offset: v.Offset}
	return a
}

// refuseLookups sends the askers to the next owner.
func (t *Task) refuseLookups() {
	t.mu.Lock()
	late := t.inbox.lookups
	t.inbox.lookups = nil
	t.mu.Unlock()
	for _, l := range append(t.merge.lookups, late...) {
		l.done(Answer{Outcome: Moved})
	}
	t.merge.lookups = nil
}
