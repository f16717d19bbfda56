package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handler counts what a session sets off.
type handler struct {
	setups, started, ended atomic.Int64
	records                atomic.Int64

	mu      sync.Mutex
	session sarama.ConsumerGroupSession
}

func (h *handler) Setup(s sarama.ConsumerGroupSession) error {
	h.mu.Lock()
	h.session = s
	h.mu.Unlock()
	h.setups.Add(1)
	return nil
}

func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(_ sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	h.started.Add(1)
	defer h.ended.Add(1)
	for range c.Messages() {
		h.records.Add(1)
	}
	return nil
}

func (h *handler) generation(c *Clients) Generation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Generation{Group: c.opts.GroupID, MemberID: h.session.MemberID(), Generation: h.session.GenerationID()}
}

func groupOptions(o *Options) {
	o.Heartbeat = 100 * time.Millisecond
	o.Strategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
}

// consume runs Consume once and returns a channel with its end.
func consume(ctx context.Context, t *testing.T, c *Clients, topic string) (*handler, sarama.ConsumerGroup, chan error) {
	t.Helper()
	group, err := c.Group()
	if err != nil {
		t.Fatal(err)
	}
	h, ended := &handler{}, make(chan error, 1)
	go func() { ended <- group.Consume(ctx, []string{topic}, h) }()
	t.Cleanup(func() { _ = group.Close() })
	return h, group, ended
}

func finish(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-deadline(t).Done():
		t.Fatal("Consume does not return")
		return nil
	}
}

func TestGroupConsumesAndCommits(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 3, nil)
	p := k.producer(t)
	for id := range int32(3) {
		send(t, p, topic, id, "a", "b")
	}
	c := k.connect(t, groupOptions)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if got := c.Silence(); got < time.Hour {
		t.Errorf("silent for %v outside the group", got)
	}
	h, group, ended := consume(ctx, t, c, topic)
	eventually(t, "all records", func() bool { return h.records.Load() == 6 })
	if got := c.Silence(); got > time.Hour {
		t.Errorf("silent for %v in a session", got)
	}

	refused, err := c.CommitOffsets(deadline(t), h.generation(c), offsets{topic: {0: 2, 1: 1}}, nil)
	if err != nil || len(refused) != 0 {
		t.Errorf("refused %v, error %v", refused, err)
	}
	wantCommitted(t, c, offsets{topic: {0: 2, 1: 1, 2: -1}})
	stale := h.generation(c)
	stale.Generation--
	refused, err = c.CommitOffsets(deadline(t), stale, offsets{topic: {0: 1}}, nil)
	if err != nil || !errors.Is(refused[topic][0], sarama.ErrIllegalGeneration) {
		t.Errorf("a stale generation: refused %v, error %v", refused, err)
	}
	cancel()
	if err := finish(t, ended); err != nil {
		t.Error(err)
	}
	if err := group.Close(); err != nil {
		t.Error(err)
	}
}

// The coordinator refuses connections for more than a second, many heartbeats:
// the session goes on, in the same generation, and no claim ends.
func TestSessionSurvivesTheCoordinatorsAbsence(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 4, nil)
	p := k.producer(t)
	c := k.connect(t, groupOptions)
	g := newGate()
	c.joins.dial = g.Dial // before anything has dialled the coordinator for the group
	c.joins.interrupt()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, ended := consume(ctx, t, c, topic)
	eventually(t, "all claims", func() bool { return h.started.Load() == 4 })
	before := h.generation(c)
	for range 2 {
		g.close()
		refused := g.refusals()
		eventually(t, "the coordinator being looked for", func() bool { return g.refusals() > refused })
		pause(ctx, 1200*time.Millisecond)
		if got := c.Silence(); got < time.Second {
			t.Errorf("silent for %v after an outage of 1.2s", got)
		}
		g.open()
		eventually(t, "a sign of life", func() bool { return c.Silence() < time.Second })
		// A record gets through and the member is known: the session lives.
		got := h.records.Load()
		send(t, p, topic, 0, "x")
		eventually(t, "a record", func() bool { return h.records.Load() > got })
		refusedOffsets, err := c.CommitOffsets(deadline(t), h.generation(c), offsets{topic: {0: got}}, nil)
		if err != nil || len(refusedOffsets) != 0 {
			t.Errorf("after the outage: refused %v, error %v", refusedOffsets, err)
		}
	}
	if got := h.generation(c); got != before {
		t.Errorf("the generation was %+v and is %+v", before, got)
	}
	if h.setups.Load() != 1 || h.ended.Load() != 0 {
		t.Errorf("%d sessions, %d claims ended", h.setups.Load(), h.ended.Load())
	}
	select {
	case err := <-ended:
		t.Errorf("Consume returned %v", err)
	default:
	}
}

// A coordinator that has moved is found, and the session goes on.
func TestSessionSurvivesTheCoordinatorsMove(t *testing.T) {
	k := fakeCluster(t, 3)
	topic := k.topic(t, 2, nil)
	c := k.connect(t, groupOptions)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, _ := consume(ctx, t, c, topic)
	eventually(t, "all claims", func() bool { return h.started.Load() == 2 })
	faults := k.fake.Fake().Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Heartbeat}, Group: c.opts.GroupID, TopLevel: true, Err: kerr.NotCoordinator, Count: 3,
	})
	if err := faults.Wait(deadline(t), 3); err != nil {
		t.Fatal(err)
	}
	healthy := k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: c.opts.GroupID, TopLevel: true, Observe: true, Count: -1})
	if err := healthy.Wait(deadline(t), 3); err != nil {
		t.Fatal(err)
	}
	if h.setups.Load() != 1 || h.ended.Load() != 0 {
		t.Errorf("%d sessions, %d claims ended", h.setups.Load(), h.ended.Load())
	}
}

// Claims start while no broker takes a fetching connection: they wait.
func TestClaimsStartWhenTheirLeaderIsBack(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 4, nil)
	p := k.producer(t)
	for id := range int32(4) {
		send(t, p, topic, id, "a")
	}
	c := k.connect(t, groupOptions)
	g := newGate()
	c.conns[1].dial = g.Dial // the fetching client's
	c.conns[1].interrupt()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	group, err := c.Group()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = group.Close() })
	h := &handlerAtSetup{do: g.close}
	ended := make(chan error, 1)
	go func() { ended <- group.Consume(ctx, []string{topic}, h) }()
	eventually(t, "refused fetching connections", func() bool { return g.refusals() > 8 })
	g.open()
	eventually(t, "all records", func() bool { return h.records.Load() == 4 })
	if h.setups.Load() != 1 {
		t.Errorf("%d sessions", h.setups.Load())
	}
	select {
	case err := <-ended:
		t.Errorf("Consume returned %v", err)
	default:
	}
}

type handlerAtSetup struct {
	handler
	do func()
}

func (h *handlerAtSetup) Setup(s sarama.ConsumerGroupSession) error {
	h.do()
	return h.handler.Setup(s)
}

func TestInterruptJoin(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, func(o *Options) {
		groupOptions(o)
		o.RebalanceTimeout = time.Hour // so that only the interruption can end the join
	})
	joining, held := make(chan struct{}), newSleeper(t, k.fake.Fake())
	var once sync.Once
	k.fake.Fake().ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		once.Do(func() { close(joining) })
		held.sleep()
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(context.Background())
	_, group, ended := consume(ctx, t, c, topic)
	<-joining
	cancel()
	c.InterruptJoin()
	_ = finish(t, ended) // with whatever error
	held.wake()
	if err := group.Close(); err != nil {
		t.Error(err)
	}
}

// A member that stops while the group is joining leaves it all the same.
func TestLeaveAfterInterruptJoin(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, groupOptions)
	ctx, cancel := context.WithCancel(context.Background())
	h, group, ended := consume(ctx, t, c, topic)
	eventually(t, "a claim", func() bool { return h.started.Load() == 1 })
	cancel()
	c.InterruptJoin()
	_ = finish(t, ended)
	if err := group.Close(); err != nil {
		t.Error(err)
	}
	if info := k.fake.Fake().GroupInfo(c.opts.GroupID); info != nil && len(info.Members) != 0 {
		t.Errorf("members left in the group: %+v", info.Members)
	}
}

func TestInterruptJoinEndsTheWaitForACoordinator(t *testing.T) {
	k := fakeCluster(t, 1)
	c := k.connect(t, func(o *Options) {
		groupOptions(o)
		o.SessionTimeout = time.Hour // so that only the interruption can end it
	})
	g := newGate()
	g.close()
	c.joins.dial = g.Dial
	c.joins.interrupt()
	waits := make(chan error, 2)
	go func() { _, err := c.group.Coordinator(c.opts.GroupID); waits <- err }()
	go func() { waits <- c.group.RefreshCoordinator(c.opts.GroupID) }()
	eventually(t, "tries", func() bool { return g.refusals() > 4 })
	c.InterruptJoin()
	for range 2 {
		if err := finish(t, waits); err == nil {
			t.Error("found a coordinator that is away")
		}
	}
	g.open()
	if _, err := c.group.Coordinator(c.opts.GroupID); err != nil {
		t.Errorf("leaving the group needs its coordinator still: %v", err)
	}
}

func TestCoordinatorHandsOutOpenConnectionsOnly(t *testing.T) {
	k := anyCluster(t)
	c := k.connect(t, groupOptions)
	for range 5 {
		broker, err := c.group.Coordinator(c.opts.GroupID)
		if err != nil {
			t.Fatal(err)
		}
		if open, err := broker.Connected(); !open {
			t.Errorf("not open: %v", err)
		}
		_ = broker.Close() // as sarama does after a heartbeat that failed
	}
}

func TestGroupNeedsItsOptions(t *testing.T) {
	k := fakeCluster(t, 1)
	for name, change := range map[string]func(*Options){
		"no strategy": nil,
		"no group":    func(o *Options) { groupOptions(o); o.GroupID = "" },
		"instance id": func(o *Options) { groupOptions(o); o.InstanceID = "not/allowed" },
	} {
		o := Options{Brokers: k.addrs, GroupID: unique("group")}
		if change != nil {
			change(&o)
		}
		c, err := Connect(deadline(t), o)
		if err != nil {
			continue // refused already
		}
		if _, err := c.Group(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestFaultsOfClaims(t *testing.T) {
	broken := errors.New("connection reset")
	for name, test := range map[string]struct {
		err   error
		heals bool
	}{
		"a broken connection": {broken, true},
		"no brokers":          {sarama.Wrap(sarama.ErrOutOfBrokers, broken), true},
		"no leader":           {sarama.ErrLeaderNotAvailable, true},
		"a missing right":     {sarama.ErrTopicAuthorizationFailed, false},
		"closed":              {sarama.ErrClosedClient, false},
		"out of range":        {sarama.ErrOffsetOutOfRange, false},
	} {
		got := claimFault(test.err)
		if errors.Is(got, sarama.ErrLeaderNotAvailable) != test.heals || !errors.Is(got, test.err) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if claimFault(nil) != nil {
		t.Error("nil is a fault")
	}
}

func TestOnlyLeaderless(t *testing.T) {
	leaderless := fmt.Errorf("a: %w", sarama.ErrLeaderNotAvailable)
	unknown := fmt.Errorf("b: %w", sarama.ErrUnknownTopicOrPartition)
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {leaderless, true}, {unknown, false}, {errors.Join(leaderless, unknown), false}, {sarama.ErrOutOfBrokers, false},
	} {
		if got := onlyLeaderless(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}

// A rebalance that the member itself wants is one as any other: another
// generation, and the claims go on.
func TestEnforceRebalance(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 3, nil)
	c := k.connect(t, groupOptions)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, ended := consume(ctx, t, c, topic)
	eventually(t, "the claims", func() bool { return h.started.Load() == 3 })
	for range 3 {
		before := h.generation(c).Generation
		c.EnforceRebalance()
		eventually(t, "another generation", func() bool { return h.generation(c).Generation == before+1 })
	}
	if h.setups.Load() != 1 || h.started.Load() != 3 || h.ended.Load() != 0 {
		t.Errorf("%d sessions, %d claims, of which %d have ended", h.setups.Load(), h.started.Load(), h.ended.Load())
	}
	p := k.producer(t)
	send(t, p, topic, 0, "a")
	eventually(t, "a record", func() bool { return h.records.Load() == 1 })
	cancel()
	if err := finish(t, ended); err != nil {
		t.Error(err)
	}
}
