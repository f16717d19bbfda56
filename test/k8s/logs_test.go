package k8s

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"joiner/test/proc"
)

// line is a line of a pod's log.
type line struct {
	pod string
	proc.Line
}

// logs are those of pods, followed: what a pod says at its end cannot be asked
// for when it is gone.
type logs struct {
	r *release

	mu    sync.Mutex
	lines []line
}

// follow reads the logs of these pods from their starts, each until its container
// ends.
func (r *release) follow(pods []pod) *logs {
	r.t.Helper()
	l := &logs{r: r}
	for _, p := range pods {
		l.add(p)
	}
	return l
}

func (l *logs) add(p pod) {
	l.r.t.Helper()
	cmd := exec.Command("kubectl", "--namespace", l.r.name, "logs", "--follow", p.name())
	cmd.SysProcAttr = proc.DieWithTest()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		l.r.t.Fatalf("following %s: %v", p.name(), err)
	}
	ended := make(chan struct{}) // each its own: the others go on
	go func() {
		defer close(ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			l.keep(p.name(), s.Bytes())
		}
		_ = cmd.Wait()
	}()
	l.r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
}

func (l *logs) keep(pod string, text []byte) {
	one := line{pod: pod}
	if json.Unmarshal(text, &one.Line) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, one)
}

// said returns the lines with this message from a time on.
func (l *logs) said(msg string, from time.Time) (found []line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.lines {
		if one.Msg() == msg && !one.Time().Before(from) {
			found = append(found, one)
		}
	}
	return found
}

// said returns the lines with this message of the pod's log up to now.
func (r *release) said(p pod, msg string) (found []line) {
	r.t.Helper()
	for text := range bytes.Lines([]byte(r.kubectl("logs", p.name()))) {
		one := line{pod: p.name()}
		if json.Unmarshal(text, &one.Line) == nil && one.Msg() == msg {
			found = append(found, one)
		}
	}
	return found
}

// handover is how long tasks of pods that went were nobody's: the longest of
// each.
type handover struct {
	tasks                     int
	sinceSignal, sinceRelease time.Duration
}

// handovers looks at every claim that a pod gave back since then and at who took
// it up. The pods of names in gone must have given back all that they had.
func (l *logs) handovers(from time.Time, gone []pod) (h handover, err error) {
	begins := l.said("claim begins", from)
	for _, g := range gone {
		signals := l.said("stopping", from)
		var signal time.Time
		for _, s := range signals {
			if s.pod == g.name() {
				signal = s.Time()
			}
		}
		if signal.IsZero() {
			return h, fmt.Errorf("%s has not said that it stops", g.name())
		}
		for _, end := range l.said("claim ends", from) {
			if end.pod != g.name() || end.Time().Before(signal) {
				continue
			}
			next, ok := taken(begins, end)
			if !ok {
				return h, fmt.Errorf("%s/%d, which %s had, has no new owner", end.Text("topic"), end.Number("partition"), g.name())
			}
			h.tasks++
			h.sinceSignal = max(h.sinceSignal, next.Sub(signal))
			h.sinceRelease = max(h.sinceRelease, next.Sub(end.Time()))
		}
	}
	return h, nil
}

// taken is when the claim that ended was first taken up by another pod.
func taken(begins []line, end line) (at time.Time, ok bool) {
	for _, b := range begins {
		if b.pod == end.pod || b.Text("topic") != end.Text("topic") || b.Number("partition") != end.Number("partition") {
			continue
		}
		if b.Time().After(end.Time()) && (!ok || b.Time().Before(at)) {
			at, ok = b.Time(), true
		}
	}
	return at, ok
}
