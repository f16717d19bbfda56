package remote

import (
	"container/heap"
	"time"
)

// agenda holds what is to be done at some time, the earliest first.
type agenda struct{ items []*appointment }

// appointment is a question to be asked again, or an owner whose queue has
// lingered.
type appointment struct {
	at       time.Time
	question *question
	owner    *owner
}

// add enters a question, in place of its earlier appointment, or an owner.
func (a *agenda) add(at time.Time, x *question, o *owner) {
	if x != nil {
		a.remove(x)
	}
	heap.Push(a, &appointment{at: at, question: x, owner: o})
}

// remove takes a question out, if it is in.
func (a *agenda) remove(x *question) {
	if x.place > 0 {
		heap.Remove(a, x.place-1)
	}
}

// next is when there is something to do; false where there never is.
func (a *agenda) next() (time.Time, bool) {
	if len(a.items) == 0 {
		return time.Time{}, false
	}
	return a.items[0].at, true
}

// pop takes the earliest appointment whose time has come.
func (a *agenda) pop(now time.Time) (*appointment, bool) {
	if len(a.items) == 0 || a.items[0].at.After(now) {
		return nil, false
	}
	return heap.Pop(a).(*appointment), true
}

// hurry makes every question that is to be tried again due now. Those that wait
// for a request or for one of this pod's own tables are in the agenda for their
// end alone.
func (a *agenda) hurry() {
	for _, item := range a.items {
		if x := item.question; x != nil && x.resting {
			item.at = time.Time{}
			x.pause = 0
		}
	}
	heap.Init(a)
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (a *agenda) Len() int           { return len(a.items) }
func (a *agenda) Less(i, j int) bool { return a.items[i].at.Before(a.items[j].at) }
func (a *agenda) Swap(i, j int) {
	a.items[i], a.items[j] = a.items[j], a.items[i]
	a.seat(i)
	a.seat(j)
}

func (a *agenda) seat(i int) {
	if x := a.items[i].question; x != nil {
		x.place = i + 1
	}
}

func (a *agenda) Push(v any) {
	a.items = append(a.items, v.(*appointment))
	a.seat(len(a.items) - 1)
}

func (a *agenda) Pop() any {
	last := len(a.items) - 1
	item := a.items[last]
	a.items[last] = nil
	a.items = a.items[:last]
	if item.question != nil {
		item.question.place = 0
	}
	return item
}
