package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"joiner/internal/record"
)

// fetched is a sink that keeps everything and checks what every sink may rely
// on.
type fetched struct {
	t     testing.TB
	batch int         // capacity of its batches
	full  atomic.Bool // what Full answers
	looks atomic.Int64
	gone  atomic.Bool // Remove has returned
	busy  atomic.Bool

	mu       sync.Mutex
	values   []string
	offsets  []int64
	position int64
	end      int64
	high     int64
	calls    int
	jump     bool // the position may go anywhere once
}

func newFetched(t testing.TB, from int64) *fetched {
	return &fetched{t: t, batch: 7, position: from, end: -2}
}

func (s *fetched) enter() {
	if s.gone.Load() {
		s.t.Error("called after Remove")
	}
	if s.busy.Swap(true) {
		s.t.Error("called by two at a time")
	}
}

func (s *fetched) Deliver(recs []record.Record, position, end, high int64) {
	s.enter()
	defer s.busy.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if position < s.position && !s.jump {
		s.t.Errorf("position %d after %d", position, s.position)
	}
	if s.jump {
		s.position, s.jump = 0, false
	}
	if len(recs) > s.batch {
		s.t.Errorf("%d records, the batch holds %d", len(recs), s.batch)
	}
	for _, r := range recs {
		if r.Offset < s.position || r.Offset >= position {
			s.t.Errorf("offset %d in [%d, %d)", r.Offset, s.position, position)
		}
		s.position = r.Offset + 1
		s.offsets = append(s.offsets, r.Offset)
		s.values = append(s.values, string(r.Value))
	}
	s.position, s.end, s.high = position, end, high
	s.calls++
}

func (s *fetched) Batch() []record.Record {
	s.enter()
	defer s.busy.Store(false)
	return make([]record.Record, 0, s.batch)
}

func (s *fetched) Full() bool {
	s.enter()
	defer s.busy.Store(false)
	s.looks.Add(1)
	return s.full.Load()
}

func (s *fetched) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.values)
}

func (s *fetched) at() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position
}

// wait waits for n records.
func (s *fetched) wait(n int) []string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for len(s.got()) < n {
		if !pause(ctx, 5*time.Millisecond) {
			s.t.Fatalf("%d records of %d", len(s.got()), n)
		}
	}
	return s.got()
}

// remove removes the feed and has the sink complain about later calls.
func (s *fetched) remove(fd *Feed) {
	fd.Remove()
	s.gone.Store(true)
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// fetches counts Fetch requests from now on.
func (c *cluster) fetches(t *testing.T, nodes ...int32) *kfake.FaultHandle {
	t.Helper()
	h := c.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Nodes: nodes, TopLevel: true, Observe: true, Count: -1})
	t.Cleanup(h.Remove)
	return h
}

// Leaders move all the time, connections are cut, and the topic is written
// meanwhile: every record comes once, in order.
func TestFetcherIsExactThroughMovesAndCuts(t *testing.T) {
	const partitions, each = 5, 10_000
	k := fakeCluster(t, 3)
	topic := k.topic(t, partitions, nil)
	g := newGate()
	c := k.connect(t, func(o *Options) { o.Dial = g.Dial })
	f := c.NewFetcher(FetcherOptions{PartitionBytes: 4 << 10, MaxWait: 2 * time.Millisecond})

	sinks := make([]*fetched, partitions)
	for id := range sinks {
		sinks[id] = newFetched(t, 0)
		f.Add(topic, int32(id), 0, sinks[id])
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; wait(stop, 40*time.Millisecond); i++ {
			k.fake.Fake().ShufflePartitionLeaders()
			if i%5 == 0 {
				g.close()
				wait(stop, 20*time.Millisecond)
				g.open()
			}
		}
	})
	p := k.producer(t, kgo.MaxBufferedRecords(2000), kgo.ProducerBatchMaxBytes(1000))
	for i := range each {
		for id := range int32(partitions) {
			p.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: id, Value: []byte(fmt.Sprint(i))}, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	want := numbers(0, each)
	for id, s := range sinks {
		if got := s.wait(each); !slices.Equal(want, got) {
			t.Errorf("partition %d: records are lost, doubled or out of order: %d", id, len(got))
		}
	}
	close(stop)
	wg.Wait()
}

// A full sink is left out, others go on; where all are full nothing is asked,
// and the sinks are looked at in measured steps.
func TestFetcherLeavesFullSinksOut(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 2, nil)
	p := k.producer(t)
	g := newGate()
	c := k.connect(t, func(o *Options) { o.Dial = g.Dial })
	f := c.NewFetcher(FetcherOptions{})
	full, other := newFetched(t, 0), newFetched(t, 0)
	full.full.Store(true)
	feed := f.Add(topic, 0, 0, full)
	f.Add(topic, 1, 0, other)
	send(t, p, topic, 0, "a", "b")
	send(t, p, topic, 1, "c")
	if diff := cmp.Diff([]string{"c"}, other.wait(1)); diff != "" {
		t.Error(diff)
	}

	// The full one stays with its broker, whose connection is made anew.
	g.close()
	eventually(t, "a refused connection", func() bool { return g.refusals() > 0 })
	g.open()
	send(t, p, topic, 1, "d")
	other.wait(2)

	other.full.Store(true)
	looks := other.looks.Load()
	eventually(t, "a look at the full sink", func() bool { return other.looks.Load() > looks })
	fetches, looks, start := k.fetches(t), full.looks.Load(), time.Now()
	eventually(t, "looks at the full sinks", func() bool { return full.looks.Load() >= looks+6 })
	if elapsed := time.Since(start); elapsed < 4*fullPoll {
		t.Errorf("6 looks in %v: it spins", elapsed)
	}
	if n := fetches.Hits(); n != 0 {
		t.Errorf("%d fetches for sinks that are full", n)
	}
	if n := len(full.got()); n != 0 {
		t.Errorf("%d records for a full sink", n)
	}

	full.full.Store(false)
	feed.Wake()
	if diff := cmp.Diff([]string{"a", "b"}, full.wait(2)); diff != "" {
		t.Error(diff)
	}
}

// holdFetches keeps the answers to all fetches of node back until the function
// that it returns is called.
func (c *cluster) holdFetches(t *testing.T, node int32) (held *atomic.Int64, release func()) {
	held = new(atomic.Int64)
	sleeper := newSleeper(t, c.fake.Fake())
	c.fake.Fake().ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.Fake().KeepControl()
		if c.fake.Fake().CurrentNode() != node {
			return nil, nil, false
		}
		held.Add(1)
		sleeper.sleep()
		return nil, nil, false
	})
	return held, sleeper.wake
}

func TestFetcherRemovesDuringARequest(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	p := k.producer(t)
	send(t, p, topic, 0, "a", "b", "c")
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{})
	held, release := k.holdFetches(t, 0)
	defer release()

	first, second := newFetched(t, 0), newFetched(t, 1)
	feed := f.Add(topic, 0, 0, first)
	eventually(t, "a fetch under way", func() bool { return held.Load() == 1 })
	first.remove(feed)
	again := f.Add(topic, 0, 1, second)
	release()
	if diff := cmp.Diff([]string{"b", "c"}, second.wait(2)); diff != "" {
		t.Error(diff)
	}
	if n := len(first.got()); n != 0 {
		t.Errorf("%d records after Remove", n)
	}

	// A second feed takes the first one's place, and Remove may come late.
	third := newFetched(t, 2)
	f.Add(topic, 0, 2, third)
	second.gone.Store(true)
	third.wait(1)
	again.Remove()
	send(t, p, topic, 0, "d")
	if diff := cmp.Diff([]string{"c", "d"}, third.wait(2)); diff != "" {
		t.Error(diff)
	}
}

func TestFetcherClosesDuringARequest(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{})
	f.readTimeout = time.Hour
	held, release := k.holdFetches(t, 0)
	defer release()
	s := newFetched(t, 0)
	f.Add(topic, 0, 0, s)
	eventually(t, "a fetch under way", func() bool { return held.Load() == 1 })
	closed := make(chan struct{})
	go func() {
		f.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-deadline(t).Done():
		t.Fatal("Close waits for the answer")
	}
	s.gone.Store(true)
	f.Close()
	f.Add(topic, 0, 0, s).Remove()

	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c.NewFetcher(FetcherOptions{}).Add(topic, 0, 0, s)
}

// A broker that is silent and no longer leads holds nothing up.
func TestFetcherLeavesASilentBroker(t *testing.T) {
	k := fakeCluster(t, 2)
	topic := k.topic(t, 1, nil)
	if err := k.fake.Fake().MoveTopicPartition(topic, 0, 0); err != nil {
		t.Fatal(err)
	}
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{})
	f.readTimeout = time.Hour // it is not this that saves the day
	held, release := k.holdFetches(t, 0)
	defer release()
	s := newFetched(t, 0)
	f.Add(topic, 0, 0, s)
	eventually(t, "a fetch under way", func() bool { return held.Load() == 1 })
	if got := f.Leader(topic, 0); got != 0 {
		t.Errorf("leader %d, want 0", got)
	}
	if got := f.Leader(topic, 1); got != NoLeader {
		t.Errorf("a partition that is not read has the leader %d", got)
	}
	if err := k.fake.Fake().MoveTopicPartition(topic, 0, 1); err != nil {
		t.Fatal(err)
	}
	send(t, k.producer(t), topic, 0, "a")
	s.wait(1) // the first fetch is still not answered
	if got := f.Leader(topic, 0); got != 1 {
		t.Errorf("leader %d after it has moved, want 1", got)
	}
	if held.Load() != 1 {
		t.Errorf("%d fetches of the silent broker", held.Load())
	}
}

func TestFetcherPassesOverTransactions(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	plain := k.producer(t)
	one := k.producer(t, kgo.TransactionalID(unique("one")))
	two := k.producer(t, kgo.TransactionalID(unique("two")))
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{})
	s := newFetched(t, 0)
	f.Add(topic, 0, 0, s)
	at := func(want int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("position %d", want), func() bool { return s.at() == want })
	}

	send(t, plain, topic, 0, "a")                    // 0
	transaction(t, one, true, topic, 0, "b", "c")    // 1, 2, marker 3
	at(4)                                            // though nothing visible came behind the marker
	transaction(t, one, false, topic, 0, "no", "no") // 4, 5, marker 6
	at(7)
	if err := two.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	send(t, two, topic, 0, "e")   // 7
	send(t, plain, topic, 0, "f") // 8
	eventually(t, "the high watermark", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.high == 9 && s.end == 7 && s.position == 7
	})
	if diff := cmp.Diff([]string{"a", "b", "c"}, s.got()); diff != "" {
		t.Error(diff)
	}
	if err := two.EndTransaction(deadline(t), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	at(10)
	if diff := cmp.Diff([]string{"a", "b", "c", "e", "f"}, s.got()); diff != "" {
		t.Error(diff)
	}

	uncommitted := k.connect(t, func(o *Options) { o.ReadCommitted = false })
	all := newFetched(t, 0)
	uncommitted.NewFetcher(FetcherOptions{}).Add(topic, 0, 0, all)
	if diff := cmp.Diff([]string{"a", "b", "c", "no", "no", "e", "f"}, all.wait(7)); diff != "" {
		t.Error("uncommitted:", diff)
	}
}

type reset struct {
	Partition      int32
	At, Start, End int64
}

func TestFetcherOutOfRange(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	p := k.producer(t)
	send(t, p, topic, 0, "a", "b", "c", "d", "e")
	if err := k.admin.DeleteRecords(topic, map[int32]int64{0: 3}); err != nil {
		t.Fatal(err)
	}
	c := k.connect(t, nil)
	for name, test := range map[string]struct {
		from   int64
		resume func(at, start, end int64) int64 // nil: by default
		want   []string
		resets []reset
	}{
		"log start":        {from: -1, want: []string{"d", "e"}},
		"in range":         {from: 4, want: []string{"e"}},
		"below":            {from: 0, want: []string{"d", "e"}, resets: []reset{{0, 0, 3, 5}}},
		"above, default":   {from: 99, want: []string{"d", "e"}, resets: []reset{{0, 99, 3, 5}}},
		"above, elsewhere": {from: 99, resume: func(_, _, end int64) int64 { return end - 1 }, want: []string{"e"}, resets: []reset{{0, 99, 3, 5}}},
		"twice": {
			from: 99, resume: func(at, start, _ int64) int64 { return max(start, at/5) }, // 99, 19, 3
			want: []string{"d", "e"}, resets: []reset{{0, 99, 3, 5}, {0, 19, 3, 5}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var resets []reset
			s := newFetched(t, test.from)
			f := c.NewFetcher(FetcherOptions{OutOfRange: func(_ string, id int32, at, start, end int64) int64 {
				mu.Lock()
				defer mu.Unlock()
				s.mu.Lock()
				s.jump = true
				s.mu.Unlock()
				resets = append(resets, reset{id, at, start, end})
				if test.resume == nil {
					return start
				}
				return test.resume(at, start, end)
			}})
			if test.resume == nil {
				hook := f.o.OutOfRange
				byDefault := FetcherOptions{}.withDefaults(c.opts).OutOfRange
				f.o.OutOfRange = func(topic string, id int32, at, start, end int64) int64 {
					hook(topic, id, at, start, end)
					return byDefault(topic, id, at, start, end)
				}
			}
			f.Add(topic, 0, test.from, s)
			if diff := cmp.Diff(test.want, s.wait(len(test.want))); diff != "" {
				t.Error(diff)
			}
			eventually(t, "the end", func() bool { return s.at() == 5 })
			f.Close()
			if diff := cmp.Diff(test.resets, resets); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFetcherTakesLargeRecords(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 6, map[string]string{"max.message.bytes": "4000000"})
	p := k.producer(t, kgo.ProducerBatchMaxBytes(4<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{PartitionBytes: 1 << 10, ResponseBytes: 64 << 10})
	large := strings.Repeat("x", 1<<20)
	for id := range int32(6) {
		send(t, p, topic, id, "a")
		send(t, p, topic, id, large+"1")
		send(t, p, topic, id, large+"2", "b")
		send(t, p, topic, id, "c")
	}
	want := []string{"a", large + "1", large + "2", "b", "c"}
	for id := range int32(6) {
		s := newFetched(t, 0)
		f.Add(topic, id, 0, s)
		defer func() {
			if got := s.wait(len(want)); !slices.Equal(want, got) {
				t.Errorf("partition %d: %d records differ", id, len(got))
			}
		}()
	}
}

// Whatever a broker answers for a partition, its records come in the end, once.
func TestFetcherOutlastsFaults(t *testing.T) {
	k := fakeCluster(t, 3)
	topic := k.topic(t, 2, nil)
	p := k.producer(t)
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{})
	sinks := [2]*fetched{newFetched(t, 0), newFetched(t, 0)}
	for id, s := range sinks {
		f.Add(topic, int32(id), 0, s)
	}
	var want []string
	for _, fault := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.LeaderNotAvailable,
		kerr.ReplicaNotAvailable, kerr.KafkaStorageError, kerr.OffsetNotAvailable, kerr.UnknownTopicOrPartition,
		kerr.CorruptMessage, kerr.TopicAuthorizationFailed, kerr.UnknownServerError, kerr.OffsetOutOfRange,
	} {
		faults := k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: topic, Partitions: []int32{0}, Err: fault, Count: 2})
		if err := faults.Wait(deadline(t), 2); err != nil {
			t.Fatal(fault, err)
		}
		want = append(want, fault.Message)
		send(t, p, topic, 0, fault.Message)
		send(t, p, topic, 1, fault.Message)
		for _, s := range sinks {
			if diff := cmp.Diff(want, s.wait(len(want))); diff != "" {
				t.Fatal(fault, diff)
			}
		}
	}
	top := k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, TopLevel: true, Err: kerr.UnknownServerError, Count: 3})
	if err := top.Wait(deadline(t), 3); err != nil {
		t.Fatal(err)
	}
	for id, s := range sinks {
		send(t, p, topic, int32(id), "last")
		s.wait(len(want) + 1)
	}
}

// A topic that is made later is read from then on.
func TestFetcherAwaitsATopic(t *testing.T) {
	k := fakeCluster(t, 1)
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{})
	topic := unique("later")
	s := newFetched(t, 0)
	f.Add(topic, 0, 0, s)
	metadata := k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, TopLevel: true, Observe: true, Count: -1})
	if err := metadata.Wait(deadline(t), 2); err != nil {
		t.Fatal(err)
	}
	if err := k.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false); err != nil {
		t.Fatal(err)
	}
	send(t, k.producer(t), topic, 0, "a")
	s.wait(1)
}

// reply makes an answer to a fetch, with p for each partition asked for.
func reply(asked *kmsg.FetchRequest, p func(topic string, id int32) kmsg.FetchResponseTopicPartition) *kmsg.FetchResponse {
	resp := asked.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range asked.Topics {
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, ap := range t.Partitions {
			rp := p(t.Topic, ap.Partition)
			rp.Partition = ap.Partition
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// A broken batch stops its own partition only, and that until it can be read.
func TestFetcherKeepsABrokenBatchToItself(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 3, nil)
	p := k.producer(t)
	var broken atomic.Bool
	broken.Store(true)
	var tries atomic.Int64
	k.fake.Fake().ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.fake.Fake().KeepControl()
		asked := req.(*kmsg.FetchRequest)
		hit := false
		resp := reply(asked, func(_ string, id int32) kmsg.FetchResponseTopicPartition {
			rp := kmsg.NewFetchResponseTopicPartition()
			if id == 1 {
				hit = true
				tries.Add(1)
				rp.RecordBatches = emptyBatch(0, 1)
				rp.RecordBatches[18] ^= 1 // the checksum
			}
			return rp
		})
		return resp, nil, hit && broken.Load()
	})
	c := k.connect(t, nil)
	f := c.NewFetcher(FetcherOptions{})
	var sinks [3]*fetched
	for id := range sinks {
		send(t, p, topic, int32(id), "a")
		sinks[id] = newFetched(t, 0)
		f.Add(topic, int32(id), 0, sinks[id])
	}
	sinks[0].wait(1)
	sinks[2].wait(1)
	if n := len(sinks[1].got()); n != 0 {
		t.Errorf("%d records of a broken batch", n)
	}
	eventually(t, "tries", func() bool { return tries.Load() > 2 }) // once a second
	broken.Store(false)
	sinks[1].wait(1)
}

// The leader names a follower (KIP-392): it is read from for a while, its ends
// are not taken for the leader's, and its faults lead back.
func TestFetcherFollowsThePreferredReplica(t *testing.T) {
	k := fakeCluster(t, 2)
	topic := k.topic(t, 1, nil)
	if err := k.fake.Fake().MoveTopicPartition(topic, 0, 0); err != nil {
		t.Fatal(err)
	}
	k.fake.Fake().SetFollowers(topic, 0, []int32{1})
	p := k.producer(t)
	var prefer atomic.Bool
	prefer.Store(true)
	k.fake.Fake().ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.fake.Fake().KeepControl()
		asked := req.(*kmsg.FetchRequest)
		if asked.Rack != "here" {
			t.Errorf("rack %q", asked.Rack)
		}
		if k.fake.Fake().CurrentNode() != 0 || !prefer.Load() {
			return nil, nil, false
		}
		return reply(asked, func(string, int32) kmsg.FetchResponseTopicPartition {
			rp := kmsg.NewFetchResponseTopicPartition()
			rp.HighWatermark, rp.LastStableOffset, rp.PreferredReadReplica = 1, 1, 1
			return rp
		}), nil, true
	})
	c := k.connect(t, func(o *Options) { o.Rack, o.MetadataRefresh = "here", 300*time.Millisecond })
	f := c.NewFetcher(FetcherOptions{})
	leader, follower := k.fetches(t, 0), k.fetches(t, 1)
	s := newFetched(t, 0)
	f.Add(topic, 0, 0, s)
	ends := func() int64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.end
	}
	next := 0
	step := func() {
		t.Helper()
		send(t, p, topic, 0, fmt.Sprint(next))
		next++
		if diff := cmp.Diff(numbers(0, next), s.wait(next)); diff != "" {
			t.Fatal(diff)
		}
	}

	step()
	if got := ends(); got != -1 {
		t.Errorf("a follower's end is %d, want -1", got)
	}
	// The lease ends: the leader is asked again, and names the follower again.
	// What a control answers no fault sees: the follower's fetches go on.
	before := follower.Hits()
	if err := follower.Wait(deadline(t), before+3); err != nil {
		t.Fatal(err)
	}
	if leader.Hits() != 0 {
		t.Error("the leader was read from")
	}
	if got := f.Leader(topic, 0); got != 0 {
		t.Errorf("the leader is %d while a follower is read from, want 0", got)
	}
	prefer.Store(false)
	if err := leader.Wait(deadline(t), 1); err != nil {
		t.Fatal("the lease never ends:", err)
	}
	step()
	eventually(t, "the leader's end", func() bool { return ends() == int64(next) })

	for _, fault := range []*kerr.Error{kerr.OffsetOutOfRange, kerr.OffsetNotAvailable, kerr.NotLeaderForPartition} {
		prefer.Store(true)
		faults := k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Nodes: []int32{1}, Topic: topic, Err: fault, Count: 1})
		if err := faults.Wait(deadline(t), 1); err != nil {
			t.Fatal(err)
		}
		prefer.Store(false) // not before: a lease may end, and nobody asks the follower then
		read := leader.Hits()
		if err := leader.Wait(deadline(t), read+1); err != nil {
			t.Fatalf("%v does not lead back to the leader: %v", fault, err)
		}
		step()
	}
}

// A broker over its quota answers without partitions and says how long to wait.
func TestFetcherIsThrottled(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	send(t, k.producer(t), topic, 0, "a")
	var throttled atomic.Int64
	k.fake.Fake().ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.fake.Fake().KeepControl()
		if throttled.Add(1) > 3 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.ThrottleMillis = 20
		return resp, nil, true
	})
	core, logs := observer.New(zapcore.WarnLevel)
	c := k.connect(t, func(o *Options) { o.Log = zap.New(core) })
	s := newFetched(t, 0)
	c.NewFetcher(FetcherOptions{}).Add(topic, 0, 0, s)
	s.wait(1)
	if throttled.Load() < 4 {
		t.Errorf("%d fetches", throttled.Load())
	}
	if logs.Len() > 0 {
		t.Errorf("a quota is taken for a fault: %v", logs.All())
	}
}

// offline is a Fetcher for tests of what a response does.
func offline(committed bool) *Fetcher {
	o := Options{}.withDefaults()
	f := &Fetcher{
		isolation: isolation(committed), codec: newDecompressor(maxBatchBytes), o: FetcherOptions{}.withDefaults(o), feeds: map[partition]*Feed{},
		rights: newRights(o, newSampler(o.Log)),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Any history of transactions and compaction, read in responses of any size
// with any faults between, shows what a reader must see.
func TestFeedTakesAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := drawHistory(rt)
		committed := rapid.Bool().Draw(rt, "read committed")
		want, end := h.every, h.end
		if committed {
			want, end = h.visible, h.stable
		}
		from := rapid.Int64Range(0, h.end).Draw(rt, "from")
		want = slices.DeleteFunc(slices.Clone(want), func(o int64) bool { return o < from })

		f := offline(committed)
		defer f.cancel()
		s := newFetched(t, from)
		s.batch = rapid.IntRange(0, 6).Draw(rt, "batch")
		if s.batch == 0 {
			s.batch = 1000
		}
		fd := f.newFeed(partition{"t", 0}, from, s)
		for {
			before, calls := fd.position, s.calls
			if code := rapid.IntRange(0, 12).Draw(rt, "code"); code > 0 && rapid.Bool().Draw(rt, "fails") {
				_, err := fd.take(&block{ErrorCode: int16(code)})
				if !errors.Is(err, sarama.KError(code)) || fd.position != before || s.calls != calls {
					rt.Fatalf("code %d: error %v, position %d after %d", code, err, fd.position, before)
				}
			}
			p, last := h.fetch(before, rapid.IntRange(1, 4).Draw(rt, "batches"), committed)
			next, err := fd.take(p)
			if err != nil || next != stays {
				rt.Fatalf("verdict %d, error %v", next, err)
			}
			if s.calls == calls || s.position != fd.position || s.end != end || s.high != h.end {
				rt.Fatalf("sink at %d, end %d, high watermark %d; feed at %d, end %d, high watermark %d",
					s.position, s.end, s.high, fd.position, end, h.end)
			}
			if last < 0 {
				break
			}
			if fd.position <= before {
				rt.Fatalf("stands at %d", before)
			}
		}
		if !slices.Equal(want, s.offsets) {
			rt.Fatalf("from %d: shown %v, want %v", from, s.offsets, want)
		}
		fd.Remove()
		s.gone.Store(true)
		p, _ := h.fetch(0, 1, committed)
		if _, err := fd.take(p); err != nil {
			rt.Fatal(err)
		}
	})
}

// What a follower refuses the leader is asked for, and no log's bounds.
func TestFeedTakesAFollowersFaultToTheLeader(t *testing.T) {
	f := offline(true)
	defer f.cancel()
	for _, code := range []sarama.KError{
		sarama.ErrOffsetOutOfRange, sarama.ErrInvalidMessage, sarama.ErrTopicAuthorizationFailed, sarama.ErrNotLeaderForPartition,
	} {
		fd := f.newFeed(partition{"t", 0}, 5, newFetched(t, 5))
		if next, err := fd.take(&block{PreferredReadReplica: 2}); next != moves || err != nil {
			t.Fatalf("verdict %d, error %v", next, err)
		}
		next, err := fd.take(&block{ErrorCode: int16(code)})
		if next != seeks || !errors.Is(err, code) || fd.replica != noReplica || fd.position != 5 {
			t.Errorf("%v: verdict %d, error %v, replica %d, position %d", code, next, err, fd.replica, fd.position)
		}
	}
}

// A broken marker behind good records: those count, and it is asked for again.
func TestFeedKeepsWhatCameBeforeABrokenMarker(t *testing.T) {
	f := offline(true)
	defer f.cancel()
	s := newFetched(t, 0)
	fd := f.newFeed(partition{"t", 0}, 0, s)
	next, err := fd.take(newBlock(11, 11, newLogged(0, 10).add(0, nil, nil), newLogged(10, 1).marker([]byte{0})))
	if err == nil || next != stays || fd.position != 10 || s.position != 10 || len(s.offsets) != 1 {
		t.Errorf("verdict %d, error %v, position %d, records %v", next, err, fd.position, s.offsets)
	}
	if due, wait := fd.due(time.Now()); due || wait <= 0 {
		t.Error("asked for again at once")
	}
}

// A record that cannot be read in the middle of a batch whose checksum is right:
// those in front of it come once, however often the batch is asked for and
// however few a sink takes at a time.
func TestFeedBringsWhatCameBeforeABrokenRecordOnce(t *testing.T) {
	b := newLogged(3, 5).add(0, nil, nil).add(1, nil, nil).add(2, nil, nil)
	whole := b.RecordBatch
	whole.NumRecords = 4
	for _, r := range b.records {
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		whole.Records = r.AppendTo(whole.Records)
	}
	whole.Records = append(whole.Records, 100) // a length that leads beyond the end
	p := newBlock(8, 8, newLogged(2, 1).add(0, nil, nil))
	p.RecordBatches = append(p.RecordBatches, sealed(whole)...)
	for size := range 5 {
		f := offline(true)
		s := newFetched(t, 2)
		s.batch = 1000
		if size > 0 {
			s.batch = size
		}
		fd := f.newFeed(partition{"t", 0}, 2, s)
		for range 3 {
			if next, err := fd.take(p); err == nil || next != stays {
				t.Errorf("verdict %d, error %v", next, err)
			}
		}
		if !slices.Equal(s.offsets, []int64{2, 3, 4, 5}) || fd.position != 6 || s.position != 6 {
			t.Errorf("batches of %d: offsets %v, position %d, the sink's %d", s.batch, s.offsets, fd.position, s.position)
		}
		f.cancel()
	}
}

// A broker fills a response in the order of the request: each partition is the
// first in its turn.
func TestEachPartitionIsAskedForFirst(t *testing.T) {
	f := offline(true)
	defer f.cancel()
	s := newSource(f, 1)
	for id := range int32(3) {
		fd := f.newFeed(partition{"t", id}, 0, newFetched(t, 0))
		s.feeds = append(s.feeds, fd)
	}
	first := map[int32]int{}
	for range 6 {
		if !s.copyFeeds() || len(s.round) != 3 {
			t.Fatalf("a round of %d", len(s.round))
		}
		seen := map[int32]bool{}
		for _, fd := range s.round {
			seen[fd.id] = true
		}
		if len(seen) != 3 {
			t.Fatalf("of three partitions %v are in the round", seen)
		}
		first[s.round[0].id]++
	}
	if first[0] != 2 || first[1] != 2 || first[2] != 2 {
		t.Errorf("how often each was first: %v", first)
	}
	s.feeds = s.feeds[:1] // two have left
	if !s.copyFeeds() || len(s.round) != 1 {
		t.Errorf("a round of %d", len(s.round))
	}
}

// What does not fit is asked for with more room, and the next with the usual.
func TestFeedMakesRoom(t *testing.T) {
	f := offline(true)
	defer f.cancel()
	f.o.PartitionBytes, f.o.ResponseBytes = 100, 350
	fd := f.newFeed(partition{"t", 0}, 5, newFetched(t, 5))
	left, idle := newBlock(9, 9), newBlock(9, 9)
	cut := newBlock(0, 0)
	cut.RecordBatches = []byte{0}
	whole := newBlock(9, 9, newLogged(5, 4).add(0, nil, nil))
	for i, step := range []struct {
		block *block
		bytes int32
	}{{left, 200}, {left, 350}, {left, 350}, {cut, 700}, {left, 700}, {cut, 1400}, {whole, 100}, {idle, 100}} {
		if _, err := fd.take(step.block); err != nil || fd.bytes != step.bytes {
			t.Fatalf("step %d: %d bytes, error %v; want %d", i, fd.bytes, err, step.bytes)
		}
	}
	fd.bytes = maxReadBytes
	if _, err := fd.take(cut); err == nil || fd.bytes != maxReadBytes {
		t.Errorf("no batch is larger: %d bytes, error %v", fd.bytes, err)
	}
}
