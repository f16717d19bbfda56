package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"joiner/internal/app"
	"joiner/internal/demo"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func newDemo(p *process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show local against remote joins under each strategy, without Kafka",
		Long: `demo starts a broker inside this process, four members, six partitions and ten
symbols, joins the same 30 notifications under each assignment strategy, lets a
fifth member join, and prints what each strategy was worth. A remote join is
resolved by asking the owning member's table.`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd, outputTable, outputJSON)
	live := cmd.Flags().Bool("live", false, "keep going with the status page open (not in this version yet)")
	verbose := cmd.Flags().Bool("verbose", false, "show the members' log on standard error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *live {
			return wrongUsage(errors.New("--live needs the status page, which this version does not have yet; leave it out"))
		}
		return runDemo(cmd, p, out, *verbose)
	}
	return cmd
}

func runDemo(cmd *cobra.Command, p *process, out *output, verbose bool) error {
	ctx, stop := withSignals(cmd.Context(), p.exit, nil)
	defer stop()
	log := zap.NewNop()
	if verbose {
		loaded, err := loadConfig(cmd, p)
		if err != nil {
			return err
		}
		if log, err = newLogger(loaded.Log, p.stderr); err != nil {
			return wrongUsage(err)
		}
	}
	b := thisBuild()
	report, err := demo.Run(ctx, demo.Options{
		NewPod:   demo.Joiners(app.Build{Version: b.Version, Commit: b.Commit, Go: b.Go, Sarama: b.Sarama}, log),
		Progress: p.stderr,
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if out.json() {
		return json.NewEncoder(p.stdout).Encode(report)
	}
	return report.Text(p.stdout)
}
