package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// round is what one contender did in one round.
type round struct {
	rate   float64 // input records a second
	cpu    float64 // seconds per million input records
	memory float64 // peak, MB
}

func throughput(ctx context.Context, opts options, t *topics, contenders []contender) error {
	market, err := t.create("market-updates", opts.partitions, nil)
	if err != nil {
		return err
	}
	notes, err := t.create("notifications", opts.partitions, nil)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := fillTopics(ctx, opts, t.cluster.Brokers, market, notes); err != nil {
		return err
	}
	notify("filled %d ticks and %d notifications in %.1f s", opts.ticks, opts.ticks/ticksPerNotification, time.Since(began).Seconds())

	results := make([][]round, len(contenders))
	for i := range opts.rounds {
		for _, c := range inTurn(i, len(contenders)) {
			r, err := throughputRound(ctx, opts, t, contenders[c], market, notes)
			if err != nil {
				return fmt.Errorf("round %d: %w", i+1, err)
			}
			notify("round %d, %-6s  %9.0f records/s  %5.2f CPU s per million  %4.0f MB", i+1, contenders[c].name, r.rate, r.cpu, r.memory)
			results[c] = append(results[c], r)
		}
	}
	reportThroughput(os.Stdout, opts, contenders, results)
	return t.remove(market, notes)
}

// inTurn lets each contender go first as often as the others.
func inTurn(round, contenders int) []int {
	order := make([]int, contenders)
	for i := range order {
		order[i] = (round + i) % contenders
	}
	return order
}

func throughputRound(ctx context.Context, opts options, t *topics, c contender, market, notes string) (r round, err error) {
	output, dead, err := outputs(t, opts, nil)
	if err != nil {
		return round{}, err
	}
	defer func() { err = errors.Join(err, t.remove(output, dead)) }()
	notifications := int64(opts.ticks / ticksPerNotification)
	total := int64(opts.ticks) + notifications
	work := task{
		brokers: t.cluster.Brokers, group: t.cluster.Name("bench-" + c.name),
		market: market, notes: notes, output: output, dead: dead, expect: total,
	}
	p, err := start(c, work)
	if err != nil {
		return round{}, err
	}
	took, memory, err := watch(ctx, t, p, work, notifications)
	if err != nil {
		p.kill()
		return round{}, err
	}
	cpu, err := p.stop()
	if err != nil {
		return round{}, err
	}
	if err := nothingMore(t, work, c, notifications); err != nil {
		return round{}, fmt.Errorf("%s: %w", c.name, err)
	}
	return round{
		rate:   float64(total) / took.Seconds(),
		cpu:    cpu.Seconds() / (float64(total) / 1e6),
		memory: float64(memory) / 1e6,
	}, nil
}

// outputs makes the topics that a contender writes.
func outputs(t *topics, opts options, configs map[string]string) (output, dead string, err error) {
	if output, err = t.create("enriched-alerts", opts.partitions, configs); err != nil {
		return "", "", err
	}
	dead, err = t.create("enriched-alerts-dlq", opts.partitions, nil)
	return output, dead, err
}

// watch waits until the work is done and committed, and returns how long the
// work took and the peak of memory.
func watch(ctx context.Context, t *topics, p *process, work task, notifications int64) (took time.Duration, memory int64, err error) {
	err = p.until(ctx, "complete", func() (bool, error) {
		if p.contender.transactional {
			lag, err := t.lag(work.group, work.market, work.notes)
			return lag == 0, err
		}
		n, err := t.count(work.output)
		return n >= notifications, err
	})
	if err != nil {
		return 0, 0, err
	}
	done := time.Now()
	if p.contender.tells {
		var consumed time.Time
		err = p.until(ctx, "all read", func() (bool, error) {
			select {
			case consumed = <-p.consumed:
				return true, nil
			default:
				return false, nil
			}
		})
		if err != nil {
			return 0, 0, err
		}
		if consumed.After(done) {
			done = consumed
		}
	}
	// The last commit belongs to the work as well, but not to its time: it is
	// a matter of the commit interval.
	err = p.until(ctx, "all committed", func() (bool, error) {
		lag, err := t.lag(work.group, work.market, work.notes)
		return lag == 0, err
	})
	if err != nil {
		return 0, 0, err
	}
	memory, err = p.peak()
	return done.Sub(p.started), memory, err
}

// nothingMore finds contenders that write more than they should.
// Beside the outputs of transactions lie their markers.
func nothingMore(t *topics, work task, c contender, notifications int64) error {
	n, err := t.count(work.output)
	if err != nil {
		return err
	}
	dead, err := t.count(work.dead)
	if err != nil {
		return err
	}
	if n < notifications || n > notifications && !c.transactional || dead != 0 {
		return fmt.Errorf("%d outputs and %d dead letters for %d notifications", n, dead, notifications)
	}
	return nil
}
