package kafka

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

func TestRightsAreForgotten(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRights(Options{}, newSampler(zap.NewNop()))
	r.now = func() time.Time { return now }
	create, read, group := createTopic("alerts"), readTopic("ticks"), readGroup("joiner")
	for _, right := range []Right{read, group, create} {
		if err := r.missed(right, sarama.ErrTopicAuthorizationFailed); err == nil {
			t.Error("the refusal is gone")
		}
	}
	if err := r.missed(alterTopic("alerts"), sarama.ErrNotLeaderForPartition); err == nil {
		t.Error("the fault is gone")
	}
	expect := func(anything bool, want ...Right) {
		t.Helper()
		if diff := cmp.Diff(want, r.lately()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if r.any.Load() != anything {
			t.Errorf("whether something is missing: %v", !anything)
		}
	}
	expect(true, create, group, read)
	r.seen(group)
	expect(true, create, read)

	now = now.Add(rightCounts - time.Second)
	_ = r.missed(read, sarama.ErrTopicAuthorizationFailed)
	expect(true, create, read)
	now = now.Add(time.Second) // nobody creates again what is there
	expect(true, read)
	r.seen(read)
	expect(false)

	_ = r.missed(create, sarama.ErrTopicAuthorizationFailed)
	now = now.Add(rightCounts)
	expect(false)

	_ = r.missed(group, sarama.ErrGroupAuthorizationFailed)
	r.seenAt(group, now) // before it was missed, or at once
	expect(true, group)
	r.seenAt(read, now.Add(1))
	expect(true, group)
	r.seenAt(group, now.Add(1))
	expect(false)
}

// A session that is proven after the group might not be read is the word that it may
// be again.
func TestHeartbeatsShowThatTheGroupMayBeRead(t *testing.T) {
	c := &Clients{opts: Options{GroupID: "joiner"}, lease: newLease(), rights: newRights(Options{}, newSampler(zap.NewNop()))}
	c.lease.prove(time.Now())
	_ = c.rights.missed(readGroup("joiner"), sarama.ErrGroupAuthorizationFailed)
	if got := c.MissingRights(); len(got) != 1 {
		t.Errorf("%v", got)
	}
	c.lease.prove(time.Now().Add(time.Millisecond))
	if got := c.MissingRights(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
