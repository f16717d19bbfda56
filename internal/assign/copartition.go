package assign

import (
	"slices"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// copartition is our own strategy: see the package comment.
type copartition struct{ *member }

var (
	_ sarama.SubscriptionUserDataBalanceStrategy = (*copartition)(nil)
	_ sarama.OnAssignmentBalanceStrategy         = (*copartition)(nil)
	_ sarama.RebalanceProtocolBalanceStrategy    = (*copartition)(nil)
)

// Name is the protocol name, not the configuration's.
func (*copartition) Name() string { return ProtocolName }

// SupportedProtocols are both: alone it is cooperative, beside a strategy that
// is not it is eager (sarama takes what the whole list can do).
func (*copartition) SupportedProtocols() []sarama.RebalanceProtocol {
	return []sarama.RebalanceProtocol{sarama.RebalanceProtocolCooperative, sarama.RebalanceProtocolEager}
}

// SubscriptionUserData never fails.
func (s *copartition) SubscriptionUserData(topics []string) ([]byte, error) {
	s.mem.joining()
	u := s.mem.userData(s.name, topics)
	return u.encode(), nil
}

// OnAssignment runs under sarama's locks: see Options.OnAssignment.
func (s *copartition) OnAssignment(a *sarama.ConsumerGroupMemberAssignment, generation int32) {
	s.receive(a, generation)
}

// AssignmentData returns the same directory for every member.
func (s *copartition) AssignmentData(_ string, _ map[string][]int32, generation int32) ([]byte, error) {
	return s.directory(generation), nil
}

// Plan never fails.
func (s *copartition) Plan(members map[string]sarama.ConsumerGroupMemberMetadata, topics map[string][]int32) (sarama.BalanceStrategyPlan, error) {
	peers := peersOf(members)
	logFaults(s.log, s.name, peers)
	p := draw(peers, partitionCounts(topics))
	s.logGaps(&p)
	plan := emptyPlan(members)
	for i, indices := range p.gets {
		if len(indices) == 0 {
			continue
		}
		for _, topic := range p.unit.topics {
			plan[peers[i].MemberID][topic] = slices.Clone(indices)
		}
	}
	s.keep(p.roster(peers))
	return plan, nil
}

func (s *copartition) logGaps(p *plan) {
	if p.problem != "" {
		s.log.Warn("not everything can be assigned", zap.String("reason", p.problem), zap.Int("indices_assigned", len(p.indices)))
	}
	if len(p.unit.uncovered) > 0 {
		s.log.Warn("nobody is subscribed to all topics: some stay without an owner",
			zap.Strings("assigned", p.unit.topics), zap.Strings("unowned", p.unit.uncovered))
	}
	if n := len(p.indices); n > 0 && !slices.Contains(p.unit.able, true) {
		s.log.Warn("no member is subscribed to all that an index needs",
			zap.Strings("topics", p.unit.topics), zap.Int("indices_unowned", n))
	}
}

// plan is one generation of the copartition strategy.
type plan struct {
	unit    unit
	seen    map[string]int32 // partition counts of all subscribed topics
	counts  counts
	problem string
	indices []int32   // what is assigned, ascending
	target  []int32   // by index: who owns it in the end
	moving  []bool    // by index: its owner has to let go first
	gets    [][]int32 // by peer: what it owns in this generation, ascending
}

// draw computes the plan.
func draw(peers []peer, seen map[string]int32) plan {
	p := plan{unit: unitOf(peers), seen: seen}
	common, most := span(p.unit.topics, seen)
	known := newestCounts(peers)
	held := claimsOf(peers, p.unit.topics, most)

	planned := common
	if p.problem = unequal(p.unit.topics, seen); p.problem != "" {
		planned = known.planned
	}
	p.counts = known.next(seen, planned)
	p.indices = indicesToPlan(min(planned, common), common, held)

	fixed := make([]bool, len(peers))
	for i := range peers {
		fixed[i] = peers[i].fault != nil
	}
	p.target = balance(p.indices, held, p.unit.able, fixed)
	p.withhold(held, len(peers))
	return p
}

// indicesToPlan returns the indices below planned, and above them those that
// members have: a group whose topics have come apart goes on with what it had,
// as far as all of an index exists.
func indicesToPlan(planned, common int32, c claims) []int32 {
	indices := make([]int32, 0, planned)
	for i := range common {
		if i < planned || c.owner[i] != nobody {
			indices = append(indices, i)
		}
	}
	return indices
}

// withhold gives out what can be had now.
func (p *plan) withhold(c claims, peers int) {
	p.moving = make([]bool, len(p.target))
	p.gets = make([][]int32, peers)
	for _, i := range p.indices {
		to := p.target[i]
		switch {
		case to == nobody:
		case c.split[i] || c.holds[i] && c.owner[i] != to:
			p.moving[i] = true
		default:
			p.gets[to] = append(p.gets[to], i)
		}
	}
}

// roster writes the plan down for the directory.
func (p *plan) roster(peers []peer) roster {
	r := roster{counts: p.counts, problem: p.problem}
	for i := range peers {
		r.members = append(r.members, peers[i].Member)
	}
	for _, topic := range p.unit.topics {
		r.add(topic, p.codes(p.seen[topic]))
	}
	for i, moving := range p.moving {
		if moving {
			r.moving = append(r.moving, move{index: int32(i), to: p.target[i]})
		}
	}
	for _, topic := range p.unit.uncovered {
		codes := make([]uint32, p.seen[topic])
		for i := range codes {
			codes[i] = ownerUnowned
		}
		r.add(topic, codes)
	}
	return r
}

// codes gives the owners of a topic with that many partitions. Those that are
// not planned, while the counts differ, have none.
func (p *plan) codes(n int32) []uint32 {
	codes := make([]uint32, n)
	for _, i := range p.indices {
		if i < n {
			codes[i] = ownerUnowned
		}
	}
	for peer, indices := range p.gets {
		for _, i := range indices {
			codes[i] = ownerFirst + uint32(peer)
		}
	}
	for i, moving := range p.moving {
		if moving && int32(i) < n {
			codes[i] = ownerMoving
		}
	}
	return codes
}
