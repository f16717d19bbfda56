package assign

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/IBM/sarama"
	"pgregory.net/rapid"
)

// fatal is what testing.T and rapid.T share.
type fatal interface {
	Helper()
	Fatalf(string, ...any)
}

// proc is a process in the model: its strategies are the real ones and all that
// it tells and hears goes through the bytes.
type proc struct {
	memberID   string
	strategies []sarama.BalanceStrategy
	topics     []string // subscribed
	joined     []string
	identity   Identity
	owned      map[string][]int32 // claims that run
	generation int32
	away       bool // cut off: the group goes on without it, it goes on with its claims
	last       Assignment
	mangle     func([]byte) []byte // what another version would send
}

func (p *proc) strategy() sarama.BalanceStrategy { return p.strategies[0] }

// group is a model of a consumer group and its coordinator.
type group struct {
	t          fatal
	eager      bool
	name       string // strategy
	counts     map[string]int32
	procs      []*proc // ascending by member id
	generation int32
	made       int
}

func newGroup(t fatal, name string, eager bool, counts map[string]int32) *group {
	return &group{t: t, eager: eager, name: name, counts: counts}
}

// start adds a process. Its ids are new: nothing of an earlier one is known.
func (g *group) start(topics, joined []string) *proc {
	g.t.Helper()
	g.made++
	p := &proc{topics: topics, joined: joined, generation: -1}
	// Member ids and identities sort differently, so that a plan which
	// followed the wrong one would show.
	p.memberID = fmt.Sprintf("joiner-%03d", (g.made*37)%1000)
	opts := Options{
		Strategy: g.name,
		Topics:   joined,
		Identity: Identity{ID: fmt.Sprintf("id-%03d", g.made), Address: fmt.Sprintf("10.0.0.%d:8081", g.made)},
		OnAssignment: func(a Assignment) {
			p.last = a
		},
	}
	if g.eager && g.name == Copartition {
		opts.UpgradeFrom = []string{Range}
	}
	strategies, err := New(opts)
	if err != nil {
		g.t.Fatalf("New: %v", err)
	}
	p.strategies, p.identity = strategies, opts.Identity
	g.procs = append(g.procs, p)
	slices.SortFunc(g.procs, func(a, b *proc) int { return cmpString(a.memberID, b.memberID) })
	return p
}

// again is a static member's next process, which the coordinator gives what the
// one before had (KIP-345). The group is not told.
func (g *group) again(was *proc) *proc {
	g.t.Helper()
	data, err := g.procs[0].strategy().AssignmentData(was.memberID, was.owned, g.generation)
	if err != nil {
		g.t.Fatalf("assignment data: %v", err)
	}
	p := &proc{memberID: was.memberID + "-again", owned: was.owned, generation: g.generation}
	p.strategies, err = New(Options{
		Strategy: g.name, Topics: was.joined, Identity: was.identity,
		OnAssignment: func(a Assignment) { p.last = a },
	})
	if err != nil {
		g.t.Fatalf("New: %v", err)
	}
	p.strategy().(sarama.OnAssignmentBalanceStrategy).OnAssignment(
		&sarama.ConsumerGroupMemberAssignment{Topics: was.owned, UserData: data}, g.generation)
	return p
}

func cmpString(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (g *group) stop(p *proc) {
	g.procs = slices.DeleteFunc(g.procs, func(q *proc) bool { return q == p })
}

// present are the members that the coordinator knows.
func (g *group) present() []*proc {
	return slices.DeleteFunc(slices.Clone(g.procs), func(p *proc) bool { return p.away })
}

func (g *group) metadata() map[string]sarama.ConsumerGroupMemberMetadata {
	metas := make(map[string]sarama.ConsumerGroupMemberMetadata)
	for _, p := range g.present() {
		data, err := p.strategy().(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData(p.topics)
		if err != nil {
			g.t.Fatalf("user data: %v", err)
		}
		if p.mangle != nil {
			data = p.mangle(data)
		}
		meta := sarama.ConsumerGroupMemberMetadata{Version: 2, Topics: p.topics, UserData: data, GenerationID: -1}
		if !g.eager {
			meta.GenerationID = p.generation
			for _, topic := range slices.Sorted(maps.Keys(p.owned)) {
				meta.OwnedPartitions = append(meta.OwnedPartitions, &sarama.OwnedPartition{Topic: topic, Partitions: p.owned[topic]})
			}
		}
		metas[p.memberID] = meta
	}
	return metas
}

func (g *group) topicPartitions() map[string][]int32 {
	topics := make(map[string][]int32)
	for _, p := range g.present() {
		for _, topic := range p.topics {
			topics[topic] = upTo(g.counts[topic])
		}
	}
	return topics
}

func upTo(n int32) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(i)
	}
	return list
}

// generate runs one generation led by the given member, and reports whether a
// member let something go, so that it joins again.
func (g *group) generate(leader *proc) (again bool) {
	g.t.Helper()
	g.generation++
	members := g.present()
	if g.eager {
		for _, p := range members {
			p.owned = nil
		}
	}
	metas := g.metadata()
	plan, err := leader.strategy().Plan(metas, g.topicPartitions())
	if err != nil {
		g.t.Fatalf("plan: %v", err)
	}
	g.checkDeterminism(metas, plan)
	before := make(map[string]map[string][]int32)
	for _, p := range members {
		before[p.memberID] = p.owned
		assigned, ok := plan[p.memberID]
		if !ok {
			g.t.Fatalf("generation %d: no entry for %s", g.generation, p.memberID)
		}
		data, err := leader.strategy().AssignmentData(p.memberID, assigned, g.generation)
		if err != nil {
			g.t.Fatalf("assignment data: %v", err)
		}
		again = again || !g.eager && !covers(assigned, p.owned)
		p.owned, p.generation = assigned, g.generation
		p.strategy().(sarama.OnAssignmentBalanceStrategy).OnAssignment(
			&sarama.ConsumerGroupMemberAssignment{Topics: assigned, UserData: data}, g.generation)
	}
	if g.name == Copartition {
		g.checkTogether(members)
	}
	g.checkExclusive(members, before, metas)
	return again
}

// covers reports whether a contains all of b.
func covers(a, b map[string][]int32) bool {
	for topic, partitions := range b {
		for _, p := range partitions {
			if !slices.Contains(a[topic], p) {
				return false
			}
		}
	}
	return true
}

func (g *group) checkDeterminism(metas map[string]sarama.ConsumerGroupMemberMetadata, plan sarama.BalanceStrategyPlan) {
	g.t.Helper()
	if g.name == Sticky {
		return // sarama's is not
	}
	strategies, err := New(Options{Strategy: g.name})
	if err != nil {
		g.t.Fatalf("New: %v", err)
	}
	same, err := strategies[0].Plan(metas, g.topicPartitions())
	if err != nil {
		g.t.Fatalf("plan: %v", err)
	}
	if !maps.EqualFunc(plan, same, func(a, b map[string][]int32) bool { return maps.EqualFunc(a, b, slices.Equal) }) {
		g.t.Fatalf("another leader plans otherwise:\n%v\n%v", plan, same)
	}
}

// checkExclusive: a member stops what it lost and starts what it gained in its
// own time, so nobody may be given what another had when it joined. Claims of
// members that missed a generation are void (KIP-792): their groups' commits
// are fenced, so they do not count where a newer one has the same.
func (g *group) checkExclusive(members []*proc, before map[string]map[string][]int32, metas map[string]sarama.ConsumerGroupMemberMetadata) {
	g.t.Helper()
	type tp struct {
		topic string
		p     int32
	}
	holder := make(map[tp]*proc)
	for _, m := range members {
		for topic, partitions := range m.owned {
			for _, p := range partitions {
				if other := holder[tp{topic, p}]; other != nil {
					g.t.Fatalf("generation %d: %s/%d is given to %s and %s", g.generation, topic, p, other.memberID, m.memberID)
				}
				holder[tp{topic, p}] = m
			}
		}
	}
	for _, m := range members {
		for topic, partitions := range before[m.memberID] {
			for _, p := range partitions {
				to := holder[tp{topic, p}]
				if to == nil || to == m {
					continue
				}
				if slices.Contains(before[to.memberID][topic], p) && metas[to.memberID].GenerationID >= metas[m.memberID].GenerationID {
					continue
				}
				g.t.Fatalf("generation %d: %s/%d is given to %s while %s still has it", g.generation, topic, p, to.memberID, m.memberID)
			}
		}
	}
}

// checkTogether: whoever has a part of an index has all that it joins.
func (g *group) checkTogether(members []*proc) {
	g.t.Helper()
	for _, m := range members {
		if len(m.owned) == 0 {
			continue
		}
		for _, topic := range m.joined {
			if !sameSet(m.owned[topic], m.owned[m.joined[0]]) {
				g.t.Fatalf("generation %d: %s has halves: %v", g.generation, m.memberID, m.owned)
			}
		}
	}
}

func sameSet(a, b []int32) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// ownership is what members truly have before a plan: running claims, or in
// eager mode what they had until now; of two that claim a partition, the
// member with the newer generation.
func (g *group) ownership() Ownership {
	own := make(Ownership)
	since := make(map[string][]int32)
	for topic, n := range g.counts {
		own[topic], since[topic] = make([]string, n), make([]int32, n)
	}
	for _, m := range g.present() {
		for topic, partitions := range m.owned {
			for _, p := range partitions {
				if own[topic][p] == "" || m.generation > since[topic][p] {
					own[topic][p], since[topic][p] = m.memberID, m.generation
				}
			}
		}
	}
	return own
}

// settle runs generations until nobody joins again.
func (g *group) settle(leader func([]*proc) *proc) (generations int) {
	g.t.Helper()
	for {
		generations++
		if !g.generate(leader(g.present())) {
			return generations
		}
		if generations > 5 {
			g.t.Fatalf("still moving after %d generations", generations)
		}
	}
}

func first(members []*proc) *proc { return members[0] }

const (
	topicMarket  = "market-updates"
	topicNotes   = "notifications"
	topicExtra   = "extra"
	topicRenamed = "market-updates-2"
)

func pair() []string { return []string{topicMarket, topicNotes} }

// kinds are subscriptions as they meet in a rolling upgrade: topics, joined.
func kinds() [][2][]string {
	wide := []string{topicExtra, topicMarket, topicNotes}
	renamed := []string{topicRenamed, topicNotes}
	return [][2][]string{
		{pair(), pair()}, {pair(), pair()}, {pair(), pair()}, {pair(), pair()},
		{wide, wide},
		{renamed, renamed},
		{{topicNotes}, pair()}, // a half at best
	}
}

// step changes the group at random. A stale member comes back with what it had.
func step(t *rapid.T, g *group, mixed bool) {
	kind := func() [2][]string {
		if !mixed {
			return [2][]string{pair(), pair()}
		}
		return rapid.SampledFrom(kinds()).Draw(t, "kind")
	}
	someone := func() *proc { return rapid.SampledFrom(g.procs).Draw(t, "who") }
	switch rapid.SampledFrom([]string{"join", "join", "leave", "restart", "cut off", "return", "nothing"}).Draw(t, "step") {
	case "join":
		k := kind()
		g.start(k[0], k[1])
	case "leave":
		if len(g.procs) > 1 {
			g.stop(someone())
		}
	case "restart":
		g.stop(someone())
		k := kind()
		g.start(k[0], k[1])
	case "cut off":
		if p := someone(); len(g.present()) > 1 {
			p.away = true
		}
	case "return":
		for _, p := range g.procs {
			p.away = false
		}
	}
	if len(g.present()) == 0 {
		k := kind()
		g.start(k[0], k[1])
	}
}

func testModel(t *testing.T, eager, mixed bool) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int32Range(1, 24).Draw(t, "partitions")
		counts := map[string]int32{topicMarket: n, topicNotes: n, topicExtra: n, topicRenamed: n}
		g := newGroup(t, Copartition, eager, counts)
		anyone := func(members []*proc) *proc { return rapid.SampledFrom(members).Draw(t, "leader") }
		g.start(pair(), pair())
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(1, 3).Draw(t, "at once") {
				step(t, g, mixed)
			}
			if rapid.IntRange(0, 5).Draw(t, "grow") == 0 {
				n += rapid.Int32Range(1, 6).Draw(t, "by")
				for topic := range counts {
					counts[topic] = n
				}
			}
			before := g.ownership()
			generations := g.settle(anyone)
			if limit := map[bool]int{true: 1, false: 2}[eager]; generations > limit {
				t.Fatalf("%d generations to settle", generations)
			}
			checkSettled(t, g, before, mixed)
		}
	})
}

// checkSettled judges a stable group.
func checkSettled(t *rapid.T, g *group, before Ownership, mixed bool) {
	members := g.present()
	d := members[0].last.Directory
	if d == nil || len(d.Moving) > 0 || d.Problem != "" {
		t.Fatalf("directory of a stable group: %+v", d)
	}
	able := ableMembers(members)
	if !mixed && len(able) != len(members) {
		t.Fatalf("only %v of %d members can own", able, len(members))
	}
	if len(able) == 0 {
		checkAllUnowned(t, g, d)
		return
	}
	var unit []string
	for _, m := range members {
		if m.memberID == able[0] {
			unit = m.joined
		}
	}
	load := make(map[string]int)
	for _, id := range able {
		load[id] = 0
	}
	after := g.ownership()
	n := int(g.counts[topicNotes])
	for p := range n {
		owner := after[unit[0]][p]
		if _, ok := load[owner]; !ok {
			t.Fatalf("index %d belongs to %q, of %v", p, owner, able)
		}
		load[owner]++
	}
	if got := Colocated(after, unit...); got != n {
		t.Fatalf("%d of %d indices together", got, n)
	}
	loads := slices.Sorted(maps.Values(load))
	if loads[len(loads)-1]-loads[0] > 1 {
		t.Fatalf("unbalanced: %v", load)
	}
	checkMoves(t, members, able, unit, before, after)
	checkDirectory(t, members, after, unit, d)
}

// ableMembers says anew who can own: those who subscribe to everything that
// anybody does; or the largest set of members that share one complete choice
// of topics, of equally large ones the first by name.
func ableMembers(members []*proc) []string {
	all := make(map[string]bool)
	for _, m := range members {
		for _, topic := range m.topics {
			all[topic] = true
		}
	}
	var most []string
	sets := make(map[string][]string)
	for _, m := range members {
		if len(m.topics) == len(all) && covers2(m.topics, m.joined) {
			most = append(most, m.memberID)
		}
		if covers2(m.topics, m.joined) {
			name := fmt.Sprint(slices.Sorted(slices.Values(m.joined)))
			sets[name] = append(sets[name], m.memberID)
		}
	}
	if most != nil {
		return most
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if len(sets[name]) > len(most) {
			most = sets[name]
		}
	}
	return most
}

func covers2(set, of []string) bool {
	for _, v := range of {
		if !slices.Contains(set, v) {
			return false
		}
	}
	return true
}

func checkAllUnowned(t *rapid.T, g *group, d *Directory) {
	for _, m := range g.present() {
		for topic, partitions := range m.owned {
			if len(partitions) > 0 {
				t.Fatalf("%s owns %s %v although nobody can", m.memberID, topic, partitions)
			}
		}
	}
	for topic := range d.Partitions {
		if len(d.Unowned[topic]) != int(g.counts[topic]) {
			t.Fatalf("unowned in %s: %v", topic, d.Unowned[topic])
		}
	}
}

func checkMoves(t *rapid.T, members []*proc, able, unit []string, before, after Ownership) {
	var all []string
	for _, m := range members {
		all = append(all, m.memberID)
	}
	old := Ownership{}
	for _, topic := range unit {
		old[topic] = before[topic]
	}
	want := MinimumMoves(old, able)
	// Those who have something that they cannot own any more lose it anyway.
	// Indices that changed hands in part have no minimum to compare with.
	for p := range old.Indices() {
		owners := make(map[string]bool)
		for _, topic := range unit {
			owners[old.at(topic, p)] = true
		}
		if len(owners) > 1 {
			return
		}
		if owner := old.at(unit[0], p); owner != "" && slices.Contains(all, owner) && !slices.Contains(able, owner) {
			want++
		}
	}
	if got := Moves(old, after, all); got != want {
		t.Fatalf("%d indices moved, %d would do: %v to %v among %v", got, want, old, after, able)
	}
}

func checkDirectory(t *rapid.T, members []*proc, after Ownership, unit []string, d *Directory) {
	ids := make(map[string]string)
	for _, m := range d.Members {
		ids[m.MemberID] = m.ID
	}
	for _, topic := range unit {
		for p, memberID := range after[topic] {
			if got := d.Owners[topic][p]; got == "" || got != ids[memberID] {
				t.Fatalf("directory: %s/%d belongs to %q, not %q", topic, p, got, ids[memberID])
			}
			if m, ok := d.Owner(topic, int32(p)); !ok || m.MemberID != memberID || m.Address == "" {
				t.Fatalf("directory: owner of %s/%d is %+v, %t", topic, p, m, ok)
			}
		}
	}
	for topic, n := range d.Partitions {
		if !slices.Contains(unit, topic) && len(d.Unowned[topic]) != int(n) {
			t.Fatalf("%s belongs to nobody's index, but only %v are reported", topic, d.Unowned[topic])
		}
	}
	for _, m := range members {
		if m.last.Directory.Generation != d.Generation || len(m.last.Directory.Members) != len(members) {
			t.Fatalf("%s has another directory", m.memberID)
		}
	}
}

func TestModelCooperative(t *testing.T)      { testModel(t, false, false) }
func TestModelEager(t *testing.T)            { testModel(t, true, false) }
func TestModelCooperativeMixed(t *testing.T) { testModel(t, false, true) }
func TestModelEagerMixed(t *testing.T)       { testModel(t, true, true) }
