package assign

import (
	"cmp"
	"slices"
)

// balance gives every index an owner among the members that may own: within one
// of each other, taking as few as possible from those that have them, and then
// granting as many wishes as it can. Members that are fixed keep what they have
// and gain nothing; the others share the rest.
//
// Members that keep more than their share could keep no more than the smaller
// share, unless they get one of the larger ones: so the larger shares go first
// to those that have more than the smaller, which is the least that has to
// move. The result depends on the order of members and indices alone.
func balance(indices []int32, c claims, able, fixed []bool) []int32 {
	b := balancer{claims: c, able: able, fixed: fixed, target: filled(int32(len(c.owner)))}
	b.keepFixed(indices)
	b.share()
	b.grant(c.owner)
	b.grant(c.wish)
	b.deal()
	return b.target
}

type balancer struct {
	claims
	able, fixed []bool
	target      []int32 // by index
	rest        []int32 // indices that are to be shared
	quota       []int   // by member: what it may still take
}

// free reports whether the member takes part in the sharing.
func (b *balancer) free(i int32) bool { return i != nobody && b.able[i] && !b.fixed[i] }

func (b *balancer) keepFixed(indices []int32) {
	for _, p := range indices {
		if o := b.owner[p]; o != nobody && b.fixed[o] && b.able[o] && !b.split[p] {
			b.target[p] = o
			continue
		}
		b.rest = append(b.rest, p)
	}
}

// share sets the quotas.
func (b *balancer) share() {
	b.quota = make([]int, len(b.able))
	var free []int32
	for i := range b.able {
		if b.free(int32(i)) {
			free = append(free, int32(i))
		}
	}
	if len(free) == 0 {
		return
	}
	floor, extra := len(b.rest)/len(free), len(b.rest)%len(free)
	had, wanted := b.tally()
	// Nothing is gained by giving a larger share to one that would not fill it.
	gain := func(i int32) int {
		switch {
		case had[i] > floor:
			return 2
		case had[i]+wanted[i] > floor:
			return 1
		default:
			return 0
		}
	}
	slices.SortStableFunc(free, func(x, y int32) int { return cmp.Compare(gain(y), gain(x)) })
	for n, i := range free {
		b.quota[i] = floor
		if n < extra {
			b.quota[i]++
		}
	}
}

// tally counts what each member has and wishes of what is to be shared.
func (b *balancer) tally() (had, wanted []int) {
	had, wanted = make([]int, len(b.able)), make([]int, len(b.able))
	for _, p := range b.rest {
		if o := b.owner[p]; b.free(o) {
			had[o]++
		} else if w := b.wish[p]; b.free(w) {
			wanted[w]++
		}
	}
	return had, wanted
}

// grant gives indices to those who have or want them, within the quotas.
func (b *balancer) grant(to []int32) {
	for _, p := range b.rest {
		if i := to[p]; b.target[p] == nobody && b.free(i) && b.quota[i] > 0 {
			b.target[p] = i
			b.quota[i]--
		}
	}
}

// deal gives out what is left, in order.
func (b *balancer) deal() {
	next := 0
	for _, p := range b.rest {
		if b.target[p] != nobody {
			continue
		}
		for next < len(b.quota) && b.quota[next] == 0 {
			next++
		}
		if next == len(b.quota) {
			return
		}
		b.target[p] = int32(next)
		b.quota[next]--
	}
}
