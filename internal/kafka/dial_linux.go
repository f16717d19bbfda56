package kafka

import (
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of linux/tcp.h (RFC 5482), in
// milliseconds, which the syscall package lacks.
const tcpUserTimeout = 0x12

// limitUnacknowledged closes a connection whose data the other end has not
// acknowledged for d. Best effort: without it, Net.ReadTimeout is the limit.
func limitUnacknowledged(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
		})
	}
}
