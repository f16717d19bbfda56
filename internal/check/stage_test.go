package check

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap/zaptest"

	"joiner/internal/assign"
	"joiner/internal/enrich"
	"joiner/internal/kafka"
	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/test/cluster"
)

const patience = 90 * time.Second // against hanging, never a measure

// stage is a cluster on which faults are planted.
type stage struct {
	*cluster.Cluster
	t        testing.TB
	ctx      context.Context
	admin    sarama.ClusterAdmin
	producer *kgo.Client
}

func newStage(t testing.TB, c *cluster.Cluster, more ...kgo.Opt) *stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	t.Cleanup(cancel)
	p, err := kgo.NewClient(append(more, kgo.SeedBrokers(c.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return &stage{Cluster: c, t: t, ctx: ctx, admin: c.Admin(t), producer: p}
}

// topics are the four that a configuration names.
type topics struct{ market, notes, alerts, dead string }

// config changes a topic's settings.
type config map[string]string

func (s *stage) topic(what string, n int32, changes config) string {
	name := s.Name(what)
	s.Topic(s.t, name, n, changes)
	return name
}

func (s *stage) market(n int32, changes config) string {
	c := config{"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
	for k, v := range changes {
		c[k] = v
	}
	return s.topic("market", n, c)
}

func (s *stage) notes(n int32, changes config) string { return s.topic("notes", n, changes) }

func (s *stage) output(what string, n int32, changes config) string {
	c := config{"max.message.bytes": "1114124"}
	for k, v := range changes {
		c[k] = v
	}
	return s.topic(what, n, c)
}

// batch says what to write.
type batch struct {
	topic       string
	partitioner string
	n           int32
	records     int
	symbols     int
	hot         int // of ten records, so many have one key
	at          func(i int) time.Time
	value       func(i int) string
}

// write writes a batch in one partition after the other's order.
func (s *stage) write(b batch) {
	s.t.Helper()
	by, err := placement.ByName(b.partitioner)
	if err != nil {
		s.t.Fatal(err)
	}
	records := make([]*kgo.Record, 0, b.records)
	for i := range b.records {
		key := fmt.Appendf(nil, "SYM%03d", i%b.symbols)
		if i%10 < b.hot {
			key = []byte("GOTO")
		}
		value := `{"price": 9150.25}`
		if b.value != nil {
			value = b.value(i)
		}
		at := time.Now()
		if b.at != nil {
			at = b.at(i)
		}
		records = append(records, &kgo.Record{
			Topic: b.topic, Partition: by.Partition(key, b.n), Key: key, Value: []byte(value), Timestamp: at,
		})
	}
	if err := s.producer.ProduceSync(s.ctx, records...).FirstErr(); err != nil {
		s.t.Fatal(err)
	}
}

// options are those of a configuration that names these topics.
func (s *stage) options(names topics) Options {
	s.t.Helper()
	market, err := enrich.NewMarketDecoder(enrich.MarketOptions{Symbol: "key", Price: "price", EventTime: "record"})
	if err != nil {
		s.t.Fatal(err)
	}
	notes, err := enrich.NewNoteDecoder(enrich.NoteOptions{Symbol: "key", EventTime: "record"})
	if err != nil {
		s.t.Fatal(err)
	}
	o := Options{
		Kafka: kafka.Options{
			Brokers: slices.Clone(s.Brokers), GroupID: s.Name("group"), ReadCommitted: true,
			Topics:         []string{names.market, names.notes, names.alerts, names.dead},
			SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second, Log: zaptest.NewLogger(s.t),
		},
		Alerts: names.alerts, DeadLetters: names.dead, ReplicationFactor: -1,
		Strategy: "copartition", RemoteLookup: true, CommitInterval: time.Second, Advertised: "10.0.0.1:8081", Timeout: patience,
	}
	o.Inputs[record.Market] = Input{
		Topic: names.market, Partitioner: "murmur2", OwnTime: true,
		Decode: func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) {
			tick, bad := market.Decode(r)
			return tick.Symbol, tick.EventTime, bad
		},
	}
	o.Inputs[record.Notification] = Input{
		Topic: names.notes, Partitioner: "murmur2", OwnTime: true,
		Decode: func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) {
			note, bad := notes.Decode(r)
			return note.Symbol, note.EventTime, bad
		},
	}
	for side := range o.Inputs {
		o.Inputs[side].Placer, err = placement.New(placement.Options{Topic: o.Inputs[side].Topic, Partitioner: "murmur2"})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return o
}

// finds runs the check and compares all that is not ok.
func (s *stage) finds(o Options, want ...wantFinding) {
	s.t.Helper()
	report, err := Run(s.ctx, o)
	if err != nil {
		s.t.Fatal(err)
	}
	assertShape(s.t, report.Findings)
	assertExactly(s.t, report.Findings, want)
}

// commit commits, for a group without members, this offset in each partition of
// a topic.
func (s *stage) commit(group, topic string, n int32, offset func(start, end int64) int64) {
	s.t.Helper()
	clients, err := kafka.Connect(s.ctx, kafka.Options{Brokers: s.Brokers, GroupID: group, Topics: []string{topic}})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = clients.Close() }()
	offsets := make(map[int32]int64)
	for id := range n {
		start, end, err := clients.Reader.Bounds(s.ctx, topic, id)
		if err != nil {
			s.t.Fatal(err)
		}
		offsets[id] = offset(start, end)
	}
	refused, err := clients.CommitOffsets(s.ctx, kafka.Generation{Group: group, Generation: -1}, map[string]map[int32]int64{topic: offsets}, nil)
	if err != nil || len(refused) > 0 {
		s.t.Fatalf("committing: %v, refused %v", err, refused)
	}
}

// joins has a consumer of sarama's in the group until the test ends, and
// returns once it is a member.
func (s *stage) joins(group string, strategy sarama.BalanceStrategy, topics ...string) {
	s.t.Helper()
	conf := cluster.Config()
	conf.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	conf.Consumer.Group.Session.Timeout = 10 * time.Second
	member, err := sarama.NewConsumerGroup(s.Brokers, group, conf)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	in, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil && member.Consume(ctx, topics, idle{in}) == nil { // a rebalance ends a session
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		if err := member.Close(); err != nil {
			s.t.Error(err)
		}
	})
	select {
	case <-in:
	case <-done:
		s.t.Fatal("the consumer could not join")
	}
}

// idle is a consumer that reads nothing.
type idle struct{ in chan struct{} }

func (i idle) Setup(sarama.ConsumerGroupSession) error {
	select {
	case i.in <- struct{}{}:
	default:
	}
	return nil
}
func (i idle) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (i idle) ConsumeClaim(s sarama.ConsumerGroupSession, _ sarama.ConsumerGroupClaim) error {
	<-s.Context().Done()
	return nil
}

// future speaks copartition as a release would whose format we cannot read.
type future struct{ sarama.BalanceStrategy }

func (future) Name() string { return assign.ProtocolName }

func (future) SubscriptionUserData([]string) ([]byte, error) { return []byte{9, 'j', 'u', 0}, nil }
