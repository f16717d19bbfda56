package faults

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"joiner/test/proc"
)

// What a run is made of; `make test-faults` passes these on.
var (
	flagSeed      = flag.Uint64("seed", seedOfEnvironment(), "seed of the faults (default: FAULT_SEED, else a new one)")
	flagRounds    = flag.Int("rounds", 1, "rounds of faults under each guarantee")
	flagGuarantee = flag.String("guarantee", "", "at_least_once or exactly_once; empty is both, and what else there is")
	flagRate      = flag.Int("rate", 500, "notifications a second")
	flagTotal     = flag.Int64("total", 0, "notifications that a run has at least: after the rounds the load goes on until then")
	flagTicks     = flag.Int("ticks", 1, "ticks for each notification")
	flagRound     = flag.Duration("round", 20*time.Second, "over how long the faults of a round begin")
)

func seedOfEnvironment() uint64 {
	if seed, err := strconv.ParseUint(os.Getenv("FAULT_SEED"), 10, 64); err == nil {
		return seed
	}
	return uint64(time.Now().UnixNano() % 1_000_000_000)
}

func TestMain(m *testing.M) {
	// Some of toxiproxy's toxics do not write to the logger that it was given.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	goleak.VerifyTestMain(m,
		// sarama's meters have a goroutine for the life of the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// A link of toxiproxy whose one end is gone waits for ever with what it had
		// for it, be it in a toxic, before it or behind it.
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).write"),
		goleak.Cleanup(func(code int) {
			proc.CleanUp()
			os.Exit(code)
		}))
}
