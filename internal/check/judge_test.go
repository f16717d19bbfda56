package check

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/IBM/sarama"

	"joiner/internal/assign"
	"joiner/internal/checkpoint"
	"joiner/internal/hot"
	"joiner/internal/kafka"
	"joiner/internal/placement"
	"joiner/internal/record"
)

// wantFinding is a finding that is not ok. Message and remedy are parts.
type wantFinding struct {
	id      string
	status  Status
	subject string
	message string
	remedy  string
}

func (w wantFinding) is(f Finding) bool {
	return w.id == f.ID && w.status == f.Status && w.subject == f.Subject &&
		strings.Contains(f.Message, w.message) && strings.Contains(f.Remedy, w.remedy)
}

// assertExactly compares the findings that are not ok with those wanted.
func assertExactly(t testing.TB, got []Finding, want []wantFinding) {
	t.Helper()
	left := slices.Clone(want)
	for _, f := range got {
		if f.Status == OK {
			continue
		}
		i := slices.IndexFunc(left, func(w wantFinding) bool { return w.is(f) })
		if i < 0 {
			t.Errorf("not wanted: %+v", f)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, w := range left {
		t.Errorf("missing: %+v", w)
	}
}

func TestHealthy(t *testing.T) {
	findings := judge(healthyOptions(t), healthyFacts())
	assertExactly(t, findings, nil)
	assertShape(t, findings)
}

// assertShape holds for every report, whatever is wrong.
func assertShape(t testing.TB, findings []Finding) {
	t.Helper()
	seen := make(map[string]bool)
	for _, f := range findings {
		seen[f.ID] = true
		if f.Subject == "" || f.Message == "" || strings.ContainsFunc(f.Subject+f.Message+f.Remedy, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("not a line: %+v", f)
		}
		if (f.Status == OK) != (f.Remedy == "") {
			t.Errorf("a remedy belongs to what is not ok, and to that only: %+v", f)
		}
		if strings.Contains(f.Message, "%!") || strings.Contains(f.Remedy, "%!") || strings.Contains(f.Message, "is broken") {
			t.Errorf("a broken check: %+v", f)
		}
	}
	for _, id := range IDs() {
		if !seen[id] {
			t.Errorf("no finding of %s", id)
		}
	}
}

func setting(topic, name, value string) func(*Options, *Facts) {
	return func(_ *Options, f *Facts) { f.Settings[topic].Values[name] = value }
}

func layout(topic string, change func(*kafka.Layout)) func(*Options, *Facts) {
	return func(_ *Options, f *Facts) {
		l := f.Layouts[topic]
		l.Partitions = slices.Clone(l.Partitions)
		change(&l)
		f.Layouts[topic] = l
	}
}

// each changes every partition of an input.
func each(side record.Side, change func(*PartitionFacts)) func(*Options, *Facts) {
	return func(_ *Options, f *Facts) {
		for i := range f.Inputs[side].Partitions {
			change(&f.Inputs[side].Partitions[i])
		}
	}
}

// one changes partition 2 of an input.
func one(side record.Side, change func(*PartitionFacts)) func(*Options, *Facts) {
	return func(_ *Options, f *Facts) { change(&f.Inputs[side].Partitions[2]) }
}

func all(changes ...func(*Options, *Facts)) func(*Options, *Facts) {
	return func(o *Options, f *Facts) {
		for _, change := range changes {
			change(o, f)
		}
	}
}

func behind(d time.Duration) func(*PartitionFacts) {
	return func(p *PartitionFacts) { p.Next = record.MillisOf(noon.Add(-d)) }
}

// userData is what a joiner tells its group.
func userData(t testing.TB, strategy, address string) []byte {
	t.Helper()
	s, err := assign.New(assign.Options{Strategy: strategy, Identity: assign.Identity{ID: "id-" + address, Address: address}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := s[0].(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData([]string{marketTopic, noteTopic})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// group makes a group of so many joiners.
func group(t testing.TB, strategy string, members int, change func(*kafka.Group)) func(*Options, *Facts) {
	return func(_ *Options, f *Facts) {
		g := kafka.Group{
			Type: kafka.ClassicGroup, State: "Stable", ProtocolType: "consumer", Protocol: protocolName(strategy), Rights: kafka.AllRights(),
		}
		for i := range members {
			address := fmt.Sprintf("10.0.0.%d:8081", i+1)
			g.Members = append(g.Members, kafka.GroupMember{
				ID: fmt.Sprintf("m%d", i+1), Host: "/10.0.0.9", Topics: []string{noteTopic, marketTopic}, UserData: userData(t, strategy, address),
			})
		}
		if change != nil {
			change(&g)
		}
		f.Group = g
	}
}

// stateDir is a directory for checkpoints, and what is seen of it.
func stateDir(at checkpoint.Place, err error) func(*Options, *Facts) {
	return func(o *Options, f *Facts) { o.StateDir, f.Place, f.PlaceErr = "/data/prices", at, err }
}

func TestJudge(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for name, c := range map[string]struct {
		plant func(*Options, *Facts)
		want  []wantFinding
	}{
		"warnings of the configuration": {
			func(o *Options, _ *Facts) {
				o.Warnings = []string{
					"kafka.tls has no effect while kafka.tls.enabled is false: connections to brokers are not encrypted",
					"environment variable JOINER_GRUOP_ID names no configuration key and is ignored; did you mean JOINER_GROUP_ID?",
				}
			},
			[]wantFinding{
				{"config", Warning, "kafka.tls", "has no effect", "take it out"},
				{"config", Warning, "JOINER_GRUOP_ID", "names no configuration key", "take it out"},
			},
		},
		"a strategy that needs look-ups, without them": {
			func(o *Options, _ *Facts) { o.Strategy, o.RemoteLookup = "range", false },
			[]wantFinding{{"config", Warning, "group.strategy", "counted miss", "join.remote_lookup: true"}},
		},
		"two partitioners": {
			func(o *Options, _ *Facts) { o.Inputs[record.Market].Partitioner = "crc32" },
			[]wantFinding{{"config", Warning, "topics.partitioner", "ticks are placed by crc32 and notifications by murmur2: only keys that both put into the same partition are joined locally, and the prices of all others are asked for", "one partitioner"}},
		},
		"a partitioner that nobody knows, beside one": {
			func(o *Options, _ *Facts) { o.Inputs[record.Market].Partitioner = placement.Custom },
			nil,
		},
		"one bootstrap server away": {
			func(_ *Options, f *Facts) { f.Bootstrap[1].Err = refused },
			[]wantFinding{{"bootstrap", Warning, "b:9092", "is away", "start the broker"}},
		},
		"credentials refused by one": {
			func(_ *Options, f *Facts) {
				f.Bootstrap[1].Err = &kafka.Refused{Broker: "b:9092", Step: "SASL", As: "PLAIN for user joiner", Err: errors.New("wrong password")}
			},
			[]wantFinding{{"bootstrap", Failure, "b:9092", "cannot be used", "kafka.sasl"}},
		},
		"a certificate that is not trusted": {
			func(_ *Options, f *Facts) {
				f.Bootstrap[1].Err = &kafka.Refused{Broker: "b:9092", Step: "TLS", Err: errors.New("x509: signed by unknown authority")}
			},
			[]wantFinding{{"bootstrap", Failure, "b:9092", "unknown authority", "kafka.tls"}},
		},
		"a listener that hangs up": {
			func(_ *Options, f *Facts) { f.Bootstrap[1].Err = io.EOF },
			[]wantFinding{{"bootstrap", Warning, "b:9092", "EOF", "whether it wants TLS or SASL"}},
		},
		"a name that is not known": {
			func(_ *Options, f *Facts) {
				f.Bootstrap[1].Err = &net.DNSError{Err: "no such host", Name: "b", IsNotFound: true}
			},
			[]wantFinding{{"bootstrap", Warning, "b:9092", "no such host", "the resolver"}},
		},
		"two clusters": {
			func(_ *Options, f *Facts) { f.Bootstrap[1].ClusterID = "D" },
			[]wantFinding{{"bootstrap", Failure, "kafka.brokers", "2 clusters: a:9092 is of cluster C, b:9092 is of cluster D", "one cluster only"}},
		},
		"a broker away": {
			func(_ *Options, f *Facts) { f.Brokers[2] = kafka.Visit{ID: 3, Address: "c:9092", Err: refused} },
			[]wantFinding{
				{"brokers", Failure, "broker 3 (c:9092)", "connection refused", "advertised.listeners"},
				{"broker_apis", Warning, "broker 3 (c:9092)", "could not be looked at", ""},
				{"broker_settings", Warning, "broker 3 (c:9092)", "could not be looked at", ""},
			},
		},
		"a broker that has left": {
			all(func(_ *Options, f *Facts) { f.Brokers = f.Brokers[:2] }, layout(deadTopic, func(l *kafka.Layout) {
				l.Partitions[3].InSync = []int32{1, 2}
			})),
			[]wantFinding{
				{"brokers", Warning, "broker 3", "holds replicas of market-updates, notifications, enriched-alerts, enriched-alerts-dlq", "start it"},
				{"replication", Warning, "enriched-alerts-dlq", "partition 3 under-replicated now: broker 3 not in sync", "start the brokers"},
			},
		},
		"brokers too old for exactly-once": {
			func(o *Options, f *Facts) { o.ExactlyOnce = true; f.Brokers[1].APIs[apiTxnOffsetCommit] = 2 },
			[]wantFinding{{"broker_apis", Failure, "broker 2 (b:9092)", "TxnOffsetCommit version 3", "2.5 or newer"}},
		},
		"a broker too old at all": {
			func(_ *Options, f *Facts) { f.Brokers[0].APIs[apiOffsetFetch] = 6 },
			[]wantFinding{{"broker_apis", Failure, "broker 1 (a:9092)", "OffsetFetch version 7", "2.5 or newer"}},
		},
		"brokers without ids of topics": {
			func(_ *Options, f *Facts) { f.Brokers[0].APIs[apiMetadata] = 9 },
			[]wantFinding{{"broker_apis", Warning, "broker 1 (a:9092)", "Metadata version 10: topics have no ids", "2.8 or newer"}},
		},
		"brokers that have older requests for members": {
			func(_ *Options, f *Facts) { f.Brokers[0].APIs[apiJoinGroup], f.Brokers[0].APIs[apiLeaveGroup] = 4, 2 },
			[]wantFinding{{"broker_apis", Warning, "broker 1 (a:9092)", "LeaveGroup version 3: a pod that stops cannot leave", "2.4"}},
		},
		"brokers too old for static members": {
			static(func(_ *Options, f *Facts) { f.Brokers[0].APIs[apiJoinGroup] = 4 }),
			[]wantFinding{{"broker_apis", Failure, "broker 1 (a:9092)", "JoinGroup version 5, which is needed: group.instance_id", "2.3"}},
		},
		"brokers that cannot make topics as asked": {
			func(o *Options, f *Facts) {
				o.Create = true
				f.Brokers[0].APIs[apiCreateTopics] = 3
				delete(f.Brokers[0].APIs, apiCreatePartitions)
			},
			[]wantFinding{
				{"broker_apis", Failure, "broker 1 (a:9092)", "CreateTopics version 4", "2.4"},
				{"broker_apis", Warning, "broker 1 (a:9092)", "topics.create cannot grow outputs", "1.0"},
			},
		},
		"brokers that can make topics by a factor": {
			func(o *Options, f *Facts) {
				o.Create, o.ReplicationFactor = true, 3
				f.Brokers[0].APIs[apiCreateTopics] = 3
			},
			nil,
		},
		"brokers too old for the rack": {
			func(o *Options, f *Facts) { o.Kafka.Rack = "r1"; f.Brokers[0].APIs[apiFetch] = 10 },
			[]wantFinding{{"broker_apis", Warning, "broker 1 (a:9092)", "kafka.rack has no effect", "2.4"}},
		},
		"brokers older than kafka.version": {
			func(o *Options, f *Facts) { o.Kafka.Version = "4.0.0"; f.Brokers[0].APIs[apiFetch] = 15 },
			[]wantFinding{{"broker_apis", Warning, "broker 1 (a:9092)", "older than kafka.version: 4.0.0: it lacks Fetch of Kafka 3.7", "auto"}},
		},
		"a session timeout that brokers refuse": {
			func(o *Options, f *Facts) { f.Brokers[0].Settings.Values["group.min.session.timeout.ms"] = "15000" },
			[]wantFinding{{"broker_settings", Failure, "broker 1 (a:9092)", "refuses group.session_timeout 10s", "15s or more"}},
		},
		"a session timeout too long": {
			func(o *Options, f *Facts) { f.Brokers[0].Settings.Values["group.max.session.timeout.ms"] = "5000" },
			[]wantFinding{{"broker_settings", Failure, "broker 1 (a:9092)", "group.max.session.timeout.ms is 5s", "5s or less"}},
		},
		"offsets soon forgotten": {
			func(_ *Options, f *Facts) { f.Brokers[0].Settings.Values["offsets.retention.minutes"] = "60" },
			[]wantFinding{{"broker_settings", Warning, "broker 1 (a:9092)", "stopped for 1h", "10080"}},
		},
		"brokers' settings hidden": {
			func(_ *Options, f *Facts) {
				for i := range f.Brokers {
					f.Brokers[i].Settings = kafka.Settings{Err: sarama.ErrClusterAuthorizationFailed}
				}
			},
			[]wantFinding{{"broker_settings", Warning, "brokers", "DescribeConfigs on the cluster is missing", "grant DescribeConfigs on the cluster"}},
		},
		"transactions too short": {
			func(o *Options, f *Facts) {
				o.ExactlyOnce = true
				f.Brokers[0].Settings.Values["transaction.max.timeout.ms"] = "5000"
			},
			[]wantFinding{{"broker_settings", Failure, "broker 1 (a:9092)", "refuses transactions of 10s", "transaction.max.timeout.ms"}},
		},
		"certificates near their end": {
			func(o *Options, f *Facts) {
				f.Brokers[0].CertificateEnds = noon.Add(72 * time.Hour)
				f.Brokers[1].CertificateEnds = noon.Add(1000 * time.Hour)
				o.Certificates = map[string]time.Time{"kafka": noon.Add(-time.Hour), "kafka_ca": {}}
			},
			[]wantFinding{
				{"certificates", Warning, "broker 1 (a:9092)", "expires in 3d, at 2026-01-08T12:00:00Z", "renew"},
				{"certificates", Failure, "certificate kafka", "expired at 2026-01-05T11:00:00Z", "renew"},
			},
		},
		"rights missing, those that are needed and others": {
			all(
				layout(marketTopic, func(l *kafka.Layout) { l.Rights = l.Rights.Without(sarama.AclOperationRead) }),
				layout(noteTopic, func(l *kafka.Layout) { l.Rights = l.Rights.Without(sarama.AclOperationDescribeConfigs) }),
				layout(alertTopic, func(l *kafka.Layout) { l.Rights = l.Rights.Without(sarama.AclOperationWrite) }),
				layout(deadTopic, func(l *kafka.Layout) { l.Rights = l.Rights.Without(sarama.AclOperationAlter) }),
				func(_ *Options, f *Facts) { f.Group.Rights = f.Group.Rights.Without(sarama.AclOperationRead) },
			),
			[]wantFinding{
				{"rights", Failure, "topic market-updates", "Read is missing", "grant Read on topic market-updates to joiner's principal"},
				{"rights", Warning, "topic notifications", "DescribeConfigs is missing: its retention is not known", "grant DescribeConfigs"},
				{"rights", Failure, "topic enriched-alerts", "Write is missing", "grant Write"},
				{"rights", Failure, "group joiner", "Read is missing", "grant Read on group joiner"},
			},
		},
		"the right to grow": {
			all(
				func(o *Options, _ *Facts) { o.Create = true },
				layout(deadTopic, func(l *kafka.Layout) { l.Rights = l.Rights.Without(sarama.AclOperationAlter) }),
			),
			[]wantFinding{{"rights", Warning, "topic enriched-alerts-dlq", "Alter is missing", "grant Alter"}},
		},
		"brokers that do not tell rights": {
			layout(marketTopic, func(l *kafka.Layout) { l.Rights = kafka.Rights{} }),
			[]wantFinding{{"rights", Warning, "topic market-updates", "does not say what is allowed", "docs/operations.md"}},
		},
		"a transactional id that may not be used": {
			func(o *Options, f *Facts) {
				o.ExactlyOnce, o.TransactionalID = true, "joiner-"
				f.Transaction = sarama.ErrTransactionalIDAuthorizationFailed
			},
			[]wantFinding{{"rights", Failure, "transactional id joiner-*", "Describe or Write is missing", "(prefixed)"}},
		},
		"an input without a leader": {
			layout(noteTopic, func(l *kafka.Layout) { l.Partitions[4].Leader = -1 }),
			[]wantFinding{{"input_topics", Failure, "notifications", "partition 4 without a leader", "replication"}},
		},
		"an output without a leader": {
			layout(alertTopic, func(l *kafka.Layout) { l.Partitions[4].Leader, l.Partitions[1].Leader = -1, -1 }),
			[]wantFinding{{"output_topics", Failure, "enriched-alerts", "partitions 1, 4 without a leader", "replication"}},
		},
		"unequal partition counts": {
			func(_ *Options, f *Facts) {
				f.Layouts[noteTopic] = healthyLayout(noteTopic, 4)
				f.Inputs[record.Notification].Partitions = f.Inputs[record.Notification].Partitions[:4]
			},
			[]wantFinding{{"partition_counts", Failure, "market-updates, notifications", "6 and 4 partitions", "grow notifications to 6"}},
		},
		"reserved beyond the end": {
			func(o *Options, _ *Facts) { o.Reserved = []int32{0, 6} },
			[]wantFinding{
				{"reserved", Failure, "market-updates", "names partition 6, and there are partitions 0 to 5", "topics.reserved"},
				{"reserved", Failure, "notifications", "names partition 6", "topics.reserved"},
			},
		},
		"everything reserved": {
			func(o *Options, _ *Facts) { o.Reserved = []int32{0, 1, 2, 3, 4, 5} },
			[]wantFinding{
				{"reserved", Failure, "market-updates", "all 6 partitions are reserved", "topics.reserved"},
				{"reserved", Failure, "notifications", "all 6 partitions are reserved", "topics.reserved"},
			},
		},
		"outputs with other counts": {
			func(_ *Options, f *Facts) {
				f.Layouts[alertTopic], f.Layouts[deadTopic] = healthyLayout(alertTopic, 4), healthyLayout(deadTopic, 1)
			},
			[]wantFinding{
				{"output_topics", Failure, "enriched-alerts", "4 partitions, the inputs have 6", "grow it to 6 partitions, or set topics.create: true"},
				{"output_topics", Warning, "enriched-alerts-dlq", "modulo 1", "grow it to 6"},
			},
		},
		"outputs with fewer that joiner will grow": {
			func(o *Options, f *Facts) {
				o.Create = true
				f.Layouts[alertTopic], f.Layouts[deadTopic] = healthyLayout(alertTopic, 4), healthyLayout(deadTopic, 1)
			},
			nil,
		},
		"an output with more": {
			func(_ *Options, f *Facts) { f.Layouts[alertTopic] = healthyLayout(alertTopic, 8) },
			[]wantFinding{{"output_topics", Warning, "enriched-alerts", "8 partitions, the inputs have 6: those from 6 on stay empty", "grow the inputs to 8"}},
		},
		"outputs that would be created, but may not": {
			func(o *Options, f *Facts) {
				o.Create = true
				f.Layouts[alertTopic] = kafka.Layout{Topic: kafka.Topic{Name: alertTopic}}
				f.Layouts[deadTopic] = kafka.Layout{Topic: kafka.Topic{Name: deadTopic}}
				f.Creatable = map[string]error{alertTopic: sarama.ErrTopicAuthorizationFailed, deadTopic: sarama.ErrInvalidReplicationFactor}
			},
			append([]wantFinding{
				{"output_topics", Failure, "enriched-alerts", "joiner may not create it", "grant Create on topic enriched-alerts"},
				{"output_topics", Failure, "enriched-alerts-dlq", "refuse to create it with 6 partitions", "topics.replication_factor"},
				{"rights", Failure, "topic enriched-alerts", "Create is missing", "grant Create"},
				{"rights", Warning, "topic enriched-alerts-dlq", "could not be looked at", "output_topics"},
			}, blind("does not exist", outputChecks(), alertTopic, deadTopic)...),
		},
		"under-replicated, and one replica": {
			all(
				layout(marketTopic, func(l *kafka.Layout) { l.Partitions[3].InSync = []int32{1, 2} }),
				layout(alertTopic, func(l *kafka.Layout) {
					for i := range l.Partitions {
						l.Partitions[i].Replicas, l.Partitions[i].InSync = []int32{1}, []int32{1}
					}
				}),
				setting(alertTopic, "min.insync.replicas", "1"),
			),
			[]wantFinding{
				{"replication", Warning, "market-updates", "partition 3 under-replicated now: broker 3 not in sync", "start the brokers"},
				{"replication", Warning, "enriched-alerts", "one replica", "replication factor of 3"},
			},
		},
		"min.insync.replicas against replication": {
			all(
				setting(marketTopic, "min.insync.replicas", "4"),
				setting(noteTopic, "min.insync.replicas", "1"),
				setting(alertTopic, "min.insync.replicas", "4"),
				setting(deadTopic, "min.insync.replicas", "3"),
			),
			[]wantFinding{
				{"min_insync_replicas", Warning, "market-updates", "is 4 and there are 3 replicas: its producers' writes", "lower min.insync.replicas to 2"},
				{"min_insync_replicas", Warning, "notifications", "is 1", "set min.insync.replicas to 2"},
				{"min_insync_replicas", Failure, "enriched-alerts", "is 4 and there are 3 replicas: joiner's writes", "raise the replication factor to 5"},
				{"min_insync_replicas", Warning, "enriched-alerts-dlq", "is 3 of 3 replicas", "raise the replication factor to 4"},
			},
		},
		"too few in sync": {
			layout(alertTopic, func(l *kafka.Layout) { l.Partitions[3].InSync = []int32{1} }),
			[]wantFinding{
				{"replication", Warning, "enriched-alerts", "partition 3 under-replicated now: brokers 2, 3 not in sync", ""},
				{"min_insync_replicas", Failure, "enriched-alerts", "is 2 and only 1 in sync now", "start the brokers"},
			},
		},
		"unclean elections": {
			setting(noteTopic, "unclean.leader.election.enable", "true"),
			[]wantFinding{{"unclean_leader_election", Warning, "notifications", "acknowledged records are then lost", "false"}},
		},
		"a market that is not compacted": {
			setting(marketTopic, "cleanup.policy", "delete"),
			[]wantFinding{{"market_cleanup", Warning, "market-updates", "symbols without a tick for 7d have no price", "cleanup.policy=compact"}},
		},
		"a market that is kept for ever": {
			all(setting(marketTopic, "cleanup.policy", "delete"), setting(marketTopic, "retention.ms", "-1")),
			[]wantFinding{{"market_cleanup", Warning, "market-updates", "each restore reads the whole log", "cleanup.policy=compact"}},
		},
		"a market that is compacted and deleted": {
			setting(marketTopic, "cleanup.policy", "compact,delete"),
			[]wantFinding{{"market_cleanup", Warning, "market-updates", "a symbol without a tick for 7d has no price any more", "cleanup.policy=compact alone"}},
		},
		"a market that is deleted by size": {
			all(setting(marketTopic, "cleanup.policy", "delete"), setting(marketTopic, "retention.bytes", "1000000")),
			[]wantFinding{{"market_cleanup", Warning, "market-updates", "sooner where a partition exceeds 1000000 bytes", ""}},
		},
		"compaction at once": {
			setting(marketTopic, "min.compaction.lag.ms", "0"),
			[]wantFinding{{"market_compaction_lag", Warning, "market-updates", "compacted after 0s", "set min.compaction.lag.ms to 3600000"}},
		},
		"compaction that outruns the group": {
			one(record.Market, behind(2*time.Hour)),
			[]wantFinding{{"market_compaction_lag", Failure, "market-updates", "compacted after 1h, and the group is 2h behind in partition 2", "set min.compaction.lag.ms to 28800000"}},
		},
		"compaction inside join.history": {
			func(o *Options, _ *Facts) { o.History = 3 * time.Hour },
			[]wantFinding{{"market_compaction_lag", Warning, "market-updates", "join.history is 3h", "21600000"}},
		},
		"tombstones removed at once": {
			setting(marketTopic, "delete.retention.ms", "1000"),
			[]wantFinding{{"market_compaction_lag", Warning, "market-updates", "tombstones may be removed after 1s", "delete.retention.ms to 86400000"}},
		},
		"ticks out of order on a compacted topic": {
			one(record.Market, func(p *PartitionFacts) { p.Sample.OutOfOrder, p.Sample.Disordered = 7, `"BBCA"` }),
			[]wantFinding{{"market_order", Warning, "market-updates", `7 of 6000 sampled ticks are older than one before them of the same symbol ("BBCA" first)`, "in the order of their event times"}},
		},
		"ticks out of order, where the policy may not be seen": {
			all(one(record.Market, func(p *PartitionFacts) { p.Sample.OutOfOrder, p.Sample.Disordered = 7, `"BBCA"` }), func(_ *Options, f *Facts) {
				delete(f.Settings[marketTopic].Values, "cleanup.policy")
			}),
			append(blind("does not tell cleanup.policy", []string{"market_cleanup", "market_compaction_lag", "retention"}, marketTopic),
				wantFinding{"market_order", Warning, "market-updates", "7 of 6000 sampled ticks are older", "whoever runs"}),
		},
		"notifications that are compacted": {
			setting(noteTopic, "cleanup.policy", "compact"),
			[]wantFinding{{"notifications_cleanup", Failure, "notifications", "only the last survives", "cleanup.policy=delete"}},
		},
		"outputs that are compacted": {
			all(setting(alertTopic, "cleanup.policy", "compact"), setting(deadTopic, "cleanup.policy", "compact,delete")),
			[]wantFinding{
				{"output_cleanup", Warning, "enriched-alerts", "only the last survives", "cleanup.policy=delete"},
				{"output_cleanup", Warning, "enriched-alerts-dlq", "only the last survives", "cleanup.policy=delete"},
			},
		},
		"offsets that were deleted unread": {
			all(
				one(record.Notification, func(p *PartitionFacts) { p.Start, p.Committed = 500, 400 }),
				one(record.Market, func(p *PartitionFacts) { p.Start, p.Committed = 500, 300 }),
			),
			[]wantFinding{
				{"committed_offsets", Failure, "notifications", "100 offsets deleted", "raise the topic's retention"},
				{"committed_offsets", Warning, "market-updates", "200 offsets deleted", "raise the topic's retention"},
			},
		},
		"offsets above the end": {
			one(record.Notification, func(p *PartitionFacts) { p.Committed, p.Next = 2000, record.NoTimestamp }),
			[]wantFinding{{"committed_offsets", Failure, "notifications", "partition 2 are above the end", "made anew"}},
		},
		"retention near the group's lag": {
			all(
				setting(noteTopic, "retention.ms", "60000"),
				one(record.Notification, behind(40*time.Second)),
			),
			[]wantFinding{{"retention", Warning, "notifications", "near the retention in partition 2: it is 40s behind, and records are deleted after 1m", "raise retention.ms"}},
		},
		"retention near a group that has read nothing": {
			all(
				setting(noteTopic, "retention.ms", "60000"),
				one(record.Notification, func(p *PartitionFacts) { p.Committed = 0; behind(30 * time.Second)(p) }),
			),
			[]wantFinding{{"retention", Warning, "notifications", "it is 30s behind", "raise retention.ms"}},
		},
		"a group that has read everything": {
			all(
				setting(noteTopic, "retention.ms", "60000"),
				each(record.Notification, func(p *PartitionFacts) { p.Committed = 1000; behind(time.Hour)(p) }),
			),
			nil,
		},
		"retention about to pass the group": {
			all(
				setting(noteTopic, "retention.ms", "60000"),
				one(record.Notification, behind(59*time.Second)),
			),
			[]wantFinding{{"retention", Failure, "notifications", "about to lose records of partition 2", "raise retention.ms now"}},
		},
		"retention by size near the lag": {
			all(
				setting(noteTopic, "retention.bytes", "100000"),
				one(record.Notification, func(p *PartitionFacts) { p.Committed = 600 }),
			),
			[]wantFinding{{"retention", Warning, "notifications", "about 80000 bytes to read, uncompressed, and a partition keeps 100000 as stored", "raise retention.bytes"}},
		},
		"retention by size below the lag, uncompressed": {
			// As stored it may be a fifth of that, and far from the retention.
			all(
				setting(noteTopic, "retention.bytes", "60000"),
				one(record.Notification, func(p *PartitionFacts) { p.Committed = 600 }),
			),
			[]wantFinding{{"retention", Warning, "notifications", "about 80000 bytes to read, uncompressed, and a partition keeps 60000 as stored", "raise retention.bytes"}},
		},
		"alerts that are older than their retention": {
			all(setting(alertTopic, "retention.ms", "3600000"), one(record.Notification, behind(90*time.Minute))),
			[]wantFinding{{"output_retention", Failure, "enriched-alerts", "deleted 1h after those; the next records to read are 1.5h old", "raise retention.ms well above 1.5h"}},
		},
		"alerts whose notifications come with old timestamps": {
			all(setting(deadTopic, "retention.ms", "3600000"), one(record.Notification, func(p *PartitionFacts) {
				p.Sample.Behind, p.Sample.Late = 3*time.Hour, 50*time.Minute
			})),
			[]wantFinding{{"output_retention", Warning, "enriched-alerts-dlq", "records come with timestamps 50m behind", "raise retention.ms well above 50m"}},
		},
		"alerts whose notifications all come with old timestamps": {
			all(setting(deadTopic, "retention.ms", "3600000"), one(record.Notification, func(p *PartitionFacts) {
				p.Sample.Behind, p.Sample.Late = 3*time.Hour, 2*time.Hour
			})),
			[]wantFinding{{"output_retention", Failure, "enriched-alerts-dlq", "records come with timestamps 2h behind", "raise retention.ms well above 2h"}},
		},
		"a stray notification with an old timestamp": {
			all(setting(alertTopic, "retention.ms", "3600000"), one(record.Notification, func(p *PartitionFacts) { p.Sample.Behind = 50 * time.Hour })),
			[]wantFinding{{"output_retention", Warning, "enriched-alerts", "a few come with timestamps 2.1d behind", "correct the producers"}},
		},
		"a stray that outputs refuse": {
			all(setting(deadTopic, "message.timestamp.before.max.ms", "3600000"), one(record.Notification, func(p *PartitionFacts) { p.Sample.Behind = 50 * time.Hour })),
			[]wantFinding{{"output_timestamp_limits", Failure, "enriched-alerts-dlq", "records come with timestamps 2.1d behind", "before.max.ms"}},
		},
		"one input stamped by the broker": {
			setting(marketTopic, "message.timestamp.type", "LogAppendTime"),
			[]wantFinding{{"input_timestamps", Warning, "market-updates", "the merge compares two clocks", "alike on both inputs"}},
		},
		"outputs stamped by the broker": {
			all(setting(alertTopic, "message.timestamp.type", "LogAppendTime"), setting(deadTopic, "message.timestamp.type", "LogAppendTime")),
			[]wantFinding{
				{"output_timestamps", Warning, "enriched-alerts", "LogAppendTime", "message.timestamp.type=CreateTime"},
				{"output_timestamps", Warning, "enriched-alerts-dlq", "LogAppendTime", "message.timestamp.type=CreateTime"},
			},
		},
		"outputs that take no old timestamps": {
			all(setting(alertTopic, "message.timestamp.before.max.ms", "60000"), setting(deadTopic, "message.timestamp.before.max.ms", "60000"),
				one(record.Notification, behind(2*time.Minute))),
			[]wantFinding{
				{"output_timestamp_limits", Failure, "enriched-alerts", "no timestamps more than 1m back, and the next records to read are 2m old", "before.max.ms"},
				{"output_timestamp_limits", Failure, "enriched-alerts-dlq", "no timestamps more than 1m back", "before.max.ms"},
			},
		},
		"outputs that might not take old timestamps": {
			setting(alertTopic, "message.timestamp.before.max.ms", "3600000"),
			[]wantFinding{{"output_timestamp_limits", Warning, "enriched-alerts", "up to 1h back, the notifications may be older (unlimited)", "no lower than the input's"}},
		},
		"dead letters of old ticks": {
			all(setting(alertTopic, "message.timestamp.before.max.ms", "60000"), setting(deadTopic, "message.timestamp.before.max.ms", "60000"),
				setting(noteTopic, "message.timestamp.before.max.ms", "60000"), one(record.Market, behind(2*time.Minute))),
			[]wantFinding{{"output_timestamp_limits", Failure, "enriched-alerts-dlq", "the next records to read are 2m old", "before.max.ms"}},
		},
		"outputs before Kafka 3.6": {
			func(_ *Options, f *Facts) {
				for _, topic := range []string{noteTopic, alertTopic, deadTopic} {
					s := f.Settings[topic].Values
					delete(s, "message.timestamp.before.max.ms")
					delete(s, "message.timestamp.after.max.ms")
					s["message.timestamp.difference.max.ms"] = "9223372036854775807"
				}
				f.Settings[alertTopic].Values["message.timestamp.difference.max.ms"] = "5000"
			},
			[]wantFinding{{"output_timestamp_limits", Failure, "enriched-alerts", "no timestamps more than 5s back", ""}},
		},
		"notifications from the future": {
			one(record.Notification, func(p *PartitionFacts) {
				p.Sample.Newest = record.MillisOf(noon.Add(2 * time.Hour))
				p.Sample.Event = p.Sample.Newest
			}),
			[]wantFinding{
				{"output_timestamp_limits", Failure, "enriched-alerts", "no timestamps more than 1h ahead, and the newest are 2h ahead", "after.max.ms"},
				{"output_timestamp_limits", Failure, "enriched-alerts-dlq", "2h ahead", "after.max.ms"},
				{"clock_skew", Warning, "notifications", "2h ahead of this machine's clock: " + noon.Add(2*time.Hour).UTC().Format(time.RFC3339) + " in partition", "NTP"},
			},
		},
		"no room for alerts": {
			all(setting(alertTopic, "max.message.bytes", "1048588"), setting(marketTopic, "max.message.bytes", "2000000")),
			[]wantFinding{
				{"message_size", Warning, "enriched-alerts", "takes records of 1048588 bytes, and notifications of 1048588", "max.message.bytes of enriched-alerts to 1114124"},
				{"message_size", Warning, "enriched-alerts-dlq", "and market-updates of 2000000", "to 2065536"},
			},
		},
		"no room for alerts, and an input's limit that is not told": {
			all(setting(alertTopic, "max.message.bytes", "1000"), setting(deadTopic, "max.message.bytes", "1000"), func(_ *Options, f *Facts) {
				delete(f.Settings[marketTopic].Values, "max.message.bytes")
			}),
			[]wantFinding{
				{"message_size", Warning, "market-updates", "does not tell max.message.bytes", ""},
				{"message_size", Warning, "enriched-alerts", "takes records of 1000 bytes, and notifications of 1048588", "1114124"},
				{"message_size", Warning, "enriched-alerts-dlq", "takes records of 1000 bytes, and notifications of 1048588", "1114124"},
			},
		},
		"no room for dead letters of ticks, and notifications' limit that is not told": {
			all(setting(deadTopic, "max.message.bytes", "1000"), func(_ *Options, f *Facts) {
				delete(f.Settings[noteTopic].Values, "max.message.bytes")
			}),
			[]wantFinding{
				{"message_size", Warning, "notifications", "does not tell max.message.bytes", ""},
				{"message_size", Warning, "enriched-alerts-dlq", "and market-updates of 1048588", "1114124"},
			},
		},
		"just enough room by the configuration": {
			func(o *Options, _ *Facts) { o.MaxMessageBytes = 1048588 + wrapping },
			nil,
		},
		"notifications stamped by the broker": {
			// Their timestamps are the broker's own: no output can refuse them for that.
			all(setting(noteTopic, "message.timestamp.type", "LogAppendTime"), setting(marketTopic, "message.timestamp.type", "LogAppendTime"),
				setting(alertTopic, "message.timestamp.before.max.ms", "3600000")),
			nil,
		},
		"no room by the configuration": {
			func(o *Options, _ *Facts) { o.MaxMessageBytes = 1000 },
			[]wantFinding{
				{"message_size", Warning, "enriched-alerts", "delivery.max_message_bytes is 1000", "to 1114124, or to 0"},
				{"message_size", Warning, "enriched-alerts-dlq", "delivery.max_message_bytes is 1000", "to 1114124, or to 0"},
			},
		},
		"records that cannot be joined for two reasons alike": {
			all(one(record.Market, func(p *PartitionFacts) {
				p.Sample.Bad, p.Sample.BadDetail = make(map[record.Kind]int), make(map[record.Kind]string)
				for _, k := range []record.Kind{record.MissingSymbol, record.InvalidPrice, record.InvalidEventTime, record.InvalidJSON} {
					p.Sample.Bad[k], p.Sample.BadDetail[k] = 2, "d"
				}
			})),
			[]wantFinding{
				{"records", Warning, "market-updates", "8 of 6000 sampled records cannot be joined: invalid_event_time (d), invalid_json (d), invalid_price (d), missing_symbol (d)", "market.event_time"},
			},
		},
		"records that cannot be joined": {
			all(
				one(record.Market, func(p *PartitionFacts) {
					p.Sample.Bad = map[record.Kind]int{record.InvalidPrice: 30, record.InvalidJSON: 2}
					p.Sample.BadDetail = map[record.Kind]string{record.InvalidPrice: "no number", record.InvalidJSON: "no brace"}
				}),
				each(record.Notification, func(p *PartitionFacts) {
					p.Sample.Bad = map[record.Kind]int{record.MissingSymbol: p.Sample.Records}
					p.Sample.BadDetail = map[record.Kind]string{record.MissingSymbol: "no key"}
				}),
			),
			[]wantFinding{
				{"records", Warning, "market-updates", "32 of 6000 sampled records cannot be joined: invalid_price (no number), invalid_json (no brace)", "market.price"},
				{"records", Failure, "notifications", "6000 of 6000", "notification.symbol"},
			},
		},
		"another partitioner": {
			all(each(record.Notification, func(p *PartitionFacts) { p.Sample.Misplaced = 800 }), func(_ *Options, f *Facts) {
				f.Inputs[record.Notification].Keys = Suspect{Name: "crc32", Share: 0.99, Seen: 400}
			}),
			[]wantFinding{{"key_placement", Warning, "notifications", "4800 of 6000 sampled records lie where murmur2 would not put their keys: their prices are asked for in other pods; crc32 explains 99% of the keys", "set topics.notifications_partitioner: crc32"}},
		},
		"ticks that lie by another key than their symbol": {
			all(each(record.Market, func(p *PartitionFacts) { p.Sample.Misplaced = 800 }), func(o *Options, _ *Facts) { o.Inputs[record.Market].BySymbol = true }, func(_ *Options, f *Facts) {
				f.Inputs[record.Market].Keys = Suspect{}
			}),
			[]wantFinding{{
				"key_placement", Warning, "market-updates", "4800 of 6000 sampled records lie where murmur2 would not put their symbols: a price is looked for where its symbol belongs and where its notification lies, and not found elsewhere; no known partitioner",
				"set topics.market_updates_partitioner: custom, and every owner is asked",
			}},
		},
		"a topic that has grown": {
			all(each(record.Notification, func(p *PartitionFacts) { p.Sample.Misplaced = 800 }), func(o *Options, f *Facts) {
				o.RemoteLookup = false
				f.Inputs[record.Notification].Keys, f.Inputs[record.Notification].Growth = Suspect{}, Growth{5, 1}
			}),
			[]wantFinding{{"key_placement", Warning, "notifications", "murmur2 over 5 partitions explains 100% of those: they are older than the topic's growth", "lies right from its next record on"}},
		},
		"a topic that may have grown, and a producer that explains more": {
			all(each(record.Notification, func(p *PartitionFacts) { p.Sample.Misplaced = 800 }), func(_ *Options, f *Facts) {
				f.Inputs[record.Notification].Keys, f.Inputs[record.Notification].Growth = Suspect{Name: "crc32", Share: 0.99, Seen: 400}, Growth{2, 0.95}
			}),
			[]wantFinding{{"key_placement", Warning, "notifications", "crc32 explains 99% of the keys", "topics.notifications_partitioner: crc32"}},
		},
		"another producer": {
			all(one(record.Market, func(p *PartitionFacts) { p.Sample.Misplaced = 40 }), func(o *Options, f *Facts) {
				o.RemoteLookup = false
				f.Inputs[record.Market].Misplaced = Suspect{Name: "fnv1a", Share: 1, Seen: 30}
			}),
			[]wantFinding{{"key_placement", Failure, "market-updates", "counted as misses (join.remote_lookup: false); fnv1a explains 100% of those", "find the producer that places keys by fnv1a"}},
		},
		"a producer that does not know of reserved partitions": {
			all(each(record.Notification, func(p *PartitionFacts) { p.Sample.Misplaced = 800 }), func(_ *Options, f *Facts) {
				f.Inputs[record.Notification].Keys = Suspect{Name: "murmur2" + placement.OverAll, Share: 0.99, Seen: 400}
			}),
			[]wantFinding{{"key_placement", Warning, "notifications", "murmur2 over all partitions explains 99% of the keys", "topics.reserved"}},
		},
		"reserved symbols that lie elsewhere": {
			all(one(record.Notification, func(p *PartitionFacts) { p.Sample.Misplaced = 8 }), func(_ *Options, f *Facts) {
				f.Inputs[record.Notification].Keys = Suspect{Name: "murmur2", Share: 0.99, Seen: 400}
				f.Inputs[record.Notification].Misplaced = Suspect{Seen: 2, Astray: 1}
			}),
			[]wantFinding{{"key_placement", Warning, "notifications", "100% of those keys are symbols that topics.reserved names, outside of the partition", "take them out of topics.reserved"}},
		},
		"one of several producers does not know of reserved partitions": {
			all(one(record.Notification, func(p *PartitionFacts) { p.Sample.Misplaced = 8 }), func(_ *Options, f *Facts) {
				f.Inputs[record.Notification].Misplaced = Suspect{Name: "murmur2" + placement.OverAll, Share: 1, Seen: 20}
			}),
			[]wantFinding{{"key_placement", Warning, "notifications", "murmur2 over all partitions explains 100% of those", "does not leave the partitions of topics.reserved to their symbols"}},
		},
		"settings that brokers do not tell": {
			func(_ *Options, f *Facts) {
				delete(f.Settings[marketTopic].Values, "min.compaction.lag.ms")
				delete(f.Settings[noteTopic].Values, "max.message.bytes")
				delete(f.Settings[deadTopic].Values, "min.insync.replicas")
			},
			[]wantFinding{
				{"market_compaction_lag", Warning, "market-updates", "does not tell min.compaction.lag.ms", "whoever runs the brokers"},
				{"message_size", Warning, "notifications", "does not tell max.message.bytes", "whoever runs the brokers"},
				{"min_insync_replicas", Warning, "enriched-alerts-dlq", "does not tell min.insync.replicas", "whoever runs the brokers"},
			},
		},
		"a partitioner that nobody knows": {
			one(record.Market, func(p *PartitionFacts) { p.Sample.Misplaced = 40 }),
			[]wantFinding{{"key_placement", Warning, "market-updates", "no known partitioner explains them", "topics.market_updates_partitioner: custom"}},
		},
		"a hot key": {
			one(record.Notification, func(p *PartitionFacts) { p.Sample.Keys = []hot.Key{{Name: "GOTO", Count: 600}} }),
			[]wantFinding{{"hot_keys", Warning, "notifications", `key "GOTO" is about 10% of the records, all in partition 2`, "topics.reserved"}},
		},
		"notifications without keys": {
			each(record.Notification, keyless),
			[]wantFinding{
				{"key_placement", Warning, "notifications", "none of 6000 sampled records has a key to judge by", "set topics.notifications_partitioner: custom"},
				{"hot_keys", Warning, "notifications", "none of 6000 sampled records has a key to judge by", "symbol as key"},
			},
		},
		"ticks without keys that anything may have placed": {
			all(each(record.Market, keyless), func(o *Options, _ *Facts) { o.Inputs[record.Market].Partitioner = placement.Custom }),
			nil,
		},
		"ticks whose symbols cannot be read": {
			all(each(record.Market, keyless), each(record.Market, bad), func(o *Options, _ *Facts) { o.Inputs[record.Market].BySymbol = true }),
			[]wantFinding{
				{"records", Failure, "market-updates", "6000 of 6000 sampled records cannot be joined: missing_symbol", "market.symbol"},
				{"market_order", Warning, "market-updates", "none of 6000 sampled ticks has a symbol and an event time", "see records"},
				{"key_placement", Warning, "market-updates", "none of 6000 sampled records has a symbol to judge by", "see records"},
				{"hot_keys", Warning, "market-updates", "none of 6000 sampled records has a symbol to judge by", "see records"},
			},
		},
		"one tick with a key": {
			all(each(record.Market, keyless), one(record.Market, func(p *PartitionFacts) {
				p.Sample.Keyless, p.Sample.Keys = p.Sample.Records-1, []hot.Key{{Name: "GOTO", Count: 1}}
			})),
			nil,
		},
		"clocks ahead": {
			each(record.Market, func(p *PartitionFacts) { p.Sample.Newest = record.MillisOf(noon.Add(30 * time.Second)) }),
			[]wantFinding{{"clock_skew", Warning, "market-updates", "30s ahead", "NTP"}},
		},
		"event times of another unit": {
			each(record.Market, func(p *PartitionFacts) {
				p.Sample.EventOldest, p.Sample.Event = record.Millis(1_767_000), record.Millis(1_768_000)
			}),
			[]wantFinding{{"clock_skew", Warning, "market-updates", "before 1990", "event_time_unit"}},
		},
		"a group of another strategy": {
			group(t, "range", 2, nil),
			[]wantFinding{{"group_protocol", Failure, "group joiner", "uses range: a member that speaks joiner-copartition alone is refused", "group.strategy: range"}},
		},
		"a group of a foreign strategy": {
			group(t, "copartition", 1, func(g *kafka.Group) {
				g.Protocol = "cooperative-sticky"
				g.Members[0].UserData = nil
			}),
			[]wantFinding{
				{"group_protocol", Failure, "group joiner", `uses "cooperative-sticky"`, "group.id"},
				{"group_members", Warning, "member m1 at 10.0.0.9", "is no joiner", "group.id of its own"},
			},
		},
		"a consumer that takes a part of the inputs": {
			all(group(t, "range", 2, func(g *kafka.Group) {
				m := &g.Members[1]
				m.UserData, m.Topics = nil, []string{noteTopic}
				m.Assigned = map[string][]int32{noteTopic: {5, 3, 4}}
			}), func(o *Options, _ *Facts) { o.Strategy = "range" }),
			[]wantFinding{{"group_members", Failure, "member m2 at 10.0.0.9", "is no joiner, and takes partitions 3, 4, 5 of notifications: what lies there is not joined", "group.id of its own"}},
		},
		"a group of another kind": {
			group(t, "copartition", 1, func(g *kafka.Group) {
				g.ProtocolType, g.Protocol = "connect", "sessioned"
				g.Members[0].UserData, g.Members[0].Topics = nil, nil
			}),
			[]wantFinding{
				{"group_protocol", Failure, "group joiner", `protocol type "connect"`, "group.id"},
				{"group_members", Warning, "member m1 at 10.0.0.9", "is no joiner", "group.id of its own"},
			},
		},
		"a group of the newer protocol": {
			group(t, "copartition", 1, func(g *kafka.Group) {
				g.Type, g.Protocol = kafka.ConsumerGroup, "uniform"
				g.Members[0].UserData = nil
				g.Members[0].Instance = "pod-1"
				g.Members[0].Topics = []string{"orders"}
			}),
			[]wantFinding{
				{"group_protocol", Failure, "group joiner", "KIP-848", "group.id"},
				{"group_members", Warning, "member pod-1", "subscribed to orders, and this configuration reads market-updates, notifications", "group.id"},
			},
		},
		"a group that rebalances": {
			group(t, "copartition", 1, func(g *kafka.Group) {
				g.State, g.Protocol, g.Members = "PreparingRebalance", "", []kafka.GroupMember{{ID: "m1", Host: "/10.0.0.9"}}
			}),
			[]wantFinding{
				{"group_protocol", Warning, "group joiner", "rebalancing (PreparingRebalance)", "look again"},
				{"group_members", Warning, "group joiner", "rebalancing (PreparingRebalance)", "look again"},
				{"group_release", Warning, "group joiner", "rebalancing (PreparingRebalance)", "look again"},
				{"peer_advertise", Warning, "group joiner", "rebalancing (PreparingRebalance)", "look again"},
			},
		},
		"a member of another release": {
			group(t, "copartition", 2, func(g *kafka.Group) { g.Members[1].UserData[0] = 9 }),
			[]wantFinding{{"group_release", Warning, "member m2 at 10.0.0.9", "it writes format 9, this one 1", "finish the upgrade"}},
		},
		"a member that cannot be read": {
			group(t, "copartition", 2, func(g *kafka.Group) { g.Members[1].Topics, g.Members[1].Err = nil, errors.New("short") }),
			[]wantFinding{{"group_members", Warning, "member m2 at 10.0.0.9", "could not be looked at: short", "see what it is"}},
		},
		"a dynamic member that does not leave": {
			func(o *Options, _ *Facts) { o.Leave = "never" },
			[]wantFinding{{"static_membership", Warning, "group.leave", "lie idle for 10s", "group.leave: auto"}},
		},
		"a static member at an address of the moment": {
			static(func(o *Options, _ *Facts) { o.AddressSet = false }),
			[]wantFinding{{"static_membership", Warning, "peer.advertise", "10.0.0.1:8081 may be another pod's", "a name that the pod keeps"}},
		},
		"a static member at a port of the moment": {
			static(func(o *Options, _ *Facts) { o.Advertised = "joiner-0.joiner:0" }),
			[]wantFinding{{"static_membership", Warning, "peer.advertise", "the port is another one after each restart", "a fixed port"}},
		},
		"a static member that may not ask": {
			static(func(_ *Options, f *Facts) { f.ComesBackErr = errors.New("403 Forbidden") }),
			[]wantFinding{{"static_membership", Warning, "group.leave", "lie idle for 10s: 403 Forbidden", "service account"}},
		},
		"a static member":             {static(func(_ *Options, f *Facts) { f.ComesBack = "3 replicas" }), nil},
		"a directory for checkpoints": {stateDir(checkpoint.Place{}, nil), nil},
		"one that is to be made":      {stateDir(checkpoint.Place{Missing: true}, nil), nil},
		"one that cannot be made": {
			stateDir(checkpoint.Place{Missing: true}, syscall.EROFS),
			[]wantFinding{{"state_dir", Warning, "state.dir", "/data/prices is not there and cannot be made", "mount the volume"}},
		},
		"one that must not be written to": {
			stateDir(checkpoint.Place{}, syscall.EACCES),
			[]wantFinding{{"state_dir", Warning, "state.dir", "/data/prices cannot be used: no checkpoint would be written here, joins go on: permission denied", "may write to"}},
		},
		"something else in its place": {
			stateDir(checkpoint.Place{}, syscall.ENOTDIR),
			[]wantFinding{{"state_dir", Warning, "state.dir", "not a directory", "name a directory"}},
		},
		"one that another process has": {
			stateDir(checkpoint.Place{Held: true}, nil),
			[]wantFinding{{"state_dir", Warning, "state.dir", "another process has /data/prices", "a directory of its own"}},
		},
		"more members than partitions": {
			group(t, "copartition", 8, nil),
			[]wantFinding{{"replicas", Warning, "group joiner", "8 members for 6 partitions: 2 idle", "grow both inputs"}},
		},
		"more replicas than partitions": {
			func(o *Options, _ *Facts) { o.Replicas = 7 },
			[]wantFinding{{"replicas", Warning, "--replicas", "7 replicas for 6 partitions: 1 idle", "grow both inputs"}},
		},
		"several replicas on loopback": {
			func(o *Options, _ *Facts) { o.Replicas, o.Advertised = 3, "127.0.0.1:8081" },
			[]wantFinding{{"peer_advertise", Warning, "peer.advertise", "127.0.0.1:8081 is reached from this machine alone", "other pods"}},
		},
		"no address to advertise": {
			func(o *Options, _ *Facts) { o.Advertised = "" },
			[]wantFinding{{"peer_advertise", Warning, "peer.advertise", "no address but loopback", "peer.advertise"}},
		},
		"addresses that are not dialled": {
			all(group(t, "copartition", 2, nil), func(o *Options, _ *Facts) {
				o.Dialled = func(host string) bool { return host == "10.0.0.2" }
			}),
			[]wantFinding{
				{"peer_advertise", Warning, "peer.advertise", "10.0.0.1:8081 is not among peer.allowed_names", "peer.allowed_names"},
				{"peer_advertise", Warning, "member m1 at 10.0.0.9", "advertises 10.0.0.1:8081, which is not among", "peer.allowed_names"},
			},
		},
		"a member that says what it must not": {
			group(t, "copartition", 2, func(g *kafka.Group) {
				g.Members[0].Instance = "pod\t0\n\x1b[31mok\x1b[0m\u202e"
				g.Members[0].Topics = []string{"orders\x1b[2J\x00"}
			}),
			[]wantFinding{{"group_members", Warning, `member pod; 0; \x1b[31mok\x1b[0m\u202e`, `is subscribed to orders\x1b[2J\x00, and`, "group.id"}},
		},
		"two members of one address": {
			group(t, "copartition", 2, func(g *kafka.Group) { g.Members[1].UserData = g.Members[0].UserData }),
			[]wantFinding{{"peer_advertise", Warning, "member m2 at 10.0.0.9", "advertises 10.0.0.1:8081, and so does m1", "apart in each pod"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, f := healthyOptions(t), healthyFacts()
			c.plant(o, f)
			findings := judge(o, f)
			assertExactly(t, findings, c.want)
			assertShape(t, findings)
		})
	}
}

// outputChecks are those that look at an output topic's settings or layout,
// beside output_topics and rights.
func outputChecks() []string {
	return []string{
		"replication", "min_insync_replicas", "unclean_leader_election", "output_cleanup", "output_retention",
		"output_timestamps", "output_timestamp_limits", "message_size",
	}
}

// blind are the warnings of checks that could not look at a topic.
func blind(why string, ids []string, topics ...string) []wantFinding {
	var list []wantFinding
	for _, id := range ids {
		for _, topic := range topics {
			list = append(list, wantFinding{id, Warning, topic, why, ""})
		}
	}
	return list
}

func TestMissingAlertTopic(t *testing.T) {
	o, f := healthyOptions(t), healthyFacts()
	f.Layouts[alertTopic] = kafka.Layout{Topic: kafka.Topic{Name: alertTopic}}
	want := append(blind("does not exist", outputChecks(), alertTopic),
		wantFinding{"output_topics", Failure, alertTopic, "does not exist", "create it with 6 partitions, or set topics.create: true"},
		wantFinding{"rights", Warning, "topic " + alertTopic, "does not exist", "output_topics"})
	assertExactly(t, judge(o, f), want)
}

// What a missing right hides is a warning that names the right, in every check
// that would look there.
func TestHiddenSettings(t *testing.T) {
	o, f := healthyOptions(t), healthyFacts()
	f.Settings[marketTopic] = kafka.Settings{Err: sarama.ErrTopicAuthorizationFailed}
	l := f.Layouts[marketTopic]
	l.Rights = l.Rights.Without(sarama.AclOperationDescribeConfigs)
	f.Layouts[marketTopic] = l
	const why = "DescribeConfigs on topic market-updates is missing"
	want := append(blind(why, []string{
		"min_insync_replicas", "unclean_leader_election", "market_cleanup", "market_compaction_lag", "retention",
		"input_timestamps", "message_size",
	}, marketTopic), wantFinding{"rights", Warning, "topic market-updates", "DescribeConfigs is missing", "grant DescribeConfigs on topic market-updates"})
	findings := judge(o, f)
	assertExactly(t, findings, want)
	for _, found := range findings {
		if strings.Contains(found.Message, why) && !strings.Contains(found.Remedy, "grant DescribeConfigs on topic market-updates") {
			t.Errorf("the remedy does not say what to grant: %+v", found)
		}
	}
}

func TestHiddenNotificationSettings(t *testing.T) {
	o, f := healthyOptions(t), healthyFacts()
	f.Settings[noteTopic] = kafka.Settings{Err: sarama.ErrTopicAuthorizationFailed}
	assertExactly(t, judge(o, f), blind("DescribeConfigs on topic notifications is missing", []string{
		"min_insync_replicas", "unclean_leader_election", "notifications_cleanup", "retention", "input_timestamps", "output_timestamp_limits", "message_size",
	}, noteTopic))
}

func TestUnreadablePartitions(t *testing.T) {
	o, f := healthyOptions(t), healthyFacts()
	for i := range f.Inputs[record.Notification].Partitions {
		f.Inputs[record.Notification].Partitions[i] = PartitionFacts{ID: int32(i), Committed: -1, Next: record.NoTimestamp, Err: sarama.ErrTopicAuthorizationFailed}
	}
	assertExactly(t, judge(o, f), blind("Read on topic notifications is missing", []string{
		"committed_offsets", "retention", "output_retention", "output_timestamp_limits", "records", "key_placement", "hot_keys", "clock_skew",
	}, noteTopic))
}

func TestHiddenGroup(t *testing.T) {
	o, f := healthyOptions(t), healthyFacts()
	f.GroupErr, f.CommittedErr = sarama.ErrGroupAuthorizationFailed, sarama.ErrGroupAuthorizationFailed
	assertExactly(t, judge(o, f), append(
		blind("Describe on group joiner is missing", []string{"group_protocol", "group_members", "group_release", "replicas", "peer_advertise"}, "group joiner"),
		wantFinding{"rights", Failure, "group joiner", "Read is missing", "grant Read on group joiner"},
		wantFinding{"market_compaction_lag", Warning, marketTopic, "Describe on group joiner is missing", ""},
		wantFinding{"committed_offsets", Warning, marketTopic, "Describe on group joiner is missing", ""},
		wantFinding{"committed_offsets", Warning, noteTopic, "Describe on group joiner is missing", ""},
		wantFinding{"retention", Warning, noteTopic, "Describe on group joiner is missing", ""},
	))
}

// Where nobody answers, nothing is ok but what is about the configuration
// alone.
func TestNobodyAnswers(t *testing.T) {
	o := healthyOptions(t)
	away := errors.New("connection refused")
	f := &Facts{Now: noon, Connected: errors.New("no bootstrap server answers")}
	for _, address := range o.Kafka.Brokers {
		f.Bootstrap = append(f.Bootstrap, kafka.Visit{ID: -1, Address: address, Err: away})
	}
	findings := judge(o, f)
	assertShape(t, findings)
	alone := []string{"config", "certificates", "reserved", "static_membership", "state_dir"}
	for _, found := range findings {
		switch {
		case found.ID == "bootstrap":
			if found.Status != Failure {
				t.Errorf("not a failure: %+v", found)
			}
		case slices.Contains(alone, found.ID):
		case found.Status != Warning || !strings.Contains(found.Message, "could not be looked at"):
			t.Errorf("judged without having looked: %+v", found)
		}
	}
}

func TestBrokenCheckHidesNothing(t *testing.T) {
	broken := check{"x", func(*judgement) []Finding { panic("of a mistake") }}
	got := broken.answer(&judgement{})
	if len(got) != 1 || got[0].Status != Warning || !strings.Contains(got[0].Message, "of a mistake") {
		t.Errorf("got %+v", got)
	}
}

// static makes the member a static one at an address that it keeps, and then
// does what it is given.
func static(then func(*Options, *Facts)) func(*Options, *Facts) {
	return func(o *Options, f *Facts) {
		o.Kafka.InstanceID, o.Leave, o.AddressSet = "joiner-0", "auto", true
		then(o, f)
	}
}
