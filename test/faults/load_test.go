package faults

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/placement"
	"joiner/test/cluster"
)

// loader writes ticks and notifications at a steady rate, past the proxies, as
// a producer of Java's would place them: also when topics grow, each of them as
// soon as its producer hears of it.
type loader struct {
	w      *world
	rate   int // notifications a second
	ticks  int // for each
	client sarama.Client
	sync   sarama.SyncProducer
	rand   *rand.Rand

	notes      atomic.Int64 // acknowledged, or at least tried
	failures   atomic.Int64 // sendings
	stop, done chan struct{}
	slowest    time.Duration // a sending; valid once done
	lastError  error         // likewise
}

const (
	loadBeat    = 20 * time.Millisecond
	loadSymbols = 400
	loadChunk   = 4000 // records a sending at most
)

func symbol(i int) string { return fmt.Sprintf("S%03d", i) }

// producerConfig is of an idempotent producer that outlives what brokers go
// through here.
func producerConfig() *sarama.Config {
	c := cluster.Config()
	c.ClientID = "faults-load"
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.Retry.Max = 1200
	c.Producer.Retry.Backoff = 100 * time.Millisecond
	c.Metadata.Retry.Max = 600
	c.Metadata.Retry.Backoff = 100 * time.Millisecond
	c.Metadata.RefreshFrequency = time.Second
	return c
}

// load begins to write. It ends with end, or with the test.
func (w *world) load(seed uint64, rate, ticks int) *loader {
	w.t.Helper()
	client, err := sarama.NewClient(w.Brokers, producerConfig())
	if err != nil {
		w.t.Fatalf("client of the load: %v", err)
	}
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		_ = client.Close()
		w.t.Fatalf("producer of the load: %v", err)
	}
	l := &loader{
		w: w, rate: rate, ticks: ticks, client: client, sync: producer,
		rand: rand.New(rand.NewPCG(seed, 0)),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run()
	w.t.Cleanup(func() {
		l.end()
		_ = producer.Close()
		_ = client.Close()
	})
	return l
}

func (l *loader) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	<-l.done
}

func (l *loader) run() {
	defer close(l.done)
	beat := time.NewTicker(loadBeat)
	defer beat.Stop()
	began := time.Now()
	for {
		select {
		case <-l.stop:
			return
		case <-beat.C:
		}
		due := int(time.Since(began).Seconds()*float64(l.rate)) - int(l.notes.Load())
		if due = min(due, loadChunk); due <= 0 {
			continue
		}
		at := time.Now()
		// What a producer gives up may have been written all the same: the
		// audit takes the topics as they are.
		if err := l.send(due); err != nil {
			l.failures.Add(1)
			l.lastError = err
		}
		l.slowest = max(l.slowest, time.Since(at))
	}
}

// send writes ticks, and when these can be read the notifications.
func (l *loader) send(notes int) error {
	ticks := make([]*sarama.ProducerMessage, 0, notes*l.ticks)
	for range notes * l.ticks {
		m, err := l.message(l.w.market, fmt.Sprintf(`{"price": %d.%02d}`, l.rand.IntN(100_000), l.rand.IntN(100)))
		if err != nil {
			return err
		}
		ticks = append(ticks, m)
	}
	if err := l.sync.SendMessages(ticks); err != nil {
		return err
	}
	alerts := make([]*sarama.ProducerMessage, 0, notes)
	for range notes {
		m, err := l.message(l.w.notes, fmt.Sprintf(`{"n": %d}`, l.notes.Add(1)))
		if err != nil {
			return err
		}
		alerts = append(alerts, m)
	}
	return l.sync.SendMessages(alerts)
}

func (l *loader) message(topic, value string) (*sarama.ProducerMessage, error) {
	partitions, err := l.client.Partitions(topic)
	if err != nil {
		return nil, err
	}
	return message(topic, symbol(l.rand.IntN(loadSymbols)), value, int32(len(partitions)))
}

func message(topic, key, value string, partitions int32) (*sarama.ProducerMessage, error) {
	murmur2, err := placement.ByName("murmur2")
	if err != nil {
		return nil, err
	}
	return &sarama.ProducerMessage{
		Topic: topic, Partition: murmur2.Partition([]byte(key), partitions),
		Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value), Timestamp: time.Now(),
	}, nil
}

// send writes one record for each key, in order, with a producer of its own.
func (w *world) send(t testing.TB, topic string, keys []string, value func(i int) string) {
	t.Helper()
	producer, err := sarama.NewSyncProducer(w.Brokers, producerConfig())
	if err != nil {
		t.Fatalf("producer: %v", err)
	}
	defer func() { _ = producer.Close() }()
	all := make([]*sarama.ProducerMessage, len(keys))
	for i, key := range keys {
		if all[i], err = message(topic, key, value(i), w.partitions); err != nil {
			t.Fatal(err)
		}
	}
	if err := producer.SendMessages(all); err != nil {
		t.Fatalf("producing to %s: %v", topic, err)
	}
}
