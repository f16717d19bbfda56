package plan

import (
	"fmt"
	"math"
	"slices"
)

// slack is what rounding may add to a share or a quotient.
const slack = 1e-9

// searchWork bounds the search for a number of partitions, in symbols placed.
const searchWork = 50_000_000

// size says how many partitions the rates need.
func (p *planner) size() *Sizing {
	hottest := p.demand.hottest(1)[0].Share
	s := &Sizing{
		PeakRate:         p.PeakRate,
		MemberRate:       p.MemberRate,
		Headroom:         math.Floor((p.MemberRate/(hottest*p.PeakRate)-1+slack)*1e4) / 1e4,
		MembersNeeded:    int(evenly(p.PeakRate, p.MemberRate)),
		MaxUsefulMembers: min(p.counts[market], p.counts[notes]),
	}
	s.MembersEnough = p.enough()
	s.PartitionsNeeded, s.Problem = p.needed(p.PeakRate)
	s.PartitionsForDouble, _ = p.needed(2 * p.PeakRate)
	if s.PartitionsNeeded != nil {
		s.PartitionsTooFew, s.PartitionsJudged = p.tooFew(*s.PartitionsNeeded)
	}
	s.Growth = p.growth(s.PartitionsNeeded)
	return s
}

// enough is the least number of members with which none has more to do than it
// can, whichever of the planned partitions it is given: copartition gives each
// its share of them to within one. Nil where one partition is too much.
func (p *planner) enough() *int32 {
	hot := p.demand.hottest(math.MaxInt)
	for n := int32(1); n <= min(p.counts[market], p.counts[notes]); n++ {
		each := (p.demand.indices() + n - 1) / n
		sum := 0.0
		for _, h := range hot[:min(int(each), len(hot))] {
			sum += h.Share
		}
		if sum*p.PeakRate <= p.MemberRate*(1+slack) {
			return &n
		}
	}
	return nil
}

// needed is the least number of partitions with which no index alone is more
// than one member can do at that peak, or nil and the reason why there is none.
func (p *planner) needed(peak float64) (*int32, string) {
	parts := evenly(peak, p.MemberRate)
	if parts > MaxPartitions {
		return nil, fmt.Sprintf("even when it is shared evenly the peak needs %.0f members, and no more than %d partitions are planned with", parts, MaxPartitions)
	}
	first := int32(parts)
	if len(p.Load.Symbols) == 0 {
		return &first, ""
	}
	limit := p.MemberRate/peak + slack
	if symbol, share := p.heaviestSymbol(); share > limit {
		return nil, fmt.Sprintf("symbol \"%s\" alone is %.1f %% of all records, %.0f a second at the peak: no number of partitions divides a symbol, so a member has to do more than %.0f a second, or the symbol less",
			shown(symbol), 100*share, share*peak, p.MemberRate)
	}
	last := int32(min(int(first)+max(searchWork/len(p.load.Symbols), 20), MaxPartitions))
	for n := first; n <= last; n++ {
		if share, ok := p.hottestOf(n); ok && share <= limit {
			return &n, ""
		}
	}
	return nil, fmt.Sprintf("no number up to %d keeps every partition below what one member can do: too many heavy symbols share one", last)
}

// tooFew lists the larger numbers that will not do although the least one will,
// ascending, and the number up to which it has looked: a hash parts symbols
// anew with each number, and with any it may put heavy ones together.
func (p *planner) tooFew(least int32) (failing []int32, last int32) {
	failing = []int32{}
	last = min(judgedTimes*max(least, p.counts[market], p.counts[notes]), MaxPartitions)
	if len(p.Load.Symbols) == 0 {
		return failing, last
	}
	last = min(last, least+int32(max(searchWork/len(p.load.Symbols), 20)))
	limit := p.MemberRate/p.PeakRate + slack
	for n := least + 1; n <= last; n++ {
		if share, ok := p.hottestOf(n); !ok || share > limit {
			failing = append(failing, n)
		}
	}
	return failing, last
}

// judgedTimes is up to how many times the number that is needed, or planned,
// each number is judged: who leaves room takes one of those.
const judgedTimes = 4

// evenly is how many members can do the peak when each does the same, at least
// one.
func evenly(peak, member float64) float64 { return max(math.Ceil(peak/member-slack), 1) }

// alike reports whether both topics place keys in the same partition.
func (p *planner) alike() bool { return p.MarketPartitioner == p.NotificationPartitioner }

// heaviestSymbol returns the symbol with the most records that no number of
// partitions could part.
func (p *planner) heaviestSymbol() (string, float64) {
	sum, heaviest := 0.0, Weight{}
	for _, w := range p.load.Symbols {
		sum += w.Weight
		if w.Weight > heaviest.Weight {
			heaviest = w
		}
	}
	share := heaviest.Weight / sum
	if !p.alike() {
		share *= max(p.demand.part(market), p.demand.part(notes))
	}
	return heaviest.Symbol, share
}

// hottestOf is the share of all records in the hottest of n indices; false
// where a symbol has no place among so few.
func (p *planner) hottestOf(n int32) (float64, bool) {
	shares, sum := make([]float64, n), 0.0
	for _, w := range p.load.Symbols {
		sum += w.Weight
		for s, placer := range p.placers {
			at, ok := placer.Partition([]byte(w.Symbol), n)
			if !ok {
				return 0, false
			}
			shares[at] += w.Weight * p.demand.part(s)
		}
	}
	return slices.Max(shares) / sum, true
}

// growth says what becomes of keys when the topics grow to what is needed, or,
// where they have enough, to twice what they have.
func (p *planner) growth(needed *int32) *Growth {
	most := p.demand.indices()
	to := 2 * most
	if needed != nil && *needed > most {
		to = *needed
	}
	g := &Growth{
		From: map[string]int32{p.MarketTopic: p.counts[market], p.NotificationTopic: p.counts[notes]},
		To:   to,
	}
	sum, moved := 0.0, 0.0
	for _, w := range p.load.Symbols {
		g.Symbols++
		sum += w.Weight
		was, placedBefore := p.placers[market].Partition([]byte(w.Symbol), p.counts[market])
		is, placedAfter := p.placers[market].Partition([]byte(w.Symbol), to)
		if placedBefore && placedAfter && was != is {
			g.MovedSymbols++
			moved += w.Weight
		}
	}
	if sum > 0 {
		g.MovedShare = tidy(moved / sum)
	}
	g.Breaks = p.breaks(g)
	return g
}

// breaks says in plain words what growing breaks.
func (p *planner) breaks(g *Growth) []string {
	keys := "Keys are hashed anew: a symbol's new records lie in another partition than its old ones, unless the hash happens to agree."
	if g.Symbols > 0 {
		whose := "the load's"
		if len(p.Load.Symbols) == 0 {
			whose = "an even load's example of"
		}
		keys = fmt.Sprintf("Keys are hashed anew: of %s %d symbols %d (%.1f %% of the records) get another partition.", whose, g.Symbols, g.MovedSymbols, 100*g.MovedShare)
	}
	return []string{
		keys,
		"Prices: until its next tick, a moved symbol's last price lies in its old partition. joiner asks there, by the counts before the growth (the last eight), before it calls it a miss; such joins are remote where that partition has another owner. Grow again only once every symbol has ticked: one that the hash brings back to a partition that it had before is answered from there until then.",
		"Order: a moved symbol's older records wait in one partition while its newer ones are read from another, so its alerts may leave out of order until the old partition has been read up to the growth. Let the lag fall to 0 first, and the order holds for all but what is in flight.",
		"Topics: all have to grow, both inputs (while their counts differ, joiner goes on with the partitions that it had and is not ready) and both outputs (topics.create does those).",
		"Producers: each sees the new count in its own time, within metadata.max.age.ms (five minutes by default). Until all have, ticks and notifications of one symbol may go to different partitions, and such joins are remote.",
		"None of this happens to a pair of new topics with more partitions: fill market-updates there first, then let the producers of notifications change over.",
	}
}
