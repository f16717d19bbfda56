package kafka

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// conns dials for one client and remembers what it dialled. What it hands out
// is encrypted and authenticated as Options.Access says.
//
// sarama holds a broker's lock from a request to its response, so Broker.Close
// waits for the response too: to interrupt a request, the connection itself
// has to be closed underneath, which sarama then reports to the request's
// caller. What is remembered and closed is the TCP connection also where TLS
// runs over it, since closing TLS says goodbye first, and waits for that.
// Connections are handed out as they are, because sarama looks for *net.TCPConn,
// within *tls.Conn too, to see whether one is broken; but for those to the
// coordinator, which the lease watches, and whose heartbeats find out as soon.
type conns struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	access *Access                 // nil: neither TLS nor SASL
	watch  func(net.Conn) *watched // sees what passes, unencrypted; nil: nobody does
	ctx    context.Context         // ends with shut
	cancel context.CancelFunc

	mu   sync.Mutex
	open []connection
}

// connection is one that was dialled.
type connection struct {
	net.Conn        // the one underneath
	broker   string // host:port
	due      time.Time
	watched  *watched // nil: nobody sees what passes
}

// newConns makes a dialer whose connections notice within about dead that the
// other end is gone without a word: by keep-alive where nothing is under way,
// by the limit on unacknowledged data where a request is (keep-alive is silent
// then; TCP itself would try for a quarter of an hour).
func newConns(o Options) *conns {
	dead := max(time.Second, o.SessionTimeout/2)
	ctx, cancel := context.WithCancel(context.Background())
	c := &conns{dial: o.Dial, access: o.Access, ctx: ctx, cancel: cancel}
	if c.dial == nil {
		d := &net.Dialer{
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: dead / 2, Interval: max(time.Second, dead/6), Count: 3},
			Control:         limitUnacknowledged(dead),
		}
		c.dial = d.DialContext
	}
	return c
}

// Dial implements the dialer that sarama asks for.
func (c *conns) Dial(network, address string) (net.Conn, error) {
	if err := c.access.held(address); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	conn, err := c.dial(ctx, network, address)
	cancel()
	if err != nil {
		c.access.forget(address)
		if c.ctx.Err() == nil { // else we are closing
			c.access.missed(address, err)
		}
		return nil, err
	}
	c.access.reached(address)
	if !c.keep(connection{Conn: conn, broker: address}) {
		return nil, net.ErrClosed
	}
	ctx, cancel = context.WithTimeout(c.ctx, secureTimeout)
	defer cancel()
	secured, lifetime, err := c.access.secure(ctx, conn, address)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if c.watch == nil {
		c.expect(conn, lifetime, nil)
		return secured, nil
	}
	w := c.watch(secured)
	c.expect(conn, lifetime, w)
	return w, nil
}

// keep remembers the connection, or closes it where all are.
func (c *conns) keep(conn connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		_ = conn.Close()
		return false
	}
	c.open = append(slices.DeleteFunc(c.open, func(c connection) bool { return isClosed(c.Conn) }), conn)
	return true
}

// expect says how long the broker lets the connection live; 0 is without limit.
func (c *conns) expect(conn net.Conn, lifetime time.Duration, w *watched) {
	if lifetime <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.open {
		if c.open[i].Conn == conn {
			// Not all at once, as other clients do.
			c.open[i].due = time.Now().Add(time.Duration(float64(lifetime) * (0.85 + 0.1*rand.Float64())))
			c.open[i].watched = w
		}
	}
}

// overdue returns the connections whose sessions are about to end, once each:
// one that carries a join only when that is over.
func (c *conns) overdue(now time.Time) (due []connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, conn := range c.open {
		if !conn.due.IsZero() && !now.Before(conn.due) && !isClosed(conn.Conn) && !conn.watched.joining() {
			due = append(due, conn)
			c.open[i].due = time.Time{}
		}
	}
	return due
}

// isClosed tells whether this end has closed conn.
func isClosed(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	return raw.Control(func(uintptr) {}) != nil
}

// interrupt closes every connection; later ones are dialled as before.
func (c *conns) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		_ = conn.Close()
	}
	c.open = nil
}

// shut interrupts and refuses to dial from now on.
func (c *conns) shut() {
	c.cancel()
	c.interrupt()
}
