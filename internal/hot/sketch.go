// Package hot finds the keys that make up most of a stream in a fixed amount
// of memory, by the space-saving algorithm (Metwally, Agrawal, El Abbadi:
// "Efficient Computation of Frequent and Top-k Elements in Data Streams",
// ICDT 2005).
//
// It counts what it is given and nothing else: it must never read a clock,
// start a goroutine or lock. Whoever owns a sketch synchronises it, and decides
// what of a stream is sampled and when the past is forgotten (Recent).
package hot

import (
	"cmp"
	"slices"
)

// Sketch counts the keys of a stream with room for a fixed number of them. A
// key that is not in it takes the place of the one with the least count, and
// inherits that count as its possible error. With N the sum of what was added:
// a count is never too low; it is too high by its Error at most, which is never
// above N/capacity; and every key whose true count is above N/capacity is in it.
//
// A Sketch is not safe for concurrent use.
type Sketch struct {
	capacity int
	ids      map[string]int32 // key → its entry
	entries  []entry
	least    []int32 // a heap of entries, the least count first
	total    uint64
}

// entry is one counted key.
type entry struct {
	name         string
	count, error uint64
	at           int32 // where in the heap
}

// Key is a counted key.
type Key struct {
	// Name is the key, byte for byte.
	Name string
	// Count is an upper bound of what was added for the key.
	Count uint64
	// Error is how much too high Count may be.
	Error uint64
}

// Sure is the lower bound of what was added for the key.
func (k Key) Sure() uint64 { return k.Count - k.Error }

// New makes a Sketch for capacity keys; below 1 counts as 1. It keeps a copy
// of each key that it holds, whatever its length: bound keys that may be long.
func New(capacity int) *Sketch {
	capacity = max(capacity, 1)
	return &Sketch{capacity: capacity, ids: make(map[string]int32, capacity)}
}

// Add counts one occurrence of key. It does not keep key, and does not allocate
// where the sketch holds it.
func (s *Sketch) Add(key []byte) { s.AddN(key, 1) }

// AddN counts n occurrences of key: a sampled record stands for those that were
// passed over.
func (s *Sketch) AddN(key []byte, n uint64) {
	s.total += n
	if id, ok := s.ids[string(key)]; ok {
		e := &s.entries[id]
		e.count += n
		s.down(e.at)
		return
	}
	if len(s.entries) < s.capacity {
		s.insert(string(key), n)
		return
	}
	s.replace(string(key), n)
}

// insert takes a free place.
func (s *Sketch) insert(name string, n uint64) {
	id := int32(len(s.entries))
	s.ids[name] = id
	s.entries = append(s.entries, entry{name: name, count: n, at: id})
	s.least = append(s.least, id)
	s.up(id)
}

// replace takes the place of the key with the least count.
func (s *Sketch) replace(name string, n uint64) {
	id := s.least[0]
	e := &s.entries[id]
	delete(s.ids, e.name)
	s.ids[name] = id
	e.name, e.error = name, e.count
	e.count += n
	s.down(0)
}

// Total is the sum of all that was added, for keys that were replaced as well.
func (s *Sketch) Total() uint64 { return s.total }

// Top returns the n keys with the highest counts, highest first; of equal
// counts the surer one.
func (s *Sketch) Top(n int) []Key {
	keys := make([]Key, 0, len(s.entries))
	for i := range s.entries {
		keys = append(keys, s.entries[i].key())
	}
	return highest(keys, n)
}

func (e *entry) key() Key { return Key{Name: e.name, Count: e.count, Error: e.error} }

// highest sorts keys and cuts all but the first n off.
func highest(keys []Key, n int) []Key {
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Name, b.Name))
	})
	return keys[:min(max(n, 0), len(keys))]
}

// get returns what is known of a key: one that the sketch does not hold may
// have occurred as often as the least count, where there was no room left.
func (s *Sketch) get(name string) Key {
	if id, ok := s.ids[name]; ok {
		return s.entries[id].key()
	}
	if len(s.entries) < s.capacity {
		return Key{Name: name}
	}
	floor := s.entries[s.least[0]].count
	return Key{Name: name, Count: floor, Error: floor}
}

// clear forgets everything and keeps the memory.
func (s *Sketch) clear() {
	clear(s.ids)
	clear(s.entries)
	s.entries, s.least, s.total = s.entries[:0], s.least[:0], 0
}

// up moves a heap element towards the root.
func (s *Sketch) up(at int32) {
	for at > 0 {
		parent := (at - 1) / 2
		if !s.less(at, parent) {
			return
		}
		s.swap(at, parent)
		at = parent
	}
}

// down moves a heap element away from the root.
func (s *Sketch) down(at int32) {
	n := int32(len(s.least))
	for {
		child := 2*at + 1
		if child >= n {
			return
		}
		if child+1 < n && s.less(child+1, child) {
			child++
		}
		if !s.less(child, at) {
			return
		}
		s.swap(at, child)
		at = child
	}
}

func (s *Sketch) less(a, b int32) bool {
	return s.entries[s.least[a]].count < s.entries[s.least[b]].count
}

func (s *Sketch) swap(a, b int32) {
	s.least[a], s.least[b] = s.least[b], s.least[a]
	s.entries[s.least[a]].at = a
	s.entries[s.least[b]].at = b
}
