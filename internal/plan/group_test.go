package plan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"joiner/internal/assign"
	"joiner/internal/placement"

	"github.com/IBM/sarama"
	"pgregory.net/rapid"
)

const (
	testMarket = "market-updates"
	testNotes  = "notifications"
)

func testTopics() []string { return []string{testMarket, testNotes} }

// fatal is what testing.T and rapid.T share.
type fatal interface {
	Helper()
	Fatalf(string, ...any)
}

func events(t fatal, text string) []Event {
	t.Helper()
	list, err := ParseEvents(0, text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return list
}

func options(t fatal, partitions int32, text string, strategies ...string) Options {
	t.Helper()
	return Options{
		MarketTopic: testMarket, NotificationTopic: testNotes,
		MarketPartitions: partitions, NotificationPartitions: partitions,
		Events: events(t, text), Strategies: strategies,
		MarketPartitioner: "murmur2", NotificationPartitioner: "murmur2",
		TicksPerNotification: 10,
	}
}

// run plans without further histories, which most tests have no use for.
func run(t fatal, o Options) Report {
	t.Helper()
	p, err := newPlanner(o)
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	p.histories = 0
	r, err := p.run(context.Background())
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	return r
}

// onlyTopics is what sarama's own strategies look at, but for sticky.
func onlyTopics(g *group) map[string]sarama.ConsumerGroupMemberMetadata {
	metas := make(map[string]sarama.ConsumerGroupMemberMetadata)
	for _, p := range g.procs {
		metas[p.memberID] = sarama.ConsumerGroupMemberMetadata{Topics: g.topics}
	}
	return metas
}

func ownedBy(g *group) map[string]map[string][]int32 {
	owned := make(map[string]map[string][]int32)
	for _, p := range g.procs {
		owned[p.memberID] = p.owned
	}
	return owned
}

// canonical writes a plan down so that equal ones are equal.
func canonical(plan map[string]map[string][]int32) string {
	var b strings.Builder
	for _, member := range slices.Sorted(maps.Keys(plan)) {
		for _, topic := range slices.Sorted(maps.Keys(plan[member])) {
			if partitions := slices.Sorted(slices.Values(plan[member][topic])); len(partitions) > 0 {
				fmt.Fprintf(&b, "%s %s %v\n", member, topic, partitions)
			}
		}
	}
	return b.String()
}

// The reference is sarama's strategy alone, asked here and not by way of assign.
func TestSimulationIsSaramasOwn(t *testing.T) {
	for name, strategy := range map[string]sarama.BalanceStrategy{
		assign.Range:      sarama.NewBalanceStrategyRange(),
		assign.RoundRobin: sarama.NewBalanceStrategyRoundRobin(),
	} {
		rapid.Check(t, func(t *rapid.T) {
			counts := map[string]int32{
				testMarket: rapid.Int32Range(1, 24).Draw(t, "market"),
				testNotes:  rapid.Int32Range(1, 24).Draw(t, "notes"),
			}
			g := newGroup(name, testTopics(), counts, inOrder)
			for _, e := range drawEvents(t) {
				if _, err := g.apply(context.Background(), e); err != nil {
					t.Fatalf("%v", err)
				}
				want, err := strategy.Plan(onlyTopics(g), g.partitions)
				if err != nil {
					t.Fatalf("sarama: %v", err)
				}
				if got, want := canonical(ownedBy(g)), canonical(want); got != want {
					t.Fatalf("%s after %q:\n%s\nsarama says\n%s", name, e.Text, got, want)
				}
			}
		})
	}
}

// sarama's sticky follows the order of Go's maps, so there is no one plan to
// compare with: what the simulation came to must be among what sarama alone
// comes to, given what each member had and in which generation.
func TestSimulationIsSaramasOwnSticky(t *testing.T) {
	const draws = 50_000
	g := newGroup(assign.Sticky, testTopics(), map[string]int32{testMarket: 3, testNotes: 3}, inOrder)
	for _, e := range events(t, "2,3,-m2,3,2,3,4,2,-m1") {
		had := ownedBy(g)
		if _, err := g.apply(context.Background(), e); err != nil {
			t.Fatal(err)
		}
		metas := onlyTopics(g)
		for id, owned := range had {
			meta, there := metas[id]
			if !there {
				continue
			}
			data, err := sarama.NewBalanceStrategySticky().AssignmentData(id, owned, g.generation-1)
			if err != nil {
				t.Fatal(err)
			}
			meta.UserData = data
			metas[id] = meta
		}
		got, same := canonical(ownedBy(g)), false
		for i := 0; i < draws && !same; i++ {
			plan, err := sarama.NewBalanceStrategySticky().Plan(metas, g.partitions)
			if err != nil {
				t.Fatal(err)
			}
			same = canonical(plan) == got
		}
		if !same {
			t.Fatalf("after %q sarama never comes to\n%s", e.Text, got)
		}
	}
}

func drawEvents(t *rapid.T) []Event {
	var words []string
	present, ever := 0, 0
	numbers := []int{}
	add := func(n int) { numbers = append(numbers, n); present++ }
	for range rapid.IntRange(1, 6).Draw(t, "events") {
		n := rapid.IntRange(1, 9).Draw(t, "scale to")
		if present > 1 && rapid.Bool().Draw(t, "one leaves") {
			i := rapid.IntRange(0, present-1).Draw(t, "who")
			words = append(words, fmt.Sprintf("-m%d", numbers[i]))
			numbers = slices.Delete(numbers, i, i+1)
			present--
			continue
		}
		words = append(words, fmt.Sprint(n))
		for present < n {
			ever++
			add(ever)
		}
		numbers, present = numbers[:n], n
	}
	return events(t, strings.Join(words, ","))
}

// What issue and design say of round-robin: over 4 members and 6 + 6 partitions
// no notification meets its price, over 3 all do, by coincidence.
func TestRoundRobinByCoincidence(t *testing.T) {
	for members, want := range map[string]int{"2": 6, "3": 6, "4": 0, "5": 0, "6": 6} {
		got := run(t, options(t, 6, members, assign.RoundRobin, assign.Copartition)).Steps[0].Strategies
		if got[0].Colocated != want || got[0].LocalShare != float64(want)/6 {
			t.Errorf("%s members: %d of %d together, %v local; want %d", members, got[0].Colocated, got[0].Partitions, got[0].LocalShare, want)
		}
		if got[1].Colocated != 6 || got[1].LocalShare != 1 {
			t.Errorf("%s members, copartition: %d together, %v local", members, got[1].Colocated, got[1].LocalShare)
		}
	}
}

// The fifth member's id sorts anywhere among four, and each place is as likely:
// the mean over the five is what a group of random ids comes to.
func TestFifthMemberOnAverage(t *testing.T) {
	for strategy, want := range map[string]float64{assign.Range: 4.6, assign.Copartition: 2} {
		total := 0
		for place := range 5 {
			name := func(n int) string {
				if n == 5 {
					return fmt.Sprintf("%02d", 2*place+1)
				}
				return fmt.Sprintf("%02d", 2*n)
			}
			p, err := newPlanner(options(t, 12, "4,5", strategy))
			if err != nil {
				t.Fatal(err)
			}
			outcomes, err := p.history(context.Background(), strategy, name, nil)
			if err != nil {
				t.Fatal(err)
			}
			if outcomes[1].MovedMinimum != 2 {
				t.Errorf("%s: at least %d move, want 2", strategy, outcomes[1].MovedMinimum)
			}
			total += outcomes[1].Moved
		}
		if got := float64(total) / 5; got != want {
			t.Errorf("%s: %v move on average, want %v", strategy, got, want)
		}
		r, err := Run(context.Background(), options(t, 12, "4,5", strategy))
		if err != nil {
			t.Fatal(err)
		}
		reported := r.Steps[1].Strategies[0].Mean.Moved
		if reported < 0.9*want || reported > 1.1*want {
			t.Errorf("%s: the report has %v on average, want about %v", strategy, reported, want)
		}
	}
}

func TestEveryStrategyMovesAtLeastTheMinimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t, rapid.Int32Range(1, 24).Draw(t, "partitions"), "1", assign.Strategies()...)
		o.Events = drawEvents(t)
		equal := rapid.Bool().Draw(t, "equal counts")
		if !equal {
			o.NotificationPartitions = rapid.Int32Range(1, 24).Draw(t, "notes")
			equal = o.NotificationPartitions == o.MarketPartitions
		}
		for _, step := range run(t, o).Steps {
			for _, s := range step.Strategies {
				if s.Moved < s.MovedMinimum {
					t.Fatalf("%s moved %d after %q, which is below the minimum of %d: %v", s.Name, s.Moved, step.Event, s.MovedMinimum, s.Ownership)
				}
				if !equal != (s.Problem != "") {
					t.Fatalf("%s: equal counts %t, problem %q", s.Name, equal, s.Problem)
				}
				if s.Name == assign.Copartition {
					checkCopartition(t, s, step.Members, equal)
				}
			}
		}
	})
}

func checkCopartition(t *rapid.T, s StrategyOutcome, members int, equal bool) {
	if !equal {
		// A new group has no indices to go on with.
		if s.Colocated != 0 || s.Idle != members {
			t.Fatalf("assigned in spite of unequal counts: %+v", s)
		}
		return
	}
	if s.Moved != s.MovedMinimum || s.Colocated != s.Partitions || s.LocalShare != 1 {
		t.Fatalf("%d of %d moved, %d of %d together, %v local", s.Moved, s.MovedMinimum, s.Colocated, s.Partitions, s.LocalShare)
	}
	if s.Max-s.Min > 1 || s.Idle != max(0, members-s.Partitions) || s.Generations > 2 {
		t.Fatalf("%d to %d tasks, %d of %d members idle, %d generations", s.Min, s.Max, s.Idle, members, s.Generations)
	}
}

// A member that comes back is a new process: what the old one was told last is
// gone with it, and with it sarama's sticky would give it its old partitions.
func TestRestartForgets(t *testing.T) {
	for _, strategy := range []string{assign.Copartition, assign.Sticky} {
		g := newGroup(strategy, testTopics(), map[string]int32{testMarket: 4, testNotes: 4}, inOrder)
		told := func() []byte {
			data, err := g.procs[1].strategy.(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData(g.topics)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
		for _, e := range events(t, "1,2") {
			if _, err := g.apply(context.Background(), e); err != nil {
				t.Fatal(err)
			}
		}
		remembers := len(told())
		g.procs = g.procs[:1]
		if err := g.start(2); err != nil {
			t.Fatal(err)
		}
		if forgot := len(told()); forgot >= remembers || g.procs[1].owned != nil {
			t.Errorf("%s: %d bytes of memory before the restart, %d after", strategy, remembers, forgot)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no partitions":    func(o *Options) { o.MarketPartitions = 0 },
		"too many":         func(o *Options) { o.NotificationPartitions = MaxPartitions + 1 },
		"one topic twice":  func(o *Options) { o.MarketTopic = o.NotificationTopic },
		"nobody":           func(o *Options) { o.Events = nil },
		"no strategy":      func(o *Options) { o.Strategies = nil },
		"unknown strategy": func(o *Options) { o.Strategies = []string{"modulo"} },
		"strategy twice":   func(o *Options) { o.Strategies = []string{assign.Range, assign.Range} },
		"negative ticks":   func(o *Options) { o.TicksPerNotification = -1 },
		"one rate":         func(o *Options) { o.PeakRate = 5 },
		"unknown hash":     func(o *Options) { o.MarketPartitioner = "md5" },
		"unknowable keys":  func(o *Options) { o.MarketPartitioner = placement.Custom },
		"reserved beyond": func(o *Options) {
			o.Load.Symbols = []Weight{{"A", 1}}
			o.Reserved = []placement.Reserved{{Partition: 6, Symbols: [][]byte{[]byte("A")}}}
		},
	} {
		o := options(t, 6, "4", assign.Copartition)
		change(&o)
		if _, err := Run(context.Background(), o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, options(t, 6, "4", assign.Copartition)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// The first plan of a large group, and for copartition one that moves something.
func BenchmarkRun500x10000(b *testing.B) {
	for _, one := range []struct{ strategy, events string }{
		{assign.Copartition, "500"}, {assign.Copartition, "500,501"}, {assign.Sticky, "500"},
	} {
		b.Run(one.strategy+"/"+one.events, func(b *testing.B) {
			o := options(b, 10_000, one.events, one.strategy)
			for b.Loop() {
				run(b, o)
			}
		})
	}
}

// One call of sarama's sticky strategy cannot be interrupted; Run can.
func TestRunEndsWithItsContext(t *testing.T) {
	o := options(t, 20_000, "2000", "sticky")
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	heard := 0
	o.Progress = func(string) {
		heard++
		cancel(cause)
	}
	if _, err := Run(ctx, o); !errors.Is(err, cause) {
		t.Errorf("error %v, want %v", err, cause)
	}
	if heard != 1 {
		t.Errorf("heard of progress %d times, want once", heard)
	}
}

func TestRatesHaveBounds(t *testing.T) {
	for _, c := range []struct {
		peak, member float64
		good         bool
	}{
		{0, 0, true},
		{MinRate, MaxRate, true},
		{MaxRate, MinRate, true},
		{1000, 0, false},
		{0, 1000, false},
		{-1, -1, false},
		{math.Inf(1), 1, false},
		{1, math.Inf(1), false},
		{math.NaN(), 1, false},
		{1e300, 1e-300, false},
	} {
		o := options(t, 6, "4", "copartition")
		o.PeakRate, o.MemberRate = c.peak, c.member
		report, err := Run(context.Background(), o)
		if (err == nil) != c.good || err != nil && !errors.Is(err, ErrOptions) {
			t.Errorf("%v and %v: %v", c.peak, c.member, err)
		}
		if c.good && c.peak > 0 && report.Sizing.MembersNeeded < 1 {
			t.Errorf("%v and %v: %d members", c.peak, c.member, report.Sizing.MembersNeeded)
		}
	}
}
