package plan

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"joiner/internal/assign"

	"github.com/IBM/sarama"
)

// group plays a consumer group and its coordinator under one strategy.
type group struct {
	strategy   string
	topics     []string
	partitions map[string][]int32
	name       naming
	procs      []*proc // in the order in which they came: the first one leads
	generation int32
}

// proc is one member's process.
type proc struct {
	number     int
	memberID   string
	strategy   sarama.BalanceStrategy
	owned      map[string][]int32 // its claims
	generation int32              // in which it got them, -1 for a new member
	problem    string             // what the directory says is wrong
}

// naming makes the ids that sarama's strategies and ours sort members by.
type naming func(number int) string

// inOrder lets the members sort as their numbers do.
func inOrder(number int) string { return fmt.Sprintf("m%06d", number) }

// shuffled gives random ids, as the coordinator does.
func shuffled(rng *rand.Rand) naming {
	return func(int) string { return fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64()) }
}

func newGroup(strategy string, topics []string, counts map[string]int32, name naming) *group {
	g := &group{strategy: strategy, topics: topics, name: name, partitions: make(map[string][]int32, len(topics))}
	for _, topic := range topics {
		list := make([]int32, counts[topic])
		for p := range list {
			list[p] = int32(p)
		}
		g.partitions[topic] = list
	}
	return g
}

// apply lets members go and come, and runs generations until the group is
// stable; it returns how many that took.
func (g *group) apply(ctx context.Context, e Event) (generations int, err error) {
	g.procs = slices.DeleteFunc(g.procs, func(p *proc) bool { return slices.Contains(e.Leave, p.number) })
	for _, n := range e.Join {
		if err := g.start(n); err != nil {
			return 0, err
		}
	}
	return g.settle(ctx)
}

func (g *group) start(number int) error {
	p := &proc{number: number, memberID: "joiner-" + g.name(number), generation: -1}
	strategies, err := assign.New(assign.Options{
		Strategy: g.strategy,
		Topics:   g.topics,
		Identity: assign.Identity{ID: g.name(number)},
		OnAssignment: func(a assign.Assignment) {
			p.problem = ""
			if a.Directory != nil {
				p.problem = a.Directory.Problem
			}
		},
	})
	if err != nil {
		return err
	}
	p.strategy = strategies[0]
	g.procs = append(g.procs, p)
	return nil
}

// maxGenerations ends a group that never comes to rest, which would be a fault
// of its strategy: a cooperative one needs two.
const maxGenerations = 10

func (g *group) settle(ctx context.Context) (int, error) {
	for n := 1; n <= maxGenerations; n++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		again, err := g.generate()
		if err != nil {
			return 0, fmt.Errorf("%s, generation %d: %w", g.strategy, g.generation, err)
		}
		if !again {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s: still moving after %d generations", g.strategy, maxGenerations)
}

// generate runs one generation: everybody joins, the leader plans, everybody is
// told. It reports whether a member has to join again, as it does when it has
// let go of something that others wait for.
func (g *group) generate() (again bool, err error) {
	g.generation++
	leader := g.procs[0].strategy
	cooperative := isCooperative(leader)
	members, err := g.join(cooperative)
	if err != nil {
		return false, err
	}
	plan, err := leader.Plan(members, g.partitions)
	if err != nil {
		return false, err
	}
	for _, p := range g.procs {
		assigned := plan[p.memberID]
		data, err := leader.AssignmentData(p.memberID, assigned, g.generation)
		if err != nil {
			return false, err
		}
		again = again || cooperative && !containsAll(assigned, p.owned)
		p.assigned(assigned, data, g.generation)
	}
	return again, nil
}

// join collects what sarama would send with each member's JoinGroup.
func (g *group) join(cooperative bool) (map[string]sarama.ConsumerGroupMemberMetadata, error) {
	members := make(map[string]sarama.ConsumerGroupMemberMetadata, len(g.procs))
	for _, p := range g.procs {
		meta := sarama.ConsumerGroupMemberMetadata{Version: 2, Topics: g.topics, GenerationID: -1}
		if cooperative {
			meta.GenerationID = p.generation
			for _, topic := range slices.Sorted(maps.Keys(p.owned)) {
				meta.OwnedPartitions = append(meta.OwnedPartitions, &sarama.OwnedPartition{Topic: topic, Partitions: p.owned[topic]})
			}
		} else {
			p.owned = nil // an eager member gives up everything before it joins
		}
		if s, ok := p.strategy.(sarama.SubscriptionUserDataBalanceStrategy); ok {
			data, err := s.SubscriptionUserData(slices.Clone(g.topics))
			if err != nil {
				return nil, fmt.Errorf("user data of %s: %w", Name(p.number), err)
			}
			meta.UserData = data
		}
		members[p.memberID] = meta
	}
	return members, nil
}

func (p *proc) assigned(topics map[string][]int32, data []byte, generation int32) {
	p.owned, p.generation = topics, generation
	if s, ok := p.strategy.(sarama.OnAssignmentBalanceStrategy); ok {
		s.OnAssignment(&sarama.ConsumerGroupMemberAssignment{Topics: topics, UserData: data}, generation)
	}
}

func isCooperative(s sarama.BalanceStrategy) bool {
	protocols, ok := s.(sarama.RebalanceProtocolBalanceStrategy)
	return ok && slices.Contains(protocols.SupportedProtocols(), sarama.RebalanceProtocolCooperative)
}

// containsAll reports whether a has everything that b has.
func containsAll(a, b map[string][]int32) bool {
	for topic, partitions := range b {
		has := make(map[int32]bool, len(a[topic]))
		for _, p := range a[topic] {
			has[p] = true
		}
		for _, p := range partitions {
			if !has[p] {
				return false
			}
		}
	}
	return true
}

// ownership gives the owners' names.
func (g *group) ownership() assign.Ownership {
	own := make(assign.Ownership, len(g.topics))
	for _, topic := range g.topics {
		own[topic] = make([]string, len(g.partitions[topic]))
	}
	for _, p := range g.procs {
		name := Name(p.number)
		for topic, partitions := range p.owned {
			for _, i := range partitions {
				own[topic][i] = name
			}
		}
	}
	return own
}

// members are the numbers of those that are in the group, ascending.
func (g *group) members() []int {
	numbers := make([]int, 0, len(g.procs))
	for _, p := range g.procs {
		numbers = append(numbers, p.number)
	}
	slices.Sort(numbers)
	return numbers
}

// problem is what keeps the group from being assigned in full, empty where
// nothing does. Everybody is told the same.
func (g *group) problem() string { return g.procs[0].problem }
