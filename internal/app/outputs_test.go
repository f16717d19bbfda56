package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/config"
	"joiner/internal/deliver"
	"joiner/internal/kafka"
)

func TestDeadLetterPartition(t *testing.T) {
	for _, c := range [][3]int32{{3, 6, 3}, {5, 6, 5}, {6, 6, 0}, {11, 4, 3}, {11, 1, 0}, {7, 0, 7}} {
		o := outputs{conf: config.Topics{DeadLetters: "dlq"}}
		o.learn(map[string]kafka.Topic{"dlq": {Name: "dlq", Partitions: c[1]}})
		if got := o.deadLetterPartition(c[0]); got != c[2] {
			t.Errorf("partition %d of %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
	var unknown outputs
	if got := unknown.deadLetterPartition(9); got != 9 {
		t.Errorf("before the topics are looked up: %d, want the same number", got)
	}
}

// A topic that cannot be seen for a moment is the topic that it was.
func TestTopicsAreRemembered(t *testing.T) {
	o := outputs{conf: config.Topics{MarketUpdates: "ticks", Notifications: "notes", EnrichedAlerts: "alerts"}, writer: func() []deliver.Fault { return nil }}
	if _, ok := o.topic("ticks"); ok {
		t.Error("known before the first look")
	}
	seen := func(ticks kafka.Topic) map[string]kafka.Topic {
		ticks.Name = "ticks"
		return map[string]kafka.Topic{"ticks": ticks, "notes": {Name: "notes", Partitions: 6}, "alerts": {Name: "alerts", Partitions: 6}}
	}
	for _, c := range []struct {
		what    string
		look    kafka.Topic
		want    kafka.Topic // zero: not known
		reasons int
	}{
		{"never seen", kafka.Topic{Err: sarama.ErrTopicAuthorizationFailed}, kafka.Topic{}, 1},
		{"seen", kafka.Topic{ID: "a", Partitions: 6}, kafka.Topic{Name: "ticks", ID: "a", Partitions: 6}, 0},
		{"refused", kafka.Topic{Err: sarama.ErrTopicAuthorizationFailed}, kafka.Topic{Name: "ticks", ID: "a", Partitions: 6}, 1},
		{"not there", kafka.Topic{}, kafka.Topic{Name: "ticks", ID: "a", Partitions: 6}, 1},
		{"made anew", kafka.Topic{ID: "b", Partitions: 3}, kafka.Topic{Name: "ticks", ID: "b", Partitions: 3}, 0},
	} {
		o.learn(seen(c.look))
		got, ok := o.topic("ticks")
		if ok != (c.want != kafka.Topic{}) || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.what, got, ok, c.want)
		}
		if got := o.reasons(); len(got) != c.reasons {
			t.Errorf("%s: reasons %q, want %d", c.what, got, c.reasons)
		}
	}
}

// What is amiss with topics is logged when it begins, changes and ends, and not
// at every look.
func TestTopicsAmissAreLogged(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	o := outputs{conf: config.Topics{MarketUpdates: "ticks", Notifications: "notes", EnrichedAlerts: "alerts"}, log: zap.New(core)}
	see := func(names ...string) {
		topics := make(map[string]kafka.Topic)
		for _, name := range []string{"ticks", "notes", "alerts"} {
			topics[name] = kafka.Topic{Name: name}
			if slices.Contains(names, name) {
				topics[name] = kafka.Topic{Name: name, Partitions: 6}
			}
		}
		o.learn(topics)
		o.tell()
	}
	for _, c := range []struct {
		topics []string
		lines  int // so far
		says   string
	}{
		{[]string{"ticks", "notes", "alerts"}, 0, ""},
		{[]string{"ticks", "notes"}, 1, "output topic alerts does not exist"},
		{[]string{"ticks", "notes"}, 1, "output topic alerts does not exist"},
		{[]string{"ticks"}, 2, "input topic notes does not exist"},
		{[]string{"ticks", "notes", "alerts"}, 3, "topics are as they should be"},
		{[]string{"ticks", "notes", "alerts"}, 3, "topics are as they should be"},
	} {
		see(c.topics...)
		all := logs.All()
		if len(all) != c.lines {
			t.Fatalf("with %v: %d lines, want %d", c.topics, len(all), c.lines)
		}
		if c.lines == 0 {
			continue
		}
		last := all[len(all)-1]
		if text := last.Message + fmt.Sprint(last.ContextMap()["reasons"]); !strings.Contains(text, c.says) {
			t.Errorf("with %v: %q, want %q", c.topics, text, c.says)
		}
	}
}

// A price's owner and a member of the status are found again in a pod's log.
func TestLogNamesThePod(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	a, err := New(Options{Config: config.Default(), Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	a.log.Info("anything")
	if pod := logs.All()[0].ContextMap()["pod"]; pod == "" || pod != a.standing().Part.ID {
		t.Errorf("the log says pod %v, the status %q", pod, a.standing().Part.ID)
	}
}

func TestCureOfAMissingOutput(t *testing.T) {
	for create, want := range map[bool]string{false: "create it or set topics.create: true", true: "it is made as soon as"} {
		o := outputs{conf: config.Topics{MarketUpdates: "ticks", Notifications: "notes", EnrichedAlerts: "alerts", Create: create}}
		o.learn(map[string]kafka.Topic{"ticks": {Name: "ticks", Partitions: 6}, "notes": {Name: "notes", Partitions: 6}, "alerts": {Name: "alerts"}})
		if got := o.amiss(); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("create %v: %q, want %q", create, got, want)
		}
	}
}

// All rights that are missing are named at once, whatever else is not known for
// want of them.
func TestEachMissingRightIsNamed(t *testing.T) {
	denied := func(name string) kafka.Topic {
		return kafka.Topic{Name: name, Err: sarama.ErrTopicAuthorizationFailed}
	}
	o := outputs{conf: config.Topics{MarketUpdates: "ticks", Notifications: "notes", EnrichedAlerts: "alerts", DeadLetters: "dead"}}
	o.learn(map[string]kafka.Topic{"ticks": denied("ticks"), "notes": denied("notes"), "alerts": denied("alerts"), "dead": denied("dead")})
	got := o.amiss()
	for i, want := range []string{"Read on topic ticks", "Read on topic notes", "Write on topic alerts", "Write on topic dead"} {
		if len(got) != 4 || !strings.Contains(got[i], "missing right: "+want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	o.learn(map[string]kafka.Topic{"ticks": denied("ticks"), "notes": denied("notes"), "alerts": {Name: "alerts"}, "dead": denied("dead")})
	if got := o.amiss(); len(got) != 3 {
		t.Errorf("%q: how many partitions a missing output needs is not known", got)
	}
}
