package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"joiner/internal/assign"
	"joiner/internal/load"
	"joiner/internal/placement"
)

// ErrOptions is what errors about Options wrap.
var ErrOptions = errors.New("cannot plan")

// Options say what to plan.
type Options struct {
	// MarketTopic and NotificationTopic name the inputs: sarama's round-robin
	// deals partitions in the order of their names.
	MarketTopic, NotificationTopic string
	// MarketPartitions and NotificationPartitions are from 1 to MaxPartitions.
	MarketPartitions, NotificationPartitions int32
	// Events are those of ParseEvents; the first fills the group.
	Events []Event
	// Strategies are some of assign.Strategies, each once.
	Strategies []string
	// Load is what is joined.
	Load Load
	// MarketPartitioner and NotificationPartitioner place its keys, each one of
	// placement.Names, or placement.Custom where nothing has to be placed.
	MarketPartitioner, NotificationPartitioner string
	// Reserved partitions have symbols of their own.
	Reserved []placement.Reserved
	// TicksPerNotification is how many market updates come with one
	// notification: what a record of either is worth for a member's share.
	TicksPerNotification float64
	// PeakRate and MemberRate are records a second of both topics, in all and
	// by one member; 0 for both asks for no sizing.
	PeakRate, MemberRate float64
	// Progress, where not nil, hears what is planned next, in plans that are
	// large enough to be waited for.
	Progress func(string)
}

// Work that may go into further histories, in members × partitions.
const (
	historyWork  = 80_000
	maxHistories = 400
)

// exampleSymbols stand in where keys have to be placed and no load was given.
const exampleSymbols = 10_000

// Run plans. Errors about the options wrap ErrOptions; others are the context's
// cause, or a strategy's own.
//
// It returns as soon as ctx ends. One call of sarama's sticky strategy can take
// hours at the bounds and knows of no context: it is left behind, and uses its
// processor until it ends by itself. Progress is called by Run alone, and no
// more once that has returned.
func Run(ctx context.Context, opts Options) (Report, error) {
	type outcome struct {
		report Report
		err    error
	}
	says, done := make(chan string), make(chan outcome, 1)
	hear := opts.Progress
	if hear != nil {
		opts.Progress = func(what string) {
			select {
			case says <- what:
			case <-ctx.Done():
			}
		}
	}
	go func() {
		report, err := planned(ctx, opts)
		done <- outcome{report, err}
	}()
	for {
		select {
		case what := <-says:
			hear(what)
		case o := <-done:
			return o.report, o.err
		case <-ctx.Done():
			return Report{}, context.Cause(ctx)
		}
	}
}

func planned(ctx context.Context, opts Options) (Report, error) {
	p, err := newPlanner(opts)
	if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return p.run(ctx)
}

// planner is one run.
type planner struct {
	Options
	topics    []string
	counts    [sides]int32
	placers   [sides]*placement.Placer
	demand    *demand
	load      Load // with example symbols where none were given
	histories int
}

func newPlanner(opts Options) (*planner, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	p := &planner{
		Options: opts,
		topics:  []string{opts.MarketTopic, opts.NotificationTopic},
		counts:  [sides]int32{opts.MarketPartitions, opts.NotificationPartitions},
		load:    opts.Load,
	}
	if err := p.place(); err != nil {
		return nil, err
	}
	p.histories = p.affordable()
	return p, nil
}

func (o *Options) validate() error {
	for _, n := range []int32{o.MarketPartitions, o.NotificationPartitions} {
		if n < 1 || n > MaxPartitions {
			return fmt.Errorf("%d partitions: use 1 to %d", n, MaxPartitions)
		}
	}
	if o.MarketTopic == o.NotificationTopic {
		return fmt.Errorf("both topics are called %q", o.MarketTopic)
	}
	if len(o.Events) == 0 || len(o.Events[0].Join) == 0 {
		return errors.New("nobody is in the group")
	}
	if len(o.Strategies) == 0 {
		return errors.New("no strategy to plan with")
	}
	for i, name := range o.Strategies {
		if !slices.Contains(assign.Strategies(), name) {
			return fmt.Errorf("unknown strategy %q: use some of %q", name, assign.Strategies())
		}
		if slices.Contains(o.Strategies[:i], name) {
			return fmt.Errorf("strategy %q is listed twice", name)
		}
	}
	if !(o.TicksPerNotification >= 0 && o.TicksPerNotification <= maxTicks) {
		return fmt.Errorf("%v ticks for each notification: use 0 to %v", o.TicksPerNotification, maxTicks)
	}
	if o.PeakRate == 0 && o.MemberRate == 0 {
		return nil
	}
	if err := CheckRate(o.PeakRate); err != nil {
		return fmt.Errorf("peak rate: %w", err)
	}
	if err := CheckRate(o.MemberRate); err != nil {
		return fmt.Errorf("member rate: %w", err)
	}
	return nil
}

// MinRate and MaxRate bound rates, in records a second. What lies beyond is a
// slip of the keyboard, and a quotient of two could not be counted.
const (
	MinRate = 0.001
	MaxRate = 1_000_000_000_000
)

const maxTicks = 1_000_000_000

// CheckRate says what is wrong with a rate.
func CheckRate(rate float64) error {
	if !(rate >= MinRate && rate <= MaxRate) {
		return fmt.Errorf("%v: use %v to %d records a second", rate, MinRate, int64(MaxRate))
	}
	return nil
}

// place lays the load out. Where none was given and both topics place keys
// alike, it is spread evenly, which needs no symbols.
func (p *planner) place() error {
	alike := p.MarketPartitioner == p.NotificationPartitioner && p.counts[market] == p.counts[notes]
	if len(p.load.Symbols) == 0 && alike {
		p.demand = even(p.counts[market], p.TicksPerNotification)
		return p.examples()
	}
	for s, partitioner := range [sides]string{p.MarketPartitioner, p.NotificationPartitioner} {
		if partitioner == placement.Custom {
			return fmt.Errorf("nobody can tell where %s places keys; name a partitioner, one of %q", placement.Custom, placement.Names())
		}
		if err := p.placer(s, partitioner); err != nil {
			return err
		}
	}
	if len(p.load.Symbols) == 0 {
		p.load = generated(load.Skew{}, exampleSymbols)
	}
	var err error
	p.demand, err = place(p.load.Symbols, p.placers, p.counts, p.TicksPerNotification)
	return err
}

// examples are symbols to show with what growth would do to keys.
func (p *planner) examples() error {
	if p.MarketPartitioner == placement.Custom {
		return nil
	}
	p.load.Symbols = generated(load.Skew{}, exampleSymbols).Symbols
	return errors.Join(p.placer(market, p.MarketPartitioner), p.placer(notes, p.NotificationPartitioner))
}

func (p *planner) placer(side int, partitioner string) (err error) {
	p.placers[side], err = placement.New(placement.Options{Topic: p.topics[side], Partitioner: partitioner, Reserved: p.Reserved})
	return err
}

// affordable is the number of further histories: none for a large group, which
// would wait for them much longer than for the plan itself.
func (p *planner) affordable() int {
	most, present := 0, 0
	for _, e := range p.Events {
		present += len(e.Join) - len(e.Leave)
		most = max(most, present)
	}
	work := (most + int(p.demand.indices())) * len(p.Events)
	if n := historyWork / work; n >= 10 {
		return min(n, maxHistories)
	}
	return 0
}

func (p *planner) run(ctx context.Context) (Report, error) {
	report := p.start()
	for _, strategy := range p.Strategies {
		if err := p.strategy(ctx, strategy, &report); err != nil {
			return Report{}, err
		}
	}
	if p.PeakRate > 0 {
		report.Sizing = p.size()
	}
	return report, nil
}

// start is the report without any outcome.
func (p *planner) start() Report {
	r := Report{
		Topics:    map[string]int32{p.MarketTopic: p.counts[market], p.NotificationTopic: p.counts[notes]},
		Load:      cmp.Or(p.load.Name, "even over all partitions"),
		Placement: p.MarketPartitioner,
		Histories: p.histories,
		inputs:    [sides]string{p.MarketTopic, p.NotificationTopic},
	}
	if p.MarketPartitioner != p.NotificationPartitioner {
		r.Placement += " and " + p.NotificationPartitioner
	}
	if len(p.Load.Symbols) > 0 {
		r.Hottest = p.demand.hottest(hottestShown)
	}
	g := roster{}
	for _, e := range p.Events {
		g.apply(e)
		step := Step{Event: e.Text, Members: len(g.numbers), numbers: slices.Clone(g.numbers)}
		for _, n := range step.numbers {
			step.MemberIDs = append(step.MemberIDs, Name(n))
		}
		r.Steps = append(r.Steps, step)
	}
	return r
}

// roster is who is in the group, ascending.
type roster struct{ numbers []int }

func (r *roster) apply(e Event) {
	r.numbers = slices.DeleteFunc(r.numbers, func(n int) bool { return slices.Contains(e.Leave, n) })
	r.numbers = append(r.numbers, e.Join...)
	slices.Sort(r.numbers)
}

// hottestShown is how many hot partitions a report lists.
const hottestShown = 5

// A fixed seed: the same plan twice is the same answer, but for sarama's
// sticky, which follows the random order of Go's maps.
const seed = 0x6a6f696e6572

// strategy adds what one strategy makes of all steps.
func (p *planner) strategy(ctx context.Context, name string, report *Report) error {
	progress := p.Progress
	if p.histories > 0 {
		progress = nil
	}
	outcomes, err := p.history(ctx, name, inOrder, progress)
	if err != nil {
		return err
	}
	means := make([]Mean, len(outcomes))
	for n := range p.histories {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		others, err := p.history(ctx, name, shuffled(rng), nil)
		if err != nil {
			return err
		}
		for i, o := range others {
			means[i].Colocated += float64(o.Colocated)
			means[i].Moved += float64(o.Moved)
			means[i].LocalShare += o.LocalShare
		}
	}
	for i := range means {
		n := float64(max(p.histories, 1))
		means[i] = Mean{tidy(means[i].Colocated / n), tidy(means[i].Moved / n), tidy(means[i].LocalShare / n)}
	}
	for i := range outcomes {
		if p.histories > 0 {
			outcomes[i].Mean = &means[i]
		}
		report.Steps[i].Strategies = append(report.Steps[i].Strategies, outcomes[i])
	}
	return nil
}

// history plays all events once.
func (p *planner) history(ctx context.Context, strategy string, name naming, progress func(string)) ([]StrategyOutcome, error) {
	g := newGroup(strategy, p.topics, map[string]int32{p.MarketTopic: p.counts[market], p.NotificationTopic: p.counts[notes]}, name)
	before := g.ownership()
	outcomes := make([]StrategyOutcome, 0, len(p.Events))
	for i, e := range p.Events {
		if progress != nil {
			progress(fmt.Sprintf("%s: event %d of %d (%s)", strategy, i+1, len(p.Events), e.Text))
		}
		generations, err := g.apply(ctx, e)
		if err != nil {
			return nil, err
		}
		after := g.ownership()
		o := p.outcome(before, after, g.members())
		o.Name, o.Generations, o.Problem = strategy, generations, g.problem()
		outcomes = append(outcomes, o)
		before = after
	}
	return outcomes, nil
}

// outcome compares what was with what is.
func (p *planner) outcome(before, after assign.Ownership, numbers []int) StrategyOutcome {
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = Name(n)
	}
	o := StrategyOutcome{
		Colocated:    assign.Colocated(after, p.topics...),
		Partitions:   after.Indices(),
		Moved:        assign.Moves(before, after, names),
		MovedMinimum: min(assign.MinimumMoves(before, names), assign.MinimumMovesTogether(before, names)),
		LocalShare:   p.local(after),
		Ownership:    after,
	}
	o.Max, o.Min, o.Idle = spread(after, names)
	o.Bottleneck, o.BottleneckShare = p.bottleneck(after, names)
	if p.PeakRate > 0 {
		o.BottleneckRate = o.BottleneckShare * p.PeakRate
		o.PodLoad = o.BottleneckRate / p.MemberRate
	}
	return o
}

// spread counts tasks by member.
func spread(own assign.Ownership, names []string) (most, fewest, idle int) {
	tasks := tasksOf(own)
	fewest = own.Indices()
	for _, name := range names {
		n := tasks[name]
		most, fewest = max(most, n), min(fewest, n)
		if n == 0 {
			idle++
		}
	}
	return most, fewest, idle
}

// tasksOf counts the indices of which a member owns a partition.
func tasksOf(own assign.Ownership) map[string]int {
	tasks := make(map[string]int)
	for i := range own.Indices() {
		var counted []string
		for _, owners := range own {
			if i < len(owners) && owners[i] != "" && !slices.Contains(counted, owners[i]) {
				counted = append(counted, owners[i])
				tasks[owners[i]]++
			}
		}
	}
	return tasks
}

// local is the share of the notifications that meet their price.
func (p *planner) local(own assign.Ownership) float64 {
	markets, notifications := own[p.MarketTopic], own[p.NotificationTopic]
	share := 0.0
	for _, pair := range p.demand.pairs {
		if owner := notifications[pair.note]; owner != "" && owner == markets[pair.market] {
			share += pair.share
		}
	}
	return tidy(share)
}

// bottleneck finds the member with the most records; of equal ones the first.
func (p *planner) bottleneck(own assign.Ownership, names []string) (string, float64) {
	shares := make(map[string]float64, len(names))
	for s, topic := range p.topics {
		for i, owner := range own[topic] {
			shares[owner] += p.demand.side[s][i] * p.demand.part(s)
		}
	}
	busiest, most := "", 0.0
	for _, name := range names {
		if share := tidy(shares[name]); share > most {
			busiest, most = name, share
		}
	}
	return busiest, most
}

// tidy takes away what adding up many small numbers has left over.
func tidy(share float64) float64 {
	const digits = 1e9
	return float64(int64(share*digits+0.5)) / digits
}
