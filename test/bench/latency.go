package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
)

// delays is what one contender did in one round of the latency part.
type delays struct {
	all []float64 // ms, of the notifications that count
	cpu float64   // ms of processor time a second, in the same span
}

func latency(ctx context.Context, opts options, t *topics, contenders []contender) error {
	results := make([][]delays, len(contenders))
	for i := range opts.latencyRounds {
		for _, c := range inTurn(i, len(contenders)) {
			d, err := latencyRound(ctx, opts, t, contenders[c])
			if err != nil {
				return fmt.Errorf("round %d: %w", i+1, err)
			}
			notify("round %d, %-6s  median %.0f ms, 99th percentile %.0f ms, %.0f ms CPU a second",
				i+1, contenders[c].name, percentile(d.all, 50), percentile(d.all, 99), d.cpu)
			results[c] = append(results[c], d)
		}
	}
	reportLatency(os.Stdout, opts, contenders, results)
	return nil
}

func latencyRound(ctx context.Context, opts options, t *topics, c contender) (d delays, err error) {
	market, err := t.create("market-updates", opts.partitions, nil)
	if err != nil {
		return d, err
	}
	notes, err := t.create("notifications", opts.partitions, nil)
	if err != nil {
		return d, err
	}
	// The broker's clock is this machine's.
	output, dead, err := outputs(t, opts, map[string]string{"message.timestamp.type": "LogAppendTime"})
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, t.remove(market, notes, output, dead)) }()
	p, err := start(c, task{
		brokers: t.cluster.Brokers, group: t.cluster.Name("bench-" + c.name),
		market: market, notes: notes, output: output, dead: dead,
	})
	if err != nil {
		return d, err
	}
	var seen *arrivals
	if c.transactional {
		if seen, err = t.watch(output); err != nil {
			p.kill()
			return d, err
		}
		defer func() { err = errors.Join(err, seen.close()) }()
	}
	counted, cpu, err := flow(ctx, opts, t, p, market, notes, output, seen)
	if err != nil {
		p.kill()
		return d, err
	}
	if _, err := p.stop(); err != nil {
		return d, err
	}
	d.cpu = float64(cpu.Milliseconds()) / opts.latencyFor.Seconds()
	if seen != nil {
		d.all = seen.since(counted)
		return d, nil
	}
	d.all, err = delaysOf(ctx, t, output, counted)
	return d, err
}

// flow sends records at the steady rate until the round is over and every
// output is there. It returns since when notifications count, and the
// processor time from then until the last was sent.
func flow(ctx context.Context, opts options, t *topics, p *process, market, notes, output string, seen *arrivals) (counted time.Time, cpu time.Duration, err error) {
	producer, err := newProducer(t.cluster.Brokers, func(*sarama.Config) {})
	if err != nil {
		return counted, 0, err
	}
	s := newSource(opts.symbols, opts.valueBytes)
	gap := time.Second / time.Duration(opts.rate*(ticksPerNotification+1))
	began := time.Now()
	counted = began.Add(opts.latencyWarm)
	end := counted.Add(opts.latencyFor)
	var before time.Duration
	var sent int64
	for i := int64(0); ; i++ {
		due := began.Add(time.Duration(i) * gap)
		if !due.Before(end) {
			break
		}
		if err := sleepUntil(ctx, due); err != nil {
			return counted, 0, errors.Join(err, producer.close())
		}
		if before == 0 && !due.Before(counted) {
			if before, err = p.cpu(); err != nil {
				return counted, 0, errors.Join(err, producer.close())
			}
		}
		now := time.Now()
		if i%(ticksPerNotification+1) < ticksPerNotification {
			key, value := s.tick()
			producer.send(market, key, value, now)
			continue
		}
		key, value := s.note(now)
		producer.send(notes, key, value, now)
		sent++
	}
	after, err := p.cpu()
	if err := errors.Join(err, producer.close()); err != nil {
		return counted, 0, err
	}
	err = p.until(ctx, "complete", func() (bool, error) {
		if seen != nil {
			n, err := seen.count()
			return n >= sent, err
		}
		n, err := t.count(output)
		return n >= sent, err
	})
	return counted, after - before, err
}

func sleepUntil(ctx context.Context, due time.Time) error {
	left := time.Until(due)
	if left <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(left):
		return nil
	}
}

// delaysOf reads the outputs whose notification was sent since counted.
func delaysOf(ctx context.Context, t *topics, output string, counted time.Time) ([]float64, error) {
	var (
		all []float64
		bad error
	)
	err := t.read(ctx, output, func(message *sarama.ConsumerMessage) {
		sent, err := sentAt(message.Value)
		if err != nil {
			bad = errors.Join(bad, err)
			return
		}
		if sent.Before(counted) {
			return
		}
		all = append(all, float64(message.Timestamp.Sub(sent).Microseconds())/1000)
	})
	if err := errors.Join(err, bad); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("no output counts")
	}
	return all, nil
}
