package app

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/config"
	"joiner/internal/metrics"
	"joiner/internal/status"
)

// clogged is a log that nobody reads: whoever writes the line waits until the
// gate opens.
type clogged struct {
	zapcore.Core
	line string
	gate chan struct{}
}

func (c clogged) With(fields []zapcore.Field) zapcore.Core {
	return clogged{c.Core.With(fields), c.line, c.gate}
}

func (c clogged) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return ce.AddCore(e, c)
}

func (c clogged) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if strings.Contains(e.Message, c.line) {
		<-c.gate
	}
	return c.Core.Write(e, fields)
}

func (p *pod) livez() (code int, body string) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.Addr().String() + "/livez")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// One task is stuck in its own code: liveness, readiness, metrics, the view and
// the log name it, the others go on, and all of that ends with the stall.
func TestAStalledTaskIsNamed(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	gate := make(chan struct{})
	s := newStage(t, allTopics()...)
	s.log = zap.New(clogged{core, "becomes a dead letter", gate})
	p := s.start(func(c *config.Config) { c.Group.StallTimeout = 3 * time.Second })
	p.awaitReady()
	if code, body := p.livez(); code != http.StatusOK || body != "ok\n" {
		t.Fatalf("/livez %d %q", code, body)
	}
	symbol := "BBCA"
	stuck, well := (home(symbol)+1)%partitions, home(symbol)
	s.send("notifications", stuck, "X", `no JSON`, time.Now())
	await(t, func() string {
		if code, _ := p.livez(); code != http.StatusServiceUnavailable {
			return "alive, though a task is stuck"
		}
		return ""
	})
	_, body := p.livez()
	named := fmt.Sprintf("partition %d has stalled since ", stuck)
	if !strings.HasPrefix(body, named) || strings.Count(body, "has stalled") != 1 {
		t.Errorf("/livez says %q, want one line that begins with %q", body, named)
	}
	if r := p.Ready(); r.Ready || !strings.HasPrefix(strings.Join(r.Reasons, "\n"), named) {
		t.Errorf("ready: %t, reasons %q", r.Ready, r.Reasons)
	}
	await(t, func() string {
		if n := testutil.ToFloat64(p.metrics.Group.Tasks[metrics.Stalled]); n != 1 {
			return "joiner_tasks{state=\"stalled\"} is not 1"
		}
		return ""
	})
	if n := testutil.ToFloat64(p.metrics.Group.Tasks[metrics.Running]); n != partitions-1 {
		t.Errorf("%g tasks run", n)
	}
	for _, task := range p.standing().Part.Tasks {
		if is := task.State == status.StateStalled; is != (task.Partition == stuck) {
			t.Errorf("partition %d: %s", task.Partition, task.State)
		}
	}
	s.send("notifications", well, symbol, `{}`, time.Now())
	s.alerts("enriched-alerts", 1)

	close(gate)
	await(t, func() string {
		if code, body := p.livez(); code != http.StatusOK {
			return "still stalled: " + body
		}
		return ""
	})
	await(t, func() string {
		began, ended := logs.FilterMessageSnippet("stalled: ").All(), logs.FilterMessageSnippet("a stall has ended").All()
		if len(began) != 1 || began[0].Level != zapcore.ErrorLevel || len(ended) != 1 {
			return "not logged once at its beginning and once at its end"
		}
		return ""
	})
	p.awaitReady()
	http.DefaultClient.CloseIdleConnections()
}

// A topic that is missing, and outputs that wait for it, are no stall, for
// however many times the timeout.
func TestAMissingOutputTopicIsNoStall(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	s := newStage(t, topics("market-updates", "notifications", "enriched-alerts-dlq")...)
	s.log = zap.New(core)
	p := s.start(func(c *config.Config) { c.Group.StallTimeout, c.Shutdown.Timeout = 3*time.Second, 6*time.Second })
	await(t, func() string {
		if st := p.Member().Status(); len(st.Tasks) != partitions {
			return "not all tasks run"
		}
		return ""
	})
	s.send("notifications", home("BBCA"), "BBCA", `{}`, time.Now())
	time.Sleep(10 * time.Second)
	if all := p.Stalled(); len(all) > 0 {
		t.Error(all)
	}
	if all := logs.FilterMessageSnippet("stalled").All(); len(all) > 0 {
		t.Error(all)
	}
	if err := p.stop(); err == nil {
		t.Error("the notification had somewhere to go")
	}
	// The stop waits for the topic, and says so a second later: tasks give up after
	// half of its time.
	if all := logs.FilterMessageSnippet("still stopping").All(); len(all) == 0 || len(left(all[0])) != 1 {
		t.Errorf("the stop did not say what it waited for: %v", all)
	}
}

// left is what a line says is uncommitted.
func left(l observer.LoggedEntry) []any {
	all, _ := l.ContextMap()["uncommitted"].([]any)
	return all
}

// The group's loop and the questions for ends are watched, and have no work while
// all is well.
func TestWhatIsWatched(t *testing.T) {
	s := newStage(t, allTopics()...)
	p := s.start(nil)
	p.awaitReady()
	missing := map[string]bool{"group": true, "ends: leaders": true, "ends: answers": true, "committer": true, "member": false}
	for _, sample := range p.samples() {
		missing[sample.Part] = false
		if sample.Part == "group" && (sample.Work != "" || sample.Done == 0) {
			t.Errorf("the group: %+v", sample)
		}
	}
	for part, is := range missing {
		if is {
			t.Errorf("%s is not watched", part)
		}
	}
	if !p.member.Running() {
		t.Error("a member of a group is not running")
	}
}
