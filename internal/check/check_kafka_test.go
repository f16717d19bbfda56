package check

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"

	"joiner/internal/kafka"
	"joiner/test/cluster"
)

// TestKafkaCheck plants faults on a real cluster, several that have nothing to
// do with each other at a time, and wants exactly those found; and nothing
// where there is none.
func TestKafkaCheck(t *testing.T) {
	s := newStage(t, cluster.Start(t, cluster.Options{}))
	fine := topics{s.market(6, nil), s.notes(6, nil), s.output("alerts", 6, nil), s.output("dead", 6, nil)}
	s.write(batch{topic: fine.market, partitioner: "murmur2", n: 6, records: 600, symbols: 60})
	s.write(batch{topic: fine.notes, partitioner: "murmur2", n: 6, records: 300, symbols: 60})

	t.Run("healthy", func(t *testing.T) {
		s := s.with(t)
		o := s.options(fine)
		s.finds(o)
		for _, topic := range []string{fine.market, fine.notes} {
			s.commit(o.Kafka.GroupID, topic, 6, func(_, end int64) int64 { return end - 1 })
		}
		o.ExactlyOnce, o.TransactionalID, o.Create, o.Kafka.Rack = true, "check-", true, "r1"
		s.finds(o)
	})

	t.Run("policies", func(t *testing.T) {
		s := s.with(t)
		names := topics{
			market: s.topic("market", 6, nil),
			notes:  s.notes(6, config{"cleanup.policy": "compact"}),
			alerts: s.topic("alerts", 6, config{"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime", "min.insync.replicas": "3"}),
			dead:   s.Name("dead"),
		}
		s.single(names.dead, 6, config{"unclean.leader.election.enable": "true", "max.message.bytes": "1114124"})
		s.finds(s.options(names),
			wantFinding{"market_cleanup", Warning, names.market, "symbols without a tick for 7d have no price", "compact"},
			wantFinding{"notifications_cleanup", Failure, names.notes, "only the last survives", "delete"},
			wantFinding{"output_cleanup", Warning, names.alerts, "only the last survives", "delete"},
			wantFinding{"output_timestamps", Warning, names.alerts, "LogAppendTime", "CreateTime"},
			wantFinding{"min_insync_replicas", Warning, names.alerts, "3 of 3 replicas", "lower min.insync.replicas to 2"},
			wantFinding{"message_size", Warning, names.alerts, "takes records of 1048588 bytes", "1114124"},
			wantFinding{"replication", Warning, names.dead, "one replica", "replication factor of 3"},
			wantFinding{"min_insync_replicas", Failure, names.dead, "is 2 and there are 1 replica", "raise the replication factor"},
			wantFinding{"unclean_leader_election", Warning, names.dead, "acknowledged records are then lost", "false"},
		)
	})

	t.Run("times", func(t *testing.T) {
		s := s.with(t)
		names := topics{
			market: s.market(6, config{"min.compaction.lag.ms": "1000", "delete.retention.ms": "1000"}),
			notes:  s.notes(6, config{"retention.ms": "10800000", "retention.bytes": "1000"}),
			alerts: s.output("alerts", 6, config{"retention.ms": "3600000"}),
			dead:   s.output("dead", 6, config{"message.timestamp.before.max.ms": "3600000"}),
		}
		old := time.Now().Add(-2 * time.Hour)
		// Every tick in ten is a second late.
		s.write(batch{topic: names.market, partitioner: "murmur2", n: 6, records: 600, symbols: 60, at: func(i int) time.Time {
			return old.Add(time.Duration(i-i/300*3000) * time.Millisecond)
		}})
		s.write(batch{topic: names.notes, partitioner: "murmur2", n: 6, records: 600, symbols: 60, at: func(int) time.Time { return old }})
		o := s.options(names)
		for _, topic := range []string{names.market, names.notes} {
			s.commit(o.Kafka.GroupID, topic, 6, func(start, _ int64) int64 { return start })
		}
		s.finds(o,
			wantFinding{"market_compaction_lag", Failure, names.market, "compacted after 1s, and the group is 2h behind", "min.compaction.lag.ms to 2"},
			wantFinding{"market_compaction_lag", Warning, names.market, "tombstones may be removed after 1s", "delete.retention.ms"},
			wantFinding{"market_order", Warning, names.market, "300 of 600 sampled ticks are older", "in the order of their event times"},
			wantFinding{"retention", Warning, names.notes, "it is 2h behind, and records are deleted after 3h", "raise retention.ms"},
			wantFinding{"retention", Warning, names.notes, "uncompressed, and a partition keeps 1000", "raise retention.bytes"},
			wantFinding{"output_retention", Failure, names.alerts, "the next records to read are 2h old", "raise retention.ms"},
			wantFinding{"output_timestamp_limits", Failure, names.dead, "no timestamps more than 1h back", "before.max.ms"},
		)
	})

	t.Run("records", func(t *testing.T) {
		s := s.with(t)
		names := fine
		names.market, names.notes = s.market(6, nil), s.notes(6, nil)
		s.write(batch{topic: names.market, partitioner: "fnv1a", n: 6, records: 600, symbols: 60, value: func(i int) string {
			if i%100 == 0 {
				return `{"price": "about 9150"}`
			}
			return `{"price": 9150.25}`
		}})
		s.write(batch{
			topic: names.notes, partitioner: "crc32", n: 6, records: 600, symbols: 60, hot: 3,
			at: func(int) time.Time { return time.Now().Add(time.Minute) },
		})
		s.finds(s.options(names),
			wantFinding{"records", Warning, names.market, "6 of 600 sampled records cannot be joined: invalid_price", "market.price"},
			wantFinding{"key_placement", Warning, names.market, "fnv1a explains 100% of the keys", "topics.market_updates_partitioner: fnv1a"},
			wantFinding{"key_placement", Warning, names.notes, "crc32 explains 100% of the keys", "topics.notifications_partitioner: crc32"},
			wantFinding{"hot_keys", Warning, names.notes, `key "GOTO" is about 3`, "topics.reserved"},
			wantFinding{"clock_skew", Warning, names.notes, "ahead of this machine's clock", "NTP"},
		)
	})

	t.Run("counts and settings", func(t *testing.T) {
		s := s.with(t)
		names := fine
		names.notes, names.alerts = s.notes(4, nil), s.output("alerts", 4, nil)
		o := s.options(names)
		o.Kafka.Brokers = append(o.Kafka.Brokers, "127.0.0.1:1")
		o.Kafka.Heartbeat, o.Kafka.SessionTimeout = 100*time.Millisecond, 500*time.Millisecond
		o.Reserved, o.Replicas, o.Advertised = []int32{1, 5}, 7, "127.0.0.1:8081"
		want := []wantFinding{
			{"bootstrap", Warning, "127.0.0.1:1", "is away, another bootstrap server answers", "start the broker"},
			{"partition_counts", Failure, names.market + ", " + names.notes, "6 and 4 partitions", "grow " + names.notes + " to 6"},
			{"reserved", Failure, names.notes, "names partition 5", "topics.reserved"},
			{"output_topics", Failure, names.alerts, "4 partitions, the inputs have 6", "grow it to 6"},
			{"replicas", Warning, "--replicas", "7 replicas for 4 partitions: 3 idle", "as many"},
			{"peer_advertise", Warning, "peer.advertise", "127.0.0.1:8081 is reached from this machine alone", "peer.advertise"},
		}
		visits := s.visits(o)
		for _, v := range visits {
			want = append(want, wantFinding{"broker_settings", Failure, broker(v), "refuses group.session_timeout 500ms", "1s or more"})
		}
		s.finds(o, want...)
	})

	t.Run("missing topics", func(t *testing.T) {
		s := s.with(t)
		names := fine
		names.market, names.dead = s.Name("none"), s.Name("none")
		want := append(blind("does not exist", outputChecks(), names.dead),
			wantFinding{"input_topics", Failure, names.market, "does not exist", "create it"},
			wantFinding{"output_topics", Failure, names.dead, "does not exist", "create it with 6 partitions"},
			wantFinding{"rights", Warning, "topic " + names.market, "does not exist", ""},
			wantFinding{"rights", Warning, "topic " + names.dead, "does not exist", ""},
			wantFinding{"partition_counts", Warning, names.market + ", " + names.notes, "does not exist", ""},
			wantFinding{"output_timestamp_limits", Warning, names.market, "does not exist", ""},
			wantFinding{"output_topics", Warning, names.alerts, names.market + ": could not be looked at", ""},
		)
		want = append(want, blind("does not exist", []string{
			"replication", "min_insync_replicas", "unclean_leader_election", "market_cleanup", "market_compaction_lag", "market_order",
			"committed_offsets", "retention", "input_timestamps", "records", "key_placement", "hot_keys", "clock_skew", "replicas", "message_size",
		}, names.market)...)
		s.finds(s.options(names), want...)
	})

	t.Run("topics that cannot be created", func(t *testing.T) {
		s := s.with(t)
		names := fine
		names.alerts = s.Name("none")
		o := s.options(names)
		o.Create, o.ReplicationFactor = true, 9
		s.finds(o, append(blind("does not exist", outputChecks(), names.alerts),
			wantFinding{"output_topics", Failure, names.alerts, "refuse to create it with 6 partitions", "topics.replication_factor"},
			wantFinding{"rights", Warning, "topic " + names.alerts, "could not be looked at", "output_topics"})...)
	})

	t.Run("offsets", func(t *testing.T) {
		s := s.with(t)
		names := fine
		names.notes = s.notes(1, nil)
		names.market = s.market(1, nil)
		s.write(batch{topic: names.notes, partitioner: "murmur2", n: 1, records: 100, symbols: 60})
		if err := s.admin.DeleteRecords(names.notes, map[int32]int64{0: 50}); err != nil {
			t.Fatal(err)
		}
		o := s.options(names)
		s.commit(o.Kafka.GroupID, names.notes, 1, func(int64, int64) int64 { return 10 })
		s.commit(o.Kafka.GroupID, names.market, 1, func(_, end int64) int64 { return end + 100 })
		s.finds(o,
			wantFinding{"committed_offsets", Failure, names.notes, "40 offsets deleted before the group had read them", "retention"},
			wantFinding{"committed_offsets", Failure, names.market, "partition 0 are above the end", "made anew"},
			wantFinding{"output_topics", Warning, names.alerts, "6 partitions, the inputs have 1", "grow the inputs"},
			wantFinding{"output_topics", Warning, names.dead, "6 partitions, the inputs have 1", "grow the inputs"},
		)
	})

	t.Run("groups", func(t *testing.T) {
		s := s.with(t)
		o := s.options(fine)
		s.joins(o.Kafka.GroupID, sarama.NewBalanceStrategyRange(), fine.market, fine.notes)
		s.joins(o.Kafka.GroupID, sarama.NewBalanceStrategyRange(), fine.alerts)
		members := s.members(o, 2)
		other, own := members[0], members[1]
		if len(other.Topics) == 2 {
			other, own = own, other
		}
		s.finds(o,
			wantFinding{"group_protocol", Failure, "group " + o.Kafka.GroupID, "uses range", "group.strategy: range"},
			wantFinding{"group_members", Failure, "member " + member(own), "is no joiner, and takes partitions 0, 1, 2, 3, 4, 5 of " + fine.market, "group.id of its own"},
			wantFinding{"group_members", Warning, "member " + member(other), "is subscribed to " + fine.alerts, "group.id of its own"},
		)

		newer := s.options(fine)
		s.joinsNewer(newer.Kafka.GroupID, fine.market, fine.notes)
		s.finds(newer,
			wantFinding{"group_protocol", Failure, "group " + newer.Kafka.GroupID, "KIP-848", "group.id"},
			wantFinding{"group_members", Warning, "group " + newer.Kafka.GroupID, "none of them a joiner", "group_protocol"})

		release := s.options(fine)
		s.joins(release.Kafka.GroupID, future{sarama.NewBalanceStrategyRange()}, fine.market, fine.notes)
		s.finds(release, wantFinding{"group_release", Warning, "member " + member(s.members(release, 1)[0]), "it writes format 9", "finish the upgrade"})
	})
}

// with is the stage for one subtest.
func (s *stage) with(t testing.TB) *stage {
	copied := *s
	copied.t = t
	return &copied
}

// single makes a topic of one replica.
func (s *stage) single(name string, n int32, changes config) {
	s.t.Helper()
	entries := make(map[string]*string)
	for k, v := range changes {
		entries[k] = &v
	}
	if err := s.admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: n, ReplicationFactor: 1, ConfigEntries: entries}, false); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = s.admin.DeleteTopic(name) })
}

// visits are the cluster's brokers.
func (s *stage) visits(o Options) []kafka.Visit {
	s.t.Helper()
	survey, err := kafka.NewSurvey(o.Kafka)
	if err != nil {
		s.t.Fatal(err)
	}
	defer survey.Close()
	v := survey.Visit(s.ctx, -1, o.Kafka.Brokers[0])
	if v.Err != nil {
		s.t.Fatal(v.Err)
	}
	var visits []kafka.Visit
	for _, b := range v.Brokers {
		visits = append(visits, kafka.Visit{ID: b.ID, Address: b.Address})
	}
	return visits
}

// members waits until the group is stable with n members and returns them.
func (s *stage) members(o Options, n int) []kafka.GroupMember {
	s.t.Helper()
	clients, err := kafka.Connect(s.ctx, o.Kafka)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = clients.Close() }()
	for {
		g, err := clients.DescribeGroup(s.ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		if g.State == "Stable" && len(g.Members) == n {
			return g.Members
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// joinsNewer has a consumer of the newer protocol in the group until the test
// ends.
func (s *stage) joinsNewer(group string, topics ...string) {
	s.t.Helper()
	in := make(chan struct{}, 1)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(s.Brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...), kgo.ServerSideBalancer(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) {
			select {
			case in <- struct{}{}:
			default:
			}
		}),
	)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	select {
	case <-in:
	case <-s.ctx.Done():
		s.t.Fatal("the consumer could not join")
	}
}

func without(list []wantFinding, one wantFinding) []wantFinding {
	return slices.DeleteFunc(slices.Clone(list), func(w wantFinding) bool { return w == one })
}
