package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"joiner/internal/checkpoint"
	"joiner/internal/kafka"
	"joiner/internal/record"
)

// Run looks at the cluster and judges it. It takes no longer than the timeout
// and about a second to let go of its connections. Errors: those that wrap
// ErrOptions, and ctx's where somebody interrupted it; a cluster that is away
// is a finding.
func Run(ctx context.Context, o Options) (Report, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return Report{}, err
	}
	f, err := gather(ctx, &o)
	if err != nil {
		return Report{}, err
	}
	return reportOf(judge(&o, f)), nil
}

func gather(parent context.Context, o *Options) (*Facts, error) {
	survey, err := kafka.NewSurvey(o.Kafka)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	defer survey.Close()
	ctx, cancel := context.WithTimeout(parent, o.Timeout)
	defer cancel()

	g := &gatherer{o: o, survey: survey, facts: &Facts{Now: time.Now()}}
	g.run(ctx)
	if err := parent.Err(); err != nil {
		return nil, context.Cause(parent)
	}
	return g.facts, nil
}

// gatherer fills facts. Its steps that run side by side write to fields of
// their own.
type gatherer struct {
	o       *Options
	survey  *kafka.Survey
	clients *kafka.Clients
	facts   *Facts
}

// step is ctx for one step: a quarter of the timeout, so that a step that hangs
// leaves time to the others.
func (g *gatherer) step(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, g.o.Timeout/4)
}

func (g *gatherer) run(ctx context.Context) {
	g.fate(ctx)
	g.place(ctx)
	g.o.Progress("visiting the brokers")
	g.visit(ctx)
	g.o.Progress("connecting as the service does")
	g.connect(ctx)
	if g.clients == nil {
		return
	}
	defer func() { _ = g.clients.Close() }()
	g.o.Progress("looking at topics and the group")
	g.look(ctx)
	g.o.Progress("reading the tails of the inputs")
	g.read(ctx)
}

// fate asks what the service will ask at its stop.
func (g *gatherer) fate(ctx context.Context) {
	if g.o.ComesBack == nil {
		return
	}
	ctx, cancel := g.step(ctx)
	defer cancel()
	g.o.Progress("asking whether the pod comes back when it stops")
	g.facts.ComesBack, g.facts.ComesBackErr = g.o.ComesBack(ctx)
}

// place looks at the directory for checkpoints. A disk that hangs is left to
// whoever waits for it.
func (g *gatherer) place(ctx context.Context) {
	if g.o.StateDir == "" {
		return
	}
	ctx, cancel := g.step(ctx)
	defer cancel()
	g.o.Progress("looking at the directory for checkpoints")
	type seen struct {
		place checkpoint.Place
		err   error
	}
	looked := make(chan seen, 1)
	go func() {
		place, err := checkpoint.Inspect(g.o.StateDir)
		looked <- seen{place, err}
	}()
	select {
	case s := <-looked:
		g.facts.Place, g.facts.PlaceErr = s.place, s.err
	case <-ctx.Done():
		g.facts.PlaceErr = fmt.Errorf("the disk did not answer within %s", span(g.o.Timeout/4))
	}
}

// visit visits the configured servers, and then every broker that they name.
func (g *gatherer) visit(ctx context.Context) {
	f := g.facts
	f.Bootstrap = make([]kafka.Visit, len(g.o.Kafka.Brokers))
	sideBySide(len(f.Bootstrap), visitors, func(i int) {
		f.Bootstrap[i] = g.visitOne(ctx, kafka.BrokerAddress{ID: -1, Address: g.o.Kafka.Brokers[i]})
	})
	brokers := advertised(f.Bootstrap)
	f.Brokers = make([]kafka.Visit, len(brokers))
	sideBySide(len(brokers), visitors, func(i int) { f.Brokers[i] = g.visitOne(ctx, brokers[i]) })
}

const visitors = 32 // at once

// visitOne gives each an eighth of the time: a broker that is paused takes the
// connection and then says nothing.
func (g *gatherer) visitOne(ctx context.Context, at kafka.BrokerAddress) kafka.Visit {
	limit := g.o.Timeout / 8
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	v := g.survey.Visit(ctx, at.ID, at.Address)
	if errors.Is(v.Err, context.DeadlineExceeded) {
		v.Err = fmt.Errorf("no answer within %s", span(limit))
	}
	return v
}

// advertised are the brokers that anybody told of, by number.
func advertised(visits []kafka.Visit) []kafka.BrokerAddress {
	var all []kafka.BrokerAddress
	for _, v := range visits {
		all = append(all, v.Brokers...)
	}
	slices.SortFunc(all, func(a, b kafka.BrokerAddress) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Address, b.Address))
	})
	return slices.CompactFunc(all, func(a, b kafka.BrokerAddress) bool { return a.ID == b.ID && a.Address == b.Address })
}

var errNobody = errors.New("no bootstrap server answers")

// connect makes the service's own clients, unless nobody would answer.
func (g *gatherer) connect(ctx context.Context) {
	f := g.facts
	if !slices.ContainsFunc(f.Bootstrap, answers) {
		f.Connected = errNobody
		return
	}
	ctx, cancel := g.step(ctx)
	defer cancel()
	o := g.o.Kafka
	o.Brokers, o.Dial = nil, g.dialer()
	for _, v := range f.Bootstrap {
		if answers(v) {
			o.Brokers = append(o.Brokers, v.Address)
		}
	}
	g.clients, f.Connected = kafka.Connect(ctx, o)
}

// dialer refuses at once to call brokers that did not answer before. The
// clients would wait for each again, one request after the other, and the time
// would be over before the others were asked.
func (g *gatherer) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	away := make(map[string]error)
	for _, v := range slices.Concat(g.facts.Bootstrap, g.facts.Brokers) {
		if !answers(v) {
			away[v.Address] = v.Err
		}
	}
	dial := g.o.Kafka.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := away[address]; err != nil {
			return nil, err
		}
		return dial(ctx, network, address)
	}
}

func answers(v kafka.Visit) bool { return v.Err == nil }

// look asks about topics and the group.
func (g *gatherer) look(ctx context.Context) {
	ctx, cancel := g.step(ctx)
	defer cancel()
	var steps sync.WaitGroup
	steps.Go(func() { g.topics(ctx) })
	steps.Go(func() { g.group(ctx) })
	if g.o.ExactlyOnce {
		steps.Go(func() { g.transaction(ctx) })
	}
	steps.Wait()
}

func (g *gatherer) topics(ctx context.Context) {
	f, all := g.facts, g.o.topics()
	f.Settings, f.SettingsErr = g.clients.Facts.TopicSettings(ctx, all...)
	f.Layouts, f.LayoutsErr = g.clients.Facts.Layouts(ctx, all...)
	if f.LayoutsErr != nil || !g.o.Create {
		return
	}
	f.Creatable = make(map[string]error)
	want := mostPartitions(g.o, f)
	for _, name := range g.o.outputs() {
		if l := f.Layouts[name]; l.Err == nil && !l.Exists() && want > 0 {
			f.Creatable[name] = g.clients.Facts.TryCreate(ctx, name, want, g.o.ReplicationFactor)
		}
	}
}

// mostPartitions is how many partitions the outputs need.
func mostPartitions(o *Options, f *Facts) int32 {
	most := int32(0)
	for _, name := range o.inputs() {
		most = max(most, f.Layouts[name].Topic.Partitions)
	}
	return most
}

// group describes the group, as one of the older protocol and then, where it has
// no members as such, of the newer.
func (g *gatherer) group(ctx context.Context) {
	f := g.facts
	f.Group, f.GroupErr = g.clients.DescribeGroup(ctx)
	if f.GroupErr != nil || len(f.Group.Members) > 0 {
		return
	}
	at, err := g.clients.GroupCoordinator(ctx)
	if err != nil {
		f.GroupErr = err
		return
	}
	i := slices.IndexFunc(f.Brokers, answers)
	if i < 0 {
		f.GroupErr = errors.New("no broker answers")
		return
	}
	newer, err := g.survey.NewerGroup(ctx, f.Brokers[i], at)
	if err != nil {
		f.GroupErr = err
		return
	}
	if newer.Type != "" {
		newer.Rights = f.Group.Rights
		f.Group = newer
	}
}

func (g *gatherer) transaction(ctx context.Context) {
	id := fmt.Sprintf("%scheck-%016x", g.o.TransactionalID, rand.Uint64())
	g.facts.Transaction = g.clients.TryTransaction(ctx, id)
}

// read looks into the partitions of both inputs.
func (g *gatherer) read(ctx context.Context) {
	f := g.facts
	if f.LayoutsErr != nil {
		f.PartitionsErr = f.LayoutsErr
		return
	}
	readable := make(map[string][]int32)
	for side, input := range g.o.Inputs {
		l := f.Layouts[input.Topic]
		f.Inputs[side].Partitions = make([]PartitionFacts, len(l.Partitions))
		for i, p := range l.Partitions {
			f.Inputs[side].Partitions[i] = PartitionFacts{ID: p.ID, Committed: -1, Next: record.NoTimestamp}
			readable[input.Topic] = append(readable[input.Topic], p.ID)
		}
	}
	g.committed(ctx, readable)
	g.sample(ctx)
}

func (g *gatherer) committed(ctx context.Context, partitions map[string][]int32) {
	f := g.facts
	if len(partitions) == 0 {
		return
	}
	if f.GroupErr != nil { // the same coordinator, and the same right
		f.CommittedErr = f.GroupErr
		return
	}
	ctx, cancel := g.step(ctx)
	defer cancel()
	offsets, err := g.clients.CommittedOffsets(ctx, partitions)
	if err != nil {
		f.CommittedErr = err
		return
	}
	for side, input := range g.o.Inputs {
		for i := range f.Inputs[side].Partitions {
			p := &f.Inputs[side].Partitions[i]
			p.Committed = offsets[input.Topic][p.ID]
		}
	}
}

// sideBySide calls do for 0 to n-1, at most limit at once, and returns when all
// have returned.
func sideBySide(n, limit int, do func(i int)) {
	slots := make(chan struct{}, max(limit, 1))
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	all.Wait()
}
