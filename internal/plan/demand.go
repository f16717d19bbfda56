package plan

import (
	"cmp"
	"fmt"
	"slices"

	"joiner/internal/placement"
)

// The topics, as indices.
const (
	market = iota
	notes
	sides
)

// demand is a load laid out over partitions. Shares are of 1.
type demand struct {
	// side gives each topic's share of its own records by partition.
	side [sides][]float64
	// pairs says how much of the notifications lies where, and where their
	// prices are.
	pairs []pair
	// ticks is how many market updates come with one notification.
	ticks float64
	// heaviest is the symbol with the most records of each index; empty where
	// nobody knows symbols.
	heaviest []Weight
}

// pair is notifications that lie in one partition, and their symbols' ticks in
// another.
type pair struct {
	note, market int32
	share        float64
}

// even spreads everything evenly over n partitions of both topics.
func even(n int32, ticks float64) *demand {
	d := &demand{ticks: ticks, heaviest: make([]Weight, n)}
	for s := range d.side {
		d.side[s] = make([]float64, n)
		for p := range d.side[s] {
			d.side[s][p] = 1 / float64(n)
		}
	}
	for p := range n {
		d.pairs = append(d.pairs, pair{p, p, 1 / float64(n)})
	}
	return d
}

// place lays symbols out as their producers would. The error names a symbol
// that no partition is known for.
func place(symbols []Weight, placers [sides]*placement.Placer, counts [sides]int32, ticks float64) (*demand, error) {
	d := &demand{ticks: ticks, heaviest: make([]Weight, max(counts[market], counts[notes]))}
	for s := range d.side {
		d.side[s] = make([]float64, counts[s])
	}
	sum := 0.0
	for _, w := range symbols {
		sum += w.Weight
	}
	pairs := make(map[[sides]int32]float64)
	for _, w := range symbols {
		share := w.Weight / sum
		var at [sides]int32
		for s := range at {
			p, ok := placers[s].Partition([]byte(w.Symbol), counts[s])
			if !ok {
				return nil, fmt.Errorf("symbol %q has no place among %d partitions", w.Symbol, counts[s])
			}
			at[s] = p
			d.side[s][p] += share
		}
		d.weigh(at, w.Symbol, share)
		pairs[at] += share
	}
	for at, share := range pairs {
		d.pairs = append(d.pairs, pair{at[notes], at[market], share})
	}
	slices.SortFunc(d.pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a.note, b.note), cmp.Compare(a.market, b.market)) })
	return d, nil
}

// weigh keeps the heaviest symbol of each index.
func (d *demand) weigh(at [sides]int32, symbol string, share float64) {
	if at[market] == at[notes] {
		d.weighOne(at[market], Weight{symbol, share})
		return
	}
	for s, p := range at {
		d.weighOne(p, Weight{symbol, share * d.part(s)})
	}
}

func (d *demand) weighOne(index int32, w Weight) {
	if w.Weight > d.heaviest[index].Weight {
		d.heaviest[index] = w
	}
}

// part is what a topic makes of all records.
func (d *demand) part(side int) float64 {
	if side == market {
		return d.ticks / (d.ticks + 1)
	}
	return 1 / (d.ticks + 1)
}

// index returns an index's share of all records: what a pod that owns it alone
// has to do.
func (d *demand) index(p int32) float64 {
	total := 0.0
	for s := range d.side {
		if int(p) < len(d.side[s]) {
			total += d.side[s][p] * d.part(s)
		}
	}
	return total
}

// indices is the number of indices that exist in either topic.
func (d *demand) indices() int32 { return int32(max(len(d.side[market]), len(d.side[notes]))) }

// hottest lists up to n indices with the most records, the most first. There is
// at least one.
func (d *demand) hottest(n int) []HotPartition {
	hot := make([]HotPartition, 0, d.indices())
	for p := range d.indices() {
		if share := tidy(d.index(p)); share > 0 {
			hot = append(hot, HotPartition{Partition: p, Share: share, Symbol: d.heaviest[p].Symbol, SymbolShare: tidy(d.heaviest[p].Weight)})
		}
	}
	slices.SortStableFunc(hot, func(a, b HotPartition) int { return cmp.Compare(b.Share, a.Share) })
	return hot[:min(n, len(hot))]
}
