package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"joiner/internal/embedded"
	"joiner/internal/load"
	"joiner/internal/placement"
)

// LivePod is a pod with a status page.
type LivePod interface {
	Pod
	// Page is the URL of its status page, empty before it listens.
	Page() string
}

// LiveOptions says how the live demo runs.
type LiveOptions struct {
	// NewPod starts a pod, as a PodFactory does.
	NewPod func(ctx context.Context, o PodOptions) (LivePod, error)
	// Listen is where the first member's page listens, host:port; port 0 takes
	// a free one. The others take free ports of loopback.
	Listen string
	// Every is how long the group is left alone between two events.
	Every time.Duration
	// Rate is how many notifications a second are produced, with five ticks each.
	Rate float64
	// Patience bounds the wait for the group after an event; 0 is a minute.
	Patience time.Duration
	// Grace is how long the end waits for alerts that are on their way, anew
	// from each; 0 is that of joiner load.
	Grace time.Duration
	// Out gets a line about each event.
	Out io.Writer
}

// The live group breathes between so many members. The first one stays: its
// page is the one that is open.
const (
	fewest = 2
	most   = 6 // as many as there are partitions: nobody idles
)

const (
	liveTicks   = 5
	liveSymbols = 200
	// What is older is forgotten: the broker keeps its logs in memory, and the
	// demo may run all night. Every symbol has ticks far more often.
	liveRetention = 15 * time.Minute
	forgetEvery   = 30 * time.Second
)

// Live runs a group whose members join and leave on a rhythm, under a steady
// load, until ctx ends, which is no error. Errors are a pod that does not start
// or stop, and a load that fails.
func Live(ctx context.Context, o LiveOptions) error {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	t := DefaultTopics()
	cluster, err := embedded.Start(embedded.Options{
		Topics: []embedded.Topic{
			{Name: t.MarketUpdates, Partitions: partitions},
			{Name: t.Notifications, Partitions: partitions},
			{Name: t.EnrichedAlerts, Partitions: partitions},
			{Name: t.DeadLetters, Partitions: partitions},
		},
		Configs: map[string]string{"log.retention.ms": fmt.Sprint(liveRetention.Milliseconds())},
	})
	if err != nil {
		return err
	}
	defer cluster.Close()
	defer forgetting(cluster)()
	l := &live{o: o, topics: t, brokers: cluster.Addrs(), growing: true}
	err = l.run(ctx)
	return errors.Join(err, l.stop())
}

// forgetting applies the retention from time to time until the function that it
// returns is called.
func forgetting(cluster *embedded.Cluster) func() {
	quit := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(forgetEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				cluster.Fake().ApplyRetention()
			case <-quit:
				return
			}
		}
	})
	return func() {
		close(quit)
		running.Wait()
	}
}

// live is a group at work.
type live struct {
	o       LiveOptions
	topics  Topics
	brokers []string
	pods    []livePod // in the order in which they joined
	growing bool
	owners  map[int32]string // of each partition, when the group last settled
}

type livePod struct {
	name string
	LivePod
}

func (l *live) say(format string, args ...any) {
	_, _ = fmt.Fprintf(l.o.Out, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func (l *live) run(ctx context.Context) error {
	if err := l.begin(ctx); err != nil {
		return untilStopped(ctx, err)
	}
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	done := make(chan loaded, 1)
	go func() {
		report, err := load.Run(loading, l.loadOptions())
		done <- loaded{report, err}
	}()
	l.say("%g notifications and %g ticks a second; a member joins or leaves every %s; Ctrl-C ends it",
		l.o.Rate, liveTicks*l.o.Rate, l.o.Every)

	beat := time.NewTicker(l.o.Every)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			l.say("ending")
			return l.finish(ctx, <-done)
		case r := <-done: // also after the end of ctx, where an event took longer
			return l.finish(ctx, r)
		case <-beat.C:
			err := l.event(ctx)
			if err == nil || ctx.Err() != nil {
				continue // the end has its own case
			}
			stopLoad()
			<-done
			return err
		}
	}
}

// loaded is how the load ended.
type loaded struct {
	load.Report
	err error
}

// finish tells what came of the load, which only the end of ctx ends in order.
func (l *live) finish(ctx context.Context, r loaded) error {
	if r.err == nil && ctx.Err() == nil {
		r.err = errors.New("it ended by itself")
	}
	if untilStopped(ctx, r.err) != nil {
		return fmt.Errorf("load: %w", r.err)
	}
	l.say("%d notifications, %d alerts, %d missing, %d more than once; latency p50 %.1f ms, p99 %.1f ms",
		r.Notifications, r.Alerts, r.Missing, r.Duplicates, r.Latency.P50, r.Latency.P99)
	return nil
}

// untilStopped drops an error that only says that ctx has ended.
func untilStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// begin starts the first members together, and says where to look.
func (l *live) begin(ctx context.Context) error {
	for range fewest {
		if _, err := l.join(ctx); err != nil {
			return err
		}
	}
	page, err := l.page(ctx, l.pods[0])
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(l.o.Out, "status page: %s\n", page)
	return l.settled(ctx, time.Now())
}

// event lets a member join or leave, by turns up to the most and down to the
// fewest, and waits until the group has settled.
func (l *live) event(ctx context.Context) error {
	switch len(l.pods) {
	case fewest:
		l.growing = true
	case most:
		l.growing = false
	}
	began := time.Now()
	if !l.growing {
		if err := l.leave(); err != nil {
			return err
		}
		return l.settled(ctx, began)
	}
	p, err := l.join(ctx)
	if err != nil {
		return err
	}
	page, err := l.page(ctx, p)
	if err != nil {
		return err
	}
	l.say("%s joins: %s", p.name, page)
	return l.settled(ctx, began)
}

func (l *live) join(ctx context.Context) (livePod, error) {
	o := PodOptions{
		Name: l.freeName(), Brokers: l.brokers, Group: "joiner-demo", Strategy: "copartition", Topics: l.topics,
	}
	if len(l.pods) == 0 {
		o.HTTPListen = l.o.Listen
	}
	pod, err := l.o.NewPod(ctx, o)
	if err != nil {
		return livePod{}, fmt.Errorf("start %s: %w", o.Name, err)
	}
	p := livePod{o.Name, pod}
	l.pods = append(l.pods, p)
	return p, nil
}

func (l *live) freeName() string {
	for n := 1; ; n++ {
		name := fmt.Sprintf("m%d", n)
		if !slices.ContainsFunc(l.pods, func(p livePod) bool { return p.name == name }) {
			return name
		}
	}
}

// leave stops the member that has been there longest, the first one excepted.
func (l *live) leave() error {
	p := l.pods[1]
	l.pods = slices.Delete(l.pods, 1, 2)
	l.say("%s leaves", p.name)
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	return nil
}

// page waits until the pod listens.
func (l *live) page(ctx context.Context, p livePod) (url string, err error) {
	err = l.await(ctx, func() string {
		if url = p.Page(); url != "" {
			return ""
		}
		return p.name + " does not listen: " + strings.Join(p.Status().Reasons, ", ")
	})
	return url, err
}

// settled waits until every partition of both topics has one owner and all
// members are ready, and says who owns what and how much has moved.
func (l *live) settled(ctx context.Context, since time.Time) error {
	var owners map[int32]string
	if err := l.await(ctx, func() (complaint string) {
		owners, complaint = l.look()
		return complaint
	}); err != nil {
		return err
	}
	l.say("settled after %.1f s: %s%s", time.Since(since).Seconds(), l.ownership(owners), l.moves(owners))
	l.owners = owners
	return nil
}

// await polls until there is no complaint.
func (l *live) await(ctx context.Context, look func() (complaint string)) error {
	ctx, cancel := context.WithTimeout(ctx, l.o.Patience)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if err := l.ended(); err != nil {
			return err
		}
		complaint := look()
		if complaint == "" {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("the group has not settled (%s): %w", complaint, ctx.Err())
		}
	}
}

// ended names a member that runs no more.
func (l *live) ended() error {
	for _, p := range l.pods {
		if s := p.Status(); s.Ended {
			return fmt.Errorf("%s: %s", p.name, strings.Join(s.Reasons, ", "))
		}
	}
	return nil
}

func (l *live) look() (owners map[int32]string, complaint string) {
	owners = map[int32]string{}
	for _, p := range l.pods {
		s := p.Status()
		if !s.Ready {
			return nil, p.name + ": " + strings.Join(s.Reasons, ", ")
		}
		market, notes := s.Owned[l.topics.MarketUpdates], s.Owned[l.topics.Notifications]
		if !slices.Equal(market, notes) {
			return nil, p.name + " owns halves"
		}
		for _, partition := range market {
			if other := owners[partition]; other != "" {
				return nil, fmt.Sprintf("partition %d is owned by %s and %s", partition, other, p.name)
			}
			owners[partition] = p.name
		}
	}
	if len(owners) < partitions {
		return nil, fmt.Sprintf("%d of %d partitions have an owner", len(owners), partitions)
	}
	return owners, ""
}

func (l *live) ownership(owners map[int32]string) string {
	var texts []string
	for _, p := range l.pods {
		text := p.name
		for partition := range int32(partitions) {
			if owners[partition] == p.name {
				text += fmt.Sprintf(" %d", partition)
			}
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, " | ")
}

// moves says how many partitions have another owner than before.
func (l *live) moves(owners map[int32]string) string {
	if l.owners == nil {
		return ""
	}
	n := 0
	for partition, owner := range owners {
		if l.owners[partition] != owner {
			n++
		}
	}
	return fmt.Sprintf("; %d of %d moved", n, partitions)
}

// stop ends all members at once, as the demo's stage does.
func (l *live) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	errs := make([]error, len(l.pods))
	var stopping sync.WaitGroup
	for i, p := range l.pods {
		stopping.Go(func() {
			if err := p.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("stop %s: %w", p.name, err)
			}
		})
	}
	stopping.Wait()
	return errors.Join(errs...)
}

func (l *live) loadOptions() load.Options {
	o := load.DefaultOptions()
	o.Brokers = l.brokers
	o.MarketTopic, o.NotificationTopic, o.AlertTopic = l.topics.MarketUpdates, l.topics.Notifications, l.topics.EnrichedAlerts
	o.MarketPlacer, o.NotificationPlacer = murmur2(l.topics.MarketUpdates), murmur2(l.topics.Notifications)
	o.Rate, o.TicksPerNotification, o.Symbols = l.o.Rate, liveTicks, liveSymbols
	o.Skew, _ = load.ParseSkew("zipf:1") // a constant that it knows
	o.Duration, o.ValueBytes = 0, 0
	if l.o.Grace > 0 {
		o.Grace = l.o.Grace
	}
	return o
}

func murmur2(topic string) *placement.Placer {
	p, err := placement.New(placement.Options{Topic: topic, Partitioner: "murmur2"})
	if err != nil {
		panic(err) // a constant that it knows
	}
	return p
}
