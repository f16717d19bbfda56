package assign

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"joiner/internal/wire"
)

// counts is what the group remembers of its topics' partition counts. It
// travels from leader to leader: each sends it down in the directory, members
// echo it in their user data, and the next leader takes the newest.
type counts struct {
	// epoch grows by one whenever anything below changes. It is no generation,
	// because those start again when the group is made anew, and because a
	// number that changed at every join would make the user data change too.
	epoch uint64
	// planned is the number of indices that the group was last assigned while
	// its topics had equal counts: what it goes on with while they have not.
	planned int32
	topics  []topicCount // ascending by name
}

// MaxFormer is how many former partition counts of a topic a group remembers.
const MaxFormer = 8

type topicCount struct {
	name string
	now  int32
	was  []int32 // before it grew, newest first, at most MaxFormer
}

func (t topicCount) equal(o topicCount) bool {
	return t.name == o.name && t.now == o.now && slices.Equal(t.was, o.was)
}

// newer says whether c is to be preferred to o. Equal epochs are equal in
// content but for leaders that could not know of each other, where the larger
// number of indices wins, so that every leader picks the same; and for members
// of a release that passed one former count on, where more is better.
func (c counts) newer(o counts) bool {
	return cmp.Or(cmp.Compare(c.epoch, o.epoch), cmp.Compare(c.planned, o.planned), cmp.Compare(c.growths(), o.growths())) > 0
}

// growths is how many growths of topics are remembered.
func (c counts) growths() (n int) {
	for _, t := range c.topics {
		n += len(t.was)
	}
	return n
}

// next returns what is to be remembered once the topics have been seen with
// these counts.
func (c counts) next(seen map[string]int32, planned int32) counts {
	known := make(map[string]topicCount, len(c.topics))
	for _, t := range c.topics {
		known[t.name] = t
	}
	n := counts{epoch: c.epoch, planned: planned}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		n.topics = append(n.topics, grown(known[name], name, seen[name]))
	}
	if n.planned != c.planned || !slices.EqualFunc(n.topics, c.topics, topicCount.equal) {
		n.epoch++
	}
	return n
}

// grown keeps the former counts when a topic stays or is out of sight, and
// drops them when the topic was made anew with fewer partitions: what the old
// one held is gone.
func grown(known topicCount, name string, now int32) topicCount {
	switch {
	case known.now == 0 || now < known.now && now > 0:
		return topicCount{name: name, now: now}
	case now > known.now:
		return topicCount{name: name, now: now, was: bounded(append([]int32{known.now}, known.was...))}
	default:
		return known
	}
}

func (c counts) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, c.epoch)
	dst = binary.AppendUvarint(dst, uint64(c.planned))
	dst = binary.AppendUvarint(dst, uint64(len(c.topics)))
	for _, t := range c.topics {
		dst = wire.AppendBytes(dst, t.name)
		dst = binary.AppendUvarint(dst, uint64(t.now))
		dst = binary.AppendUvarint(dst, uint64(t.last()))
	}
	return dst
}

// last is the count before the last growth; 0 where there was none.
func (t topicCount) last() int32 {
	if len(t.was) == 0 {
		return 0
	}
	return t.was[0]
}

// earlier tells whether there is more to remember than one former count a topic.
func (c counts) earlier() bool {
	return slices.ContainsFunc(c.topics, func(t topicCount) bool { return len(t.was) > 1 })
}

// appendEarlier writes the former counts before the last one, for a field of
// their own: the first releases had room for one a topic.
func (c counts) appendEarlier(dst []byte) []byte {
	longer := slices.DeleteFunc(slices.Clone(c.topics), func(t topicCount) bool { return len(t.was) < 2 })
	dst = binary.AppendUvarint(dst, uint64(len(longer)))
	for _, t := range longer {
		dst = wire.AppendBytes(dst, t.name)
		dst = binary.AppendUvarint(dst, uint64(len(t.was)-1))
		for _, n := range t.was[1:] {
			dst = binary.AppendUvarint(dst, uint64(n))
		}
	}
	return dst
}

// earlierCounts are the former counts before the last one, by topic.
type earlierCounts map[string][]int32

func readEarlier(c *wire.Cursor) earlierCounts {
	earlier := make(earlierCounts)
	for range c.Length() {
		name := c.Text()
		n := c.Length()
		list := make([]int32, 0, n)
		for range n {
			list = append(list, c.Int32())
		}
		earlier[name] = list
	}
	return earlier
}

// with adds the earlier counts to what was read beside them. Counts that do not
// come down, as those of growth do, are nobody's: they are left out.
func (c counts) with(earlier earlierCounts) counts {
	for i := range c.topics {
		t := &c.topics[i]
		if len(t.was) == 0 {
			continue
		}
		for _, n := range bounded(earlier[t.name]) {
			if n <= 0 || n >= t.was[len(t.was)-1] || len(t.was) == MaxFormer {
				break
			}
			t.was = append(t.was, n)
		}
	}
	return c
}

func bounded(was []int32) []int32 { return was[:min(len(was), MaxFormer)] }

func readCounts(c *wire.Cursor) counts {
	out := counts{epoch: c.Uvarint(), planned: c.Int32()}
	n := c.Length()
	out.topics = make([]topicCount, 0, n)
	for range n {
		t := topicCount{name: c.Text(), now: c.Int32()}
		if was := c.Int32(); was > 0 {
			t.was = []int32{was}
		}
		out.topics = append(out.topics, t)
	}
	// next compares the list with one that it has sorted.
	slices.SortFunc(out.topics, func(a, b topicCount) int { return strings.Compare(a.name, b.name) })
	return out
}
