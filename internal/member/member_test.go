package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
	logged "go.uber.org/zap/zaptest/observer"

	"joiner/internal/assign"
	"joiner/internal/enrich"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/sampled"
	"joiner/internal/task"
)

func one(p int32) []int32 { return []int32{p} }

func TestClaimsOfAnIndexShareATask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market := w.begin(marketTopic, 3)
		if got := w.m.Task(3).State(); got != task.Fresh {
			t.Errorf("with one claim the task is %s", got)
		}
		note := w.begin(noteTopic, 3)
		if len(w.tasks) != 1 || w.halves[0] != both {
			t.Fatalf("tasks of halves %v, want one of both", w.halves)
		}
		if w.m.Task(3) != w.tasks[0] || w.tasks[0].State() != task.Running {
			t.Fatalf("the task is %s", w.tasks[0].State())
		}
		at := record.MillisOf(time.Now())
		w.feeds[0].deliver(record.Record{Offset: 5, Timestamp: at, Key: []byte("BRK.B"), Value: []byte(`{"price":9150}`)})
		w.feeds[1].deliver(record.Record{Offset: 5, Timestamp: at, Key: []byte("BRK.B"), Value: []byte(`{}`)})
		synctest.Wait()
		if len(w.sent) != 1 {
			t.Fatalf("%d alerts, want 1", len(w.sent))
		}
		alert, err := enrich.ParseAlert(w.sent[0].Value)
		if err != nil || alert.Market == nil || alert.Market.Price != "9150" {
			t.Errorf("alert %s: %v", w.sent[0].Value, err)
		}

		w.assign(nil, nil)
		market.close()
		note.close()
		w.wantEnded(true, market, note)
		if w.m.Task(3) != nil {
			t.Error("the task is still there")
		}
	})
}

func TestClaimIsPausedBeforeItsPartitionIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market := w.begin(marketTopic, 3)
		w.expect("pause market-updates/3", "read market-updates/3 from 5")
		note := w.begin(noteTopic, 3)
		w.expect("pause notifications/3", "read notifications/3 from 5")
		if len(market.messages)+len(note.messages) > 0 {
			t.Error("what sarama had fetched lies in the claim still")
		}
		if p := w.m.Task(3).Status().Position; p != (record.Offsets{5, 5}) {
			t.Errorf("position %v, want that of the claims: what they had fetched is not taken", p)
		}
	})
}

func TestFullTaskWakesTheReaderOfItsSide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		w.begin(marketTopic, 3)
		feed := w.feeds[0]
		at := record.MillisOf(time.Now())
		var recs []record.Record
		for i := range int64(task.DefaultLimits().QueueRecords + 1) {
			recs = append(recs, record.Record{Offset: 5 + i, Timestamp: at, Key: []byte("A"), Value: []byte(`{"price":1}`)})
		}
		feed.sink.Deliver(recs, 5+int64(len(recs)), -1, -1)
		if !feed.sink.Full() {
			t.Fatal("room for more before the other claim has begun")
		}
		w.happened()
		w.begin(noteTopic, 3)
		if got := w.happened(); !slices.Contains(got, "wake market-updates/3") {
			t.Errorf("happened: %q, want the market's reader to be woken", got)
		}
		if feed.sink.Full() {
			t.Error("full with everything merged")
		}
	})
}

func TestConsumeClaimReturnsOnceTheTaskIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market, note := w.begin(marketTopic, 3), w.begin(noteTopic, 3)
		w.happened()
		w.commits = make(chan struct{})

		market.close()
		w.expect("remove market-updates/3", "commit 3")
		w.wantEnded(false, market, note)
		note.close()
		w.expect("remove notifications/3")
		w.wantEnded(false, market, note)
		if s, ok := w.m.Session(); !ok || s != (Session{"me-1", 7}) {
			t.Errorf("session %v, %t: the commit needs one", s, ok)
		}
		close(w.commits)
		w.wantEnded(true, market, note)
		w.expect() // no second commit
		if w.tasks[0].State() != task.Closed {
			t.Errorf("the task is %s", w.tasks[0].State())
		}
	})
}

func TestAssignmentWithoutTheIndexFreezesItAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign([]int32{3, 4}, []int32{3, 4})
		var claims []*fakeClaim
		for _, index := range []int32{3, 4} {
			claims = append(claims, w.begin(marketTopic, index), w.begin(noteTopic, index))
		}
		w.happened()
		w.commits = make(chan struct{})
		defer close(w.commits)

		w.assign(one(4), one(4)) // it would not return if it waited for anything
		lost, kept := w.tasks[0], w.tasks[1]
		if !lost.Freezing() || kept.Freezing() {
			t.Errorf("freezing %t and %t, want the first alone", lost.Freezing(), kept.Freezing())
		}
		if !w.feeds[0].sink.Full() || !w.feeds[1].sink.Full() || w.feeds[2].sink.Full() {
			t.Error("both halves of the first, and only they, are to be read no more")
		}
		w.expect("commit 3") // under way before its claims have ended
		w.wantEnded(false, claims...)

		// A second one, while a ConsumeClaim waits for the commit.
		claims[0].close()
		w.assign(nil, nil)
		if !kept.Freezing() {
			t.Error("not frozen")
		}
		if got := w.m.Status(); len(got.Owned[record.Market]) > 0 || !got.Assigned {
			t.Errorf("status %+v", got)
		}
	})
}

func TestHalfOfAnIndex(t *testing.T) {
	for side, topic := range []string{marketTopic, noteTopic} {
		t.Run(topic, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := joined(t)
				defer w.group.stop()
				owned := [record.Sides][]int32{}
				owned[side] = one(3)
				w.assign(owned[record.Market], owned[record.Notification])
				claim := w.begin(topic, 3)
				want := [record.Sides]bool{}
				want[side] = true
				if w.halves[0] != want || w.tasks[0].State() != task.Running {
					t.Fatalf("halves %v, %s", w.halves[0], w.tasks[0].State())
				}
				if got := w.m.Owns(3); got != want[record.Market] {
					t.Errorf("owns the market partition: %t", got)
				}
				if got := value(w.all.Group.Colocated); got != 0 {
					t.Errorf("%v co-located", got)
				}
				if side == int(record.Notification) {
					w.feeds[0].deliver(record.Record{Offset: 5, Timestamp: 1, Key: []byte("A"), Value: []byte(`{}`)})
					synctest.Wait()
					if len(w.sent) != 1 {
						t.Errorf("%d alerts, want 1", len(w.sent))
					}
				}
				w.assign(nil, nil)
				claim.close()
				w.wantEnded(true, claim)
			})
		})
	}
}

// An assignment may take one half and leave the other. Its claim goes on in
// sarama, with a task that has ended: only a new session gives it another.
func TestHalfThatIsLeftEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market, note := w.begin(marketTopic, 3), w.begin(noteTopic, 3)
		w.assign(one(3), nil)
		if !w.tasks[0].Freezing() {
			t.Error("a task of both halves goes on with one")
		}
		w.wantEnded(true, market) // not revoked, so sarama ends the session
		w.wantEnded(false, note)
		note.close()
		w.wantEnded(true, note)
	})
}

func TestClaimThatBeginsAfterItsSiblingHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market := w.begin(marketTopic, 3)
		market.close() // failed: sarama ends the session
		w.wantEnded(true, market)
		w.group.session.cancel()
		note := w.begin(noteTopic, 3)
		w.wantEnded(true, note)
		if len(w.tasks) != 2 || w.tasks[0] == w.tasks[1] {
			t.Fatalf("%d tasks, want a fresh one for the second claim", len(w.tasks))
		}
		for _, made := range w.tasks {
			if _, known := made.Cut(); made.State() != task.Closed || known != [record.Sides]bool{} {
				t.Errorf("a task is %s, knows of its cut %v: want closed, with nothing to commit", made.State(), known)
			}
		}
	})
}

// As before, but while the sibling's task is still to be committed.
func TestClaimThatBeginsWhileItsSiblingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market := w.begin(marketTopic, 3)
		w.commits = make(chan struct{})
		market.close()
		note := w.begin(noteTopic, 3)
		if len(w.tasks) != 2 || w.m.Task(3) != w.tasks[1] || w.tasks[1].Freezing() {
			t.Fatalf("%d tasks, want a fresh one for the second claim", len(w.tasks))
		}
		close(w.commits)
		w.wantEnded(true, market)
		if w.m.Task(3) != w.tasks[1] {
			t.Error("the first claim has taken the second one's task with it")
		}
		w.wantEnded(false, note)
		note.close()
		w.wantEnded(true, note)
	})
}

// A claim takes a while to begin; the index may have gone by then.
func TestClaimThatBeginsAfterItsIndexHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		w.assign(nil, nil)
		note := w.begin(noteTopic, 3)
		if !w.feeds[0].sink.Full() {
			t.Error("it is read")
		}
		w.feeds[0].deliver(record.Record{Offset: 5, Timestamp: 1, Key: []byte("A"), Value: []byte(`{}`)})
		synctest.Wait()
		if len(w.sent) > 0 {
			t.Errorf("%s joins what is the next owner's", w.tasks[0].State())
		}
		w.wantEnded(false, note) // before it is revoked it would end the session
		note.close()
		w.wantEnded(true, note)
	})
}

func TestSessionsEndEndsAnOpenClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market, note := w.begin(marketTopic, 3), w.begin(noteTopic, 3)
		w.happened()
		w.group.end <- errors.New("the coordinator is gone") // Messages stays open
		w.wantEnded(true, market, note)
		if got := w.happened(); len(got) != 3 || !slices.Contains(got, "commit 3") {
			t.Errorf("happened: %q, want two feeds removed and one commit", got)
		}
	})
}

// Who may not read the group tries again within a second, whoever else waits longer.
func TestPaceOfAMissingRight(t *testing.T) {
	p := pace{session: time.Minute}
	var got []time.Duration
	for range 6 {
		got = append(got, p.after(fmt.Errorf("joining: %w", sarama.ErrGroupAuthorizationFailed), time.Second))
	}
	got = append(got, p.after(errors.New("broken"), time.Second), p.after(errors.New("broken"), time.Second))
	ms := time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms, 1000 * ms, 2000 * ms}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRunBacksOffFromConsumeErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := newFakeGroup(w)
		broken := errors.New("broken")
		var calls []time.Duration
		began := time.Now()
		g.consume = func(ctx context.Context, _ sarama.ConsumerGroupHandler) error {
			calls = append(calls, time.Since(began).Round(time.Millisecond))
			if len(calls) == 10 {
				time.Sleep(steady + time.Second) // a session worth the name, before it breaks
			}
			return broken
		}
		g.run()
		time.Sleep(time.Minute)
		g.stop()
		var gaps []time.Duration
		for i := 1; i < len(calls); i++ {
			gaps = append(gaps, calls[i]-calls[i-1])
		}
		ms := time.Millisecond
		want := []time.Duration{
			100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms, 5000 * ms,
			11*time.Second + 100*ms, 200 * ms, 400 * ms,
		}
		if len(gaps) < len(want) || len(gaps) > 20 || !slices.Equal(gaps[:len(want)], want) {
			t.Errorf("pauses %v, want %v and a few more", gaps, want)
		}
		if err := w.m.Status().LastError; !errors.Is(err, broken) {
			t.Errorf("last error %v", err)
		}
		w.assign(nil, nil)
		if err := w.m.Status().LastError; err != nil {
			t.Errorf("last error %v after an assignment", err)
		}
	})
}

// Another process has the instance id: sarama's Consume then returns at once,
// each time.
func TestRunWaitsWhileItIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.m.o.InstanceID, w.m.o.SessionTimeout = "pod-1", 20*time.Second
		core, logs := logged.New(zap.ErrorLevel)
		w.m.faults = sampled.New(zap.New(core), nil)
		g := newFakeGroup(w)
		var calls []time.Time
		g.consume = func(context.Context, sarama.ConsumerGroupHandler) error {
			calls = append(calls, time.Now())
			return sarama.ErrFencedInstancedId
		}
		g.run()
		time.Sleep(5 * time.Minute)
		g.stop()
		// 100 ms, doubled up to the session timeout, each halved at most.
		for i := 1; i < len(calls); i++ {
			longest := min(100*time.Millisecond<<(i-1), 20*time.Second)
			if gap := calls[i].Sub(calls[i-1]); gap < longest/2 || gap > longest {
				t.Errorf("wait %d is %v, want %v to %v", i, gap, longest/2, longest)
			}
		}
		n := len(calls)
		if n < 20 || n > 40 {
			t.Fatalf("joined %d times in five minutes", n)
		}
		if last := calls[n-1].Sub(calls[n-2]); last == calls[n-2].Sub(calls[n-3]) {
			t.Errorf("waits of %v, one like the other: several processes would come at once", last)
		}
		if counted := int(value(w.all.Group.Fenced)); counted != n && counted != n-1 {
			t.Errorf("%d refusals counted, %d attempts", counted, n)
		}
		if all := logs.FilterField(zap.String("instance_id", "pod-1")).All(); len(all) == 0 || len(all) == len(calls) {
			t.Errorf("%d error lines that name the instance id, of %d attempts", len(all), len(calls))
		}
	})
}

func TestRunDoesNotSpinOnSessionsThatEndWithoutError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := newFakeGroup(w)
		calls := 0
		g.consume = func(context.Context, sarama.ConsumerGroupHandler) error { calls++; return nil }
		g.run()
		time.Sleep(10 * time.Second)
		g.stop()
		if calls < 50 || calls > 101 {
			t.Errorf("%d sessions in 10 s, want one each 100 ms or 200 ms", calls)
		}
	})
}

func TestRunEndsWithAClosedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := newFakeGroup(w)
		g.consume = func(context.Context, sarama.ConsumerGroupHandler) error { return sarama.ErrClosedConsumerGroup }
		g.run()
		if err := <-g.result; !errors.Is(err, sarama.ErrClosedConsumerGroup) {
			t.Errorf("Run: %v", err)
		}
		g.cancel()
	})
}

func TestStopInterruptsAJoin(t *testing.T) {
	t.Run("the first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			g := newFakeGroup(w)
			interrupted := make(chan struct{})
			w.m.o.Interrupt = func() { close(interrupted) }
			g.consume = func(context.Context, sarama.ConsumerGroupHandler) error {
				w.m.Joining()
				<-interrupted // nothing else ends it
				return errors.New("connection closed")
			}
			g.run()
			synctest.Wait()
			g.stop()
		})
	})
	t.Run("one in a session", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := joined(t)
			w.assign(one(3), one(3))
			w.m.Joining()
			w.m.stop()
			if n := w.interrupted(); n != 1 {
				t.Errorf("%d interrupts, want 1", n)
			}
			w.group.stop()
		})
	})
	t.Run("one that begins after it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := joined(t)
			w.assign(one(3), one(3))
			w.m.stop()
			if n := w.interrupted(); n != 0 {
				t.Fatalf("%d interrupts of a session that does not join", n)
			}
			w.m.Joining()
			if n := w.interrupted(); n != 1 {
				t.Errorf("%d interrupts, want 1", n)
			}
			w.group.stop()
		})
	})
}

func TestStopFreezesTasksAndCommitsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		w.assign([]int32{3, 4}, []int32{3, 4})
		market, note := w.begin(marketTopic, 3), w.begin(noteTopic, 3)
		w.happened()
		w.m.stop() // what the end of Run's context does first
		if !w.tasks[0].Freezing() {
			t.Error("the task takes more")
		}
		late := w.begin(marketTopic, 4)
		if !w.tasks[1].Freezing() {
			t.Error("a task begins after the stop")
		}
		if n := w.interrupted(); n != 0 {
			t.Errorf("%d interrupts of a session that does not join: the last commit would suffer", n)
		}
		w.group.stop()
		w.wantEnded(true, market, note, late)
		if got := w.happened(); !slices.Contains(got, "commit 3") {
			t.Errorf("happened: %q", got)
		}
		if _, ok := w.m.Session(); ok || w.m.LastID() != "me-1" {
			t.Errorf("in a session: %t; id %q, want the last one to leave with", ok, w.m.LastID())
		}
	})
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.group = newFakeGroup(w)
		if s, ok := w.m.Session(); ok || w.m.LastID() != "" || w.m.Directory() != nil || w.m.Task(3) != nil {
			t.Errorf("before anything: session %v", s)
		}
		w.assign([]int32{4, 3}, []int32{3, 4})
		if w.m.Status().Assigned {
			t.Error("assigned before the session begins")
		}
		w.group.run()
		synctest.Wait()
		defer w.group.stop()
		w.begin(marketTopic, 3)
		w.begin(noteTopic, 3)

		s := w.m.Status()
		if !s.Assigned || s.Session != (Session{"me-1", 7}) || s.LastError != nil {
			t.Errorf("status %+v", s)
		}
		for side, owned := range s.Owned {
			if !slices.Equal(owned, []int32{3, 4}) {
				t.Errorf("side %d owns %v, want 3 and 4, ascending", side, owned)
			}
		}
		if !slices.Equal(s.Starting, one(4)) {
			t.Errorf("starting %v, want 4", s.Starting)
		}
		if len(s.Tasks) != 1 || s.Tasks[0].Index != 3 || s.Tasks[0].State != task.Running {
			t.Errorf("tasks %+v", s.Tasks)
		}
		if s.Directory == nil || w.m.Directory() != s.Directory || s.Directory.Generation != 1 {
			t.Errorf("directory %+v", s.Directory)
		}
		for p, want := range map[int32]bool{2: false, 3: true, 4: true, -1: false} {
			if w.m.Owns(p) != want {
				t.Errorf("owns %d: %t", p, !want)
			}
		}

		w.group.end <- nil
		synctest.Wait()
		if s := w.m.Status(); s.Assigned || len(s.Owned[record.Market]) > 0 || len(s.Tasks) > 0 || w.m.Owns(3) {
			t.Errorf("status %+v after the session", s)
		}
	})
}

func TestGroupMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		g := &w.all.Group
		check := func(when string, want map[string]float64) {
			t.Helper()
			synctest.Wait()
			got := map[string]float64{
				"gained": value(g.TaskMoves[metrics.Gained]), "lost": value(g.TaskMoves[metrics.Lost]),
				"market": value(g.Assigned[record.Market]), "notes": value(g.Assigned[record.Notification]),
				"colocated": value(g.Colocated), "rebalances": value(g.Rebalances),
				"restoring": value(g.Tasks[metrics.Restoring]), "running": value(g.Tasks[metrics.Running]),
			}
			for name, n := range want {
				if got[name] != n {
					t.Errorf("%s: %s %v, want %v", when, name, got[name], n)
				}
			}
		}

		w.assign([]int32{1, 2, 3}, []int32{2, 3})
		check("first assignment", map[string]float64{
			"gained": 3, "lost": 0, "market": 3, "notes": 2, "colocated": 2, "rebalances": 1, "restoring": 0, "running": 0,
		})
		if m, n := value(g.Members), value(g.Generation); m != 2 || n != 1 {
			t.Errorf("%v members in generation %v", m, n)
		}
		w.begin(marketTopic, 2)
		check("half a task", map[string]float64{"restoring": 1, "running": 0})
		two := w.begin(noteTopic, 2)
		check("a task", map[string]float64{"restoring": 0, "running": 1})

		w.assign([]int32{1, 3, 4}, []int32{1, 3, 4})
		check("second assignment", map[string]float64{
			"gained": 4, "lost": 1, "market": 3, "notes": 3, "colocated": 3, "rebalances": 2, "running": 1,
		})
		two.close()
		w.group.end <- nil
		check("session's end", map[string]float64{
			"gained": 4, "lost": 4, "market": 0, "notes": 0, "colocated": 0, "rebalances": 2, "restoring": 0, "running": 0,
		})
	})
}

func TestRebalanceDurationIsFromJoinToAssignment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var took []float64
		w.all.Group.RebalanceDuration = observer(func(s float64) { took = append(took, s) })
		w.m.Joining()
		time.Sleep(2 * time.Second)
		w.m.Joining() // sarama joins twice where it has no member id yet
		time.Sleep(time.Second)
		w.assign(nil, nil)
		w.assign(nil, nil) // one that nobody has seen begin
		if !slices.Equal(took, []float64{3}) {
			t.Errorf("took %v s, want 3", took)
		}
	})
}

type observer func(float64)

func (o observer) Observe(v float64) { o(v) }

func TestTaskPause(t *testing.T) {
	// run begins index 3's task after d.
	run := func(w *world, d time.Duration) {
		time.Sleep(d)
		w.begin(marketTopic, 3)
		w.begin(noteTopic, 3)
	}
	for name, c := range map[string]struct {
		change func(w *world)
		want   []time.Duration
	}{
		"never idle": {
			change: func(w *world) {
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
		},
		"withheld while its old owner lets go": {
			change: func(w *world) {
				w.assign(nil, nil) // nobody has it
				time.Sleep(2 * time.Second)
				w.assign(nil, nil)
				time.Sleep(time.Second)
				w.m.Joining()
				time.Sleep(time.Second)
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
			want: []time.Duration{5 * time.Second},
		},
		"comes at once: its owner has left": {
			change: func(w *world) {
				w.assignWith(&assign.Directory{Owners: map[string][]string{noteTopic: {3: "you"}}}, nil, nil)
				time.Sleep(time.Hour)
				w.m.Joining()
				time.Sleep(2 * time.Second)
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
			want: []time.Duration{3 * time.Second},
		},
		"stays through a rebalance": {
			change: func(w *world) {
				w.assign(one(3), one(3))
				run(w, time.Second)
				w.m.Joining()
				time.Sleep(2 * time.Second)
				w.assign(one(3), one(3))
				w.group.end <- errors.New("broken")
				time.Sleep(4 * time.Second)
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
			want: []time.Duration{5 * time.Second},
		},
		"once more after it has run": {
			change: func(w *world) {
				w.assign(nil, nil)
				time.Sleep(2 * time.Second)
				w.assign(one(3), one(3))
				run(w, time.Second)
				time.Sleep(time.Hour)
				w.group.end <- errors.New("broken")
				time.Sleep(4 * time.Second)
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
			want: []time.Duration{3 * time.Second, 5 * time.Second},
		},
		"another member got it": {
			change: func(w *world) {
				w.assign(nil, nil)
				time.Sleep(time.Hour)
				w.assignWith(&assign.Directory{Owners: map[string][]string{noteTopic: {3: "you"}}}, nil, nil)
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
		},
		"back after a session's end": {
			change: func(w *world) {
				w.assign(one(3), one(3))
				run(w, 0)
				w.group.end <- errors.New("broken")
				time.Sleep(4 * time.Second) // longer than the back-off
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
			want: []time.Duration{5 * time.Second},
		},
		"back after two sessions' ends": {
			change: func(w *world) {
				w.assign(one(3), one(3))
				run(w, 0)
				w.group.end <- errors.New("broken")
				time.Sleep(4 * time.Second)
				w.assign(one(3), one(3)) // and no claim begins
				w.group.end <- errors.New("broken")
				time.Sleep(4 * time.Second)
				w.assign(one(3), one(3))
				run(w, time.Second)
			},
			want: []time.Duration{9 * time.Second},
		},
		"elsewhere for a while, under a foreign leader": {
			change: func(w *world) {
				w.assign(one(3), one(3))
				run(w, 0)
				w.group.end <- nil
				time.Sleep(4 * time.Second)
				w.assignWith(nil, nil, nil) // no directory: who has it is not known
				time.Sleep(time.Hour)
				w.assignWith(nil, one(3), one(3))
				run(w, time.Second)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := joined(t)
				defer w.group.stop()
				c.change(w)
				synctest.Wait()
				if !slices.Equal(w.pauses, c.want) {
					t.Errorf("pauses %v, want %v", w.pauses, c.want)
				}
			})
		})
	}
}

// A task that an assignment takes away may commit before sarama's session has
// heard of the generation: with the old one the commit would be refused, and
// the next owner would join again what is done.
func TestSessionHasTheGenerationOfTheAssignment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market, note := w.begin(marketTopic, 3), w.begin(noteTopic, 3)
		w.m.OnAssigned(assign.Assignment{Generation: 8, Claims: map[string][]int32{}})
		if s, ok := w.m.Session(); !ok || s != (Session{"me-1", 8}) {
			t.Errorf("session %v, %t while sarama's says 7", s, ok)
		}
		market.close()
		note.close()
		w.wantEnded(true, market, note)
	})
}

// A member that is told to rejoin ends its session, claims and tasks first.
func TestRejoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.assign(one(3), one(3))
		market, note := w.begin(marketTopic, 3), w.begin(noteTopic, 3)
		before := w.group.session
		w.m.Rejoin()
		w.wantEnded(true, market, note)
		time.Sleep(time.Second)
		synctest.Wait()
		if w.group.session == before || before.Context().Err() == nil {
			t.Error("the session has not ended")
		}
		if _, ok := w.m.Session(); !ok {
			t.Error("the group was not joined again")
		}
	})
}

// A task may be committed while its member has it and in the generation that
// takes it away, in no later one.
func TestMayCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := joined(t)
		defer w.group.stop()
		w.commits = make(chan struct{})
		w.assign(one(3), one(3)) // generation 1
		w.begin(marketTopic, 3)
		w.begin(noteTopic, 3)
		x := w.tasks[0]
		first := w.gen
		if !w.m.MayCommit(x, first) || !w.m.MayCommit(x, first+7) {
			t.Error("a task that the member has")
		}
		w.assign(nil, nil)
		if !w.m.MayCommit(x, first+1) {
			t.Error("in the generation that takes it away")
		}
		w.assign(nil, nil)
		if w.m.MayCommit(x, first+2) {
			t.Error("in the generation after")
		}
		if w.m.MayCommit(w.newTask(4, [record.Sides]bool{true, true}, nil), first+2) {
			t.Error("a task that it never had")
		}
		close(w.commits)
		w.tasks[1].Freeze()
		<-w.tasks[1].Done()
	})
}

// A task whose positions are gone is followed by another one under the same
// claims, which asks where to begin anew; the session goes on.
func TestResetBeginsTheTaskAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		asked := 0
		answer := make(chan struct{})
		w.m.o.Begin = func(ctx context.Context, side record.Side, index int32, claimed int64) (Start, bool) {
			select {
			case <-answer:
			case <-ctx.Done():
				return Start{}, false
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			asked++
			return Start{Offset: claimed + int64(10*asked), TopicID: "id"}, true
		}
		w.group = newFakeGroup(w)
		w.group.run()
		synctest.Wait()
		defer w.group.stop()
		w.assign(one(3), one(3))
		market, note := w.begin(marketTopic, 3), w.begin(noteTopic, 3)
		for _, e := range w.happened() {
			if strings.HasPrefix(e, "read") {
				t.Errorf("%s before it is known where to begin", e)
			}
		}
		close(answer)
		reads := func() (n int) {
			for _, e := range w.happened() {
				if strings.HasPrefix(e, "read") {
					n++
				}
			}
			return n
		}
		if n := reads(); n != 2 {
			t.Fatalf("%d readings", n)
		}
		session := w.group.session
		w.m.Reset(3)
		if n := reads(); n != 2 {
			t.Errorf("%d readings after a reset", n)
		}
		if len(w.tasks) != 2 || w.tasks[0].State() != task.Closed || w.m.Task(3) != w.tasks[1] {
			t.Errorf("%d tasks, the first is %s", len(w.tasks), w.tasks[0].State())
		}
		w.wantEnded(false, market, note)
		if w.group.session != session || session.Context().Err() != nil {
			t.Error("the session has ended")
		}

		// A revocation ends the second one for good, also while it asks.
		answer = make(chan struct{})
		w.m.Reset(3)
		w.assign(nil, nil)
		market.close()
		note.close()
		w.wantEnded(true, market, note)
		w.m.Reset(3) // nobody's
	})
}
