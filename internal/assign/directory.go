package assign

import (
	"slices"
	"strings"
)

// Directory says who owns what in one generation. Everybody in the group has
// the same one.
type Directory struct {
	// Generation is the one in which the directory holds.
	Generation int32
	// Members are all members, ascending by ID.
	Members []Member
	// Owners gives the owner's ID by topic and partition, "" where there is
	// none in this generation.
	Owners map[string][]string
	// Partitions gives each topic's number of partitions.
	Partitions map[string]int32
	// Former gives the numbers of partitions that a topic had before it grew,
	// newest first, at most MaxFormer of them; topics that never grew while
	// somebody looked are absent.
	Former map[string][]int32
	// Moving lists, by topic, the partitions without an owner because the old
	// one has yet to let go: the next generation gives them to the new one.
	Moving map[string][]int32
	// MovingTo gives the ID of the member that each such index is for; nil where
	// the leader is of a release that does not tell.
	MovingTo map[int32]string
	// Unowned lists, by topic, the partitions that nobody could own, because
	// no member is subscribed to all that goes with them.
	Unowned map[string][]int32
	// Problem says what keeps the group from being assigned in full, with
	// topics and numbers; empty when nothing does.
	Problem string
	// Leader is the ID of the member that made the directory; empty where that
	// is not known.
	Leader string
	// Truncated is set where the group is too large for everybody to be told
	// everything (Options.DirectoryBudget): Members and Owners are empty.
	Truncated bool
}

// Owner returns the member that owns the partition, false where nobody does or
// nobody knows.
func (d *Directory) Owner(topic string, partition int32) (Member, bool) {
	if d == nil {
		return Member{}, false
	}
	owners := d.Owners[topic]
	if partition < 0 || int(partition) >= len(owners) || owners[partition] == "" {
		return Member{}, false
	}
	return d.Member(owners[partition])
}

// Member returns the member of that ID.
func (d *Directory) Member(id string) (Member, bool) {
	if d == nil {
		return Member{}, false
	}
	i, ok := slices.BinarySearchFunc(d.Members, id, func(m Member, id string) int {
		return strings.Compare(m.ID, id)
	})
	if !ok {
		return Member{}, false
	}
	return d.Members[i], true
}

// Vacant lists, ascending, the indices that are moving in any of the topics: the
// next generation gives them to somebody, and there is one only if somebody asks
// for it.
func (d *Directory) Vacant(topics ...string) (indices []int32) {
	if d == nil {
		return nil
	}
	for _, topic := range topics {
		indices = append(indices, d.Moving[topic]...)
	}
	slices.Sort(indices)
	return slices.Compact(indices)
}
