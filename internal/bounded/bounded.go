// Package bounded keeps a listener from having more than so many open connections:
// whoever only connects cannot take the descriptors that the process needs for its
// connections to Kafka, its state and its logs.
//
// It must never wait for a connection to end: one more is closed at once.
package bounded

import (
	"net"
	"sync"
	"sync/atomic"
)

// Connections is how many a listener of the service has at most: a group of a
// thousand pods has four with each.
const Connections = 4096

// listener is a listener with at most so many open connections.
type listener struct {
	net.Listener
	most int64
	open atomic.Int64
	full func(from net.Addr)
}

// Listener is inner with at most so many open connections, above 0. One more is
// accepted and closed, and full, which must not block, hears whose it was.
func Listener(inner net.Listener, most int, full func(from net.Addr)) net.Listener {
	return &listener{Listener: inner, most: int64(most), full: full}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &counted{Conn: conn, left: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		l.full(conn.RemoteAddr())
		_ = conn.Close()
	}
}

// counted is a connection of a bounded listener.
type counted struct {
	net.Conn
	left func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.left()
	return c.Conn.Close()
}
