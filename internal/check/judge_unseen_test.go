package check

import (
	"errors"
	"slices"
	"testing"

	"github.com/IBM/sarama"

	"joiner/internal/assign"
	"joiner/internal/kafka"
	"joiner/internal/record"
)

// hides is what a fault hides: subjects by the id of the check; every: all.
type hides map[string][]string

const every = "*"

func (h hides) of(f Finding) bool {
	return slices.Contains(h[f.ID], every) || slices.Contains(h[f.ID], f.Subject)
}

// bySettings is what topics' settings are looked at for.
var bySettings = hides{
	"min_insync_replicas": {every}, "unclean_leader_election": {every}, "market_cleanup": {every}, "market_compaction_lag": {every},
	"notifications_cleanup": {every}, "output_cleanup": {every}, "retention": {every}, "output_retention": {every},
	"input_timestamps": {every}, "output_timestamps": {every}, "output_timestamp_limits": {every}, "message_size": {every},
}

// TestUnseen: what was not seen is never ok, in any check, and hides nothing
// that was: all other findings are those of the same cluster seen whole.
func TestUnseen(t *testing.T) {
	joined := group(t, "copartition", 2, nil)
	for name, c := range map[string]struct {
		before func(*Options, *Facts) // what is so anyway
		fault  func(*Options, *Facts)
		hides  hides
	}{
		"a group that rebalances": {
			nil,
			// A coordinator describes its members by their names alone then.
			func(_ *Options, f *Facts) {
				f.Group.State, f.Group.Protocol = "CompletingRebalance", ""
				for i := range f.Group.Members {
					m := &f.Group.Members[i]
					m.Topics, m.UserData, m.AssignmentData = nil, nil, nil
				}
			},
			hides{"group_protocol": {every}, "group_members": {every}, "group_release": {every}, "peer_advertise": {every}},
		},
		"a group that may not be described": {
			nil,
			func(_ *Options, f *Facts) {
				f.Group = kafka.Group{}
				f.GroupErr, f.CommittedErr = sarama.ErrGroupAuthorizationFailed, sarama.ErrGroupAuthorizationFailed
			},
			hides{
				"rights": {"group joiner"}, "group_protocol": {every}, "group_members": {every}, "group_release": {every},
				"replicas": {every}, "peer_advertise": {every},
				"market_compaction_lag": {every}, "committed_offsets": {every}, "retention": {noteTopic},
			},
		},
		"offsets that could not be had": {
			nil,
			func(_ *Options, f *Facts) { f.CommittedErr = errors.New("no answer") },
			hides{"market_compaction_lag": {every}, "committed_offsets": {every}, "retention": {noteTopic}},
		},
		"a group that changes over from sticky": {
			func(o *Options, f *Facts) { o.UpgradeFrom, f.Group.Protocol = []string{assign.Sticky}, assign.Sticky },
			func(_ *Options, f *Facts) {
				for i := range f.Group.Members {
					f.Group.Members[i].UserData = []byte{0, 0, 0, 0, 0, 0, 0, 1}
				}
			},
			hides{"group_members": {every}, "group_release": {every}, "peer_advertise": {every}},
		},
		"notifications that may not be read": {
			nil,
			each(record.Notification, unreadable(sarama.ErrTopicAuthorizationFailed)),
			hides{
				"committed_offsets": {noteTopic}, "retention": {noteTopic}, "output_retention": {every}, "output_timestamp_limits": {every},
				"records": {noteTopic}, "key_placement": {noteTopic}, "hot_keys": {noteTopic}, "clock_skew": {noteTopic},
			},
		},
		"one partition of notifications that cannot be read": {
			nil,
			one(record.Notification, unreadable(errors.New("no leader"))),
			hides{
				"committed_offsets": {noteTopic}, "retention": {noteTopic}, "output_retention": {every}, "output_timestamp_limits": {every},
				"records": {noteTopic}, "key_placement": {noteTopic}, "hot_keys": {noteTopic}, "clock_skew": {noteTopic},
			},
		},
		"ticks that may not be read": {
			nil,
			each(record.Market, unreadable(sarama.ErrTopicAuthorizationFailed)),
			hides{
				"market_compaction_lag": {every}, "market_order": {every}, "committed_offsets": {marketTopic},
				"output_timestamp_limits": {marketTopic, deadTopic},
				"records":                 {marketTopic}, "key_placement": {marketTopic}, "hot_keys": {marketTopic}, "clock_skew": {marketTopic},
			},
		},
		"settings of ticks that are not allowed": {
			nil,
			func(_ *Options, f *Facts) {
				f.Settings[marketTopic] = kafka.Settings{Err: sarama.ErrTopicAuthorizationFailed}
			},
			hides{
				"min_insync_replicas": {marketTopic}, "unclean_leader_election": {marketTopic}, "market_cleanup": {every},
				"market_compaction_lag": {every}, "retention": {marketTopic}, "input_timestamps": {marketTopic}, "message_size": {marketTopic, deadTopic},
			},
		},
		"settings of notifications that are not allowed": {
			nil,
			func(_ *Options, f *Facts) {
				f.Settings[noteTopic] = kafka.Settings{Err: sarama.ErrTopicAuthorizationFailed}
			},
			hides{
				"min_insync_replicas": {noteTopic}, "unclean_leader_election": {noteTopic}, "notifications_cleanup": {every},
				"retention": {noteTopic}, "input_timestamps": {noteTopic}, "output_timestamp_limits": {every}, "message_size": {every},
			},
		},
		"no settings of topics told":    {nil, allSettings(kafka.Settings{Values: map[string]string{}}), bySettings},
		"no settings of topics allowed": {nil, allSettings(kafka.Settings{Err: sarama.ErrTopicAuthorizationFailed}), bySettings},
		"no settings of brokers told":   {nil, brokerSettings(kafka.Settings{Values: map[string]string{}}), hides{"broker_settings": {every}}},
		"no settings of brokers allowed": {
			nil,
			brokerSettings(kafka.Settings{Err: sarama.ErrClusterAuthorizationFailed}), hides{"broker_settings": {every}},
		},
		"an input that may not be described": {
			nil,
			func(_ *Options, f *Facts) {
				f.Layouts[noteTopic] = kafka.Layout{Topic: kafka.Topic{Name: noteTopic, Err: sarama.ErrTopicAuthorizationFailed}}
				f.Settings[noteTopic] = kafka.Settings{Err: sarama.ErrTopicAuthorizationFailed}
				f.Inputs[record.Notification].Partitions = nil
			},
			hides{
				"rights": {"topic " + noteTopic}, "input_topics": {noteTopic}, "partition_counts": {every}, "output_topics": {every},
				"replication": {noteTopic}, "min_insync_replicas": {noteTopic}, "unclean_leader_election": {noteTopic},
				"notifications_cleanup": {every}, "retention": {noteTopic}, "committed_offsets": {noteTopic}, "input_timestamps": {noteTopic},
				"output_retention": {every}, "output_timestamp_limits": {every}, "message_size": {every},
				"records": {noteTopic}, "key_placement": {noteTopic}, "hot_keys": {noteTopic}, "clock_skew": {noteTopic}, "replicas": {every},
			},
		},
		"notifications without keys": {
			nil, each(record.Notification, keyless),
			hides{"key_placement": {noteTopic}, "hot_keys": {noteTopic}},
		},
		"ticks without keys": {
			nil, each(record.Market, keyless),
			hides{"key_placement": {marketTopic}, "hot_keys": {marketTopic}},
		},
		"ticks whose symbols cannot be read, nor when they were": {
			func(o *Options, f *Facts) {
				o.Inputs[record.Market].BySymbol = true
				each(record.Market, bad)(o, f)
			},
			each(record.Market, func(p *PartitionFacts) {
				keyless(p)
				p.Sample.Event, p.Sample.EventOldest = record.NoTimestamp, record.NoTimestamp
			}),
			hides{"market_order": {every}, "key_placement": {marketTopic}, "hot_keys": {marketTopic}, "clock_skew": {marketTopic}},
		},
		"notifications without timestamps": {
			nil, each(record.Notification, timeless),
			hides{
				"retention": {noteTopic}, "output_retention": {every}, "output_timestamp_limits": {every}, "clock_skew": {noteTopic},
			},
		},
		"ticks without timestamps": {
			func(_ *Options, f *Facts) { f.Settings[marketTopic].Values[cleanupPolicy] = "compact,delete" },
			each(record.Market, timeless),
			hides{
				"market_compaction_lag": {every}, "retention": {marketTopic}, "output_timestamp_limits": {marketTopic, deadTopic},
				"clock_skew": {marketTopic},
			},
		},
		"a broker whose certificate was not seen": {
			nil,
			func(o *Options, f *Facts) {
				o.Kafka.Security.TLS.Enabled = true
				f.Brokers[1].Err = errors.New("no answer")
			},
			hides{
				"brokers": {"broker 2 (b:9092)"}, "broker_apis": {"broker 2 (b:9092)"}, "broker_settings": {"broker 2 (b:9092)"},
				"certificates": {every},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, f := healthyOptions(t), healthyFacts()
			joined(o, f)
			if c.before != nil {
				c.before(o, f)
			}
			seen := judge(o, f)
			c.fault(o, f)
			got := judge(o, f)
			assertShape(t, got)
			for _, found := range got {
				switch {
				case !c.hides.of(found):
					if !slices.Contains(seen, found) && !found.blind {
						t.Errorf("it changes what was seen: %+v", found)
					}
				case found.Status == OK:
					t.Errorf("ok, and was not looked at: %+v", found)
				}
			}
			for _, was := range seen {
				if !c.hides.of(was) && !slices.Contains(got, was) {
					t.Errorf("it hides what was seen: %+v", was)
				}
			}
		})
	}
	for id := range bySettings {
		if !slices.Contains(IDs(), id) {
			t.Errorf("no such check: %s", id)
		}
	}
}

// keyless: all records are sampled and none can be placed.
func keyless(p *PartitionFacts) { p.Sample.Keyless, p.Sample.Keys = p.Sample.Records, nil }

// bad: none can be joined.
func bad(p *PartitionFacts) {
	p.Sample.Bad = map[record.Kind]int{record.MissingSymbol: p.Sample.Records}
	p.Sample.BadDetail = map[record.Kind]string{record.MissingSymbol: "of a test"}
}

func timeless(p *PartitionFacts) {
	p.Next, p.Sample.Oldest, p.Sample.Newest = record.NoTimestamp, record.NoTimestamp, record.NoTimestamp
}

func unreadable(err error) func(*PartitionFacts) {
	return func(p *PartitionFacts) {
		*p = PartitionFacts{ID: p.ID, Committed: -1, Next: record.NoTimestamp, Err: err}
	}
}

func allSettings(s kafka.Settings) func(*Options, *Facts) {
	return func(_ *Options, f *Facts) {
		for topic := range f.Settings {
			f.Settings[topic] = s
		}
	}
}

func brokerSettings(s kafka.Settings) func(*Options, *Facts) {
	return func(_ *Options, f *Facts) {
		for i := range f.Brokers {
			f.Brokers[i].Settings = s
		}
	}
}
