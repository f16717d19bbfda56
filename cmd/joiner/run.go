package main

import (
	"fmt"
	"os"

	"joiner/internal/app"
	"joiner/internal/kube"
	"joiner/internal/metrics"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func newRun(p *process) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the service",
		Long: `Run the service until SIGTERM or SIGINT: then it stops taking records, lets
what it has sent be acknowledged, commits, leaves the group and exits with 0
within shutdown.timeout, or with 1 and what was left. A second signal ends it
at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runService(cmd, p) },
	}
}

func runService(cmd *cobra.Command, p *process) error {
	loaded, err := loadConfig(cmd, p)
	if err != nil {
		return err
	}
	log, err := newLogger(loaded.Log, p.stderr)
	if err != nil {
		return wrongUsage(err)
	}
	logSarama(log)
	ctx, stop := withSignals(cmd.Context(), p.exit, func(s os.Signal) {
		log.Info("stopping", zap.Stringer("signal", s), zap.Duration("limit", loaded.Shutdown.Timeout))
	})
	defer stop()

	b := thisBuild()
	log.Info("starting", zap.String("version", b.Version), zap.String("commit", b.Commit),
		zap.String("go", b.Go), zap.String("sarama", b.Sarama))
	registry := prometheus.NewRegistry()
	metrics.RegisterRuntime(registry)
	joiner, err := app.New(app.Options{
		Config: loaded.Config, Registry: registry, Logger: log,
		Kubernetes: kube.FromEnvironment(os.Getenv),
		Build:      app.Build{Version: b.Version, Commit: b.Commit, Go: b.Go, Sarama: b.Sarama},
	})
	if err != nil {
		return wrongUsage(err)
	}
	if err := joiner.Run(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}
