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
	lines := p.Logged("assigned")
	if len(lines) == 0 {
		return nil, 0, fmt.Errorf("%s has no assignment", p.Name)
	}
	last := lines[len(lines)-1]
	market, notes := numbers(last["market_partitions"]), numbers(last["notification_partitions"])
	if !slices.Equal(market, notes) {
		p.t.Errorf("%s was given %v of one topic and %v of the other", p.Name, market, notes)
	}
	return market, last.Number("generation"), nil
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
