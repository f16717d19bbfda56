package app

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"joiner/internal/config"
	"joiner/internal/deliver"
	"joiner/internal/kafka"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/sampled"
)

// outputs knows the topics around the join: whether the outputs are there,
// with how many partitions and what they take, and how long the inputs keep
// records. It looks again every kafka.metadata_refresh, and makes or grows the
// output topics where topics.create says so.
type outputs struct {
	conf    config.Topics
	facts   *kafka.Facts
	writer  func() []deliver.Fault
	metrics *metrics.Metrics
	log     *zap.Logger
	faults  *sampled.Log

	mu     sync.Mutex
	topics map[string]kafka.Topic // as last looked up
	known  map[string]kafka.Topic // as last seen
	bounds map[string]deliver.Limits
	err    error    // why the last look failed; nil
	told   []string // what was amiss when it was last logged
}

func (o *outputs) inputs() []string {
	return []string{o.conf.MarketUpdates, o.conf.Notifications}
}

func (o *outputs) names() []string {
	if o.conf.DeadLetters == "" {
		return []string{o.conf.EnrichedAlerts}
	}
	return []string{o.conf.EnrichedAlerts, o.conf.DeadLetters}
}

// run looks again and again until ctx ends, and calls then after each look; the
// first look is the caller's.
func (o *outputs) run(ctx context.Context, every time.Duration, then func()) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			o.look(ctx, every)
			then()
		}
	}
}

// look learns what there is, within a bound: brokers that are away are no
// reason to keep what was known from being looked at again.
func (o *outputs) look(ctx context.Context, every time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, max(every, 5*time.Second))
	defer cancel()
	err := o.lookOnce(ctx)
	o.mu.Lock()
	news := fmt.Sprint(err) != fmt.Sprint(o.err)
	o.err = err
	o.mu.Unlock()
	if err != nil && news && ctx.Err() == nil {
		o.log.Warn("output topics are not as they should be, looking again from time to time",
			zap.Duration("every", every), zap.Error(err))
	}
}

func (o *outputs) lookOnce(ctx context.Context) error {
	var made error
	if o.conf.Create {
		made = o.facts.EnsureOutputs(ctx, kafka.Outputs{
			Inputs: o.inputs(), Topics: o.names(), ReplicationFactor: o.conf.ReplicationFactor,
		})
	}
	all := append(o.inputs(), o.names()...)
	topics, err := o.facts.Topics(ctx, all...)
	if err != nil {
		return fmt.Errorf("looking up topics: %w", err)
	}
	configs, err := o.facts.Configs(ctx, all...)
	if err != nil {
		return fmt.Errorf("looking up topic configurations: %w", err)
	}
	for name, c := range configs {
		o.undescribed(name, c)
	}
	o.mu.Lock()
	o.learn(topics)
	o.bounds = make(map[string]deliver.Limits, len(configs))
	for name, c := range configs {
		o.bounds[name] = limitsOf(c)
	}
	o.mu.Unlock()
	o.tell()
	for side, name := range o.inputs() {
		if t := topics[name]; t.Err == nil { // else it is not known, and what was known stays
			o.metrics.Group.SetTopicPartitions(name, t.Partitions)
		}
		o.metrics.SetRetention(record.Side(side), time.Duration(configs[name].RetentionMillis)*time.Millisecond)
	}
	return made
}

// learn takes in a look. What was seen of a topic counts until the next time
// that it is seen: a right that is taken away for a moment, or a broker that does
// not know the topic yet, make it no other one, as which every look-up of this
// pod would be refused. o.mu is held.
func (o *outputs) learn(topics map[string]kafka.Topic) {
	o.topics = topics
	if o.known == nil {
		o.known = make(map[string]kafka.Topic, len(topics))
	}
	for name, t := range topics {
		if t.Exists() {
			o.known[name] = t
		}
	}
}

// undescribed tells what goes on without the right to a topic's settings: the
// broker alone then judges what is too large or too old, and what it refuses is
// dead-lettered as ever.
func (o *outputs) undescribed(topic string, c kafka.TopicConfig) {
	if !kafka.Unauthorized(c.Err) {
		return
	}
	right := kafka.Right{Operation: "DescribeConfigs", Resource: "topic", Name: topic}
	o.faults.Warn("right "+right.String(),
		"missing right: "+right.String()+"; going on without the topic's limits and retention",
		zap.String("operation", right.Operation), zap.String("topic", topic), zap.Error(c.Err))
}

// limitsOf translates a topic's settings; what is not known is not judged.
func limitsOf(c kafka.TopicConfig) deliver.Limits {
	if !c.Known {
		return deliver.Limits{}
	}
	return deliver.Limits{
		MaxMessageBytes: int(c.MaxMessageBytes),
		TimestampBefore: millis(c.TimestampBefore),
		TimestampAfter:  millis(c.TimestampAfter),
		LogAppendTime:   c.LogAppendTime,
	}
}

// millis is a duration, 0 (no limit) where it does not fit one.
func millis(ms int64) time.Duration {
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// topic is what was last seen of a topic; false where it never was.
func (o *outputs) topic(name string) (kafka.Topic, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t, ok := o.known[name]
	return t, ok
}

// limits implements deliver.Options.Limits.
func (o *outputs) limits(topic string) deliver.Limits {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bounds[topic]
}

// deadLetterPartition is the same number where the topic has it, else that
// number modulo its count.
func (o *outputs) deadLetterPartition(index int32) int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.known[o.conf.DeadLetters].Partitions
	if n <= 0 || index < n {
		return index
	}
	return index % n
}

// reasons says what keeps outputs from being written.
func (o *outputs) reasons() []string {
	waiting := o.writer() // before the lock: the writer asks for limits under its own
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.topics == nil {
		if o.err != nil {
			return []string{"output topics: " + o.err.Error()}
		}
		return []string{"output topics have not been looked up yet"}
	}
	reasons := o.amiss()
	for _, f := range waiting {
		reasons = append(reasons, fmt.Sprintf("outputs wait for %s/%d: %s", f.Topic, f.Partition, f.Reason))
	}
	return reasons
}

// amiss says which topics are not as they should be. o.mu is held.
func (o *outputs) amiss() (reasons []string) {
	want := int32(0)
	for _, name := range o.inputs() {
		switch t := o.topics[name]; {
		case kafka.Unauthorized(t.Err):
			reasons = append(reasons, unseen("Read", t))
		case !t.Exists():
			reasons = append(reasons, missing("input", t)+": create it, with as many partitions as the other input, or correct its name in the configuration")
		}
		want = max(want, o.topics[name].Partitions)
	}
	for _, name := range o.names() {
		switch t := o.topics[name]; {
		case kafka.Unauthorized(t.Err):
			reasons = append(reasons, unseen("Write", t))
		case want == 0: // what it needs is not known either
		case !t.Exists():
			cure := "create it or set topics.create: true"
			if o.conf.Create {
				cure = "it is made as soon as the brokers let joiner (topics.create)"
			}
			reasons = append(reasons, fmt.Sprintf("%s: it needs %d partitions, as the inputs have; %s", missing("output", t), want, cure))
		case name == o.conf.EnrichedAlerts && t.Partitions < want:
			reasons = append(reasons, fmt.Sprintf("output topic %s has %d partitions, it needs %d, as the inputs have", name, t.Partitions, want))
		}
	}
	return reasons
}

// tell logs what is amiss with topics whenever that has changed: a pod that
// waits for one must not do so in silence.
func (o *outputs) tell() {
	o.mu.Lock()
	reasons := o.amiss()
	news := !slices.Equal(reasons, o.told)
	o.told = reasons
	o.mu.Unlock()
	switch {
	case news && len(reasons) > 0:
		o.log.Warn("topics are not as they should be, looking again from time to time", zap.Strings("reasons", reasons))
	case news:
		o.log.Info("topics are as they should be")
	}
}

// unseen names the right that implies that the topic may be looked up.
func unseen(operation string, t kafka.Topic) string {
	right := kafka.Right{Operation: operation, Resource: "topic", Name: t.Name}
	return fmt.Sprintf("missing right: %s (not even Describe: whether the topic exists is not known)", right)
}

func missing(what string, t kafka.Topic) string {
	if t.Err != nil {
		return fmt.Sprintf("%s topic %s cannot be looked up: %v", what, t.Name, t.Err)
	}
	return fmt.Sprintf("%s topic %s does not exist", what, t.Name)
}
