package kafka

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// undone returns the parts that show the same work at two looks, as a stall does
// at all of them.
func undone(c *Clients) []string {
	before := make(map[string]uint64)
	for _, p := range c.Ends.Pulses() {
		if p.Work != "" {
			before[p.Part] = p.Done
		}
	}
	time.Sleep(2 * endsBatch)
	var parts []string
	for _, p := range c.Ends.Pulses() {
		if done, was := before[p.Part]; was && p.Work != "" && p.Done == done {
			parts = append(parts, p.Part)
		}
	}
	return parts
}

// A broker that does not answer, and one that is not there, are no work; somebody
// who does not come back with an answer is, for all whose questions wait behind.
func TestEndsPulses(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 3, nil)
	c := k.connect(t, nil)
	await(t, ask(c, topic, true, 0, 1, 2), 3)
	if parts := undone(c); len(parts) != 0 {
		t.Errorf("idle: %v", parts)
	}

	started, held := make(chan struct{}), newSleeper(t, k.fake.Fake())
	var once sync.Once
	k.fake.Fake().ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		once.Do(func() { close(started); held.sleep() })
		return nil, nil, false
	})
	first := ask(c, topic, true, 0)
	<-started
	second := ask(c, topic, true, 1, 2)
	if parts := undone(c); len(parts) != 0 {
		t.Errorf("a broker that does not answer: %v", parts)
	}
	held.wake()
	await(t, first, 1)
	await(t, second, 2)

	gate, inside := make(chan struct{}), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	c.Ends.Ask(topic, 0, true, func(int64, error) { close(inside); <-gate })
	<-inside
	behind := ask(c, topic, true, 1)
	eventually(t, "the broker's goroutine to be missed", func() bool {
		return strings.Contains(strings.Join(undone(c), " "), "ends: broker ")
	})
	open()
	await(t, behind, 1)
	if parts := undone(c); len(parts) != 0 {
		t.Errorf("after it: %v", parts)
	}
}

// Questions that cannot be asked of anybody go round.
func TestEndsPulsesWithoutBrokers(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 2, nil)
	c := k.connect(t, nil)
	await(t, ask(c, topic, true, 0, 1), 2)
	k.fake.Fake().Close()
	answers := ask(c, topic, true, 0, 1)
	for len(answers) < 2 {
		for _, part := range undone(c) {
			if again := undone(c); strings.Contains(strings.Join(again, " "), part) {
				t.Fatalf("nobody sees to %s: %v", part, c.Ends.Pulses())
			}
		}
	}
	await(t, answers, 2)
}

// What is with nobody any more is missed, whoever lost it, and so is a search
// that does not go on.
func TestEndsPulsesOfWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Ends{open: 1, lanes: map[int32]*lane{7: {broker: 7}}}
		works := func(part string) bool {
			for _, p := range e.Pulses() {
				if p.Part == part {
					return p.Work != ""
				}
			}
			t.Fatalf("no part %q: %v", part, e.Pulses())
			return false
		}
		if !works("ends: answers") || works("ends: leaders") || works("ends: broker 7") {
			t.Errorf("a lost question: %v", e.Pulses())
		}
		end := e.begin(&e.search)
		e.astray = []*question{{}}
		if works("ends: answers") || works("ends: leaders") {
			t.Errorf("a search under way: %v", e.Pulses())
		}
		time.Sleep(2 * backstop)
		if !works("ends: leaders") {
			t.Errorf("a search without end: %v", e.Pulses())
		}
		before := e.search.n
		end()
		if e.search.n == before || !works("ends: leaders") {
			t.Errorf("a search that has ended and is not begun again: %v", e.Pulses())
		}
		e.closed = true
		if len(e.Pulses()) != 0 {
			t.Error("work after Close")
		}
	})
}
