package assign

import (
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"joiner/internal/wire"
)

// Under sarama's own strategies every partition has one owner whatever comes
// and goes, and the directory tells the truth.
func TestModelWrapped(t *testing.T) {
	for _, name := range []string{Range, RoundRobin, Sticky} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				n := rapid.Int32Range(1, 12).Draw(t, "partitions")
				counts := pairCounts(n)
				g := newGroup(t, name, true, counts)
				g.start(pair(), pair())
				anyone := func(members []*proc) *proc { return rapid.SampledFrom(members).Draw(t, "leader") }
				for range rapid.IntRange(1, 6).Draw(t, "steps") {
					step(t, g, false)
					g.settle(anyone)
					checkDirectory(t, g.present(), g.ownership(), pair(), g.present()[0].last.Directory)
					for topic, owners := range g.ownership() {
						if slices.Contains(owners, "") {
							t.Fatalf("%s has no owner: %v", topic, owners)
						}
					}
				}
			})
		})
	}
}

func TestStickyStaysStickyInsideOurData(t *testing.T) {
	g := newGroup(t, Sticky, true, pairCounts(12))
	for range 4 {
		g.start(pair(), pair())
	}
	g.settle(first)
	before := g.ownership()
	g.settle(first)
	if diff := cmp.Diff(before, g.ownership()); diff != "" {
		t.Errorf("a generation without a change moves (-before +after):\n%s", diff)
	}
	g.start(pair(), pair())
	g.settle(first)
	kept, same := 0, g.ownership()
	for topic, owners := range before {
		for p, owner := range owners {
			if same[topic][p] == owner {
				kept++
			}
		}
	}
	// 24 partitions over 4, then 5 members: 4 or 5 leave, all others stay.
	if kept < 18 {
		t.Errorf("only %d of 24 partitions stayed", kept)
	}
}

// foreign is a consumer that is not a joiner, with sarama's strategy alone. It
// sends up whatever it was last sent, as sarama does.
type foreign struct {
	strategy sarama.BalanceStrategy
	userData []byte
}

// mixedGroup runs one generation of a joiner's strategy and a foreign consumer.
func mixedGroup(t *testing.T, ours sarama.BalanceStrategy, f *foreign, generation int32, oursLeads bool) map[string]map[string][]int32 {
	t.Helper()
	up, err := ours.(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData(pair())
	if err != nil {
		t.Fatal(err)
	}
	leader := f.strategy
	if oursLeads {
		leader = ours
	}
	plan, err := leader.Plan(map[string]sarama.ConsumerGroupMemberMetadata{
		"ours": {Topics: pair(), UserData: up}, "foreign": {Topics: pair(), UserData: f.userData},
	}, map[string][]int32{topicMarket: upTo(6), topicNotes: upTo(6)})
	if err != nil {
		t.Fatalf("generation %d, ours leads %t: %v", generation, oursLeads, err)
	}
	data, err := leader.AssignmentData("ours", plan["ours"], generation)
	if err != nil {
		t.Fatal(err)
	}
	ours.(sarama.OnAssignmentBalanceStrategy).OnAssignment(
		&sarama.ConsumerGroupMemberAssignment{Topics: plan["ours"], UserData: data}, generation)
	if f.userData, err = leader.AssignmentData("foreign", plan["foreign"], generation); err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestRollingChangeFromForeignConsumers(t *testing.T) {
	for name, inner := range map[string]func() sarama.BalanceStrategy{
		Range: sarama.NewBalanceStrategyRange, RoundRobin: sarama.NewBalanceStrategyRoundRobin, Sticky: sarama.NewBalanceStrategySticky,
	} {
		t.Run(name, func(t *testing.T) {
			var last Assignment
			strategies, err := New(Options{
				Strategy: Copartition, UpgradeFrom: []string{name}, Topics: pair(),
				OnAssignment: func(a Assignment) { last = a },
			})
			if err != nil {
				t.Fatal(err)
			}
			f := &foreign{strategy: inner()}
			ours := strategies[1]
			mixedGroup(t, ours, f, 1, false)
			if last.Directory != nil || last.Generation != 1 || last.Strategy != name {
				t.Errorf("a foreign leader's assignment: %+v", last)
			}
			before := last.Claims
			mixedGroup(t, ours, f, 2, true)
			if name == Sticky {
				if last.Directory != nil {
					t.Error("sticky sends sarama's bytes alone, and yet there is a directory")
				}
			} else if d := last.Directory; d == nil || len(d.Members) != 2 || !d.Members[slices.IndexFunc(d.Members, func(m Member) bool { return m.ID == "foreign" })].Foreign ||
				slices.ContainsFunc(d.Members, func(m Member) bool { return m.ID != "foreign" && m.Foreign }) {
				t.Errorf("led by a joiner: directory %+v", d)
			}
			if diff := cmp.Diff(before, last.Claims); diff != "" {
				t.Errorf("the change of leader moved (-before +after):\n%s", diff)
			}
			// The foreign consumer got nothing of ours, and can lead again.
			if strings.Contains(string(f.userData), string(wire.Header(wire.KindDirectory))) {
				t.Errorf("the foreign consumer was sent %q", f.userData)
			}
			mixedGroup(t, ours, f, 3, false)
			if diff := cmp.Diff(before, last.Claims); diff != "" {
				t.Errorf("the foreign leader moved (-before +after):\n%s", diff)
			}
		})
	}
}

// A process that changes from a strategy under which it had whole indices to
// copartition keeps them.
func TestChangeOfStrategyMovesNothing(t *testing.T) {
	for _, name := range []string{Range, Sticky} {
		t.Run(name, func(t *testing.T) {
			members := make(map[string]sarama.ConsumerGroupMemberMetadata)
			want := make(map[string]map[string][]int32)
			for i, id := range []string{"c", "a", "b"} {
				strategies, err := New(Options{Strategy: Copartition, UpgradeFrom: []string{name}, Topics: pair()})
				if err != nil {
					t.Fatal(err)
				}
				had := []int32{int32(5 - i), int32(i)}
				want[id] = map[string][]int32{topicMarket: sortedCopy(had), topicNotes: sortedCopy(had)}
				strategies[1].(sarama.OnAssignmentBalanceStrategy).OnAssignment(
					&sarama.ConsumerGroupMemberAssignment{Topics: map[string][]int32{topicMarket: had, topicNotes: had}}, 5)
				data, err := strategies[0].(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData(pair())
				if err != nil {
					t.Fatal(err)
				}
				members[id] = sarama.ConsumerGroupMemberMetadata{Topics: pair(), UserData: data}
			}
			strategies, err := New(Options{Strategy: Copartition})
			if err != nil {
				t.Fatal(err)
			}
			plan, err := strategies[0].Plan(members, map[string][]int32{topicMarket: upTo(6), topicNotes: upTo(6)})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, map[string]map[string][]int32(plan)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func sortedCopy(list []int32) []int32 { return slices.Sorted(slices.Values(list)) }

// While a group changes from eager to cooperative, eager members come with what
// they had until now and cooperative ones with what they still have.
func TestEagerAndCooperativeMembersTogether(t *testing.T) {
	eager := userData{Identity: Identity{ID: "eager"}, joined: pair(), eager: true, held: held{since: 9, indices: []int32{0, 1, 2, 3}}}
	coop := userData{Identity: Identity{ID: "coop"}, joined: pair()}
	owned := []int32{3, 4, 5}
	members := map[string]sarama.ConsumerGroupMemberMetadata{
		"e": {Version: 2, Topics: pair(), UserData: eager.encode(), GenerationID: -1},
		"c": {Version: 2, Topics: pair(), UserData: coop.encode(), GenerationID: 4, OwnedPartitions: []*sarama.OwnedPartition{
			{Topic: topicMarket, Partitions: owned}, {Topic: topicNotes, Partitions: owned},
		}},
	}
	strategies, err := New(Options{Strategy: Copartition})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := strategies[0].Plan(members, map[string][]int32{topicMarket: upTo(6), topicNotes: upTo(6)})
	if err != nil {
		t.Fatal(err)
	}
	// Index 3 runs with the cooperative one, whatever the other remembers.
	for id, want := range map[string][]int32{"e": {0, 1, 2}, "c": {3, 4, 5}} {
		for _, topic := range pair() {
			if !slices.Equal(plan[id][topic], want) {
				t.Errorf("%s has %v of %s, want %v", id, plan[id][topic], topic, want)
			}
		}
	}
}

// Halves with different members are withheld until both have let go.
func TestSplitIndexIsNeverGivenAway(t *testing.T) {
	u := func(id string) []byte { d := userData{Identity: Identity{ID: id}, joined: pair()}; return d.encode() }
	members := map[string]sarama.ConsumerGroupMemberMetadata{
		"x": {Version: 2, Topics: pair(), UserData: u("x"), GenerationID: 4, OwnedPartitions: []*sarama.OwnedPartition{{Topic: topicMarket, Partitions: []int32{0}}}},
		"y": {Version: 2, Topics: pair(), UserData: u("y"), GenerationID: 5, OwnedPartitions: []*sarama.OwnedPartition{{Topic: topicNotes, Partitions: []int32{0}}}},
	}
	strategies, err := New(Options{Strategy: Copartition})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := strategies[0].Plan(members, map[string][]int32{topicMarket: upTo(1), topicNotes: upTo(1)})
	if err != nil {
		t.Fatal(err)
	}
	for id, topics := range plan {
		if len(topics) > 0 {
			t.Errorf("%s was given %v", id, topics)
		}
	}
}

// Under sticky a joiner that changes over looks like any other consumer of the same
// topics; one of fewer topics is none.
func TestForeignUnderSticky(t *testing.T) {
	for name, want := range map[string][]string{Sticky: {"few"}, Range: {"alike", "few"}} {
		w := &wrapper{member: &member{name: name}}
		peers := peersOf(map[string]sarama.ConsumerGroupMemberMetadata{
			"alike": {Topics: pair()}, "few": {Topics: pair()[:1]},
			"ours": {Topics: pair(), UserData: (&userData{Identity: Identity{ID: "ours"}}).encode()},
		})
		w.tellForeign(peers, map[string]int32{topicMarket: 6, topicNotes: 6})
		var got []string
		for _, p := range peers {
			if p.Foreign {
				got = append(got, p.ID)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A foreign consumer may say what it likes under sticky.
func TestStickyLeavesOutWhatItCannotRead(t *testing.T) {
	strategies, err := New(Options{Strategy: Sticky})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"garbage": {1, 2, 3}, "huge": {0x7f, 0xff, 0xff, 0xff}, "empty": {},
		"a directory": wire.Header(wire.KindDirectory), "a later joiner's": otherVersion(2)(wire.Header(wire.KindUserData)),
	} {
		plan, err := strategies[0].Plan(map[string]sarama.ConsumerGroupMemberMetadata{
			"a": {Topics: pair(), UserData: data}, "b": {Topics: pair()},
		}, map[string][]int32{topicMarket: upTo(3), topicNotes: upTo(3)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		for _, topics := range plan {
			n += len(topics[topicMarket]) + len(topics[topicNotes])
		}
		if n != 6 {
			t.Errorf("%s: %d of 6 partitions assigned", name, n)
		}
	}
}

// Whoever leads, what sarama's sticky was sent comes back to it.
func TestStickyEchoesWhatItWasSent(t *testing.T) {
	sent, err := sarama.NewBalanceStrategySticky().AssignmentData("", map[string][]int32{topicMarket: {1}}, 3)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"a foreign leader": sent,
		"a joiner":         wire.AppendField(wire.Header(wire.KindDirectory), tagInnerDown, sent),
	} {
		for _, bare := range []bool{false, true} {
			opts := Options{Strategy: Sticky}
			if bare {
				opts = Options{Strategy: Copartition, UpgradeFrom: []string{Sticky}}
			}
			strategies, err := New(opts)
			if err != nil {
				t.Fatal(err)
			}
			s := strategies[len(strategies)-1].(*wrapper)
			s.OnAssignment(&sarama.ConsumerGroupMemberAssignment{UserData: data}, 3)
			up, err := s.SubscriptionUserData(pair())
			if err != nil {
				t.Fatal(err)
			}
			if !bare {
				u, err := decodeUserData(up)
				if err != nil {
					t.Fatal(err)
				}
				up = u.inner
			}
			if !slices.Equal(up, sent) {
				t.Errorf("%s, bare %t: sends % x up, was sent % x", name, bare, up, sent)
			}
		}
	}
}
