// Package demo is the `joiner demo` command: it joins the same 30 notifications
// under each assignment strategy, with real joiners on a broker inside the
// process, and shows what co-partitioning buys.
//
// It must never be imported by the service, count a join that it has not read
// back from the output topic, or show a number that was not measured in this
// run.
package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"joiner/internal/embedded"
)

// Strategies lists the strategies in the order in which they are shown.
func Strategies() []string { return []string{"copartition", "range", "roundrobin", "sticky"} }

// Topics names the four topics. MarketUpdates sorts before Notifications, as it
// does in the default configuration: sarama deals partitions out by name, and
// then four members get no partition of the same number twice in a row.
type Topics struct{ MarketUpdates, Notifications, EnrichedAlerts, DeadLetters string }

// DefaultTopics returns the names of the default configuration.
func DefaultTopics() Topics {
	return Topics{"market-updates", "notifications", "enriched-alerts", "enriched-alerts-dlq"}
}

const (
	partitions = 6
	members    = 4 // and a fifth that joins later
)

// Pod is one running joiner of the demo.
type Pod interface {
	// Status is what the pod knows of itself now.
	Status() Status
	// JoinTimes returns how long each join so far has taken, in any order.
	JoinTimes() []time.Duration
	// Stop ends the pod gracefully; it is called once.
	Stop(ctx context.Context) error
}

// Status is a pod's standing.
type Status struct {
	// Ready: assigned, restored and caught up. Reasons says what is lacking.
	Ready   bool
	Reasons []string
	// Ended: it runs no more, though nobody has stopped it.
	Ended bool
	// Owned are the partitions of the last assignment, by input topic.
	Owned map[string][]int32
}

// PodOptions says what a pod is to be.
type PodOptions struct {
	Name     string // m1, m2, …
	Brokers  []string
	Group    string
	Strategy string
	Topics   Topics
	// HTTPListen is where its probes and pages listen, host:port; empty: a free
	// port of loopback.
	HTTPListen string
}

// PodFactory starts a pod and returns without waiting until it is ready. The
// pod lives until it is stopped, whatever becomes of ctx.
type PodFactory func(ctx context.Context, o PodOptions) (Pod, error)

// Options says how the demo runs.
type Options struct {
	NewPod PodFactory
	// Strategies to run, all in their order where empty.
	Strategies []string
	// Patience bounds each wait for the group or the outputs; 0 is a minute.
	Patience time.Duration
	// Progress gets a line about each step, nil for none.
	Progress io.Writer
}

// Strategy is what one strategy came to. Local and Remote add up to the
// notifications, misses among them.
type Strategy struct {
	Name         string  `json:"name"`
	Local        int     `json:"local"`
	Remote       int     `json:"remote"`
	Miss         int     `json:"miss"`
	Unavailable  int     `json:"unavailable"`
	Enriched     int     `json:"enriched"`      // alerts with the right price
	Moved        int     `json:"moved"`         // partitions that left a member that is still there
	MovedMinimum int     `json:"moved_minimum"` // the fewest that a balanced group allows
	JoinP50      float64 `json:"join_p50_us"`
	JoinP99      float64 `json:"join_p99_us"`
}

// Report is what the demo shows.
type Report struct {
	Strategies []Strategy `json:"strategies"`
}

// Run plays every strategy, each on a broker of its own. It returns what it has
// together with the error where one fails: a pod that does not start or stop, a
// group that does not settle, outputs that do not come, or a wrong price, each
// named with its strategy.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	names := o.Strategies
	if len(names) == 0 {
		names = Strategies()
	}
	report := Report{Strategies: []Strategy{}}
	for _, name := range names {
		s, err := runStrategy(ctx, o, name)
		if err != nil {
			return report, fmt.Errorf("strategy %s: %w", name, err)
		}
		report.Strategies = append(report.Strategies, s)
	}
	return report, nil
}

// runStrategy gives the strategy a fresh broker: no offset, generation or log
// of the one before can help or hinder it.
func runStrategy(ctx context.Context, o Options, name string) (s Strategy, err error) {
	t := DefaultTopics()
	cluster, err := embedded.Start(embedded.Options{Topics: []embedded.Topic{
		{Name: t.MarketUpdates, Partitions: partitions},
		{Name: t.Notifications, Partitions: partitions},
		{Name: t.EnrichedAlerts, Partitions: partitions},
		{Name: t.DeadLetters, Partitions: partitions},
	}})
	if err != nil {
		return Strategy{}, err
	}
	defer cluster.Close()
	st := &stage{o: o, strategy: name, topics: t, brokers: cluster.Addrs()}
	defer func() {
		if stopping := st.stop(); err == nil {
			err = stopping
		}
	}()
	return st.play(ctx)
}
