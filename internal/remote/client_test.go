package remote

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/metrics"
	"joiner/internal/task"
)

func TestLookup(t *testing.T) {
	p := newPair(t, nil, nil)
	got := p.client.one(t, 1, "BBCA")
	if got.Outcome != task.Found || got.Price.Text != "9150.25" || got.Price.EventTime != 1000 || got.Price.Partition != 1 ||
		got.Price.Offset != 7 || !got.AsOf || got.Partition != 1 || got.Next != 8 || !got.Known {
		t.Errorf("%+v", got)
	}
	if got := p.client.one(t, 1, "\xff\x00 any bytes"); got.Outcome != task.NoPrice || got.Held || got.Next != 8 || !got.Known {
		t.Errorf("a symbol without a price: %+v", got)
	}
	if got := p.client.one(t, 1, "GONE"); got.Outcome != task.NoPrice || !got.Held {
		t.Errorf("a symbol that has no price any more: %+v", got)
	}
	if got := p.client.one(t, 7, "BBCA"); got.Outcome != task.NoPrice || got.Known {
		t.Errorf("a partition that the topic has not: %+v", got)
	}
	if hits, misses := p.client.count(metrics.LookupHit), p.client.count(metrics.LookupMiss); hits != 1 || misses != 2 {
		t.Errorf("%d hits and %d misses counted, want 1 and 2", hits, misses)
	}
}

func TestLookupOffAsksNobodyElse(t *testing.T) {
	p := newPair(t, nil, nil)
	p.asker.table[0] = tableOf(0, map[string]string{"BMRI": "5"})
	got := make(chan task.Answer, 1)
	for partition, want := range map[int32]task.Outcome{0: task.Found, 1: task.NotAsked} {
		p.client.Ask(t.Context(), task.Query{Symbol: "BMRI", Partition: partition}, ThisPod, func(a task.Answer) { got <- a })
		if a := p.client.get(t, got); a.Outcome != want {
			t.Errorf("partition %d: %+v", partition, a)
		}
	}
	for o := range metrics.LookupOutcomes {
		if n := p.client.count(o); n != 0 {
			t.Errorf("%d %s counted", n, o)
		}
	}
}

// 2,500 keys while the owner is slow: batches of at most 1,000, at most four
// requests at a time, and every key is answered once.
func TestBatches(t *testing.T) {
	p := newPair(t, nil, nil)
	p.table.hold = true
	var flight, most, requests atomic.Int32
	inner := p.server.http.Handler
	p.server.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		for now, m := flight.Add(1), most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			now = flight.Load()
		}
		defer flight.Add(-1)
		inner.ServeHTTP(w, r)
	})
	const keys = 2500
	var answered [keys]atomic.Int32
	var all sync.WaitGroup
	all.Add(keys)
	for i := range keys {
		p.client.Ask(t.Context(), task.Query{Symbol: fmt.Sprint("k", i), Partition: 1, At: 1500}, Everywhere, func(a task.Answer) {
			if a.Outcome != task.NoPrice {
				t.Errorf("key %d: %+v", i, a)
			}
			if answered[i].Add(1) == 1 {
				all.Done()
			}
		})
	}
	await(t, "requests", func() bool { return flight.Load() == maxPerOwner })
	p.table.release()
	all.Wait()
	if requests.Load() > 20 || most.Load() > maxPerOwner {
		t.Errorf("%d requests, %d at a time", requests.Load(), most.Load())
	}
	for i := range answered {
		if n := answered[i].Load(); n != 1 {
			t.Errorf("key %d was answered %d times", i, n)
		}
	}
	if n := p.client.count(metrics.LookupMiss); n != keys {
		t.Errorf("%d misses counted", n)
	}
}

// An owner stands still and goes on: its time-outs are counted, and then the
// right answer comes, once.
func TestFrozenOwner(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Timeout = 30 * time.Millisecond })
	gate := make(chan struct{})
	p.owner.change(func() { p.owner.gate = gate })
	var times atomic.Int32
	got := make(chan task.Answer, 8)
	p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) {
		times.Add(1)
		got <- a
	})
	await(t, "two time-outs", func() bool { return p.client.count(metrics.LookupTimeout) >= 2 })
	p.owner.change(func() { p.owner.gate = nil })
	close(gate)
	if a := p.client.get(t, got); a.Outcome != task.Found || a.Price.Text != "9150.25" {
		t.Errorf("%+v", a)
	}
	if times.Load() != 1 || p.client.count(metrics.LookupHit) != 1 {
		t.Errorf("answered %d times, %d hits", times.Load(), p.client.count(metrics.LookupHit))
	}
}

// The next attempt shows what makes it go on where the last one ended, and says
// for how long the answer has been wanted.
func TestAttemptsGoOnWhereTheyEnded(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Timeout = 50 * time.Millisecond })
	p.table.hold = true
	got := make(chan task.Answer, 1)
	since := time.Now().Add(-time.Hour)
	p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500, Since: since}, Everywhere, func(a task.Answer) { got <- a })
	shown := func() bool {
		p.table.mu.Lock()
		defer p.table.mu.Unlock()
		n := len(p.table.asked) // 0 where the first attempt has not come before it ended
		return n > 0 && p.table.asked[n-1].Ticket == task.Ticket{Task: 9, Seq: 4}
	}
	await(t, "an attempt", func() bool { return p.client.count(metrics.LookupTimeout) > 0 })
	await(t, "an attempt with a ticket", shown)
	p.table.release()
	if a := p.client.get(t, got); a.Outcome != task.Found {
		t.Errorf("%+v", a)
	}
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if first := p.table.asked[0]; first.Ticket != (task.Ticket{}) {
		t.Errorf("the first attempt shows %+v", first.Ticket)
	}
	for i, q := range p.table.asked {
		if d := q.Since.Sub(since); d < -time.Second || d > time.Minute {
			t.Errorf("attempt %d: wanted since %v, it was %v", i, q.Since, since)
		}
	}
}

// What an owner that cannot answer is counted as, and that the answer comes once
// it can.
func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name   string
		begin  func(*pair)
		end    func(*pair)
		counts metrics.LookupOutcome
	}{
		{"restoring", func(p *pair) { p.table.state = task.Restoring }, func(p *pair) { p.table.state = task.Running }, metrics.LookupRestoring},
		{"busy", func(p *pair) { p.table.busy = true }, func(p *pair) { p.table.busy = false }, metrics.LookupOverload},
		{"slow", func(p *pair) { p.table.hold = true }, func(p *pair) { p.table.hold = false }, metrics.LookupTimeout},
		{"freezing", func(p *pair) { p.table.freezing = true }, func(p *pair) { p.table.freezing = false }, metrics.LookupMoved},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, nil, func(o *ClientOptions) { o.Timeout = 50 * time.Millisecond })
			p.table.mu.Lock()
			c.begin(p)
			p.table.mu.Unlock()
			got := make(chan task.Answer, 1)
			p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
			await(t, "an attempt", func() bool { return p.client.count(c.counts) > 0 })
			p.table.mu.Lock()
			c.end(p)
			p.table.mu.Unlock()
			if a := p.client.get(t, got); a.Outcome != task.Found || a.Price.Text != "9150.25" {
				t.Errorf("%+v", a)
			}
		})
	}
}

// The owner is another one by now: the asker follows the hint at once.
func TestMovedOwnerIsFollowed(t *testing.T) {
	p := newPair(t, nil, nil)
	next := newFake("c")
	next.table[1] = tableOf(1, map[string]string{"BBCA": "2"})
	server := serve(t, next, nil)
	d := directory(6, map[string]string{"b": p.server.Addr().String(), "c": server.Addr().String()}, "b", "c", "b", "b")
	for _, f := range []*fake{p.owner, next} {
		f.change(func() { f.dir, f.s.Generation = d, 6 })
	}
	p.owner.change(func() { delete(p.owner.table, 1) })
	// The asker has not heard of it yet.
	if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Found || a.Price.Text != "2" {
		t.Errorf("%+v", a)
	}
	if n := p.client.count(metrics.LookupMoved); n != 1 {
		t.Errorf("%d moved, want 1", n)
	}
}

// An owner that stays is in a newer generation than the asker.
func TestOwnerOfANewerGeneration(t *testing.T) {
	p := newPair(t, nil, nil)
	d := *p.owner.dir
	d.Generation = 6
	p.owner.change(func() { p.owner.dir, p.owner.s.Generation = &d, 6 })
	if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Found {
		t.Errorf("%+v", a)
	}
	if n := p.client.count(metrics.LookupMoved); n != 1 {
		t.Errorf("%d moved, want 1", n)
	}
}

// The asker is in a newer generation than the owner, who hears of it later.
func TestOwnerOfAnOlderGeneration(t *testing.T) {
	p := newPair(t, nil, nil)
	d := *p.owner.dir
	d.Generation = 6
	p.asker.change(func() { p.asker.dir, p.asker.s.Generation = &d, 6 })
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	await(t, "a refusal", func() bool { return p.client.count(metrics.LookupMoved) > 0 })
	p.owner.change(func() { p.owner.dir, p.owner.s.Generation = &d, 6 })
	if a := p.client.get(t, got); a.Outcome != task.Found {
		t.Errorf("%+v", a)
	}
}

// Two pods that each take the other for the owner are asked a few times, and
// then again from the start, until the patience ends.
func TestDirectoriesThatPointAtEachOther(t *testing.T) {
	patiently(t, "the hops of a round", 300*time.Millisecond, func(limit time.Duration) bool {
		p := newPair(t, nil, func(o *ClientOptions) { o.Patience = limit })
		other := newFake("c")
		server := serve(t, other, nil)
		members := map[string]string{"b": p.server.Addr().String(), "c": server.Addr().String()}
		p.owner.change(func() {
			delete(p.owner.table, 1)
			p.owner.dir = directory(5, members, "b", "c")
		})
		other.change(func() { other.dir = directory(5, members, "b", "b") })
		if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Unanswered {
			t.Errorf("%+v", a)
		}
		// 300ms of patience hold at most four rounds: pauses of 50, 100 and
		// 200ms; longer ones, under the time-out, one more each.
		n := p.client.count(metrics.LookupMoved)
		if n > 10*(MaxHops+1) || limit <= 300*time.Millisecond && n > 5*(MaxHops+1) {
			t.Errorf("%d moved within %v", n, limit)
		}
		return n >= MaxHops+1
	})
}

// Somebody else answers at the address that a member advertises, or nobody that
// speaks of look-ups.
func TestForeignAddress(t *testing.T) {
	foreign := newFake("b")
	foreign.s.Group = "others"
	foreign.table[1] = tableOf(1, map[string]string{"BBCA": "666"})
	stranger := newFake("x") // of this very group
	stranger.table[1] = tableOf(1, map[string]string{"BBCA": "666"})
	redirected := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer redirected.Close()
	for name, c := range map[string]struct {
		address string
		counts  metrics.LookupOutcome
	}{
		"another group's pod": {serve(t, foreign, nil).Addr().String(), metrics.LookupMoved},
		"another member":      {serve(t, stranger, nil).Addr().String(), metrics.LookupMoved},
		"a web server":        {webServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }), metrics.LookupError},
		"a redirecting server": {webServer(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, redirected.URL, http.StatusTemporaryRedirect)
		}), metrics.LookupError},
		"nobody":       {closedAddress(t), metrics.LookupError},
		"no address":   {"nonsense", metrics.LookupError},
		"a user in it": {"user@127.0.0.1:80", metrics.LookupError},
	} {
		t.Run(name, func(t *testing.T) {
			patiently(t, "the outcome is counted", 100*time.Millisecond, func(limit time.Duration) bool {
				p := newPair(t, nil, func(o *ClientOptions) { o.Patience = limit })
				p.asker.dir = directory(5, map[string]string{"b": c.address}, "a", "b")
				if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Unanswered {
					t.Errorf("%+v", a)
				}
				if p.client.count(metrics.LookupHit)+p.client.count(metrics.LookupMiss) != 0 {
					t.Error("an answer is counted")
				}
				return p.client.count(c.counts) > 0
			})
		})
	}
}

func webServer(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func closedAddress(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// While nobody has told who owns what, a question waits, within its patience.
// Nobody can say that a partition which nobody reads has no price: it is asked for
// until somebody does, or the patience ends. Whoever wants the newest is told at once.
func TestPartitionThatNobodyReads(t *testing.T) {
	p := newPair(t, nil, nil)
	nobody := directory(5, map[string]string{"b": p.server.Addr().String()}, "b", "", "b", "b")
	nobody.Moving = nil
	p.asker.dir = nobody
	p.owner.table[0], p.owner.table[2], p.owner.table[3] = tableOf(0, map[string]string{"BBCA": "1"}), tableOf(2, nil), tableOf(3, nil)
	p.owner.table[0].time = 10 // an older price
	if a, f := p.client.Newest(t.Context(), 1, []byte("BBCA")); a.Outcome != task.Unanswered || f != (Failure{Reason: NoOwner}) {
		t.Errorf("the newest: %+v %+v", a, f)
	}
	impatient := ask(t, p.asker, func(o *ClientOptions) { o.Patience = 100 * time.Millisecond })
	for _, partition := range []int32{1, task.AnyPartition} {
		if a := impatient.one(t, partition, "BBCA"); a.Outcome != task.Unanswered {
			t.Errorf("partition %d: %+v", partition, a)
		}
		got := make(chan task.Answer, 1)
		p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: partition, Except: task.AnyPartition, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
		p.asker.change(func() {
			p.asker.dir = directory(5, map[string]string{"b": p.server.Addr().String()}, "b", "b", "b", "b")
		})
		p.client.DirectoryChanged()
		if a := p.client.get(t, got); a.Outcome != task.Found || a.Partition != 1 {
			t.Errorf("partition %d, once somebody reads it: %+v", partition, a)
		}
		p.asker.change(func() { p.asker.dir = nobody })
	}
}

func TestWithoutADirectory(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Patience = 60 * time.Millisecond })
	d := p.asker.dir
	truncated := *d
	truncated.Truncated, truncated.Owners = true, nil
	p.asker.dir = &truncated
	if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Unanswered {
		t.Errorf("a truncated directory: %+v", a)
	}
	p = newPair(t, nil, nil)
	d, p.asker.dir = p.asker.dir, nil
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	p.asker.change(func() { p.asker.dir = d })
	p.client.DirectoryChanged()
	if a := p.client.get(t, got); a.Outcome != task.Found {
		t.Errorf("%+v", a)
	}
}

// An owner that always has more to be asked leaves the others their turn.
func TestOwnersTakeTurns(t *testing.T) {
	p := newPair(t, nil, nil)
	other := newFake("c")
	other.table[2] = tableOf(2, map[string]string{"BMRI": "5"})
	server := serve(t, other, nil)
	d := directory(5, map[string]string{"b": p.server.Addr().String(), "c": server.Addr().String()}, "a", "b", "c", "b")
	for _, f := range []*fake{p.asker, p.owner, other} {
		f.change(func() { f.dir = d })
	}
	p.client.pretend(maxFlight - 1)
	defer p.client.pretend(1 - maxFlight)
	var enough atomic.Bool
	var busy func(task.Answer)
	keep := func() {
		p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { busy(a) })
	}
	busy = func(task.Answer) {
		if !enough.Load() {
			keep()
		}
	}
	p.table.hold = true
	keep()
	keep()
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "BMRI", Partition: 2, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	p.table.release()
	if a := p.client.get(t, got); a.Outcome != task.Found {
		t.Errorf("%+v", a)
	}
	enough.Store(true)
}

// pretend counts so many more requests as under way.
func (a *asker) pretend(requests int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flight += requests
}

// The patience ends where a question waits for a request, too.
func TestPatienceEndsInAQueue(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Patience = 50 * time.Millisecond })
	p.client.pretend(maxFlight)
	if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Unanswered {
		t.Errorf("%+v", a)
	}
	p.client.pretend(-maxFlight)
	await(t, "an answer", func() bool { return p.client.one(t, 1, "BBCA").Outcome == task.Found })
}

// The patience is that of all questions that were begun together: one that comes
// after it is not asked, be it in this pod or elsewhere.
func TestPatienceIsForAllThatWasBegunTogether(t *testing.T) {
	p := newPair(t, nil, nil)
	here := tableOf(0, map[string]string{"BMRI": "5"})
	p.asker.table[0] = here
	for _, c := range []struct {
		ago  time.Duration
		want task.Outcome
	}{{2 * patience, task.Unanswered}, {patience / 100, task.Found}, {0, task.Found}} {
		for _, q := range []task.Query{{Symbol: "BBCA", Partition: 1}, {Symbol: "BMRI", Partition: 0}, {Symbol: "BBCA", Partition: task.AnyPartition, Except: 0}} {
			if c.ago > 0 {
				q.Begun = time.Now().Add(-c.ago)
			}
			if q.Partition == task.AnyPartition && c.want == task.Found {
				q.Partition = 1 // its other owners are not there
			}
			got := make(chan task.Answer, 1)
			p.client.Ask(context.Background(), q, Everywhere, func(x task.Answer) { got <- x })
			if a := p.client.get(t, got); a.Outcome != c.want {
				t.Errorf("%v after it was begun: partition %d: %+v", c.ago, q.Partition, a)
			}
		}
		if c.ago > patience && len(p.table.asked)+len(here.asked) > 0 {
			t.Errorf("asked %v %v", p.table.asked, here.asked)
		}
	}
}

// The last pause of a question ends early as well, and before its patience does.
func TestTheLastTry(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Timeout, o.Patience = patience, patience/2 }) // every pause is the last
	d := p.asker.dir
	p.asker.dir = nil
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	p.asker.change(func() { p.asker.dir = d })
	p.client.DirectoryChanged()
	if a := p.client.get(t, got); a.Outcome != task.Found {
		t.Errorf("%+v", a)
	}
	now := time.Now()
	c := &Client{o: ClientOptions{Timeout: 200 * time.Millisecond}}
	for _, w := range []struct{ left, pause, want time.Duration }{
		{10 * time.Second, time.Second, time.Second},
		{time.Second, time.Second, 800 * time.Millisecond},
		{100 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond},
	} {
		x := &question{deadline: now.Add(w.left)}
		if at := c.again(x, now, w.pause); at.Sub(now) != w.want {
			t.Errorf("%v left, a pause of %v: asked again after %v, want %v", w.left, w.pause, at.Sub(now), w.want)
		}
	}
}

// The partition comes to this very pod while it is asked for elsewhere.
func TestPartitionThatComesHere(t *testing.T) {
	p := newPair(t, nil, nil)
	p.owner.change(func() { delete(p.owner.table, 1) })
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	await(t, "a refusal", func() bool { return p.client.count(metrics.LookupMoved) > 0 })
	p.asker.change(func() { p.asker.table[1] = tableOf(1, map[string]string{"BBCA": "3"}) })
	if a := p.client.get(t, got); a.Outcome != task.Found || a.Price.Text != "3" {
		t.Errorf("%+v", a)
	}
}

// A table of this pod may take its time, but not longer than the patience. Its merge
// answers by the log alone, so a pod that may not be in the group any more asks
// itself for a notification of its own; but what the newest price is it does not say.
func TestTablesOfThisPod(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Patience = 100 * time.Millisecond })
	here := tableOf(0, map[string]string{"BMRI": "5"})
	here.hold = true
	p.asker.table[0] = here
	if a := p.client.one(t, 0, "BMRI"); a.Outcome != task.Unanswered {
		t.Errorf("%+v", a)
	}
	here.release() // too late
	await(t, "an answer", func() bool { return p.client.one(t, 0, "BMRI").Outcome == task.Found })
	p.asker.change(func() { p.asker.dead = true })
	if a := p.client.one(t, 0, "BMRI"); a.Outcome != task.Found {
		t.Errorf("while the coordinator is silent: %+v", a)
	}
	if a, f := p.client.Newest(t.Context(), 0, []byte("BMRI")); a.Outcome != task.Unanswered || f != (Failure{NoCoordinator, "a"}) {
		t.Errorf("the newest while the coordinator is silent: %+v %+v", a, f)
	}
	if n := p.client.count(metrics.LookupHit); n != 0 {
		t.Errorf("%d look-ups in this pod counted as remote", n)
	}
}

// A task that is frozen has nobody to wait for its answers.
func TestQuestionsThatNobodyWaitsFor(t *testing.T) {
	p := newPair(t, nil, nil)
	p.asker.dir = nil
	ctx, cancel := context.WithCancel(t.Context())
	for range 100 {
		p.client.Ask(ctx, task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { t.Errorf("%+v", a) })
	}
	cancel()
	p.client.DirectoryChanged()
	await(t, "an empty agenda", func() bool {
		p.client.mu.Lock()
		defer p.client.mu.Unlock()
		return len(p.client.due.items) == 0 && len(p.client.owners) == 0
	})
}

// Close ends what is open, wherever it is: on its way, queued, waiting for
// another try or for a table of this pod.
func TestClose(t *testing.T) {
	p := newPair(t, nil, nil)
	p.table.hold = true
	here := tableOf(0, nil)
	here.hold = true
	p.asker.table[0] = here
	p.asker.dir = directory(5, map[string]string{"b": p.server.Addr().String()}, "a", "b", "", "b")
	var ended atomic.Int32
	ask := func(partition int32) {
		p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: partition, At: 1500}, Everywhere, func(a task.Answer) {
			if a.Outcome != task.Unanswered {
				t.Errorf("partition %d: %+v", partition, a)
			}
			ended.Add(1)
		})
	}
	for partition := range int32(3) {
		for range 10 {
			ask(partition)
		}
	}
	p.client.Close()
	if n := ended.Load(); n != 30 {
		t.Errorf("%d of 30 have ended", n)
	}
	ask(1)
	ask(0)
	ask(2)
	if n := ended.Load(); n != 33 {
		t.Errorf("%d of 33 have ended", n)
	}
	p.table.release()
	here.release()
}

func TestAllowedNamesAreNotLeft(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			t.Error("an address that is not allowed was dialled")
			_ = c.Close()
		}
	}()
	core, logs := observer.New(zap.WarnLevel)
	patiently(t, "an error counted", 80*time.Millisecond, func(limit time.Duration) bool {
		p := newPair(t, nil, func(o *ClientOptions) {
			o.AllowedNames, o.Patience, o.Log = []string{"pod.example", "10.0.0.0/8"}, limit, zap.New(core)
		})
		p.asker.dir = directory(5, map[string]string{"b": ln.Addr().String()}, "a", "b")
		if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Unanswered {
			t.Errorf("%+v", a)
		}
		return p.client.count(metrics.LookupError) > 0
	})
	if !strings.Contains(fmt.Sprint(logs.All()[0].ContextMap()), "peer.allowed_names") {
		t.Errorf("the log does not name the key: %v", logs.All())
	}
	p := newPair(t, nil, func(o *ClientOptions) { o.AllowedNames = []string{"127.0.0.0/8"} })
	if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Found {
		t.Errorf("an address in the range: %+v", a)
	}
}

func TestNewest(t *testing.T) {
	p := newPair(t, nil, nil)
	a, f := p.client.Newest(t.Context(), 1, []byte("BBCA"))
	if a.Outcome != task.Found || a.Price.Text != "9150.25" || f != (Failure{}) {
		t.Errorf("%+v, %+v", a, f)
	}
	p.asker.table[0] = tableOf(0, map[string]string{"BMRI": "5"})
	if a, _ = p.client.Newest(t.Context(), 0, []byte("BMRI")); a.Price.Text != "5" {
		t.Errorf("of this pod: %+v", a)
	}
	p.owner.table[2], p.owner.table[3] = tableOf(2, nil), tableOf(3, map[string]string{"BMRI": "4"})
	p.owner.table[3].time = 999
	defer p.countedNothing(t) // these are no joins
	if a, _ = p.client.Newest(t.Context(), task.AnyPartition, []byte("BMRI")); a.Outcome != task.Found || a.Price.Text != "5" {
		t.Errorf("wherever it is: %+v", a)
	}
	for want, change := range map[Failure]func(*pair){
		{Reason: Restoring, Owner: "b"}:   func(p *pair) { p.table.state = task.Restoring },
		{Reason: NoOwner}:                 func(p *pair) { p.asker.dir = directory(5, nil, "a", "") },
		{Reason: NoDirectory}:             func(p *pair) { p.asker.dir = nil },
		{Reason: Unreachable, Owner: "b"}: func(p *pair) { _ = p.server.Close(context.Background()) },
		{Reason: Moving, Owner: "b"}:      func(p *pair) { p.owner.s.Generation = 4 },
		{NoCoordinator, "b"}:              func(p *pair) { p.owner.dead = true },
		{Reason: Overloaded, Owner: "b"}: func(p *pair) {
			for range cap(p.server.slots) {
				p.server.slots <- struct{}{}
			}
		},
	} {
		p := newPair(t, nil, nil)
		change(p)
		patiently(t, want.Reason, 100*time.Millisecond, func(limit time.Duration) bool {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			a, f := p.client.Newest(ctx, 1, []byte("BBCA"))
			if a.Outcome == task.Unanswered && f == (Failure{Reason: TimedOut, Owner: want.Owner}) {
				return false // the machine was too slow to hear why
			}
			if a.Outcome != task.Unanswered || f != want {
				t.Errorf("%+v, %+v, want %+v", a, f, want)
			}
			p.countedNothing(t)
			return true
		})
	}
}

// Look-ups are counted one for each key and attempt: where nothing is sent there is
// none.
func TestWithoutAnAttemptNothingIsCounted(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Patience = 100 * time.Millisecond })
	if a := p.client.one(t, 1, strings.Repeat("x", MaxBytes)); a.Outcome != task.Unanswered {
		t.Errorf("a symbol that no request holds: %+v", a)
	}
	s := &standingOnce{fake: p.asker}
	c := ask(t, s, func(o *ClientOptions) { o.Patience = 100 * time.Millisecond })
	if a := c.one(t, 1, "BBCA"); a.Outcome != task.Unanswered || s.asked.Load() < 2 {
		t.Errorf("a pod that has left its group before it asks: %+v", a)
	}
	p.client = c
	p.countedNothing(t)
}

// standingOnce has a standing whenever it is asked where a question goes, and none
// when it is to be sent.
type standingOnce struct {
	*fake
	asked atomic.Int32
}

func (s *standingOnce) Standing() (Standing, bool) {
	st, ok := s.fake.Standing()
	return st, ok && s.asked.Add(1)%2 == 1
}

func (p *pair) countedNothing(t *testing.T) {
	t.Helper()
	for o := range metrics.LookupOutcomes {
		if n := p.client.count(o); n != 0 {
			t.Errorf("%d look-ups counted as %s", n, o)
		}
	}
}
