package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/embedded"
	"joiner/internal/enrich"
	"joiner/internal/placement"
	"joiner/internal/record"
)

// brokerLog is the demo's own way to the broker: what any producer and consumer
// would do, nothing that joiner shares.
type brokerLog struct {
	producer sarama.SyncProducer
	consumer sarama.Consumer
}

func openLog(brokers []string) (*brokerLog, error) {
	version, err := sarama.ParseKafkaVersion(embedded.Version)
	if err != nil {
		return nil, fmt.Errorf("embedded broker's version: %w", err)
	}
	c := sarama.NewConfig()
	c.ClientID = "joiner-demo"
	c.Version = version
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Consumer.IsolationLevel = sarama.ReadCommitted // as any reader of alerts should
	c.Consumer.MaxWaitTime = 50 * time.Millisecond
	producer, err := sarama.NewSyncProducer(brokers, c)
	if err != nil {
		return nil, fmt.Errorf("produce: %w", err)
	}
	consumer, err := sarama.NewConsumer(brokers, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("consume: %w", err), producer.Close())
	}
	return &brokerLog{producer: producer, consumer: consumer}, nil
}

func (l *brokerLog) close() {
	_ = l.producer.Close() // every record is acknowledged
	_ = l.consumer.Close()
}

// send places keys as Java's producer does and returns once all have been
// acknowledged.
func (l *brokerLog) send(topic string, messages []message) error {
	placer, err := placement.New(placement.Options{Topic: topic, Partitioner: "murmur2"})
	if err != nil {
		return err
	}
	batch := make([]*sarama.ProducerMessage, 0, len(messages))
	for _, m := range messages {
		p, _ := placer.Partition([]byte(m.key), partitions) // known for any key under murmur2
		batch = append(batch, &sarama.ProducerMessage{
			Topic: topic, Partition: p,
			Key: sarama.StringEncoder(m.key), Value: sarama.StringEncoder(m.value), Timestamp: m.at,
		})
	}
	if err := l.producer.SendMessages(batch); err != nil {
		return fmt.Errorf("produce to %s: %w", topic, err)
	}
	return nil
}

// alert is an output with the symbol it is about.
type alert struct {
	symbol string
	enrich.Alert
}

// alerts reads the outputs from their start until those of n different
// notifications are there. Copies of one count once: at least once is what is
// promised.
func (l *brokerLog) alerts(ctx context.Context, topics Topics, n int) ([]alert, error) {
	messages, stop, err := l.read(topics.EnrichedAlerts)
	if err != nil {
		return nil, err
	}
	defer stop()
	seen := map[string]bool{}
	var alerts []alert
	for len(alerts) < n {
		select {
		case m := <-messages:
			source := sourceOf(m)
			if seen[source] {
				continue
			}
			seen[source] = true
			a, err := enrich.ParseAlert(m.Value)
			if err != nil {
				return nil, fmt.Errorf("%s/%d at %d: %w", m.Topic, m.Partition, m.Offset, err)
			}
			alerts = append(alerts, alert{symbol: string(m.Key), Alert: a})
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d alerts came: %w", len(alerts), n, ctx.Err())
		}
	}
	return alerts, nil
}

// sourceOf returns the notification's place, by the last header of the name.
func sourceOf(m *sarama.ConsumerMessage) string {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if string(m.Headers[i].Key) == "joiner-source" {
			return string(m.Headers[i].Value)
		}
	}
	return fmt.Sprintf("without a source: %d at %d", m.Partition, m.Offset)
}

// read merges the partitions of a topic. stop ends it.
func (l *brokerLog) read(topic string) (<-chan *sarama.ConsumerMessage, func(), error) {
	var (
		open    []sarama.PartitionConsumer
		running sync.WaitGroup
		all     = make(chan *sarama.ConsumerMessage)
		quit    = make(chan struct{})
	)
	stop := func() {
		close(quit)
		for _, pc := range open {
			pc.AsyncClose()
		}
		running.Wait()
	}
	for p := range int32(partitions) {
		pc, err := l.consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("read %s/%d: %w", topic, p, err)
		}
		open = append(open, pc)
		running.Go(func() {
			for m := range pc.Messages() {
				select {
				case all <- m:
				case <-quit:
				}
			}
		})
	}
	return all, stop, nil
}

// count sums up what the outputs say of their joins. A wrong price is an error:
// a demo that hides one would be worse than none.
func count(alerts []alert, want map[string]string) (Strategy, error) {
	var s Strategy
	for _, a := range alerts {
		if a.Locality == record.Local {
			s.Local++
		} else {
			s.Remote++
		}
		switch a.Result {
		case record.Miss:
			s.Miss++
			continue
		case record.NoInfo:
			s.Unavailable++
			continue
		}
		if a.Market.Price != want[a.symbol] {
			return Strategy{}, fmt.Errorf("%s got the price %s, want %s", a.symbol, a.Market.Price, want[a.symbol])
		}
		s.Enriched++
	}
	return s, nil
}
