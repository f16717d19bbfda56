package check

import (
	"sync"

	"joiner/internal/assign"
	"joiner/internal/kafka"
	"joiner/internal/placement"
)

// guess finds the partitioner of one topic's producers, and that of those who
// place keys otherwise than configured. Partitions are read side by side.
type guess struct {
	placer     *placement.Placer
	partitions int32

	mu        sync.Mutex
	all       *placement.Detective
	misplaced *placement.Detective
	strays    map[stray]bool // of those misplaced, the first
}

// stray is a key in a partition that it does not belong to.
type stray struct {
	key       string
	partition int32
}

const (
	maxStrays = 200
	minStrays = 20 // fewer may lie by chance as a count would have it
	mostly    = 0.95
)

func newGuess(placer *placement.Placer, partitions int32) *guess {
	return &guess{
		placer: placer, partitions: partitions, strays: make(map[stray]bool),
		all: placer.Detective(partitions), misplaced: placer.Detective(partitions),
	}
}

func (g *guess) see(key []byte, partition int32, wellPlaced bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all.See(key, partition)
	if wellPlaced {
		return
	}
	g.misplaced.See(key, partition)
	if len(g.strays) < maxStrays && len(key) <= maxKey {
		g.strays[stray{string(key), partition}] = true
	}
}

// Growth is a count of partitions, 0 where none explains what was seen, by which
// the configured partitioner would have put Share of what lies otherwise now, 0
// to 1.
type Growth struct {
	From  int32
	Share float64
}

// growth finds the count that the topic had, if that is why keys lie otherwise.
// A count of 1 is none: a producer that writes to partition 0 alone looks so, too.
func (g *guess) growth() (found Growth) {
	if len(g.strays) < minStrays {
		return found
	}
	for from := g.partitions - 1; from > 1; from-- {
		explained := 0
		for s := range g.strays {
			if p, known := g.placer.Former([]byte(s.key), from); known && p == s.partition {
				explained++
			}
		}
		if share := float64(explained) / float64(len(g.strays)); share >= mostly && share > found.Share {
			found = Growth{from, share}
		}
	}
	return found
}

// Suspect is a partitioner, empty where none explains what was seen, and the
// evidence: how much of Seen different placements it explains, 0 to 1.
type Suspect struct {
	Name  string
	Share float64
	Seen  int
	// Astray is how much of Seen are keys that have a reserved partition and lie
	// elsewhere, which explains itself: 0 unless nearly all are.
	Astray float64
}

func suspectOf(d *placement.Detective) (s Suspect) {
	s.Name, s.Share, s.Seen = d.Likely()
	if share, ok := d.Astray(); ok {
		s.Astray = share
	}
	return s
}

// formerCounts are the partition counts that topics had before they grew, as
// the group remembers them.
func formerCounts(g kafka.Group) map[string][]int32 {
	for _, m := range g.Members {
		if d, ok := assign.InspectAssignment(m.AssignmentData); ok && len(d.Former) > 0 {
			return d.Former
		}
	}
	return nil
}
