package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

const (
	coldTicks      = 1_000_000
	coldSymbols    = 10_000
	coldNotes      = 1_000
	coldPods       = 3
	coldPartitions = 6
)

// mergeRun is the most records that a task handles between two reports of its
// standing, twice over: so far may a gauge be behind readiness.
const mergeRun = 1024

// A million ticks wait for a group that has no commit, then for one that has:
// nobody is ready before they are in the tables, and no notification is joined
// before they are.
func TestKafkaColdStart(t *testing.T) {
	w := NewWorld(t, coldPartitions, nil)
	base := time.Now().Add(-2 * time.Hour).UnixMilli()
	produceColdTicks(w, base)
	produceColdNotes(w, base+coldTicks, 0)
	market := w.Read(w.Market)

	began := time.Now()
	pods := w.Pods(coldPods, nil)
	cold := watchStart(t, pods)
	t.Logf("cold start: ready after %v; %v", time.Since(began), cold)
	if cold.falls < 3 {
		t.Errorf("joiner_restore_remaining_records was not seen coming down: %v", cold)
	}
	w.AwaitCount(w.Alerts, coldNotes, pods)
	w.AwaitNoLag()
	noMisses(w, pods, market, coldNotes)
	pods.Stop()

	// Now there is a commit: the tables come from the topic up to there.
	produceColdNotes(w, base+2*coldTicks, coldNotes)
	began = time.Now()
	pods = w.Pods(coldPods, nil)
	warm := watchStart(t, pods)
	t.Logf("restore: ready after %v; %v", time.Since(began), warm)
	if warm.most == 0 {
		t.Errorf("joiner_restore_remaining_records was never seen above 0: %v", warm)
	}
	w.AwaitCount(w.Alerts, 2*coldNotes, pods)
	w.AwaitNoLag()
	restored := restores(w, pods)
	if restored < coldTicks {
		t.Errorf("%d records restored, %d lie below the commits", restored, coldTicks)
	}
	noMisses(w, pods, market, 2*coldNotes)
	pods.Stop()
	t.Logf("%d records restored, moves included", restored)
}

func produceColdTicks(w *World, base int64) {
	w.t.Helper()
	began := time.Now()
	producer := w.Producer()
	const chunk = 20_000
	for first := 0; first < coldTicks; first += chunk {
		batch := make([]*sarama.ProducerMessage, chunk)
		for i := range batch {
			n := first + i
			batch[i] = w.message(w.Market, Record{
				Key:   fmt.Sprintf("SYM%d", n%coldSymbols),
				Value: fmt.Sprintf(`{"price":%d.5}`, n),
				Time:  base + int64(n),
			})
		}
		producer.SendMessages(batch)
	}
	w.t.Logf("produced %d ticks in %v", coldTicks, time.Since(began))
}

// produceColdNotes writes notifications that are newer than all ticks, the
// first of them number from.
func produceColdNotes(w *World, at int64, from int) {
	w.t.Helper()
	notes := make([]Record, coldNotes)
	for i := range notes {
		n := from + i
		notes[i] = Record{
			Key: fmt.Sprintf("SYM%d", n*7%coldSymbols), Value: fmt.Sprintf(`{"n":%d}`, n), Time: at + int64(n),
		}
	}
	w.Send(w.Notes, notes...)
}

// restores adds up what the pods say they have restored.
func restores(w *World, pods Pods) (records int64) {
	w.t.Helper()
	for _, p := range pods {
		for _, l := range p.Logged("restored") {
			records += l.Number("to") - l.Number("from")
		}
	}
	return records
}

// start is what was seen of pods that become ready.
type start struct {
	samples int
	most    float64 // records left, at most
	falls   int     // samples with less left than the one before, of one generation
}

func (s start) String() string {
	return fmt.Sprintf("%d samples, at most %.0f records left, seen to fall %d times", s.samples, s.most, s.falls)
}

// watchStart samples the pods until all are ready. One that says it is ready
// while records are left to be read for the first time fails the test.
func watchStart(t *testing.T, pods Pods) start {
	t.Helper()
	var seen start
	before := make([]sample, len(pods))
	deadline := time.Now().Add(patience)
	for {
		ready := 0
		for i, p := range pods {
			if code, ended := p.Ended(); ended {
				t.Fatalf("%s ended with %d", p.Name, code)
			}
			now := take(p)
			seen.add(before[i], now)
			before[i] = now
			if now.ready && now.left > mergeRun*coldPartitions {
				t.Errorf("%s says it is ready with %.0f records left to be read", p.Name, now.left)
			}
			if now.ready {
				ready++
			}
		}
		if ready == len(pods) {
			return seen
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d pods are ready after %v: %v", ready, len(pods), patience, before)
		}
	}
}

// sample is one look at a pod.
type sample struct {
	ready      bool
	generation float64
	left       float64
	reasons    []string
}

// take asks for readiness between two scrapes: what is left after it can only
// be less than it was then, as long as the generation is the same.
func take(p *Proc) sample {
	p.t.Helper()
	first := p.Metrics().Sum("joiner_group_generation")
	r := p.Readiness()
	m := p.Metrics()
	s := sample{ready: r.Ready, reasons: r.Reasons, left: m.Sum("joiner_restore_remaining_records")}
	s.generation = m.Sum("joiner_group_generation")
	if first != s.generation {
		s.ready = false // of another assignment than what is left
	}
	return s
}

func (s *start) add(before, now sample) {
	s.samples++
	s.most = max(s.most, now.left)
	if before.generation == now.generation && now.left < before.left {
		s.falls++
	}
}

// noMisses fails the test unless there are that many alerts, one a
// notification, all with the last price of their symbol.
func noMisses(w *World, pods Pods, market map[int32][]*sarama.ConsumerMessage, want int) {
	w.t.Helper()
	last := make(map[string]*sarama.ConsumerMessage)
	for _, records := range market {
		for _, m := range records {
			last[string(m.Key)] = m
		}
	}
	f := &faults{t: w.t}
	alerts := w.ReadAlerts()
	checkOnce(f, w.Read(w.Notes), alerts)
	for _, a := range alerts {
		tick := last[string(a.Key)]
		records := market[a.Partition]
		checkJoin(f, a, joined{tick, priceOf(w.t, tick), records[len(records)-1].Offset + 1})
	}
	f.report()
	if len(alerts) != want || slices.ContainsFunc(alerts, func(a Alert) bool { return a.Result != record.Hit }) {
		w.t.Errorf("%d alerts, want %d, all of them hits", len(alerts), want)
	}
	m := pods.Metrics()
	expect(w.t, m, coldNotes, "joiner_joins_total", "locality", "local", "result", "hit")
	expect(w.t, m, coldNotes, "joiner_joins_total")
	if ready := m.Sum("joiner_ready"); ready != float64(len(pods)) {
		w.t.Errorf("joiner_ready is 1 in %v pods, want %d", ready, len(pods))
	}
}
