package deliver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What brokers do not take is told of with its name, a handful of partitions one
// by one, for as long as it lasts.
func TestNotesOfOutputsThatAreNotTaken(t *testing.T) {
	const partitions = mostNotes + 2
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(partitions+1, "alerts"))
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig())})
	var all []int32
	for p := range int32(partitions) {
		all = append(all, p)
	}
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Partitions: all, Err: kerr.NotEnoughReplicas, Count: -1})
	l, other := newLedger(), newLedger()
	for _, p := range all {
		w.Send(outputs(l, "alerts", p, 0, 3))
	}
	w.Send(outputs(other, "alerts", partitions, 0, 3))
	w.Send(outputs(newLedger(), "missing", 0, 0, 3)) // a fault, which says so itself
	other.wait(t, 3)
	var notes []string
	eventually(t, "notes of all partitions", func() bool {
		notes = w.Notes()
		return len(notes) == mostNotes+1 && strings.Contains(notes[mostNotes], "outputs to 2 more partitions")
	})
	for _, note := range notes[:mostNotes] {
		if !strings.HasPrefix(note, "alerts/") || !strings.Contains(note, ": 3 outputs have not been acknowledged since 2") || !strings.Contains(note, ": NOT_ENOUGH_REPLICAS (broker ") {
			t.Error(note)
		}
	}
	h.Remove()
	l.wait(t, 3*partitions)
	if notes := w.Notes(); len(notes) > 0 {
		t.Errorf("all are written: %v", notes)
	}
}

// A partition whose outputs nobody wants any more is not told of, and what had
// been known against it is not held against its next outputs.
func TestNotesEndWithTheirOutputs(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig())})
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Partitions: []int32{0}, Err: kerr.NotEnoughReplicas, Count: -1})
	defer h.Remove()
	l := newLedger()
	w.Send(outputs(l, "alerts", 0, 0, 3))
	eventually(t, "a note", func() bool { return len(w.Notes()) == 1 })
	w.Drop(l)
	eventually(t, "none", func() bool { return len(w.Notes()) == 0 })
	partition := func() *partition { return w.topics["alerts"].parts[0] }
	eventually(t, "a partition at rest", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return partition().at == idle
	})
	before := time.Now()
	w.Send(outputs(l, "alerts", 0, 3, 6))
	eventually(t, "a failure of the next outputs", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		since := partition().failing.since
		return !since.IsZero() && !since.Before(before)
	})
	w.Drop(l)
}

// Brokers that answer nothing are told of too, with what became of the last
// request.
func TestNotesOfBrokersThatDoNotAnswer(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	proxy, conf := newProxy(t), producerConfig()
	conf.Net.Proxy.Enable, conf.Net.Proxy.Dialer = true, proxy
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), conf)})
	l := newLedger()
	w.Send(outputs(l, "alerts", 0, 0, 1))
	l.wait(t, 1)
	proxy.cutAnswers(1 << 30)
	w.Send(outputs(l, "alerts", 0, 1, 3))
	eventually(t, "a note", func() bool {
		notes := w.Notes()
		return len(notes) == 1 && strings.HasPrefix(notes[0], "alerts/0: 2 outputs have not been acknowledged since ") && strings.Contains(notes[0], ": NETWORK_EXCEPTION (broker ")
	})
	proxy.cutAnswers(0)
	l.wait(t, 3)
	w.mu.Lock()
	if f := w.topics["alerts"].parts[0].failing; !f.since.IsZero() {
		t.Errorf("what was taken is still held against the partition: %+v", f)
	}
	w.mu.Unlock()
	if notes := w.Notes(); len(notes) > 0 {
		t.Errorf("all are written: %v", notes)
	}
}

func TestNotesOfCommitsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fault error
		g := &fakeGroup{member: Generation{Generation: 1}, offsets: map[string]int64{}}
		g.answer = func() (map[string]map[int32]error, error) { return nil, fault }
		c, err := NewCommitter(g.options())
		if err != nil {
			t.Fatal(err)
		}
		task := newTask(3, 10, 20)
		c.Register(task)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = c.Run(ctx) }()
		set := func(err error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			fault = err
		}
		after := func(d time.Duration) string {
			time.Sleep(d)
			synctest.Wait()
			return strings.Join(c.Notes(), "\n")
		}
		if note := after(5500 * time.Millisecond); note != "" {
			t.Error(note)
		}
		set(sarama.ErrNotCoordinatorForConsumer)
		task.advance(1, 1)
		if note := after(time.Second); note != "" {
			t.Errorf("for a moment: %s", note)
		}
		note := after(time.Minute)
		if !strings.HasPrefix(note, "offsets have not been committed since 2000-01-01T00:00:06Z: ") || !strings.Contains(note, sarama.ErrNotCoordinatorForConsumer.Error()) {
			t.Error(note)
		}
		set(nil)
		if note := after(time.Second); note != "" {
			t.Errorf("they are: %s", note)
		}
		// What one may not commit any more is no reason to speak for ever.
		set(errors.New("away"))
		task.advance(1, 1)
		if note := after(10 * time.Second); note == "" {
			t.Error("nothing is said")
		}
		c.Unregister(task)
		if note := after(time.Second); note != "" {
			t.Errorf("there is nothing to commit: %s", note)
		}
		// A coordinator that says nothing.
		set(nil)
		hold := make(chan struct{})
		g.mu.Lock()
		g.hold = hold
		g.mu.Unlock()
		c.Register(newTask(4, 10, 20))
		if note := after(5 * time.Second); !strings.Contains(note, "has not answered yet") {
			t.Errorf("a coordinator is silent: %q", note)
		}
		close(hold)
		if note := after(2 * time.Second); note != "" {
			t.Errorf("it has answered: %s", note)
		}
	})
}
