//go:build !linux

package kafka

import (
	"syscall"
	"time"
)

// limitUnacknowledged does nothing here: Net.ReadTimeout is the limit.
func limitUnacknowledged(time.Duration) func(network, address string, c syscall.RawConn) error {
	return nil
}
