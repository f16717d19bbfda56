package check

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"joiner/internal/enrich"
	"joiner/internal/hot"
	"joiner/internal/kafka"
	"joiner/internal/placement"
	"joiner/internal/record"
)

func TestSampler(t *testing.T) {
	o := healthyOptions(t)
	input := &o.Inputs[record.Market]
	input.Decode = func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) {
		if r.Value == nil {
			return nil, 0, &enrich.Bad{Kind: record.InvalidPrice, Detail: "of a test"}
		}
		return r.Key, r.Timestamp + 1, nil
	}
	facts := &PartitionFacts{ID: 6} // of 12, where MSFT and nobody else belongs
	s := newSampler(&tail{
		gatherer: &gatherer{o: o}, input: input, side: record.Market, facts: facts, count: 12, budget: 1000,
		guess: newGuess(input.Placer, 12),
	})
	value := []byte("{}")
	err := s.take([]record.Record{
		{Timestamp: 5000, Key: []byte("MSFT"), Value: value},
		{Timestamp: 4000, Key: []byte("AAPL"), Value: value, Headers: []record.Header{{Key: []byte("h"), Value: []byte("12")}}},
		{Timestamp: 6000, Key: []byte("MSFT"), Value: value},
		{Timestamp: 3500, Key: []byte("MSFT"), Value: value},
		{Timestamp: 6000, Key: []byte("MSFT"), Value: value},
		{Timestamp: record.NoTimestamp, Key: []byte("MSFT"), Value: nil},
		{Timestamp: 7000, Key: nil, Value: nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := s.done()
	if got.At.IsZero() {
		t.Error("nobody says when")
	}
	got.At = time.Time{}
	want := Sample{
		Records: 7, Bytes: 4*6 + 9 + 4, Largest: 9,
		Oldest: 3500, Newest: 7000, Behind: 2500 * time.Millisecond, Event: 6001, EventOldest: 3501,
		OutOfOrder: 1, Disordered: `"MSFT"`,
		Bad: map[record.Kind]int{record.InvalidPrice: 2}, BadDetail: map[record.Kind]string{record.InvalidPrice: "partition 6, offset 0: of a test"},
		Keyless: 1, Misplaced: 1,
		Keys: []hot.Key{{Name: "MSFT", Count: 5}, {Name: "AAPL", Count: 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// One stray is none of the late; so many are that it is no chance.
func TestLate(t *testing.T) {
	hours := func(n ...int) (list []time.Duration) {
		for _, h := range n {
			list = append(list, time.Duration(h)*time.Hour)
		}
		return list
	}
	for name, c := range map[string]struct {
		behind []time.Duration
		n      int
		want   time.Duration
	}{
		"none":                    {nil, 10_000, 0},
		"one in ten thousand":     {hours(720), 10_000, 0},
		"one of one":              {hours(720), 1, 0},
		"ten of ten":              {hours(3, 1, 2, 3, 3, 3, 3, 3, 3, 3), 10, time.Hour},
		"nine of a thousand":      {hours(1, 1, 1, 1, 1, 1, 1, 1, 1), 1000, 0},
		"ten of a thousand":       {hours(9, 1, 2, 3, 4, 5, 6, 7, 8, 10), 1000, time.Hour},
		"eleven of a thousand":    {hours(9, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11), 1000, 2 * time.Hour},
		"ten of a thousand and 1": {hours(9, 1, 2, 3, 4, 5, 6, 7, 8, 10), 1001, 0},
	} {
		if got := late(c.behind, c.n); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// 9,999 of now and one of last month: the one is seen, and is a stray.
func TestSamplerMeetsAStray(t *testing.T) {
	o := healthyOptions(t)
	input := &o.Inputs[record.Notification]
	sampled := func(strays int) Sample {
		s := newSampler(&tail{
			gatherer: &gatherer{o: o}, input: input, side: record.Notification, facts: &PartitionFacts{}, count: 12, budget: 1 << 30,
			guess: newGuess(input.Placer, 12),
		})
		records := make([]record.Record, 9_999)
		for i := range records {
			records[i] = record.Record{Timestamp: record.MillisOf(noon), Key: []byte("MSFT")}
			if i >= len(records)-strays {
				records[i].Timestamp = record.MillisOf(noon.Add(-720 * time.Hour))
			}
		}
		if err := s.take(records); err != nil {
			t.Fatal(err)
		}
		return s.done()
	}
	const month = 720 * time.Hour
	if got := sampled(1); got.Behind != month || got.Late != 0 {
		t.Errorf("one: behind %s, late %s", got.Behind, got.Late)
	}
	if got := sampled(100); got.Behind != month || got.Late != month {
		t.Errorf("one in a hundred: behind %s, late %s", got.Behind, got.Late)
	}
}

func TestSamplerStops(t *testing.T) {
	o := healthyOptions(t)
	s := newSampler(&tail{
		gatherer: &gatherer{o: o}, input: &o.Inputs[record.Notification], side: record.Notification, facts: &PartitionFacts{}, count: 1, budget: 100,
		guess: newGuess(o.Inputs[record.Notification].Placer, 1),
	})
	large := []record.Record{{Value: make([]byte, 150)}}
	if err := s.take(large); err != nil {
		t.Fatalf("stopped within twice its bytes: %v", err)
	}
	if err := s.take(large); !errors.Is(err, errEnough) {
		t.Errorf("goes on: %v", err)
	}
}

// What is fetched of all partitions stays within the total, as long as no batch
// is larger than a fetch.
func TestBudget(t *testing.T) {
	for _, places := range []int{1, 2, 12, 43, 100, 1000, 2000} {
		tail := tail{budget: budgetOf(places)}
		fetch := int64(tail.fetch())
		next, probe, sample := int64(leastFetch), tail.budget/4+fetch, 2*tail.budget+fetch
		if all := int64(places) * (next + probe + sample); all > totalBytes || tail.budget > sampleBytes || fetch > mostFetch {
			t.Errorf("%d partitions: %d bytes, of each %d by fetches of %d", places, all, tail.budget, fetch)
		}
	}
}

// Keys that lie by an earlier count are known for that; those that lie anyhow, or
// are few, are not.
func TestGrowth(t *testing.T) {
	placer, err := placement.New(placement.Options{Topic: "t", Partitioner: "murmur2"})
	if err != nil {
		t.Fatal(err)
	}
	seen := func(n int, at func(key []byte, i int) int32) Growth {
		g := newGuess(placer, 7)
		for i := range n {
			key := fmt.Appendf(nil, "SYM%03d", i)
			p := at(key, i)
			g.see(key, p, placer.WellPlaced(key, p, 7, nil))
		}
		return g.growth()
	}
	before := func(key []byte, _ int) int32 {
		p, _ := placer.Partition(key, 6)
		return p
	}
	if got := seen(300, before); got != (Growth{6, 1}) {
		t.Errorf("grown from 6: got %+v", got)
	}
	if got := seen(15, before); got.From != 0 {
		t.Errorf("few: got %+v", got)
	}
	if got := seen(300, func(_ []byte, i int) int32 { return int32(i % 7) }); got.From != 0 {
		t.Errorf("anyhow: got %+v", got)
	}
	if got := seen(300, func([]byte, int) int32 { return 0 }); got.From != 0 {
		t.Errorf("all in one: got %+v", got)
	}
	if got := seen(300, func(key []byte, _ int) int32 { p, _ := placer.Partition(key, 7); return p }); got.From != 0 {
		t.Errorf("well placed: got %+v", got)
	}
}

func TestLeaderAway(t *testing.T) {
	f := healthyFacts()
	g := &gatherer{facts: f}
	if err := g.leaderAway(marketTopic, 1); err != nil {
		t.Errorf("broker 2 answers: %v", err)
	}
	away := errors.New("no answer")
	f.Brokers[1].Err = away
	if err := g.leaderAway(marketTopic, 1); !errors.Is(err, away) {
		t.Errorf("broker 2 is away: %v", err)
	}
	f.Layouts[marketTopic].Partitions[1].Leader = -1
	if err := g.leaderAway(marketTopic, 1); err == nil {
		t.Error("a partition without a leader is read")
	}
}

// Brokers that did not answer are not called again.
func TestDialer(t *testing.T) {
	away := errors.New("no answer")
	l := listener(t)
	g := &gatherer{o: healthyOptions(t), facts: &Facts{
		Bootstrap: []kafka.Visit{{Address: l}, {Address: "b:9092", Err: away}},
		Brokers:   []kafka.Visit{{Address: "c:9092", Err: away}},
	}}
	dial := g.dialer()
	for _, address := range []string{"b:9092", "c:9092"} {
		if _, err := dial(t.Context(), "tcp", address); !errors.Is(err, away) {
			t.Errorf("%s: got %v", address, err)
		}
	}
	conn, err := dial(t.Context(), "tcp", l)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestAdvertised(t *testing.T) {
	a, b, c := kafka.BrokerAddress{ID: 1, Address: "a:1"}, kafka.BrokerAddress{ID: 2, Address: "b:1"}, kafka.BrokerAddress{ID: 2, Address: "c:1"}
	got := advertised([]kafka.Visit{{Brokers: []kafka.BrokerAddress{c, b}}, {}, {Brokers: []kafka.BrokerAddress{b, a}}})
	if want := []kafka.BrokerAddress{a, b, c}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Keys of any length are counted, and bounded in memory and in the report.
func TestSamplerCutsKeys(t *testing.T) {
	o := healthyOptions(t)
	input := &o.Inputs[record.Market]
	s := newSampler(&tail{
		gatherer: &gatherer{o: o}, input: input, side: record.Market, facts: &PartitionFacts{}, count: 12, budget: 1 << 30,
		guess: newGuess(input.Placer, 12),
	})
	exact, long := bytes.Repeat([]byte("e"), maxKey), bytes.Repeat([]byte("l"), 1<<20)
	if err := s.take([]record.Record{{Key: long}, {Key: long}, {Key: exact}}); err != nil {
		t.Fatal(err)
	}
	want := []hot.Key{{Name: string(long[:maxKey]), Count: 2}, {Name: string(exact), Count: 1}}
	if diff := cmp.Diff(want, s.done().Keys); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Where ticks are placed by their symbols, those are what is hot.
func TestSamplerCountsSymbols(t *testing.T) {
	o := healthyOptions(t)
	input := &o.Inputs[record.Market]
	input.BySymbol = true
	input.Decode = func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) {
		if r.Value == nil {
			return []byte("half"), 0, &enrich.Bad{Kind: record.InvalidPrice}
		}
		return r.Value, r.Timestamp, nil
	}
	s := newSampler(&tail{
		gatherer: &gatherer{o: o}, input: input, side: record.Market, facts: &PartitionFacts{}, count: 12, budget: 1 << 30,
		guess: newGuess(input.Placer, 12),
	})
	err := s.take([]record.Record{{Value: []byte("MSFT")}, {Key: []byte("a"), Value: []byte("MSFT")}, {Key: []byte("a")}, {Key: []byte("a")}, {Key: []byte("a")}})
	if err != nil {
		t.Fatal(err)
	}
	got := s.done()
	if diff := cmp.Diff([]hot.Key{{Name: "MSFT", Count: 2}}, got.Keys); diff != "" || got.Keyless != 3 {
		t.Errorf("%d without a symbol; -want +got:\n%s", got.Keyless, diff)
	}
}
