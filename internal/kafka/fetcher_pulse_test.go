package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"joiner/internal/record"
)

// stuck is a sink that does not come back from Deliver before its gate opens.
type stuck struct {
	*fetched
	entered, gate chan struct{}
}

func (s stuck) Deliver(recs []record.Record, position, end, high int64) {
	if len(recs) > 0 {
		s.entered <- struct{}{}
		<-s.gate
	}
	s.fetched.Deliver(recs, position, end, high)
}

// inTurn waits until every partition has been looked after, or waits for a
// broker.
func inTurn(t *testing.T, f *Fetcher, want int) {
	t.Helper()
	before := make(map[partition]uint64)
	all, ok := f.Pulses()
	if !ok || len(all) != want {
		t.Fatalf("%v, want %d partitions", all, want)
	}
	for _, p := range all {
		before[partition{p.Topic, p.Partition}] = p.Turns
	}
	seen := make(map[partition]bool)
	eventually(t, "every partition has had a turn", func() bool {
		all, _ := f.Pulses()
		for _, p := range all {
			at := partition{p.Topic, p.Partition}
			if p.Waiting || p.Turns != before[at] {
				seen[at] = true
			}
		}
		return len(seen) == want
	})
}

// Whatever state brokers, topics and sinks are in, each partition is seen to;
// but where a sink does not come back, its broker's partitions are not.
func TestFetcherPulses(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 2, nil)
	g := newGate()
	c := k.connect(t, func(o *Options) { o.Dial = g.Dial })
	f := c.NewFetcher(FetcherOptions{MaxWait: 2 * time.Millisecond})
	s := stuck{newFetched(t, 0), make(chan struct{}, 1), make(chan struct{})}
	other := newFetched(t, 0)
	f.Add(topic, 0, 0, s)
	f.Add(topic, 1, 0, other)
	missing := f.Add("missing-topic", 0, -1, newFetched(t, 0))
	for range 3 {
		inTurn(t, f, 3)
	}
	other.full.Store(true)
	for range 3 {
		inTurn(t, f, 3)
	}
	g.close()
	for range 3 {
		inTurn(t, f, 3)
	}
	g.open()
	missing.Remove()

	p := k.producer(t)
	if err := p.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Partition: 0, Value: []byte("a")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	<-s.entered
	first, _ := f.Pulses()
	for range 50 {
		time.Sleep(time.Millisecond)
		now, _ := f.Pulses()
		for i, p := range now {
			if p.Waiting {
				t.Fatalf("%+v waits for a broker", p)
			}
			for _, was := range first {
				if was.Partition == p.Partition && was.Turns != p.Turns {
					t.Fatalf("%+v at look %d, then %+v", was, i, p)
				}
			}
		}
	}
	close(s.gate)
	inTurn(t, f, 2)

	f.mu.Lock()
	_, ok := f.Pulses()
	f.mu.Unlock()
	if ok {
		t.Error("a lock that is not given back is not told of")
	}
}

func TestReaderCountsItsTries(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	g := newGate()
	c := k.connect(t, func(o *Options) { o.Dial = g.Dial })
	if n, waiting := c.Reader.Tries(topic, 0); n != 0 || waiting {
		t.Fatalf("%d tries, under way: %t, before anybody has asked", n, waiting)
	}
	if _, _, err := c.Reader.Bounds(deadline(t), topic, 0); err != nil {
		t.Fatal(err)
	}
	before, waiting := c.Reader.Tries(topic, 0)
	if before == 0 || waiting {
		t.Fatalf("%d tries, under way: %t, after an answer", before, waiting)
	}
	g.close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = c.Reader.Bounds(ctx, topic, 0)
	}()
	eventually(t, "tries without a broker", func() bool {
		n, _ := c.Reader.Tries(topic, 0)
		return n > before+4
	})
	cancel()
	<-done
	if _, waiting := c.Reader.Tries(topic, 0); waiting {
		t.Error("a try is under way, though nobody asks any more")
	}
}
