package remote

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/task"
)

func foundIn(partition int32, at record.Millis, asOf bool) task.Answer {
	return task.Answer{
		Outcome: task.Found, AsOf: asOf, Partition: partition, Known: true,
		Price: record.Price{Text: "1", EventTime: at, Partition: partition},
	}
}

func TestBetter(t *testing.T) {
	for _, c := range []struct {
		name   string
		better task.Answer
		worse  task.Answer
	}{
		{"newer in force", foundIn(3, 200, true), foundIn(1, 100, true)},
		{"in force before later", foundIn(3, 100, true), foundIn(1, 900, false)},
		{"equal times, lower partition", foundIn(1, 100, true), foundIn(3, 100, true)},
		{"of later ones the oldest", foundIn(3, 800, false), foundIn(1, 900, false)},
		{"of later ones with equal times the lower partition", foundIn(1, 800, false), foundIn(3, 800, false)},
	} {
		if !better(&c.better, &c.worse) || better(&c.worse, &c.better) {
			t.Errorf("%s: not taken", c.name)
		}
	}
}

// Nobody knows which partition holds the symbol: all owners are asked, and the
// one with the newest price in force is taken.
func TestEveryOwnerIsAsked(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Timeout = 100 * time.Millisecond })
	p.asker.table[0] = tableOf(0, map[string]string{"X": "0"})
	p.asker.table[0].time = 1001
	p.owner.table[2], p.owner.table[3] = tableOf(2, map[string]string{"X": "2"}), tableOf(3, map[string]string{"Y": "3"})
	p.owner.table[2].time = 1002
	if a := p.client.one(t, task.AnyPartition, "X"); a.Outcome != task.Found || a.Partition != 2 || a.Price.Text != "2" {
		t.Errorf("%+v", a)
	}
	if a := p.client.one(t, task.AnyPartition, "Z"); a.Outcome != task.NoPrice || a.Known {
		t.Errorf("a miss: %+v", a)
	}
	if n := p.client.count(metrics.LookupHit) + p.client.count(metrics.LookupMiss); n != 6 {
		t.Errorf("%d keys were asked of the other pod, want 2 times 3", n)
	}
	got := make(chan task.Answer, 1)
	answer := func(a task.Answer) { got <- a }
	p.client.Ask(t.Context(), task.Query{Symbol: "X", Partition: task.AnyPartition, Except: 2, At: 1500}, Everywhere, answer)
	if a := p.client.get(t, got); a.Partition != 0 {
		t.Errorf("without the one that was asked before: %+v", a)
	}
	p.client.Ask(t.Context(), task.Query{Symbol: "X", Partition: task.AnyPartition, Except: 9, At: 1500}, ThisPod, answer)
	if a := p.client.get(t, got); a.Partition != 0 || a.Outcome != task.Found {
		t.Errorf("in this pod alone: %+v", a)
	}
	p.client.Ask(t.Context(), task.Query{Symbol: "Y", Partition: task.AnyPartition, Except: 9, At: 1500}, ThisPod, answer)
	if a := p.client.get(t, got); a.Outcome != task.NotAsked {
		t.Errorf("in another pod: %+v", a)
	}
}

// As long as one owner has not answered, it might hold a newer price, and it is
// no miss either.
func TestAMissingOwnerIsNoMiss(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Patience = 150 * time.Millisecond })
	p.asker.table[0] = tableOf(0, map[string]string{"X": "0"})
	p.owner.table[2] = tableOf(2, nil)
	p.owner.table[3] = tableOf(3, nil)
	p.owner.table[3].state = task.Restoring
	for _, symbol := range []string{"X", "Z"} {
		if a := p.client.one(t, task.AnyPartition, symbol); a.Outcome != task.Unanswered {
			t.Errorf("%s: %+v", symbol, a)
		}
	}
	p.asker.change(func() { p.asker.parts = 0 })
	if a := p.client.one(t, task.AnyPartition, "X"); a.Outcome != task.Unanswered {
		t.Errorf("nobody knows how many there are: %+v", a)
	}
	p.asker.change(func() { p.asker.parts = 1 })
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "X", Partition: task.AnyPartition, Except: 0, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	if a := p.client.get(t, got); a.Outcome != task.NoPrice {
		t.Errorf("there is no other: %+v", a)
	}
}

// many asks every owner for n symbols, and counts the answers by outcome.
func (p *pair) many(t testing.TB, n int) (outcomes func() map[task.Outcome]int) {
	t.Helper()
	var mu sync.Mutex
	counted := make(map[task.Outcome]int)
	for i := range n {
		p.client.Ask(t.Context(), task.Query{Symbol: fmt.Sprint("symbol-", i), Partition: task.AnyPartition, Except: 0, At: 1500}, Everywhere, func(a task.Answer) {
			mu.Lock()
			defer mu.Unlock()
			counted[a.Outcome]++
		})
	}
	return func() map[task.Outcome]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(counted)
	}
}

// What many questions for every owner hold is bounded while an owner cannot answer:
// one appointment each, and a leg for a bounded number of partitions. They are all
// answered once it can.
func TestWaitingForAnOwnerOfManyPartitions(t *testing.T) {
	const questions, parts, room = 300, 60, 2000
	for name, c := range map[string]struct {
		away  func(*pair)
		asked bool // somebody is, so that legs are seen to be under way
	}{
		"moving":    {func(p *pair) { p.asker.dir = directory(5, nil, make([]string, parts)...) }, false},
		"unknown":   {func(p *pair) { p.asker.dir = nil }, false},
		"restoring": {func(p *pair) { p.setOwner(func(tab *table) { tab.state = task.Restoring }) }, true},
		"silent":    {func(p *pair) { p.owner.change(func() { p.owner.gate = make(chan struct{}) }) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil, func(o *ClientOptions) { o.Patience = 10 * patience })
			p.asker.parts = parts
			owners := make([]string, parts)
			for i := range owners {
				owners[i] = "b"
				p.owner.table[int32(i)] = tableOf(int32(i), nil)
			}
			there := directory(5, map[string]string{"b": p.server.Addr().String()}, owners...)
			p.asker.dir, p.owner.dir = there, there
			c.away(p)
			p.client.mu.Lock()
			p.client.legRoom = room
			p.client.mu.Unlock()
			outcomes := p.many(t, questions)
			most := 0
			held := func() {
				p.client.mu.Lock()
				defer p.client.mu.Unlock()
				due, waiting, legs := len(p.client.due.items), len(p.client.spreads), p.client.legs
				if legs > room || due > questions+room || waiting > questions {
					t.Errorf("%d appointments, %d that wait for a round, %d legs", due, waiting, legs)
				}
				most = max(most, legs)
			}
			for range 5 { // whatever they wait for, all are due at once
				p.client.DirectoryChanged()
				held()
			}
			if c.asked {
				await(t, "a round under way", func() bool { held(); return most > 0 })
			}
			for range 5 {
				p.client.DirectoryChanged()
				held()
			}
			p.asker.change(func() { p.asker.dir = there })
			p.setOwner(func(tab *table) { tab.state = task.Running })
			p.owner.change(func() {
				if p.owner.gate != nil {
					close(p.owner.gate)
					p.owner.gate = nil
				}
			})
			p.client.DirectoryChanged()
			await(t, "answers to all", func() bool { return outcomes()[task.NoPrice] == questions })
			p.client.mu.Lock()
			defer p.client.mu.Unlock()
			if p.client.legs != 0 || len(p.client.spreads) != 0 {
				t.Errorf("left: %d legs, %d questions", p.client.legs, len(p.client.spreads))
			}
		})
	}
}

func (p *pair) setOwner(change func(*table)) {
	p.owner.change(func() {
		for _, tab := range p.owner.table {
			tab.mu.Lock()
			change(tab)
			tab.mu.Unlock()
		}
	})
}

// Whoever asks every owner may hold the lock of its table, which others wait for:
// it does none of the work for each partition.
func TestAskingEveryOwnerCostsTheAskerNothing(t *testing.T) {
	p := newPair(t, nil, nil)
	p.asker.table[0] = tableOf(0, map[string]string{"X": "0"})
	p.owner.table[2], p.owner.table[3] = tableOf(2, nil), tableOf(3, nil)
	gate := make(chan struct{})
	p.asker.change(func() { p.asker.gate = gate }) // nobody is told who owns what
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "X", Partition: task.AnyPartition, Except: task.AnyPartition, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	p.asker.change(func() { p.asker.gate = nil })
	close(gate)
	if a := p.client.get(t, got); a.Outcome != task.Found || a.Partition != 0 {
		t.Errorf("%+v", a)
	}
}

// Questions that an owner cannot answer for long give their turn to others in
// between, which it may be waiting for itself; and go on where they were.
func TestRoundsTakeTurns(t *testing.T) {
	p := newPair(t, nil, func(o *ClientOptions) { o.Timeout = 50 * time.Millisecond })
	p.client.mu.Lock()
	p.client.legRoom = 3 // one question at a time
	p.client.mu.Unlock()
	here := tableOf(0, map[string]string{"X": "0"})
	here.mute = "SLOW"
	p.table.mute = "SLOW"
	p.asker.table[0] = here
	p.owner.table[2], p.owner.table[3] = tableOf(2, map[string]string{"SLOW": "2"}), tableOf(3, nil)
	var slow atomic.Int32
	since := time.Now()
	for range 5 {
		p.client.Ask(t.Context(), task.Query{Symbol: "SLOW", Partition: task.AnyPartition, Except: task.AnyPartition, At: 1500, Since: since}, Everywhere, func(a task.Answer) {
			if a.Outcome == task.Found && a.Partition == 2 {
				slow.Add(1)
			}
		})
	}
	if a := p.client.one(t, task.AnyPartition, "X"); a.Outcome != task.Found || a.Partition != 0 || slow.Load() != 0 {
		t.Errorf("%+v, and %d of those before it", a, slow.Load())
	}
	for _, tab := range []*table{here, p.table} {
		again := func() (n int) { // asked with the ticket of the attempt before
			tab.mu.Lock()
			defer tab.mu.Unlock()
			for _, q := range tab.asked {
				if q.Ticket == (task.Ticket{Task: 9, Seq: 4}) && q.Symbol == "SLOW" {
					n++
				}
				if age := q.Since.Sub(since); q.Symbol == "SLOW" && (age < -time.Second || age > time.Second) {
					t.Errorf("asked since %v, want %v", q.Since, since)
				}
			}
			return n
		}
		await(t, "another attempt", func() bool { return again() > 0 })
	}
	here.mu.Lock()
	here.mute = ""
	here.mu.Unlock()
	p.table.mu.Lock()
	p.table.mute = ""
	p.table.mu.Unlock()
	await(t, "the others' answers", func() bool { return slow.Load() == 5 })
}

// A round asks those that have not answered, with the ticket that they gave.
func TestWhatARoundLeavesOpen(t *testing.T) {
	s := newSpreading(nil, &question{q: task.Query{Except: 64}}, 67)
	if s.left != 66 {
		t.Fatalf("%d open, want all but the one that was asked before", s.left)
	}
	ticket := task.Ticket{Task: 9, Seq: 2}
	leg := func(p int32, change func(*question)) *question {
		x := &question{q: task.Query{Partition: p}}
		if change != nil {
			change(x)
		}
		return x
	}
	behind := func(x *question) { x.behind, x.q.Ticket = true, ticket }
	s.legs = s.left
	for p := range int32(67) {
		switch p {
		case 64:
		case 63: // its owner could not answer in time
			s.note(leg(p, behind), task.Answer{Outcome: task.Unanswered}, Failure{Reason: TimedOut})
		case 65: // nobody answered
			s.note(leg(p, nil), task.Answer{Outcome: task.Unanswered}, Failure{Reason: TimedOut})
		case 66: // it began to wait, and was taken away
			s.note(leg(p, behind), task.Answer{Outcome: task.Unanswered}, Failure{Reason: Moving, Owner: "b"})
		default:
			s.note(leg(p, nil), task.Answer{Outcome: task.NoPrice}, Failure{})
		}
	}
	if s.legs != 0 || s.left != 3 || s.open[0] != 1<<63 || s.open[1] != 1<<1|1<<2 {
		t.Errorf("%d under way, %d open: %b", s.legs, s.left, s.open)
	}
	if s.failed != 3 || s.behind != 1 || s.failure != (Failure{Moving, "b"}) || len(s.tickets) != 1 || s.tickets[63] != ticket {
		t.Errorf("%d failed, %d behind, %+v, tickets %v", s.failed, s.behind, s.failure, s.tickets)
	}
	s.legs = 1
	if !s.note(leg(63, nil), foundIn(63, 100, true), Failure{}) || s.left != 2 || len(s.tickets) != 0 {
		t.Errorf("%d open, tickets %v", s.left, s.tickets)
	}
}
