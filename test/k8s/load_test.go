package k8s

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"joiner/test/proc"
)

// loaded is what `joiner load` prints, as far as tests look at it.
type loaded struct {
	Notifications, Alerts, Missing int64
	Latency                        struct{ P50, P99, Max float64 } `json:"latency_ms"` // milliseconds
}

func (l loaded) String() string {
	return fmt.Sprintf("%.0f ms (median), %.0f ms (p99), %.0f ms (most)", l.Latency.P50, l.Latency.P99, l.Latency.Max)
}

// pace are the arguments of the load that figures are taken under.
func pace() []string {
	return []string{"--rate", "50", "--ticks-per-notification", "3", "--symbols", "300"}
}

// load is `joiner load` on the host, under way.
type load struct {
	r      *release
	cmd    *exec.Cmd
	out    bytes.Buffer
	errs   bytes.Buffer
	ended  bool
	waited chan error
}

// load begins to produce, with these arguments.
func (r *release) load(args ...string) *load {
	r.t.Helper()
	l := &load{r: r, waited: make(chan error, 1)}
	l.cmd = exec.Command(r.joiner, append([]string{"load", "--output", "json", "--wait", "2m"}, args...)...)
	l.cmd.Dir = r.t.TempDir() // where no config.yaml lies
	l.cmd.Env = proc.Environment(r.settings)
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.errs
	l.cmd.SysProcAttr = proc.DieWithTest()
	l.cmd.WaitDelay = 10 * time.Second
	if err := l.cmd.Start(); err != nil {
		r.t.Fatalf("joiner load: %v", err)
	}
	go func() { l.waited <- l.cmd.Wait() }()
	r.t.Cleanup(func() {
		if !l.ended {
			_ = l.cmd.Process.Kill()
			err := <-l.waited
			r.t.Logf("joiner load is killed: %v", err)
		}
	})
	return l
}

// end stops the producing and returns once every notification has its alert.
func (l *load) end() loaded {
	l.r.t.Helper()
	_ = l.cmd.Process.Signal(os.Interrupt) // one that counts may have ended by itself
	return l.wait()
}

// wait waits for one that ends by itself.
func (l *load) wait() (result loaded) {
	l.r.t.Helper()
	select {
	case err := <-l.waited:
		l.ended = true
		if err != nil {
			l.r.t.Fatalf("joiner load: %v\n%s%s", err, l.out.String(), l.errs.String())
		}
	case <-time.After(patience):
		_ = l.cmd.Process.Signal(syscall.SIGKILL)
		l.r.t.Fatalf("joiner load has not ended:\n%s", l.errs.String())
	}
	if err := json.Unmarshal(l.out.Bytes(), &result); err != nil {
		l.r.t.Fatalf("joiner load: %v: %s", err, l.out.String())
	}
	if result.Missing != 0 || result.Notifications == 0 {
		l.r.t.Errorf("joiner load: %+v", result)
	}
	return result
}

// audited is what `joiner audit` prints, as far as tests look at it.
type audited struct {
	Notifications, Alerts, Lost, Doubled, Wrong int64
	OutOfOrder                                  int64 `json:"out_of_order"`
	Missed, Unavailable, Foreign, Revised       int64
	Examples                                    []map[string]any
}

// audit runs `joiner audit` on the host over all that lies in the topics, with
// the rules that these settings give (nil: the default's).
func (r *release) audit(settings map[string]string) (result audited, code int) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), r.joiner, "audit", "--output", "json", "--examples", "3")
	cmd.Dir = r.t.TempDir()
	all := make(map[string]string)
	for _, more := range []map[string]string{r.settings, settings} {
		for key, value := range more {
			all[key] = value
		}
	}
	cmd.Env = proc.Environment(all)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1 || len(out) == 0) {
		if failed != nil {
			r.t.Fatalf("joiner audit: %v\n%s", err, failed.Stderr)
		}
		r.t.Fatalf("joiner audit: %v", err)
	}
	if err := json.Unmarshal(out, &result); err != nil {
		r.t.Fatalf("joiner audit: %v: %s", err, out)
	}
	return result, cmd.ProcessState.ExitCode()
}

// sound fails the test unless nothing is lost and nothing is wrong; under
// exactly_once nothing may be doubled either.
func (r *release) sound(guarantee string) {
	r.t.Helper()
	a, code := r.audit(map[string]string{"delivery.guarantee": guarantee})
	r.t.Logf("figure: audit under %s: exit code %d, %d notifications, %d alerts, %d lost, %d wrong, %d doubled, %d out of order, %d foreign",
		guarantee, code, a.Notifications, a.Alerts, a.Lost, a.Wrong, a.Doubled, a.OutOfOrder, a.Foreign)
	if a.Lost != 0 || a.Wrong != 0 || a.Foreign != 0 || a.Notifications == 0 || (guarantee == exactlyOnce && code != 0) {
		r.t.Errorf("joiner audit: %+v", a)
	}
}

const (
	exactlyOnce = "exactly_once"
	atLeastOnce = "at_least_once"
)
