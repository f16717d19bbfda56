package checkpoint

import (
	"testing"

	"go.uber.org/goleak"
)

// What a store that was given up still had to do is held for good, and with it
// whoever waits for that inside of the store, or for the store.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("joiner/internal/checkpoint.park"),
		goleak.IgnoreAnyFunction("joiner/internal/checkpoint.(*store).apart.func1"),
		goleak.IgnoreTopFunction("github.com/cockroachdb/pebble/v2.(*ConcurrencyLimitScheduler).periodicGranter"),
		goleak.IgnoreTopFunction("github.com/cockroachdb/pebble/v2.(*cleanupManager).mainLoop"),
		goleak.IgnoreTopFunction("github.com/cockroachdb/pebble/v2/internal/genericcache.(*shard[...]).releaseLoop"),
	)
}
