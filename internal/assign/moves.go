package assign

// Ownership gives an owner by topic and partition, "" for none; it is the form
// of Directory.Owners.
type Ownership map[string][]string

// Indices returns the number of partition indices.
func (o Ownership) Indices() int {
	n := 0
	for _, owners := range o {
		n = max(n, len(owners))
	}
	return n
}

// at returns "" for what is not there.
func (o Ownership) at(topic string, p int) string {
	if owners := o[topic]; p < len(owners) {
		return owners[p]
	}
	return ""
}

// Moves counts the indices of which a partition left a member that is still
// there. What a member left behind when it went is not counted: it had to move.
func Moves(before, after Ownership, members []string) int {
	there := make(map[string]bool, len(members))
	for _, m := range members {
		there[m] = true
	}
	moved := 0
	for p := range before.Indices() {
		for topic := range before {
			was := before.at(topic, p)
			if there[was] && after.at(topic, p) != was {
				moved++
				break
			}
		}
	}
	return moved
}

// MinimumMoves returns the least that Moves can be when every topic is shared
// among the members to within one: what each has above the smaller share, but
// for one each where there are larger shares to be had. Of topics that are not
// owned alike, the one that needs the most counts.
func MinimumMoves(before Ownership, members []string) int {
	least := 0
	for _, owners := range before {
		least = max(least, minimumMovesOf(owners, members))
	}
	return least
}

// MinimumMovesTogether returns a number that Moves cannot fall below when the
// partitions of all topics together are shared among the members to within one,
// whatever becomes of each topic: the partitions that have to leave, as many at
// a time as an index has.
func MinimumMovesTogether(before Ownership, members []string) int {
	all := make([]string, 0, before.Indices()*len(before))
	for _, owners := range before {
		all = append(all, owners...)
	}
	topics := max(len(before), 1)
	return (minimumMovesOf(all, members) + topics - 1) / topics
}

// minimumMovesOf returns the least number of partitions that have to leave the
// members for them to share all partitions to within one.
func minimumMovesOf(owners, members []string) int {
	if len(members) == 0 {
		return 0
	}
	has := make(map[string]int, len(members))
	for _, m := range members {
		has[m] = 0
	}
	for _, o := range owners {
		if _, there := has[o]; there {
			has[o]++
		}
	}
	share, larger := len(owners)/len(members), len(owners)%len(members)
	above, surplus := 0, 0
	for _, n := range has {
		if n > share {
			above++
			surplus += n - share
		}
	}
	return surplus - min(above, larger)
}

// Colocated counts the indices whose partitions of all the topics have one and
// the same owner.
func Colocated(o Ownership, topics ...string) int {
	if len(topics) == 0 {
		return 0
	}
	n := 0
	for p, owner := range o[topics[0]] {
		together := owner != ""
		for _, topic := range topics[1:] {
			together = together && o.at(topic, p) == owner
		}
		if together {
			n++
		}
	}
	return n
}
