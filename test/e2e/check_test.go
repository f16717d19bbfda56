package e2e

import (
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
)

// finding is one of `joiner check`.
type finding struct {
	ID, Status, Subject, Message, Remedy string
}

// Check runs `joiner check` with the world's settings and returns its findings.
func (w *World) Check() []finding {
	w.t.Helper()
	binary, err := joinerBinary()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), binary, "check", "-o", "json")
	cmd.Dir = w.t.TempDir() // where no config.yaml lies
	cmd.Env = environment(w.Settings)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1) { // 1: there are failures
		if failed != nil {
			w.t.Fatalf("joiner check: %v\n%s", err, failed.Stderr)
		}
		w.t.Fatalf("joiner check: %v", err)
	}
	var report struct{ Findings []finding }
	if err := json.Unmarshal(out, &report); err != nil {
		w.t.Fatalf("joiner check: %v: %s", err, out)
	}
	return report.Findings
}

// findingOf returns the one with this id about this subject.
func findingOf(findings []finding, id, subject string) (finding, bool) {
	i := slices.IndexFunc(findings, func(f finding) bool { return f.ID == id && f.Subject == subject })
	if i < 0 {
		return finding{}, false
	}
	return findings[i], true
}
