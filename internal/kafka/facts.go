package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Facts looks up what topics are like, always afresh, and makes output topics.
type Facts struct {
	client  sarama.Client
	faults  *sampler
	rights  *rights
	log     *zap.Logger
	cluster atomic.Pointer[string]
}

// Cluster is the cluster's id, as a broker told it together with topics; empty
// before the first call of Topics.
func (f *Facts) Cluster() string {
	if id := f.cluster.Load(); id != nil {
		return *id
	}
	return ""
}

// Topic is a topic as the cluster's metadata shows it.
type Topic struct {
	Name       string
	ID         string // changes when the topic is made anew; empty where the broker is older than 2.8
	Partitions int32  // 0 where it does not exist
	Err        error  // a missing right: whether it exists is then unknown
}

// Exists tells whether the topic is there.
func (t Topic) Exists() bool { return t.Partitions > 0 }

// Topics returns the topics of these names, all of them: one that does not
// exist has no partitions. Faults that time heals are tried again until ctx
// ends.
func (f *Facts) Topics(ctx context.Context, names ...string) (map[string]Topic, error) {
	topics := make(map[string]Topic, len(names))
	if len(names) == 0 {
		return topics, nil // an empty request would mean all topics
	}
	names = slices.Clone(names) // a request may outlive this call
	resp, err := atAny(ctx, f, "topic metadata", names, func(b *sarama.Broker) (*sarama.MetadataResponse, error) {
		resp, err := b.GetMetadata(sarama.NewMetadataRequest(f.client.Config().Version, names))
		if err != nil {
			return nil, err
		}
		return resp, settled(resp)
	})
	if err != nil {
		return nil, err
	}
	if resp.ClusterID != nil {
		f.cluster.Store(resp.ClusterID)
	}
	for _, name := range names {
		topics[name] = Topic{Name: name}
	}
	for _, t := range resp.Topics {
		topics[t.Name] = topicOf(t)
	}
	return topics, nil
}

// settled returns an error where the cluster does not know yet what it has.
func settled(resp *sarama.MetadataResponse) error {
	for _, t := range resp.Topics {
		switch t.Err {
		case sarama.ErrNoError, sarama.ErrLeaderNotAvailable, sarama.ErrUnknownTopicOrPartition,
			sarama.ErrTopicAuthorizationFailed, sarama.ErrInvalidTopic:
		default:
			return fmt.Errorf("topic %s: %w", t.Name, t.Err)
		}
	}
	return nil
}

func topicOf(t *sarama.TopicMetadata) Topic {
	return newTopic(t.Name, t.Err, len(t.Partitions), t.Uuid)
}

// newTopic is what metadata tells of a topic.
func newTopic(name string, err sarama.KError, partitions int, id sarama.Uuid) Topic {
	topic := Topic{Name: name}
	switch err {
	case sarama.ErrUnknownTopicOrPartition:
		return topic
	case sarama.ErrTopicAuthorizationFailed, sarama.ErrInvalidTopic:
		topic.Err = err
		return topic
	}
	topic.Partitions = int32(partitions)
	if id != (sarama.Uuid{}) {
		topic.ID = id.String()
	}
	return topic
}

// TopicConfig is the part of a topic's configuration that joiner heeds. Where
// Known is false, because the topic is missing or the right to describe it is,
// nothing in it is.
type TopicConfig struct {
	Known           bool
	Err             error  // why it is not known
	MaxMessageBytes int64  // largest batch, in bytes as stored; 0 unknown
	TimestampBefore int64  // ms that a record's timestamp may be behind the broker's clock (KIP-937); MaxInt64: any
	TimestampAfter  int64  // likewise ahead
	LogAppendTime   bool   // the broker replaces timestamps
	RetentionMillis int64  // -1: unlimited
	CleanupPolicy   string // "delete", "compact" or both with a comma
	DeleteRetention int64  // ms that a tombstone outlives its compaction for; -1 unknown
}

// The settings that TopicConfig is made of.
const (
	configMaxBytes  = "max.message.bytes"
	configBefore    = "message.timestamp.before.max.ms"
	configAfter     = "message.timestamp.after.max.ms"
	configEither    = "message.timestamp.difference.max.ms" // both, before Kafka 3.6
	configStamp     = "message.timestamp.type"
	configRetention = "retention.ms"
	configCleanup   = "cleanup.policy"
	configDelete    = "delete.retention.ms"
)

// Configs returns the configurations of these topics, all of them. Neither a
// missing topic nor a missing right is an error. Faults that time heals are
// tried again until ctx ends.
func (f *Facts) Configs(ctx context.Context, names ...string) (map[string]TopicConfig, error) {
	configs := make(map[string]TopicConfig, len(names))
	if len(names) == 0 {
		return configs, nil
	}
	names = slices.Clone(names) // a request may outlive this call
	resp, err := atAny(ctx, f, "topic configurations", names, func(b *sarama.Broker) (*sarama.DescribeConfigsResponse, error) {
		return b.DescribeConfigs(configsRequest(names))
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		configs[name] = TopicConfig{Err: sarama.ErrIncompleteResponse}
	}
	for _, r := range resp.Resources {
		configs[r.Name] = configOf(r)
	}
	return configs, nil
}

func configsRequest(names []string) *sarama.DescribeConfigsRequest {
	req := &sarama.DescribeConfigsRequest{Version: 4}
	for _, name := range names {
		req.Resources = append(req.Resources, &sarama.ConfigResource{
			Type: sarama.TopicResource, Name: name,
			ConfigNames: []string{
				configMaxBytes, configBefore, configAfter, configEither,
				configStamp, configRetention, configCleanup, configDelete,
			},
		})
	}
	return req
}

func configOf(r *sarama.ResourceResponse) TopicConfig {
	if err := sarama.KError(r.ErrorCode); err != sarama.ErrNoError {
		return TopicConfig{Err: err}
	}
	c := TopicConfig{Known: true, TimestampBefore: math.MaxInt64, TimestampAfter: math.MaxInt64, RetentionMillis: -1, DeleteRetention: -1}
	values := make(map[string]string, len(r.Configs))
	for _, e := range r.Configs {
		values[e.Name] = e.Value
	}
	// The older setting first: brokers that know both heed the newer two.
	number(values, configEither, &c.TimestampBefore)
	number(values, configEither, &c.TimestampAfter)
	number(values, configBefore, &c.TimestampBefore)
	number(values, configAfter, &c.TimestampAfter)
	number(values, configMaxBytes, &c.MaxMessageBytes)
	number(values, configRetention, &c.RetentionMillis)
	number(values, configDelete, &c.DeleteRetention)
	c.LogAppendTime = values[configStamp] == "LogAppendTime"
	c.CleanupPolicy = values[configCleanup]
	return c
}

func number(values map[string]string, name string, field *int64) {
	if n, err := strconv.ParseInt(values[name], 10, 64); err == nil {
		*field = n
	}
}

// Outputs says which topics EnsureOutputs makes.
type Outputs struct {
	Inputs            []string // must exist
	Topics            []string // to make or grow
	ReplicationFactor int16    // -1: the broker's default
}

// outputSlack is how much larger than the largest input record an alert may
// be, in bytes: it wraps the notification in JSON and adds headers.
const outputSlack = 64 << 10

// EnsureOutputs makes the output topics that are missing, with as many
// partitions as the input that has most and room for its records (the largest
// input's max.message.bytes + 64 KiB, where that may be read), and grows those
// that have fewer. It changes nothing else of a topic that exists. Several pods
// may do it at once. Call it again when the inputs may have grown.
func (f *Facts) EnsureOutputs(ctx context.Context, o Outputs) error {
	topics, err := f.Topics(ctx, slices.Concat(o.Inputs, o.Topics)...)
	if err != nil {
		return err
	}
	want := int32(0)
	for _, name := range o.Inputs {
		if !topics[name].Exists() {
			return fmt.Errorf("output topics: input topic %s: %w", name,
				cmp.Or(topics[name].Err, error(sarama.ErrUnknownTopicOrPartition)))
		}
		want = max(want, topics[name].Partitions)
	}
	var errs []error
	for _, name := range o.Topics {
		switch t := topics[name]; {
		case t.Err != nil:
			errs = append(errs, fmt.Errorf("output topic %s: %w", name, t.Err))
		case !t.Exists():
			errs = append(errs, f.create(ctx, name, want, o))
		case t.Partitions < want:
			errs = append(errs, f.grow(ctx, name, t.Partitions, want))
		default: // somebody else's work, maybe: no right is needed any more
			f.rights.seen(createTopic(name))
			f.rights.seen(alterTopic(name))
		}
	}
	return errors.Join(errs...)
}

func (f *Facts) create(ctx context.Context, name string, partitions int32, o Outputs) error {
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: o.ReplicationFactor}
	room, err := f.room(ctx, o.Inputs)
	if err != nil {
		return err
	}
	if room > 0 {
		s := strconv.FormatInt(room, 10)
		detail.ConfigEntries = map[string]*string{configMaxBytes: &s}
	}
	err = f.admin(ctx, "creating a topic", name, func(a sarama.ClusterAdmin) error {
		return a.CreateTopic(name, detail, false)
	}, sarama.ErrTopicAlreadyExists)
	if err != nil {
		return fmt.Errorf("creating output topic %s: %w", name, f.rights.missed(createTopic(name), err))
	}
	f.rights.seen(createTopic(name))
	f.log.Info("output topic exists now", zap.String("topic", name), zap.Int32("partitions", partitions),
		zap.Int64("max_message_bytes", room))
	return nil
}

// room returns the max.message.bytes for an output, 0 where the inputs' may not
// be read.
func (f *Facts) room(ctx context.Context, inputs []string) (int64, error) {
	configs, err := f.Configs(ctx, inputs...)
	if err != nil {
		return 0, err
	}
	largest := int64(0)
	for _, c := range configs {
		largest = max(largest, c.MaxMessageBytes)
	}
	if largest == 0 {
		return 0, nil
	}
	return min(largest+outputSlack, math.MaxInt32), nil
}

func (f *Facts) grow(ctx context.Context, name string, from, to int32) error {
	err := f.admin(ctx, "growing a topic", name, func(a sarama.ClusterAdmin) error {
		return a.CreatePartitions(name, to, nil, false)
	}, sarama.ErrInvalidPartitions) // has them already
	if err != nil {
		return fmt.Errorf("growing output topic %s from %d to %d partitions: %w", name, from, to, f.rights.missed(alterTopic(name), err))
	}
	f.rights.seen(alterTopic(name))
	f.log.Info("output topic has grown", zap.String("topic", name), zap.Int32("from", from), zap.Int32("partitions", to))
	return nil
}

// admin calls do until it succeeds, fails for good, ctx ends, or another pod
// turns out to have done it, which is fine too.
func (f *Facts) admin(ctx context.Context, what, topic string, do func(sarama.ClusterAdmin) error, fine error) error {
	return f.faults.again(ctx, what, func(ctx context.Context) error {
		_, err := within(ctx, func() (struct{}, error) {
			// Closing it would close the client.
			a, err := sarama.NewClusterAdminFromClient(f.client)
			if err != nil {
				return struct{}{}, err
			}
			return struct{}{}, do(a)
		})
		if errors.Is(err, fine) {
			return nil
		}
		return err
	}, zap.String("topic", topic))
}

// atAny calls do with some broker until it succeeds, fails for good or ctx ends.
// do may still run when ctx has ended, so it shares nothing with its caller.
func atAny[T any](ctx context.Context, f *Facts, what string, topics []string, do func(*sarama.Broker) (T, error)) (T, error) {
	var v T
	err := f.faults.again(ctx, what, func(ctx context.Context) (err error) {
		v, err = within(ctx, func() (T, error) {
			b := f.client.LeastLoadedBroker()
			if b == nil {
				var zero T
				return zero, cmp.Or(f.client.RefreshMetadata(topics...), sarama.ErrOutOfBrokers)
			}
			v, err := do(b)
			if err == nil {
				return v, nil
			}
			if !answered(err) {
				_ = b.Close()
			}
			// Finds another broker where this one is gone.
			_ = f.client.RefreshMetadata(topics...)
			return v, err
		})
		return err
	}, zap.Strings("topics", topics))
	return v, err
}
