package assign

import (
	"errors"
	"slices"
	"sync"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/wire"
)

// member is what all our strategies have in common: what they remember, and
// the directory on its way up and down.
type member struct {
	name   string
	mem    *memory
	report func(Assignment)
	budget int
	log    *zap.Logger

	mu     sync.Mutex
	roster *roster // of the last plan, nil before the first
}

// keep stores the plan's directory for AssignmentData.
func (m *member) keep(r roster) {
	r.budget, r.leader = m.budget, m.mem.identity.ID
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roster = &r
}

// directory returns the bytes for one generation, nil before the first plan.
func (m *member) directory(generation int32) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.roster == nil {
		return nil
	}
	return slices.Clip(m.roster.data(generation))
}

// planned reports whether this process made the directory of the generation.
func (m *member) planned(generation int32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.roster != nil && m.roster.encoded != nil && m.roster.generation == generation
}

// receive takes note of an assignment and reports it. It returns the bytes of
// the strategy inside, and whether a joiner led.
func (m *member) receive(a *sarama.ConsumerGroupMemberAssignment, generation int32) (inner []byte, ours bool) {
	out := Assignment{Strategy: m.name, Generation: generation, Claims: make(map[string][]int32, len(a.Topics))}
	for topic, partitions := range a.Topics {
		out.Claims[topic] = slices.Sorted(slices.Values(partitions))
	}
	got, err := decodeDirectory(a.UserData)
	if err == nil {
		out.Directory = &got.directory
		out.Inherited = got.directory.Leader == m.mem.identity.ID && !m.planned(generation)
	} else if !errors.Is(err, wire.ErrForeign) {
		m.log.Warn("cannot read the directory of this generation",
			zap.String("strategy", m.name), zap.Int32("generation", generation),
			zap.Int("bytes", len(a.UserData)), zap.Error(err))
	}
	m.mem.assigned(generation, out.Claims, got.counts)
	if m.report != nil {
		m.report(out)
	}
	return got.inner, !errors.Is(err, wire.ErrForeign)
}

// emptyPlan has an entry for every member: sarama asks for the assignment data
// of those alone that are in the plan, and an idle member needs its directory
// as much as the others.
func emptyPlan(members map[string]sarama.ConsumerGroupMemberMetadata) sarama.BalanceStrategyPlan {
	plan := make(sarama.BalanceStrategyPlan, len(members))
	for id := range members {
		plan[id] = make(map[string][]int32)
	}
	return plan
}
