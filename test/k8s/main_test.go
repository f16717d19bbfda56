package k8s

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"joiner/test/proc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// sarama's meters have a goroutine for the life of the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		goleak.Cleanup(func(code int) {
			proc.CleanUp()
			os.Exit(code)
		}))
}
