package kafka

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type offsets = map[string]map[int32]int64

// nobody commits into a group that has no members.
func nobody(c *Clients) Generation {
	return Generation{Group: c.opts.GroupID, Generation: -1}
}

func mustCommit(t *testing.T, c *Clients, o offsets) {
	t.Helper()
	refused, err := c.CommitOffsets(deadline(t), nobody(c), o, nil)
	if err != nil || len(refused) != 0 {
		t.Fatalf("refused %v, error %v", refused, err)
	}
}

func wantCommitted(t *testing.T, c *Clients, want offsets) {
	t.Helper()
	asked := map[string][]int32{}
	for topic, partitions := range want {
		for id := range partitions {
			asked[topic] = append(asked[topic], id)
		}
	}
	got, err := c.CommittedOffsets(deadline(t), asked)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOffsets(t *testing.T) {
	k := anyCluster(t)
	a, b := k.topic(t, 3, nil), k.topic(t, 3, nil)
	c := k.connect(t, nil)
	wantCommitted(t, c, offsets{a: {0: -1, 2: -1}, b: {1: -1}})
	mustCommit(t, c, offsets{a: {0: 5, 1: 0}, b: {1: 7}})
	wantCommitted(t, c, offsets{a: {0: 5, 1: 0, 2: -1}, b: {1: 7}})
	mustCommit(t, c, offsets{a: {0: 3}}) // lowered
	wantCommitted(t, c, offsets{a: {0: 3, 1: 0}})
	mustCommit(t, c, nil)

	// The leader epoch is unknown, and not epoch 0.
	resp, err := k.admin.ListConsumerGroupOffsets(c.opts.GroupID, map[string][]int32{a: {0}})
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.GetBlock(a, 0).LeaderEpoch; got != -1 {
		t.Errorf("committed with leader epoch %d", got)
	}
}

func TestCommitOfAnotherGenerationIsRefused(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 2, nil)
	c := k.connect(t, nil)
	gen := Generation{Group: c.opts.GroupID, MemberID: "nobody-known", Generation: 7}
	refused, err := c.CommitOffsets(deadline(t), gen, offsets{topic: {0: 1, 1: 2}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id := range int32(2) {
		got := refused[topic][id]
		if !errors.Is(got, sarama.ErrUnknownMemberId) && !errors.Is(got, sarama.ErrIllegalGeneration) {
			t.Errorf("partition %d: %v", id, got)
		}
	}
	wantCommitted(t, c, offsets{topic: {0: -1, 1: -1}})
}

func TestCommitSortsWhatIsRefusedFromWhatIsTriedAgain(t *testing.T) {
	k := fakeCluster(t, 3)
	topic := k.topic(t, 3, nil)
	c := k.connect(t, nil)
	for _, away := range []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress} {
		again := k.fake.Fake().Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: topic, Partitions: []int32{0}, Err: away, Count: 2,
		})
		refusal := k.fake.Fake().Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.OffsetCommit}, Topic: topic, Partitions: []int32{1}, Err: kerr.TopicAuthorizationFailed, Count: 1,
		})
		refused, err := c.CommitOffsets(deadline(t), nobody(c), offsets{topic: {0: 4, 1: 5, 2: 6}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(refused[topic]) != 1 || !errors.Is(refused[topic][1], sarama.ErrTopicAuthorizationFailed) {
			t.Errorf("%s: refused %v, want partition 1 alone", away.Message, refused)
		}
		if again.Hits() != 2 || refusal.Hits() != 1 {
			t.Errorf("%s: partition 0 was refused %d times and partition 1 %d", away.Message, again.Hits(), refusal.Hits())
		}
		wantCommitted(t, c, offsets{topic: {0: 4, 1: -1, 2: 6}})
	}
}

func TestCommitEndsWithItsContext(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.NotCoordinator, Count: -1})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := c.CommitOffsets(ctx, nobody(c), offsets{topic: {0: 1}}, nil)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, sarama.ErrNotCoordinatorForConsumer) {
		t.Errorf("got %v, want the end of the context and the last fault", err)
	}
}

func TestCommitReturnsAtTheEndOfItsContextWhileTheBrokerIsSilent(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	held := newSleeper(t, k.fake.Fake())
	defer held.wake()
	k.fake.Fake().ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		held.sleep()
		return nil, nil, false
	})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.CommitOffsets(ctx, nobody(c), offsets{topic: {0: 1}}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestCommittedOffsetsWaitForTransactions(t *testing.T) {
	k := fakeCluster(t, 3)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	mustCommit(t, c, offsets{topic: {0: 9}})
	for _, fault := range []*kerr.Error{kerr.UnstableOffsetCommit, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress} {
		for _, whole := range []bool{false, true} {
			stable := true
			h := k.fake.Fake().Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: c.opts.GroupID, Err: fault, Count: 2, TopLevel: whole,
				When: func(r kmsg.Request) bool {
					stable = stable && r.(*kmsg.OffsetFetchRequest).RequireStable
					return true
				},
			})
			wantCommitted(t, c, offsets{topic: {0: 9}})
			if h.Hits() == 0 || !stable {
				t.Errorf("%s: faults met: %d, stable offsets asked for: %v", fault.Message, h.Hits(), stable)
			}
			h.Remove()
		}
	}
}

func TestOffsetsSurviveABrokenConnection(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	for i := range int64(3) {
		for _, d := range c.conns {
			d.interrupt()
		}
		mustCommit(t, c, offsets{topic: {0: i}})
		for _, d := range c.conns {
			d.interrupt()
		}
		wantCommitted(t, c, offsets{topic: {0: i}})
	}
}
