package demo

import (
	"slices"
	"sync"
	"time"

	"joiner/internal/task"
)

// exchange is the network between the demo's pods: it hands a look-up to the
// member that owns the partition.
type exchange struct {
	mu     sync.Mutex
	pods   []Pod
	closed bool
}

func (x *exchange) add(p Pod) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pods = append(x.pods, p)
}

// close ends the asking again: what is still open stays unanswered.
func (x *exchange) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
}

const (
	askAgain = 20 * time.Millisecond // while a partition moves
	askLimit = 30 * time.Second      // as join.remote_patience
)

// Ask implements Remote.
func (x *exchange) Ask(q task.Query, done func(task.Answer)) {
	x.ask(q, done, time.Now().Add(askLimit))
}

func (x *exchange) ask(q task.Query, done func(task.Answer), until time.Time) {
	owner, closed := x.owner(q.Partition)
	if closed || time.Now().After(until) {
		done(task.Answer{Outcome: task.Unanswered})
		return
	}
	again := func() { time.AfterFunc(askAgain, func() { x.ask(q, done, until) }) }
	if owner == nil {
		again()
		return
	}
	owner.Lookup(q, func(a task.Answer) {
		if a.Outcome == task.Found || a.Outcome == task.NoPrice {
			done(a)
			return
		}
		again()
	})
}

// owner returns the pod whose last assignment has the partition, nil while none
// has.
func (x *exchange) owner(partition int32) (owner Pod, closed bool) {
	x.mu.Lock()
	pods, closed := slices.Clone(x.pods), x.closed
	x.mu.Unlock()
	for _, p := range pods {
		if p.Owns(partition) {
			return p, closed
		}
	}
	return nil, closed
}
