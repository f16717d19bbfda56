package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// producer sends records and hears what became of them. sarama stops taking
// records once nobody reads its answers, so both kinds have a reader of their
// own for as long as it lives.
type producer struct {
	async    sarama.AsyncProducer
	done     sync.WaitGroup
	inFlight sync.WaitGroup // records without an answer
	ticks    atomic.Int64   // acknowledged
}

func newProducer(r *run) (*producer, error) {
	async, err := sarama.NewAsyncProducerFromClient(r.producing)
	if err != nil {
		return nil, fmt.Errorf("produce: %w", denied(rightWrite, r.opts.MarketTopic, err))
	}
	p := &producer{async: async}
	p.done.Add(2)
	go p.readSuccesses(r.tracker)
	go p.readErrors(r.fail)
	return p, nil
}

func (p *producer) readSuccesses(t *tracker) {
	defer p.done.Done()
	for m := range p.async.Successes() {
		if sent, notification := m.Metadata.(time.Time); notification {
			t.acknowledged(m.Partition, m.Offset, sent)
		} else {
			p.ticks.Add(1)
		}
		p.inFlight.Done()
	}
}

func (p *producer) readErrors(fail func(error)) {
	defer p.done.Done()
	for e := range p.async.Errors() {
		fail(fmt.Errorf("produce to %s/%d: %w", e.Msg.Topic, e.Msg.Partition, denied(rightWrite, e.Msg.Topic, e.Err)))
		p.inFlight.Done()
	}
}

// closeWithin bounds the wait for what is in flight: sarama tries again for
// half a minute, and a broker that is gone will not answer the last records.
const closeWithin = 40 * time.Second

// errUnacknowledged: what was sent was not all answered in time.
var errUnacknowledged = errors.New("records are still unacknowledged")

// flush waits until every record is answered. It has to come before close: a
// closing sarama fails the batches that it would otherwise have tried again
// (seen when a leader moved just before the end).
func (p *producer) flush(ctx context.Context) error {
	began := time.Now()
	if !within(ctx, closeWithin, p.inFlight.Wait) {
		return fmt.Errorf("produce: %w after %s", errUnacknowledged, time.Since(began).Round(time.Second))
	}
	return nil
}

// close ends the producer and waits for its readers. Records that were not
// flushed may be lost.
func (p *producer) close(ctx context.Context) {
	p.async.AsyncClose()
	within(ctx, closeWithin, p.done.Wait)
}

// within says whether wait returned in time. Once ctx has ended that is no more
// than afterInterrupt.
func within(ctx context.Context, limit time.Duration, wait func()) bool {
	over := make(chan struct{})
	go func() {
		defer close(over)
		wait()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for interrupted := ctx.Done(); ; {
		select {
		case <-over:
			return true
		case <-timer.C:
			return false
		case <-interrupted:
			interrupted = nil
			timer.Reset(min(limit, afterInterrupt))
		}
	}
}

// produce sends records in their order, each when its time has come, until a
// limit, the end of ctx or a fault. Only a fault is an error.
func (r *run) produce(ctx context.Context) error {
	pace := newPacer(r.opts, r.started)
	defer pace.stop()
	for notes := int64(0); r.opts.Count == 0 || notes < r.opts.Count; {
		more, err := r.waitTurn(ctx, pace)
		if !more {
			return err
		}
		e := r.gen.next()
		m, err := r.message(e)
		if err != nil {
			return err
		}
		if more, err := r.send(ctx, m); !more {
			return err
		}
		if e.notification {
			notes++
		}
	}
	return r.fault()
}

// fault returns the first fault so far, nil where there is none.
func (r *run) fault() error {
	select {
	case err := <-r.failed:
		return err
	default:
		return nil
	}
}

// waitTurn waits for the time of the next record. It answers false once there
// is to be none.
func (r *run) waitTurn(ctx context.Context, pace *pacer) (bool, error) {
	wait, over := pace.next(time.Now())
	if over || ctx.Err() != nil {
		return false, r.fault()
	}
	if wait <= 0 {
		return true, nil
	}
	pace.timer.Reset(wait)
	select {
	case <-pace.timer.C:
		return !pace.over(time.Now()), r.fault()
	case <-ctx.Done():
		return false, r.fault()
	case err := <-r.failed:
		return false, err
	}
}

func (r *run) send(ctx context.Context, m *sarama.ProducerMessage) (bool, error) {
	r.producer.inFlight.Add(1)
	select {
	case r.producer.async.Input() <- m:
		return true, nil
	case <-ctx.Done():
		r.producer.inFlight.Done()
		return false, r.fault()
	case err := <-r.failed:
		r.producer.inFlight.Done()
		return false, err
	}
}

// message places a record and stamps it. A notification's answer carries the
// moment it was handed over, from which its latency counts.
func (r *run) message(e event) (*sarama.ProducerMessage, error) {
	topic, placer, partitions := r.opts.MarketTopic, r.opts.MarketPlacer, r.ticksTo
	if e.notification {
		topic, placer, partitions = r.opts.NotificationTopic, r.opts.NotificationPlacer, r.notesTo
	}
	partition, known := placer.Partition(e.symbol.name, partitions)
	if !known {
		return nil, fmt.Errorf("topic %s: where its producers place a key is not known: choose --partitioner murmur2, crc32 or fnv1a", topic)
	}
	now := time.Now()
	m := &sarama.ProducerMessage{
		Topic:     topic,
		Partition: partition,
		Key:       sarama.ByteEncoder(e.symbol.name),
		Value:     sarama.ByteEncoder(e.value),
		Timestamp: now,
	}
	if e.notification {
		m.Metadata = now
	}
	return m, nil
}

// pacer spreads records evenly over the clock. It plans from the start, not
// from the last record, so a delay is made up for and the rate is kept.
type pacer struct {
	started  time.Time
	interval float64 // between records, in nanoseconds; 0 is no pacing
	duration time.Duration
	sent     float64
	timer    *time.Timer
}

// nap is the shortest sleep: what comes due meanwhile is sent in one go, for
// thousands of timers a second would cost more than the records.
const nap = time.Millisecond

func newPacer(opts Options, started time.Time) *pacer {
	p := &pacer{started: started, duration: opts.Duration, timer: time.NewTimer(time.Hour)}
	if opts.Rate > 0 {
		p.interval = float64(time.Second) / (opts.Rate * float64(opts.TicksPerNotification+1))
	}
	return p
}

func (p *pacer) stop() { p.timer.Stop() }

// lateBy is how far behind its time the last record of a paced run may be: it
// is due just before the end, and timers are late. A producer that cannot keep
// up is cut off after it.
const lateBy = 100 * time.Millisecond

// over says whether the duration has passed.
func (p *pacer) over(now time.Time) bool {
	if p.duration == 0 {
		return false
	}
	end := p.duration
	if p.interval > 0 {
		end += lateBy
	}
	return now.Sub(p.started) >= end
}

// next counts one more record and returns how long to wait for its time; over
// is true where that lies beyond the duration.
func (p *pacer) next(now time.Time) (wait time.Duration, over bool) {
	due := time.Duration(p.sent * p.interval)
	p.sent++
	if p.duration > 0 && (due >= p.duration || p.over(now)) {
		return 0, true
	}
	if wait = due - now.Sub(p.started); wait <= 0 {
		return 0, false
	}
	return max(wait, nap), false
}
