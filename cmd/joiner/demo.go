package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"joiner/internal/app"
	"joiner/internal/demo"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
)

func newDemo(p *process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show local against remote joins under each strategy, without Kafka",
		Long: `demo starts a broker inside this process, four members, six partitions and ten
symbols, joins the same 30 notifications under each assignment strategy, lets a
fifth member join, and prints what each strategy was worth. A remote join is
resolved by asking the owning member's table.

With --live it keeps going instead: a group under a steady load whose members
join and leave on a rhythm, and whose status page it tells the address of. It
prints a line about each event, until it is interrupted.`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd, outputTable, outputJSON)
	var live liveFlags
	cmd.Flags().BoolVar(&live.on, "live", false, "keep going with the status page open, until interrupted")
	cmd.Flags().StringVar(&live.listen, "listen", "127.0.0.1:0", "with --live: where the status page listens; port 0 takes a free one")
	cmd.Flags().DurationVar(&live.every, "every", 15*time.Second, "with --live: the time between two events")
	cmd.Flags().Float64Var(&live.rate, "rate", 20, "with --live: notifications a second")
	verbose := cmd.Flags().Bool("verbose", false, "show the members' log on standard error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		aside(cmd, p, *verbose)
		if err := live.check(cmd, out); err != nil {
			return wrongUsage(err)
		}
		log, err := demoLog(cmd, p, *verbose)
		if err != nil {
			return err
		}
		if live.on {
			return runLive(cmd, p, live, log)
		}
		return runDemo(cmd, p, out, log)
	}
	return cmd
}

// aside warns of flags that set what the demo does not look at: whoever names a
// broker may think that it is the one. Of the configuration it takes the log's
// part alone, where that is shown.
func aside(cmd *cobra.Command, p *process, verbose bool) {
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed || verbose && (f.Name == "config" || f.Name == "set" || strings.HasPrefix(f.Name, "log-")) {
			return
		}
		fmt.Fprintf(p.stderr, "joiner: warning: --%s has no effect on demo, which brings its own broker and settings\n", f.Name)
	})
}

// liveFlags are the flags of --live.
type liveFlags struct {
	on     bool
	listen string
	every  time.Duration
	rate   float64
}

// check reports every flag that does not fit. One object on standard output
// would never come, since the live demo never ends by itself.
func (f liveFlags) check(cmd *cobra.Command, out *output) error {
	if !f.on {
		for _, name := range []string{"listen", "every", "rate"} {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s is for --live only", name)
			}
		}
		return nil
	}
	var errs []error
	if out.json() {
		errs = append(errs, errors.New("--live has no --output json: it goes on until it is interrupted; ask /v1/status?scope=group for the group as JSON"))
	}
	if f.every < time.Second {
		errs = append(errs, fmt.Errorf("--every: %s, use 1s or more", f.every))
	}
	if !(f.rate > 0 && f.rate <= 1000) {
		errs = append(errs, fmt.Errorf("--rate: %v, use more than 0 and up to 1000 notifications a second", f.rate))
	}
	if _, _, err := net.SplitHostPort(f.listen); err != nil {
		errs = append(errs, fmt.Errorf("--listen: %w", err))
	}
	return errors.Join(errs...)
}

// demoLog is the members' log, nowhere unless it is asked for.
func demoLog(cmd *cobra.Command, p *process, verbose bool) (*zap.Logger, error) {
	if !verbose {
		return zap.NewNop(), nil
	}
	loaded, err := loadConfig(cmd, p)
	if err != nil {
		return nil, err
	}
	log, err := newLogger(loaded.Log, p.stderr)
	if err != nil {
		return nil, wrongUsage(err)
	}
	return log, nil
}

func demoBuild() app.Build {
	b := thisBuild()
	return app.Build{Version: b.Version, Commit: b.Commit, Go: b.Go, Sarama: b.Sarama}
}

func runLive(cmd *cobra.Command, p *process, f liveFlags, log *zap.Logger) error {
	_, err := interruptible(cmd, p, demoGrace, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, demo.Live(ctx, demo.LiveOptions{
			NewPod: demo.LiveJoiners(demoBuild(), log), Listen: f.listen, Every: f.every, Rate: f.rate, Out: p.stdout,
		})
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

func runDemo(cmd *cobra.Command, p *process, out *output, log *zap.Logger) error {
	report, err := interruptible(cmd, p, demoGrace, func(ctx context.Context) (demo.Report, error) {
		return demo.Run(ctx, demo.Options{NewPod: demo.Joiners(demoBuild(), log), Progress: p.stderr})
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if out.json() {
		return json.NewEncoder(p.stdout).Encode(report)
	}
	return report.Text(p.stdout)
}
