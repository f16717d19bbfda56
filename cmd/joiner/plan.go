package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"joiner/internal/app"
	"joiner/internal/assign"
	"joiner/internal/placement"
	"joiner/internal/plan"

	"github.com/spf13/cobra"
)

// planFlags are the flags as they were written.
type planFlags struct {
	partitions, events, load, partitioner string
	strategies                            []string
	members, symbols                      int
	ticks, peakRate, memberRate           float64
}

func newPlan(p *process) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what an assignment would look like, without Kafka",
		Long: `plan plays a consumer group in memory, under each strategy as it runs in
production, through a sequence of scale events. After each it shows who owns
what, how many indices have both topics' partitions in one place, how much of
the load would be joined locally, what moved beside the least that had to, who
is idle, and which member becomes the bottleneck.

Events are separated by commas and each is one rebalance: a number scales to
that many members (up adds the lowest-numbered names never used, down takes the
highest-numbered away), -m2 removes m2, +m2 adds it.

A load file has a symbol and its weight in each line, separated by white space
or a comma. Keys are placed as topics.partitioner and topics.reserved of the
configuration say.

With --peak-rate and --member-rate it says how many partitions are needed, how
much headroom those planned have, and what more of them would break.`,
		Example: `  joiner plan --partitions 12 --members 4 --events 5,4,-m2
  joiner plan --partitions 12 --members 4 --load zipf:1.1 --strategy copartition
  joiner plan --partitions 12 --members 4 --load hot:0.2 --peak-rate 50000 --member-rate 20000`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd, outputTable, outputJSON)
	flags := cmd.Flags()
	flags.StringVar(&f.partitions, "partitions", "6", "partitions of each topic, or of market-updates and notifications: `N[,N]`")
	flags.IntVar(&f.members, "members", 4, "members that the group begins with (default: none with --events)")
	flags.StringVar(&f.events, "events", "", "scale `events`, as 4,5,4,-m2")
	flags.StringSliceVar(&f.strategies, "strategy", assign.Strategies(), "strategies to show side by side")
	flags.StringVar(&f.load, "load", "", "how records spread over symbols: a `file`, zipf:S, hot:SHARE or uniform (default: evenly over partitions)")
	flags.IntVar(&f.symbols, "symbols", 1000, "number of symbols, without a file")
	flags.StringVar(&f.partitioner, "partitioner", "", "how keys are placed: murmur2, crc32 or fnv1a (default: topics.partitioner)")
	flags.Float64Var(&f.ticks, "ticks-per-notification", 10, "ticks for each notification")
	flags.Float64Var(&f.peakRate, "peak-rate", 0, "records a second of both topics at the peak")
	flags.Float64Var(&f.memberRate, "member-rate", 0, "records a second that one member can do")
	for flag, words := range map[string][]string{
		"strategy":    assign.Strategies(),
		"partitioner": placement.Names(),
		"load":        {"zipf:", "hot:", "uniform"},
	} {
		directive := cobra.ShellCompDirectiveNoFileComp
		if flag == "load" {
			directive = cobra.ShellCompDirectiveDefault // files too
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, directive)); err != nil {
			panic(err) // a flag that does not exist: a mistake of this file
		}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runPlan(cmd, p, f, out) }
	return cmd
}

func runPlan(cmd *cobra.Command, p *process, f planFlags, out *output) error {
	o, err := f.options(cmd)
	if err != nil {
		return wrongUsage(err)
	}
	if err := placed(cmd, p, &o, f.partitioner); err != nil {
		return err
	}
	progress := planProgress{w: p.stderr, terminal: isTerminal(p.stderr)}
	o.Progress = progress.show
	report, err := interruptible(cmd, p, planGrace, func(ctx context.Context) (plan.Report, error) { return plan.Run(ctx, o) })
	progress.clear()
	if errors.Is(err, plan.ErrOptions) {
		return wrongUsage(err)
	}
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if out.json() {
		return json.NewEncoder(p.stdout).Encode(report)
	}
	return report.Text(p.stdout)
}

// planProgress says what is planned, in plans that take a while: in one line of
// a terminal, else in lines of their own.
type planProgress struct {
	w               io.Writer
	terminal, shown bool
}

func (p *planProgress) show(what string) {
	p.shown = true
	if p.terminal {
		fmt.Fprintf(p.w, "\r\033[Kplanning %s", what)
		return
	}
	fmt.Fprintf(p.w, "planning %s\n", what)
}

func (p *planProgress) clear() {
	if p.shown && p.terminal {
		fmt.Fprint(p.w, "\r\033[K")
	}
}

// options reads the flags.
func (f *planFlags) options(cmd *cobra.Command) (plan.Options, error) {
	o := plan.Options{
		Strategies:           f.strategies,
		TicksPerNotification: f.ticks,
		PeakRate:             f.peakRate,
		MemberRate:           f.memberRate,
	}
	var err error
	if o.MarketPartitions, o.NotificationPartitions, err = partitionCounts(f.partitions); err != nil {
		return o, fmt.Errorf("--partitions: %w", err)
	}
	if o.Events, err = f.allEvents(cmd); err != nil {
		return o, err
	}
	for _, one := range []struct {
		flag string
		rate float64
	}{{"peak-rate", f.peakRate}, {"member-rate", f.memberRate}} {
		if !cmd.Flags().Changed(one.flag) {
			continue
		}
		if err := plan.CheckRate(one.rate); err != nil {
			return o, fmt.Errorf("--%s: %w", one.flag, err)
		}
	}
	if cmd.Flags().Changed("peak-rate") != cmd.Flags().Changed("member-rate") {
		return o, errors.New("--peak-rate and --member-rate go together")
	}
	if cmd.Flags().Changed("symbols") && f.symbols < 1 {
		return o, fmt.Errorf("--symbols: %d: write 1 or more", f.symbols)
	}
	if f.load != "" {
		if o.Load, err = plan.ReadLoad(f.load, f.symbols); err != nil {
			return o, fmt.Errorf("--load: %w", err)
		}
	}
	return o, nil
}

// allEvents lets the group begin with --members where that was written, or
// where there are no events.
func (f *planFlags) allEvents(cmd *cobra.Command) ([]plan.Event, error) {
	written := cmd.Flags().Changed("members")
	if written && f.members < 1 {
		return nil, fmt.Errorf("--members: %d: write 1 to %d", f.members, plan.MaxMembers)
	}
	start := 0
	if written || f.events == "" {
		start = f.members
	}
	events, err := plan.ParseEvents(start, f.events)
	var wrong *plan.EventError
	if errors.As(err, &wrong) && wrong.Position == 0 {
		return nil, fmt.Errorf("--members: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("--events: %w", err)
	}
	return events, nil
}

// partitionCounts reads one number for both topics, or one for each.
func partitionCounts(text string) (market, notifications int32, err error) {
	words := strings.Split(text, ",")
	if len(words) > 2 {
		return 0, 0, fmt.Errorf("%q has more than two numbers; write one for both topics, or market-updates,notifications", text)
	}
	counts := make([]int32, 0, 2)
	for _, word := range words {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 || n > plan.MaxPartitions {
			return 0, 0, fmt.Errorf("%q: write 1 to %d", word, plan.MaxPartitions)
		}
		counts = append(counts, int32(n))
	}
	return counts[0], counts[len(counts)-1], nil
}

// placed takes topics and placement from the configuration.
func placed(cmd *cobra.Command, p *process, o *plan.Options, partitioner string) error {
	loaded, err := loadConfig(cmd, p)
	if err != nil {
		return err
	}
	t := loaded.Topics
	o.MarketTopic, o.NotificationTopic = t.MarketUpdates, t.Notifications
	o.MarketPartitioner, o.NotificationPartitioner = t.MarketPartitioner(), t.NotificationPartitioner()
	if partitioner != "" {
		o.MarketPartitioner, o.NotificationPartitioner = partitioner, partitioner
	}
	if o.Reserved, err = app.Reserved(t); err != nil {
		return wrongUsage(err)
	}
	return nil
}
