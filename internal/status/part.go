package status

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Part is what one pod knows at first hand: itself and its own tasks. It is
// what a pod answers to another pod's question.
type Part struct {
	Format     int      `json:"format"` // Format
	Group      string   `json:"group"`
	Generation int32    `json:"generation"`
	ID         string   `json:"id"`
	Instance   string   `json:"instance"`
	Address    string   `json:"address"`
	Ready      bool     `json:"ready"`
	Reasons    []string `json:"reasons"`
	Notes      []string `json:"notes"`
	Tasks      []Task   `json:"tasks"` // its own; topics are the halves that it owns
	Joins      Joins    `json:"joins"`
	Hot        Hot      `json:"hot"`
}

// Hot is what a pod has counted of its keys.
type Hot struct {
	Total uint64     `json:"total"` // records counted
	Keys  []HotCount `json:"keys"`  // the most frequent ones, most frequent first
}

// HotCount is a key and how often it came, at least.
type HotCount struct {
	Symbol []byte `json:"symbol"`
	Count  uint64 `json:"count"`
}

// Format is the version of the parts that this release writes. A reader
// ignores fields that it does not know; a part of another version is refused.
const Format = 1

// Bounds on what a peer may send: a pod can own all partitions that Kafka
// manages for a topic, but nobody's lists grow without end.
const (
	maxPartTasks = 200_000
	maxHotKeys   = 1_000
	maxReasons   = 1_000
	maxPartition = 1 << 24
)

var errForeign = errors.New("another pod answers at this address")

// parsePart reads a peer's part and checks that it is the member's that was
// asked: an address may have gone to a pod of another group since.
func parsePart(b []byte, group, id string) (Part, error) {
	var p Part
	if err := json.Unmarshal(b, &p); err != nil {
		return Part{}, fmt.Errorf("its answer cannot be read: %w", err)
	}
	switch {
	case p.Format != Format:
		return Part{}, fmt.Errorf("its answer has format %d, this release reads %d", p.Format, Format)
	case p.Group != group:
		return Part{}, fmt.Errorf("%w: one of group %q", errForeign, p.Group)
	case p.ID != id:
		return Part{}, fmt.Errorf("%w: %q", errForeign, p.ID)
	case len(p.Tasks) > maxPartTasks || len(p.Hot.Keys) > maxHotKeys || len(p.Reasons) > maxReasons || len(p.Notes) > maxReasons:
		return Part{}, errors.New("its answer is too long")
	}
	for i := range p.Tasks {
		if t := &p.Tasks[i]; t.Partition < 0 || t.Partition > maxPartition {
			return Part{}, fmt.Errorf("its answer names a partition %d", t.Partition)
		}
	}
	return p, nil
}
