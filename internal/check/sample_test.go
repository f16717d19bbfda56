package check

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"joiner/internal/enrich"
	"joiner/internal/hot"
	"joiner/internal/kafka"
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
