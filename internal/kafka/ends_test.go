package kafka

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type answer struct {
	partition int32
	end       int64
	err       error
}

// ask puts one question for each partition and returns where answers arrive.
func ask(c *Clients, topic string, urgent bool, partitions ...int32) chan answer {
	answers := make(chan answer, len(partitions)+1) // room to see an answer too many
	for _, p := range partitions {
		c.Ends.Ask(topic, p, urgent, func(end int64, err error) { answers <- answer{p, end, err} })
	}
	return answers
}

func await(t *testing.T, answers chan answer, n int) []answer {
	t.Helper()
	var got []answer
	for range n {
		select {
		case a := <-answers:
			got = append(got, a)
		case <-deadline(t).Done():
			t.Fatalf("%d answers of %d", len(got), n)
		}
	}
	return got
}

// end asks for one end that must come.
func end(t *testing.T, c *Clients, topic string, partition int32) int64 {
	t.Helper()
	a := await(t, ask(c, topic, true, partition), 1)[0]
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.end
}

func TestEndsKnowIsolation(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	committed := k.connect(t, nil)
	uncommitted := k.connect(t, func(o *Options) { o.ReadCommitted = false })
	plain, open := k.producer(t), k.producer(t, kgo.TransactionalID(unique("open")))

	if got := end(t, committed, topic, 0); got != 0 {
		t.Errorf("empty: %d", got)
	}
	send(t, plain, topic, 0, "a", "b")
	if got := end(t, committed, topic, 0); got != 2 {
		t.Errorf("two records: %d", got)
	}
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	send(t, open, topic, 0, "c")
	send(t, plain, topic, 0, "d")
	if got := end(t, committed, topic, 0); got != 2 {
		t.Errorf("an open transaction: %d, want 2", got)
	}
	if got := end(t, uncommitted, topic, 0); got != 4 {
		t.Errorf("an open transaction, read uncommitted: %d, want 4", got)
	}
	if err := open.EndTransaction(deadline(t), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end behind the marker", func() bool { return end(t, committed, topic, 0) == 5 })
}

func TestEndsOfManyPartitions(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 12, nil)
	p := k.producer(t)
	var all []int32
	for id := range int32(12) {
		all = append(all, id)
		send(t, p, topic, id, slices.Repeat([]string{"x"}, int(id))...)
	}
	c := k.connect(t, nil)
	for _, urgent := range []bool{false, true} {
		answers := ask(c, topic, urgent, all...)
		for _, a := range await(t, answers, len(all)) {
			if a.err != nil || a.end != int64(a.partition) {
				t.Errorf("partition %d: end %d, error %v", a.partition, a.end, a.err)
			}
		}
		if len(answers) != 0 {
			t.Error("answered twice")
		}
	}
}

// While a request is under way, whatever is asked goes into the next one.
func TestEndsHaveOneRequestUnderWay(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 6, nil)
	c := k.connect(t, nil)
	all := []int32{0, 1, 2, 3, 4, 5}
	await(t, ask(c, topic, true, all...), 6) // the leaders are known now

	started, release := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var requests [][]int32 // the partitions of each
	var once sync.Once
	k.fake.Fake().ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		var ids []int32
		for _, p := range req.(*kmsg.ListOffsetsRequest).Topics[0].Partitions {
			ids = append(ids, p.Partition)
		}
		slices.Sort(ids)
		mu.Lock()
		requests = append(requests, ids)
		mu.Unlock()
		once.Do(func() { close(started); <-release })
		return nil, nil, false
	})
	first := ask(c, topic, true, 3)
	<-started
	second := ask(c, topic, true, slices.Concat(all, all, all)...)
	close(release)
	await(t, first, 1)
	await(t, second, 18)

	mu.Lock()
	defer mu.Unlock()
	if len(requests) != 2 || !slices.Equal(requests[0], []int32{3}) || !slices.Equal(requests[1], all) {
		t.Errorf("requests for %v, want one for [3] and one for all", requests)
	}
}

func TestEndsTryAgain(t *testing.T) {
	k := fakeCluster(t, 3)
	topic := k.topic(t, 2, nil)
	send(t, k.producer(t), topic, 0, "a")
	c := k.connect(t, nil)
	for _, fault := range []*kerr.Error{
		kerr.OffsetNotAvailable, kerr.NotLeaderForPartition, kerr.LeaderNotAvailable,
		kerr.UnknownTopicOrPartition, kerr.FencedLeaderEpoch, kerr.RequestTimedOut,
	} {
		h := k.fake.Fake().Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: topic, Partitions: []int32{0}, Err: fault, Count: 2,
		})
		// The other partition of the request is not held up by it.
		for _, a := range await(t, ask(c, topic, true, 0, 1), 2) {
			if a.err != nil || a.end != int64(1-a.partition) {
				t.Errorf("%s: partition %d: end %d, error %v", fault.Message, a.partition, a.end, a.err)
			}
		}
		if h.Hits() != 2 {
			t.Errorf("%s: seen %d times, want 2", fault.Message, h.Hits())
		}
	}
}

func TestEndsReportWhatTimeDoesNotHeal(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: topic, Err: kerr.TopicAuthorizationFailed})
	a := await(t, ask(c, topic, true, 0), 1)[0]
	if !errors.Is(a.err, sarama.ErrTopicAuthorizationFailed) {
		t.Errorf("got %v", a.err)
	}
	if got := end(t, c, topic, 0); got != 0 {
		t.Errorf("asked again: %d", got)
	}
}

func TestEndsGiveUpInTheEnd(t *testing.T) {
	k := fakeCluster(t, 1)
	c := k.connect(t, nil)
	c.Ends.patience = 300 * time.Millisecond
	missing := unique("missing")
	a := await(t, ask(c, missing, true, 0), 1)[0]
	if a.err == nil {
		t.Errorf("a topic that does not exist ends at %d", a.end)
	}
}

func TestEndsFollowTheLeader(t *testing.T) {
	k := fakeCluster(t, 3)
	topic := k.topic(t, 1, nil)
	p, c := k.producer(t), k.connect(t, nil)
	for i := range int32(6) {
		if err := k.fake.Fake().MoveTopicPartition(topic, 0, i%3); err != nil {
			t.Fatal(err)
		}
		send(t, p, topic, 0, "x")
		if got := end(t, c, topic, 0); got != int64(i)+1 {
			t.Errorf("end %d, want %d", got, i+1)
		}
	}
}

func TestEndsSurviveABrokenConnection(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	send(t, k.producer(t), topic, 0, "a")
	for range 3 {
		for _, d := range c.conns {
			d.interrupt()
		}
		if got := end(t, c, topic, 0); got != 1 {
			t.Errorf("end %d, want 1", got)
		}
	}
}

func TestEndsAnswerEverybodyAtClose(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 4, nil)
	c := k.connect(t, nil)
	await(t, ask(c, topic, true, 0, 1, 2), 3)

	started, held := make(chan struct{}), newSleeper(t, k.fake.Fake())
	var once sync.Once
	k.fake.Fake().ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		once.Do(func() { close(started) })
		held.sleep()
		return nil, nil, false
	})
	underWay := ask(c, topic, true, 0)
	<-started
	waiting := ask(c, topic, true, 1, 2) // for the request under way
	late := ask(c, topic, false, 3)      // whose leader may not be known yet
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	after := ask(c, topic, true, 0)
	held.wake()
	for name, answers := range map[string]chan answer{"under way": underWay, "waiting": waiting, "late": late, "after": after} {
		for _, a := range await(t, answers, cap(answers)-1) {
			if a.err == nil {
				t.Errorf("%s: end %d after Close", name, a.end)
			}
		}
		if len(answers) != 0 {
			t.Errorf("%s: answered twice", name)
		}
	}
}
