package load

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// newRun connects both clients and looks at the topics.
func newRun(opts Options) (*run, error) {
	r := &run{
		opts:    opts,
		gen:     newGenerator(opts),
		tracker: newTracker(opts.NotificationTopic),
		failed:  make(chan error, 1),
	}
	if err := r.connect(); err != nil {
		r.closeClients()
		return nil, err
	}
	return r, nil
}

// connect makes two clients, since a broker answers one request of a connection
// at a time: an acknowledgement must not wait for a fetch that waits for alerts.
func (r *run) connect() error {
	var err error
	// The reading client gives up sooner: it comes first and looks at the
	// topics, so that a wrong address or name is reported at once.
	if r.reading, err = r.client(readerConfig); err != nil {
		return err
	}
	if r.producing, err = r.client(r.producerConfig); err != nil {
		return err
	}
	if r.ticksTo, err = partitionCount(r.reading, r.opts.MarketTopic); err != nil {
		return denied(rightWrite, r.opts.MarketTopic, err)
	}
	if r.notesTo, err = partitionCount(r.reading, r.opts.NotificationTopic); err != nil {
		return denied(rightWrite, r.opts.NotificationTopic, err)
	}
	_, err = partitionCount(r.reading, r.opts.AlertTopic)
	return denied(rightRead, r.opts.AlertTopic, err)
}

// The rights that load needs, by Kafka's names: to write what it sends, to read
// the alerts. Either lets it look the topic up as well.
const (
	rightWrite = "Write"
	rightRead  = "Read"
)

// denied names the right that is missing where that is the fault; brokers only
// say that there is one.
func denied(right, topic string, err error) error {
	switch {
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed):
		return fmt.Errorf("missing right: %s on topic %s: %w", right, topic, err)
	case errors.Is(err, sarama.ErrClusterAuthorizationFailed):
		// The producer's id: from Kafka 2.8 on, Write on any topic is enough.
		return fmt.Errorf("missing right: IdempotentWrite on the cluster, or Write on topic %s: %w", topic, err)
	}
	return err
}

func (r *run) client(adjust func(*sarama.Config)) (sarama.Client, error) {
	config, err := r.config()
	if err != nil {
		return nil, err
	}
	adjust(config)
	client, err := sarama.NewClient(r.opts.Brokers, config)
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", r.opts.Brokers, err)
	}
	return client, nil
}

func (r *run) config() (*sarama.Config, error) {
	if r.opts.Config != nil {
		return r.opts.Config()
	}
	config := sarama.NewConfig()
	config.ClientID = "joiner-load"
	config.Version = sarama.V3_6_0_0
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	return config, nil
}

// producerConfig makes every record count once: idempotent, acknowledged by
// all in-sync replicas, tried again for about half a minute.
func (r *run) producerConfig(c *sarama.Config) {
	c.Metadata.AllowAutoTopicCreation = false
	c.Net.MaxOpenRequests = 1 // what sarama demands of an idempotent producer
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Return.Errors = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Metadata.Retry.Max = 120 // a batch whose partition has no leader fails when these are used up
	c.Producer.Retry.Max = 300
	c.Producer.Retry.Backoff = 100 * time.Millisecond
	// sarama's default also bounds a batch, below Kafka's default for a topic;
	// of larger values one fills a batch, and the topic's limit decides.
	c.Producer.MaxMessageBytes = max(c.Producer.MaxMessageBytes, r.opts.ValueBytes+1<<10)
}

func readerConfig(c *sarama.Config) {
	c.Metadata.AllowAutoTopicCreation = false
	c.Consumer.Return.Errors = true
	c.Consumer.Retry.Backoff = 100 * time.Millisecond
}

// partitionCount reads fresh metadata, so that a topic made a moment ago is
// found and one that is missing is named.
func partitionCount(client sarama.Client, topic string) (int32, error) {
	if err := client.RefreshMetadata(topic); err != nil {
		return 0, topicError(topic, err)
	}
	partitions, err := client.Partitions(topic)
	if err != nil {
		return 0, topicError(topic, err)
	}
	if len(partitions) == 0 {
		return 0, topicError(topic, sarama.ErrUnknownTopicOrPartition)
	}
	return int32(len(partitions)), nil //nolint:gosec // a count of partitions
}

func topicError(topic string, err error) error {
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return fmt.Errorf("topic %s does not exist: create it first: %w", topic, err)
	}
	return fmt.Errorf("topic %s: %w", topic, err)
}

func (r *run) closeClients() {
	for _, c := range []sarama.Client{r.producing, r.reading} {
		if c != nil && !c.Closed() {
			_ = c.Close() // nothing left to save: every acknowledgement is counted
		}
	}
}

// reader reads the alert topic from the ends that it had at the start.
type reader struct {
	consumer   sarama.Consumer
	partitions []sarama.PartitionConsumer
	running    sync.WaitGroup
}

// startReading begins before the first record is sent, or an alert could be
// there before anybody looks.
func (r *run) startReading() error {
	consumer, err := sarama.NewConsumerFromClient(r.reading)
	if err != nil {
		return fmt.Errorf("read %s: %w", r.opts.AlertTopic, err)
	}
	rd := &reader{consumer: consumer}
	r.reader = rd
	if err := r.openPartitions(rd); err != nil {
		rd.stop()
		return err
	}
	for _, pc := range rd.partitions {
		rd.running.Add(2)
		go r.readAlerts(pc)
		go r.readErrors(pc)
	}
	return nil
}

func (r *run) openPartitions(rd *reader) error {
	topic := r.opts.AlertTopic
	ids, err := r.reading.Partitions(topic)
	if err != nil {
		return topicError(topic, err)
	}
	for _, id := range ids {
		end, err := r.reading.GetOffset(topic, id, sarama.OffsetNewest)
		if err != nil {
			return fmt.Errorf("end of %s/%d: %w", topic, id, denied(rightRead, topic, err))
		}
		pc, err := rd.consumer.ConsumePartition(topic, id, end)
		if err != nil {
			return fmt.Errorf("read %s/%d at %d: %w", topic, id, end, denied(rightRead, topic, err))
		}
		rd.partitions = append(rd.partitions, pc)
	}
	return nil
}

func (r *run) readAlerts(pc sarama.PartitionConsumer) {
	defer r.reader.running.Done()
	for m := range pc.Messages() {
		r.tracker.alert(m.Headers, time.Now())
	}
}

// readErrors drains the errors. Most pass by themselves; one that ends the
// partition, or a missing right, would leave the run waiting for alerts that
// nobody reads.
func (r *run) readErrors(pc sarama.PartitionConsumer) {
	defer r.reader.running.Done()
	for e := range pc.Errors() {
		if errors.Is(e.Err, sarama.ErrOffsetOutOfRange) || errors.Is(e.Err, sarama.ErrTopicAuthorizationFailed) {
			r.fail(fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, denied(rightRead, e.Topic, e.Err)))
		}
	}
}

// stop ends every partition. Where their readers never started, the last
// messages are of no interest and the consumer's own buffers take them.
func (rd *reader) stop() {
	for _, pc := range rd.partitions {
		pc.AsyncClose()
	}
	rd.running.Wait()
	_ = rd.consumer.Close() // its partitions have ended
}
