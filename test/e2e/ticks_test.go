package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// ticksVariable is how long TestKafkaTicksOnly writes ticks, as a duration.
const (
	ticksVariable = "JOINER_E2E_TICKS"
	ticksDefault  = 15 * time.Second // many commit intervals; `make test-kafka LONG=1` has a minute
)

func ticksDuration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(ticksVariable)
	if text == "" {
		return ticksDefault
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", ticksVariable, err)
	}
	return d
}

// A scaler by lag must not run away while there is nothing to enrich: both
// inputs are committed up to their ends when only ticks come, and where the
// last thing in a partition is a control record.
func TestKafkaTicksOnly(t *testing.T) {
	for _, test := range []struct {
		name          string
		transactional bool
	}{{"plain producer", false}, {"transactional producer", true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // they wait more than they work
			ticksOnly(t, test.transactional)
		})
	}
}

const ticksPartitions = 6

func ticksOnly(t *testing.T, transactional bool) {
	w := NewWorld(t, ticksPartitions, nil)
	pods := w.Pods(2, nil)
	pods.WaitReady()
	symbols := SymbolsOf(w, "S", ticksPartitions, 5)

	// Notifications at first, so that their topic ends as the other one does.
	plain := w.Producer()
	send := func(topic string, records []Record) { t.Helper(); plain.Send(topic, records...) }
	if transactional {
		p := w.TxnProducer(time.Minute)
		send = func(topic string, records []Record) {
			t.Helper()
			p.Begin()
			p.Send(topic, records...)
			p.Commit()
		}
	}
	notes := make([]Record, len(symbols))
	for i, symbol := range symbols {
		notes[i] = Record{Key: symbol, Value: fmt.Sprintf(`{"n": %d}`, i)}
	}
	send(w.Notes, notes)
	w.AwaitCount(w.Alerts, int64(len(notes)), pods)

	began, worst, sent := time.Now(), int64(0), 0
	for d := ticksDuration(t); time.Since(began) < d; time.Sleep(200 * time.Millisecond) {
		ticks := make([]Record, 0, len(symbols))
		for _, symbol := range symbols {
			sent++
			ticks = append(ticks, Record{Key: symbol, Value: fmt.Sprintf(`{"price": %d}`, sent)})
		}
		send(w.Market, ticks)
		worst = max(worst, w.Lag(w.Market))
	}
	w.AwaitNoLag()
	t.Logf("%d ticks in %v; the market's lag was at most %d", sent, time.Since(began).Round(time.Second), worst)

	for _, topic := range []string{w.Market, w.Notes} {
		for partition, offset := range w.Committed(topic) {
			if offset <= 0 {
				t.Errorf("%s/%d: %d is committed", topic, partition, offset)
			}
		}
	}
	await(t, "the pods to show no lag", func() error {
		m := pods.Metrics()
		for _, name := range []string{"joiner_lag_records", "joiner_lag_seconds"} {
			if n := len(m.Find(name)); n != 2*ticksPartitions {
				t.Fatalf("%d series of %s, want one for each of %d partitions of two topics", n, name, ticksPartitions)
			}
			for _, s := range m.Find(name) {
				if s.Value != 0 {
					return fmt.Errorf("%s%v is %v", s.Name, s.Labels, s.Value)
				}
			}
		}
		return nil
	})
	if n := w.Count(w.Alerts); n != int64(len(notes)) {
		t.Errorf("%d alerts of %d notifications", n, len(notes))
	}
	pods.Stop()
}
