package placement

import (
	"hash/maphash"
	"math/bits"
)

// Detective finds the partitioner that explains where keys were seen. A key
// that is seen a thousand times in one partition is one piece of evidence, or
// the hottest key would decide alone.
//
// It judges what it is shown: shown every key or a fair sample of them, the
// share is that of the topic's keys; shown misplaced keys alone, it is that of
// the misplaced ones, and the configured partitioner explains none of them.
//
// It takes bounded memory (of more placements than it has room for it keeps a
// sample that does not depend on their order) and is not safe for concurrent
// use.
type Detective struct {
	partitions int32
	suspects   []suspect
	reserved   map[string]int32 // the partitions of keys that have one of their own
	astray     int              // placements of such keys elsewhere
	seed       maphash.Seed
	evidence   map[uint64]uint8 // a placement's hash → the suspects that explain it, a bit each
	halvings   int              // only hashes with so many trailing zeros are kept
}

// isAstray is the bit of such a placement among those of the suspects.
const isAstray = 1 << 7

// suspect is a way to place keys.
type suspect struct {
	name      string
	places    *Placer
	explained int
}

// OverAll is what the name of a partitioner ends in, as Likely gives it, where
// keys lie as it places them over all partitions although some are reserved:
// their producer does not know of that.
const OverAll = " over all partitions"

const (
	// explains is the share of the placements that the partitioner of (nearly)
	// all of a topic's producers must explain.
	explains = 0.95
	// byChance is one in how many wrong partitioners may explain as much.
	byChance = 1_000_000
	// maxEvidence bounds what a Detective keeps, some 100 KiB.
	maxEvidence = 4096
)

// NewDetective makes a Detective for a topic of that many partitions without
// reserved ones.
func NewDetective(partitions int32) *Detective { return (&Placer{}).Detective(partitions) }

// Detective makes a Detective for a topic of that many partitions. It knows the
// reserved ones, and suspects producers that do not.
func (p *Placer) Detective(partitions int32) *Detective {
	d := &Detective{partitions: partitions, seed: maphash.MakeSeed(), evidence: make(map[uint64]uint8), reserved: p.symbols}
	for _, name := range Names() {
		d.suspect(name, name, p)
	}
	if len(p.reserved) == 0 {
		return d
	}
	for _, name := range Names() {
		d.suspect(name+OverAll, name, &Placer{})
	}
	return d
}

func (d *Detective) suspect(name, partitioner string, reserved *Placer) {
	hash, err := ByName(partitioner)
	if err != nil {
		return // Names are known
	}
	d.suspects = append(d.suspects, suspect{
		name:   name,
		places: &Placer{hash: hash, symbols: reserved.symbols, reserved: reserved.reserved},
	})
}

// See takes note of a key in a partition. Null and empty keys say nothing, nor
// does a partition that the topic did not have when the Detective was made. It
// does not keep key.
func (d *Detective) See(key []byte, partition int32) {
	if len(key) == 0 || partition < 0 || partition >= d.partitions {
		return
	}
	id := d.id(key, partition)
	if _, known := d.evidence[id]; known || bits.TrailingZeros64(id) < d.halvings {
		return
	}
	explainers := uint8(0)
	for i := range d.suspects {
		s := &d.suspects[i]
		if want, ok := s.places.Partition(key, d.partitions); ok && want == partition {
			s.explained++
			explainers |= 1 << i
		}
	}
	if own, ok := d.reserved[string(key)]; ok && own != partition {
		explainers |= isAstray
		d.astray++
	}
	d.evidence[id] = explainers
	if len(d.evidence) > maxEvidence {
		d.halve()
	}
}

func (d *Detective) id(key []byte, partition int32) uint64 {
	var h maphash.Hash
	h.SetSeed(d.seed)
	_, _ = h.Write(key) // never fails
	maphash.WriteComparable(&h, partition)
	return h.Sum64()
}

// halve drops a random half of the evidence: the half whose hashes are odd in
// the next bit, so that whatever comes later has the same chance.
func (d *Detective) halve() {
	d.halvings++
	for id, explainers := range d.evidence {
		if bits.TrailingZeros64(id) >= d.halvings {
			continue
		}
		delete(d.evidence, id)
		for i := range d.suspects {
			d.suspects[i].explained -= int(explainers >> i & 1)
		}
		if explainers&isAstray != 0 {
			d.astray--
		}
	}
}

// Likely names the partitioner that explains best what was seen, one of Names
// or, where partitions are reserved, one of them and OverAll. share is which
// part of the placements it explains, 0 to 1, and seen how many different ones
// were judged. The name is "" where none explains 95 % of them, or where so few
// were seen that another partitioner would explain as many once in a million
// times: 20 keys with two partitions, 8 with six, 6 with twelve.
func (d *Detective) Likely() (name string, share float64, seen int) {
	seen = len(d.evidence)
	best := suspect{}
	for _, s := range d.suspects {
		if s.explained > best.explained {
			best = s
		}
	}
	if best.explained == 0 {
		return "", 0, seen
	}
	share = float64(best.explained) / float64(seen)
	if share < explains || !d.beyondChance(best.explained) {
		return "", share, seen
	}
	return best.name, share, seen
}

// Astray reports whether the placements that were seen are, for 95 % of them and
// more, of keys that have a reserved partition and lie elsewhere: no partitioner is
// needed to explain that, and few keys suffice to say so. share is which part of them
// are, 0 to 1.
func (d *Detective) Astray() (share float64, ok bool) {
	if d.astray == 0 {
		return 0, false
	}
	share = float64(d.astray) / float64(len(d.evidence))
	return share, share >= explains
}

// beyondChance reports whether a partitioner that has nothing to do with where
// keys lie explains so many of them less than once in byChance times: each of
// them with the chance of one in the number of partitions.
func (d *Detective) beyondChance(explained int) bool {
	odds := int64(1) // and stays it with one partition, where anything explains anything
	for range explained {
		if odds *= int64(d.partitions); odds >= byChance {
			return true
		}
	}
	return false
}

// Partitions is the number of partitions that it was made for.
func (d *Detective) Partitions() int32 { return d.partitions }
