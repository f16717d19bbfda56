// Package proc runs the joiner as people run it, as processes of the binary, for
// tests: signals, logs, probes and metrics.
//
// It must never reach into the service: whatever a test learns of a process here,
// an operator could learn.
package proc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience is for what takes seconds on a machine that is not busy: it is there
// against hanging only.
const Patience = 3 * time.Minute

// logsVariable names a directory in which the whole logs of all processes are
// kept, for people who look for a fault; where the test fails, each with the
// metrics and the stacks behind it.
const logsVariable = "JOINER_E2E_LOGS"

// Proc is a `joiner run` process.
type Proc struct {
	Name string

	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
	code int           // valid then; -1 where a signal ended it
	http http.Client

	mu      sync.Mutex
	lines   [][]byte
	address string        // of the probes
	listens chan struct{} // closed once address is known
}

// Start runs the joiner with these settings, configuration keys with their
// values, and returns at once. The directory is where a config.yaml may lie. It is
// killed when the test ends; where the test has failed by then, the end of its
// log is shown.
func Start(t testing.TB, name, dir string, settings map[string]string) *Proc {
	t.Helper()
	binary, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	return StartBinary(t, binary, name, dir, settings)
}

// StartBinary is Start of another build.
func StartBinary(t testing.TB, binary, name, dir string, settings map[string]string) *Proc {
	t.Helper()
	p := &Proc{
		Name: name, t: t,
		done: make(chan struct{}), listens: make(chan struct{}),
		http: http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	p.cmd = exec.Command(binary, "run")
	p.cmd.Dir = dir
	p.cmd.Env = Environment(settings)
	p.cmd.SysProcAttr = DieWithTest()
	p.cmd.WaitDelay = 10 * time.Second
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.readLog(stderr)
	}()
	go func() {
		<-read // Wait closes the pipe: not before all of it has been read
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	t.Cleanup(p.cleanUp)
	return p
}

// Environment is this process's own without what would configure the joiner,
// and the settings on top.
func Environment(settings map[string]string) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "JOINER_") })
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		name := "JOINER_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
		env = append(env, name+"="+settings[key])
	}
	return env
}

func (p *Proc) cleanUp() {
	if _, ended := p.Ended(); !ended && p.t.Failed() && os.Getenv(logsVariable) != "" {
		p.showState()
	}
	p.Kill()
	if p.t.Failed() {
		p.t.Logf("%s ended with %d; the end of its log:\n%s", p.Name, p.code, p.Tail(60))
	}
	if dir := os.Getenv(logsVariable); dir != "" {
		name := strings.ReplaceAll(p.t.Name(), "/", "_") + "." + p.Name + ".log"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(p.Tail(0)), 0o600); err != nil {
			p.t.Log(err)
		}
	}
}

// showState puts the metrics and the stacks of all goroutines behind the log.
func (p *Proc) showState() {
	if _, body, err := p.Get("/metrics"); err == nil {
		p.mu.Lock()
		p.lines = append(p.lines, body)
		p.mu.Unlock()
	}
	p.Signal(syscall.SIGQUIT)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
	}
}

func (p *Proc) readLog(r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			p.keep(line)
		}
		if err != nil {
			return
		}
	}
}

func (p *Proc) keep(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
	if p.address != "" || !bytes.Contains(line, []byte(`"listening"`)) {
		return
	}
	var l Line
	if json.Unmarshal(line, &l) == nil && l.Msg() == "listening" && l.Text("http") != "" {
		p.address = l.Text("http")
		close(p.listens)
	}
}

// Tail returns the last n lines of the log, all of them for 0.
func (p *Proc) Tail(n int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := p.lines
	if n > 0 && len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}

// Lines returns the log so far as it was written.
func (p *Proc) Lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	texts := make([]string, len(p.lines))
	for i, line := range p.lines {
		texts[i] = string(line)
	}
	return texts
}

// Line is a line of the log.
type Line map[string]any

// Msg is the line's message.
func (l Line) Msg() string { return l.Text("msg") }

// Text returns a field that is text, "" where there is none.
func (l Line) Text(field string) string {
	s, _ := l[field].(string)
	return s
}

// Number returns a field that is a number, -1 where there is none.
func (l Line) Number(field string) int64 {
	f, ok := l[field].(float64)
	if !ok {
		return -1
	}
	return int64(f)
}

// Time is when the line was written.
func (l Line) Time() time.Time {
	at, _ := time.Parse(time.RFC3339Nano, l.Text("time"))
	return at
}

// Logs returns the log so far. A line that is no JSON object fails the test, but
// for the message that a process with exit code 1 or 2 leaves for people, which
// may have several.
func (p *Proc) Logs() []Line {
	p.t.Helper()
	p.mu.Lock()
	raw := slices.Clone(p.lines)
	p.mu.Unlock()
	lines := make([]Line, 0, len(raw))
	for _, text := range raw {
		var l Line
		if err := json.Unmarshal(text, &l); err == nil {
			lines = append(lines, l)
			continue
		}
		if bytes.HasPrefix(text, []byte("joiner: ")) {
			break
		}
		p.t.Errorf("%s logged a line that is not JSON: %s", p.Name, text)
	}
	return lines
}

// Logged returns the lines with this message.
func (p *Proc) Logged(msg string) []Line {
	p.t.Helper()
	return slices.DeleteFunc(p.Logs(), func(l Line) bool { return l.Msg() != msg })
}

// LogContains reports whether the text stands anywhere in the log.
func (p *Proc) LogContains(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.lines, func(line []byte) bool { return bytes.Contains(line, []byte(text)) })
}

// Claims counts the lines with this message ("claim begins", "claim ends") by
// topic/partition.
func (p *Proc) Claims(msg string) map[string]int {
	p.t.Helper()
	counts := make(map[string]int)
	for _, l := range p.Logged(msg) {
		counts[fmt.Sprintf("%s/%d", l.Text("topic"), l.Number("partition"))]++
	}
	return counts
}

// Ended reports whether the process has ended, and how; the code is -1 where a
// signal ended it.
func (p *Proc) Ended() (code int, ended bool) {
	select {
	case <-p.done:
		return p.code, true
	default:
		return 0, false
	}
}

// Wait waits for the process to end by itself and returns its exit code.
func (p *Proc) Wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(Patience):
		p.t.Fatalf("%s has not ended after %v", p.Name, Patience)
	}
	return p.code
}

// Signal sends it a signal.
func (p *Proc) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("signalling %s: %v", p.Name, err)
	}
}

// Stop asks it to stop, as Kubernetes does, and returns its exit code.
func (p *Proc) Stop() int {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait()
}

// Kill ends it at once and returns when it is gone.
func (p *Proc) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

// Address is where its probes listen.
func (p *Proc) Address() string {
	p.t.Helper()
	if address := p.Listening(); address != "" {
		return address // also of one that has ended since
	}
	select {
	case <-p.listens:
	case <-p.done:
		p.t.Fatalf("%s ended with %d before it listened", p.Name, p.code)
	case <-time.After(Patience):
		p.t.Fatalf("%s does not listen after %v", p.Name, Patience)
	}
	return p.Listening()
}

// Listening is where its probes listen, "" while it does not yet.
func (p *Proc) Listening() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// Do sends a request to its HTTP server.
func (p *Proc) Do(request *http.Request) (*http.Response, error) { return p.http.Do(request) }

// Get asks its HTTP server.
func (p *Proc) Get(path string) (status int, body []byte, err error) {
	p.t.Helper()
	resp, err := p.http.Get("http://" + p.Address() + path)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: reading %s: %w", p.Name, path, err)
	}
	return resp.StatusCode, body, nil
}

// Readiness is what /readyz says.
type Readiness struct {
	Ready     bool     `json:"ready"`
	Assigned  bool     `json:"assigned"`
	Restoring bool     `json:"restoring"`
	CaughtUp  bool     `json:"caught_up"`
	Reasons   []string `json:"reasons"`
	Notes     []string `json:"notes"`
}

// Readiness asks /readyz. The status must say the same as the body.
func (p *Proc) Readiness() Readiness {
	p.t.Helper()
	status, body, err := p.Get("/readyz")
	if err != nil {
		p.t.Fatal(err)
	}
	var r Readiness
	if err := json.Unmarshal(body, &r); err != nil {
		p.t.Fatalf("%s: /readyz: %v: %s", p.Name, err, body)
	}
	if r.Ready != (status == http.StatusOK) {
		p.t.Fatalf("%s: /readyz answers %d and says %s", p.Name, status, body)
	}
	return r
}

// WaitReady waits until it is ready.
func (p *Proc) WaitReady() {
	p.t.Helper()
	Await(p.t, p.Name+" to be ready", func() error {
		if code, ended := p.Ended(); ended {
			p.t.Fatalf("%s ended with %d before it was ready", p.Name, code)
		}
		if r := p.Readiness(); !r.Ready {
			return fmt.Errorf("not ready: %s", strings.Join(r.Reasons, "; "))
		}
		return nil
	})
}

// Metrics scrapes the process.
func (p *Proc) Metrics() Metrics {
	p.t.Helper()
	status, body, err := p.Get("/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	if status != http.StatusOK {
		p.t.Fatalf("%s: /metrics answers %d: %s", p.Name, status, body)
	}
	m, err := ParseMetrics(body)
	if err != nil {
		p.t.Fatalf("%s: /metrics: %v", p.Name, err)
	}
	return m
}

// Await polls until check returns nil; the last error is shown where it never
// does.
func Await(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s: %v", Patience, what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
