package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	if cold.most == 0 || cold.falls == 0 {
		t.Errorf("joiner_restore_remaining_records was not seen coming down: %v", cold)
	}
	w.AwaitCount(w.Alerts, coldNotes, pods)
	w.AwaitNoLag()
	pods.AwaitBalanced(coldPartitions)
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
	pods.AwaitBalanced(coldPartitions)
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
	ticks := make([]*sarama.ProducerMessage, coldTicks)
	for n := range ticks {
		ticks[n] = w.message(w.Market, Record{
			Key:   fmt.Sprintf("SYM%d", n%coldSymbols),
			Value: fmt.Sprintf(`{"price":%d.5}`, n),
			Time:  base + int64(n),
		})
	}
	w.SendBulk(ticks)
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
	most    float64 // records left in one pod, at most
	falls   int     // samples with less left than the one before, of one generation
}

func (s start) String() string {
	return fmt.Sprintf("%d samples, at most %.0f records left in a pod, seen to fall %d times", s.samples, s.most, s.falls)
}

func (s *start) add(before, now sample) {
	s.samples++
	s.most = max(s.most, now.left)
	if before.generation == now.generation && now.left < before.left {
		s.falls++
	}
}

// sample is one look at a pod.
type sample struct {
	ready      bool
	generation float64
	left       float64
}

// watchStart samples the pods until all are ready at once. One that says it is
// ready while records are left to be read fails the test.
func watchStart(t *testing.T, pods Pods) start {
	t.Helper()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		seen  start
		ready = make(map[*Proc]bool)
	)
	deadline := time.Now().Add(patience)
	for _, p := range pods {
		p.Address() // waits until it listens
		wg.Go(func() {
			var before sample
			for time.Now().Before(deadline) {
				now, err := look(p)
				if err != nil {
					t.Error(err)
					return
				}
				// What is left was read after the readiness: it can only be
				// less, unless another assignment came in between.
				if now.ready && now.generation == before.generation && now.left > mergeRun*coldPartitions {
					t.Errorf("%s says it is ready with %.0f records left to be read", p.Name, now.left)
				}
				mu.Lock()
				seen.add(before, now)
				ready[p] = now.ready
				all := !slices.ContainsFunc(pods, func(p *Proc) bool { return !ready[p] })
				mu.Unlock()
				if all {
					return
				}
				before = now
			}
			t.Errorf("%s: the pods are not ready after %v", p.Name, patience)
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return seen
}

// look asks for readiness and then for the two metrics, which it takes out of
// the text: a parser would take longer than the start.
func look(p *Proc) (s sample, err error) {
	status, _, err := p.Get("/readyz")
	if err != nil {
		return s, err
	}
	s.ready = status == http.StatusOK
	_, body, err := p.Get("/metrics")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(body)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ := strings.Cut(series, "{")
		if name != "joiner_group_generation" && name != "joiner_restore_remaining_records" {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return s, fmt.Errorf("%s: %q: %w", p.Name, line, err)
		}
		if name == "joiner_group_generation" {
			s.generation = n
		} else {
			s.left += n
		}
	}
	return s, nil
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
