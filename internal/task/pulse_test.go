package task

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"joiner/internal/record"
)

// worked lists the parts of the task that have work which is not done within a
// 20 looks so far apart: what a watch would call a stall.
func worked(t *testing.T, task *Task, pace time.Duration) string {
	t.Helper()
	before := make(map[string]record.Pulse)
	for _, p := range task.Pulses() {
		before[p.Part] = p
	}
	var stuck map[string]bool
	for range 20 {
		time.Sleep(pace)
		now := make(map[string]bool)
		for _, p := range task.Pulses() {
			if p.Work != "" && before[p.Part].Work != "" && p.Done == before[p.Part].Done && (stuck == nil || stuck[p.Part]) {
				now[p.Part] = true
			}
		}
		stuck = now
	}
	var parts []string
	for _, part := range []string{"lock", "close", "restore", "merge", "queue", "places"} {
		if stuck[part] {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, " ")
}

// What a task waits for that is not its own to do is no stall, for however long.
func TestPulsesOfTasksThatWait(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Options)
		run    func(w *world)
	}{
		{"idle", nil, func(w *world) { w.start(0, 0) }},
		{"no claim has begun", nil, func(w *world) { w.task = New(w.opts) }},
		{"one claim has not begun", nil, func(w *world) {
			w.task = New(w.opts)
			w.task.Start(record.Notification, 0)
			w.put(record.Notification, "A", "{}", 10)
		}},
		{"the other input's end cannot be asked for", nil, func(w *world) {
			w.start(0, 0)
			synctest.Wait()
			w.mu.Lock()
			w.endErr = context.DeadlineExceeded
			w.mu.Unlock()
			w.note("A", 10)
		}},
		{"nobody answers where the other input ends", nil, func(w *world) {
			w.start(0, 0)
			synctest.Wait()
			w.mu.Lock()
			w.endHold = true
			w.mu.Unlock()
			w.note("A", 10)
		}},
		{"the other input has more to come, which no broker hands out", nil, func(w *world) {
			w.start(0, 0)
			synctest.Wait()
			w.put(record.Market, "A", `{"price":1}`, 5)
			w.note("A", 10)
		}},
		{"producers are waited for", func(o *Options) { o.MaxIdle = time.Hour }, func(w *world) {
			w.start(0, 0)
			synctest.Wait()
			w.note("A", 10)
		}},
		{"a first price is waited for", func(o *Options) { o.Wait = time.Hour }, func(w *world) {
			w.start(0, 0)
			synctest.Wait()
			w.note("A", 10)
		}},
		{"outputs are not acknowledged, the ledger is full", func(o *Options) { o.Limits.Places = 2 }, func(w *world) {
			w.hold = true
			w.start(0, 0)
			synctest.Wait()
			for i := range record.Millis(5) {
				w.note("A", 10+i)
				w.fetch(record.Market)
			}
		}},
		{"the log is asked and does not answer", nil, func(w *world) {
			w.waiting = true
			w.opts.Log = deaf{w}
			w.start(5, 0)
		}},
		{"the log is asked again and again", nil, func(w *world) {
			w.opts.Log = deaf{w}
			w.start(5, 0)
			go func() {
				for range 100 {
					time.Sleep(time.Second)
					w.mu.Lock()
					w.tries++
					w.mu.Unlock()
				}
			}()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, test.change)
				test.run(w)
				synctest.Wait()
				if parts := worked(t, w.task, 3*time.Second); parts != "" {
					t.Errorf("%s: stalled", parts)
				}
				w.answerHeld()
				w.mu.Lock()
				w.endErr = nil
				w.mu.Unlock()
				w.stop()
				time.Sleep(time.Hour) // what the test has begun ends
			})
		})
	}
}

// Each of these is stuck in its own code, with brokers that are well.
func TestPulsesOfTasksThatAreStuck(t *testing.T) {
	for _, test := range []struct {
		name  string
		part  string
		plant func(w *world, gate chan struct{})
		// locked: a goroutine waits for a lock, for which no bubble's clock
		// goes on.
		locked bool
	}{
		{"a sink that does not come back", "merge", func(w *world, gate chan struct{}) {
			w.opts.Sink = stuckSink{w, gate}
			w.start(0, 0)
			synctest.Wait()
			w.note("A", 10)
			w.fetch(record.Market)
		}, false},
		{"a log that does not come back and asks nobody", "restore", func(w *world, gate chan struct{}) {
			w.opts.Log = stuckLog{w, gate, false}
			w.control(record.Market)
			w.start(1, 0)
		}, false},
		{"a log that delivers what is not applied", "restore", func(w *world, gate chan struct{}) {
			w.opts.Log = stuckLog{w, gate, true}
			w.put(record.Market, "A", `{"price":1}`, 5)
			w.task = New(w.opts)
			w.task.table.Lock() // by somebody else
			w.task.Start(record.Market, 1)
			w.task.Start(record.Notification, 0)
			go func() { <-gate; w.task.table.Unlock() }()
		}, true},
		{"the task's lock is not given back", "lock", func(w *world, gate chan struct{}) {
			w.start(0, 0)
			w.task.mu.Lock()
			go func() { <-gate; w.task.mu.Unlock() }()
		}, true},
		{"a commit that does not come back while the task closes", "close", func(w *world, gate chan struct{}) {
			w.opts.Commit = func(context.Context, *Task) error { <-gate; return nil }
			w.start(0, 0)
			synctest.Wait()
			w.task.Freeze()
			time.Sleep(time.Minute)
		}, false},
		{"a lost answer, which no commit passes", "places", func(w *world, _ chan struct{}) {
			w.opts.Prices = silent{}
			w.home = func(string) (int32, bool) { return 5, true }
			w.start(0, 0)
			synctest.Wait()
			w.note("A", 10)
			w.fetch(record.Market)
			time.Sleep(10 * time.Minute)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := func(t *testing.T, pace time.Duration) {
				w := newWorld(t, func(o *Options) { o.Patience = 30 * time.Second })
				gate := make(chan struct{})
				test.plant(w, gate)
				time.Sleep(pace)
				if parts := worked(t, w.task, pace); parts != test.part {
					t.Errorf("stalled: %q, want %q", parts, test.part)
				}
				close(gate)
				w.stop()
			}
			if test.locked {
				run(t, 5*time.Millisecond)
				return
			}
			synctest.Test(t, func(t *testing.T) { run(t, 3*time.Second) })
		})
	}
}

// stuckSink takes outputs and does not come back before the gate opens.
type stuckSink struct {
	*world
	gate chan struct{}
}

func (s stuckSink) Send(outputs []*record.Output) {
	<-s.gate
	s.world.Send(outputs)
}

// deaf is a log that brings nothing before its context ends.
type deaf struct{ *world }

func (d deaf) Bounds(ctx context.Context, _ string, _ int32) (start, end int64, err error) {
	<-ctx.Done()
	return 0, 0, ctx.Err()
}

// stuckLog does not come back before the gate opens, after it has delivered.
type stuckLog struct {
	*world
	gate    chan struct{}
	deliver bool
}

func (s stuckLog) Read(ctx context.Context, topic string, id int32, from, to int64, each func([]record.Record) error, progress func(int64)) error {
	if !s.deliver {
		<-s.gate
	}
	return s.world.Read(ctx, topic, id, from, to, each, progress)
}

// silent never answers.
type silent struct{}

func (silent) Owns(int32) bool                          { return false }
func (silent) Ask(context.Context, Query, func(Answer)) {}
