package remote

import (
	"context"
	"sync"
	"time"

	"joiner/internal/task"
)

// maxLegs is how many partitions may be asked at once for questions that every
// owner is asked; one takes some 300 bytes.
const maxLegs = 1 << 16

// spreading is a question that goes to every partition that may hold the symbol's
// price. It goes in rounds: each asks the partitions that have not answered yet,
// once. So what waits for an owner that cannot answer is one question with a bit a
// partition, and not a question a partition; and what has its turn gives it back
// soon, to others that an owner may wait for before it can answer.
//
// Between rounds it belongs to whoever has the question.
type spreading struct {
	c *Client
	x *question

	mu      sync.Mutex
	open    []uint64 // a bit for each partition that has not answered
	left    int      // how many these are
	best    task.Answer
	unasked bool
	tickets map[int32]task.Ticket // of open ones whose owner was behind

	// The round's.
	legs    int     // that have not ended
	failed  int     // that ended without an answer
	behind  int     // of these: the owner is there, and could not answer in time
	failure Failure // the last one's
	ctx     context.Context
	cancel  context.CancelFunc // nil: nothing is asked in this pod
}

func newSpreading(c *Client, x *question, partitions int32) *spreading {
	s := &spreading{c: c, x: x, open: make([]uint64, (partitions+63)/64)}
	for p := range partitions {
		if p != x.q.Except {
			s.open[p/64] |= 1 << (p % 64)
			s.left++
		}
	}
	return s
}

// spread has a question that every owner is asked wait for its next round. It does
// no more than that: it is called under the lock of the table that asks.
func (c *Client) spread(x *question) {
	if x.spread == nil {
		n := c.o.Group.Partitions()
		if n == 0 {
			c.later(x, Failure{Reason: NoDirectory})
			return
		}
		x.spread = newSpreading(c, x, n)
	}
	if x.spread.left == 0 {
		c.finish(x, task.Answer{Outcome: task.NoPrice}) // there is no other
		return
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.finish(x, task.Answer{Outcome: task.Unanswered})
		return
	}
	defer c.mu.Unlock()
	c.due.add(x.deadline, x, nil)
	x.resting = false
	c.spreads = append(c.spreads, x.spread)
	nudge(c.wake)
}

// rounds begins the rounds of those that wait, in the order in which they came to,
// as far as there are legs for them. Called by run alone.
func (c *Client) rounds() {
	for {
		s := c.nextRound()
		switch {
		case s == nil:
			return
		case s.x.now:
			c.ended.Go(s.round) // tables are read at once, and may be locked
		default:
			s.round()
		}
	}
}

// fits reports whether there are legs for a round. One that needs more than there
// are takes all. Called with mu held.
func (c *Client) fits(s *spreading) bool { return c.legs == 0 || c.legs+s.left <= c.legRoom }

// nextRound takes the next question whose turn it is, and the legs that it needs.
func (c *Client) nextRound() *spreading {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.spreads) > 0 && !c.closed {
		s := c.spreads[0]
		wanted := !s.x.over && s.x.ctx.Err() == nil
		if wanted && !c.fits(s) {
			return nil // the leg whose end makes room for it wakes the client
		}
		c.spreads[0] = nil
		c.spreads = c.spreads[1:]
		c.due.remove(s.x)
		if wanted {
			c.legs += s.left
			return s
		}
	}
	return nil
}

// round asks every partition that is open.
func (s *spreading) round() {
	x := s.x
	s.legs, s.failed, s.behind = s.left, 0, 0
	legs := make([]*question, 0, s.left)
	for p := range int32(64 * len(s.open)) {
		if s.open[p/64]&(1<<(p%64)) == 0 {
			continue
		}
		leg := &question{ctx: x.ctx, q: x.q, now: x.now, scope: x.scope, deadline: x.deadline, leg: s}
		leg.q.Partition, leg.q.Ticket = p, s.tickets[p]
		legs = append(legs, leg)
	}
	for _, leg := range legs {
		s.c.route(leg)
	}
}

// here is what a table of this pod is asked with in this round: it gets as long as
// another pod, and then a ticket for the next. Called while the round begins.
func (s *spreading) here() (ctx context.Context, until time.Time) {
	if s.cancel == nil {
		s.ctx, s.cancel = context.WithTimeout(s.x.ctx, s.c.o.Timeout)
	}
	until, _ = s.ctx.Deadline()
	return s.ctx, until
}

// take takes one partition's answer; the last one ends the round.
func (s *spreading) take(leg *question, a task.Answer, f Failure) {
	if s.note(leg, a, f) {
		s.ended()
	}
}

// note notes an answer, and reports whether it is the round's last.
func (s *spreading) note(leg *question, a task.Answer, f Failure) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.legs--
	p := leg.q.Partition
	switch a.Outcome {
	case task.Found:
		if s.best.Price.Text == "" || better(&a, &s.best) {
			s.best = a
		}
	case task.NotAsked:
		s.unasked = true
	case task.NoPrice:
	default:
		s.failed++
		s.failure = f
		if leg.behind && f.Reason == TimedOut {
			s.behind++
			s.keep(p, leg.q.Ticket)
		}
		return s.legs == 0
	}
	s.open[p/64] &^= 1 << (p % 64)
	s.left--
	delete(s.tickets, p)
	return s.legs == 0
}

func (s *spreading) keep(p int32, ticket task.Ticket) {
	if ticket == (task.Ticket{}) {
		return
	}
	if s.tickets == nil {
		s.tickets = make(map[int32]task.Ticket)
	}
	s.tickets[p] = ticket
}

// ended ends a round: with the answer where everybody has answered, else for
// another after a pause.
func (s *spreading) ended() {
	if s.cancel != nil {
		s.cancel()
		s.ctx, s.cancel = nil, nil
	}
	if s.left == 0 {
		s.c.finish(s.x, s.answer())
		return
	}
	if s.behind == s.failed {
		s.c.rested(s.x, task.Ticket{})
	}
	s.c.later(s.x, s.failure)
}

// answer is what all partitions together have said. As long as one has not, it
// might hold a newer price than those that have.
func (s *spreading) answer() task.Answer {
	switch {
	case s.best.Price.Text != "":
		return s.best
	case s.unasked:
		return task.Answer{Outcome: task.NotAsked}
	}
	return task.Answer{Outcome: task.NoPrice}
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
