package remote

import (
	"context"
	"testing"

	"joiner/internal/task"
)

// requestTo is a request that pod "b" of newPair's world would answer.
func requestTo(partition int32) *request {
	return &request{
		scope: scope{cluster: "c", group: "g", topic: "market", topicID: "t", generation: 5},
		to:    "b", asker: "a", budget: maxBudget,
		asked: []asked{{partition: partition, at: 1500, symbol: "BBCA"}},
	}
}

func ownerB() (*fake, *table) {
	f, tab := newFake("b"), tableOf(1, map[string]string{"BBCA": "9150.25"})
	f.table[1] = tab
	f.dir = directory(5, map[string]string{"a": "1.1.1.1:1", "b": "2.2.2.2:2", "c": "3.3.3.3:3"}, "a", "b", "c", "")
	return f, tab
}

func answerOf(f *fake, r *request) (reply, response) {
	resp := answerer{f}.answer(context.Background(), r)
	return resp.replies[0], resp
}

// What a pod must not answer, whether it is so when the request arrives or
// becomes so while the answer is looked for.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		pod    func(*fake, *table) // what has become of the pod that is asked
		ask    func(*request)      // or what is wrong with the request
		refuse string
		want   uint64
		hint   string
	}{
		{name: "nothing is wrong", want: outFound},
		{name: "another cluster", ask: func(r *request) { r.cluster = "x" }, want: outMoved, refuse: whyCluster},
		{name: "another group", ask: func(r *request) { r.group = "x" }, want: outMoved, refuse: whyGroup},
		{name: "another topic", ask: func(r *request) { r.topic = "x" }, want: outMoved, refuse: whyTopic},
		{name: "a topic made anew", ask: func(r *request) { r.topicID = "x" }, want: outMoved, refuse: whyTopicID},
		{name: "no topic id on one side", ask: func(r *request) { r.topicID = "" }, want: outMoved, refuse: whyTopicID},
		{name: "another member's address", ask: func(r *request) { r.to = "c" }, want: outMoved, refuse: whyMember, hint: ""},
		{name: "too many hops", ask: func(r *request) { r.hops = MaxHops + 1 }, want: outMoved, refuse: whyHops},
		{name: "an asker of before", ask: func(r *request) { r.generation = 4 }, want: outMoved, refuse: whyGeneration, hint: "b"},
		{name: "an asker of before, hops used up", ask: func(r *request) { r.generation, r.hops = 4, MaxHops }, want: outMoved, refuse: whyGeneration},
		{name: "an asker of after", ask: func(r *request) { r.generation = 6 }, want: outMoved, refuse: whyGeneration},
		{name: "an asker of before, a partition of another", ask: func(r *request) { r.generation, r.asked[0].partition = 4, 2 }, want: outMoved, refuse: whyGeneration, hint: "c"},
		{name: "generation", pod: func(f *fake, _ *table) { f.s.Generation = 6 }, want: outMoved, refuse: whyGeneration},
		{name: "no assignment", pod: func(f *fake, _ *table) { f.out = true }, want: outMoved, refuse: whyNoAssignment},
		{name: "silent coordinator", pod: func(f *fake, _ *table) { f.dead = true }, want: outMoved, refuse: whySilence},
		{name: "topic made anew here", pod: func(f *fake, _ *table) { f.s.TopicID = "u" }, want: outMoved, refuse: whyTopicID},
		{name: "partition gone", pod: func(f *fake, _ *table) {
			delete(f.table, 1)
			f.dir = directory(5, map[string]string{"b": "2.2.2.2:2", "c": "3.3.3.3:3"}, "", "c")
		}, want: outMoved, hint: "c"},
		{name: "partition gone, nobody knows where", pod: func(f *fake, _ *table) { delete(f.table, 1); f.dir = nil }, want: outMoved},
		{name: "partition gone, directory behind", pod: func(f *fake, _ *table) { delete(f.table, 1) }, want: outMoved},
		{name: "another task", pod: func(f *fake, _ *table) { f.table[1] = tableOf(1, map[string]string{"BBCA": "1"}) }, want: outMoved},
		{name: "task freezing", pod: func(_ *fake, tab *table) { tab.freezing = true }, want: outMoved},
		{name: "a partition that nobody owns", ask: func(r *request) { r.asked[0].partition = 3 }, want: outMoved},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, moment := range []string{"arrival", "answer"} {
				if c.pod == nil && moment == "answer" || c.name == "another task" && moment == "arrival" {
					continue
				}
				f, tab := ownerB()
				r := requestTo(1)
				if c.ask != nil {
					c.ask(r)
				}
				change := func() {
					f.change(func() {
						tab.mu.Lock()
						defer tab.mu.Unlock()
						if c.pod != nil {
							c.pod(f, tab)
						}
					})
				}
				if moment == "arrival" {
					change()
				} else {
					tab.before = change
				}
				got, resp := answerOf(f, r)
				if got.outcome != c.want || got.owner.id != c.hint || resp.refusal != c.refuse {
					t.Errorf("at %s: %+v, refused for %q; want outcome %d, owner %q, %q", moment, got, resp.refusal, c.want, c.hint, c.refuse)
				}
				if got.outcome != outFound && got.text != "" {
					t.Errorf("at %s: a refusal with the price %q", moment, got.text)
				}
			}
		})
	}
}

func TestRestoring(t *testing.T) {
	for name, change := range map[string]func(*fake, *table){
		"no task yet": func(_ *fake, tab *table) { tab.missing = true },
		"fresh":       func(_ *fake, tab *table) { tab.state = task.Fresh },
		"restoring":   func(_ *fake, tab *table) { tab.state = task.Restoring },
	} {
		f, tab := ownerB()
		change(f, tab)
		if got, _ := answerOf(f, requestTo(1)); got.outcome != outRestoring {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What a table answers, as it goes over the network.
func TestReplies(t *testing.T) {
	price := task.Answer{Outcome: task.Found, AsOf: true, Partition: 1, Next: 8, Known: true}
	price.Price.Text, price.Price.EventTime, price.Price.Offset = "1", -5, 7
	for _, c := range []struct {
		a    task.Answer
		want reply
	}{
		{price, reply{outcome: outFound, text: "1", eventTime: -5, offset: 7, asOf: true, partition: 1, next: 8}},
		{task.Answer{Outcome: task.NoPrice, Partition: 1, Next: 8, Held: true}, reply{outcome: outNoPrice, partition: 1, next: 8, held: true}},
		{task.Answer{Outcome: task.Unready}, reply{outcome: outRestoring}},
		{task.Answer{Outcome: task.Busy}, reply{outcome: outOverload}},
		{task.Answer{Outcome: task.Moved}, reply{outcome: outMoved}},
		{task.Answer{Outcome: task.Unanswered}, reply{outcome: outTimeout}},
	} {
		if got := replyOf(c.a); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.a, got, c.want)
		}
	}
}

// Every question of a batch is answered for itself, and what does not come in
// time is a time-out, however late its answer.
func TestAnswersWithinTheBudget(t *testing.T) {
	f, slow := ownerB()
	slow.hold = true
	f.table[2] = tableOf(2, map[string]string{"BMRI": "5"})
	r := requestTo(1)
	r.asked = append(r.asked, asked{partition: 2, at: 1, symbol: "BMRI"}, asked{partition: 2, at: 1, symbol: "NONE"},
		asked{partition: 0, at: 1, symbol: "X"}, asked{partition: 2, now: true, symbol: "BMRI"})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	resp := answerer{f}.answer(ctx, r)
	if resp.replies[0].outcome != outTimeout {
		t.Errorf("the slow one: %+v", resp.replies[0])
	}
	slow.release() // too late: nobody may be shown it
	if resp.replies[0].outcome != outTimeout {
		t.Errorf("a late answer changed what was sent: %+v", resp.replies[0])
	}
	if got := resp.replies[3]; got.outcome != outMoved || got.owner.id != "a" {
		t.Errorf("another's partition: %+v", got)
	}
	if got := resp.replies[4]; got.outcome != outFound || got.text != "5" {
		t.Errorf("the newest price: %+v", got)
	}
	f2, _ := ownerB()
	f2.table[2] = f.table[2]
	resp = answerer{f2}.answer(context.Background(), r)
	if resp.replies[1].text != "5" || resp.replies[2].outcome != outNoPrice || resp.replies[0].text != "9150.25" {
		t.Errorf("%+v", resp.replies)
	}
}
