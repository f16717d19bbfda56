package stall

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each step is a look: what the part of partition 3 has to do and has done, and
// whether it has stalled then. Three looks at the same work undone are a stall.
func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name  string
		steps string // work:done, - without work, gone; ! where it has stalled then
		began int
		ended int
	}{
		{name: "idle", steps: "- - - - - - - -"},
		{name: "gone", steps: "gone gone gone gone gone"},
		{name: "busy", steps: "w:1 w:2 w:3 w:4 w:5 w:6 w:7"},
		{name: "slow, just in time", steps: "w:1 w:1 w:1 w:2 w:2 w:2 w:3"},
		{name: "stuck", steps: "w:1 w:1 w:1 w:1! w:1! w:1!", began: 1},
		{name: "stuck, the words change", steps: "a:1 b:1 c:1 d:1!", began: 1},
		{name: "stuck and waiting in turns", steps: "w:1 w:1 - w:1 w:1 - w:1 w:1 w:1 w:1!", began: 1},
		{name: "it goes on", steps: "w:1 w:1 w:1 w:1! w:2 w:2 w:2", began: 1, ended: 1},
		{name: "it has nothing to do any more", steps: "w:1 w:1 w:1 w:1! -", began: 1, ended: 1},
		{name: "its task is gone", steps: "w:1 w:1 w:1 w:1! gone gone", began: 1, ended: 1},
		{name: "twice", steps: "w:1 w:1 w:1 w:1! w:2 w:2 w:2 w:2! w:3", began: 2, ended: 2},
		{name: "counts that wrap", steps: "w:9 w:1 w:9 w:1 w:9 w:1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJudge(3)
			began, ended := 0, 0
			for i, step := range strings.Fields(test.steps) {
				want := strings.HasSuffix(step, "!")
				b, e := j.look(time.Now(), parse(t, strings.TrimSuffix(step, "!")))
				began, ended = began+len(b), ended+len(e)
				if got := len(j.stalls()) == 1; got != want {
					t.Fatalf("look %d, %s: stalled %t", i, step, got)
				}
			}
			if began != test.began || ended != test.ended {
				t.Errorf("%d began and %d ended, want %d and %d", began, ended, test.began, test.ended)
			}
		})
	}
}

func parse(t *testing.T, step string) []Sample {
	t.Helper()
	key := Key{Partition: 3, Part: "merge"}
	other := Sample{Key: Key{Partition: 4, Part: "merge"}}
	switch step {
	case "gone":
		return []Sample{other}
	case "-":
		return []Sample{{Key: key}, other}
	}
	work, done, _ := strings.Cut(step, ":")
	s := Sample{Key: key, Work: work}
	if _, err := fmt.Sscan(done, &s.Done); err != nil {
		t.Fatalf("step %q: %v", step, err)
	}
	return []Sample{s, other}
}

// subject is a part that a test moves.
type subject struct {
	mu   sync.Mutex
	work string
	done uint64
	hold time.Duration // how long the process stands still while it is looked at
	told []Stall
}

func (s *subject) set(work string, done uint64, hold time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work, s.done, s.hold = work, done, hold
}

func (s *subject) show() []Sample {
	s.mu.Lock()
	sample, hold := Sample{Key: Key{3, "merge"}, Work: s.work, Done: s.done}, s.hold
	s.mu.Unlock()
	time.Sleep(hold)
	return []Sample{sample}
}

func (s *subject) hear(all []Stall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = all
}

func (s *subject) heard() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

func start(t *testing.T, o Options) (*Watch, func()) {
	t.Helper()
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	return w, func() { cancel(); <-done }
}

func TestWatchNamesAStallOnceAndItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		s := &subject{work: "5 records wait to be merged", done: 7}
		w, stop := start(t, Options{Timeout: time.Minute, Samples: s.show, OnStalls: s.hear, Log: zap.New(core)})
		defer stop()
		began := time.Now()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if n := len(w.Stalls()); n > 0 {
			t.Fatalf("stalled after 59 s: %v", w.Stalls())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		all := w.Stalls()
		if len(all) != 1 || s.heard() != 1 || !Stalled(all, 3) || Stalled(all, 4) {
			t.Fatalf("%v after an hour, %d heard of", all, s.heard())
		}
		if late := all[0].Since.Sub(began); late > slowestLook {
			t.Errorf("since %v after its beginning", late)
		}
		for _, part := range []string{"partition 3", "5 records wait to be merged", all[0].Since.UTC().Format(time.RFC3339)} {
			if !strings.Contains(all[0].String(), part) {
				t.Errorf("%q does not name %q", all[0], part)
			}
		}
		s.set("4 records wait to be merged", 8, 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(w.Stalls()) > 0 || s.heard() > 0 {
			t.Errorf("still stalled: %v", w.Stalls())
		}
		levels := ""
		for _, l := range logs.All() {
			levels += l.Level.String() + " "
		}
		if levels != "error info " {
			t.Errorf("logged %q: %v", levels, logs.All())
		}
	})
}

// A process that stands still has no time to work in: a watch that was stopped
// with it must not count that. The subject holds the watch's goroutine up, which
// is what a stopped process looks like from within.
func TestASuspendedProcessHasNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &subject{work: "work", done: 7}
		w, stop := start(t, Options{Timeout: time.Minute, Samples: s.show})
		defer stop()
		time.Sleep(30 * time.Second)
		s.set("work", 7, 10*time.Minute)
		time.Sleep(10*time.Minute + 2*time.Second)
		s.set("work", 7, 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(w.Stalls()) > 0 {
			t.Fatalf("ten minutes of standing still count as a stall: %v", w.Stalls())
		}
		time.Sleep(10*time.Minute + time.Minute)
		synctest.Wait()
		if len(w.Stalls()) == 0 {
			t.Error("a part that stays stuck after that is never found")
		}
	})
}

func TestAStallOfThePodIsEveryTasks(t *testing.T) {
	all := []Stall{{Key: Key{Pod, "committer"}, Work: "a commit is under way", Since: time.Now()}}
	if !Stalled(all, 0) || !Stalled(all, 17) {
		t.Error("tasks go on while the pod has stalled")
	}
	if s := all[0].String(); !strings.HasPrefix(s, "the pod has stalled since ") {
		t.Error(s)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {Timeout: time.Second}, {Timeout: -1, Samples: func() []Sample { return nil }}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
