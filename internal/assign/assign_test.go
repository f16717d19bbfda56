package assign

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"joiner/internal/wire"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func pairCounts(n int32) map[string]int32 {
	return map[string]int32{topicMarket: n, topicNotes: n}
}

func pairFormer(was ...int32) map[string][]int32 {
	return map[string][]int32{topicMarket: was, topicNotes: was}
}

func TestNewRefuses(t *testing.T) {
	for name, opts := range map[string]Options{
		"unknown strategy":  {Strategy: "cooperative-sticky"},
		"none":              {},
		"unknown to change": {Strategy: Copartition, UpgradeFrom: []string{"random"}},
		"listed twice":      {Strategy: Range, UpgradeFrom: []string{Range}},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// sarama itself says whether a list has a protocol in common.
func TestSaramaAcceptsEveryList(t *testing.T) {
	for _, strategy := range Strategies() {
		for _, from := range append([]string{""}, Strategies()...) {
			if from == strategy {
				continue
			}
			opts := Options{Strategy: strategy}
			names := []string{strategy}
			if from != "" {
				opts.UpgradeFrom = []string{from}
				names = append(names, from)
			}
			strategies, err := New(opts)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range strategies {
				if want := strings.Replace(names[i], Copartition, ProtocolName, 1); s.Name() != want {
					t.Errorf("%v: protocol %q, want %q", names, s.Name(), want)
				}
			}
			cfg := sarama.NewConfig()
			cfg.Consumer.Group.Rebalance.GroupStrategies = strategies
			if err := cfg.Validate(); err != nil {
				t.Errorf("%v: %v", names, err)
			}
		}
	}
}

func TestFifthMemberTakesTheFewest(t *testing.T) {
	g := newGroup(t, Copartition, false, pairCounts(12))
	for range 4 {
		g.start(pair(), pair())
	}
	g.settle(first)
	before := g.ownership()
	g.start(pair(), pair())
	if generations := g.settle(first); generations != 2 {
		t.Errorf("%d generations, want 2", generations)
	}
	var ids []string
	for _, p := range g.procs {
		ids = append(ids, p.memberID)
	}
	if got, want := Moves(before, g.ownership(), ids), 2; got != want || MinimumMoves(before, ids) != want {
		t.Errorf("%d moves, minimum %d, want %d", got, MinimumMoves(before, ids), want)
	}
	if got := Colocated(g.ownership(), pair()...); got != 12 {
		t.Errorf("%d of 12 together", got)
	}
}

func TestMovingIsWithheldAndReported(t *testing.T) {
	g := newGroup(t, Copartition, false, pairCounts(4))
	old := g.start(pair(), pair())
	g.settle(first)
	joined := g.start(pair(), pair())
	if !g.generate(old) {
		t.Fatal("nobody has to let go")
	}
	if len(joined.owned) != 0 {
		t.Errorf("the new member got %v while the old one has all", joined.owned)
	}
	d := joined.last.Directory
	want := map[string][]int32{topicMarket: {2, 3}, topicNotes: {2, 3}}
	if diff := cmp.Diff(want, d.Moving); diff != "" {
		t.Errorf("moving (-want +got):\n%s", diff)
	}
	if _, ok := d.Owner(topicMarket, 2); ok {
		t.Error("a moving index has an owner")
	}
	if g.generate(old) {
		t.Error("still moving in the second generation")
	}
	if diff := cmp.Diff(want, joined.owned); diff != "" {
		t.Errorf("new member's (-want +got):\n%s", diff)
	}
}

func TestIdleMembersHearToo(t *testing.T) {
	for _, strategy := range Strategies() {
		g := newGroup(t, strategy, strategy != Copartition, pairCounts(1))
		for range 4 {
			g.start(pair(), pair())
		}
		g.settle(first)
		for _, p := range g.procs {
			if d := p.last.Directory; d == nil || len(d.Members) != 4 {
				t.Errorf("%s: member with %v hears %+v", strategy, p.owned, d)
			}
		}
	}
}

func TestEqualKnowledgeIsEqualBytes(t *testing.T) {
	for _, eager := range []bool{false, true} {
		g := newGroup(t, Copartition, eager, pairCounts(6))
		p := g.start(pair(), pair())
		q := g.start(pair(), pair())
		g.settle(first)
		said := func(p *proc) string {
			return string(g.metadata()[p.memberID].UserData)
		}
		p1, q1 := said(p), said(q)
		g.settle(first) // a generation that changes nothing
		if said(p) != p1 || said(q) != q1 {
			t.Errorf("eager %t: user data changed though nothing else did", eager)
		}
	}
}

func TestRestoresPlacesAfterEverybodyLostMembership(t *testing.T) {
	g := newGroup(t, Copartition, false, pairCounts(12))
	for range 4 {
		g.start(pair(), pair())
		g.settle(first) // one by one, so that nobody's indices follow each other
	}
	want := make(map[*proc]map[string][]int32)
	for i, p := range g.procs {
		want[p] = p.owned
		p.owned, p.generation = nil, -1
		p.memberID = fmt.Sprintf("again-%d", 9-i)
	}
	if n := g.settle(first); n != 1 {
		t.Errorf("%d generations", n)
	}
	for p, owned := range want {
		if diff := cmp.Diff(owned, p.owned); diff != "" {
			t.Errorf("%s (-before +after):\n%s", p.memberID, diff)
		}
	}
}

// owning is a cooperative member with claims that run in all of its topics.
func owning(u userData, indices ...int32) sarama.ConsumerGroupMemberMetadata {
	u.joined = pair()
	return sarama.ConsumerGroupMemberMetadata{
		Version: 2, Topics: pair(), UserData: u.encode(), GenerationID: 4,
		OwnedPartitions: []*sarama.OwnedPartition{{Topic: topicMarket, Partitions: indices}, {Topic: topicNotes, Partitions: indices}},
	}
}

func planOf(t *testing.T, members map[string]sarama.ConsumerGroupMemberMetadata, market, notes int32) (sarama.BalanceStrategyPlan, Directory) {
	t.Helper()
	strategies, err := New(Options{Strategy: Copartition})
	if err != nil {
		t.Fatal(err)
	}
	topics := make(map[string][]int32)
	for _, m := range members {
		for _, topic := range m.Topics {
			topics[topic] = upTo(market)
		}
	}
	topics[topicNotes] = upTo(notes)
	plan, err := strategies[0].Plan(members, topics)
	if err != nil {
		t.Fatal(err)
	}
	data, err := strategies[0].AssignmentData("", nil, 5)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeDirectory(data)
	if err != nil {
		t.Fatal(err)
	}
	return plan, got.directory
}

// What runs goes before what is only remembered: the larger share is for the
// one that would have to let go, and wishes come true where nobody has to.
func TestWishesComeSecond(t *testing.T) {
	lost := userData{Identity: Identity{ID: "a"}, held: held{since: 3, indices: []int32{2, 4}}}
	plan, _ := planOf(t, map[string]sarama.ConsumerGroupMemberMetadata{
		"a": owning(lost),
		"b": owning(userData{Identity: Identity{ID: "b"}}, 0, 1, 2),
	}, 5, 5)
	if got := plan["b"][topicNotes]; !slices.Equal(got, []int32{0, 1, 2}) {
		t.Errorf("b, that had 0, 1 and 2, keeps %v", got)
	}
	if got := plan["a"][topicNotes]; !slices.Equal(got, []int32{3, 4}) {
		t.Errorf("a gets %v", got)
	}

	lost.held.indices = []int32{3, 4, 5}
	plan, _ = planOf(t, map[string]sarama.ConsumerGroupMemberMetadata{
		"a": owning(lost), "b": owning(userData{Identity: Identity{ID: "b"}}, 0, 1, 2), "c": owning(userData{Identity: Identity{ID: "c"}}),
	}, 7, 7)
	if got := plan["b"][topicNotes]; !slices.Equal(got, []int32{0, 1, 2}) {
		t.Errorf("b has to let go for a wish: %v", got)
	}

	lost.ID = "z"
	plan, _ = planOf(t, map[string]sarama.ConsumerGroupMemberMetadata{
		"z": owning(lost), "b": owning(userData{Identity: Identity{ID: "b"}}, 0), "c": owning(userData{Identity: Identity{ID: "c"}}),
	}, 7, 7)
	if got := plan["z"][topicNotes]; !slices.Equal(got, []int32{3, 4, 5}) {
		t.Errorf("z wished for 3, 4 and 5 and gets %v", got)
	}
}

// Claims that run are knowledge enough of what the group had.
func TestUnequalTopicsKeepWhatRuns(t *testing.T) {
	plan, d := planOf(t, map[string]sarama.ConsumerGroupMemberMetadata{"a": owning(userData{}, 1, 3, 7)}, 8, 6)
	if got := plan["a"][topicMarket]; !slices.Equal(got, []int32{1, 3}) {
		t.Errorf("keeps %v, want 1 and 3 (7 has no other half)", got)
	}
	if d.Problem == "" || len(d.Unowned) != 0 {
		t.Errorf("problem %q, unowned %v", d.Problem, d.Unowned)
	}
}

// A newer version that joins more topics leads nobody into a standstill.
func TestUnreadableMemberWithMoreTopics(t *testing.T) {
	newer := owning(userData{})
	newer.Topics = []string{topicExtra, topicMarket, topicNotes}
	newer.UserData = otherVersion(2)(newer.UserData)
	plan, d := planOf(t, map[string]sarama.ConsumerGroupMemberMetadata{
		"a": owning(userData{}, 0, 1, 2, 3), "b": owning(userData{}), "newer": newer,
	}, 4, 4)
	if got := plan["a"][topicNotes]; !slices.Equal(got, []int32{0, 1}) {
		t.Errorf("a keeps %v", got)
	}
	if got := d.Unowned[topicExtra]; !slices.Equal(got, upTo(4)) {
		t.Errorf("unowned %v of the topic that only the unreadable one reads", got)
	}
}

func TestGrowth(t *testing.T) {
	counts := pairCounts(6)
	g := newGroup(t, Copartition, false, counts)
	g.start(pair(), pair())
	g.start(pair(), pair())
	g.settle(first)

	counts[topicMarket] = 12
	g.settle(first)
	d := g.procs[0].last.Directory
	if !strings.Contains(d.Problem, topicMarket+" has 12") || !strings.Contains(d.Problem, topicNotes+" has 6") {
		t.Errorf("problem %q names neither topics nor counts", d.Problem)
	}
	if got := Colocated(g.ownership(), pair()...); got != 6 {
		t.Errorf("%d indices while the counts differ, want the 6 there were", got)
	}
	// Whoever knew the group goes; what it knew stays, in members that were
	// idle as well.
	newcomer := g.start(pair(), pair())
	g.settle(first)
	for _, p := range slices.Clone(g.procs) {
		if p != newcomer {
			g.stop(p)
		}
	}
	g.settle(first)
	if got := Colocated(g.ownership(), pair()...); got != 6 {
		t.Errorf("%d indices with a new member alone, want the 6 there were", got)
	}

	counts[topicNotes] = 12
	g.settle(first)
	d = newcomer.last.Directory
	if d.Problem != "" || Colocated(g.ownership(), pair()...) != 12 {
		t.Errorf("not healed: %q, %v", d.Problem, g.ownership())
	}
	if diff := cmp.Diff(pairFormer(6), d.Former); diff != "" {
		t.Errorf("former counts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(pairCounts(12), d.Partitions); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestNewGroupWithUnequalTopicsOwnsNothing(t *testing.T) {
	for _, eager := range []bool{false, true} {
		counts := map[string]int32{topicMarket: 6, topicNotes: 8}
		g := newGroup(t, Copartition, eager, counts)
		p := g.start(pair(), pair())
		for range 3 { // and it does not come to own anything by and by
			if n := g.settle(first); n != 1 || len(p.owned) != 0 || p.last.Directory.Problem == "" {
				t.Fatalf("%d generations, owned %v, problem %q", n, p.owned, p.last.Directory.Problem)
			}
		}
		counts[topicMarket] = 8
		g.settle(first)
		if len(p.owned[topicNotes]) != 8 || p.last.Directory.Problem != "" {
			t.Errorf("not healed: %v, %q", p.owned, p.last.Directory.Problem)
		}
	}
}

func TestMissingTopicIsNoError(t *testing.T) {
	g := newGroup(t, Copartition, false, map[string]int32{topicMarket: 6})
	p := g.start(pair(), pair())
	g.settle(first)
	if len(p.owned) != 0 || !strings.Contains(p.last.Directory.Problem, topicNotes+" has 0") {
		t.Errorf("owned %v, problem %q", p.owned, p.last.Directory.Problem)
	}
}

// Each count that a topic had is remembered, the last ones where there are many.
func TestFormerCounts(t *testing.T) {
	c := counts{}.next(map[string]int32{"a": 6}, 6)
	for _, n := range []int32{8, 12} {
		c = c.next(map[string]int32{"a": n}, n)
	}
	if !slices.Equal(c.topics[0].was, []int32{8, 6}) {
		t.Errorf("6, 8 and 12: %+v", c)
	}
	for n := int32(13); n < 30; n++ {
		before := c
		c = c.next(map[string]int32{"a": n}, n)
		if want := before.topics[0].now; c.topics[0].last() != want || len(c.topics[0].was) > MaxFormer || !c.newer(before) {
			t.Fatalf("%d partitions: %+v", n, c)
		}
	}
	if want := []int32{28, 27, 26, 25, 24, 23, 22, 21}; !slices.Equal(c.topics[0].was, want) {
		t.Errorf("%v, want %v", c.topics[0].was, want)
	}
}

// A group that grows twice tells all its members both counts, a leader that has
// only just come included.
func TestGroupGrowsTwice(t *testing.T) {
	for _, strategy := range []string{Copartition, Range} {
		seen := pairCounts(6)
		g := newGroup(t, strategy, strategy != Copartition, seen)
		g.start(pair(), pair())
		g.settle(first)
		var p *proc
		for _, n := range []int32{8, 12} {
			seen[topicMarket], seen[topicNotes] = n, n
			p = g.start(pair(), pair())
			g.settle(newest)
		}
		if diff := cmp.Diff(pairFormer(8, 6), p.last.Directory.Former); diff != "" {
			t.Errorf("%s: former counts (-want +got):\n%s", strategy, diff)
		}
	}
}

func newest(members []*proc) *proc { return members[len(members)-1] }

// The first releases have one former count a topic. They read what is sent now,
// and what they pass on does not make a newer release forget the others.
func TestEarlierCountsBesideAnOldRelease(t *testing.T) {
	u := exampleUserData()
	u.counts.topics[0].was = []int32{8, 6, 4}
	data := u.encode()
	golden(t, "userdata_growths.v1.hex", data)
	if got, err := decodeUserData(data); err != nil || !slices.EqualFunc(got.counts.topics, u.counts.topics, topicCount.equal) {
		t.Fatalf("%+v, %v", got.counts, err)
	}
	r := exampleRoster()
	r.counts = u.counts
	golden(t, "directory_growths.v1.hex", r.data(42))
	down, err := decodeDirectory(r.data(42))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]int32{topicMarket: {8, 6, 4}, topicNotes: {6}}, down.directory.Former); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	fields, err := wire.Open(data, wire.KindUserData)
	if err != nil {
		t.Fatal(err)
	}
	old := wire.Header(wire.KindUserData)
	var passed counts
	if err := wire.EachField(fields, func(tag uint64, c *wire.Cursor) error {
		if tag != tagBefore {
			old = wire.AppendField(old, tag, c.Rest())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got, err := decodeUserData(old)
	if err != nil {
		t.Fatal(err)
	}
	if passed = got.counts; passed.topics[0].last() != 8 || len(passed.topics[0].was) != 1 {
		t.Errorf("an old release passes on %+v", passed)
	}
	if !u.counts.newer(passed) || passed.newer(u.counts) {
		t.Error("of the same knowledge the part is preferred to the whole")
	}
}

// What nobody can have written does not come into the counts.
func TestEarlierCountsThatMakeNoSense(t *testing.T) {
	c := counts{epoch: 1, topics: []topicCount{{name: "a", now: 12, was: []int32{8}}, {name: "b", now: 6}}}
	got := c.with(earlierCounts{"a": {6, 0, 5}, "b": {3}, "c": {1}})
	if !slices.Equal(got.topics[0].was, []int32{8, 6}) || got.topics[1].was != nil {
		t.Errorf("%+v", got)
	}
	long := counts{topics: []topicCount{{name: "a", now: 30, was: []int32{29}}}}.with(earlierCounts{"a": {28, 27, 26, 25, 24, 23, 22, 21, 20}})
	if n := len(long.topics[0].was); n != MaxFormer {
		t.Errorf("%d former counts", n)
	}
}

func TestCountsEpoch(t *testing.T) {
	var c counts
	c = c.next(map[string]int32{"a": 6}, 6)
	if same := c.next(map[string]int32{"a": 6}, 6); same.epoch != c.epoch {
		t.Error("nothing changed but the epoch")
	}
	grown := c.next(map[string]int32{"a": 12}, 12)
	if !grown.newer(c) || !slices.Equal(grown.topics[0].was, []int32{6}) {
		t.Errorf("after growth: %+v", grown)
	}
	if anew := grown.next(map[string]int32{"a": 3}, 3); len(anew.topics[0].was) > 0 {
		t.Errorf("a topic made anew has no former count: %+v", anew)
	}
	if gone := grown.next(map[string]int32{"a": 0}, 12); !gone.topics[0].equal(grown.topics[0]) {
		t.Errorf("a topic out of sight is forgotten: %+v", gone)
	}
}

// otherVersion is what a version with the given major would write, with fields
// that this one does not know.
func otherVersion(major byte) func([]byte) []byte {
	return func(data []byte) []byte {
		out := slices.Clone(data)
		out[0] = major
		out = wire.AppendField(out, 1000, []byte("from the future"))
		return wire.AppendField(out, 31, nil)
	}
}

func TestVersionsMixed(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	for _, eager := range []bool{false, true} {
		g := newGroup(t, Copartition, eager, pairCounts(12))
		a := g.start(pair(), pair())
		b := g.start(pair(), pair())
		b.mangle = otherVersion(1)
		g.settle(first)
		if len(a.owned[topicMarket]) != 6 || len(b.owned[topicMarket]) != 6 {
			t.Fatalf("v1.0 and v1.1 share %v, %v", a.owned, b.owned)
		}
		c := g.start(pair(), pair())
		c.mangle = otherVersion(2)
		a.strategy().(*copartition).log = zap.New(core)
		g.settle(func([]*proc) *proc { return a })
		if len(c.owned) != 0 {
			t.Errorf("eager %t: a member that cannot be read gained %v", eager, c.owned)
		}
		if len(a.owned[topicMarket]) != 6 || len(b.owned[topicMarket]) != 6 {
			t.Errorf("eager %t: the others have %v, %v", eager, a.owned, b.owned)
		}
		named := logs.FilterField(zap.String("member_id", c.memberID)).Len()
		if named == 0 {
			t.Errorf("eager %t: no log line names %s", eager, c.memberID)
		}
		if m, ok := c.last.Directory.Member(c.memberID); !ok || m.Address != "" {
			t.Errorf("eager %t: the unreadable member is listed as %+v, %t", eager, m, ok)
		}
		if eager {
			continue
		}
		// It keeps what it has: here because it was readable when it got it.
		b.mangle = otherVersion(2)
		had := b.owned
		g.stop(c)
		g.start(pair(), pair())
		g.settle(func([]*proc) *proc { return a })
		if diff := cmp.Diff(had, b.owned); diff != "" {
			t.Errorf("the unreadable member's own (-before +after):\n%s", diff)
		}
		if got := Colocated(g.ownership(), pair()...); got != 12 {
			t.Errorf("%d of 12 owned", got)
		}
	}
}

func TestUnknownFieldsOfTheDirectoryAreIgnored(t *testing.T) {
	r := exampleRoster()
	data := r.data(7)
	want, err := decodeDirectory(data)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeDirectory(otherVersion(1)(data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.directory, got.directory); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var version wire.VersionError
	if _, err := decodeDirectory(otherVersion(2)(data)); !errors.As(err, &version) || version.Version != 2 {
		t.Errorf("version 2: %v", err)
	}
	if _, err := decodeUserData(data); !errors.Is(err, wire.ErrForeign) {
		t.Errorf("a directory echoed as user data: %v", err)
	}
}

func TestDirectoryThatCannotBeReadIsNone(t *testing.T) {
	for name, data := range map[string][]byte{
		"none":    nil,
		"foreign": {0, 0, 0, 1, 2, 3},
		"later":   otherVersion(2)(wire.Header(wire.KindDirectory)),
		"broken":  append(wire.Header(wire.KindDirectory), tagMember, 200),
	} {
		var got Assignment
		strategies, err := New(Options{Strategy: Copartition, OnAssignment: func(a Assignment) { got = a }})
		if err != nil {
			t.Fatal(err)
		}
		strategies[0].(*copartition).OnAssignment(&sarama.ConsumerGroupMemberAssignment{
			Topics: map[string][]int32{topicMarket: {3, 1}}, UserData: data,
		}, 4)
		want := Assignment{Strategy: Copartition, Generation: 4, Claims: map[string][]int32{topicMarket: {1, 3}}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Anything may come as user data, in any place; a plan comes of it.
func TestPlanSurvivesAnyUserData(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, name := range Strategies() {
			strategies, err := New(Options{Strategy: name})
			if err != nil {
				t.Fatal(err)
			}
			good, err := strategies[0].(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData(pair())
			if err != nil {
				t.Fatal(err)
			}
			members := map[string]sarama.ConsumerGroupMemberMetadata{"good": {Topics: pair(), UserData: good}}
			for i := range rapid.IntRange(1, 3).Draw(t, "others") {
				data := rapid.SliceOf(rapid.Byte()).Draw(t, "data")
				if rapid.Bool().Draw(t, "looks like ours") {
					data = append(wire.Header(wire.KindUserData), data...)
				}
				members[fmt.Sprint(i)] = sarama.ConsumerGroupMemberMetadata{
					Version: 2, Topics: rapid.SampledFrom([][]string{pair(), {topicNotes}, nil}).Draw(t, "topics"), UserData: data,
					OwnedPartitions: []*sarama.OwnedPartition{nil, {Topic: topicNotes, Partitions: []int32{-1, 2, 99}}},
				}
			}
			topics := map[string][]int32{topicMarket: upTo(6), topicNotes: upTo(rapid.Int32Range(0, 7).Draw(t, "count"))}
			plan, err := strategies[0].Plan(members, topics)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for id := range members {
				if _, ok := plan[id]; !ok {
					t.Fatalf("%s: nothing for %q", name, id)
				}
				if _, err := strategies[0].AssignmentData(id, plan[id], 1); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
	})
}

// The least of all balanced ways to share, found by trying every choice of who
// gets a larger share.
func TestMinimumMovesAgainstAllChoices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := make([]string, rapid.IntRange(1, 6).Draw(t, "members"))
		for i := range members {
			members[i] = fmt.Sprint("m", i)
		}
		owners := rapid.SliceOfN(rapid.SampledFrom(append([]string{"", "gone"}, members...)), 0, 20).Draw(t, "owners")
		has := make(map[string]int)
		for _, o := range owners {
			has[o]++
		}
		share, larger := len(owners)/len(members), len(owners)%len(members)
		best := len(owners)
		for choice := range 1 << len(members) {
			n, lost := 0, 0
			for i, m := range members {
				quota := share
				if choice>>i&1 == 1 {
					quota++
					n++
				}
				lost += max(0, has[m]-quota)
			}
			if n == larger {
				best = min(best, lost)
			}
		}
		if got := MinimumMoves(Ownership{"a": owners, "b": owners}, members); got != best {
			t.Fatalf("%d, but %d can be had: %v among %v", got, best, owners, members)
		}
	})
}

func TestMovesAndColocated(t *testing.T) {
	before := Ownership{"a": {"x", "x", "y", "gone", ""}, "b": {"x", "y", "y", "gone", ""}}
	after := Ownership{"a": {"x", "y", "x", "x", "x"}, "b": {"x", "y", "x", "y", "x"}}
	if got := Moves(before, after, []string{"x", "y"}); got != 2 {
		t.Errorf("%d moves, want 2: indices 1 in part and 2", got)
	}
	if got := Colocated(before, "a", "b"); got != 3 {
		t.Errorf("%d together, want 3", got)
	}
	if got := Colocated(before, "a", "nothing"); got != 0 {
		t.Errorf("%d together with a topic that is not there", got)
	}
}

// golden compares with, or rewrites, a file of hexadecimal lines.
func golden(t *testing.T, name string, data []byte) {
	t.Helper()
	var text strings.Builder
	for chunk := range slices.Chunk(data, 16) {
		fmt.Fprintf(&text, "% x\n", chunk)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("%s: other versions of joiner read this format (-want +got):\n%s", path, diff)
	}
}

func exampleUserData() userData {
	return userData{
		Identity: Identity{ID: "joiner-0", Address: "joiner-0.joiner:8081", Instance: "joiner-0", Transactional: "g-joiner-0"},
		counts: counts{epoch: 3, planned: 12, topics: []topicCount{
			{name: topicMarket, now: 12, was: []int32{6}}, {name: topicNotes, now: 12, was: []int32{6}},
		}},
		held:   held{since: 41, indices: []int32{0, 1, 2, 7, 300}},
		eager:  true,
		joined: pair(),
		inner:  []byte{0, 0, 0, 0, 0, 0, 0, 9},
	}
}

func exampleRoster() roster {
	r := roster{
		members: []Member{
			{MemberID: "joiner-b", Identity: Identity{ID: "id-1", Address: "10.0.0.1:8081"}},
			{MemberID: "joiner-a", Identity: Identity{ID: "id-2", Address: "10.0.0.2:8081", Instance: "pod-2", Transactional: "g-pod-2"}},
		},
		counts:  exampleUserData().counts,
		problem: "partition counts differ: a has 4, b has 5",
		leader:  "id-2",
		budget:  DefaultDirectoryBudget,
	}
	r.add(topicMarket, []uint32{ownerNone, ownerMoving, ownerUnowned, ownerFirst, ownerFirst + 1})
	r.add(topicNotes, []uint32{ownerNone, ownerMoving, ownerUnowned, ownerFirst, ownerFirst + 1})
	r.add(topicExtra, []uint32{ownerUnowned})
	return r
}

func TestGoldenUserData(t *testing.T) {
	u := exampleUserData()
	data := u.encode()
	golden(t, "userdata.v1.hex", data)
	got, err := decodeUserData(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(u, got, cmp.AllowUnexported(userData{}, counts{}, topicCount{}, held{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestGoldenDirectory(t *testing.T) {
	r := exampleRoster()
	data := r.data(42)
	golden(t, "directory.v1.hex", data)
	got, err := decodeDirectory(data)
	if err != nil {
		t.Fatal(err)
	}
	want := Directory{
		Generation: 42,
		Leader:     "id-2",
		Members:    r.members,
		Owners: map[string][]string{
			topicMarket: {"", "", "", "id-1", "id-2"}, topicNotes: {"", "", "", "id-1", "id-2"}, topicExtra: {""},
		},
		Partitions: pairCounts(12),
		Former:     pairFormer(6),
		Moving:     map[string][]int32{topicMarket: {1}, topicNotes: {1}},
		Unowned:    map[string][]int32{topicMarket: {2}, topicNotes: {2}, topicExtra: {0}},
		Problem:    r.problem,
	}
	if diff := cmp.Diff(want, got.directory); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// large plans a group of that size, each member with its share.
func large(tb testing.TB, members int, partitions int32, budget int) (sarama.BalanceStrategy, map[string]sarama.ConsumerGroupMemberMetadata, map[string][]int32) {
	tb.Helper()
	metas := make(map[string]sarama.ConsumerGroupMemberMetadata, members)
	for i := range members {
		u := userData{
			Identity: Identity{ID: RandomID(), Address: fmt.Sprintf("10.1.%d.%d:8081", i/250, i%250)},
			joined:   pair(),
		}
		var owned []int32
		for p := int32(i); p < partitions; p += int32(members) + 1 {
			owned = append(owned, p)
		}
		metas[fmt.Sprintf("joiner-%s-%s", RandomID(), RandomID())] = sarama.ConsumerGroupMemberMetadata{
			Version: 2, Topics: pair(), UserData: u.encode(), GenerationID: 8,
			OwnedPartitions: []*sarama.OwnedPartition{{Topic: topicMarket, Partitions: owned}, {Topic: topicNotes, Partitions: owned}},
		}
	}
	strategies, err := New(Options{Strategy: Copartition, DirectoryBudget: budget})
	if err != nil {
		tb.Fatal(err)
	}
	return strategies[0], metas, map[string][]int32{topicMarket: upTo(partitions), topicNotes: upTo(partitions)}
}

func TestDirectoryStaysWithinItsBudget(t *testing.T) {
	for _, tc := range []struct {
		members, budget   int
		ids, owners, trim bool
	}{
		{20, 0, true, true, false},
		{130, 0, false, true, false},
		{400, 0, false, false, true},
		{400, 64 << 20, true, true, false},
	} {
		s, metas, topics := large(t, tc.members, 400, tc.budget)
		plan, err := s.Plan(metas, topics)
		if err != nil {
			t.Fatal(err)
		}
		total, budget := 0, tc.budget
		if budget == 0 {
			budget = DefaultDirectoryBudget
		}
		var d Directory
		for id := range plan {
			data, err := s.AssignmentData(id, plan[id], 9)
			if err != nil {
				t.Fatal(err)
			}
			total += len(data)
			got, err := decodeDirectory(data)
			if err != nil {
				t.Fatal(err)
			}
			d = got.directory
		}
		ids := len(d.Members) > 0 && d.Members[0].MemberID != ""
		if total > budget || ids != tc.ids || (len(d.Owners) > 0) != tc.owners || d.Truncated != tc.trim {
			t.Errorf("%d members, budget %d: %d bytes, ids %t, owners of %d topics, truncated %t",
				tc.members, budget, total, ids, len(d.Owners), d.Truncated)
		}
		if d.Partitions[topicMarket] != 400 {
			t.Errorf("%d members: counts are gone: %v", tc.members, d.Partitions)
		}
	}
}

func BenchmarkPlan500x10000(b *testing.B) {
	s, metas, topics := large(b, 500, 10_000, 64<<20)
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		plan, err := s.Plan(metas, topics)
		if err != nil {
			b.Fatal(err)
		}
		for id := range plan {
			data, err := s.AssignmentData(id, plan[id], 9)
			if err != nil {
				b.Fatal(err)
			}
			size = len(data)
		}
	}
	b.ReportMetric(float64(size), "directory-bytes")
}

func FuzzUserData(f *testing.F) {
	u := exampleUserData()
	f.Add(u.encode())
	f.Add(wire.Header(wire.KindUserData))
	f.Add(otherVersion(1)(u.encode()))
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := decodeUserData(data)
		if err != nil {
			return
		}
		again, err := decodeUserData(u.encode())
		if err != nil {
			t.Fatalf("cannot read its own writing: %v", err)
		}
		if !slices.Equal(again.held.indices, u.held.indices) || again.Identity != u.Identity ||
			!slices.Equal(again.joined, u.joined) || again.eager != u.eager {
			t.Fatalf("read %+v, wrote %+v", u, again)
		}
	})
}

func FuzzDirectory(f *testing.F) {
	r := exampleRoster()
	f.Add(r.data(3))
	body, err := wire.Deflate(r.data(3)[wire.HeaderSize:])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire.AppendField(wire.Header(wire.KindDirectory), wire.TagDeflated, body))
	f.Add(otherVersion(1)(r.data(3)))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decodeDirectory(data)
		if err != nil {
			return
		}
		for topic, owners := range got.directory.Owners {
			for p, owner := range owners {
				m, ok := got.directory.Owner(topic, int32(p))
				if ok && m.ID != owner || !ok && owner != "" {
					t.Fatalf("owner of %s/%d is %q and %+v", topic, p, owner, m)
				}
			}
		}
	})
}

// An index goes from a to b and back while each is away in turn: what b
// remembers is the older, though a has had the same set twice.
func TestEagerMembersThatTookTurns(t *testing.T) {
	g := newGroup(t, Copartition, true, pairCounts(1))
	a := g.start(pair(), pair())
	g.settle(first)
	b := g.start(pair(), pair())
	a.away = true
	g.settle(first)
	a.away, b.away = false, true
	g.settle(first)
	g.start(pair(), pair())
	b.away = false
	g.settle(first)
	if len(a.owned[topicNotes]) != 1 {
		t.Errorf("a had it last, and has %v; b has %v", a.owned, b.owned)
	}
}

// A static member that was started again gets the assignment of a generation
// that nobody plans anew. Where it led, it alone knows so.
func TestInherited(t *testing.T) {
	for _, strategy := range Strategies() {
		g := newGroup(t, strategy, false, pairCounts(6))
		for range 3 {
			g.start(pair(), pair())
		}
		g.settle(first)
		leader := g.procs[0]
		for _, p := range g.procs {
			if p.last.Inherited {
				t.Errorf("%s: %s inherits what was planned in its lifetime", strategy, p.memberID)
			}
			if want := leader.last.Directory.Leader; want == "" || p.last.Directory.Leader != want {
				t.Errorf("%s: %s takes %q for the leader, the leader %q", strategy, p.memberID, p.last.Directory.Leader, want)
			}
			again := g.again(p)
			if again.last.Inherited != (p == leader) {
				t.Errorf("%s: started again, %s inherits: %t, it led: %t", strategy, p.memberID, again.last.Inherited, p == leader)
			}
		}
	}
}

// Whoever an index is withheld for is named, and gets it. What a member says
// differs where it asks.
func TestMovingTo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGroup(t, Copartition, false, pairCounts(rapid.Int32Range(1, 20).Draw(t, "partitions")))
		for range rapid.IntRange(1, 5).Draw(t, "members") {
			g.start(pair(), pair())
		}
		g.settle(first)
		for range rapid.IntRange(1, 4).Draw(t, "more") {
			g.start(pair(), pair())
		}
		g.generate(first(g.present()))
		before := g.procs[0].last.Directory
		if len(before.MovingTo) != len(before.Vacant(pair()...)) {
			t.Fatalf("%v are vacant, for %v", before.Vacant(pair()...), before.MovingTo)
		}
		g.generate(first(g.present()))
		after := g.procs[0].last.Directory
		for index, id := range before.MovingTo {
			if owner, _ := after.Owner(topicMarket, index); owner.ID != id {
				t.Fatalf("index %d was for %s and is with %s", index, id, owner.ID)
			}
		}
		if len(after.Vacant(pair()...)) > 0 || after.MovingTo != nil {
			t.Fatalf("%v are vacant, for %v", after.Vacant(pair()...), after.MovingTo)
		}
	})
}

func TestMovingToRoundTrip(t *testing.T) {
	r := exampleRoster()
	r.moving = []move{{index: 1, to: 1}, {index: 9, to: 2}} // there are two members
	got, err := decodeDirectory(r.data(42))
	if err != nil {
		t.Fatal(err)
	}
	if want := map[int32]string{1: "id-2"}; !maps.Equal(got.directory.MovingTo, want) {
		t.Errorf("moving to %v, want %v", got.directory.MovingTo, want)
	}
	if got := got.directory.Vacant(topicMarket, topicNotes); !slices.Equal(got, []int32{1}) {
		t.Errorf("vacant: %v", got)
	}
}

func TestAskingMakesADifference(t *testing.T) {
	asks := uint64(0)
	strategies, err := New(Options{Strategy: Copartition, Asks: func() uint64 { return asks }})
	if err != nil {
		t.Fatal(err)
	}
	says := func() string {
		data, err := strategies[0].(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData(pair())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeUserData(data); err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	before := says()
	if says() != before {
		t.Error("a member that knows nothing new says something else")
	}
	if asks++; says() == before {
		t.Error("a member that asks for a rebalance says what it said before")
	}
}
