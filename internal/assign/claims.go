package assign

// nobody stands for no member where one is given by its place in a list.
const nobody = -1

// claims say, by index, who has it before the plan.
type claims struct {
	// owner had the index last and is still a member; nobody otherwise.
	owner []int32
	// holds is set where the owner has it still, claims running (cooperative):
	// nobody else may start before it has let go.
	holds []bool
	// split is set where different members hold parts of the index: nobody can
	// have all of it before each has let go.
	split []bool
	// wish would like to have the index again, having lost it with its
	// membership; it counts only where there is no owner.
	wish []int32
}

// claimsOf settles who has which of the indices below size.
func claimsOf(peers []peer, topics []string, size int32) claims {
	c := claims{
		owner: filled(size),
		holds: make([]bool, size),
		split: make([]bool, size),
		wish:  filled(size),
	}
	for _, topic := range topics {
		c.merge(newestHolders(peers, topic, size))
	}
	c.remembered(peers, true, c.owner)
	c.remembered(peers, false, c.wish)
	return c
}

func filled(n int32) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = nobody
	}
	return list
}

// newestHolders returns who owns each partition of the topic by what the
// members' subscriptions say (KIP-429). Where two claim one, the one with the
// newest generation is right and the other missed a rebalance (KIP-792).
func newestHolders(peers []peer, topic string, size int32) []int32 {
	holder := filled(size)
	for i := range peers {
		for _, owned := range peers[i].meta.OwnedPartitions {
			if owned == nil || owned.Topic != topic {
				continue
			}
			for _, p := range owned.Partitions {
				if p < 0 || p >= size {
					continue
				}
				if h := holder[p]; h == nobody || peers[i].generation() > peers[h].generation() {
					holder[p] = int32(i)
				}
			}
		}
	}
	return holder
}

// merge adds one topic's holders. An index whose parts are with different
// members counts as the first one's: it moves in any case.
func (c *claims) merge(holders []int32) {
	for p, h := range holders {
		if h == nobody {
			continue
		}
		c.holds[p] = true
		c.split[p] = c.split[p] || c.owner[p] != nobody && c.owner[p] != h
		if c.owner[p] == nobody {
			c.owner[p] = h
		}
	}
}

// remembered lets members have what they say they had, where nobody else has:
// of several the one that had it last.
func (c *claims) remembered(peers []peer, eager bool, into []int32) {
	taken := make([]bool, len(c.owner))
	for p, o := range c.owner {
		taken[p] = o != nobody
	}
	for i := range peers {
		d := &peers[i].data
		if d.eager != eager {
			continue
		}
		for _, p := range d.held.indices {
			if int(p) >= len(taken) || taken[p] {
				continue
			}
			if o := into[p]; o == nobody || d.held.since > peers[o].data.held.since {
				into[p] = int32(i)
			}
		}
	}
}
