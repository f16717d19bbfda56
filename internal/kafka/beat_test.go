package kafka

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever the loop does, and whatever it waits for, it is not quiet; but once it
// has done nothing and waited for nothing, it is, as is one call that never ends.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Minute
		b := newBeat()
		quiet := func(want bool, when string) {
			t.Helper()
			if got := b.quiet(limit); got != want {
				t.Errorf("%s: quiet %t", when, got)
			}
		}
		time.Sleep(limit)
		quiet(false, "within the limit")
		time.Sleep(time.Second)
		quiet(true, "beyond it")
		b.turn()
		quiet(false, "after a turn")
		end, other := b.call(), b.call()
		time.Sleep(time.Hour)
		quiet(false, "in two calls")
		other()
		time.Sleep(time.Hour)
		quiet(false, "in a call")
		time.Sleep(backstop)
		quiet(true, "in a call without end")
		end()
		quiet(false, "after it")
		time.Sleep(2 * limit)
		quiet(true, "and for long")
	})
}

// The group's loop has turns while there are brokers and while there are none,
// between the sessions and in them.
func TestGroupPulse(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, groupOptions)
	g := newGate()
	c.joins.dial = g.Dial
	c.joins.interrupt()
	turns := func() uint64 {
		n, quiet := c.GroupPulse()
		if quiet {
			t.Fatal("quiet")
		}
		return n
	}
	moves := func(when string) {
		t.Helper()
		before := turns()
		eventually(t, "turns "+when, func() bool { return turns() > before+20 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	h, _, ended := consume(ctx, t, c, topic)
	eventually(t, "a claim", func() bool { return h.started.Load() == 1 })
	moves("in a session")
	g.close()
	moves("without a coordinator")
	g.open()
	moves("with one again")
	cancel()
	c.InterruptJoin()
	_ = finish(t, ended)
}

// A call into sarama that never returns is no wait for brokers for ever.
func TestCallsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := &Reader{}, partition{"t", 3}
		f := &Fetcher{made: time.Now(), asking: make(map[string]time.Time)}
		bounds, search := &Feed{partition: p}, &Feed{partition: partition{"u", 1}}
		waits := func() (reader, feed, searched bool) {
			_, reader = r.Tries(p.topic, p.id)
			return reader, f.waits(bounds), f.waits(search)
		}
		time.Sleep(backstop)
		r.count(p, 1)
		bounds.asking.Store(int64(time.Since(f.made)))
		f.setAsking("u", true)
		time.Sleep(backstop - time.Second)
		if a, b, c := waits(); !a || !b || !c {
			t.Errorf("no longer waited for: %t %t %t", a, b, c)
		}
		time.Sleep(2 * time.Second)
		if a, b, c := waits(); a || b || c {
			t.Errorf("still waited for: %t %t %t", a, b, c)
		}
		r.count(p, 1)
		f.setAsking("u", true)
		if a, _, c := waits(); !a || !c {
			t.Errorf("another call is not waited for: %t %t", a, c)
		}
	})
}

// A feed whose topic was made anew has nobody who reads it, until its task has
// closed: that is no stall of the reading.
func TestRemadeFeedHasNoWork(t *testing.T) {
	told := 0
	f := &Fetcher{made: time.Now(), asking: make(map[string]time.Time)}
	f.o.Remade = func(string, int32, int64) { told++ }
	fd := &Feed{partition: partition{"t", 3}, f: f}
	if f.waits(fd) {
		t.Error("a feed that nobody sees to waits for nobody")
	}
	fd.remade()
	if !f.waits(fd) || told != 1 {
		t.Errorf("waits %t, told %d times", f.waits(fd), told)
	}
}
