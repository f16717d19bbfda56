package member

import (
	"context"

	"github.com/IBM/sarama"

	"joiner/internal/kafka"
	"joiner/internal/record"
	"joiner/internal/task"
)

// pump drains a claim into its task until the claim closes. It never waits for
// the merge: sarama fetches from a broker again only when every claim on it
// has taken its response. A full queue pauses the fetching instead.
func pump(ctx context.Context, claim sarama.ConsumerGroupClaim, t *task.Task, side record.Side) {
	messages := claim.Messages()
	for {
		select {
		case msg, ok := <-messages:
			if !ok {
				return
			}
			batch, open := gather(messages, append(t.Batch(side), kafka.FromMessage(msg)))
			t.Offer(side, batch, claim.HighWaterMarkOffset())
			if !open {
				return
			}
		case <-ctx.Done():
			// A claim that redials its broker does not close for a while.
			return
		}
	}
}

// gather takes what is there already, without waiting.
func gather(messages <-chan *sarama.ConsumerMessage, batch []record.Record) ([]record.Record, bool) {
	for len(batch) < cap(batch) {
		select {
		case msg, ok := <-messages:
			if !ok {
				return batch, false
			}
			batch = append(batch, kafka.FromMessage(msg))
		default:
			return batch, true
		}
	}
	return batch, true
}

// flow pauses and resumes the fetching of one index's partitions.
type flow struct {
	group  sarama.ConsumerGroup
	topics [record.Sides]string
	index  int32
}

func (f *flow) Pause(side record.Side)  { f.group.Pause(f.partition(side)) }
func (f *flow) Resume(side record.Side) { f.group.Resume(f.partition(side)) }

func (f *flow) partition(side record.Side) map[string][]int32 {
	return map[string][]int32{f.topics[side]: {f.index}}
}
