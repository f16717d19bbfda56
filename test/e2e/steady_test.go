package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// steadyBeat is how often a Steady sends what has become due.
const steadyBeat = 20 * time.Millisecond

// Steady writes ticks and notifications at a steady rate in the background.
// Notifications go to the partitions in turn, so that a partition's alerts come
// evenly spaced; ticks go to random symbols. A notification is sent only when
// every tick with its timestamp or an older one can be read, so that the merge
// has no excuse: none of its alerts may be revised.
type Steady struct {
	w             *World
	ticks, notes  int // a second
	client        sarama.Client
	sync          sarama.SyncProducer
	symbols       []string
	market, notif atomic.Int32 // partitions of the topics
	beats         atomic.Int64 // sendings done

	stop, done chan struct{}
	sent       [2]int        // ticks, notifications; valid once done
	slowest    time.Duration // from one sending to the next, likewise
	err        error         // likewise
	last       time.Time     // timestamp of the records sent last
}

// steadyProducerConfig outlives brokers that are away for a minute.
func (w *World) steadyProducerConfig() *sarama.Config {
	config := w.producerConfig()
	config.Producer.Retry.Max = 1200
	config.Producer.Retry.Backoff = 100 * time.Millisecond
	config.Metadata.Retry.Max = 600
	return config
}

// Steady starts writing, at these rates a second, records of these symbols. It
// ends with Stop, or at the end of the test.
func (w *World) Steady(ticks, notes int, symbols []string) *Steady {
	w.t.Helper()
	client, err := sarama.NewClient(w.Brokers, w.steadyProducerConfig())
	if err != nil {
		w.t.Fatalf("client of the steady producer: %v", err)
	}
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		_ = client.Close()
		w.t.Fatalf("steady producer: %v", err)
	}
	s := &Steady{
		w: w, ticks: ticks, notes: notes, client: client, sync: producer, symbols: symbols,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	s.market.Store(w.Partitions)
	s.notif.Store(w.Partitions)
	go s.run()
	w.t.Cleanup(func() {
		s.end()
		_ = producer.Close()
		_ = client.Close()
	})
	return s
}

func (s *Steady) end() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	<-s.done
}

// Stop ends the writing and returns how many ticks and notifications have been
// acknowledged.
func (s *Steady) Stop() (ticks, notes int) {
	s.w.t.Helper()
	s.end()
	if s.err != nil {
		s.w.t.Fatalf("steady producer: %v", s.err)
	}
	return s.sent[0], s.sent[1]
}

// Grown has records of a topic that has grown placed under its new count, and
// returns once none that was placed under the old one is still on its way.
func (s *Steady) Grown(topic string, partitions int32) {
	s.w.t.Helper()
	await(s.w.t, fmt.Sprintf("the producer to see %d partitions of %s", partitions, topic), func() error {
		if err := s.client.RefreshMetadata(topic); err != nil {
			return err
		}
		have, err := s.client.Partitions(topic)
		if err == nil && len(have) != int(partitions) {
			err = fmt.Errorf("it sees %d", len(have))
		}
		return err
	})
	if topic == s.w.Market {
		s.market.Store(partitions)
	} else {
		s.notif.Store(partitions)
	}
	from := s.beats.Load()
	await(s.w.t, "the steady producer to send what it had placed", func() error {
		select {
		case <-s.done:
			return nil // Stop tells why
		default:
		}
		if s.beats.Load() == from {
			return errors.New("it still sends")
		}
		return nil
	})
}

func (s *Steady) run() {
	defer close(s.done)
	beat := time.NewTicker(steadyBeat)
	defer beat.Stop()
	began, before := time.Now(), time.Now()
	for {
		select {
		case <-s.stop:
			return
		case <-beat.C:
		}
		s.slowest = max(s.slowest, time.Since(before))
		before = time.Now()
		passed := time.Since(began).Seconds()
		ticks := int(passed*float64(s.ticks)) - s.sent[0]
		notes := int(passed*float64(s.notes)) - s.sent[1]
		if err := s.send(ticks, notes); err != nil {
			s.err = err
			return
		}
		s.beats.Add(1)
	}
}

func (s *Steady) send(ticks, notes int) error {
	at := s.now()
	messages := make([]*sarama.ProducerMessage, 0, ticks)
	for range ticks {
		s.sent[0]++
		symbol := s.symbols[rand.IntN(len(s.symbols))]
		messages = append(messages, s.message(s.w.Market, s.market.Load(), symbol, fmt.Sprintf(`{"price": %d.25}`, s.sent[0]), at))
	}
	if err := s.sync.SendMessages(messages); err != nil {
		return err
	}
	at = s.now()
	messages = messages[:0]
	for range notes {
		s.sent[1]++
		symbol := s.next(s.sent[1])
		messages = append(messages, s.message(s.w.Notes, s.notif.Load(), symbol, fmt.Sprintf(`{"n": %d}`, s.sent[1]), at))
	}
	return s.sync.SendMessages(messages)
}

// now is the time in whole milliseconds, but always later than the last one.
func (s *Steady) now() time.Time {
	now := time.Now().Truncate(time.Millisecond)
	if !now.After(s.last) {
		now = s.last.Add(time.Millisecond)
	}
	s.last = now
	return now
}

// next is a random symbol of the partition whose turn it is.
func (s *Steady) next(turn int) string {
	count := s.notif.Load()
	for {
		symbol := s.symbols[rand.IntN(len(s.symbols))]
		if Place(s.w.t, "murmur2", symbol, count) == int32(turn)%count {
			return symbol
		}
	}
}

func (s *Steady) message(topic string, count int32, symbol, value string, at time.Time) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{
		Topic: topic, Partition: Place(s.w.t, "murmur2", symbol, count),
		Key: sarama.StringEncoder(symbol), Value: sarama.StringEncoder(value), Timestamp: at,
	}
}

// SymbolsOf returns n symbols for each of the partitions of a topic that has
// count of them, in the order of the partitions.
func SymbolsOf(w *World, prefix string, count int32, n int) []string {
	w.t.Helper()
	byPartition := make([][]string, count)
	for i, left := 0, int(count); left > 0; i++ {
		symbol := fmt.Sprintf("%s%d", prefix, i)
		p := Place(w.t, "murmur2", symbol, count)
		if len(byPartition[p]) == n {
			continue
		}
		byPartition[p] = append(byPartition[p], symbol)
		if len(byPartition[p]) == n {
			left--
		}
	}
	var all []string
	for _, symbols := range byPartition {
		all = append(all, symbols...)
	}
	return all
}

// Seed gives each symbol a price.
func (w *World) Seed(symbols []string) {
	w.t.Helper()
	ticks := make([]Record, len(symbols))
	for i, symbol := range symbols {
		ticks[i] = Record{Key: symbol, Value: fmt.Sprintf(`{"price": 0.%d}`, i+1)}
	}
	w.Producer().Send(w.Market, ticks...)
}
