package task

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

// lookup is another task's question, in this pod or in another. It is answered
// when the merge stands where a notification of that event time would be
// joined, so that both answers are the same.
type lookup struct {
	ctx   context.Context
	q     Query
	seq   uint64        // Task.seq when it first came
	since record.Millis // when it was first asked, by the task's clock
	done  func(Answer)
}

// MaxLookups is how many questions may wait for one task's merge.
const MaxLookups = 1 << 14

// Lookup answers from this task's table once its merge has reached the event
// time asked for, or has stood at the end of its partition for join.max_idle.
// done is called exactly once, from any goroutine: with Found or NoPrice; with
// Unready where a task that has not read up to the end it saw at its start has
// no price yet; with Moved once the task is frozen; with Busy beyond MaxLookups;
// with Unanswered some time after ctx has ended. Whoever asks again then shows
// the ticket.
func (t *Task) Lookup(ctx context.Context, q Query, done func(Answer)) Ticket {
	t.mu.Lock()
	refusal := Moved
	switch {
	case t.frozen.Load() || !t.o.Mine[record.Market]:
	case t.inbox.open >= MaxLookups:
		refusal = Busy
	default:
		l := &lookup{ctx: ctx, q: q, seq: t.arrival(q.Ticket), since: t.asked(q.Since), done: done}
		t.inbox.open++
		t.inbox.lookups = append(t.inbox.lookups, l)
		t.mu.Unlock()
		t.poke()
		return Ticket{Task: t.id, Seq: l.seq}
	}
	t.mu.Unlock()
	done(Answer{Outcome: refusal})
	return Ticket{}
}

// arrival is the task's count when a question first came: an end that was asked
// for before proves nothing about it. Called with mu held.
func (t *Task) arrival(of Ticket) uint64 {
	if of.Task == t.id && of.Seq > 0 && of.Seq <= t.seq {
		return of.Seq
	}
	t.seq++
	return t.seq
}

// asked is a moment on the task's clock; zero is now, as is what is to come.
func (t *Task) asked(since time.Time) record.Millis {
	now := t.clock()
	if since.IsZero() {
		return now
	}
	return now - record.Millis(max(time.Since(since), 0).Milliseconds())
}

// Newest answers at once with the symbol's newest price, whatever its event
// time: Found or NoPrice from a running task that has read up to the end it saw
// at its start, else Unready, and Moved from one that is frozen or has no
// market half. Any goroutine may ask.
func (t *Task) Newest(symbol []byte) Answer {
	if t.frozen.Load() || !t.o.Mine[record.Market] {
		return Answer{Outcome: Moved}
	}
	t.mu.Lock()
	ready := t.State() == Running && t.marks.caughtUp
	t.mu.Unlock()
	if !ready {
		return Answer{Outcome: Unready}
	}
	a := t.table.Ask(symbol, math.MaxInt64)
	out := Answer{Outcome: NoPrice, Partition: t.o.Index, Next: a.Next, Known: true}
	if a.Found {
		out.Outcome, out.AsOf, out.Price = Found, true, a.Price
	}
	out.Held = !a.Found && a.AsOf // a tombstone decided it
	return out
}

// takeLookups adds questions to those that the merge looks at, which are in the
// order of their event times.
func (t *Task) takeLookups(questions []*lookup) {
	if len(questions) == 0 {
		return
	}
	m := &t.merge
	m.lookups = append(m.lookups, questions...)
	slices.SortStableFunc(m.lookups, func(a, b *lookup) int { return cmp.Compare(a.q.At, b.q.At) })
}

// sweep is how often all questions are looked at while ticks come: those whose
// asker has gone are among them.
const sweep = record.Millis(10)

// serveLookups answers those whose moment has come and forgets those that
// nobody waits for.
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
	now := t.clock()
	if !b.empty() && now-m.swept < sweep {
		t.servePassed(b)
		return
	}
	m.swept = now
	market, covered := enrich.Input{State: enrich.HasHead, Head: b.head.time, HeadBad: b.head.bad != nil}, uint64(0)
	if b.empty() {
		market, covered = t.marketEnd(m.lookups)
	}
	left := m.lookups[:0]
	for _, l := range m.lookups {
		switch {
		case l.ctx.Err() != nil:
			l.done(Answer{Outcome: Unanswered})
		case t.due(l, market, covered, now):
			l.done(t.answer(l.q, b.empty() || t.upToTarget()))
		default:
			left = append(left, l)
		}
	}
	t.forgetLookups(len(m.lookups) - len(left))
	clear(m.lookups[len(left):])
	m.lookups = left
}

// servePassed answers the questions that the next tick is behind of. With many
// that wait for later ones, to look at all of them for each tick would be most of
// the merge's work.
func (t *Task) servePassed(b *batch) {
	if b.head.bad != nil {
		return // taken at once, whatever its time
	}
	m := &t.merge
	n := 0
	for n < len(m.lookups) && m.lookups[n].q.At < b.head.time {
		n++
	}
	caughtUp := n > 0 && t.upToTarget()
	for _, l := range m.lookups[:n] {
		if l.ctx.Err() != nil {
			l.done(Answer{Outcome: Unanswered})
			continue
		}
		l.done(t.answer(l.q, caughtUp))
	}
	t.forgetLookups(n)
	clear(m.lookups[:n])
	m.lookups = m.lookups[n:]
}

// due reports whether a notification of the question's event time would be
// joined now. An end counts for questions up to covered.
func (t *Task) due(l *lookup, market enrich.Input, covered uint64, now record.Millis) bool {
	if market.State == enrich.AtEnd && l.seq > covered {
		return false
	}
	market.AtEndSince = max(market.AtEndSince, l.since)
	action, until := enrich.Decide(market, enrich.Input{State: enrich.HasHead, Head: l.q.At}, now, t.o.MaxIdle)
	if action == enrich.WaitUntil {
		t.wakeBy(until)
	}
	return action == enrich.TakeNotification
}

// marketEnd describes the market side, which has no head, and up to which
// Task.seq an end that it stands at was asked for afterwards: every tick that
// could be read when such a question came is in the table. It asks for an end
// that covers all the questions where there is none.
func (t *Task) marketEnd(lookups []*lookup) (enrich.Input, uint64) {
	newest := uint64(0)
	for _, l := range lookups {
		newest = max(newest, l.seq)
	}
	market := t.emptySide(record.Market, newest, true)
	if market.State == enrich.AtEnd {
		return market, newest
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	in := &t.in[record.Market]
	if !in.started || len(in.pending) > 0 || !in.end.known || in.position < 0 || in.position < in.end.offset {
		return market, 0
	}
	return enrich.Input{State: enrich.AtEnd, AtEndSince: in.end.since}, in.end.seq
}

// upToTarget reports whether the merge has passed the market end that the task
// saw at its start.
func (t *Task) upToTarget() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.marks.caughtUp || t.target >= 0 && t.merge.pos[record.Market] >= t.target
}

// answer answers from the table. A price in force is one whatever is still to
// come; that there is none only those may say who have caught up.
func (t *Task) answer(q Query, caughtUp bool) Answer {
	a := Answer{Outcome: NoPrice, Partition: t.o.Index, Next: t.table.Next(), Known: true}
	symbol := []byte(q.Symbol)
	v, found, asOf := t.table.Price(symbol, q.At)
	switch {
	case found:
		a.Outcome = Found
		a.AsOf = asOf
		a.Price = record.Price{Text: string(v.Text), EventTime: v.EventTime, Partition: t.o.Index, Offset: v.Offset}
	case caughtUp:
		a.Held = t.table.Holds(symbol)
	default:
		return Answer{Outcome: Unready}
	}
	return a
}

// refuseLookups sends the askers to the next owner.
func (t *Task) refuseLookups() {
	t.mu.Lock()
	late := t.inbox.lookups
	t.inbox.lookups = nil
	t.inbox.open = 0
	t.mu.Unlock()
	for _, l := range append(t.merge.lookups, late...) {
		l.done(Answer{Outcome: Moved})
	}
	t.merge.lookups = nil
}

// forgetLookups makes room for n more.
func (t *Task) forgetLookups(n int) {
	if n == 0 {
		return
	}
	t.mu.Lock()
	t.inbox.open -= n
	t.mu.Unlock()
}
