package task

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"joiner/internal/metrics"
	"joiner/internal/record"
)

// place is one record's claim on the task's progress: no commit passes it
// before its output is acknowledged. Notifications have one each, bad ticks
// too, since their dead letters must not be lost either.
type place struct {
	prev, next *place // the ledger's list, in merge order

	side   record.Side
	stamp  record.Millis  // the record's timestamp
	rec    record.Record  // copied where the place waits or asks
	note   record.Note    // likewise
	cut    record.Offsets // progress before this record
	size   int
	sent   bool // handed to the sink
	barred bool // its output was refused; guarded by the ledger's lock
	gone   bool // not in the list any more
	taken  time.Time
	kind   record.Kind // of the dead letter; "" for an alert
	shrunk bool        // the dead letter has already lost its value
	dated  bool        // and its timestamp
	plain  bool        // joined at once: nobody but its output points at it, so it is used again

	join joinState

	out *record.Output // the newest attempt at one
}

// ledger is the list of places whose output is not acknowledged, in merge
// order, and the cut before the first of them.
type ledger struct {
	t *Task

	mu        sync.Mutex
	root      place // root.next is the oldest
	cut       record.Offsets
	cutKnown  bool
	committed record.Offsets
	places    int
	bytes     int
	sent      int      // places whose outputs the sink holds
	full      bool     // the merge waits for room
	crowded   bool     // a quarter of the places is taken; the merge's own to read
	spare     []*place // settled plain places, to be used again
}

func (l *ledger) init(t *Task) {
	l.t = t
	l.root.prev, l.root.next = &l.root, &l.root
	l.committed = record.Offsets{-1, -1}
}

// add appends new places, notes which outputs the sink is about to get, and
// moves the cut, in one step: a commit in between would pass places that it
// cannot see.
func (l *ledger) add(places []*place, outs []*record.Output, cut record.Offsets) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		if p.gone {
			continue // came and went within one run of the merge
		}
		p.prev, p.next = l.root.prev, &l.root
		p.prev.next, l.root.prev = p, p
		l.places++
		l.bytes += p.size
	}
	for _, o := range outs {
		p := o.Tag.(*place)
		p.sent, p.barred = true, false
		l.sent++
		if size := len(o.Key) + len(o.Value) + placeOverhead; size != p.size {
			l.bytes += size - p.size
			p.size = size
		}
	}
	l.cut = cut
	l.cutKnown = true
}

// maxSparePlaces bounds the places kept to be used again.
const maxSparePlaces = 1024

// takeSpare moves the settled places to the merge's own list.
func (l *ledger) takeSpare(spare []*place) []*place {
	l.mu.Lock()
	defer l.mu.Unlock()
	spare = append(spare, l.spare...)
	clear(l.spare)
	l.spare = l.spare[:0]
	return spare
}

// remove takes a place out once nothing is owed for it any more.
func (l *ledger) remove(p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(p)
}

func (l *ledger) removeLocked(p *place) {
	if p.gone {
		return
	}
	p.gone = true
	if p.next == nil {
		return // never in the list
	}
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil
	l.places--
	l.bytes -= p.size
	if p.sent {
		l.sent--
	}
}

// roomLeft reports whether another place may be taken for a record of the side,
// beside the new ones that are not listed yet; where not, the next settled output
// wakes the merge. Bad ticks may take as much again as notifications: other
// tasks' questions wait behind one, and where all ledgers are full of places that
// ask each other, nobody would go on.
func (l *ledger) roomLeft(side record.Side, unlisted int) bool {
	places, bytes := l.t.o.Limits.Places, l.t.o.Limits.PlaceBytes
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crowded = l.places+unlisted >= places/4
	if side == record.Market {
		places, bytes = 2*places, 2*bytes
	}
	l.full = l.places+unlisted >= places || l.bytes+unlisted*placeOverhead >= bytes
	return !l.full
}

// inFlight returns how many places' outputs the sink holds.
func (l *ledger) inFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

// oldest returns the timestamp of the side's first record that is not settled,
// NoTimestamp where there is none.
func (l *ledger) oldest(side record.Side) record.Millis {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := l.root.next; p != &l.root; p = p.next {
		if p.side == side {
			return p.stamp
		}
	}
	return record.NoTimestamp
}

func (l *ledger) snapshot() (committed record.Offsets, places int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.committed, l.places
}

// Cut returns the newest pair of offsets whose earlier outputs are all
// acknowledged; halves tells which of the two this task may commit. It is
// none before the task knows where it stands.
func (t *Task) Cut() (cut record.Offsets, halves [record.Sides]bool) {
	l := &t.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cutKnown {
		return cut, halves
	}
	cut = l.cut
	if first := l.root.next; first != &l.root {
		cut = first.cut
	}
	return cut, t.halvesOf(cut)
}

// Sendable appends the outputs that may be committed together with the cut that it
// returns: those of the places before the first that is not filled, or whose
// output was refused, up to about limit bytes. halves is as in Cut; more tells
// that the limit ended it. A sink that commits outputs and progress at once asks
// for it; places stay, and are ready again, until their outputs are settled.
func (t *Task) Sendable(outs []*record.Output, limit int) (ready []*record.Output, cut record.Offsets, halves [record.Sides]bool, more bool) {
	l := &t.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cutKnown {
		return outs, cut, halves, false
	}
	cut = l.cut
	size := 0
	for p := l.root.next; p != &l.root; p = p.next {
		more = p.sent && !p.barred && size >= limit
		if more || !p.sent || p.barred {
			cut = p.cut
			break
		}
		outs = append(outs, p.out)
		size += p.size
	}
	return outs, cut, t.halvesOf(cut), more
}

// halvesOf tells which halves of a cut this task may commit.
func (t *Task) halvesOf(cut record.Offsets) (halves [record.Sides]bool) {
	for side := range halves {
		halves[side] = t.o.Mine[side] && cut[side] >= 0
	}
	return halves
}

// bar keeps a refused output, and those behind it, from being ready.
func (l *ledger) bar(p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.barred = true
}

// Committed tells the task what the group's coordinator has stored for it.
func (t *Task) Committed(cut record.Offsets) {
	l := &t.ledger
	l.mu.Lock()
	l.committed = cut
	l.mu.Unlock()
	for side := range record.Sides {
		t.o.Metrics.SetCommitted(side, cut[side])
	}
}

// Settled implements record.Owner.
func (t *Task) Settled(o *record.Output, err error) {
	p := o.Tag.(*place)
	if err != nil {
		t.ledger.bar(p)
		p.plain = false
		t.mu.Lock()
		t.inbox.refused = append(t.inbox.refused, refusal{p, err})
		t.mu.Unlock()
		t.poke()
		return
	}
	t.countSettled(p)
	l := &t.ledger
	l.mu.Lock()
	l.removeLocked(p)
	if p.plain && len(l.spare) < maxSparePlaces {
		*p = place{} // what it points at must not wait for its next use
		l.spare = append(l.spare, p)
	}
	wake := l.full || (l.sent == 0 && t.frozen.Load())
	l.mu.Unlock()
	if wake {
		t.poke()
	}
}

// refusal is an output that its topic will never take.
type refusal struct {
	p   *place
	err error
}

// refused finds another way for an output that its topic will never take: an
// alert becomes a dead letter, a dead letter that is too large loses its
// value, one with a timestamp that its topic does not take gets another, one
// that is still refused is logged and counted.
func (t *Task) refused(r refusal) {
	p := r.p
	t.ledger.mu.Lock()
	if p.sent && !p.gone {
		p.sent = false
		t.ledger.sent--
	}
	t.ledger.mu.Unlock()

	kind, detail := kindOf(r.err), r.err.Error()
	switch {
	case p.kind == "":
		t.deadLetter(p, kind, detail)
	case kind == record.TooLarge && !p.shrunk:
		t.shrink(p)
	case kind == record.InvalidTimestamp && !p.dated:
		t.date(p)
	default:
		t.log.Error("dead letter refused, the record is dropped",
			zap.String("topic", t.o.Topics[p.side]), zap.Int64("offset", p.rec.Offset),
			zap.String("dead_letters", t.o.DeadLetters), zap.String("kind", string(p.kind)), zap.Error(r.err))
		t.o.Metrics.Dropped[metrics.DropDeadLetterRefused].Inc()
		t.skipped(p)
	}
}
