package faults

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/proc"
)

const (
	samePartitions = 6
	sameNotes      = 40_000
)

// sameGroups are the groups that join the same input.
var sameGroups = []struct {
	members, killed int
}{{1, 0}, {4, 0}, {6, 0}, {1, 1}, {4, 1}, {6, 2}}

// sameAlerts has the same input, all of it produced before they start, joined
// by groups of several sizes, with and without kills: the alerts are the same,
// byte for byte.
func sameAlerts(t *testing.T, st *stage) {
	binary, err := proc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	inputs := st.world(t, samePartitions, exactlyOnce, nil)
	all := make([]string, sameNotes)
	for i := range all {
		all[i] = symbol(i * 7 % loadSymbols)
	}
	inputs.send(t, inputs.market, all[:loadSymbols], price)
	for half := range slices.Chunk(all, sameNotes/4) { // ticks and notifications in turn
		inputs.send(t, inputs.market, half, price)
		inputs.send(t, inputs.notes, half, notice)
	}
	var want []string
	for _, g := range sameGroups {
		name := fmt.Sprintf("%d members, %d of them killed", g.members, g.killed)
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			w := inputs.beside(t)
			w.joinAll(t, binary, g.members, g.killed)
			got := w.alertBytes()
			t.Logf("%d alerts of %s after %v", len(got), name, time.Since(began).Round(time.Millisecond))
			if len(got) != sameNotes {
				t.Errorf("%d alerts of %d notifications", len(got), sameNotes)
			}
			if want == nil {
				want = got
			}
			if i := firstDifference(want, got); i >= 0 {
				t.Errorf("alert %d in order: %s, the first group has %s", i, at(got, i), at(want, i))
			}
		})
	}
}

func firstDifference(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if at(a, i) != at(b, i) {
			return i
		}
	}
	return -1
}

func at(list []string, i int) string {
	if i >= len(list) {
		return "nothing"
	}
	return list[i]
}

// beside is another group that reads the same inputs, with outputs of its own.
func (w *world) beside(t testing.TB) *world {
	t.Helper()
	other := *w
	other.t, other.group, other.alerts, other.dead = t, w.Name("group"), w.Name("alerts"), w.Name("dead")
	for _, topic := range []string{other.alerts, other.dead} {
		w.Topic(t, topic, w.partitions, nil)
	}
	other.settings = maps.Clone(w.settings)
	maps.Copy(other.settings, map[string]string{
		"group.id": other.group, "topics.enriched_alerts": other.alerts, "topics.dead_letters": other.dead,
	})
	return &other
}

// joinAll has a group join everything. Those that are killed are killed in the
// middle of it; where nobody is left, another is started.
func (w *world) joinAll(t *testing.T, binary string, members, killed int) {
	t.Helper()
	var slots []*slot
	for range members {
		s := w.place(t, -1, binary, nil)
		s.start()
		slots = append(slots, s)
	}
	if killed > 0 {
		w.killInTheMiddle(t, slots[:killed])
	}
	if killed == members {
		id := slots[0].transactionalID(t)
		proc.Await(t, "the dead pod's transaction to end", func() error { return w.initProducer(id) })
		slots[0].start()
		killed = 0
	}
	slots = slots[killed:]
	w.awaitNoLag(slots[0].alive)
	if a := w.stopped(t, slots...); !a.clean() {
		t.Errorf("%s: %v", a, a.Examples)
	}
}

func (w *world) killInTheMiddle(t *testing.T, slots []*slot) {
	t.Helper()
	deadline := time.Now().Add(proc.Patience)
	for {
		ends, err := w.ends(w.alerts)
		if err == nil && total(ends) > 100 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no alerts: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, s := range slots {
		s.process().Kill()
	}
	err := poll("the lag to be known", func() error {
		lag, err := w.lag()
		if errors.Is(err, sarama.ErrUnstableOffsetCommit) {
			return nil // killed within a transaction
		}
		if err == nil && lag == 0 {
			t.Error("everything had been joined when the pods were killed")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// alertBytes returns what is to be the same of all alerts, sorted.
func (w *world) alertBytes() (all []string) {
	w.t.Helper()
	w.visit(w.alerts, func(m *sarama.ConsumerMessage) {
		var b strings.Builder
		fmt.Fprintf(&b, "%d %d %q %q", m.Partition, m.Timestamp.UnixMilli(), m.Key, m.Value)
		for _, h := range m.Headers {
			fmt.Fprintf(&b, " %q=%q", h.Key, h.Value)
		}
		all = append(all, b.String())
	})
	slices.Sort(all)
	return all
}
