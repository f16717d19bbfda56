package assign

import (
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

type topicCount struct {
	name string
	now  int32
	was  int32 // before the last growth; 0 where there was none
}

// newer says whether c is to be preferred to o. Equal epochs are equal in
// content but for leaders that could not know of each other; then the larger
// number of indices wins, so that every leader picks the same.
func (c counts) newer(o counts) bool {
	if c.epoch != o.epoch {
		return c.epoch > o.epoch
	}
	return c.planned > o.planned
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
	if n.planned != c.planned || !slices.Equal(n.topics, c.topics) {
		n.epoch++
	}
	return n
}

// grown keeps the previous count when a topic stays or is out of sight, and
// drops it when the topic was made anew with fewer partitions: what the old
// one held is gone.
func grown(known topicCount, name string, now int32) topicCount {
	switch {
	case known.now == 0 || now < known.now && now > 0:
		return topicCount{name: name, now: now}
	case now > known.now:
		return topicCount{name: name, now: now, was: known.now}
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
		dst = binary.AppendUvarint(dst, uint64(t.was))
	}
	return dst
}

func readCounts(c *wire.Cursor) counts {
	out := counts{epoch: c.Uvarint(), planned: c.Int32()}
	n := c.Length()
	out.topics = make([]topicCount, 0, n)
	for range n {
		out.topics = append(out.topics, topicCount{name: c.Text(), now: c.Int32(), was: c.Int32()})
	}
	// next compares the list with one that it has sorted.
	slices.SortFunc(out.topics, func(a, b topicCount) int { return strings.Compare(a.name, b.name) })
	return out
}
