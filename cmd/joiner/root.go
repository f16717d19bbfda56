package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"joiner/internal/config"

	"github.com/spf13/cobra"
)

const defaultConfigFile = "config.yaml"

func newRoot(p *process) *cobra.Command {
	root := &cobra.Command{
		Use:   "joiner",
		Short: "Joins notifications with the latest market prices on Kafka",
		Long: `joiner reads market updates and notifications from two co-partitioned topics
and writes each notification out again with the price of its symbol.

Configuration: flags win over the environment, the environment over the file,
the file over the defaults. Every key has an environment variable, JOINER_ and
its path in capitals (JOINER_KAFKA_BROKERS=a:9092,b:9092), and is reached by
--set (--set kafka.brokers=a:9092,b:9092). "joiner config --defaults" lists
them all.

Exit codes: 0 done or clean shutdown; 1 a runtime failure, a failed check, a
shutdown cut short or a command interrupted before it was done; 2 wrong usage or
configuration; 128 and its number on a second signal.`,
		Version:       thisBuild().Version,
		SilenceErrors: true, // report prints them
		SilenceUsage:  true,
	}
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	flags := root.PersistentFlags()
	flags.String("config", defaultConfigFile, "configuration `file`; the default one need not exist")
	config.AddFlags(flags)
	root.AddCommand(newRun(p), newDemo(p), newLoad(p), newCheck(p), newPlan(p), newAudit(p), newHealth(p), newConfig(p), newVersion(p))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, command := range root.Commands() {
		refuseUnknown(command)
	}
	complete(root)
	failures(root)
	return root
}

// refuseUnknown lets a command that only holds others (completion) check its
// arguments: cobra prints help for an unknown one below it, and succeeds.
func refuseUnknown(command *cobra.Command) {
	if command.HasSubCommands() && !command.Runnable() {
		command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

// loadConfig loads the configuration for a command, tells warnings on standard
// error, and makes faults end the process with exitUsage.
func loadConfig(cmd *cobra.Command, p *process) (*config.Loaded, error) {
	flag := cmd.Flags().Lookup("config")
	if flag == nil {
		return nil, errors.New("the command has no --config")
	}
	loaded, err := config.Load(config.Options{
		Path:     flag.Value.String(),
		Explicit: flag.Changed,
		Flags:    cmd.Flags(),
		Environ:  p.environ,
	})
	for _, warning := range loaded.Warnings {
		fmt.Fprintln(p.stderr, "joiner: warning: "+warning)
	}
	if err != nil {
		return nil, wrongUsage(err)
	}
	return loaded, nil
}

// complete tells the shell what the flags of the configuration accept.
func complete(root *cobra.Command) {
	keys := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var out []cobra.Completion
		for _, key := range config.Keys() {
			out = append(out, key+"=")
		}
		return out, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	words := func(words ...cobra.Completion) cobra.CompletionFunc {
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	}
	for flag, f := range map[string]cobra.CompletionFunc{
		"set":        keys,
		"log-level":  words("debug", "info", "warn", "error"),
		"log-format": words("json", "console"),
	} {
		if err := root.RegisterFlagCompletionFunc(flag, f); err != nil {
			panic(err) // a flag that does not exist: a mistake of this file
		}
	}
}

// output is the value of --output: one of a few words.
type output struct {
	chosen  string
	choices []string
}

// Output formats.
const (
	outputTable = "table"
	outputYAML  = "yaml"
	outputJSON  = "json"
)

// addOutput adds -o/--output to a command. The first choice is the default.
func addOutput(cmd *cobra.Command, choices ...string) *output {
	o := &output{chosen: choices[0], choices: choices}
	cmd.Flags().VarP(o, "output", "o", "output format: "+strings.Join(choices, " or "))
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // as in complete
	}
	return o
}

// String, Set and Type make it a pflag.Value.
func (o *output) String() string { return o.chosen }

// Set chooses; an unknown word is an error.
func (o *output) Set(word string) error {
	if !slices.Contains(o.choices, word) {
		return fmt.Errorf("write %s", strings.Join(o.choices, " or "))
	}
	o.chosen = word
	return nil
}

// Type names the value in help.
func (o *output) Type() string { return "format" }

// json says whether one JSON object is wanted, and nothing else on standard
// output.
func (o *output) json() bool { return o.chosen == outputJSON }
