package remote

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/task"
)

// target is whom a batch of questions goes to: a pod that owns what is asked
// for in that generation, as somebody says.
type target struct {
	pod
	generation int32
	hops       int32 // hints followed to it
}

// owner gathers the questions for one target. Guarded by Client.mu.
type owner struct {
	target
	queue  []*question
	bytes  int
	since  time.Time // when the oldest of the queue came
	flight int       // requests under way
	timed  bool      // it is in the agenda
	held   bool      // it is in Client.held
}

// enqueue puts a question among those for the target. The agenda holds it for
// its end: nobody else sees to that while it waits for a request.
func (c *Client) enqueue(to target, x *question) {
	size := questionOverhead + len(x.q.Symbol)
	if size+headBytes > MaxBytes {
		c.later(x, Failure{Reason: Unreachable, Owner: to.id}) // no request holds it
		return
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.finish(x, task.Answer{Outcome: task.Unanswered})
		return
	}
	defer c.mu.Unlock()
	if x.over {
		return // its patience ended meanwhile
	}
	if until, held := c.heldUntil(to.address); held {
		c.rest(x, to.id, until)
		return
	}
	o := c.owners[to]
	if o == nil {
		o = &owner{target: to}
		c.owners[to] = o
	}
	if len(o.queue) == 0 {
		o.since = time.Now()
	}
	x.failure.Owner = to.id
	x.resting = false
	c.due.add(x.deadline, x, nil)
	o.queue = append(o.queue, x)
	o.bytes += size
	c.kick(o)
	if x.place == 1 {
		nudge(c.wake) // it is the first to end
	}
}

// kick sends what may be sent: at once to an owner who has nothing to do, else
// what has lingered or fills a request. Called with mu held.
func (c *Client) kick(o *owner) {
	for len(o.queue) > 0 && o.flight < maxPerOwner && !c.closed && c.mayAsk(o) {
		full := len(o.queue) >= MaxKeys || o.bytes >= MaxBytes/2
		ripe := o.since.Add(linger)
		if o.flight > 0 && !full && time.Now().Before(ripe) {
			if !o.timed {
				o.timed = true
				c.due.add(ripe, nil, o)
				nudge(c.wake)
			}
			return
		}
		if c.flight >= maxFlight {
			c.hold(o)
			return
		}
		batch := c.batch(o)
		if len(batch) == 0 {
			continue
		}
		o.flight++
		c.flight++
		probe := c.begins(o.address)
		c.ended.Go(func() { c.post(o, batch, probe) })
	}
	if len(o.queue) == 0 && o.flight == 0 && !o.timed && !o.held {
		delete(c.owners, o.target)
	}
}

// hold lets an owner wait for its turn to send. Called with mu held.
func (c *Client) hold(o *owner) {
	if o.held {
		return
	}
	o.held = true
	c.held = append(c.held, o)
}

// nextTurns lets owners send what they could not while as many requests as may
// be were under way, in the order in which they came to wait. Called with mu
// held.
func (c *Client) nextTurns() {
	for len(c.held) > 0 && c.flight < maxFlight {
		o := c.held[0]
		c.held[0] = nil
		c.held = c.held[1:]
		o.held = false
		c.kick(o)
	}
}

// batch takes questions out of the queue, as many as one request holds. Those
// that nobody waits for are dropped.
func (c *Client) batch(o *owner) []*question {
	var batch []*question
	bytes, n := headBytes, 0
	for _, x := range o.queue {
		size := questionOverhead + len(x.q.Symbol)
		if len(batch) == MaxKeys || bytes+size > MaxBytes {
			break
		}
		n++
		o.bytes -= size
		c.due.remove(x)
		if x.over {
			continue
		}
		if x.ctx.Err() != nil {
			x.over = true // nobody waits for it any more
			c.freeLeg(x)
			continue
		}
		bytes += size
		batch = append(batch, x)
	}
	o.queue = append(o.queue[:0:0], o.queue[n:]...)
	return batch
}

// margin is the part of an attempt that is left for the way back.
const margin = 8

// post asks and deals the answers out. It is one attempt; probe says that the address
// has refused the last one.
func (c *Client) post(o *owner, batch []*question, probe bool) {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.Timeout)
	resp, err := c.exchange(ctx, o.target, batch)
	if err != nil && ctx.Err() != nil {
		err = late(c.o.Timeout, err) // whichever part of it was cut short
	}
	cancel()
	c.note(o.pod, resp, err)
	c.mu.Lock()
	c.learn(o.address, probe, err) // first: who is to try again would at once
	c.mu.Unlock()
	if err != nil {
		c.failed(o, batch, err)
	} else {
		c.dealOut(o, batch, resp)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o.flight--
	c.flight--
	c.nextTurns() // those who waited first, or an owner with a queue would keep its requests
	c.kick(o)
	if probe {
		c.tried(o.address)
	}
}

func (c *Client) exchange(ctx context.Context, to target, batch []*question) (*response, error) {
	s, ok := c.o.Group.Standing()
	if !ok {
		return nil, errNotAsked
	}
	r := request{
		scope: s.scope(), to: to.id, asker: s.Self, hops: to.hops,
		budget: c.o.Timeout - max(c.o.Timeout/margin, time.Millisecond),
		asked:  make([]asked, len(batch)),
	}
	r.generation = to.generation
	for i, x := range batch {
		r.asked[i] = asked{partition: x.q.Partition, now: x.now, at: x.q.At, symbol: x.q.Symbol, ticket: x.q.Ticket}
		if !x.q.Since.IsZero() {
			r.asked[i].age = min(max(time.Since(x.q.Since), 0), maxAge)
		}
	}
	body := r.encode()
	if len(body) > MaxBytes {
		return nil, errors.New("the request is too large")
	}
	var resp *response
	err := c.tr.do(ctx, http.MethodPost, to.address, lookupPath, body, maxResponse, func(data []byte) (err error) {
		resp, err = decodeResponse(data, r.asked)
		return err
	})
	return resp, err
}

// errNotAsked reports a pod that has left its group since, and asks nobody.
var errNotAsked = errors.New("this pod has no assignment")

// failed counts an attempt that brought no answer and has its questions asked
// again.
func (c *Client) failed(o *owner, batch []*question, err error) {
	if c.ctx.Err() != nil {
		c.abandon(batch)
		return
	}
	outcome, reason := metrics.LookupError, Unreachable
	var status statusError
	switch {
	case errors.As(err, &status) && status.code == http.StatusTooManyRequests:
		outcome, reason = metrics.LookupOverload, Overloaded
	case errors.Is(err, context.DeadlineExceeded):
		outcome, reason = metrics.LookupTimeout, TimedOut
	}
	n := 0
	for _, x := range batch {
		if !x.now && !errors.Is(err, errNotAsked) {
			n++
		}
	}
	c.count(outcome, n)
	c.faults.Warn("look-up "+reason, "a look-up brought no answer, asking again",
		zap.String("owner", o.id), zap.String("address", o.address), zap.Int("keys", len(batch)), zap.Error(err))
	for _, x := range batch {
		c.later(x, Failure{Reason: reason, Owner: o.id})
	}
}

// abandon ends questions at Close.
func (c *Client) abandon(batch []*question) {
	for _, x := range batch {
		c.finish(x, task.Answer{Outcome: task.Unanswered})
	}
}

func (c *Client) dealOut(o *owner, batch []*question, resp *response) {
	if resp.refusal != "" && !passing(resp.refusal) {
		c.faults.Warn("look-up refused", "a look-up was refused, asking the owner that the newest directory names",
			zap.String("owner", o.id), zap.String("address", o.address), zap.String("answered_by", resp.answerer),
			zap.Int32("generation", o.generation), zap.String("reason", resp.refusal))
	}
	var counts [metrics.LookupOutcomes]int
	for i, x := range batch {
		if !x.now {
			counts[outcomeOf(&resp.replies[i])]++
		}
	}
	for outcome, n := range counts { // first: what is answered has been counted
		c.count(metrics.LookupOutcome(outcome), n)
	}
	for i, x := range batch {
		c.deal(o, x, &resp.replies[i], resp.refusal)
	}
}

// count counts attempts for joins, each key by itself. The newest prices that users
// ask for are none.
func (c *Client) count(outcome metrics.LookupOutcome, n int) {
	if n > 0 {
		c.o.Metrics.Lookups[outcome].Add(float64(n))
	}
}

func outcomeOf(r *reply) metrics.LookupOutcome {
	switch r.outcome {
	case outFound:
		return metrics.LookupHit
	case outNoPrice:
		return metrics.LookupMiss
	case outMoved:
		return metrics.LookupMoved
	case outRestoring:
		return metrics.LookupRestoring
	case outTimeout:
		return metrics.LookupTimeout
	case outOverload:
		return metrics.LookupOverload
	}
	return metrics.LookupError
}

// deal takes one answer.
func (c *Client) deal(o *owner, x *question, r *reply, refusal string) {
	switch r.outcome {
	case outFound:
		c.finish(x, task.Answer{
			Outcome: task.Found, AsOf: r.asOf, Partition: r.partition, Next: r.next, Known: true,
			Price: record.Price{Text: r.text, EventTime: r.eventTime, Partition: r.partition, Offset: r.offset},
		})
	case outNoPrice:
		c.finish(x, task.Answer{Outcome: task.NoPrice, Partition: r.partition, Next: r.next, Known: true, Held: r.held})
	case outMoved:
		c.moved(o, x, r, refusal)
	case outRestoring:
		c.later(x, Failure{Reason: Restoring, Owner: o.id})
	case outTimeout:
		// The owner is there and is behind the question: it has held it for the
		// whole attempt, which was pause enough.
		c.rested(x, r.ticket)
		c.later(x, Failure{Reason: TimedOut, Owner: o.id})
	case outOverload:
		c.later(x, Failure{Reason: Overloaded, Owner: o.id})
	default:
		c.later(x, Failure{Reason: Unreachable, Owner: o.id})
	}
}

// rested makes the next pause of a question the shortest again, and keeps what
// makes the next attempt go on where this one ended.
func (c *Client) rested(x *question, ticket task.Ticket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.pause = 0
	x.behind = true
	if ticket != (task.Ticket{}) {
		x.q.Ticket = ticket
	}
}

// moved follows the hint to an owner that is as new as the one that was asked,
// a few times; else the newest directory is asked after a pause.
func (c *Client) moved(o *owner, x *question, r *reply, refusal string) {
	s, ok := c.o.Group.Standing()
	to := target{pod: r.owner, generation: r.since, hops: o.hops + 1}
	if !ok || r.owner.address == "" || r.owner.id == s.Self || to.hops > MaxHops || r.since < o.generation || !time.Now().Before(x.deadline) {
		f := Failure{Reason: Moving, Owner: o.id}
		if refusal == whySilence {
			f.Reason = NoCoordinator
		}
		c.later(x, f)
		return
	}
	c.enqueue(to, x)
}
