// Package keys watches the keys that the tasks of a pod consume: which are the
// hottest of each partition, and what those that lie in another partition than
// they belong to have in common.
//
// It is told of every record, so it must cost next to nothing: of the hottest
// it sees a sample (partition.go), of misplaced ones the first of each run of a
// merge (misplaced.go). It must never delay a record, change where one goes, or
// put a key into anything but a log line, bounded and printable, and the answer
// of Hottest.
package keys

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/internal/sampled"
)

// Places tells where keys belong, under the partition counts of now. Its
// methods are called by any goroutine and must not block.
type Places interface {
	// Expected is the partition that a key of the side's topic belongs to; ok is
	// false where nobody can tell.
	Expected(side record.Side, key []byte) (partition int32, ok bool)
	// Partitions is how many the side's topic has; 0 unknown.
	Partitions(side record.Side) int32
	// Detective makes one for the side's topic as it is now.
	Detective(side record.Side) *placement.Detective
}

// Options is what a Watch needs; every field without a remark is required.
type Options struct {
	// Topics are the names of the two inputs, Partitioners how their producers
	// place keys, and Settings the configuration keys that say so, by side.
	Topics, Partitioners, Settings [record.Sides]string
	// BySymbol says that what is judged of a topic's records is not their key but
	// their symbol, as it is where prices are looked for by something else than the
	// key.
	BySymbol [record.Sides]bool

	Places Places
	Faults *sampled.Log
	Now    func() time.Time // nil: time.Now
}

// Watch watches the keys of a pod. Any goroutine may use it.
type Watch struct {
	o      Options
	topics [record.Sides]topic

	mu   sync.Mutex
	open map[int32]*Partition
}

// New makes a Watch.
func New(o Options) *Watch {
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &Watch{o: o, open: make(map[int32]*Partition)}
	for i := range w.topics {
		w.topics[i].init(w, record.Side(i))
	}
	return w
}

// Hot is a symbol and what it surely had of the records that were consumed
// lately: too few of them by 1 % of all at most, and never too many but for the
// chance of sampling.
type Hot struct {
	Symbol  string
	Records uint64
	Share   float64 // of all records, above 0 and up to 1
}

// Hottest returns the n symbols with the most records, ticks and notifications
// together, over all partitions of this pod, the hottest first, and the number
// of all records, so that pods can be added up. "Lately" is one
// to two minutes for a busy partition, the latest thousand or two of its records
// for a quiet one; partitions without a record for ten minutes do not count. A
// symbol is cut after 256 bytes and may not be UTF-8.
func (w *Watch) Hottest(n int) (hottest []Hot, total uint64) {
	sums := make(map[string]uint64)
	for _, p := range w.partitions() {
		for i := range p.sides {
			total += p.sides[i].addTo(sums, w.o.Now())
		}
	}
	hottest = make([]Hot, 0, len(sums))
	for symbol, count := range sums {
		hottest = append(hottest, Hot{Symbol: symbol, Records: count, Share: float64(count) / float64(total)})
	}
	slices.SortFunc(hottest, func(a, b Hot) int {
		return cmp.Or(cmp.Compare(b.Records, a.Records), cmp.Compare(a.Symbol, b.Symbol))
	})
	return hottest[:min(max(n, 0), len(hottest))], total
}

// Misplaced tells whether keys of a topic were misplaced in the last ten minutes.
func (w *Watch) Misplaced(side record.Side) bool { return w.topics[side].note() != "" }

func (w *Watch) partitions() []*Partition {
	w.mu.Lock()
	defer w.mu.Unlock()
	open := make([]*Partition, 0, len(w.open))
	for _, p := range w.open {
		open = append(open, p)
	}
	return open
}

// Notes says, a sentence a topic, where keys were misplaced in the last ten
// minutes; nil where none were.
func (w *Watch) Notes() []string {
	var notes []string
	for i := range w.topics {
		if note := w.topics[i].note(); note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}
