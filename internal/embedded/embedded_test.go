package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

const wait = 30 * time.Second // against hanging, never a measure

func TestStartRefusesWhatMakesNoSense(t *testing.T) {
	for name, opts := range map[string]Options{
		"negative brokers": {Brokers: -1},
		"no partitions":    {Topics: []Topic{{Name: "a"}}},
		"no name":          {Topics: []Topic{{Partitions: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			if c, err := Start(opts); err == nil {
				c.Close()
				t.Fatal("no error")
			}
		})
	}
}

func TestCloseTwiceAndAddrsAfter(t *testing.T) {
	c, err := Start(Options{Brokers: 2})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	c.Close()
	addrs := c.Addrs()
	if len(addrs) != 2 {
		t.Fatalf("addresses %v, want two", addrs)
	}
	for _, a := range addrs {
		if !strings.HasPrefix(a, "127.0.0.1:") {
			t.Fatalf("%s is not on loopback", a)
		}
	}
}

// TestWhatJoinerNeeds sends every request that joiner makes of a broker,
// through sarama, at the oldest, the documented and the newest version.
func TestWhatJoinerNeeds(t *testing.T) {
	documented, err := sarama.ParseKafkaVersion(Version)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []sarama.KafkaVersion{sarama.V2_8_0_0, documented, sarama.MaxVersion} {
		t.Run(v.String(), func(t *testing.T) {
			p := newProbe(t, v)
			t.Run("Topics", p.topics)
			t.Run("Configs", p.configs)
			t.Run("IdempotentBatches", p.idempotentBatches)
			t.Run("Transactions", p.transactions)
			t.Run("Group", p.group)
			t.Run("StaticMember", p.staticMember)
			t.Run("Sizes", p.sizes)
		})
	}
}

type probe struct {
	cluster *Cluster
	version sarama.KafkaVersion
	client  sarama.Client
	admin   sarama.ClusterAdmin
}

func newProbe(t *testing.T, v sarama.KafkaVersion) *probe {
	t.Helper()
	c, err := Start(Options{
		Brokers: 3,
		Topics:  []Topic{{"a", 6}, {"b", 6}, {"txn", 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p := &probe{cluster: c, version: v}
	p.client = p.newClient(t)
	if p.admin, err = sarama.NewClusterAdminFromClient(p.client); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *probe) config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = p.version
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.Group.Rebalance.Retry.Backoff = 100 * time.Millisecond
	c.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	return c
}

func (p *probe) newClient(t *testing.T) sarama.Client {
	t.Helper()
	client, err := sarama.NewClient(p.cluster.Addrs(), p.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (p *probe) topics(t *testing.T) {
	err := p.admin.CreateTopic("made", &sarama.TopicDetail{NumPartitions: 6, ReplicationFactor: -1}, false)
	if err != nil {
		t.Fatalf("create with the broker's replication factor: %v", err)
	}
	if err := p.admin.CreatePartitions("made", 12, nil, false); err != nil {
		t.Fatalf("grow: %v", err)
	}
	found, err := p.admin.DescribeTopics([]string{"made", "missing"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		switch {
		case f.Name == "made" && len(f.Partitions) != 12:
			t.Fatalf("%d partitions after growth, want 12", len(f.Partitions))
		case f.Name == "missing" && f.Err != sarama.ErrUnknownTopicOrPartition:
			t.Fatalf("missing topic: %v", f.Err)
		}
	}
	if err := p.admin.DeleteTopic("made"); err != nil {
		t.Fatalf("delete: %v", err)
	}
}

func (p *probe) configs(t *testing.T) {
	results, err := p.admin.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: "a"}}, sarama.DescribeConfigsOptions{})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results: %v", len(results), err)
	}
	got := map[string]string{}
	for _, e := range results[0].Configs {
		got[e.Name] = e.Value
	}
	for _, key := range []string{"max.message.bytes", "message.timestamp.type", "retention.ms", "cleanup.policy"} {
		if got[key] == "" {
			t.Errorf("topic configuration %s is not described", key)
		}
	}
	err = p.admin.CreateTopic("compacted", &sarama.TopicDetail{
		NumPartitions: 1, ReplicationFactor: 1,
		ConfigEntries: map[string]*string{"cleanup.policy": ptr("compact"), "max.message.bytes": ptr("2000000")},
	}, false)
	if err != nil {
		t.Fatalf("create with configuration: %v", err)
	}
}

func ptr[T any](v T) *T { return &v }

// batch is one record batch as the writer of alerts sends it.
func batch(pid int64, epoch int16, seq int32, txn bool, values ...string) *sarama.RecordBatch {
	now := time.Now().Truncate(time.Millisecond)
	b := &sarama.RecordBatch{
		Version: 2, ProducerID: pid, ProducerEpoch: epoch, FirstSequence: seq, IsTransactional: txn,
		FirstTimestamp: now, MaxTimestamp: now, LastOffsetDelta: int32(len(values) - 1),
	}
	for i, v := range values {
		b.Records = append(b.Records, &sarama.Record{OffsetDelta: int64(i), Key: []byte("k"), Value: []byte(v)})
	}
	return b
}

// produce sends one batch raw, acks=all, and returns the base offset.
func (p *probe) produce(t *testing.T, topic string, partition int32, txn *string, b *sarama.RecordBatch) (int64, sarama.KError) {
	t.Helper()
	leader, err := p.client.Leader(topic, partition)
	if err != nil {
		t.Fatal(err)
	}
	req := &sarama.ProduceRequest{Version: 7, RequiredAcks: sarama.WaitForAll, Timeout: 10000, TransactionalID: txn}
	req.AddBatch(topic, partition, b)
	resp, err := leader.Produce(req)
	if err != nil {
		t.Fatal(err)
	}
	block := resp.GetBlock(topic, partition)
	return block.Offset, block.Err
}

func (p *probe) fetch(t *testing.T, topic string, partition int32, from int64, level sarama.IsolationLevel) *sarama.FetchResponseBlock {
	t.Helper()
	leader, err := p.client.Leader(topic, partition)
	if err != nil {
		t.Fatal(err)
	}
	req := &sarama.FetchRequest{Version: 11, MaxWaitTime: 100, MinBytes: 1, MaxBytes: 1 << 20, Isolation: level, SessionEpoch: -1}
	req.AddBlock(topic, partition, from, 1<<20, -1)
	resp, err := leader.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	block := resp.GetBlock(topic, partition)
	if block == nil || block.Err != sarama.ErrNoError {
		t.Fatalf("fetch %s/%d at %d: %+v", topic, partition, from, block)
	}
	return block
}

func (p *probe) idempotentBatches(t *testing.T) {
	pid, err := p.client.InitProducerID()
	if err != nil {
		t.Fatal(err)
	}
	first := batch(pid.ProducerID, pid.ProducerEpoch, 0, false, "one", "two")
	base, kerr := p.produce(t, "a", 3, nil, first)
	if kerr != sarama.ErrNoError {
		t.Fatal(kerr)
	}
	// The same bytes under the same sequence: answered, not appended.
	again, kerr := p.produce(t, "a", 3, nil, batch(pid.ProducerID, pid.ProducerEpoch, 0, false, "one", "two"))
	if kerr != sarama.ErrNoError && kerr != sarama.ErrDuplicateSequenceNumber {
		t.Fatalf("same sequence again: %v", kerr)
	}
	if kerr == sarama.ErrNoError && again != base {
		t.Fatalf("same sequence again got offset %d, want %d", again, base)
	}
	if _, kerr = p.produce(t, "a", 3, nil, batch(pid.ProducerID, pid.ProducerEpoch, 7, false, "gap")); kerr != sarama.ErrOutOfOrderSequenceNumber {
		t.Fatalf("sequence with a gap: %v", kerr)
	}
	if _, kerr = p.produce(t, "a", 3, nil, batch(pid.ProducerID, pid.ProducerEpoch, 2, false, "three")); kerr != sarama.ErrNoError {
		t.Fatalf("the sequence after: %v", kerr)
	}
	block := p.fetch(t, "a", 3, 0, sarama.ReadCommitted)
	n := 0
	for _, set := range block.RecordsSet {
		n += len(set.RecordBatch.Records)
	}
	if n != 3 || block.LastStableOffset != 3 {
		t.Fatalf("%d records, last stable offset %d, want 3 and 3", n, block.LastStableOffset)
	}
}

func (p *probe) ends(t *testing.T, level sarama.IsolationLevel) int64 {
	t.Helper()
	got, err := p.admin.ListOffsets(map[string]map[int32]int64{"txn": {0: sarama.OffsetNewest}},
		&sarama.ListOffsetsOptions{IsolationLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	r := got["txn"][0]
	// sarama hands the error code on as it is: without a fault it is
	// ErrNoError, not nil.
	if r.Err == nil || errors.Is(r.Err, sarama.ErrNoError) {
		return r.Offset
	}
	t.Fatal(r.Err)
	return 0
}

func (p *probe) transactions(t *testing.T) {
	id := "t1"
	coordinator, err := p.client.TransactionCoordinator(id)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := coordinator.InitProducerID(&sarama.InitProducerIDRequest{
		Version: 1, TransactionalID: &id, TransactionTimeout: 10 * time.Second,
	})
	if err != nil || pid.Err != sarama.ErrNoError {
		t.Fatal(err, pid)
	}
	add := &sarama.AddPartitionsToTxnRequest{
		Version: 1, TransactionalID: id, ProducerID: pid.ProducerID, ProducerEpoch: pid.ProducerEpoch,
		TopicPartitions: map[string][]int32{"txn": {0}},
	}
	if resp, err := coordinator.AddPartitionsToTxn(add); err != nil || resp.Errors["txn"][0].Err != sarama.ErrNoError {
		t.Fatal(err, resp)
	}
	if _, kerr := p.produce(t, "txn", 0, &id, batch(pid.ProducerID, pid.ProducerEpoch, 0, true, "open")); kerr != sarama.ErrNoError {
		t.Fatal(kerr)
	}
	if committed, all := p.ends(t, sarama.ReadCommitted), p.ends(t, sarama.ReadUncommitted); committed != 0 || all != 1 {
		t.Fatalf("open transaction: ends %d and %d, want 0 and 1", committed, all)
	}
	end := &sarama.EndTxnRequest{
		Version: 1, TransactionalID: id, ProducerID: pid.ProducerID, ProducerEpoch: pid.ProducerEpoch, TransactionResult: false,
	}
	if resp, err := coordinator.EndTxn(end); err != nil || resp.Err != sarama.ErrNoError {
		t.Fatal(err, resp)
	}
	eventually(t, "the abort marker ends the transaction", func() bool { return p.ends(t, sarama.ReadCommitted) == 2 })
	block := p.fetch(t, "txn", 0, 0, sarama.ReadCommitted)
	if len(block.AbortedTransactions) != 1 {
		t.Fatalf("%d aborted transactions listed, want 1", len(block.AbortedTransactions))
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not in %s: %s", wait, what)
}

// sizes: a batch over the topic's max.message.bytes is refused by name, and so
// is a partition that is not there.
func (p *probe) sizes(t *testing.T) {
	pid, err := p.client.InitProducerID()
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 2<<20)
	if _, kerr := p.produce(t, "b", 0, nil, batch(pid.ProducerID, pid.ProducerEpoch, 0, false, big)); kerr != sarama.ErrMessageSizeTooLarge {
		t.Fatalf("too large: %v", kerr)
	}
	leader, err := p.client.Leader("b", 0)
	if err != nil {
		t.Fatal(err)
	}
	req := &sarama.ProduceRequest{Version: 7, RequiredAcks: sarama.WaitForAll, Timeout: 10000}
	req.AddBatch("b", 99, batch(pid.ProducerID, pid.ProducerEpoch, 0, false, "v"))
	resp, err := leader.Produce(req)
	if err != nil {
		t.Fatal(err)
	}
	if kerr := resp.GetBlock("b", 99).Err; kerr != sarama.ErrUnknownTopicOrPartition {
		t.Fatalf("unknown partition: %v", kerr)
	}
}

// halves is a strategy as joiner's is: cooperative, of a name of its own, with
// user data up and assignment data down, both halves of an index together. It
// is for the probe only: it moves whatever a plain modulo moves.
type halves struct {
	id string

	mu       sync.Mutex
	assigned []string // assignment data received, in order
}

func (h *halves) Name() string { return "probe-halves" }

func (h *halves) SupportedProtocols() []sarama.RebalanceProtocol {
	return []sarama.RebalanceProtocol{sarama.RebalanceProtocolCooperative, sarama.RebalanceProtocolEager}
}

func (h *halves) SubscriptionUserData([]string) ([]byte, error) { return []byte(h.id), nil }

func (h *halves) Plan(members map[string]sarama.ConsumerGroupMemberMetadata, topics map[string][]int32) (sarama.BalanceStrategyPlan, error) {
	plan := sarama.BalanceStrategyPlan{}
	held := map[string]map[int32]string{}
	var ids []string
	for id, m := range members {
		ids = append(ids, id)
		plan[id] = map[string][]int32{}
		for _, owned := range m.OwnedPartitions {
			for _, p := range owned.Partitions {
				if held[owned.Topic] == nil {
					held[owned.Topic] = map[int32]string{}
				}
				held[owned.Topic][p] = id
			}
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		return strings.Compare(string(members[a].UserData), string(members[b].UserData))
	})
	for topic, partitions := range topics {
		for _, p := range partitions {
			id := ids[int(p)%len(ids)]
			if holder := held[topic][p]; holder != "" && holder != id {
				continue // withheld until the holder has let go
			}
			plan.Add(id, topic, p)
		}
	}
	return plan, nil
}

func (h *halves) AssignmentData(member string, _ map[string][]int32, generation int32) ([]byte, error) {
	return fmt.Appendf(nil, "directory of %d", generation), nil
}

func (h *halves) OnAssignment(a *sarama.ConsumerGroupMemberAssignment, _ int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.assigned = append(h.assigned, string(a.UserData))
}

// member is one consumer of the group probe.
type member struct {
	group    sarama.ConsumerGroup
	strategy *halves
	done     chan struct{}
	cancel   context.CancelFunc

	mu      sync.Mutex
	session sarama.ConsumerGroupSession
	setups  int
	started map[string]int // topic/partition -> claims started
}

func (m *member) Setup(s sarama.ConsumerGroupSession) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = s
	m.setups++
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.mu.Lock()
	m.started[fmt.Sprintf("%s/%d", claim.Topic(), claim.Partition())]++
	m.mu.Unlock()
	for range claim.Messages() { // drained, nothing more
	}
	return nil
}

func (m *member) claims() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == nil {
		return 0
	}
	n := 0
	for _, ps := range m.session.Claims() {
		n += len(ps)
	}
	return n
}

func (p *probe) join(t *testing.T, id, instance string) *member {
	t.Helper()
	m := &member{strategy: &halves{id: id}, done: make(chan struct{}), started: map[string]int{}}
	c := p.config()
	c.Consumer.Group.InstanceId = instance
	c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{m.strategy}
	g, err := sarama.NewConsumerGroup(p.cluster.Addrs(), "g"+instance, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.group, m.cancel = g, cancel
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			if err := g.Consume(ctx, []string{"a", "b"}, m); errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			}
		}
	}()
	t.Cleanup(func() { m.stop() })
	return m
}

func (m *member) generation() int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == nil {
		return 0
	}
	return m.session.GenerationID()
}

func (m *member) stop() {
	m.cancel()
	_ = m.group.Close()
	<-m.done
}

func (p *probe) group(t *testing.T) {
	first := p.join(t, "1", "")
	eventually(t, "the first member owns all", func() bool { return first.claims() == 12 })
	second := p.join(t, "2", "")
	// The first gives its half up in one generation, and may hear of the next, in
	// which the second has it, after the second does.
	eventually(t, "both own a half, in one generation", func() bool {
		return first.claims() == 6 && second.claims() == 6 && first.generation() == second.generation()
	})

	first.mu.Lock()
	setups, kept := first.setups, first.started["a/0"]
	generation, id := first.session.GenerationID(), first.session.MemberID()
	first.mu.Unlock()
	if setups != 1 || kept != 1 {
		t.Errorf("%d sessions, claim a/0 started %d times: the rebalance was not cooperative", setups, kept)
	}
	second.strategy.mu.Lock()
	if got := second.strategy.assigned; !strings.HasPrefix(got[len(got)-1], "directory of ") {
		t.Errorf("assignment data %q did not arrive", got)
	}
	second.strategy.mu.Unlock()
	p.commits(t, id, generation)
}

// commits writes and reads offsets on a connection that is not the member's.
func (p *probe) commits(t *testing.T, member string, generation int32) {
	coordinator, err := p.client.Coordinator("g")
	if err != nil {
		t.Fatal(err)
	}
	commit := func(generation int32, offset int64) sarama.KError {
		req := sarama.NewOffsetCommitRequest(p.client.Config(), "g")
		req.ConsumerGroupGeneration, req.ConsumerID = generation, member
		req.AddBlockWithLeaderEpoch("a", 0, offset, -1, 0, "")
		resp, err := coordinator.CommitOffset(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Errors["a"][0]
	}
	if kerr := commit(generation, 7); kerr != sarama.ErrNoError {
		t.Fatal(kerr)
	}
	if kerr := commit(generation, 5); kerr != sarama.ErrNoError {
		t.Fatalf("lower: %v", kerr)
	}
	if kerr := commit(generation-1, 9); kerr != sarama.ErrIllegalGeneration {
		t.Fatalf("an older generation: %v", kerr)
	}
	req := sarama.NewOffsetFetchRequest(p.version, "g", map[string][]int32{"a": {0, 1}})
	req.RequireStable = true
	resp, err := coordinator.FetchOffset(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.GetBlock("a", 0); got == nil || got.Offset != 5 {
		t.Fatalf("committed %+v, want 5", got)
	}
	if got := resp.GetBlock("a", 1); got == nil || got.Offset != -1 {
		t.Fatalf("never committed: %+v, want -1", got)
	}
}

func (p *probe) staticMember(t *testing.T) {
	m := p.join(t, "s", "-static")
	eventually(t, "the static member owns all", func() bool { return m.claims() == 12 })
}
