package main

import (
	"context"
	"fmt"
	"time"

	"joiner/internal/probe"

	"github.com/spf13/cobra"
)

func newHealth(p *process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the joiner that runs here whether it is ready",
		Long: `health asks the joiner that listens on http.listen of this machine for its
readiness (/readyz), or with --live whether it is alive (/livez), and prints what
it says. It exits with 1 where the answer is no or nobody answers. It is for
containers: the image holds no other program that could ask.`,
		Args: cobra.NoArgs,
	}
	live := cmd.Flags().Bool("live", false, "ask whether it is alive instead of whether it is ready")
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long the answer may take")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := loadConfig(cmd, p)
		if err != nil {
			return err
		}
		address, err := probe.Address(loaded.HTTP.Listen)
		if err != nil {
			return wrongUsage(fmt.Errorf("http.listen: %w", err))
		}
		if *timeout <= 0 {
			return wrongUsage(fmt.Errorf("--timeout: %v is too short, give it more", *timeout))
		}
		path := probe.Ready
		if *live {
			path = probe.Live
		}
		said, err := interruptible(cmd, p, healthGrace, func(ctx context.Context) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, *timeout)
			defer cancel()
			return probe.Ask(ctx, address, path)
		})
		if err != nil {
			return fmt.Errorf("health: %w", err)
		}
		_, err = fmt.Fprintln(p.stdout, said)
		return err
	}
	return cmd
}
