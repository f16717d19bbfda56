package assign

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// unit says what makes a whole index, and who could own one.
type unit struct {
	topics []string // ascending
	able   []bool   // by peer: subscribed to all of them
	// uncovered are subscribed topics that do not belong to it, ascending:
	// their partitions stay with nobody.
	uncovered []string
}

// unitOf finds the topics that an index needs. That is all that anybody
// subscribes to, as long as one member subscribes to all of them; the others
// could own no more than a part, so they own nothing.
//
// In the middle of a change of topics (half of the members join the old market
// topic, half the new one) nobody does. Then it is the set that the most
// members can own and that is complete by what its members say they join, so
// that one misconfigured member cannot bring the group to a stop. The rest is
// reported, and found again when the change is through.
func unitOf(peers []peer) unit {
	all := make(map[string]bool)
	for i := range peers {
		for _, t := range peers[i].topics {
			all[t] = true
		}
	}
	u := unit{topics: slices.Sorted(maps.Keys(all))}
	if !u.seat(peers) {
		if best := mostCommonUnit(peers); best != nil {
			u.topics = best
			u.seat(peers)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(u.topics, t) {
			u.uncovered = append(u.uncovered, t)
		}
	}
	return u
}

// seat finds who can own the unit, and reports whether anybody can that may gain
// anything. A member that joins more than the unit would own a part.
func (u *unit) seat(peers []peer) bool {
	u.able = make([]bool, len(peers))
	gains := false
	for i := range peers {
		u.able[i] = len(u.topics) > 0 && peers[i].subscribes(u.topics) && containsAll(u.topics, peers[i].joined())
		gains = gains || u.able[i] && peers[i].fault == nil
	}
	return gains
}

// mostCommonUnit returns nil where nobody subscribes to all that it joins.
func mostCommonUnit(peers []peer) []string {
	candidates := make(map[string][]string)
	for i := range peers {
		if joined := peers[i].data.joined; len(joined) > 0 && peers[i].subscribes(joined) {
			candidates[strings.Join(joined, ",")] = joined // topic names have no comma
		}
	}
	var best []string
	most := 0
	for _, name := range slices.Sorted(maps.Keys(candidates)) {
		u := unit{topics: candidates[name]}
		u.seat(peers)
		if n := countTrue(u.able); n > most {
			best, most = candidates[name], n
		}
	}
	return best
}

func containsAll(set, of []string) bool {
	for _, v := range of {
		if !slices.Contains(set, v) {
			return false
		}
	}
	return true
}

func countTrue(list []bool) int {
	n := 0
	for _, v := range list {
		if v {
			n++
		}
	}
	return n
}

// span returns the number of indices that exist in every topic of the unit, and
// in any of them.
func span(topics []string, seen map[string]int32) (common, most int32) {
	for i, t := range topics {
		n := seen[t]
		if i == 0 || n < common {
			common = n
		}
		most = max(most, n)
	}
	return common, most
}

// unequal describes topics whose partition counts differ, for a human.
func unequal(topics []string, seen map[string]int32) string {
	common, most := span(topics, seen)
	if common == most {
		return ""
	}
	parts := make([]string, 0, len(topics))
	for _, t := range topics {
		parts = append(parts, fmt.Sprintf("%s has %d", t, seen[t]))
	}
	return "partition counts differ: " + strings.Join(parts, ", ")
}
