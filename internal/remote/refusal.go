package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"joiner/internal/assign"
)

// refusal holds an address that has refused this pod: it takes no connection, or
// not this pod's certificate or token. Every question that is open would meet the
// same refusal, so one request at a time goes there to see, after pauses that
// grow, and the others wait for what it brings. It ends with an answer and with a
// new directory; a changed token or certificate is used by the next try, and is
// not waited for longer than that.
//
// A pod that does not answer in time is not held: it is there, and may have
// answered half of what it was asked.
type refusal struct {
	pause  time.Duration
	until  time.Time // before which nobody asks there
	trying bool      // a request is on its way, to see
}

// longestHold bounds the pauses. A question's patience has room for several.
func (c *Client) longestHold() time.Duration { return min(pauseLongest, c.o.Patience/4) }

// heldUntil says until when nobody asks at an address; false where questions may
// go into its queue. Called with mu held.
func (c *Client) heldUntil(address string) (time.Time, bool) {
	r := c.refusals[address]
	if r == nil || r.trying || !time.Now().Before(r.until) {
		return time.Time{}, false
	}
	return r.until, true
}

// mayAsk reports whether an owner may be sent a request now. What is queued for one
// that may not be for a while goes to rest; what is queued while another request is
// on its way to see waits for that one's end. Called with mu held.
func (c *Client) mayAsk(o *owner) bool {
	if until, held := c.heldUntil(o.address); held {
		c.restAll(o, until)
		return false
	}
	r := c.refusals[o.address]
	return r == nil || !r.trying
}

// begins notes a request to an address, and reports whether it is one to see
// whether it still refuses. Called with mu held.
func (c *Client) begins(address string) (probe bool) {
	r := c.refusals[address]
	if r != nil {
		r.trying = true
	}
	return r != nil
}

// learn takes what an attempt says of an address. Called with mu held.
func (c *Client) learn(address string, probe bool, err error) {
	r := c.refusals[address]
	switch {
	case !refused(err):
		delete(c.refusals, address)
		return
	case r == nil:
		r = &refusal{}
		c.refusals[address] = r
	case !probe:
		return // it was under way when another one was refused
	}
	r.trying = false
	r.pause = min(max(2*r.pause, pauseFirst), c.longestHold())
	r.until = time.Now().Add(jittered(r.pause))
}

// jittered is a pause, a fifth more or less.
func jittered(pause time.Duration) time.Duration {
	return pause + time.Duration((rand.Float64()-0.5)*0.4*float64(pause))
}

// tried has those go on who wait for what a request to an address brings. Called
// with mu held.
func (c *Client) tried(address string) {
	for _, o := range c.owners {
		if o.address == address {
			c.kick(o)
		}
	}
}

// restAll has everything that is queued for an owner wait. Called with mu held.
func (c *Client) restAll(o *owner, until time.Time) {
	queue := o.queue
	o.queue, o.bytes = nil, 0
	for _, x := range queue {
		if !x.over {
			c.rest(x, o.id, until)
		}
	}
}

// rest has a question wait until then, or until its patience ends. A leg ends: the
// next round asks again. Called with mu held.
func (c *Client) rest(x *question, owner string, until time.Time) {
	x.failure = Failure{Reason: Unreachable, Owner: owner}
	if x.leg != nil {
		f := x.failure
		c.due.remove(x)
		c.ended.Go(func() { c.giveUp(x, f) })
		return
	}
	if x.deadline.Before(until) {
		until = x.deadline
	}
	x.resting = true
	c.due.add(until, x, nil)
	if x.place == 1 {
		nudge(c.wake)
	}
}

// refused reports an attempt that the address as such has refused, whoever asks
// there for what.
func refused(err error) bool {
	var status statusError
	var failed *requestError
	switch {
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return false
	case errors.As(err, &status):
		return status.code/100 == 4 && status.code != http.StatusTooManyRequests
	}
	return errors.As(err, &failed) || errors.Is(err, errNotAllowed) || errors.Is(err, errNoAddress)
}

// requestError is a request that no answer began to come to.
type requestError struct{ err error }

// failedRequest takes what net/http puts around its errors away: the method and an
// address that everybody who reads them knows.
func failedRequest(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &requestError{err}
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

// lateError is an attempt that took longer than one may.
type lateError struct {
	after time.Duration
	err   error // what was cut short; nil where that says nothing
}

// late makes one of the error that the end of ctx brought.
func late(after time.Duration, err error) error {
	e := &lateError{after: after, err: err}
	if errors.Is(err, context.DeadlineExceeded) {
		e.err = nil
	}
	return e
}

func (e *lateError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("no answer within %v", e.after)
	}
	return fmt.Sprintf("no answer within %v: %v", e.after, e.err)
}

// Is makes it a deadline that was exceeded, whichever part was cut short.
func (e *lateError) Is(target error) bool { return target == context.DeadlineExceeded }

func (e *lateError) Unwrap() error { return e.err }

// note notes what an attempt says of a pod, of which one of the two is nil.
func (c *Client) note(to pod, resp *response, err error) {
	if resp != nil && resp.refusal != "" && !passing(resp.refusal) && resp.refusal != whyHops {
		err = foreignError(resp.refusal) // it speaks as a joiner does, and is none of this group's
	}
	var status statusError
	switch {
	case err == nil, errors.As(err, &status) && status.code == http.StatusTooManyRequests:
		c.away.Reached(to)
	case !errors.Is(err, errNotAsked) && c.ctx.Err() == nil:
		c.away.Missed(to, err)
	}
}

// foreignError is why a pod refuses all look-ups of this one.
type foreignError string

func (e foreignError) Error() string { return string(e) }

// Notes says which owners of the newest directory bring no answer to look-ups,
// since when and why, as far as somebody has asked within the last half minute: at
// most a handful of them one by one.
func (c *Client) Notes() []string {
	d := c.o.Group.Directory()
	return c.away.Tell(func(p pod, err error) string {
		if !named(d, p) {
			return ""
		}
		if p.address == "" {
			return fmt.Sprintf("look-ups: owner %s %s", p.id, does(err))
		}
		return fmt.Sprintf("look-ups: owner %s at %s %s", p.id, p.address, does(err))
	}, "owners bring no answer to look-ups")
}

// named reports whether a directory has the pod at that address.
func named(d *assign.Directory, p pod) bool {
	if d == nil {
		return false
	}
	for _, m := range d.Members {
		if m.ID == p.id && m.Address == p.address {
			return true
		}
	}
	return false
}

// does says what a pod does that brings no answer.
func does(err error) string {
	var status statusError
	var verification *tls.CertificateVerificationError
	var alert *net.OpError
	var foreign foreignError
	switch {
	case errors.As(err, &foreign):
		return "refuses this pod's look-ups"
	case errors.As(err, &status) && status.code == http.StatusUnauthorized:
		return "refuses this pod's token"
	case errors.As(err, &verification):
		return "shows a certificate that this pod does not take"
	case errors.As(err, &alert) && alert.Op == "remote error":
		return "refuses this pod's certificate or TLS"
	case errors.Is(err, errNotAllowed), errors.Is(err, errNoAddress), errors.Is(err, errUnadvertised):
		return "cannot be asked"
	}
	return "does not answer"
}

// unreachable tries a question again whose owner advertises no address.
func (c *Client) unreachable(x *question, owner string) {
	c.note(pod{id: owner}, nil, errUnadvertised)
	c.later(x, Failure{Reason: Unreachable, Owner: owner})
}

// errUnadvertised reports a member that no pod can ask.
var errUnadvertised = errors.New("it advertises no address")
