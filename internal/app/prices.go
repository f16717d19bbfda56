package app

import (
	"time"

	"joiner/internal/task"
)

// Remote asks the owner of a market partition in another process, or in
// another member of this one. Every call ends in exactly one call of done,
// with any Outcome.
type Remote interface {
	Ask(q task.Query, done func(task.Answer))
}

// prices implements task.Prices: a partition of this pod is asked in memory,
// another one through Remote.
type prices struct {
	owner  owner
	remote Remote        // nil: join.remote_lookup is off
	again  time.Duration // between two tries while a task is on its way
	tries  int
}

// owner is what prices needs of the member.
type owner interface {
	Owns(partition int32) bool
	Task(index int32) *task.Task
}

// Owns implements task.Prices.
func (p *prices) Owns(partition int32) bool { return p.owner.Owns(partition) }

// Ask implements task.Prices.
func (p *prices) Ask(q task.Query, done func(task.Answer)) { p.try(q, done, p.tries) }

func (p *prices) try(q task.Query, done func(task.Answer), left int) {
	if q.Partition == task.AnyPartition || !p.owner.Owns(q.Partition) {
		p.askRemote(q, done)
		return
	}
	t := p.owner.Task(q.Partition)
	if t == nil {
		p.later(q, done, left)
		return
	}
	t.Lookup(q, func(a task.Answer) {
		if a.Outcome == task.Moved {
			p.later(q, done, left)
			return
		}
		done(a)
	})
}

// later asks again once the assignment that is under way has settled.
func (p *prices) later(q task.Query, done func(task.Answer), left int) {
	if left == 0 {
		done(task.Answer{Outcome: task.Unanswered})
		return
	}
	time.AfterFunc(p.again, func() { p.try(q, done, left-1) })
}

func (p *prices) askRemote(q task.Query, done func(task.Answer)) {
	if p.remote == nil {
		done(task.Answer{Outcome: task.NotAsked})
		return
	}
	p.remote.Ask(q, done)
}
