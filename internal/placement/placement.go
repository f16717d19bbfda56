// Package placement answers one question: which partition does a key belong
// to, given how the producers of its topic place keys?
//
// It must never talk to Kafka, and a Placer must never keep what it was asked,
// or allocate: it is asked for every consumed record. It judges where a key
// should be, never where a record should go. A Detective answers the reverse
// question: given where keys are, how do their producers place them?
package placement

import (
	"fmt"
	"slices"
)

// Custom is the name of the partitioner nobody knows: placement is not judged.
const Custom = "custom"

// Reserved gives a set of keys a partition of their own.
type Reserved struct {
	// Partition is the partition set aside, 0 or above.
	Partition int32
	// Symbols are the keys that belong there, compared byte for byte.
	Symbols [][]byte
}

// Options say how the producers of one topic place keys.
type Options struct {
	// Topic is only named in errors.
	Topic string
	// Partitioner is one of Names or Custom.
	Partitioner string
	// Reserved lists the partitions set aside. Several entries may share a
	// partition; no symbol may be in two of them.
	Reserved []Reserved
}

// Placer knows where the keys of one topic belong. It does not change after
// New and may be used from any goroutine.
type Placer struct {
	hash     Partitioner      // nil under Custom
	symbols  map[string]int32 // reserved keys
	reserved []int32          // reserved partitions, ascending, each once
}

// New returns a Placer, or an error that names the topic and the entry that is
// wrong: an unknown partitioner, a negative partition, an empty symbol (records
// without a key are placed nowhere in particular), or a symbol reserved twice.
func New(opts Options) (*Placer, error) {
	p := &Placer{symbols: make(map[string]int32)}
	if opts.Partitioner != Custom {
		hash, err := ByName(opts.Partitioner)
		if err != nil {
			return nil, fmt.Errorf("topic %q: %w", opts.Topic, err)
		}
		p.hash = hash
	}
	for _, r := range opts.Reserved {
		if err := p.reserve(r); err != nil {
			return nil, fmt.Errorf("topic %q: %w", opts.Topic, err)
		}
	}
	slices.Sort(p.reserved)
	p.reserved = slices.Compact(p.reserved)
	return p, nil
}

func (p *Placer) reserve(r Reserved) error {
	if r.Partition < 0 {
		return fmt.Errorf("reserved partition %d is negative", r.Partition)
	}
	p.reserved = append(p.reserved, r.Partition)
	for _, symbol := range r.Symbols {
		if len(symbol) == 0 {
			return fmt.Errorf("reserved partition %d has an empty symbol", r.Partition)
		}
		if other, ok := p.symbols[string(symbol)]; ok && other != r.Partition {
			return fmt.Errorf("symbol %q is reserved for partition %d and for partition %d", symbol, other, r.Partition)
		}
		p.symbols[string(symbol)] = r.Partition
	}
	return nil
}

// Partition returns the partition that key belongs to in a topic of that many
// partitions: reserved keys have theirs, all others hash modulo the number of
// the partitions that are left, which are picked among in ascending order.
//
// It returns false where nobody can tell: under Custom, for a null or empty key
// (producers spread those as they like), for a key whose reserved partition
// does not exist, and where every partition is reserved for others.
func (p *Placer) Partition(key []byte, partitions int32) (int32, bool) {
	if p.hash == nil || partitions <= 0 {
		return 0, false
	}
	if own, ok := p.symbols[string(key)]; ok {
		return own, own < partitions
	}
	return p.hashed(key, partitions)
}

// hashed is where key belongs as one without a partition of its own.
func (p *Placer) hashed(key []byte, partitions int32) (int32, bool) {
	if p.hash == nil || len(key) == 0 || partitions <= 0 {
		return 0, false
	}
	left := partitions - p.reservedBelow(partitions)
	if left == 0 {
		return 0, false
	}
	return p.pick(p.hash.Partition(key, left)), true
}

// Former returns the partition that key belonged to when the topic had fewer
// partitions. It differs from Partition for reserved keys whose partition came
// with the growth: before, they were keys like all others.
func (p *Placer) Former(key []byte, partitions int32) (int32, bool) {
	if own, ok := p.symbols[string(key)]; ok && own >= partitions {
		return p.hashed(key, partitions)
	}
	return p.Partition(key, partitions)
}

// WellPlaced reports whether key may lie in partition, in a topic that has that
// many partitions now and had these before it grew, as far as is known. Records
// written before a growth stay where the old count put them, so all are right.
// Where nobody can tell, a key is never misplaced.
func (p *Placer) WellPlaced(key []byte, partition, partitions int32, former []int32) bool {
	want, known := p.Partition(key, partitions)
	if !known || want == partition {
		return true
	}
	for _, n := range former {
		if want, known := p.Former(key, n); known && want == partition {
			return true
		}
	}
	return false
}

// reservedBelow counts the reserved partitions that exist.
func (p *Placer) reservedBelow(partitions int32) int32 {
	n := int32(0)
	for _, r := range p.reserved {
		if r < partitions {
			n++
		}
	}
	return n
}

// pick returns the partition with that many unreserved ones below it.
func (p *Placer) pick(rank int32) int32 {
	for _, r := range p.reserved {
		if r > rank {
			break
		}
		rank++
	}
	return rank
}
