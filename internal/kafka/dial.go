package kafka

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// conns dials for one client and remembers what it dialled.
//
// sarama holds a broker's lock from a request to its response, so Broker.Close
// waits for the response too: to interrupt a request, the connection itself
// has to be closed underneath, which sarama then reports to the request's
// caller. Connections are handed out as they are, not wrapped, because sarama
// looks for *net.TCPConn to see whether one is broken; but for those to the
// coordinator, which the lease watches, and whose heartbeats find out as soon.
type conns struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	watch  func(net.Conn) net.Conn // looks at what passes; nil: nobody does
	ctx    context.Context         // ends with shut
	cancel context.CancelFunc

	mu   sync.Mutex
	open []net.Conn
}

// newConns makes a dialer whose connections notice within about dead that the
// other end is gone without a word: by keep-alive where nothing is under way,
// by the limit on unacknowledged data where a request is (keep-alive is silent
// then; TCP itself would try for a quarter of an hour).
func newConns(o Options) *conns {
	dead := max(time.Second, o.SessionTimeout/2)
	ctx, cancel := context.WithCancel(context.Background())
	c := &conns{dial: o.Dial, ctx: ctx, cancel: cancel}
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
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	if c.watch != nil {
		conn = c.watch(conn)
	}
	c.open = append(slices.DeleteFunc(c.open, isClosed), conn)
	return conn, nil
}

// isClosed tells whether this end has closed conn.
func isClosed(conn net.Conn) bool {
	if w, ok := conn.(*watched); ok {
		conn = w.Conn
	}
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
