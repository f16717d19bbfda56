package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

// minValueBytes leaves room for the fields that every value has.
const minValueBytes = 150

// sentField precedes the microsecond at which a notification was handed to the
// producer; the alert carries the notification byte for byte.
const sentField = `"sent_us":`

// source makes the records of a run, the same ones for the same numbers.
type source struct {
	random  *rand.Rand
	keys    [][]byte
	bytes   int
	counter int64
}

func newSource(symbols, valueBytes int) *source {
	s := &source{random: rand.New(rand.NewPCG(1, 2)), bytes: valueBytes}
	for i := range symbols {
		s.keys = append(s.keys, fmt.Appendf(nil, "SYM%04d", i))
	}
	return s
}

// tick returns a symbol and a market update of exactly the size asked for.
func (s *source) tick() (key, value []byte) {
	s.counter++
	price := 1_000 + s.random.IntN(1_000_000)
	value = make([]byte, 0, s.bytes)
	value = fmt.Appendf(value, `{"seq":%d,"venue":"XIDX","price":%d.%02d,"bid":%d.%02d,"ask":%d.%02d,"volume":%d,"memo":"`,
		s.counter, price/100, price%100, (price-25)/100, (price-25)%100, (price+25)/100, (price+25)%100, s.random.IntN(100_000))
	return s.key(), s.fill(value)
}

// note returns a symbol and a notification of exactly the size asked for.
func (s *source) note(sent time.Time) (key, value []byte) {
	s.counter++
	value = make([]byte, 0, s.bytes)
	value = fmt.Appendf(value, `{"id":%d,%s%d,"account":"A-%06d","text":"`,
		s.counter, sentField, sent.UnixMicro(), s.random.IntN(1_000_000))
	return s.key(), s.fill(value)
}

func (s *source) key() []byte { return s.keys[s.random.IntN(len(s.keys))] }

// fill ends the text that was begun so that the object has its size.
func (s *source) fill(value []byte) []byte {
	const end = `"}`
	for len(value) < s.bytes-len(end) {
		value = append(value, 'a'+byte(len(value)%26))
	}
	return append(value, end...)
}

// sentAt finds when the notification inside an output was sent.
func sentAt(output []byte) (time.Time, error) {
	_, rest, ok := bytes.Cut(output, []byte(sentField))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	us, err := strconv.ParseInt(string(digits), 10, 64)
	if !ok || err != nil {
		return time.Time{}, fmt.Errorf("no time of sending in %q", output)
	}
	return time.UnixMicro(us), nil
}

// producer places keys as Java's clients do. What goes wrong is kept for close.
type producer struct {
	async  sarama.AsyncProducer
	failed chan error
}

func newProducer(brokers []string, change func(*sarama.Config)) (*producer, error) {
	config := sarama.NewConfig()
	config.ClientID = "bench"
	config.Version = sarama.V2_8_0_0
	config.Producer.Partitioner = sarama.NewMurmur2Partitioner
	change(config)
	async, err := sarama.NewAsyncProducer(brokers, config)
	if err != nil {
		return nil, fmt.Errorf("making a producer: %w", err)
	}
	p := &producer{async: async, failed: make(chan error, 1)}
	go func() {
		var first error
		for err := range async.Errors() {
			if first == nil {
				first = err
			}
		}
		p.failed <- first
	}()
	return p, nil
}

func (p *producer) send(topic string, key, value []byte, at time.Time) {
	p.async.Input() <- &sarama.ProducerMessage{
		Topic: topic, Key: sarama.ByteEncoder(key), Value: sarama.ByteEncoder(value), Timestamp: at,
	}
}

// close waits until everything is acknowledged and returns the first failure.
func (p *producer) close() error {
	p.async.AsyncClose()
	if err := <-p.failed; err != nil {
		return fmt.Errorf("producing: %w", err)
	}
	return nil
}

// fillTopics writes ticks and a tenth as many notifications, interleaved a
// millisecond apart, the last of them now.
func fillTopics(ctx context.Context, opts options, brokers []string, market, notes string) error {
	p, err := newProducer(brokers, func(config *sarama.Config) {
		config.Producer.Flush.Bytes = 512 << 10
		config.Producer.Flush.Frequency = 20 * time.Millisecond
	})
	if err != nil {
		return err
	}
	s := newSource(opts.symbols, opts.valueBytes)
	total := opts.ticks + opts.ticks/ticksPerNotification
	at := time.Now().Add(-time.Duration(total) * time.Millisecond)
	for i := 1; i <= opts.ticks && ctx.Err() == nil; i++ {
		at = at.Add(time.Millisecond)
		key, value := s.tick()
		p.send(market, key, value, at)
		if i%ticksPerNotification == 0 {
			at = at.Add(time.Millisecond)
			key, value = s.note(at)
			p.send(notes, key, value, at)
		}
	}
	if err := p.close(); err != nil {
		return err
	}
	return ctx.Err()
}
