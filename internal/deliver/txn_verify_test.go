package deliver

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A leader that cannot verify a transaction yet (KIP-890) is no failure while
// that passes; one whose replicas are missing is, and so is the same answer to a
// batch that belongs to no transaction.
func TestTransactionsThatAreNotVerifiedYet(t *testing.T) {
	for name, c := range map[string]struct {
		id    string
		times int
		want  bool
	}{
		"passes":         {id: "joiner-1", times: 1},
		"lasts":          {id: "joiner-1", times: 100, want: true},
		"no transaction": {times: 1, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			fake := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
			var failures atomic.Int64
			w := runWriter(t, Options{
				Client: newClient(t, fake.ListenAddrs(), producerConfig()), TransactionalID: c.id,
				Metrics: Metrics{ProduceError: func(_, name string) {
					if name != "NOT_ENOUGH_REPLICAS" {
						t.Errorf("counted: %s", name)
					}
					failures.Add(1)
				}},
			})
			left := c.times
			fake.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
				fake.KeepControl()
				if left == 0 || c.want && failures.Load() > 0 {
					return acknowledged(r.(*kmsg.ProduceRequest), nil), nil, true
				}
				left--
				return acknowledged(r.(*kmsg.ProduceRequest), kerr.NotEnoughReplicas), nil, true
			})
			l := newLedger()
			if c.id != "" {
				w.enter(Producer{ID: 7})
				w.mu.Lock()
				w.receiver = l // as a transaction is
				w.mu.Unlock()
			}
			w.Send(outputs(l, "alerts", 0, 0, 3))
			for _, f := range l.wait(t, 3) {
				if f.err != nil {
					t.Error(f.err)
				}
			}
			if got := failures.Load() > 0; got != c.want {
				t.Errorf("%d failures, want some: %t", failures.Load(), c.want)
			}
		})
	}
}

// acknowledged answers every batch with e; nil: it is written.
func acknowledged(request *kmsg.ProduceRequest, e *kerr.Error) kmsg.Response {
	answer := request.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range request.Topics {
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			one := kmsg.NewProduceResponseTopicPartition()
			one.Partition = p.Partition
			if e != nil {
				one.ErrorCode = e.Code
			}
			topic.Partitions = append(topic.Partitions, one)
		}
		answer.Topics = append(answer.Topics, topic)
	}
	return answer
}

func TestPassingAnswers(t *testing.T) {
	now := time.Now()
	p := &partition{ident: identity{transactional: true}}
	for _, step := range []struct {
		code  sarama.KError
		after time.Duration
		want  bool
	}{
		{sarama.ErrNotEnoughReplicas, 0, true},
		{sarama.ErrNotEnoughReplicas, verification - 1, true},
		{sarama.ErrNotEnoughReplicas, verification, false},
		{sarama.ErrNotEnoughReplicas, time.Hour, false},
		{sarama.ErrNotLeaderForPartition, time.Hour, false},
		{sarama.ErrNotEnoughReplicas, time.Hour, true}, // begins anew
		{sarama.ErrNotEnoughReplicasAfterAppend, time.Hour, false},
	} {
		if got := p.passing(step.code, now.Add(step.after)); got != step.want {
			t.Errorf("%v after %v: passing %t, want %t", step.code, step.after, got, step.want)
		}
	}
}
