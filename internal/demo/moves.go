package demo

import (
	"maps"
	"slices"
)

type topicPartition struct {
	topic     string
	partition int32
}

// ownership is what one member owns.
type ownership map[topicPartition]bool

func ownershipOf(owned map[string][]int32) ownership {
	own := ownership{}
	for topic, ps := range owned {
		for _, p := range ps {
			own[topicPartition{topic, p}] = true
		}
	}
	return own
}

func (o ownership) equal(other ownership) bool { return maps.Equal(o, other) }

// moved counts the partitions that left a member that is still there. Members
// are the same by their place; later ones are new.
func moved(before, after []ownership) int {
	n := 0
	for i, own := range before {
		for tp := range own {
			if i < len(after) && !after[i][tp] {
				n++
			}
		}
	}
	return n
}

// movedMinimum returns the fewest partitions that must leave the members that
// there were, so that no two of `members` differ by more than one. The members
// that own the most get the larger shares: they have the most to lose.
func movedMinimum(before []ownership, members int) int {
	owned := make([]int, 0, len(before))
	total := 0
	for _, own := range before {
		owned = append(owned, len(own))
		total += len(own)
	}
	slices.SortFunc(owned, func(a, b int) int { return b - a })
	n := 0
	for i, have := range owned {
		share := total / members
		if i < total%members {
			share++
		}
		n += max(0, have-share)
	}
	return n
}
