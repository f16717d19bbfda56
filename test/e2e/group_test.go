package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Owned returns the partitions of both inputs that the process's last
// assignment gave it, in one list where they are the same, which they must be.
func (p *Proc) Owned() (indices []int32, generation int64, err error) {
	p.t.Helper()
	a, err := p.assignment()
	if err != nil {
		return nil, 0, err
	}
	if !slices.Equal(a.market, a.notes) {
		p.t.Errorf("%s was given %v of one topic and %v of the other", p.Name, a.market, a.notes)
	}
	return a.market, a.generation, nil
}

// assignment is what the group gave a process.
type assignment struct {
	market, notes []int32
	generation    int64
}

// assignment returns the process's last one.
func (p *Proc) assignment() (assignment, error) {
	p.t.Helper()
	lines := p.Logged("assigned")
	if len(lines) == 0 {
		return assignment{}, fmt.Errorf("%s has no assignment", p.Name)
	}
	last := lines[len(lines)-1]
	return assignment{
		market: numbers(last["market_partitions"]), notes: numbers(last["notification_partitions"]),
		generation: last.Number("generation"),
	}, nil
}

func numbers(field any) (all []int32) {
	list, _ := field.([]any)
	for _, x := range list {
		if f, ok := x.(float64); ok {
			all = append(all, int32(f))
		}
	}
	return all
}

// Owners says which pod owns which index.
func (pods Pods) Owners() (map[int32]string, error) {
	owners := make(map[int32]string)
	for _, p := range pods {
		p.t.Helper()
		indices, _, err := p.Owned()
		if err != nil {
			return nil, err
		}
		for _, i := range indices {
			if other := owners[i]; other != "" {
				return nil, fmt.Errorf("%s and %s both have %d", other, p.Name, i)
			}
			owners[i] = p.Name
		}
	}
	return owners, nil
}

// AwaitBalanced waits until these pods are ready, own all n indices, each once,
// and none has more than one index more than another.
func (pods Pods) AwaitBalanced(n int32) map[int32]string {
	t := pods[0].t
	t.Helper()
	var owners map[int32]string
	await(t, fmt.Sprintf("%d pods to share %d indices", len(pods), n), func() (err error) {
		if owners, err = pods.Owners(); err != nil {
			return err
		}
		shares := make(map[string]int32)
		for _, owner := range owners {
			shares[owner]++
		}
		for _, p := range pods {
			if code, ended := p.Ended(); ended {
				t.Fatalf("%s ended with %d", p.Name, code)
			}
			share, fair := shares[p.Name], n/int32(len(pods))
			if share < fair || share > fair+1 || len(owners) != int(n) {
				return fmt.Errorf("they share %d indices: %v", len(owners), shares)
			}
			if r := p.Readiness(); !r.Ready {
				return fmt.Errorf("%s is not ready: %s", p.Name, strings.Join(r.Reasons, "; "))
			}
		}
		return nil
	})
	return owners
}

// halves says which pod owns which partition of each input. Under copartition
// the two are the same.
type halves struct{ market, notes map[int32]string }

// aligned counts the indices whose halves have one owner.
func (h halves) aligned() (n int) {
	for partition, owner := range h.notes {
		if h.market[partition] == owner {
			n++
		}
	}
	return n
}

// AwaitShared waits until these pods are ready in one generation and own all n
// partitions of each input, each once, whatever the strategy.
func (pods Pods) AwaitShared(n int32) halves {
	t := pods[0].t
	t.Helper()
	var shared halves
	await(t, fmt.Sprintf("%d pods to share %d partitions of each input", len(pods), n), func() error {
		shared = halves{make(map[int32]string), make(map[int32]string)}
		generation := int64(-1)
		for _, p := range pods {
			if code, ended := p.Ended(); ended {
				t.Fatalf("%s ended with %d", p.Name, code)
			}
			a, err := p.assignment()
			if err != nil {
				return err
			}
			if generation >= 0 && a.generation != generation {
				return fmt.Errorf("%s is in generation %d, %s in %d", p.Name, a.generation, pods[0].Name, generation)
			}
			generation = a.generation
			for _, side := range []struct {
				owners map[int32]string
				given  []int32
			}{{shared.market, a.market}, {shared.notes, a.notes}} {
				for _, partition := range side.given {
					side.owners[partition] += p.Name // two names are nobody's
				}
			}
			if r := p.Readiness(); !r.Ready {
				return fmt.Errorf("%s is not ready: %s", p.Name, strings.Join(r.Reasons, "; "))
			}
		}
		for _, owners := range []map[int32]string{shared.market, shared.notes} {
			for _, owner := range owners {
				if !slices.ContainsFunc(pods, func(p *Proc) bool { return p.Name == owner }) {
					return fmt.Errorf("a partition has the owners %s", owner)
				}
			}
			if len(owners) != int(n) {
				return fmt.Errorf("%d partitions have an owner", len(owners))
			}
		}
		return nil
	})
	return shared
}

// moved lists the indices whose owner differs, ascending.
func moved(before, after map[int32]string) (indices []int32) {
	for _, i := range slices.Sorted(maps.Keys(after)) {
		if before[i] != after[i] {
			indices = append(indices, i)
		}
	}
	return indices
}

// ClaimsEnded counts the claims that have ended in all these processes so far.
func (pods Pods) ClaimsEnded() (n int) {
	for _, p := range pods {
		p.t.Helper()
		n += len(p.Logged("claim ends"))
	}
	return n
}
