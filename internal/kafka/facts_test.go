package kafka

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestTopics(t *testing.T) {
	k := anyCluster(t)
	small, large, missing := k.topic(t, 1, nil), k.topic(t, 12, nil), unique("missing")
	c := k.connect(t, nil)
	got, err := c.Facts.Topics(deadline(t), small, large, missing)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[small].Partitions != 1 || got[large].Partitions != 12 || got[missing].Exists() {
		t.Errorf("got %+v", got)
	}
	if c.Facts.Cluster() == "" {
		t.Error("no cluster id")
	}
	if got[small].ID == "" || got[small].ID == got[large].ID {
		t.Errorf("topic ids %q and %q", got[small].ID, got[large].ID)
	}
	if got[missing].Err != nil || got[missing].Name != missing {
		t.Errorf("a missing topic: %+v", got[missing])
	}
	if err := k.admin.CreatePartitions(small, 3, nil, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "three partitions", func() bool {
		got, err := c.Facts.Topics(deadline(t), small)
		return err == nil && got[small].Partitions == 3
	})
	if got, err := c.Facts.Topics(deadline(t)); err != nil || len(got) != 0 {
		t.Errorf("no names: %v, %v", got, err)
	}
}

func TestTopicsWithoutTheRight(t *testing.T) {
	k := fakeCluster(t, 1)
	open, closed := k.topic(t, 2, nil), k.topic(t, 2, nil)
	c := k.connect(t, nil)
	k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: closed, Err: kerr.TopicAuthorizationFailed, Count: 1})
	got, err := c.Facts.Topics(deadline(t), open, closed)
	if err != nil {
		t.Fatal(err)
	}
	if got[open].Partitions != 2 || !errors.Is(got[closed].Err, sarama.ErrTopicAuthorizationFailed) {
		t.Errorf("got %+v", got)
	}
}

func TestConfigs(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, map[string]string{
		"max.message.bytes": "123456", "retention.ms": "-1", "cleanup.policy": "compact,delete",
		"message.timestamp.type": "LogAppendTime",
	})
	plain, missing := k.topic(t, 1, map[string]string{"retention.ms": "3600000"}), unique("missing")
	c := k.connect(t, nil)
	got, err := c.Facts.Configs(deadline(t), topic, plain, missing)
	if err != nil {
		t.Fatal(err)
	}
	if g := got[topic]; !g.Known || g.MaxMessageBytes != 123456 || g.RetentionMillis != -1 || !g.LogAppendTime || g.CleanupPolicy != "compact,delete" {
		t.Errorf("got %+v", g)
	}
	if g := got[plain]; !g.Known || g.RetentionMillis != 3600000 || g.LogAppendTime || g.CleanupPolicy != "delete" || g.MaxMessageBytes < 1<<20 {
		t.Errorf("got %+v", g)
	}
	if g, ok := got[missing]; !ok || g.Known || g.Err == nil {
		t.Errorf("a missing topic: %+v", g)
	}
}

func TestConfigOf(t *testing.T) {
	entries := func(kv ...string) *sarama.ResourceResponse {
		r := &sarama.ResourceResponse{}
		for i := 0; i < len(kv); i += 2 {
			r.Configs = append(r.Configs, &sarama.ConfigEntry{Name: kv[i], Value: kv[i+1]})
		}
		return r
	}
	for name, test := range map[string]struct {
		in   *sarama.ResourceResponse
		want TopicConfig
	}{
		"nothing told": {entries(), TopicConfig{
			Known: true, TimestampBefore: math.MaxInt64, TimestampAfter: math.MaxInt64, RetentionMillis: -1, DeleteRetention: -1,
		}},
		"before 3.6": {entries(configEither, "5"), TopicConfig{
			Known: true, TimestampBefore: 5, TimestampAfter: 5, RetentionMillis: -1, DeleteRetention: -1,
		}},
		"both settings": {entries(configBefore, "7", configAfter, "8", configEither, "5"), TopicConfig{
			Known: true, TimestampBefore: 7, TimestampAfter: 8, RetentionMillis: -1, DeleteRetention: -1,
		}},
		"Kafka 4": {entries(configBefore, "9223372036854775807", configAfter, "3600000", configMaxBytes, "1048588",
			configRetention, "604800000", configCleanup, "delete", configDelete, "7000", configStamp, "CreateTime"), TopicConfig{
			Known: true, TimestampBefore: math.MaxInt64, TimestampAfter: 3600000, MaxMessageBytes: 1048588,
			RetentionMillis: 604800000, CleanupPolicy: "delete", DeleteRetention: 7000,
		}},
		"refused": {&sarama.ResourceResponse{ErrorCode: 29}, TopicConfig{Err: sarama.ErrTopicAuthorizationFailed}},
	} {
		if got := configOf(test.in); got != test.want {
			t.Errorf("%s: %s", name, cmp.Diff(test.want, got, cmp.Comparer(errors.Is)))
		}
	}
}

func TestEnsureOutputs(t *testing.T) {
	k := anyCluster(t)
	small := k.topic(t, 2, nil)
	large := k.topic(t, 6, map[string]string{"max.message.bytes": "2000000"})
	there := k.topic(t, 3, map[string]string{"max.message.bytes": "7777"})
	alerts, dead := unique("alerts"), unique("dead")
	c := k.connect(t, nil)
	o := Outputs{Inputs: []string{small, large}, Topics: []string{alerts, dead, there}, ReplicationFactor: -1}

	// Several pods start at once, and again.
	var pods sync.WaitGroup
	for range 3 {
		pods.Go(func() {
			if err := c.Facts.EnsureOutputs(deadline(t), o); err != nil {
				t.Error(err)
			}
		})
	}
	pods.Wait()
	wantOutputs(t, c, 6, o.Topics)
	configs, err := c.Facts.Configs(deadline(t), o.Topics...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{alerts, dead} {
		if got := configs[name].MaxMessageBytes; got != 2000000+64<<10 {
			t.Errorf("%s has room for %d bytes, want the largest input's and 64 KiB", name, got)
		}
	}
	if got := configs[there].MaxMessageBytes; got != 7777 {
		t.Errorf("the settings of a topic that existed were changed: %d", got)
	}

	if err := k.admin.CreatePartitions(large, 9, nil, false); err != nil {
		t.Fatal(err)
	}
	// As the service does: look again until all brokers have heard of it.
	eventually(t, "the outputs' growth", func() bool {
		if err := c.Facts.EnsureOutputs(deadline(t), o); err != nil {
			t.Error(err)
		}
		return haveOutputs(t, c, 9, o.Topics)
	})
}

func wantOutputs(t *testing.T, c *Clients, partitions int32, names []string) {
	t.Helper()
	eventually(t, "the outputs", func() bool { return haveOutputs(t, c, partitions, names) })
}

func haveOutputs(t *testing.T, c *Clients, partitions int32, names []string) bool {
	t.Helper()
	topics, err := c.Facts.Topics(deadline(t), names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if got := topics[name].Partitions; got > partitions {
			t.Errorf("%s has %d partitions, want %d", name, got, partitions)
		}
		if topics[name].Partitions != partitions {
			return false
		}
	}
	return true
}

func TestEnsureOutputsNeedsItsInputs(t *testing.T) {
	k := anyCluster(t)
	c := k.connect(t, nil)
	alerts := unique("alerts")
	err := c.Facts.EnsureOutputs(deadline(t), Outputs{Inputs: []string{unique("missing")}, Topics: []string{alerts}, ReplicationFactor: -1})
	if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		t.Errorf("got %v", err)
	}
	if got, err := c.Facts.Topics(deadline(t), alerts); err != nil || got[alerts].Exists() {
		t.Errorf("made without inputs: %+v, %v", got[alerts], err)
	}
}

func TestEnsureOutputsWithoutTheRight(t *testing.T) {
	k := fakeCluster(t, 1)
	in := k.topic(t, 2, nil)
	c := k.connect(t, nil)
	alerts := unique("alerts")
	o := Outputs{Inputs: []string{in}, Topics: []string{alerts}, ReplicationFactor: -1}
	k.fake.Fake().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: 1},
		kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.TopicAuthorizationFailed, Count: 1},
	)
	if err := c.Facts.EnsureOutputs(deadline(t), o); !errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
		t.Errorf("creating without the right: %v", err)
	}
	if got := c.MissingRights(); !slices.Contains(got, createTopic(alerts)) {
		t.Errorf("the missing rights are %v", got)
	}
	// Without the right to read the inputs' configurations, the broker's
	// default room has to do.
	k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: 1})
	if err := c.Facts.EnsureOutputs(deadline(t), o); err != nil {
		t.Errorf("without the inputs' configurations: %v", err)
	}
	if got := c.MissingRights(); slices.Contains(got, createTopic(alerts)) {
		t.Errorf("the topic is there, and the missing rights are %v", got)
	}
	wantOutputs(t, c, 2, o.Topics)
}
