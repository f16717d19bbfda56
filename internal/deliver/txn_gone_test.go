package deliver

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"

	"joiner/internal/record"
)

// A task that ends while its offsets are on their way, and begins anew in the
// same generation from those that it found, has its outputs made a second time:
// the transaction with the first must not be committed.
func TestTransactionOfATaskThatHasGone(t *testing.T) {
	x := newTransacting(t)
	for _, j := range x.tasks {
		j.join(10, never)
	}
	x.coord.next(onCommitOffsets, trouble{done: true, happened: func() {
		x.Unregister(x.tasks[1])
		x.tasks[1] = newJoined(t, 1, 0)
		x.Register(x.tasks[1])
	}})
	x.round(context.Background())
	if diff := cmp.Diff(map[Outcome]int{Aborted: 1}, x.is()); diff != "" {
		t.Error(diff)
	}
	x.finish(20)
	x.prove(20)
}

// A task that goes once its offsets are pending leaves the transaction as it is:
// whoever begins anew waits for them.
func TestTransactionOfATaskThatGoesLater(t *testing.T) {
	x := newTransacting(t)
	for _, j := range x.tasks {
		j.join(10, never)
	}
	x.coord.next(onEnd, trouble{done: true, happened: func() { x.Unregister(x.tasks[1]) }})
	x.round(context.Background())
	if diff := cmp.Diff(map[Outcome]int{Committed: 1}, x.is()); diff != "" {
		t.Error(diff)
	}
	if n := len(x.visible("alerts", 1)); n != 10 {
		t.Errorf("%d of its outputs are visible, want 10", n)
	}
}

// What failed is tried again soon, however long the interval is.
func TestFailedTransactionsDoNotWaitForTheInterval(t *testing.T) {
	x := newTransacting(t)
	x.o.Interval = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	x.tasks[0].join(10, never)
	x.coord.next(onAddOffsets, trouble{err: sarama.ErrInvalidTxnState})
	x.coord.next(onInit, trouble{err: sarama.ErrConsumerCoordinatorNotAvailable})
	closing, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if err := x.CommitNow(closing, x.tasks[0]); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[Outcome]int{Aborted: 1, Committed: 1}, x.is()); diff != "" {
		t.Error(diff)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Run leaves no transaction open when it ends: it would hide what others write.
func TestRunAbortsWhatItLeavesOpen(t *testing.T) {
	x := newTransacting(t)
	x.o.Interval = time.Hour
	x.tasks[0].join(10, never)
	x.coord.next(onCommitOffsets, trouble{err: sarama.ErrInvalidTxnState})
	x.round(context.Background()) // leaves it to the next round to make the producer anew
	made := x.coord.count(onInit)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for len(x.kick) > 0 { // it has been told to go on, and to end: here the end comes first
		<-x.kick
	}
	if err := x.Run(ctx); err != nil {
		t.Error(err)
	}
	if n := x.coord.count(onInit); n != made+1 {
		t.Errorf("the producer was made anew %d times, want once", n-made)
	}
	if n := len(x.visible("alerts", 0)); n != 0 { // it fails where they are hidden behind the transaction
		t.Errorf("%d outputs are visible", n)
	}
}

// A leader that is merely slow gets as long in a task's later trials as anybody.
func TestPatienceWith(t *testing.T) {
	for strikes, want := range []time.Duration{stuckAfter, probation, 2 * probation, stuckAfter, stuckAfter} {
		if got := patienceWith([]*part{{}, {strikes: strikes}}); got != want {
			t.Errorf("after %d failures: %s, want %s", strikes, got, want)
		}
	}
	if got := patienceWith(nil); got != stuckAfter {
		t.Errorf("no task: %s", got)
	}
}

// Senders may tell of refusals while those that came first are passed on.
func TestRefusalsFromSeveralSenders(t *testing.T) {
	x := &transaction{changed: make(chan struct{}, 1), patience: time.Minute, left: 64}
	var senders sync.WaitGroup
	for i := range 64 {
		senders.Go(func() {
			x.Settled(&record.Output{Partition: int32(i)}, &record.Refused{Kind: record.Rejected, Err: fmt.Errorf("no")})
		})
	}
	if err := x.written(context.Background()); err == nil {
		t.Error("written")
	}
	if n := len(x.refusals()); n == 0 || n > 64 {
		t.Errorf("%d refusals", n)
	}
	senders.Wait()
	if n := len(x.refusals()); n != 64 {
		t.Errorf("%d refusals in the end", n)
	}
}

// A task that has committed all it had is told so, however much others have left:
// while it waits, its partition is joined by nobody.
func TestCommitNowDoesNotWaitForOthers(t *testing.T) {
	x := newTransacting(t)
	x.most = 64
	x.tasks[0].join(10, never)
	done := make(chan error, 1)
	go func() { done <- x.CommitNow(context.Background(), x.tasks[0]) }()
	eventually(t, "it waits", func() bool {
		x.Transactor.mu.Lock()
		defer x.Transactor.mu.Unlock()
		return len(x.callers) == 1
	})
	made := 0
	for range 4 {
		made += 2000
		x.tasks[1].join(made, never)
		x.tasks[2].join(made, never)
		x.most = 64 // as after one that was too slow
		x.round(context.Background())
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			if n := x.tasks[0].settledAll(); n != 10 {
				t.Errorf("%d of its 10 outputs are committed", n)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Error("four transactions later it still waits for the others")
}
