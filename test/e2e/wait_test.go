package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"joiner/internal/record"
)

// One notification waits for a first price while a thousand others of its
// partition go on. The pod is killed while they do, and again when only the
// waiting one is left: nothing is lost, and the price ends the wait.
func TestKafkaWaitAndKill(t *testing.T) {
	const (
		partitions = 2
		others     = 1000
		waiting    = 3 // of one symbol, so that their order shows
	)
	w := NewWorld(t, partitions, nil)
	settings := Settings{"join.wait": "1h", "group.session_timeout": "2s"}
	symbols := SymbolsOf(w, "S", partitions, 11)
	late, priced := symbols[0], symbols[1:11] // all in partition 0
	w.Seed(priced)

	pod := w.Start(settings)
	pod.WaitReady()
	p := w.Producer()
	notes := []Record{{Key: late, Value: `{"late": 0}`}}
	for i := range others {
		notes = append(notes, Record{Key: priced[i%len(priced)], Value: fmt.Sprintf(`{"n": %d}`, i)})
	}
	for i := range waiting - 1 {
		notes = append(notes, Record{Key: late, Value: fmt.Sprintf(`{"late": %d}`, i+1)})
	}
	p.Send(w.Notes, notes[:others/2]...)
	w.AwaitCount(w.Alerts, 300, Pods{pod})
	pod.Kill()
	t.Logf("killed with %d alerts out and offset %d committed", w.Count(w.Alerts), w.Committed(w.Notes)[0])
	p.Send(w.Notes, notes[others/2:]...)

	pod = w.Start(settings)
	began := time.Now()
	w.awaitAlertsOf(pod, others)
	t.Logf("the %d others are out %v after the restart", others, time.Since(began).Round(time.Millisecond))
	w.awaitSettled(pod, waiting)
	if offset := w.Committed(w.Notes)[0]; offset > 0 {
		t.Errorf("offset %d is committed, past the waiting notification", offset)
	}
	for _, a := range w.ReadAlerts() {
		if string(a.Key) == late {
			t.Errorf("the waiting notification came out: %s", a.Value)
		}
	}
	pod.Kill()

	pod = w.Start(settings)
	pod.WaitReady()
	w.awaitSettled(pod, waiting)
	p.Send(w.Market, Record{Key: late, Value: `{"price": "12.50"}`})
	w.AwaitNoLag()
	if code := pod.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	proof := w.Prove()
	var lates []int64
	for at, a := range proof.Last {
		if a.Result != record.Hit {
			t.Errorf("notification %s: %s", at, a.Result)
		}
		if string(a.Key) != late {
			continue
		}
		lates = append(lates, at.offset)
		if proof.Copies[at] > 0 || a.Market.Price != "12.50" {
			t.Errorf("waiting notification %s: %d copies, price %s", at, proof.Copies[at], a.Market.Price)
		}
	}
	slices.Sort(lates)
	if want := []int64{0, others + 1, others + 2}; !slices.Equal(lates, want) {
		t.Errorf("alerts of the waiting notifications %v, want %v", lates, want)
	}
	t.Logf("%d notifications, %d alerts: the commit cannot pass the waiting one, so each kill doubled what was out", proof.Notes, proof.Alerts)
}

// awaitAlertsOf waits until n different notifications have alerts.
func (w *World) awaitAlertsOf(pod *Proc, n int) {
	w.t.Helper()
	w.AwaitCount(w.Alerts, int64(n), Pods{pod})
	await(w.t, fmt.Sprintf("alerts of %d notifications", n), func() error {
		seen := make(map[place]bool)
		for _, a := range w.ReadAlerts() {
			seen[place{a.Source.Partition, a.Source.Offset}] = true
		}
		if len(seen) < n {
			return fmt.Errorf("there are alerts of %d", len(seen))
		}
		return nil
	})
}

// awaitSettled waits until the pod has taken all notifications and only these
// many have no alert.
func (w *World) awaitSettled(pod *Proc, waiting int) {
	w.t.Helper()
	want := float64(w.Count(w.Notes)) - float64(waiting)
	await(w.t, fmt.Sprintf("all but %d notifications to be settled", waiting), func() error {
		m := pod.Metrics()
		taken := m.Sum("joiner_partition_records_total", "topic", w.Notes)
		settled := m.Sum("joiner_records_total", "topic", w.Notes)
		if settled > want {
			w.t.Fatalf("%v notifications are settled, want %v", settled, want)
		}
		if settled < want || taken < want+float64(waiting) {
			return fmt.Errorf("%v taken, %v settled", taken, settled)
		}
		return nil
	})
}
