package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"joiner/internal/absence"
	"joiner/internal/metrics"
	"joiner/internal/sampled"
	"joiner/internal/task"
)

// ClientOptions says what a Client is made of. Fields without a remark are
// required.
type ClientOptions struct {
	Group Group
	// Timeout bounds one attempt, Patience all of them for one question, and for
	// all that were begun together. An owner waits for join.max_idle before it
	// answers from the end of its partition: the patience must be the longer.
	Timeout, Patience time.Duration
	// TLS makes the configuration of the next connection to a host; nil:
	// nothing is encrypted. It must verify the other side.
	TLS func(host string) (*tls.Config, error)
	// Token is shown with every request; nil: none. It needs TLS.
	Token *Tokens
	// AllowedNames are the hosts that may be dialled; empty: all. Allows
	// says what an entry may be.
	AllowedNames []string
	Metrics      *metrics.Remote
	Log          *zap.Logger
}

// What is under way at most.
const (
	maxPerOwner = 4  // requests to one owner
	maxFlight   = 64 // requests in all
)

// linger is how long a question waits for company while its owner has another
// request to answer.
const linger = 5 * time.Millisecond

// The pauses between two tries of one question: they double, with a jitter of a
// fifth. What a rebalance or a restore sets off is over soon.
const (
	pauseFirst   = 50 * time.Millisecond
	pauseSettled = 400 * time.Millisecond // the longest after moved and restoring
	pauseLongest = time.Second            // and after everything else
)

// Client asks the owners of prices. Make it with NewClient, close it after
// everybody who asks.
type Client struct {
	o      ClientOptions
	tr     *transport
	faults *sampled.Log
	away   *absence.Roll[pod]
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1
	news   chan struct{} // capacity 1: the directory has changed
	ended  sync.WaitGroup

	mu     sync.Mutex
	due    agenda
	owners map[target]*owner
	held   []*owner // those that may send and wait for others' requests to end, in turn
	flight int
	// refusals are of addresses that have refused the last request.
	refusals map[string]*refusal
	// spreads are the questions for every owner that wait for a round, in turn, and
	// legs the partitions that are being asked for others of them.
	spreads []*spreading
	legs    int
	legRoom int // maxLegs
	closed  bool
}

// NewClient makes a client and starts the goroutine that asks again. Its errors
// name the key of the configuration.
func NewClient(o ClientOptions) (*Client, error) {
	if o.Token != nil && o.TLS == nil {
		return nil, errors.New("peer.token: a token without TLS would cross the network in the clear")
	}
	allowed, err := newNames(o.AllowedNames)
	if err != nil {
		return nil, fmt.Errorf("peer.allowed_names: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{
		o: o, tr: newTransport(&o, allowed), faults: sampled.New(o.Log, nil), ctx: ctx, cancel: cancel,
		wake: make(chan struct{}, 1), news: make(chan struct{}, 1), owners: make(map[target]*owner), legRoom: maxLegs,
		refusals: make(map[string]*refusal), away: absence.NewRoll[pod](time.Now),
	}
	c.ended.Go(c.run)
	return c, nil
}

// Close ends every request. Questions that are still open end Unanswered; ask
// nothing any more.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true // nothing is begun from here on
	c.mu.Unlock()
	c.cancel()
	c.ended.Wait()
	c.mu.Lock()
	var left []*question
	for _, item := range c.due.items {
		if x := item.question; x != nil {
			x.place = 0
			left = append(left, x)
		}
	}
	for _, o := range c.owners {
		left = append(left, o.queue...)
	}
	c.due, c.owners, c.held, c.spreads = agenda{}, nil, nil, nil
	c.mu.Unlock()
	for _, x := range left {
		c.finish(x, task.Answer{Outcome: task.Unanswered})
	}
	c.tr.close()
}

// DirectoryChanged makes questions that wait for another try go at once. It
// never blocks and takes no lock, so it may be called under anybody's.
func (c *Client) DirectoryChanged() { nudge(c.news) }

func nudge(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// Scope says whom a question may go to.
type Scope bool

// The scopes.
const (
	ThisPod    Scope = false // other pods' partitions are NotAsked
	Everywhere Scope = true
)

// Ask looks a price up, in this pod's own tables where they hold the partition,
// else at its owner. done is called once, from any goroutine, possibly before
// Ask returns: with Found, NoPrice, NotAsked, or Unanswered once the patience
// is over, which is counted from q.Begun. After ctx has ended it may not be
// called.
//
// AnyPartition asks all but q.Except. Of several prices the one in force with
// the newest event time is taken, of equal ones that of the lowest partition;
// where none is in force at q.At, the oldest. Nobody may be missing: as long as
// one owner has not answered it might hold a newer price.
func (c *Client) Ask(ctx context.Context, q task.Query, scope Scope, done func(task.Answer)) {
	now := time.Now()
	if q.Since.IsZero() {
		q.Since = now
	}
	if q.Begun.IsZero() {
		q.Begun = now
	}
	c.route(&question{
		ctx: ctx, q: q, scope: scope, deadline: q.Begun.Add(c.o.Patience),
		done: func(a task.Answer, _ Failure) { done(a) },
	})
}

// Failure says why a question stayed unanswered.
type Failure struct {
	Reason string // one of the reasons below, "" where it was answered
	Owner  string // identity of the owner that was asked last, if any
}

// The reasons of a Failure.
const (
	NoDirectory   = "no directory"       // nobody has told who owns what
	NoOwner       = "no owner"           // nobody owns the partition now
	Moving        = "moved"              // the owner that was asked is none any more
	NoCoordinator = "silent coordinator" // it does not know whether it still is one
	Restoring     = "restoring"          // it reads back its prices
	TimedOut      = "timeout"            // it did not answer in time
	Overloaded    = "overload"           // it has too much to do
	Unreachable   = "unreachable owner"
)

// Newest looks up the newest price of a symbol in one partition, or with
// AnyPartition in all of them, as the owner's table stands. It returns when
// there is an answer, or with Unanswered and why when ctx ends.
func (c *Client) Newest(ctx context.Context, partition int32, symbol []byte) (task.Answer, Failure) {
	deadline, ok := ctx.Deadline()
	if !ok || time.Until(deadline) > c.o.Patience {
		deadline = time.Now().Add(c.o.Patience)
	}
	type result struct {
		a task.Answer
		f Failure
	}
	got := make(chan result, 1)
	x := &question{
		ctx: ctx, now: true, scope: Everywhere, deadline: deadline,
		q:    task.Query{Symbol: string(symbol), Partition: partition, Except: task.AnyPartition},
		done: func(a task.Answer, f Failure) { got <- result{a, f} },
	}
	c.route(x)
	select {
	case r := <-got:
		return r.a, r.f
	case <-ctx.Done():
		c.mu.Lock()
		f := x.failure
		c.mu.Unlock()
		if f.Reason == "" {
			f.Reason = TimedOut
		}
		return task.Answer{Outcome: task.Unanswered}, f
	}
}

// Status writes to w what the pod at address says of itself, as far as w takes
// it.
func (c *Client) Status(ctx context.Context, address string, w io.Writer) error {
	return c.tr.copy(ctx, http.MethodGet, address, statusPath, nil, w)
}

// question is one key on its way. Where it is, is known by who holds it: the
// agenda, an owner's queue, a request, or a table of this pod.
type question struct {
	ctx      context.Context
	q        task.Query
	now      bool
	scope    Scope
	deadline time.Time
	done     func(task.Answer, Failure)
	spread   *spreading // with AnyPartition
	leg      *spreading // whose one partition this asks, once; it has no done

	// Guarded by Client.mu.
	failure Failure // of the last try
	pause   time.Duration
	resting bool // it is in the agenda to be tried again, not for its end alone
	tries   int  // in this pod's own tables: late answers to earlier ones are dropped
	behind  bool // the owner is there, and could not answer in time
	over    bool // done has been called
	place   int  // in the agenda; 0: not in it
}

// route sends a question to whom it belongs now.
func (c *Client) route(x *question) {
	if x.ctx.Err() != nil {
		c.forget(x)
		return
	}
	if !time.Now().Before(x.deadline) {
		c.finish(x, task.Answer{Outcome: task.Unanswered})
		return
	}
	if x.q.Partition == task.AnyPartition {
		c.spread(x)
		return
	}
	g := c.o.Group
	if g.Owns(x.q.Partition) {
		c.askHere(x)
		return
	}
	if x.scope == ThisPod {
		c.finish(x, task.Answer{Outcome: task.NotAsked})
		return
	}
	if n := g.Partitions(); n > 0 && x.q.Partition >= n {
		c.finish(x, task.Answer{Outcome: task.NoPrice}) // the notifications have more
		return
	}
	s, ok := g.Standing()
	d := g.Directory()
	if !ok || d == nil || d.Truncated {
		c.later(x, Failure{Reason: NoDirectory})
		return
	}
	owner, ok := d.Owner(s.Topic, x.q.Partition)
	switch {
	case !ok && x.now && !slices.Contains(d.Moving[s.Topic], x.q.Partition):
		// Nobody is to read it before the topics have grown alike, which a user need
		// not wait for.
		c.giveUp(x, Failure{Reason: NoOwner})
	case !ok || owner.ID == s.Self: // nobody's yet, or on its way, to another pod or to this one
		c.later(x, Failure{Reason: NoOwner})
	case owner.Address == "":
		c.unreachable(x, owner.ID)
	default:
		c.enqueue(target{pod: pod{owner.ID, owner.Address}, generation: d.Generation}, x)
	}
}

// askHere asks a table of this pod. It may take until the patience ends.
//
// What a merge answers is what the log says, whoever owns the partition by now, and
// whoever asks for a notification here joins others with its own table meanwhile: no
// proof that the coordinator still knows this pod is asked for. The newest price is
// whatever the table has got to, so it takes a pod that is sure to be the owner.
func (c *Client) askHere(x *question) {
	g := c.o.Group
	s, ok := g.Standing()
	table := g.Table(x.q.Partition)
	switch {
	case !ok || table == nil:
		c.later(x, Failure{Reason: Restoring, Owner: s.Self})
		return
	case x.now && !g.Alive():
		c.later(x, Failure{Reason: NoCoordinator, Owner: s.Self})
		return
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.finish(x, task.Answer{Outcome: task.Unanswered})
		return
	}
	x.tries++
	try := x.tries
	x.resting = false
	ctx := x.ctx
	if x.leg != nil && !x.now {
		var until time.Time
		if ctx, until = x.leg.here(); until.Before(x.deadline) {
			x.deadline = until
		}
		x.behind, x.failure = true, Failure{Reason: TimedOut, Owner: s.Self} // unless it answers
	}
	c.due.add(x.deadline, x, nil)
	c.mu.Unlock()
	if x.now {
		c.answeredHere(x, try, table.Newest([]byte(x.q.Symbol)), s.Self)
		return
	}
	nudge(c.wake)
	ticket := table.Lookup(ctx, x.q, func(a task.Answer) { c.answeredHere(x, try, a, s.Self) })
	if x.leg == nil {
		return // it is not asked again before the table has answered
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !x.over {
		x.q.Ticket = ticket
	}
}

// answeredHere takes the answer of a table of this pod.
func (c *Client) answeredHere(x *question, try int, a task.Answer, self string) {
	c.mu.Lock()
	if x.over || try != x.tries {
		c.mu.Unlock()
		return
	}
	x.tries++
	c.due.remove(x)
	c.mu.Unlock()
	switch a.Outcome {
	case task.Found, task.NoPrice:
		c.finish(x, a)
	case task.Unready:
		c.later(x, Failure{Reason: Restoring, Owner: self})
	case task.Busy:
		c.later(x, Failure{Reason: Overloaded, Owner: self})
	case task.Moved:
		c.later(x, Failure{Reason: Moving, Owner: self})
	default: // its ctx has ended
		if x.leg != nil {
			c.finish(x, a)
		}
	}
}

// later tries again after a pause, or ends the question with its patience. A leg
// is not tried again by itself.
func (c *Client) later(x *question, f Failure) {
	c.mu.Lock()
	if c.closed || x.leg != nil {
		c.mu.Unlock()
		c.giveUp(x, f)
		return
	}
	if x.over {
		c.mu.Unlock()
		return // its patience ended meanwhile
	}
	x.failure = f
	longest := pauseLongest
	switch f.Reason {
	case Moving, Restoring, NoOwner, NoCoordinator:
		longest = pauseSettled
	}
	x.pause = min(max(2*x.pause, pauseFirst), longest)
	x.resting = true
	c.due.add(c.again(x, time.Now(), jittered(x.pause)), x, nil)
	c.mu.Unlock()
	nudge(c.wake)
}

// giveUp ends a question without an answer.
func (c *Client) giveUp(x *question, f Failure) {
	c.mu.Lock()
	if !x.over {
		x.failure = f
	}
	c.mu.Unlock()
	c.finish(x, task.Answer{Outcome: task.Unanswered})
}

// again says when a question is asked again after a pause. The last try leaves
// time for an answer: one at the deadline would be none.
func (c *Client) again(x *question, now time.Time, pause time.Duration) time.Time {
	at, last := now.Add(pause), x.deadline.Add(-c.o.Timeout)
	switch {
	case !at.After(last):
		return at
	case last.After(now):
		return last
	}
	return x.deadline
}

// finish ends a question, once.
func (c *Client) finish(x *question, a task.Answer) {
	c.mu.Lock()
	if x.over {
		c.mu.Unlock()
		return
	}
	x.over = true
	c.due.remove(x)
	c.freeLeg(x)
	f := Failure{}
	if a.Outcome == task.Unanswered {
		f = x.failure
		if f.Reason == "" {
			f.Reason = TimedOut // it came to no try
		}
	}
	c.mu.Unlock()
	if x.leg != nil {
		x.leg.take(x, a, f)
		return
	}
	x.done(a, f)
}

// forget drops a question that nobody waits for any more.
func (c *Client) forget(x *question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.over {
		return
	}
	x.over = true
	c.due.remove(x)
	c.freeLeg(x)
}

// freeLeg gives what a leg holds to the next. Called with mu held, once for each.
func (c *Client) freeLeg(x *question) {
	if x.leg == nil {
		return
	}
	c.legs--
	if len(c.spreads) > 0 && c.fits(c.spreads[0]) {
		nudge(c.wake)
	}
}

// run asks again when it is time, and starts what has lingered.
func (c *Client) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c.mu.Lock()
		next, some := c.due.next()
		c.mu.Unlock()
		if !some {
			next = time.Now().Add(time.Hour)
		}
		timer.Reset(time.Until(next))
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		case <-c.news:
			c.mu.Lock()
			c.due.hurry()
			clear(c.refusals)
			c.mu.Unlock()
		}
		c.work()
		c.rounds()
	}
}

// work does what is due.
func (c *Client) work() {
	for {
		c.mu.Lock()
		item, ok := c.due.pop(time.Now())
		if ok && item.owner != nil {
			item.owner.timed = false
			c.kick(item.owner)
		}
		c.mu.Unlock()
		if !ok {
			return
		}
		if item.question != nil {
			c.route(item.question)
		}
	}
}
