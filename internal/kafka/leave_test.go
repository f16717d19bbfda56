package kafka

import (
	"context"
	"errors"
	"testing"

	"github.com/IBM/sarama"

	realkafka "joiner/test/cluster"
)

// members counts the group's members as its coordinator knows them.
func members(t *testing.T, c *Clients) int {
	t.Helper()
	admin, err := sarama.NewClusterAdminFromClient(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := admin.DescribeConsumerGroups([]string{c.opts.GroupID})
	if err != nil || len(groups) != 1 {
		t.Fatalf("groups %v, error %v", groups, err)
	}
	return len(groups[0].Members)
}

// A member whose own leaving failed with its connection leaves over another.
func TestLeave(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 2, nil)
	c := k.connect(t, groupOptions)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, ended := consume(ctx, t, c, topic)
	eventually(t, "all claims", func() bool { return h.started.Load() == 2 })
	id := h.generation(c).MemberID
	if n := members(t, c); n != 1 {
		t.Fatalf("%d members", n)
	}
	if err := c.Leave(deadline(t), id); err != nil {
		t.Error(err)
	}
	cancel()
	_ = finish(t, ended) // it has lost its session
	if n := members(t, c); n != 0 {
		t.Errorf("%d members after leaving", n)
	}
	for what, id := range map[string]string{"again": id, "a member that never was": "nobody-1", "before the first session": ""} {
		if err := c.Leave(deadline(t), id); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	over, stop := context.WithCancel(context.Background())
	stop()
	if err := c.Leave(over, "somebody"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the stop's limit: %v", err)
	}
}

// A static member is taken out by both of its ids, so that a process that has its
// instance id by now stays (the embedded broker looks at the instance id alone).
// sarama by itself takes it out of nothing.
func TestKafkaLeaveOfAStaticMember(t *testing.T) {
	k := &cluster{addrs: realkafka.Start(t, realkafka.Options{}).Brokers}
	k.connectAdmin(t)
	topic := k.topic(t, 2, nil)
	static := func(o *Options) { groupOptions(o); o.GroupID, o.InstanceID = topic, "pod-1" }
	first := k.connect(t, static)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, ended := consume(ctx, t, first, topic)
	eventually(t, "all claims", func() bool { return h.started.Load() == 2 })
	before := h.generation(first).MemberID

	second := k.connect(t, static)
	again, stop := context.WithCancel(context.Background())
	defer stop()
	h, group, over := consume(again, t, second, topic)
	eventually(t, "all claims of the second", func() bool { return h.started.Load() == 2 })
	_ = finish(t, ended) // it has lost its session
	if err := first.Leave(deadline(t), before); !errors.Is(err, sarama.ErrFencedInstancedId) {
		t.Errorf("leaving with a successor: %v", err)
	}
	if n := members(t, second); n != 1 {
		t.Fatalf("%d members", n)
	}
	id := h.generation(second).MemberID
	stop()
	_ = finish(t, over)
	if err := group.Close(); err != nil {
		t.Error(err)
	}
	if n := members(t, second); n != 1 {
		t.Errorf("%d members after closing: sarama leaves no static member out", n)
	}
	if err := second.Leave(deadline(t), id); err != nil {
		t.Error(err)
	}
	if n := members(t, second); n != 0 {
		t.Errorf("%d members after leaving", n)
	}
}

func TestStay(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, groupOptions)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, group, ended := consume(ctx, t, c, topic)
	eventually(t, "the claim", func() bool { return h.started.Load() == 1 })
	cancel()
	_ = finish(t, ended)
	c.Stay()
	if err := group.Close(); !errors.Is(err, ErrStaying) {
		t.Errorf("closing: %v", err)
	}
	if n := members(t, c); n != 1 {
		t.Errorf("%d members", n)
	}
}

func TestLeaveFaults(t *testing.T) {
	one := func(top, member sarama.KError) *sarama.LeaveGroupResponse {
		return &sarama.LeaveGroupResponse{Err: top, Members: []sarama.MemberResponse{{Err: member}}}
	}
	for _, c := range []struct {
		resp *sarama.LeaveGroupResponse
		want error
	}{
		{one(sarama.ErrNoError, sarama.ErrNoError), nil},
		{one(sarama.ErrNoError, sarama.ErrUnknownMemberId), nil},
		{one(sarama.ErrUnknownMemberId, sarama.ErrNoError), nil},
		{one(sarama.ErrNotCoordinatorForConsumer, sarama.ErrNoError), sarama.ErrNotCoordinatorForConsumer},
		{one(sarama.ErrNoError, sarama.ErrFencedInstancedId), sarama.ErrFencedInstancedId},
	} {
		if err := leaveFault(c.resp); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.resp, err, c.want)
		}
	}
}
