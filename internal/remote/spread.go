package remote

import (
	"sync"

	"joiner/internal/task"
)

// spread asks every partition that may hold the symbol's price.
func (c *Client) spread(x *question) {
	n := c.o.Group.Partitions()
	if n == 0 {
		c.later(x, Failure{Reason: NoDirectory})
		return
	}
	s := &spreading{x: x, c: c}
	var parts []*question
	for p := range n {
		if p == x.q.Except {
			continue
		}
		part := &question{ctx: x.ctx, q: x.q, now: x.now, scope: x.scope, deadline: x.deadline}
		part.q.Partition = p
		part.done = s.take
		parts = append(parts, part)
	}
	s.left = len(parts)
	if s.left == 0 {
		c.finish(x, task.Answer{Outcome: task.NoPrice})
		return
	}
	for _, part := range parts {
		c.route(part)
	}
}

// spreading collects the answers of all partitions to one question.
type spreading struct {
	c *Client
	x *question

	mu         sync.Mutex
	left       int
	best       task.Answer // without a price: none yet
	unasked    bool
	unanswered bool
	failure    Failure
}

// take takes one partition's answer; the last one ends the question.
func (s *spreading) take(a task.Answer, f Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch a.Outcome {
	case task.Found:
		if s.best.Price.Text == "" || better(&a, &s.best) {
			s.best = a
		}
	case task.NotAsked:
		s.unasked = true
	case task.NoPrice:
	default:
		s.unanswered, s.failure = true, f
	}
	if s.left--; s.left > 0 {
		return
	}
	s.end()
}

// end answers the question. A partition that did not answer might hold a newer
// price than those that did.
func (s *spreading) end() {
	switch {
	case s.unanswered:
		s.c.mu.Lock()
		s.x.failure = s.failure
		s.c.mu.Unlock()
		s.c.finish(s.x, task.Answer{Outcome: task.Unanswered})
	case s.best.Price.Text != "":
		s.c.finish(s.x, s.best)
	case s.unasked:
		s.c.finish(s.x, task.Answer{Outcome: task.NotAsked})
	default:
		s.c.finish(s.x, task.Answer{Outcome: task.NoPrice})
	}
}

// better reports whether of two prices of one symbol a is to be taken: one in
// force before one that is not; of those in force the newest, of the others the
// oldest, as one table of both would have it; of equal ones that of the lower
// partition.
func better(a, b *task.Answer) bool {
	switch {
	case a.AsOf != b.AsOf:
		return a.AsOf
	case a.Price.EventTime == b.Price.EventTime:
		return a.Partition < b.Partition
	case a.AsOf:
		return a.Price.EventTime > b.Price.EventTime
	default:
		return a.Price.EventTime < b.Price.EventTime
	}
}
