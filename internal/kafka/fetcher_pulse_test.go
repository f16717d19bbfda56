package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
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
	open := sync.OnceFunc(func() { close(s.gate) })
	defer open()
	eventually(t, "both partitions are with the broker", func() bool {
		all, _ := f.Pulses()
		return f.Leader(topic, 1) != NoLeader && len(all) == 2 && !all[0].Waiting && !all[1].Waiting
	})
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
	open()
	inTurn(t, f, 2)

	f.mu.Lock()
	_, ok := f.Pulses()
	f.mu.Unlock()
	if ok {
		t.Error("a lock that is not given back is not told of")
	}
}

// leaderless is a client whose brokers do not answer: who looks up a leader waits
// until the gate opens.
type leaderless struct {
	sarama.Client
	nobody  atomic.Bool // no broker is known any more
	lost    atomic.Bool // no leader is known
	entered chan struct{}
	gate    chan struct{}
}

func (s *leaderless) PartitionNotReadable(string, int32) bool { return s.lost.Load() }
func (s *leaderless) RefreshMetadata(...string) error         { s.lost.Store(false); return nil }

func (s *leaderless) Brokers() []*sarama.Broker {
	if s.nobody.Load() {
		return nil
	}
	return s.Client.Brokers()
}

func (s *leaderless) LeaderAndEpoch(topic string, id int32) (*sarama.Broker, int32, error) {
	s.entered <- struct{}{}
	<-s.gate
	return s.Client.LeaderAndEpoch(topic, id)
}

// sarama looks its brokers up again, for as long as all of its time-outs take,
// where it is asked for a leader that it has lost: neither the partition nor those
// behind it are at fault.
func TestFetcherPulsesWhileLeadersAreLookedUp(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 2, nil)
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{MaxWait: 2 * time.Millisecond})
	s := &leaderless{Client: f.client, entered: make(chan struct{}, 8), gate: make(chan struct{})}
	s.lost.Store(true)
	f.client = s
	open := sync.OnceFunc(func() { close(s.gate) })
	defer open()
	f.Add(topic, 0, 0, newFetched(t, 0))
	f.Add(topic, 1, 0, newFetched(t, 0))
	<-s.entered
	for range 20 {
		time.Sleep(time.Millisecond)
		all, ok := f.Pulses()
		if !ok || len(all) != 2 {
			t.Fatalf("%v", all)
		}
		waiting := 0
		for _, p := range all {
			if p.Waiting {
				waiting++
			}
		}
		if waiting != 2 {
			t.Fatalf("%d of 2 wait for a broker: %+v", waiting, all)
		}
	}
	open()
	inTurn(t, f, 2)
}

// Where the client knows no broker any more, no partition is worth a search of
// its own: the topic's is enough.
func TestFetcherDoesNotSearchForEachPartition(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 2, nil)
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{MaxWait: 2 * time.Millisecond})
	s := &leaderless{Client: f.client, entered: make(chan struct{}, 8), gate: make(chan struct{})}
	close(s.gate)
	s.nobody.Store(true)
	f.client = s
	fd := f.Add(topic, 0, 0, newFetched(t, 0))
	eventually(t, "three searches", func() bool { return fd.turns.Load() > 3 })
	if n := len(s.entered); n > 0 {
		t.Errorf("a partition was looked up %d times, and nobody is there to tell", n)
	}
	s.nobody.Store(false)
	eventually(t, "the leader", func() bool { return f.Leader(topic, 0) != NoLeader })
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
