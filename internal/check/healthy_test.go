package check

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"joiner/internal/enrich"
	"joiner/internal/hot"
	"joiner/internal/kafka"
	"joiner/internal/placement"
	"joiner/internal/record"
)

// The topics of every test of judgement.
const (
	marketTopic = "market-updates"
	noteTopic   = "notifications"
	alertTopic  = "enriched-alerts"
	deadTopic   = "enriched-alerts-dlq"
)

const partitions = 6

// noon is when the facts were seen.
var noon = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// healthyOptions are those of a configuration with nothing special.
func healthyOptions(t testing.TB) *Options {
	t.Helper()
	o := &Options{
		Kafka: kafka.Options{
			Brokers: []string{"a:9092", "b:9092"}, Version: "auto", GroupID: "joiner",
			SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second,
		},
		Alerts: alertTopic, DeadLetters: deadTopic, ReplicationFactor: -1,
		Strategy: "copartition", RemoteLookup: true, CommitInterval: time.Second,
		Advertised: "10.0.0.1:8081",
	}
	for side, topic := range []string{marketTopic, noteTopic} {
		placer, err := placement.New(placement.Options{Topic: topic, Partitioner: "murmur2"})
		if err != nil {
			t.Fatal(err)
		}
		o.Inputs[side] = Input{
			Topic: topic, Partitioner: "murmur2", Placer: placer, OwnTime: true,
			Decode: func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) { return r.Key, r.Timestamp, nil },
		}
	}
	return o
}

// healthyFacts are what is seen of a cluster with nothing wrong, in use.
func healthyFacts() *Facts {
	f := &Facts{Now: noon, Layouts: make(map[string]kafka.Layout), Settings: make(map[string]kafka.Settings)}
	for _, address := range []string{"a:9092", "b:9092"} {
		f.Bootstrap = append(f.Bootstrap, kafka.Visit{ID: -1, Address: address, ClusterID: "C", APIs: newestAPIs()})
	}
	for id, address := range []string{"a:9092", "b:9092", "c:9092"} {
		f.Brokers = append(f.Brokers, kafka.Visit{
			ID: int32(id + 1), Address: address, ClusterID: "C", APIs: newestAPIs(),
			Settings: kafka.Settings{Values: map[string]string{
				"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "1800000",
				"offsets.retention.minutes": "10080", "transaction.max.timeout.ms": "900000",
			}},
		})
	}
	for _, topic := range []string{marketTopic, noteTopic, alertTopic, deadTopic} {
		f.Layouts[topic] = healthyLayout(topic, partitions)
		f.Settings[topic] = kafka.Settings{Values: healthySettings(topic)}
	}
	f.Group = kafka.Group{Rights: kafka.AllRights()}
	for side := range f.Inputs {
		for id := range int32(partitions) {
			f.Inputs[side].Partitions = append(f.Inputs[side].Partitions, healthyPartition(id))
		}
		f.Inputs[side].Keys = Suspect{Name: "murmur2", Share: 1, Seen: 300}
	}
	return f
}

func newestAPIs() map[int16]int16 {
	return map[int16]int16{
		apiProduce: 13, apiFetch: 18, apiListOffsets: 11, apiMetadata: 13, apiOffsetFetch: 10, apiJoinGroup: 9,
		apiLeaveGroup: 5, apiCreateTopics: 7, apiInitProducerID: 6, apiTxnOffsetCommit: 5, apiDescribeConfigs: 4,
		apiCreatePartitions: 3,
	}
}

func healthyLayout(topic string, n int32) kafka.Layout {
	l := kafka.Layout{Topic: kafka.Topic{Name: topic, ID: topic + "-id", Partitions: n}, Rights: kafka.AllRights()}
	for id := range n {
		l.Partitions = append(l.Partitions, kafka.PartitionLayout{ID: id, Leader: 1 + id%3, Replicas: []int32{1, 2, 3}, InSync: []int32{1, 2, 3}})
	}
	return l
}

func healthySettings(topic string) map[string]string {
	s := map[string]string{
		"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1",
		"min.compaction.lag.ms": "0", "delete.retention.ms": "86400000",
		"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "9223372036854775807", "message.timestamp.after.max.ms": "3600000",
		"max.message.bytes": "1048588", "min.insync.replicas": "2", "unclean.leader.election.enable": "false",
	}
	switch topic {
	case marketTopic:
		maps.Copy(s, map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"})
	case alertTopic, deadTopic:
		s["max.message.bytes"] = "1114124"
	}
	return s
}

// healthyPartition has 1,000 records of which the last ten seconds are to come.
func healthyPartition(id int32) PartitionFacts {
	p := PartitionFacts{
		ID: id, Start: 0, End: 1000, Committed: 990, Next: record.MillisOf(noon.Add(-10 * time.Second)),
		Sample: Sample{
			At: noon, Records: 1000, Bytes: 200_000, Largest: 250,
			Oldest: record.MillisOf(noon.Add(-1000 * time.Second)), Newest: record.MillisOf(noon.Add(-time.Second)),
			EventOldest: record.MillisOf(noon.Add(-1000 * time.Second)), Event: record.MillisOf(noon.Add(-time.Second)),
		},
	}
	for i := range topKeys {
		p.Sample.Keys = append(p.Sample.Keys, hot.Key{Name: fmt.Sprintf("K%d-%d", i, id), Count: 20})
	}
	return p
}
