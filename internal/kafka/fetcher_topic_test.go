package kafka

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"

	"joiner/internal/record"
)

// A partition is read of the topic with the id that was asked for: of another one
// of that name nothing comes, though its offsets are in range.
func TestFetcherReadsOneTopicOfAName(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	p := k.producer(t)
	send(t, p, topic, 0, "a", "b", "c")
	c := k.connect(t, nil)
	id, err := c.Reader.TopicID(deadline(t), topic, 0)
	if err != nil || id == "" {
		t.Fatalf("topic id %q, %v", id, err)
	}
	var mu sync.Mutex
	var told []string
	f := c.NewFetcher(FetcherOptions{Remade: func(topic string, partition int32, at int64) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprintf("%s/%d at %d", topic, partition, at))
	}})
	remade := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return told
	}

	foreign := newFetched(t, 1)
	foreign.remove(func() *Feed {
		fd := f.AddOf("another", topic, 0, 1, foreign)
		eventually(t, "a word of another topic", func() bool { return len(remade()) == 1 })
		return fd
	}())
	if got := foreign.got(); len(got) > 0 {
		t.Errorf("%q of another topic", got)
	}

	s := newFetched(t, 1)
	fd := f.AddOf(id, topic, 0, 1, s)
	if diff := cmp.Diff([]string{"b", "c"}, s.wait(2)); diff != "" {
		t.Error(diff)
	}
	// The sink is full while the topic is made anew: no fetch can show it.
	s.full.Store(true)
	looks := s.looks.Load()
	eventually(t, "a look at the full sink", func() bool { return s.looks.Load() > looks })
	if err := k.admin.DeleteTopic(topic); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topic to be made anew", func() bool {
		return k.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: -1}, false) == nil
	})
	again := k.producer(t)
	send(t, again, topic, 0, "1", "2", "3", "4", "5")
	time.Sleep(lapse) // from then on it counts as not asked for
	s.full.Store(false)
	fd.Wake()
	eventually(t, "a word of the topic made anew", func() bool { return len(remade()) == 2 })
	if diff := cmp.Diff([]string{topic + "/0 at 1", topic + "/0 at 3"}, remade()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b", "c"}, s.got()); diff != "" {
		t.Error(diff)
	}
}

// A reading up to where the log does not reach any more ends.
func TestReadPastTheEndOfTheLog(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	send(t, k.producer(t), topic, 0, "a", "b")
	c := k.connect(t, nil)
	got := 0
	err := c.Reader.Read(deadline(t), topic, 0, 0, 5, func(recs []record.Record) error {
		got += len(recs)
		return nil
	}, nil)
	want := &AboveEnd{Topic: topic, Offset: 5, End: 2}
	if diff := cmp.Diff(any(want), any(err)); diff != "" || got != 2 {
		t.Errorf("%d records, %v", got, err)
	}
}
