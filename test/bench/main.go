// Bench measures the joiner beside a bare consumer loop on a real broker.
//
// The bare loop is what one would write with sarama in an afternoon: a consumer
// group with the range strategy that fetches both topics and produces one
// output per notification, the notification itself, through AsyncProducer,
// without decoding or joining anything. It is the floor that the joiner's cost
// is told by.
//
// Each contender runs as a process of its own, with a group and an output topic
// of its own, in turns: machines have moods, and only what was measured in the
// same round is compared. The broker runs in another process too, and there is
// one of it: with three on the same machine one measures replication.
//
// Throughput: both topics lie filled before the process starts. Records a
// second are all input records over the time from its start until the outputs
// are complete (and, for the bare loop, which merges nothing, until every input
// was read). CPU is the user and system time of the process from start to exit,
// its orderly end included; memory is the peak of its resident set.
//
// Latency: records arrive at a steady rate; an alert's latency is the broker's
// append time of the output less the time its notification was handed to the
// producer, so that nothing measures while the contender works. What is written
// in transactions ("exactly") is visible later than it is appended: there a
// consumer that reads what is committed notes when each output comes, which
// includes its fetch.
//
// It must not be run with the race detector, and no test asserts its numbers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"joiner/test/cluster"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == bareCommand {
		exit(bare(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		exit(err)
	}
	exit(run(ctx, opts))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// options of a whole measurement.
type options struct {
	joiner     string // path of the binary; empty measures the bare loop alone
	profiles   string // where it serves its profiles; empty: nowhere
	brokers    int
	ticks      int // in the throughput part; a tenth as many notifications
	rounds     int
	symbols    int
	partitions int
	valueBytes int

	rate          int // notifications a second in the latency part
	latencyRounds int
	latencyWarm   time.Duration
	latencyFor    time.Duration
}

// ticksPerNotification is the mix of both parts.
const ticksPerNotification = 10

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.joiner, "joiner", "", "the joiner's binary; without it the bare loop runs alone")
	flags.StringVar(&o.profiles, "profiles", "", "address on which the joiner serves its profiles, for test/bench/profile")
	flags.IntVar(&o.brokers, "brokers", 1, "brokers to start (where KAFKA_BROKERS names none)")
	flags.IntVar(&o.ticks, "ticks", 3_000_000, "ticks of the throughput part, with a tenth as many notifications; 0 leaves it out")
	flags.IntVar(&o.rounds, "rounds", 5, "rounds of the throughput part")
	flags.IntVar(&o.symbols, "symbols", 1000, "symbols")
	flags.IntVar(&o.partitions, "partitions", 6, "partitions of each topic")
	flags.IntVar(&o.valueBytes, "value-bytes", 200, "bytes of each value")
	flags.IntVar(&o.rate, "rate", 200, "notifications a second of the latency part, with ten times as many ticks; 0 leaves it out")
	flags.IntVar(&o.latencyRounds, "latency-rounds", 3, "rounds of the latency part")
	flags.DurationVar(&o.latencyWarm, "latency-warm", 4*time.Second, "what is not counted at the start of a latency round")
	flags.DurationVar(&o.latencyFor, "latency-for", 8*time.Second, "what is counted of a latency round")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if o.valueBytes < minValueBytes {
		return o, fmt.Errorf("-value-bytes must be at least %d", minValueBytes)
	}
	if o.rounds < 1 || o.symbols < 1 || o.partitions < 1 || o.latencyRounds < 1 || o.latencyFor < time.Second {
		return o, errors.New("-rounds, -symbols, -partitions and -latency-rounds must be at least 1, -latency-for at least 1s")
	}
	return o, nil
}

func run(ctx context.Context, opts options) (err error) {
	contenders, err := contendersOf(opts)
	if err != nil {
		return err
	}
	c, err := cluster.Launch(ctx, cluster.Options{Brokers: opts.brokers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	topics, err := connect(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, topics.close()) }()

	if opts.ticks > 0 {
		if err := throughput(ctx, opts, topics, contenders); err != nil {
			return fmt.Errorf("throughput: %w", err)
		}
	}
	if opts.rate > 0 {
		if err := latency(ctx, opts, topics, contenders); err != nil {
			return fmt.Errorf("latency: %w", err)
		}
	}
	return nil
}

func contendersOf(opts options) ([]contender, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	contenders := []contender{bareContender(self)}
	if opts.joiner == "" {
		return contenders, nil
	}
	path, err := filepath.Abs(opts.joiner)
	if err != nil {
		return nil, fmt.Errorf("finding the joiner: %w", err)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("finding the joiner: %w", err)
	}
	return append(contenders, joinerContender(path, opts.profiles), exactlyContender(path, opts.profiles)), nil
}
