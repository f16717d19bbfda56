package main

import (
	"fmt"

	"joiner/internal/app"
	"joiner/internal/config"

	"github.com/spf13/cobra"
)

func newConfig(p *process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration and print what is in effect",
		Long: `config checks the configuration without talking to Kafka and prints what is in
effect after the file, the environment and the flags, secrets redacted.
Everything that is wrong is reported at once, with exit code 2.`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd, outputYAML, outputJSON)
	defaults := cmd.Flags().Bool("defaults", false, "print the documented default file instead")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *defaults {
			return printDefaults(p, out)
		}
		loaded, err := loadConfig(cmd, p)
		if err != nil {
			return err
		}
		if err := app.Check(loaded.Config); err != nil {
			return wrongUsage(err)
		}
		return printConfig(p, loaded.Config, out)
	}
	return cmd
}

// printDefaults prints the file with its comments; JSON has none.
func printDefaults(p *process, out *output) error {
	if out.json() {
		return printConfig(p, config.Default(), out)
	}
	_, err := fmt.Fprint(p.stdout, config.DefaultFile())
	return err
}

func printConfig(p *process, c config.Config, out *output) error {
	if !out.json() {
		_, err := fmt.Fprint(p.stdout, c.YAML())
		return err
	}
	object, err := c.JSON()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s\n", object)
	return err
}
