package assign

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/wire"
)

// wrapper is one of sarama's own strategies with our data around it, under
// sarama's protocol name: consumers that are not joiners may be in the group.
//
// The strategy inside sees its own bytes only. sarama's sticky refuses to plan
// when it finds any that it cannot read, so what a member of another kind sent
// is tried first, and left out if it is bad.
type wrapper struct {
	*member
	planning sync.Mutex // sarama's sticky keeps notes while it plans
	inner    sarama.BalanceStrategy
	// bare sends the inner bytes up alone: a consumer that is not a joiner may
	// lead, and would choke on ours.
	bare bool

	// joiners are the members that sent data of ours to the last plan; the
	// others get what sarama alone would send them.
	joiners map[string]bool
}

var (
	_ sarama.SubscriptionUserDataBalanceStrategy = (*wrapper)(nil)
	_ sarama.OnAssignmentBalanceStrategy         = (*wrapper)(nil)
)

// Name is sarama's.
func (w *wrapper) Name() string { return w.inner.Name() }

// SubscriptionUserData never fails.
func (w *wrapper) SubscriptionUserData(topics []string) ([]byte, error) {
	w.mem.joining()
	if w.bare {
		return w.mem.innerData(w.name), nil
	}
	u := w.mem.userData(w.name, topics)
	return u.encode(), nil
}

// OnAssignment runs under sarama's locks: see Options.OnAssignment.
func (w *wrapper) OnAssignment(a *sarama.ConsumerGroupMemberAssignment, generation int32) {
	inner, ours := w.receive(a, generation)
	if !ours {
		inner = a.UserData
	}
	w.mem.keepInner(w.name, inner)
}

// AssignmentData packs what the strategy inside says into the directory.
func (w *wrapper) AssignmentData(memberID string, topics map[string][]int32, generation int32) ([]byte, error) {
	inner, err := w.inner.AssignmentData(memberID, topics, generation)
	if err != nil {
		return nil, fmt.Errorf("%s assignment data of member %s: %w", w.name, memberID, err)
	}
	w.mu.Lock()
	joiner := w.joiners[memberID]
	w.mu.Unlock()
	if !joiner {
		return inner, nil
	}
	data := w.directory(generation)
	if len(inner) > 0 {
		data = wire.AppendField(data, tagInnerDown, inner)
	}
	return data, nil
}

// Plan never fails: where even clean data will not make the strategy inside
// plan, everybody gets nothing and the directory says why.
func (w *wrapper) Plan(members map[string]sarama.ConsumerGroupMemberMetadata, topics map[string][]int32) (sarama.BalanceStrategyPlan, error) {
	peers := peersOf(members)
	joiners := make(map[string]bool, len(peers))
	for i := range peers {
		if joiners[peers[i].MemberID] = peers[i].joiner; !peers[i].joiner {
			// It speaks sarama's protocol, which is no fault.
			peers[i].fault = nil
		}
	}
	logFaults(w.log, w.name, peers)

	plan, planErr := w.planInner(peers, topics)
	for id, empty := range emptyPlan(members) {
		if plan[id] == nil {
			plan[id] = empty
		}
	}
	seen := partitionCounts(topics)
	w.tellForeign(peers, seen)
	r := rosterOf(peers, plan, seen)
	r.counts, r.problem = w.countsAndProblem(peers, seen, planErr)
	w.keep(r)
	w.mu.Lock()
	w.joiners = joiners
	w.mu.Unlock()
	return plan, nil
}

// tellForeign marks the members that are no joiners. While a group changes over from
// sticky, a joiner looks like any other consumer of the same topics (bare), and is
// given the benefit of the doubt.
func (w *wrapper) tellForeign(peers []peer, seen map[string]int32) {
	all := slices.Collect(maps.Keys(seen))
	for i := range peers {
		peers[i].Foreign = !peers[i].joiner && (w.name != Sticky || !peers[i].subscribes(all))
	}
}

func (w *wrapper) countsAndProblem(peers []peer, seen map[string]int32, planErr error) (counts, string) {
	topics := slices.Sorted(maps.Keys(seen))
	common, _ := span(topics, seen)
	c := newestCounts(peers).next(seen, common)
	if planErr != nil {
		return c, fmt.Sprintf("%s cannot plan: %v", w.name, planErr)
	}
	return c, unequal(topics, seen)
}

// planInner returns a plan to add to, empty with an error.
func (w *wrapper) planInner(peers []peer, topics map[string][]int32) (sarama.BalanceStrategyPlan, error) {
	members := make(map[string]sarama.ConsumerGroupMemberMetadata, len(peers))
	for i := range peers {
		members[peers[i].MemberID] = w.innerMember(&peers[i])
	}
	w.planning.Lock()
	defer w.planning.Unlock()
	plan, err := w.inner.Plan(members, topics)
	if err != nil {
		w.log.Error("nothing is assigned in this generation", zap.String("strategy", w.name), zap.Error(err))
		return make(sarama.BalanceStrategyPlan), err
	}
	return plan, nil
}

// innerMember returns the member as the strategy inside knows it.
func (w *wrapper) innerMember(p *peer) sarama.ConsumerGroupMemberMetadata {
	meta := p.meta
	if p.joiner {
		meta.UserData = p.data.inner
	}
	if len(meta.UserData) == 0 {
		meta.UserData = nil // sarama reads null as none, but not empty
		return meta
	}
	if w.name != Sticky {
		return meta
	}
	if err := readableBySticky(meta); err != nil {
		w.log.Warn("cannot read what a member says it had",
			zap.String("strategy", w.name), zap.String("member_id", p.MemberID), zap.Error(err))
		meta.UserData = nil
	}
	return meta
}

// readableBySticky asks sarama itself, which keeps its decoder to itself, by
// having it plan nothing for a group of one.
func readableBySticky(meta sarama.ConsumerGroupMemberMetadata) error {
	one := map[string]sarama.ConsumerGroupMemberMetadata{"": meta}
	_, err := sarama.NewBalanceStrategySticky().Plan(one, nil)
	return err
}
