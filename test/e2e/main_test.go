package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// raceVariable set to anything has the binary built with the race detector,
// which costs several times the CPU.
const raceVariable = "JOINER_E2E_RACE"

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// sarama's meters have a goroutine for the life of the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		goleak.Cleanup(func(code int) {
			if dir := binaryDir(); dir != "" {
				_ = os.RemoveAll(dir)
			}
			os.Exit(code)
		}))
}

// joinerBinary builds the binary on its first call.
var joinerBinary = sync.OnceValues(func() (string, error) {
	dir := binaryDir()
	if dir == "" {
		return "", fmt.Errorf("no directory for the binary in %s", os.TempDir())
	}
	path := filepath.Join(dir, "joiner")
	args := []string{"build", "-o", path}
	if os.Getenv(raceVariable) != "" {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "joiner/cmd/joiner")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the joiner: %w\n%s", err, out)
	}
	return path, nil
})

// binaryDir is made on its first call, and removed by TestMain.
var binaryDir = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "joiner-e2e.")
	if err != nil {
		return ""
	}
	return dir
})
