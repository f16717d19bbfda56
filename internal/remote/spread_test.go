package remote

import (
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
