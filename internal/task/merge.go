package task

import (
	"context"
	"time"

	"go.uber.org/zap"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

// The rhythm of the merge. None of these is seen by a user: they bound how
// long locks are held and how often a broker is asked.
const (
	stepLimit    = 512                     // records merged under one lock of the table
	idleCheck    = 1000 * time.Millisecond // how often an idle task looks for control records
	freshEnd     = 100 * time.Millisecond  // an end so new will soon be followed by another
	askAgain     = 100 * time.Millisecond  // after a failed question
	drainedShare = 4                       // a queue this full asks for the other's end at once
)

func nowMillis() record.Millis { return record.MillisOf(time.Now()) }

// clock is what waits are measured by: it goes on with the monotonic clock from
// the moment the task was made, whatever is done to the wall clock.
func (t *Task) clock() record.Millis { return record.MillisOf(t.made.Add(time.Since(t.made))) }

// mergeState belongs to the merge goroutine alone.
type mergeState struct {
	cur [record.Sides]batch
	pos record.Offsets // the next record to merge of each side; -1 unknown

	places []*place         // taken in this run
	spare  []*place         // to be used again
	outs   []*record.Output // to be sent at the end of the run
	tally  tally

	lines   map[string]*line // symbols with places that are not sent yet
	waiting waitList         // places with a clock, in the order of their deadlines
	asks    []*place         // places that ask again later
	lookups []*lookup        // other tasks' questions, by event time
	swept   record.Millis    // when all of them were looked at

	until   record.Millis // when the merge wants to look again; 0 never
	stepped bool
	held    hold // what ended the last step
}

// hold is what keeps the merge from taking a record that it has.
type hold uint8

const (
	unheld    hold = iota
	heldInput      // the other input's end is not known, or it has more to come
	heldClock      // join.max_idle
	heldRoom       // the ledger is full
)

func (m *mergeState) init() {
	m.pos = record.Offsets{-1, -1}
	m.lines = make(map[string]*line)
}

// batch is what the merge has taken from a queue and not merged yet.
type batch struct {
	recs  []record.Record
	i     int
	seq   uint64        // covers every record in it
	came  record.Millis // when the newest of them did
	bytes int           // what it holds, given back when all of it is merged
	done  int           // records merged since the queue was told
	head  head
}

// head is the decoded first record of a batch.
type head struct {
	ready bool
	time  record.Millis
	bad   *enrich.Bad
	tick  record.Tick
	note  record.Note
}

func (b *batch) empty() bool            { return b.i == len(b.recs) }
func (b *batch) record() *record.Record { return &b.recs[b.i] }

func (b *batch) advance() {
	b.done++
	b.i++
	b.head.ready = false
}

// run is the merge goroutine.
func (t *Task) run() {
	defer close(t.done)
	defer t.state.Store(int32(Closed))
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

	if t.prepare() {
		if t.keeps() {
			t.o.Checkpoint.Begin(t.progress)
		}
		t.state.Store(int32(Running))
		close(t.ready)
		t.poke()
		for !t.frozen.Load() {
			t.laps.Add(1)
			t.lap()
			t.laps.Add(1)
			if !t.merge.stepped {
				t.sleep(timer)
			}
		}
	}
	t.finish()
}

// lap does what there is to do now, or a share of it.
func (t *Task) lap() {
	t.merge.until = 0
	t.read()
	t.step()
	t.serveLookups()
	t.flush()
}

// sleep waits for something to happen or for the moment the merge named.
func (t *Task) sleep(timer *time.Timer) {
	d := idleCheck
	if u := t.merge.until; u > 0 {
		d = min(max(time.Duration(u-t.clock())*time.Millisecond, time.Millisecond), idleCheck)
	}
	timer.Reset(d)
	select {
	case <-t.wake:
	case <-timer.C:
	}
}

// wakeBy makes the merge look again at the given moment at the latest.
func (t *Task) wakeBy(at record.Millis) {
	if t.merge.until == 0 || at < t.merge.until {
		t.merge.until = at
	}
}

// read takes what other goroutines have brought.
func (t *Task) read() {
	t.mu.Lock()
	box := t.inbox
	t.inbox = inbox{open: box.open}
	t.mu.Unlock()
	for _, r := range box.refused {
		t.refused(r)
	}
	for _, a := range box.answers {
		t.answered(a)
	}
	t.takeLookups(box.lookups)
	t.expireWaits()
	t.repeatAsks()
}

// step merges up to stepLimit records.
func (t *Task) step() {
	m := &t.merge
	m.stepped, m.held = false, unheld
	t.table.Lock()
	defer t.table.Unlock()
	for range stepLimit {
		if t.frozen.Load() || !t.stepOne() {
			return
		}
		m.stepped = true
	}
}

// stepOne takes one record from either side; it reports false where it must
// wait.
func (t *Task) stepOne() bool {
	market, note := &t.merge.cur[record.Market], &t.merge.cur[record.Notification]
	if market.empty() {
		t.refill(record.Market)
	}
	if note.empty() {
		t.refill(record.Notification)
	}
	if market.empty() && note.empty() {
		t.idle()
		return false
	}
	t.decodeTick(market)
	t.decodeNote(note)
	if asked := t.merge.lookups; len(asked) > 0 && !market.empty() && market.head.bad == nil && market.head.time > asked[0].q.At {
		// A question is answered before this tick, as a notification of its time
		// would be joined before it: once the tick is taken there may never be such
		// a moment again, where ticks keep coming and join.max_idle is for the end
		// to stand still.
		t.poke()
		return false
	}
	if !market.empty() && (market.head.bad != nil || !note.empty() && note.head.bad == nil && market.head.time <= note.head.time) {
		return t.takeTick(market) // what Decide would say, for most records
	}
	now := record.Millis(0)
	if t.o.MaxIdle > 0 {
		now = t.clock()
	}
	action, until := enrich.Decide(t.sideState(record.Market), t.sideState(record.Notification), now, t.o.MaxIdle)
	switch action {
	case enrich.TakeMarket:
		return t.takeTick(market)
	case enrich.TakeNotification:
		return t.takeNote(note)
	case enrich.WaitUntil:
		t.merge.held = heldClock
		t.wakeBy(until)
	default:
		t.merge.held = heldInput
	}
	return false
}

// refill takes the next batch that was delivered.
func (t *Task) refill(side record.Side) {
	b := &t.merge.cur[side]
	t.mu.Lock()
	defer t.mu.Unlock()
	in := &t.in[side]
	if b.recs != nil {
		t.release(side, b.done, b.bytes)
		b.done, b.bytes = 0, 0
		in.recycle(b.recs)
	}
	b.recs, b.i = nil, 0
	b.head.ready = false
	if len(in.pending) == 0 {
		return
	}
	b.recs, b.bytes = in.pending[0].recs, in.pending[0].bytes
	in.pending[0] = chunk{}
	in.pending = in.pending[1:]
	// Of the newest that is there: an end that covers it covers this batch.
	b.seq, b.came = in.seq, in.came
}

// sideState describes one input to the merge rule.
func (t *Task) sideState(side record.Side) enrich.Input {
	b := &t.merge.cur[side]
	if !b.empty() {
		return enrich.Input{State: enrich.HasHead, Head: b.head.time, HeadBad: b.head.bad != nil}
	}
	if !t.o.Mine[side] {
		return enrich.Input{State: enrich.NotMine}
	}
	other := &t.merge.cur[side.Other()]
	// A tick can wait for what the next response tells, unless a question, which
	// has little time, may wait for the tick.
	urgent := side == record.Market || len(t.merge.lookups) > 0
	state := t.emptySide(side, other.seq, urgent)
	// join.max_idle is counted from the head's arrival, or a side that has long
	// been quiet would give late producers no time.
	state.AtEndSince = max(state.AtEndSince, other.came)
	return state
}

// emptySide tells whether an input without a head is at its end, by an end
// that was asked for after everything up to seq was received.
func (t *Task) emptySide(side record.Side, seq uint64, urgent bool) enrich.Input {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := &t.in[side]
	e := &in.end
	switch {
	case !in.started:
		return enrich.Input{State: enrich.NotStarted}
	case len(in.pending) > 0:
		// It has arrived since the queue was looked at: look again.
		t.poke()
		return enrich.Input{State: enrich.Unknown}
	case e.known && in.position >= 0 && in.position < e.offset:
		e.wanted = true
		return enrich.Input{State: enrich.MoreToCome}
	case e.known && e.seq >= seq && in.position >= 0:
		return enrich.Input{State: enrich.AtEnd, AtEndSince: e.since}
	}
	e.wanted = true
	t.askEnd(side, urgent || t.in[side.Other()].held > t.o.Limits.QueueRecords/drainedShare)
	return enrich.Input{State: enrich.Unknown}
}

// askEnd asks for the end of a side, one question at a time. Called with mu
// held.
func (t *Task) askEnd(side record.Side, urgent bool) {
	e := &t.in[side].end
	now := t.clock()
	if !urgent && now-e.at < record.Millis(freshEnd.Milliseconds()) {
		t.wakeBy(now + record.Millis(freshEnd.Milliseconds()))
		return // the next response tells, and a tick can wait for it
	}
	if e.asking && (e.urgent || !urgent) {
		return
	}
	if e.failed > 0 {
		if again := e.failed + record.Millis(askAgain.Milliseconds()); now < again {
			t.wakeBy(again)
			return
		}
	}
	e.asking, e.urgent = true, urgent
	seq := t.seq
	t.o.Ends.Ask(t.o.Topics[side], t.o.Index, urgent, func(end int64, err error) {
		t.endKnown(side, seq, end, err)
	})
}

// endKnown takes the answer of Ends.
func (t *Task) endKnown(side record.Side, seq uint64, end int64, err error) {
	t.mu.Lock()
	in := &t.in[side]
	e := &in.end
	e.asking = false
	if err != nil {
		e.failed = t.clock()
	} else {
		e.failed = 0
		t.learnEnd(side, seq, end)
		if t.State() < Running {
			t.showWaiting(side)
		}
	}
	t.mu.Unlock()
	t.poke()
}

// learnEnd takes an end that was asked for when Task.seq was seq. Called with
// mu held.
func (t *Task) learnEnd(side record.Side, seq uint64, end int64) {
	in := &t.in[side]
	e := &in.end
	if e.known && seq < e.seq {
		return
	}
	e.at = t.clock()
	if !e.known || e.offset != end {
		e.since = e.at
	}
	e.known, e.offset, e.seq = true, end, seq
	in.hw = max(in.hw, end)
}

// idle is called when neither side has a record, and while the table is being
// restored. Responses tell where the
// partitions end; where none does, it asks now and then, so that the lag of a
// quiet topic is known.
func (t *Task) idle() {
	now := t.clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for side := range record.Sides {
		in := &t.in[side]
		in.end.wanted = false
		if t.o.Mine[side] && in.started && now-in.end.at >= record.Millis(idleCheck.Milliseconds()) {
			t.askEnd(side, false)
		}
	}
}

// decodeTick decodes the market head once.
func (t *Task) decodeTick(b *batch) {
	if b.empty() || b.head.ready {
		return
	}
	h := &b.head
	h.tick, h.bad = t.o.Market.Decode(b.record())
	h.time = h.tick.EventTime
	h.ready = true
}

// decodeNote decodes the notification head once.
func (t *Task) decodeNote(b *batch) {
	if b.empty() || b.head.ready {
		return
	}
	h := &b.head
	h.note, h.bad = t.o.Note.Decode(b.record())
	h.time = h.note.EventTime
	h.ready = true
}

// takeTick merges the market head into the table.
func (t *Task) takeTick(b *batch) bool {
	m := &t.merge
	rec, h := b.record(), &b.head
	if h.bad != nil {
		if !t.ledger.roomLeft(record.Market, len(m.places)) {
			m.held = heldRoom
			return false
		}
		t.deadLetter(t.newPlace(record.Market, rec), h.bad.Kind, h.bad.Detail)
		t.table.Advance(rec.Offset)
	} else {
		m.tally.applied[t.table.Apply(&h.tick, rec.Offset)]++
	}
	t.saw(record.Market, rec, h.tick.Symbol)
	m.pos[record.Market] = rec.Offset + 1
	if len(m.lines) > 0 && h.bad == nil && !h.tick.Tombstone {
		t.priceCame(h.tick.Symbol)
	}
	b.advance()
	return true
}

// takeNote joins the notification head, or lets it wait in the ledger.
func (t *Task) takeNote(b *batch) bool {
	m := &t.merge
	if !t.ledger.roomLeft(record.Notification, len(m.places)) {
		m.held = heldRoom
		return false
	}
	rec, h := b.record(), &b.head
	p := t.newPlace(record.Notification, rec)
	t.saw(record.Notification, rec, h.note.Symbol)
	if h.bad != nil {
		t.deadLetter(p, h.bad.Kind, h.bad.Detail)
	} else {
		p.note = h.note
		t.join(p)
	}
	m.pos[record.Notification] = rec.Offset + 1
	b.advance()
	return true
}

// readRefusals finds another way for outputs that were refused while the task
// was closing.
func (t *Task) readRefusals() {
	t.mu.Lock()
	refused := t.inbox.refused
	t.inbox.refused = nil
	t.mu.Unlock()
	for _, r := range refused {
		t.refused(r)
	}
}

// newPlace takes a place for a record about to be merged.
func (t *Task) newPlace(side record.Side, rec *record.Record) *place {
	m := &t.merge
	if len(m.spare) == 0 {
		m.spare = t.ledger.takeSpare(m.spare)
	}
	p := &place{}
	if n := len(m.spare); n > 0 {
		p, m.spare = m.spare[n-1], m.spare[:n-1]
	}
	p.side, p.stamp, p.rec, p.cut, p.taken = side, rec.Timestamp, *rec, m.pos, time.Now()
	p.cut[side] = rec.Offset
	m.places = append(m.places, p)
	return p
}

// flush makes the run's work visible: places and cut first, then the outputs,
// then the queues' room and the metrics.
func (t *Task) flush() {
	next := t.settlePositions()
	t.publish()
	t.report(next)
}

// publish enters new places into the ledger and hands outputs to the sink.
func (t *Task) publish() {
	m := &t.merge
	t.ledger.add(m.places, m.outs, m.pos)
	if len(m.outs) > 0 {
		t.o.Sink.Send(m.outs)
	}
	clear(m.places)
	m.places, m.outs = m.places[:0], nil
}

// settlePositions gives the queues their room back and moves the progress of
// a side without records to where its reader stands, past control records. It
// returns the timestamps of the next unprocessed records.
func (t *Task) settlePositions() (next [record.Sides]record.Millis) {
	m := &t.merge
	t.mu.Lock()
	defer t.mu.Unlock()
	for side := range record.Sides {
		in, b := &t.in[side], &m.cur[side]
		if b.done > 0 {
			t.release(side, b.done, 0)
			b.done = 0
		}
		next[side] = record.NoTimestamp
		switch {
		case !b.empty():
			next[side] = b.record().Timestamp
		case len(in.pending) > 0:
			next[side] = in.pending[0].recs[0].Timestamp
		case in.started && in.position > m.pos[side]:
			m.pos[side] = in.position
		}
		t.marks.position[side] = m.pos[side]
	}
	t.marks.held = m.held
	t.marks.next = next[record.Market]
	if !t.marks.caughtUp && t.target >= 0 && m.pos[record.Market] >= t.target {
		t.marks.caughtUp = true
	}
	return next
}

// finish lets what was sent be acknowledged, commits the pair and forgets the
// rest; places that were not filled are the next owner's.
func (t *Task) finish() {
	t.closing.Store(max(int64(time.Since(t.made)), 1))
	t.state.Store(int32(Frozen))
	if t.o.Settle == nil {
		t.awaitSent()
	} else {
		t.settleSent()
	}
	left := t.o.Sink.Drop(t)
	t.abandoned.Store(int64(left))
	if left > 0 {
		t.log.Warn("outputs left unacknowledged, their notifications are joined again by the next owner", zap.Int("outputs", left))
	}
	t.forgetWaits()
	ctx, cancel := context.WithTimeout(context.Background(), t.o.Drain)
	defer cancel()
	if err := t.o.Commit(ctx, t); err != nil {
		t.log.Warn("last commit failed, records since the one before are joined again", zap.Error(err))
	}
	if t.keeps() {
		t.o.Checkpoint.End()
	}
	t.o.Metrics.Close()
	t.o.Keys.Close()
}

// awaitSent waits until the sink has settled what it was given.
func (t *Task) awaitSent() {
	deadline := time.NewTimer(t.o.Drain)
	defer deadline.Stop()
	expired := false
	for {
		t.publishLast()
		if expired || t.ledger.inFlight() == 0 {
			return
		}
		select {
		case <-t.wake:
		case <-deadline.C:
			expired = true
		}
	}
}

// settleSent has what the sink was given committed, up to the first place that
// was never filled: what lies behind it is the next owner's, as the place is.
func (t *Task) settleSent() {
	ctx, cancel := context.WithTimeout(context.Background(), t.o.Drain)
	defer cancel()
	for {
		t.publishLast()
		if err := t.o.Settle(ctx, t); err != nil {
			return // the last commit fails likewise, and says so
		}
		if !t.hasRefusals() {
			return
		}
	}
}

// publishLast brings out what a closing task still has to say.
func (t *Task) publishLast() {
	t.refuseLookups()
	t.readRefusals()
	t.publish()
}

func (t *Task) hasRefusals() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.inbox.refused) > 0
}
