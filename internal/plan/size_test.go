package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"joiner/internal/assign"
	"joiner/internal/load"
	"joiner/internal/placement"

	"pgregory.net/rapid"
)

func mustSkew(t fatal, text string) load.Skew {
	t.Helper()
	skew, err := load.ParseSkew(text)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return skew
}

func sized(t fatal, o Options, peak, member float64) *Sizing {
	t.Helper()
	o.PeakRate, o.MemberRate = peak, member
	return run(t, o).Sizing
}

func TestSizeOfAnEvenLoad(t *testing.T) {
	for _, tc := range []struct {
		partitions   int32
		peak, member float64
		needed       int32
		headroom     float64
	}{
		{12, 50_000, 9_000, 6, 1.16},
		{6, 50_000, 9_000, 6, 0.08},
		{5, 50_000, 9_000, 6, -0.1},
		{12, 9_000, 9_000, 1, 11},
		{12, 9_001, 9_000, 2, 10.9986},
	} {
		s := sized(t, options(t, tc.partitions, "4", assign.Copartition), tc.peak, tc.member)
		if s.PartitionsNeeded == nil || *s.PartitionsNeeded != tc.needed || math.Abs(s.Headroom-tc.headroom) > 1.1e-4 {
			t.Errorf("%+v: %+v", tc, s)
		}
		if s.MembersNeeded != int(tc.needed) || s.MaxUsefulMembers != tc.partitions {
			t.Errorf("%+v: %d to %d members", tc, s.MembersNeeded, s.MaxUsefulMembers)
		}
		if want := max(tc.needed, tc.partitions); want == tc.needed && want > tc.partitions && s.Growth.To != want || want == tc.partitions && s.Growth.To != 2*want {
			t.Errorf("%+v: growth to %d", tc, s.Growth.To)
		}
	}
	if run(t, options(t, 6, "4", assign.Copartition)).Sizing != nil {
		t.Error("a size that nobody asked for")
	}
}

// A member's part is whole partitions: what would do if the load were shared
// evenly may not.
func TestMembersThatAreEnough(t *testing.T) {
	for _, tc := range []struct {
		partitions    int32
		peak, member  float64
		needed, among int
		text          string
	}{
		{6, 50_000, 10_000, 5, 6, "at least 5, and 6 to be enough whichever partitions each is given"},
		{12, 50_000, 10_000, 5, 6, "at least 5, and 6 to be enough whichever partitions each is given"},
		{10, 50_000, 10_000, 5, 5, "5"},
		{12, 9_000, 9_000, 1, 1, "1"},
		{4, 50_000, 10_000, 5, 0, "at least 5, and no number is enough for these partitions"},
	} {
		s := sized(t, options(t, tc.partitions, "4", assign.Copartition), tc.peak, tc.member)
		got := 0
		if s.MembersEnough != nil {
			got = int(*s.MembersEnough)
		}
		if s.MembersNeeded != tc.needed || got != tc.among || s.members() != tc.text {
			t.Errorf("%+v: %d needed, %d are enough: %s", tc, s.MembersNeeded, got, s.members())
		}
	}
}

// With as many members as are enough none is over its rate, however they came
// and went before.
func TestEnoughMembersKeepUp(t *testing.T) {
	for _, skew := range []string{"", "zipf:0.9", "hot:0.15"} {
		o := options(t, 24, "4", assign.Copartition)
		if skew != "" {
			o.Load = generated(mustSkew(t, skew), 1000)
		}
		enough := sized(t, o, 40_000, 10_000).MembersEnough
		if enough == nil {
			t.Fatalf("%s: no number is enough", skew)
		}
		o.Events = events(t, fmt.Sprintf("3,9,-m2,-m4,5,%d", *enough))
		o.PeakRate, o.MemberRate = 40_000, 10_000
		steps := run(t, o).Steps
		last := steps[len(steps)-1].Strategies[0]
		if rate := last.BottleneckShare * 40_000; rate > 10_001 {
			t.Errorf("%s: of %d members one has %.0f records a second", skew, *enough, rate)
		}
	}
}

func TestSymbolTooHotForAnyNumber(t *testing.T) {
	o := options(t, 12, "4", assign.Copartition)
	o.Load = generated(mustSkew(t, "hot:0.3"), 1000)
	s := sized(t, o, 50_000, 9_000)
	if s.PartitionsNeeded != nil || !strings.Contains(s.Problem, `"AAAA"`) || s.Headroom >= 0 {
		t.Errorf("%+v", s)
	}
	if s := sized(t, o, 50_000, 16_000); s.PartitionsNeeded == nil || s.Problem != "" {
		t.Errorf("a member can do the hottest symbol: %+v", s)
	}
	// With ticks and notifications in two places a half may fit.
	o.NotificationPartitioner = "crc32"
	if s := sized(t, o, 50_000, 14_500); s.PartitionsNeeded == nil {
		t.Errorf("%+v", s)
	}
	if s := sized(t, o, 50_000, 13_000); s.PartitionsNeeded != nil {
		t.Errorf("%+v", s)
	}
}

func TestMorePartitionsThanAreCounted(t *testing.T) {
	if s := sized(t, options(t, 6, "4", assign.Copartition), 1e9, 1); s.PartitionsNeeded != nil || s.Problem == "" {
		t.Errorf("%+v", s)
	}
}

// The number is the first of all that will do, and those that are said to be too
// few again are all there are, found here by placing anew.
func TestNeededIsTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(t, rapid.Int32Range(1, 20).Draw(t, "partitions"), "2", assign.Copartition)
		o.MarketPartitioner = rapid.SampledFrom(placement.Names()).Draw(t, "by")
		o.NotificationPartitioner = o.MarketPartitioner
		o.Load = generated(mustSkew(t, rapid.SampledFrom([]string{"uniform", "zipf:0.7", "hot:0.1"}).Draw(t, "load")), 60)
		member := float64(rapid.IntRange(110, 900).Draw(t, "of 1000"))
		s := sized(t, o, 1000, member)
		hash, err := placement.ByName(o.MarketPartitioner)
		if err != nil {
			t.Fatalf("%v", err)
		}
		fits := func(n int32) bool {
			rate := make([]float64, n)
			for _, w := range o.Load.Symbols {
				rate[hash.Partition([]byte(w.Symbol), n)] += 1000 * w.Weight
			}
			for _, r := range rate {
				if r > member*(1+1e-9) {
					return false
				}
			}
			return true
		}
		heaviest := 1000 * o.Load.Symbols[0].Weight
		if s.PartitionsNeeded == nil {
			if heaviest <= member {
				t.Fatalf("none, although the heaviest symbol has %v of %v: %s", heaviest, member, s.Problem)
			}
			return
		}
		if !fits(*s.PartitionsNeeded) {
			t.Fatalf("%d do not fit", *s.PartitionsNeeded)
		}
		for n := range *s.PartitionsNeeded {
			if n > 0 && fits(n) {
				t.Fatalf("%d needed, but %d fit", *s.PartitionsNeeded, n)
			}
		}
		if want := 4 * max(*s.PartitionsNeeded, o.MarketPartitions); s.PartitionsJudged != want {
			t.Fatalf("judged up to %d, want %d", s.PartitionsJudged, want)
		}
		for n := *s.PartitionsNeeded; n <= s.PartitionsJudged; n++ {
			if _, fails := slices.BinarySearch(s.PartitionsTooFew, n); fails == fits(n) {
				t.Fatalf("%d partitions fit: %t, those that do not: %v", n, fits(n), s.PartitionsTooFew)
			}
		}
		if enough := fits(o.MarketPartitions); enough != (s.Headroom >= 0) && math.Abs(s.Headroom) > 1e-3 {
			t.Fatalf("%d partitions fit: %t, headroom %v", o.MarketPartitions, enough, s.Headroom)
		}
	})
}

// A hash may put heavy symbols together with more partitions that lie apart with
// fewer: whoever leaves room is told.
func TestLargerNumbersThatFailAgain(t *testing.T) {
	o := options(t, 12, "4", assign.Copartition)
	o.Load = generated(mustSkew(t, "zipf:1.1"), 1000)
	s := sized(t, o, 40_000, 10_000)
	if *s.PartitionsNeeded != 10 || s.PartitionsJudged != 48 || !slices.Contains(s.PartitionsTooFew, 13) || slices.Contains(s.PartitionsTooFew, 12) {
		t.Fatalf("%+v", s)
	}
	for _, n := range []int32{10, 12, 13, 14, 15, 20, 24, 48} {
		o.MarketPartitions, o.NotificationPartitions = n, n
		planned := sized(t, o, 40_000, 10_000)
		if enough := !slices.Contains(s.PartitionsTooFew, n); enough != (planned.Headroom >= 0) {
			t.Errorf("%d partitions: enough %t, headroom %v", n, enough, planned.Headroom)
		}
	}
	for _, tc := range []struct {
		failing []int32
		want    string
	}{
		{[]int32{}, "each number from 10 to 48 is enough"},
		{[]int32{13, 15, 16, 17}, "too few again, since the hash puts heavy symbols together: 13, 15–17; all others up to 48 are enough"},
	} {
		s.PartitionsTooFew = tc.failing
		if got := larger(s); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	var odd []int32
	for n := int32(1); n < 100; n += 2 {
		odd = append(odd, n)
	}
	if got := list(odd); !strings.HasSuffix(got, "21, 23, … (38 more)") {
		t.Error(got)
	}
	if s := sized(t, options(t, 6, "4", assign.Copartition), 1e9, 1); s.PartitionsTooFew != nil || s.PartitionsJudged != 0 {
		t.Errorf("no number will do: %+v", s)
	}
}

func TestGrowthCountsKeysThatMove(t *testing.T) {
	o := options(t, 6, "2", assign.Copartition)
	o.Load = Load{Name: "four", Symbols: vectors()}
	g := sized(t, o, 1000, 1000).Growth
	if g.To != 12 {
		t.Fatalf("to %d", g.To)
	}
	hash, err := placement.ByName("murmur2")
	if err != nil {
		t.Fatal(err)
	}
	moved, share := 0, 0.0
	for _, w := range vectors() {
		if hash.Partition([]byte(w.Symbol), 6) != hash.Partition([]byte(w.Symbol), 12) {
			moved++
			share += w.Weight / 10
		}
	}
	if moved == 0 || moved == 4 {
		t.Fatal("the example shows nothing")
	}
	if g.Symbols != 4 || g.MovedSymbols != moved || math.Abs(g.MovedShare-share) > 1e-9 || len(g.Breaks) < 4 {
		t.Errorf("%d of %d symbols, %v; want %d, %v", g.MovedSymbols, g.Symbols, g.MovedShare, moved, share)
	}
}
