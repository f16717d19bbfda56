package checkpoint

import (
	"testing"

	"go.uber.org/goleak"
)

// What a store that was given up still had to do is held for good.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("joiner/internal/checkpoint.park"))
}
