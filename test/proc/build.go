package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// raceVariable set to anything has the binary built with the race detector,
// which costs several times the CPU.
const raceVariable = "JOINER_E2E_RACE"

// Binary builds the joiner on its first call and returns its path.
var Binary = sync.OnceValues(func() (string, error) {
	dir := binaryDir()
	if dir == "" {
		return "", fmt.Errorf("no directory for the binary in %s", os.TempDir())
	}
	path := filepath.Join(dir, "joiner")
	return path, Build(path)
})

// Build builds the joiner there, with these arguments of `go build` more.
func Build(path string, more ...string) error {
	args := append([]string{"build", "-o", path}, more...)
	if os.Getenv(raceVariable) != "" {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "joiner/cmd/joiner")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the joiner: %w\n%s", err, out)
	}
	return nil
}

// binaryDir is made on its first call, and removed by CleanUp.
var binaryDir = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "joiner-e2e.")
	if err != nil {
		return ""
	}
	return dir
})

// CleanUp removes what Binary has built. TestMain calls it at the end.
func CleanUp() {
	if dir := binaryDir(); dir != "" {
		_ = os.RemoveAll(dir)
	}
}
