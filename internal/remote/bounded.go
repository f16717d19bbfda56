package remote

import (
	"net"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"joiner/internal/sampled"
)

// bounded is a listener with at most so many open connections: one more is
// closed at once, so that peers that only connect cannot take the descriptors
// that the pod's connections to Kafka need.
type bounded struct {
	net.Listener
	most   int64
	open   atomic.Int64
	faults *sampled.Log
}

// Accept implements net.Listener.
func (l *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &counted{Conn: conn, left: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		l.faults.Warn("connections", "too many connections from other pods, one more was closed",
			zap.Int64("open", l.most), zap.Stringer("from", conn.RemoteAddr()))
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
