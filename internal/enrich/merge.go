package enrich

import (
	"time"

	"joiner/internal/record"
)

// SideState says what a task knows of one of its two inputs.
type SideState uint8

// The states of an input. The zero value waits.
const (
	// NotStarted: the claim, or the restore before it, has not begun. A closed
	// half is no caught-up half, so a revoked claim belongs here, too.
	NotStarted SideState = iota
	// HasHead: the next record is here.
	HasHead
	// MoreToCome: nothing is here, but the position is below an end offset
	// that is known.
	MoreToCome
	// AtEnd: nothing is here, and the position has reached an end offset that
	// was asked for after the head of the other side had been received. An
	// older answer proves nothing about that head: it is Unknown.
	AtEnd
	// Unknown: nothing is here, and no such end offset has been answered yet.
	Unknown
	// NotMine: this member does not own the partition, so it has no say. The
	// other half goes on alone: a market half keeps its table and answers, a
	// notification half asks.
	NotMine
)

func (s SideState) String() string {
	switch s {
	case NotStarted:
		return "not started"
	case HasHead:
		return "has head"
	case MoreToCome:
		return "more to come"
	case AtEnd:
		return "at end"
	case Unknown:
		return "unknown"
	case NotMine:
		return "not mine"
	}
	return "invalid"
}

// Input is one side of a merge, as it stands.
type Input struct {
	State SideState
	// Head is the event time of the next record, where State is HasHead and
	// the record is good.
	Head record.Millis
	// HeadBad says that the next record cannot be joined. It needs no event
	// time: it is taken as soon as it is the head.
	HeadBad bool
	// AtEndSince is when State became AtEnd, on the clock that now comes from.
	AtEndSince record.Millis
}

// Action is what a task does next.
type Action uint8

// The actions.
const (
	// Wait until an input changes; no passing of time ends it.
	Wait Action = iota
	// TakeMarket merges the head of the market side.
	TakeMarket
	// TakeNotification merges the head of the notification side.
	TakeNotification
	// WaitUntil waits until an input changes, or until the time that comes
	// with it.
	WaitUntil
)

func (a Action) String() string {
	switch a {
	case Wait:
		return "wait"
	case TakeMarket:
		return "take market"
	case TakeNotification:
		return "take notification"
	case WaitUntil:
		return "wait until"
	}
	return "invalid"
}

// Decide says what a task does with its two inputs: it takes the earlier head,
// ties to the market side, so that a notification sees the ticks of its own
// millisecond. A bad head is taken at once, whatever the other side does.
//
// Where only one side has a head it is taken if the other side is at its end,
// and has been so for maxIdle (zero or less: at once); until then the answer is
// WaitUntil, with the time. An end that is not known, or a side that has not
// started, means wait. This is the rule of KIP-695 (max.task.idle.ms) made
// exact by what AtEnd demands: a notification sees every tick that could be
// read when it was received.
//
// The heads of a side come in offset order, which need not be the order of
// their event times, and no side is sorted: a record that is older than one
// before it on its own side is taken as soon as it is the head of an earlier
// or equal time, that is, right behind that one. The merged sequence is
// thus the one that sorting both sides would give if each record stood at the
// newest event time that its side has had up to it. What a tick that comes
// behind its time means is the price table's to say (it is late), and a
// notification behind its time is priced by the table as it then stands, or as
// of its event time where a history is kept.
//
// until is 0 for every action but WaitUntil.
func Decide(market, note Input, now record.Millis, maxIdle time.Duration) (action Action, until record.Millis) {
	hasMarket, hasNote := market.State == HasHead, note.State == HasHead
	switch {
	case hasMarket && market.HeadBad:
		return TakeMarket, 0
	case hasNote && note.HeadBad:
		return TakeNotification, 0
	case hasMarket && hasNote && market.Head <= note.Head:
		return TakeMarket, 0
	case hasMarket && hasNote:
		return TakeNotification, 0
	case hasMarket:
		return takeAlone(TakeMarket, note, now, maxIdle)
	case hasNote:
		return takeAlone(TakeNotification, market, now, maxIdle)
	}
	return Wait, 0
}

// takeAlone decides about a head whose other side, empty, has none.
func takeAlone(take Action, empty Input, now record.Millis, maxIdle time.Duration) (Action, record.Millis) {
	switch empty.State {
	case NotMine:
		return take, 0
	case AtEnd:
		until := empty.AtEndSince + wholeMillis(maxIdle)
		if maxIdle <= 0 || now >= until {
			return take, 0
		}
		return WaitUntil, until
	}
	return Wait, 0
}

// wholeMillis rounds up: to wait too short would break a promise.
func wholeMillis(d time.Duration) record.Millis {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return record.Millis(ms)
}
