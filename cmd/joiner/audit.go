package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"joiner/internal/app"
	"joiner/internal/audit"
	"joiner/internal/config"
	"joiner/internal/record"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

// The values of kafka.isolation_level, join.on_miss and join.on_unavailable that
// matter here.
const (
	readCommitted   = "read_committed"
	readUncommitted = "read_uncommitted"
	dropIt          = "drop"
	deadLetterIt    = "dead_letter"
)

func newAudit(p *process) *cobra.Command {
	o := audit.DefaultOptions()
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Prove the join by what lies in the topics",
		Long: `audit reads the topics up to the ends that they have when it starts, and holds
the outputs against what they came from: every notification is accounted for
once, every price is the one that the ticks below the joiner-market offset give,
the outputs of a symbol lie in the order of its notifications. It changes
nothing and joins no group; docs/audit.md explains every figure. It exits with 1
if anything is lost, doubled, wrong, out of order or foreign, or if nothing
could be verified.

A notification that no joiner has reached yet counts as lost: stop the load
first, or leave the newest out with --until.`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd, outputTable, outputJSON)
	flags := cmd.Flags()
	since := flags.String("since", "", "look at notifications from this time on: RFC 3339, or how long ago, as in 2h")
	until := flags.String("until", "", "look at notifications before this time: RFC 3339, or how long ago")
	isolation := flags.String("isolation", "", "read_committed or read_uncommitted (default: kafka.isolation_level)")
	memory := flags.Int64("memory", o.Memory>>20, "MiB for sorting; what does not fit goes to --temp-dir")
	flags.StringVar(&o.TempDir, "temp-dir", "", "a directory for what does not fit into memory (default: the system's)")
	flags.IntVar(&o.Examples, "examples", o.Examples, "examples of each kind at most")
	flags.DurationVar(&o.Connect, "connect-timeout", o.Connect, "how long a broker may take to answer at first")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := loadConfig(cmd, p)
		if err != nil {
			return err
		}
		if err := auditWindow(&o, *since, *until, time.Now()); err != nil {
			return wrongUsage(err)
		}
		o.Memory = min(max(*memory, math.MinInt64>>20), math.MaxInt64>>20) << 20 // more is refused anyway, and must not wrap around
		if err := auditOptions(&o, loaded.Config, *isolation); err != nil {
			return wrongUsage(err)
		}
		log, err := newLogger(loaded.Log, p.stderr)
		if err != nil {
			return err
		}
		return runAudit(cmd, p, o, log, out)
	}
	return cmd
}

func runAudit(cmd *cobra.Command, p *process, o audit.Options, log *zap.Logger, out *output) error {
	o.Progress = func(line string) { fmt.Fprintln(p.stderr, "joiner: "+line) }
	o.Kafka.Log = log
	report, err := interruptible(cmd, p, auditGrace, func(ctx context.Context) (*audit.Report, error) { return audit.Run(ctx, o) })
	if errors.Is(err, audit.ErrOptions) {
		return wrongUsage(err)
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := printAudited(p.stdout, report, out); err != nil {
		return err
	}
	if failure := report.Failure(); failure != "" {
		return fmt.Errorf("audit: %s", failure)
	}
	return nil
}

func printAudited(w io.Writer, report *audit.Report, out *output) error {
	if out.json() {
		return json.NewEncoder(w).Encode(report)
	}
	return report.Text(w)
}

// auditWindow reads the bounds of what is looked at.
func auditWindow(o *audit.Options, since, until string, now time.Time) (err error) {
	if o.Since, err = moment(since, now); err != nil {
		return fmt.Errorf("--since: %w", err)
	}
	if o.Until, err = moment(until, now); err != nil {
		return fmt.Errorf("--until: %w", err)
	}
	return nil
}

// moment reads a time, or how long ago it was; the zero time where there is no
// text.
func moment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	ago, err := time.ParseDuration(text)
	if err != nil || ago < 0 {
		return time.Time{}, fmt.Errorf("%q is neither a time as in 2026-01-05T03:00:00Z nor a duration as in 2h", text)
	}
	return now.Add(-ago), nil
}

// auditOptions tells audit what the service is configured to do.
func auditOptions(o *audit.Options, c config.Config, isolation string) error {
	switch isolation {
	case "":
	case readCommitted, readUncommitted:
		c.Kafka.IsolationLevel = isolation
	default:
		return fmt.Errorf("--isolation: %q is neither %s nor %s", isolation, readCommitted, readUncommitted)
	}
	placers, err := app.Placers(c.Topics)
	if err != nil {
		return err
	}
	market, notes, err := app.Decoders(c)
	if err != nil {
		return err
	}
	o.Placer = placers[record.Market]
	o.Kafka = app.KafkaOptions(c)
	o.Market, o.Notifications = c.Topics.MarketUpdates, c.Topics.Notifications
	o.Alerts, o.DeadLetters = c.Topics.EnrichedAlerts, c.Topics.DeadLetters
	o.DecodeTick, o.DecodeNote = market.Decode, notes.Decode
	o.History = c.Join.History
	o.DropMisses, o.DeadMisses = c.Join.OnMiss == dropIt, c.Join.OnMiss == deadLetterIt
	o.DropNoAnswer, o.DeadNoAnswer = c.Join.OnUnavailable == dropIt, c.Join.OnUnavailable == deadLetterIt
	o.StartLatest = c.Notification.Start == "latest"
	o.MaxMessageBytes = int64(c.Delivery.MaxMessageBytes)
	o.LocalIsCertain = c.Join.Wait == 0
	return nil
}
