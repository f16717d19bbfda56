package member

import (
	"context"
	"sync"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/task"
)

// drain waits until a claim is taken away, or its session ends. What sarama has
// fetched for it is dropped: the partition is read past it. It also returns,
// which ends the session, where the task has ended and the claim stays: half
// an index that an assignment leaves behind would lie idle for ever. again
// reports that the task was Reset, so that it is the next one's turn.
func (m *Member) drain(ctx context.Context, claim sarama.ConsumerGroupClaim, e *entry, side record.Side) (again bool) {
	done := e.task.Done()
	for {
		select {
		case _, open := <-claim.Messages():
			if !open {
				return false
			}
		case <-ctx.Done():
			// A claim that redials its broker does not close for a while.
			return false
		case <-done:
			if m.owns(side, claim.Partition()) && ctx.Err() == nil && !m.isStopping() {
				if m.beginsAnew(e) {
					return true
				}
				m.log.Warn("a task ended while its claim stays, joining the group again",
					zap.String("topic", claim.Topic()), zap.Int32("partition", claim.Partition()))
				return false
			}
			done = nil // the claim closes soon
		}
	}
}

// sink is one half of a task as the fetcher sees it.
type sink struct {
	task *task.Task
	side record.Side
}

func (s sink) Deliver(recs []record.Record, position, end, highWatermark int64) {
	s.task.Deliver(s.side, recs, position, end, highWatermark)
}
func (s sink) Batch() []record.Record { return s.task.Batch(s.side) }
func (s sink) Full() bool             { return s.task.Full(s.side) }

// flow wakes the readers of a task's halves.
type flow struct {
	mu    sync.Mutex
	feeds [record.Sides]Feed
}

func (f *flow) set(side record.Side, feed Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.feeds[side] = feed
}

// Resume implements task.Flow.
func (f *flow) Resume(side record.Side) {
	f.mu.Lock()
	feed := f.feeds[side]
	f.mu.Unlock()
	if feed != nil {
		feed.Wake()
	}
}

// isStopping reports whether the member freezes its tasks for good.
func (m *Member) isStopping() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopping
}
