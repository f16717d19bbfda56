package e2e

import (
	"syscall"
	"testing"

	"joiner/test/proc"
)

const patience = proc.Patience

// Settings are configuration keys with their values: {"log.level": "debug"}.
type Settings map[string]string

// What a process says of itself.
type (
	Line      = proc.Line
	Readiness = proc.Readiness
	Metrics   = proc.Metrics
	Sample    = proc.Sample
)

// Proc is a `joiner run` process.
type Proc struct {
	*proc.Proc
	t testing.TB
}

// Start runs the joiner with these settings and returns at once, as proc.Start
// does.
func Start(t testing.TB, name string, settings Settings) *Proc {
	t.Helper()
	return StartIn(t, name, t.TempDir(), settings) // where no config.yaml lies
}

// StartIn is Start in a directory, whose config.yaml is read where there is one.
func StartIn(t testing.TB, name, dir string, settings Settings) *Proc {
	t.Helper()
	return &Proc{proc.Start(t, name, dir, settings), t}
}

func environment(settings Settings) []string { return proc.Environment(settings) }

func joinerBinary() (string, error) { return proc.Binary() }

// await polls until check returns nil; the last error is shown where it never
// does.
func await(t testing.TB, what string, check func() error) {
	t.Helper()
	proc.Await(t, what, check)
}

// Pods are processes of one group.
type Pods []*Proc

// WaitReady waits until all are ready at once.
func (pods Pods) WaitReady() {
	if len(pods) == 0 {
		return
	}
	pods[0].t.Helper()
	for _, p := range pods {
		p.WaitReady()
	}
	// The last one's joining may have unsettled the first.
	for _, p := range pods {
		p.WaitReady()
	}
}

// Metrics scrapes all of them into one.
func (pods Pods) Metrics() Metrics {
	var all Metrics
	for _, p := range pods {
		p.t.Helper()
		all = append(all, p.Metrics()...)
	}
	return all
}

// Stop asks all to stop at once and fails the test where one does not end
// cleanly.
func (pods Pods) Stop() {
	for _, p := range pods {
		p.t.Helper()
		p.Signal(syscall.SIGTERM)
	}
	for _, p := range pods {
		if code := p.Wait(); code != 0 {
			p.t.Errorf("%s ended with %d after SIGTERM", p.Name, code)
		}
	}
}
