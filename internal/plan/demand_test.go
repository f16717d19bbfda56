package plan

import (
	"context"
	"math"
	"testing"

	"joiner/internal/assign"
	"joiner/internal/placement"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Where these lie among 12 partitions (placement's own test has the vectors):
// murmur2 BRK.B 3, MSFT 6, AAPL 9, BTC-USD 9; crc32 0, 7, 0, 8.
func vectors() []Weight {
	return []Weight{{"BRK.B", 1}, {"MSFT", 2}, {"AAPL", 3}, {"BTC-USD", 4}}
}

func TestLoadIsPlacedAndLocal(t *testing.T) {
	o := options(t, 12, "4", assign.Copartition)
	o.Load = Load{Name: "four", Symbols: vectors()}
	r := run(t, o)
	want := []HotPartition{
		{Partition: 9, Share: 0.7, Symbol: "BTC-USD", SymbolShare: 0.4},
		{Partition: 6, Share: 0.2, Symbol: "MSFT", SymbolShare: 0.2},
		{Partition: 3, Share: 0.1, Symbol: "BRK.B", SymbolShare: 0.1},
	}
	if diff := cmp.Diff(want, r.Hottest[:3], near()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// m4 has the partitions 9 to 11.
	if s := r.Steps[0].Strategies[0]; s.LocalShare != 1 || s.Bottleneck != "m4" || s.BottleneckShare != 0.7 {
		t.Errorf("%v local, %s with %v", s.LocalShare, s.Bottleneck, s.BottleneckShare)
	}
}

func near() cmp.Option {
	return cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
}

// Notifications placed by another hash than the ticks: local are those whose
// two partitions happen to have one owner, of m1 to m4 with three each.
func TestTwoPartitioners(t *testing.T) {
	o := options(t, 12, "4", assign.Copartition)
	o.Load = Load{Name: "four", Symbols: vectors()}
	o.NotificationPartitioner = "crc32"
	r := run(t, o)
	s := r.Steps[0].Strategies[0]
	// BRK.B 3 and 0: m2, m1. MSFT 6 and 7: m3 both. AAPL 9 and 0, BTC-USD 9 and 8.
	if s.Colocated != 12 || s.LocalShare != 0.2 {
		t.Errorf("%d together, %v local, want MSFT's 0.2", s.Colocated, s.LocalShare)
	}
	// m4 has the ticks of AAPL and BTC-USD, and nobody's notifications.
	if want := 0.7 * 10 / 11; s.Bottleneck != "m4" || math.Abs(s.BottleneckShare-want) > 1e-9 {
		t.Errorf("%s with %v, want m4 with %v", s.Bottleneck, s.BottleneckShare, want)
	}
}

func TestReservedPartition(t *testing.T) {
	o := options(t, 12, "4", assign.Copartition)
	o.Load = Load{Name: "four", Symbols: vectors()}
	o.Reserved = []placement.Reserved{{Partition: 11, Symbols: [][]byte{[]byte("MSFT")}}}
	for _, h := range run(t, o).Hottest {
		if h.Symbol == "MSFT" && h.Partition != 11 || h.Partition == 11 && h.Symbol != "MSFT" {
			t.Errorf("partition %d has %s", h.Partition, h.Symbol)
		}
	}
}

// Local share and bottleneck, worked out anew record by record.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t, rapid.Int32Range(1, 12).Draw(t, "market"), "1", rapid.SampledFrom(assign.Strategies()).Draw(t, "strategy"))
		o.NotificationPartitions = rapid.Int32Range(1, 12).Draw(t, "notes")
		o.MarketPartitioner = rapid.SampledFrom(placement.Names()).Draw(t, "market by")
		o.NotificationPartitioner = rapid.SampledFrom(placement.Names()).Draw(t, "notes by")
		o.TicksPerNotification = float64(rapid.IntRange(0, 20).Draw(t, "ticks"))
		o.Events = drawEvents(t)
		o.Load = generated(mustSkew(t, "zipf:0.9"), 40)
		p, err := newPlanner(o)
		if err != nil {
			t.Fatalf("%v", err)
		}
		outcomes, err := p.history(context.Background(), o.Strategies[0], inOrder, nil)
		if err != nil {
			t.Fatalf("%v", err)
		}
		for _, got := range outcomes {
			local, work := 0.0, make(map[string]float64)
			for _, w := range o.Load.Symbols {
				tick, _ := p.placers[market].Partition([]byte(w.Symbol), o.MarketPartitions)
				note, _ := p.placers[notes].Partition([]byte(w.Symbol), o.NotificationPartitions)
				tickOwner, noteOwner := got.Ownership[testMarket][tick], got.Ownership[testNotes][note]
				if noteOwner != "" && noteOwner == tickOwner {
					local += w.Weight
				}
				work[tickOwner] += w.Weight * o.TicksPerNotification / (o.TicksPerNotification + 1)
				work[noteOwner] += w.Weight / (o.TicksPerNotification + 1)
			}
			delete(work, "")
			most := 0.0
			for _, w := range work {
				most = max(most, w)
			}
			if math.Abs(got.LocalShare-local) > 1e-6 || math.Abs(got.BottleneckShare-most) > 1e-6 || math.Abs(work[got.Bottleneck]-most) > 1e-6 {
				t.Fatalf("%v local, %s with %v; want %v, %v", got.LocalShare, got.Bottleneck, got.BottleneckShare, local, work)
			}
		}
	})
}
