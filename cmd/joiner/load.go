package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"joiner/internal/app"
	"joiner/internal/config"
	"joiner/internal/kafka"
	"joiner/internal/load"
	"joiner/internal/placement"

	"github.com/IBM/sarama"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newLoad(p *process) *cobra.Command {
	o := load.DefaultOptions()
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Produce ticks and notifications and read the alerts back",
		Long: `load produces realistic ticks and notifications into the input topics, reads the
enriched alerts back, and reports rate and latency. It ends after --duration,
after --count notifications, or when it is interrupted, and waits for missing
alerts; if some never come it says how many and exits with 1.`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd, outputTable, outputJSON)
	flags := cmd.Flags()
	flags.Float64Var(&o.Rate, "rate", o.Rate, "notifications a second; 0 is as fast as it goes")
	flags.IntVar(&o.TicksPerNotification, "ticks-per-notification", o.TicksPerNotification, "ticks for each notification")
	flags.IntVar(&o.Symbols, "symbols", o.Symbols, "number of symbols")
	skew := flags.String("skew", "uniform", "how records spread over symbols: uniform, zipf:S or hot:SHARE")
	partitioner := flags.String("partitioner", "", "how keys are placed: murmur2, crc32 or fnv1a (default: topics.partitioner)")
	flags.DurationVar(&o.Duration, "duration", o.Duration, "how long to produce; 0s is no limit, and the default with --count")
	flags.Int64Var(&o.Count, "count", o.Count, "notifications to produce; 0 is no limit")
	flags.IntVar(&o.ValueBytes, "value-bytes", o.ValueBytes, "bytes of each value")
	flags.Uint64Var(&o.Seed, "seed", o.Seed, "the same seed gives the same records")
	flags.DurationVar(&o.Wait, "wait", o.Wait, "how long to wait for missing alerts after the last that came")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if o.Skew, err = load.ParseSkew(*skew); err != nil {
			return wrongUsage(fmt.Errorf("--skew: %w", err))
		}
		if o.Count > 0 && !flags.Changed("duration") {
			o.Duration = 0
		}
		return runLoad(cmd, p, o, *partitioner, out)
	}
	return cmd
}

func runLoad(cmd *cobra.Command, p *process, o load.Options, partitioner string, out *output) error {
	loaded, err := loadConfig(cmd, p)
	if err != nil {
		return err
	}
	if err := target(&o, loaded.Config, partitioner); err != nil {
		return err
	}
	o.Progress, o.Terminal = p.stderr, isTerminal(p.stderr)
	report, err := interruptible(cmd, p, loadGrace, func(ctx context.Context) (load.Report, error) { return load.Run(ctx, o) })
	if errors.Is(err, load.ErrOptions) {
		return wrongUsage(err)
	}
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := printReport(p.stdout, report, out); err != nil {
		return err
	}
	if report.Missing > 0 {
		return fmt.Errorf("load: %d of %d notifications have no alert", report.Missing, report.Notifications)
	}
	return nil
}

func printReport(w io.Writer, report load.Report, out *output) error {
	if out.json() {
		return json.NewEncoder(w).Encode(report)
	}
	return report.Text(w)
}

// target takes brokers, topics and placement from the configuration.
func target(o *load.Options, c config.Config, partitioner string) error {
	if err := readable(c); err != nil {
		return wrongUsage(err)
	}
	o.Brokers = c.Kafka.Brokers
	o.MarketTopic, o.NotificationTopic, o.AlertTopic = c.Topics.MarketUpdates, c.Topics.Notifications, c.Topics.EnrichedAlerts
	o.Config = func() (*sarama.Config, error) {
		return kafka.ToolConfig(kafka.ToolOptions{
			ClientID: c.Kafka.ClientID + "-load", Version: c.Kafka.Version, Security: app.KafkaSecurity(c.Kafka),
			ReadCommitted: c.Kafka.IsolationLevel == readCommitted,
		})
	}
	market, notes := c.Topics.MarketPartitioner(), c.Topics.NotificationPartitioner()
	said := "--partitioner"
	if partitioner != "" {
		market, notes = partitioner, partitioner
	} else {
		said = "the configured partitioner (topics.partitioner); give --partitioner"
	}
	reserved, err := app.Reserved(c.Topics)
	if err != nil {
		return wrongUsage(err)
	}
	for _, one := range []struct {
		topic, partitioner string
		placer             *load.Placer
	}{{o.MarketTopic, market, &o.MarketPlacer}, {o.NotificationTopic, notes, &o.NotificationPlacer}} {
		if !slices.Contains(placement.Names(), one.partitioner) {
			return wrongUsage(fmt.Errorf("%s: %q cannot place keys of %s; use one of %v", said, one.partitioner, one.topic, placement.Names()))
		}
		placer, err := placement.New(placement.Options{Topic: one.topic, Partitioner: one.partitioner, Reserved: reserved})
		if err != nil {
			return wrongUsage(err)
		}
		*one.placer = placer
	}
	return nil
}

// readable refuses a configuration under which a joiner would not find what load
// writes: it would count dead letters and misses.
func readable(c config.Config) error {
	d := config.Default()
	for _, one := range []struct{ key, has, want string }{
		{"market.symbol", c.Market.Symbol, d.Market.Symbol},
		{"market.price", c.Market.Price, d.Market.Price},
		{"market.event_time", c.Market.EventTime, d.Market.EventTime},
		{"notification.symbol", c.Notification.Symbol, d.Notification.Symbol},
		{"notification.event_time", c.Notification.EventTime, d.Notification.EventTime},
	} {
		if one.has != one.want {
			return fmt.Errorf("%s: load writes records for %q, and this configuration looks in %q", one.key, one.want, one.has)
		}
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
