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
	mu        sync.Mutex
	all       *placement.Detective
	misplaced *placement.Detective
}

func newGuess(placer *placement.Placer, partitions int32) *guess {
	return &guess{all: placer.Detective(partitions), misplaced: placer.Detective(partitions)}
}

func (g *guess) see(key []byte, partition int32, wellPlaced bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all.See(key, partition)
	if !wellPlaced {
		g.misplaced.See(key, partition)
	}
}

// Suspect is a partitioner, empty where none explains what was seen, and the
// evidence: how much of Seen different placements it explains, 0 to 1.
type Suspect struct {
	Name  string
	Share float64
	Seen  int
}

func suspectOf(d *placement.Detective) (s Suspect) {
	s.Name, s.Share, s.Seen = d.Likely()
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
