package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

const (
	mergeTicks      = 200_000
	mergeNotes      = 20_000
	mergeSymbols    = 500
	mergePods       = 3
	mergePartitions = 6
)

// tooLong is what sarama logs when a claim is not drained.
const tooLong = "consuming was taking too long"

// feed makes a stream of ticks and notifications whose event times, the
// records' timestamps, advance together, with ties in plenty and some records
// that come behind their time.
type feed struct {
	w     *World
	rand  *rand.Rand
	clock int64 // milliseconds
	n     int
}

func newFeed(w *World) *feed {
	const hour = int64(time.Hour / time.Millisecond)
	return &feed{w: w, rand: rand.New(rand.NewPCG(1, 2)), clock: time.Now().UnixMilli() - hour}
}

// next returns one more record. mark goes into its value.
func (f *feed) next(note bool, mark string) *sarama.ProducerMessage {
	if f.rand.IntN(10) < 4 { // 0.4: equal times, also across the topics
		f.clock += 1 + f.rand.Int64N(5)
	}
	at := f.clock
	if f.rand.IntN(20) == 0 {
		at -= 1 + f.rand.Int64N(2000)
	}
	f.n++
	r := Record{Key: fmt.Sprintf("SYM%d", f.rand.IntN(mergeSymbols)), Time: at}
	if note {
		r.Value = fmt.Sprintf(`{"text": "%s %d",  "n":%d}`, mark, f.n, f.n)
		r.Headers = [][2]string{{"trace", fmt.Sprint(f.n)}, {"trace", "again"}}
		return f.w.message(f.w.Notes, r)
	}
	r.Value = fmt.Sprintf(`{"mark":"%s","price":%d.%02d}`, mark, f.n, f.rand.IntN(100))
	return f.w.message(f.w.Market, r)
}

// batch returns the next n records, one of eleven a notification.
func (f *feed) batch(n int, mark string) []*sarama.ProducerMessage {
	batch := make([]*sarama.ProducerMessage, n)
	for i := range batch {
		batch[i] = f.next((f.n+1)%(mergeTicks/mergeNotes+1) == 0, mark)
	}
	return batch
}

// A cold start over everything that was produced before: every alert has the
// price that its event time demands.
func TestKafkaMergeExact(t *testing.T) {
	w := NewWorld(t, mergePartitions, nil)
	f := newFeed(w)
	began := time.Now()
	w.SendBulk(f.batch(mergeTicks+mergeNotes, "plain"))
	t.Logf("produced %d records in %v", f.n, time.Since(began))
	market, notes := w.Read(w.Market), w.Read(w.Notes)
	if m, n := size(market), size(notes); m != mergeTicks || n != mergeNotes {
		t.Fatalf("the topics hold %d ticks and %d notifications", m, n)
	}

	metrics := runOver(w, mergeNotes)

	faults := &faults{t: t}
	alerts := w.ReadAlerts()
	checkOnce(faults, notes, alerts)
	late, hits := 0, 0
	for p := range notes {
		want, lateHere := joins(t, market[p], notes[p])
		late += lateHere
		for _, a := range alerts {
			if a.Partition == p {
				checkJoin(faults, a, want[a.Source.Offset])
			}
			if a.Partition == p && a.Result == record.Hit {
				hits++
			}
		}
	}
	faults.report()
	if late == 0 || hits < mergeNotes/2 {
		t.Errorf("%d late ticks and %d hits: the test shows little", late, hits)
	}
	expect(t, metrics, mergeTicks-late, "joiner_records_total", "topic", w.Market, "outcome", "accepted")
	expect(t, metrics, late, "joiner_records_total", "topic", w.Market, "outcome", "late")
	expect(t, metrics, late, "joiner_out_of_order_updates_total")
	expect(t, metrics, mergeNotes, "joiner_records_total", "topic", w.Notes, "outcome", "accepted")
	expect(t, metrics, hits, "joiner_joins_total", "locality", "local", "result", "hit")
	expect(t, metrics, mergeNotes, "joiner_joins_total")
	t.Logf("%d alerts, %d hits, %d ticks late", len(alerts), hits, late)
}

// runOver starts pods on what lies in the topics, waits until all of it is
// joined and committed, stops them and returns what they had counted.
func runOver(w *World, notes int) Metrics {
	w.t.Helper()
	began := time.Now()
	pods := w.Pods(mergePods, Settings{"log.level": "debug"})
	w.AwaitCount(w.Alerts, int64(notes), pods)
	w.t.Logf("%d pods started and joined %d notifications in %v", mergePods, notes, time.Since(began))
	w.AwaitNoLag()
	pods.AwaitBalanced(mergePartitions)
	// The metrics show what was committed, a little later.
	var metrics Metrics
	await(w.t, "joiner_lag_records to be 0 everywhere", func() error {
		metrics = pods.Metrics()
		lags := metrics.Find("joiner_lag_records")
		if sum := lags.Sum("joiner_lag_records"); sum != 0 || len(lags) != 2*mergePartitions {
			return fmt.Errorf("it is %v over %d partitions", sum, len(lags))
		}
		return nil
	})
	pods.Stop()
	for _, p := range pods {
		if !p.LogContains(`"logger":"sarama"`) {
			w.t.Errorf("%s: sarama logs nothing, so that nothing can be missed in it", p.Name)
		}
		if p.LogContains(tooLong) {
			w.t.Errorf("%s: a claim was not drained: %q", p.Name, tooLong)
		}
	}
	return metrics
}

func size(topic map[int32][]*sarama.ConsumerMessage) (n int) {
	for _, records := range topic {
		n += len(records)
	}
	return n
}

// expect compares a metric, summed over all pods, with what it must be.
func expect(t testing.TB, m Metrics, want int, name string, labels ...string) {
	t.Helper()
	if got := m.Sum(name, labels...); got != float64(want) {
		t.Errorf("%s%v is %v, want %d", name, labels, got, want)
	}
}

// Both inputs are written by transactional producers, whose transactions
// overlap and of which a tenth is aborted, and one is left open: what it wrote
// is in the way of a reader until the broker has aborted it.
func TestKafkaMergeExactTransactional(t *testing.T) {
	const perTransaction, producers = 880, 4
	w := NewWorld(t, mergePartitions, nil)
	f := newFeed(w)
	var mu sync.Mutex           // guards what follows, and the feed
	written := map[string]int{} // visible in the end, by topic
	left := mergeTicks + mergeNotes
	next := func() (batch []*sarama.ProducerMessage, aborted bool) {
		mu.Lock()
		defer mu.Unlock()
		if left <= 0 {
			return nil, false
		}
		left -= perTransaction
		if f.rand.IntN(10) == 0 {
			return f.batch(perTransaction, "aborted"), true
		}
		batch = f.batch(perTransaction, "committed")
		for _, m := range batch {
			written[m.Topic]++
		}
		return batch, false
	}
	// produce writes what is left. It may be called from any goroutine.
	produce := func(p *Producer) error {
		for {
			batch, aborted := next()
			if batch == nil {
				return nil
			}
			if err := p.transaction(batch, aborted); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	var writers sync.WaitGroup
	failed := make([]error, producers)
	for i := range failed {
		p := w.TxnProducer(time.Minute)
		writers.Go(func() { failed[i] = produce(p) })
	}
	writers.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	t.Logf("produced %d records in %v, %d of them to be seen", f.n, time.Since(began), written[w.Market]+written[w.Notes])

	// What follows is hidden until the open transaction's timeout. No time is
	// equal on both sides of it: which of two records that become visible at
	// different moments is read first is nobody's to say.
	const timeout = 10 * time.Second
	f.clock += 3000
	open := w.TxnProducer(timeout)
	open.Begin()
	open.SendMessages(f.batch(perTransaction, "open"))
	opened := time.Now()
	stable := map[string]map[int32]int64{w.Market: w.Ends(w.Market), w.Notes: w.Ends(w.Notes)}
	f.clock += 3000
	left = 5 * perTransaction
	if err := produce(w.TxnProducer(time.Minute)); err != nil {
		t.Fatal(err)
	}

	metrics := runOver(w, written[w.Notes])
	t.Logf("%v after the last transaction was left open, with a timeout of %v", time.Since(opened), timeout)

	market, notes := w.ReadCommitted(w.Market, written[w.Market]), w.ReadCommitted(w.Notes, written[w.Notes])
	for _, topic := range []map[int32][]*sarama.ConsumerMessage{market, notes} {
		for p, records := range topic {
			last := records[len(records)-1]
			if last.Offset+1 >= w.Ends(last.Topic)[p] {
				t.Errorf("%s/%d ends with a record: the test shows nothing about control records", last.Topic, p)
			}
		}
	}
	alerts := w.ReadAlerts()
	faults := &faults{t: t}
	checkOnce(faults, notes, alerts)
	behind, late := 0, 0
	for p := range notes {
		want, lateHere := joins(t, market[p], notes[p])
		late += lateHere
		for _, a := range alerts {
			switch {
			case a.Partition != p:
			case a.Source.Offset < stable[w.Notes][p]:
				checkJoin(faults, a, want[a.Source.Offset])
			default:
				// The markers of one transaction come to its partitions at
				// different moments, so what could be read when this was
				// received is what it cites: never less than what was stable
				// from the start.
				behind++
				if a.Cited == nil || a.Cited.Next < lastVisible(market[p], stable[w.Market][p])+1 {
					faults.add("wrong citation", "%v cites %v", a.Source, a.Cited)
					continue
				}
				checkJoin(faults, a, below(t, market[p], string(a.Key), a.Cited.Next))
			}
		}
	}
	faults.report()
	if behind == 0 {
		t.Error("no notification lies behind the open transaction")
	}
	expect(t, metrics, written[w.Market], "joiner_records_total", "topic", w.Market)
	expect(t, metrics, written[w.Notes], "joiner_records_total", "topic", w.Notes)
	expect(t, metrics, written[w.Notes], "joiner_joins_total")
	t.Logf("%d alerts, %d of them of notifications behind the open transaction; %d ticks late", len(alerts), behind, late)
}

// transaction writes the batch in one, and ends it.
func (p *Producer) transaction(batch []*sarama.ProducerMessage, aborted bool) error {
	if err := p.sync.BeginTxn(); err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	if err := p.sync.SendMessages(batch); err != nil {
		return fmt.Errorf("producing: %w", err)
	}
	end := p.sync.CommitTxn
	if aborted {
		end = p.sync.AbortTxn
	}
	if err := end(); err != nil {
		return fmt.Errorf("ending a transaction: %w", err)
	}
	return nil
}

// lastVisible is the offset of the last record below end, -1 where there is
// none.
func lastVisible(records []*sarama.ConsumerMessage, end int64) int64 {
	last := int64(-1)
	for _, m := range records {
		if m.Offset < end {
			last = m.Offset
		}
	}
	return last
}
