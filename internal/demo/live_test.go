package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"joiner/internal/app"
)

// lines hands each line to a function.
type lines struct {
	mu   sync.Mutex
	all  []string
	hear func(line string)
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := strings.TrimSuffix(string(b), "\n")
	l.all = append(l.all, line)
	if l.hear != nil {
		l.hear(line)
	}
	return len(b), nil
}

// A group of real joiners grows to its most and shrinks again, its page answers
// all the while, and no alert is missing at the end.
func TestLive(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := false
	out := &lines{hear: func(line string) {
		left = left || strings.HasSuffix(line, " leaves")
		if left && strings.Contains(line, "settled") {
			cancel()
		}
		if url, ok := strings.CutPrefix(line, "status page: "); ok {
			resp, err := http.Get(url)
			if err != nil {
				t.Error(err)
				return
			}
			defer http.DefaultClient.CloseIdleConnections()
			defer resp.Body.Close()
			if page, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(page), "<title>joiner</title>") {
				t.Errorf("%s: %v", page, err)
			}
		}
	}}
	log := zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel))
	const patience = 5 * time.Minute // against hanging
	err := Live(ctx, LiveOptions{
		NewPod: LiveJoiners(app.Build{Version: "test"}, log), Listen: "127.0.0.1:0",
		Every: 100 * time.Millisecond, Rate: 50, Out: out, Patience: patience, Grace: patience,
	})
	if err != nil {
		t.Fatal(err, out.all)
	}
	all := strings.Join(out.all, "\n")
	for _, want := range []string{"m3 joins: http://", "m6 joins: http://", "m2 leaves", " 0 missing"} {
		if !strings.Contains(all, want) {
			t.Errorf("no line says %q", want)
		}
	}
	if strings.Contains(all, "m7") {
		t.Error("it never stops growing")
	}
	owned := regexp.MustCompile(`m\d+((?: \d)+)`)
	for _, line := range out.all {
		_, state, ok := strings.Cut(line, "settled after ")
		if !ok {
			continue
		}
		_, state, _ = strings.Cut(state, ": ")
		state, _, _ = strings.Cut(state, ";")
		var partitions []string
		for _, m := range owned.FindAllStringSubmatch(state, -1) {
			partitions = append(partitions, strings.Fields(m[1])...)
		}
		slices.Sort(partitions)
		if got := strings.Join(partitions, ""); got != "012345" {
			t.Errorf("partitions %s: %s", got, line)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
}

// stuck is a pod that listens and never gets ready.
type stuck struct{ holder }

func (stuck) Page() string { return "http://x/" }

// What goes wrong ends the live demo, by name, and all that was started is
// stopped.
func TestLiveFails(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		pod  func(n int) (LivePod, error)
		want string
	}{
		{"no start", func(n int) (LivePod, error) {
			if n == 2 {
				return nil, broken
			}
			return stuck{holder{status: func() Status { return Status{} }}}, nil
		}, "start m2: broken"},
		{"never ready", func(int) (LivePod, error) {
			return stuck{holder{status: func() Status { return Status{Reasons: []string{"asleep"}} }}}, nil
		}, "has not settled (m1: asleep)"},
		{"ended", func(int) (LivePod, error) {
			return stuck{holder{status: func() Status { return Status{Ended: true, Reasons: []string{"it has ended: broken"}} }}}, nil
		}, "m1: it has ended: broken"},
		{"no stop", func(int) (LivePod, error) {
			return stuck{holder{status: func() Status { return Status{} }, stopped: broken}}, nil
		}, "stop m1: broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			err := Live(t.Context(), LiveOptions{
				NewPod: func(context.Context, PodOptions) (LivePod, error) { n++; return c.pod(n) },
				Every:  time.Hour, Rate: 1, Patience: 50 * time.Millisecond, Out: io.Discard,
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Stopped before anything has happened, it ends without an error.
func TestLiveEndsEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &lines{hear: func(string) { cancel() }}
	err := Live(ctx, LiveOptions{
		NewPod: func(context.Context, PodOptions) (LivePod, error) {
			return stuck{holder{status: func() Status { return Status{Reasons: []string{"asleep"}} }}}, nil
		},
		Every: time.Hour, Rate: 1, Out: out,
	})
	if err != nil || len(out.all) != 1 {
		t.Errorf("%v %s", err, fmt.Sprint(out.all))
	}
}

// A load that ended because of the demo's end is no fault, whichever of the two
// is seen first.
func TestLiveEndsWithItsLoad(t *testing.T) {
	broken, signal := errors.New("broken"), errors.New("a signal")
	stopped, stop := context.WithCancelCause(t.Context())
	stop(signal)
	for _, c := range []struct {
		ctx  context.Context
		err  error
		ends bool // in order
	}{
		{stopped, nil, true},
		{stopped, fmt.Errorf("connecting: %w", context.Canceled), true},
		{stopped, fmt.Errorf("connecting: %w", signal), true},
		{stopped, broken, false},
		{t.Context(), nil, false},
		{t.Context(), broken, false},
	} {
		l := &live{o: LiveOptions{Out: io.Discard}}
		err := l.finish(c.ctx, loaded{err: c.err})
		if (err == nil) != c.ends || errors.Is(c.err, broken) && !errors.Is(err, broken) {
			t.Errorf("%v after a load that ended with %v, stopped: %v", err, c.err, c.ctx.Err())
		}
	}
}
