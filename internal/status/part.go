package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Bounds on what a pod tells others, and on what is read of what others tell.
// What is beyond them is left out, here and there: of a pod that has thousands of
// reasons the first ones say enough, and 500 pods that send whatever they like
// must not take this one's memory.
const (
	// MaxPartBytes bounds a part. It has room for maxPartTasks with the longest
	// names that topics can have.
	MaxPartBytes = 12 << 20
	maxPartTasks = 11_000
	maxTaskBytes = 4 << 10
	maxHotKeys   = 1_000
	maxReasons   = 100
	maxTextBytes = 1 << 10
	jsonText     = 6 * maxTextBytes // each byte of it may be escaped
	maxJoinBytes = 4 << 10
	maxPartition = 1 << 24
	// maxKeyBytes bounds what is read of a hot key: symbols are record keys, and
	// may be as long as a record.
	maxKeyBytes = 4 << 10
)

// bounded returns the part as it may be sent.
func (p Part) bounded() Part {
	p.Tasks = p.Tasks[:min(len(p.Tasks), maxPartTasks)]
	long := func(k HotCount) bool { return len(k.Symbol) > maxKeyBytes }
	p.Hot.Keys = slices.DeleteFunc(slices.Clone(p.Hot.Keys), long)
	p.Hot.Keys = p.Hot.Keys[:min(len(p.Hot.Keys), maxHotKeys)]
	p.Reasons, p.Notes = shorten(p.Reasons), shorten(p.Notes)
	return p
}

// shorten returns the first texts, each of a length that can be shown, and how
// many more there were.
func shorten(texts []string) []string {
	if len(texts) > maxReasons {
		more := fmt.Sprintf("… and %d more", len(texts)-maxReasons+1)
		texts = append(slices.Clip(texts[:maxReasons-1]), more)
	}
	short := slices.Clone(texts)
	for i, text := range short {
		if len(text) > maxTextBytes {
			short[i] = strings.ToValidUTF8(text[:maxTextBytes-len("…")], "") + "…"
		}
	}
	return short
}

var errForeign = errors.New("another pod answers at this address")

// parsePart reads a peer's part and checks that it is the member's that was
// asked: an address may have gone to a pod of another group since. It takes a
// small multiple of b's size in memory, whatever b holds.
func parsePart(b []byte, group, id string) (Part, error) {
	// The lists are read one by one, as far as they may go: "{}," is three bytes
	// here and a hundred as a Task.
	type scalars Part
	var w struct {
		scalars
		Reasons json.RawMessage `json:"reasons"`
		Notes   json.RawMessage `json:"notes"`
		Tasks   json.RawMessage `json:"tasks"`
		Joins   json.RawMessage `json:"joins"`
		Hot     struct {
			Total uint64          `json:"total"`
			Keys  json.RawMessage `json:"keys"`
		} `json:"hot"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return Part{}, unreadable(err)
	}
	p := Part(w.scalars)
	switch {
	case p.Format != Format:
		return Part{}, fmt.Errorf("its answer has format %d, this release reads %d", p.Format, Format)
	case p.Group != group:
		return Part{}, fmt.Errorf("%w: one of group %q", errForeign, brief(p.Group))
	case p.ID != id:
		return Part{}, fmt.Errorf("%w: %q", errForeign, brief(p.ID))
	case len(w.Joins) > maxJoinBytes:
		return Part{}, errors.New("its answer counts too many kinds of joins")
	}
	p.Hot.Total = w.Hot.Total
	if err := errors.Join(
		unmarshal(w.Joins, &p.Joins),
		list(w.Reasons, &p.Reasons, maxReasons, jsonText+2),
		list(w.Notes, &p.Notes, maxReasons, jsonText+2),
		list(w.Tasks, &p.Tasks, maxPartTasks, maxTaskBytes),
		list(w.Hot.Keys, &p.Hot.Keys, maxHotKeys, 2*maxKeyBytes),
	); err != nil {
		return Part{}, unreadable(err)
	}
	for i := range p.Tasks {
		if t := &p.Tasks[i]; t.Partition < 0 || t.Partition > maxPartition {
			return Part{}, fmt.Errorf("its answer names a partition %d", t.Partition)
		}
	}
	return p.bounded(), nil
}

func unreadable(err error) error { return fmt.Errorf("its answer cannot be read: %w", err) }

// brief is a name from outside, as much as a message needs.
func brief(name string) string { return shorten([]string{name})[0][:min(len(name), 100)] }

func unmarshal(b json.RawMessage, to any) error {
	if len(b) == 0 {
		return nil // no such field
	}
	return json.Unmarshal(b, to)
}

// list reads a JSON array, the first most entries of it, none of which may have
// more than size bytes.
func list[T any](b json.RawMessage, to *[]T, most, size int) error {
	if len(b) == 0 || string(b) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return fmt.Errorf("%.20s… is no list: %w", b, err)
	}
	all := []T{}
	var raw json.RawMessage
	for len(all) < most && d.More() {
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if len(raw) > size {
			return fmt.Errorf("an entry of %d bytes", len(raw))
		}
		var one T
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		all = append(all, one)
	}
	*to = all
	return nil
}
