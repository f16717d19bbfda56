package placement

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// symbol is the i-th of a set of symbols.
func symbol(i int) []byte { return fmt.Appendf(nil, "SYM%04d.JK", i) }

// at is where a placer puts a key that it must know.
func at(t testing.TB, p *Placer, key []byte, partitions int32) int32 {
	t.Helper()
	n, ok := p.Partition(key, partitions)
	if !ok {
		t.Fatalf("%q has no place among %d partitions", key, partitions)
	}
	return n
}

func TestDetectiveNamesThePartitioner(t *testing.T) {
	for _, name := range Names() {
		for _, partitions := range []int32{2, 3, 6, 12, 100} {
			p, d := placer(t, Options{Partitioner: name}), NewDetective(partitions)
			for i := range 60 {
				d.See(symbol(i), at(t, p, symbol(i), partitions))
			}
			if got, share, seen := d.Likely(); got != name || share != 1 || seen != 60 {
				t.Errorf("%s over %d partitions: %q explains %v of %d", name, partitions, got, share, seen)
			}
		}
	}
}

// Shown misplaced keys alone it names how they are placed, however few they
// are among all.
func TestDetectiveOfMisplacedKeys(t *testing.T) {
	const partitions = 2 // where half of any other's keys lie right by chance
	ours, theirs := placer(t, Options{Partitioner: "murmur2"}), placer(t, Options{Partitioner: "crc32"})
	d := NewDetective(partitions)
	for i := range 100 {
		if p := at(t, theirs, symbol(i), partitions); p != at(t, ours, symbol(i), partitions) {
			d.See(symbol(i), p)
		}
	}
	if got, share, seen := d.Likely(); got != "crc32" || share != 1 || seen < 20 || seen > 80 {
		t.Errorf("%q explains %v of %d", got, share, seen)
	}
}

// Two kinds of producers: neither explains what is seen, and one stray in
// twenty-five does not hide who does.
func TestDetectiveOfMixedProducers(t *testing.T) {
	murmur2, crc32 := placer(t, Options{Partitioner: "murmur2"}), placer(t, Options{Partitioner: "crc32"})
	for every, want := range map[int]string{2: "", 25: "murmur2"} {
		d := NewDetective(12)
		for i := range 500 {
			p := murmur2
			if i%every == 0 {
				p = crc32
			}
			d.See(symbol(i), at(t, p, symbol(i), 12))
		}
		if got, share, _ := d.Likely(); got != want || share == 1 {
			t.Errorf("every %d-th foreign: %q explains %v, want %q", every, got, share, want)
		}
	}
}

// The same keys by two kinds of producers are twice as many placements, of
// which each explains its own half.
func TestDetectiveOfKeysInTwoPlaces(t *testing.T) {
	d := NewDetective(12)
	want := 0
	for i := range 100 {
		seen := make(map[int32]bool)
		for _, name := range []string{"murmur2", "crc32"} {
			n := at(t, placer(t, Options{Partitioner: name}), symbol(i), 12)
			seen[n] = true
			d.See(symbol(i), n)
		}
		want += len(seen)
	}
	if got, share, seen := d.Likely(); got != "" || seen != want || share > 0.6 {
		t.Errorf("%q explains %v of %d, want none of %d", got, share, seen, want)
	}
}

// A producer that spreads keys as it likes is nobody's partitioner.
func TestDetectiveOfSpreadKeys(t *testing.T) {
	for _, partitions := range []int32{1, 2, 6} {
		d, rnd := NewDetective(partitions), rand.New(rand.NewPCG(1, 2))
		for i := range 5000 {
			d.See(symbol(i%300), rnd.Int32N(partitions))
		}
		if got, share, seen := d.Likely(); got != "" {
			t.Errorf("%d partitions: %q explains %v of %d", partitions, got, share, seen)
		}
	}
}

// Few keys prove little, and the fewer the fewer partitions there are.
func TestDetectiveWantsEnough(t *testing.T) {
	for partitions, least := range map[int32]int{2: 20, 6: 8, 12: 6} {
		p, d := placer(t, Options{Partitioner: "crc32"}), NewDetective(partitions)
		for i := range least {
			if got, _, _ := d.Likely(); got != "" {
				t.Errorf("%d partitions: %q after %d keys", partitions, got, i)
			}
			for range 100 { // one key is one piece of evidence
				d.See(symbol(i), at(t, p, symbol(i), partitions))
			}
		}
		if got, _, seen := d.Likely(); got != "crc32" || seen != least {
			t.Errorf("%d partitions: %q after %d keys", partitions, got, seen)
		}
	}
}

func TestDetectiveIgnoresWhatSaysNothing(t *testing.T) {
	d := NewDetective(6)
	d.See(nil, 1)
	d.See([]byte{}, 1)
	d.See([]byte("AAPL"), 6) // the topic has grown since
	d.See([]byte("AAPL"), -1)
	if _, _, seen := d.Likely(); seen != 0 {
		t.Errorf("%d placements judged", seen)
	}
}

func TestDetectiveKnowsReservedPartitions(t *testing.T) {
	reserved := []Reserved{{Partition: 2, Symbols: [][]byte{symbol(0), symbol(1)}}}
	configured := placer(t, Options{Partitioner: "murmur2", Reserved: reserved})
	for want, producer := range map[string]*Placer{
		"crc32":           placer(t, Options{Partitioner: "crc32", Reserved: reserved}),
		"fnv1a" + OverAll: placer(t, Options{Partitioner: "fnv1a"}),
		// The configured partitioner, by somebody who has not heard.
		"murmur2" + OverAll: placer(t, Options{Partitioner: "murmur2"}),
	} {
		d := configured.Detective(6)
		for i := range 200 {
			d.See(symbol(i), at(t, producer, symbol(i), 6))
		}
		if got, share, _ := d.Likely(); got != want || share != 1 {
			t.Errorf("%q explains %v, want %q", got, share, want)
		}
	}
}

// A key that has a partition of its own and lies elsewhere says by itself what is
// wrong, however few of them there are.
func TestDetectiveKnowsReservedKeysThatLieElsewhere(t *testing.T) {
	d := placer(t, Options{Partitioner: "murmur2", Reserved: []Reserved{{Partition: 2, Symbols: [][]byte{symbol(0), symbol(1)}}}}).Detective(6)
	check := func(share float64, ok bool) {
		t.Helper()
		if gotShare, got := d.Astray(); got != ok || gotShare != share {
			t.Errorf("%v, %t, want %v, %t", gotShare, got, share, ok)
		}
	}
	check(0, false)
	d.See(symbol(0), 2)
	check(0, false)
	d = placer(t, Options{Partitioner: "murmur2", Reserved: []Reserved{{Partition: 2, Symbols: [][]byte{symbol(0), symbol(1)}}}}).Detective(6)
	d.See(symbol(0), 3)
	d.See(symbol(0), 3)
	check(1, true)
	d.See(symbol(7), 3)
	check(0.5, false)
	for i := range 10 * maxEvidence {
		d.See(symbol(i), int32(i%6))
		if i < 2 {
			d.See(symbol(i), 5)
		}
	}
	left := 0
	for _, explainers := range d.evidence {
		if explainers&isAstray != 0 {
			left++
		}
	}
	if left != d.astray {
		t.Errorf("%d are kept and %d counted", left, d.astray)
	}
	if _, ok := NewDetective(6).Astray(); ok {
		t.Error("nothing is reserved")
	}
}

// More placements than there is room for: what is kept is a sample, whatever
// the order they came in.
func TestDetectiveIsBoundedAndFair(t *testing.T) {
	murmur2, crc32 := placer(t, Options{Partitioner: "murmur2"}), placer(t, Options{Partitioner: "crc32"})
	const keys = 20 * maxEvidence
	d := NewDetective(12)
	for i := range keys {
		p := murmur2
		if i >= keys/2 {
			p = crc32
		}
		d.See(symbol(i), at(t, p, symbol(i), 12))
		if len(d.evidence) > maxEvidence {
			t.Fatalf("%d pieces of evidence", len(d.evidence))
		}
	}
	explained := make(map[string]float64)
	for _, s := range d.suspects {
		explained[s.name] = float64(s.explained) / float64(len(d.evidence))
	}
	// Half of the keys each, and a twelfth of the other half.
	for _, name := range []string{"murmur2", "crc32"} {
		if got := explained[name]; got < 0.45 || got > 0.63 {
			t.Errorf("%s explains %v of the sample", name, got)
		}
	}
	for i := range d.suspects {
		n := 0
		for _, explainers := range d.evidence {
			n += int(explainers >> i & 1)
		}
		if n != d.suspects[i].explained {
			t.Errorf("%s explains %d, counted %d", d.suspects[i].name, n, d.suspects[i].explained)
		}
	}
}

func TestDetectiveDoesNotAllocateForKnownKeys(t *testing.T) {
	d, key := NewDetective(6), []byte("BBCA")
	d.See(key, 1)
	if n := testing.AllocsPerRun(100, func() { d.See(key, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
