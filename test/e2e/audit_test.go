package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/enrich"
	"joiner/internal/record"
	"joiner/test/cluster"
)

// audited is what `joiner audit -o json` prints, as far as tests look at it.
type audited struct {
	Notifications int64 `json:"notifications"`
	Alerts        int64 `json:"alerts"`
	faultCounts
	DeadLettered      int64            `json:"dead_lettered"`
	Dropped           int64            `json:"dropped"`
	Missed            int64            `json:"missed"`
	Unavailable       int64            `json:"unavailable"`
	Revised           int64            `json:"revised"`
	TicksDeadLettered int64            `json:"ticks_dead_lettered"`
	Examples          []map[string]any `json:"examples"`
	Notes             []string         `json:"notes"`
}

// faultCounts are the figures that tell what is wrong.
type faultCounts struct {
	Lost         int64 `json:"lost"`
	Doubled      int64 `json:"doubled"`
	Wrong        int64 `json:"wrong"`
	OutOfOrder   int64 `json:"out_of_order"`
	Unverifiable int64 `json:"unverifiable"`
	Foreign      int64 `json:"foreign"`
	TicksLost    int64 `json:"ticks_lost"`
}

// Audit runs `joiner audit` with the settings of the pods, and these over them
// (nil: none).
func (w *World) Audit(settings Settings, args ...string) (r audited, code int) {
	w.t.Helper()
	binary, err := joinerBinary()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), binary, append([]string{"audit", "-o", "json", "--examples", "3"}, args...)...)
	cmd.Dir = w.t.TempDir() // where no config.yaml lies
	cmd.Env = environment(w.Settings.with(w.used).with(settings))
	began := time.Now()
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1 || len(out) == 0) {
		if failed != nil {
			w.t.Fatalf("joiner audit: %v\n%s", err, failed.Stderr)
		}
		w.t.Fatalf("joiner audit: %v", err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		w.t.Fatalf("joiner audit: %v: %s", err, out)
	}
	w.t.Logf("audit: exit code %d after %v, %d notifications, %+v, %d missed, %d revised",
		cmd.ProcessState.ExitCode(), time.Since(began).Round(time.Millisecond), r.Notifications, r.faultCounts, r.Missed, r.Revised)
	return r, cmd.ProcessState.ExitCode()
}

// SecondOpinion asks `joiner audit` for what the test itself has proven.
func (w *World) SecondOpinion(proof Proof) {
	w.t.Helper()
	r, _ := w.Audit(nil)
	want := faultCounts{Doubled: int64(proof.Doubled())}
	if r.faultCounts != want || r.Notifications != int64(proof.Notes) || r.Alerts != int64(proof.Alerts) ||
		r.Missed+r.Unavailable != int64(proof.Misses) || r.Revised != int64(proof.Revised) {
		w.t.Errorf("joiner audit does not agree with %d notifications, %d alerts, %d doubled, %d misses, %d revised: %+v",
			proof.Notes, proof.Alerts, proof.Doubled(), proof.Misses, proof.Revised, r)
	}
}

const (
	auditPartitions = 3
	auditSymbols    = 40
	auditTicks      = 3000
	auditNotes      = 900
	auditBad        = 10 // of each side
	auditAborted    = 5

	badPrice = `{"price": "?"}`
)

// The audit of a real join is clean; of one whose output was doctored it counts
// each fault exactly; and when the market topic was compacted after the join,
// it calls nothing wrong and exactly that unverifiable whose tick is gone.
func TestKafkaAudit(t *testing.T) {
	w := NewWorldOn(t, cluster.Start(t, cluster.Options{Brokers: 1}), auditPartitions, nil)
	w.auditInput()
	pods := w.Pods(1, nil)
	w.AwaitCount(w.Alerts, auditNotes, pods)
	w.AwaitNoLag()
	pods.Stop()

	market, alerts := w.Read(w.Market), w.ReadAlerts()
	misses := int64(0)
	for _, a := range alerts {
		if a.Result == record.Miss {
			misses++
		}
	}
	w.auditClean(misses, revised(market, alerts))
	w.auditDoctored(alerts)
	w.auditCompacted(market, alerts, misses)
}

// auditInput writes ticks, some late, some tombstones, and notifications, all
// before anybody reads them, bad ones of both, and notifications that never
// were, in an aborted transaction.
func (w *World) auditInput() {
	r := rand.New(rand.NewPCG(7, 8))
	base := time.Now().Add(-time.Hour).UnixMilli()
	symbol := func() string { return fmt.Sprintf("A%d", r.IntN(auditSymbols)) }
	var ticks, notes []Record
	for i := range auditTicks {
		tick := Record{Key: symbol(), Value: fmt.Sprintf(`{"price": %d.%02d}`, i, i%100), Time: base + int64(10*i)}
		if r.IntN(5) == 0 {
			tick.Time -= r.Int64N(500)
		}
		tick.Null = r.IntN(40) == 0
		ticks = append(ticks, tick)
		if i%(auditTicks/auditBad) == 0 {
			ticks = append(ticks, Record{Key: symbol(), Value: badPrice, Time: tick.Time})
		}
	}
	for i := range auditNotes {
		at := base + int64(i*10*auditTicks/auditNotes)
		notes = append(notes, Record{
			Key: symbol(), Value: fmt.Sprintf(` {"n": %d}`, i), Time: at, Headers: [][2]string{{"trace", fmt.Sprint(i)}},
		})
		if i%(auditNotes/auditBad) == 0 {
			notes = append(notes, Record{Key: symbol(), Value: `[`, Time: at})
		}
	}
	w.Send(w.Market, ticks...)
	w.Send(w.Notes, notes...)
	txn := w.TxnProducer(time.Minute)
	txn.Begin()
	for range auditAborted {
		txn.Send(w.Notes, Record{Key: symbol(), Value: `{"never": "was"}`, Time: base})
	}
	txn.Abort()
}

func (w *World) auditClean(misses, revised int64) {
	w.t.Helper()
	r, code := w.Audit(nil)
	if code != 0 || r.faultCounts != (faultCounts{}) {
		w.t.Errorf("a join without a fault: exit code %d, %+v", code, r)
	}
	if r.Notifications != auditNotes+auditBad || r.Alerts != auditNotes || r.DeadLettered != auditBad ||
		r.TicksDeadLettered != auditBad || r.Missed != misses || r.Revised != revised || r.Dropped+r.Unavailable != 0 {
		w.t.Errorf("a join without a fault, %d misses, %d revised: %+v", misses, revised, r)
	}
	r, code = w.Audit(nil, "--isolation", "read_uncommitted")
	if code != 1 || r.faultCounts != (faultCounts{Lost: auditAborted}) {
		w.t.Errorf("with %d notifications that never were: exit code %d, %+v", auditAborted, code, r)
	}
}

// revised counts the alerts that a tick at or above their citation, of no later
// event time, would have changed: it beats the winner below the citation, and is
// no tombstone where there is no price anyway.
func revised(market map[int32][]*sarama.ConsumerMessage, alerts []Alert) (n int64) {
	for _, a := range alerts {
		var winner *sarama.ConsumerMessage
		for _, m := range market[a.Cited.Partition] {
			if string(m.Key) != string(a.Key) || string(m.Value) == badPrice {
				continue
			}
			wins := winner == nil || !m.Timestamp.Before(winner.Timestamp)
			if m.Offset < a.Cited.Next {
				if wins {
					winner = m
				}
				continue
			}
			if wins && !m.Timestamp.After(a.Timestamp) && (m.Value != nil || a.Result == record.Hit) {
				n++
				break
			}
		}
	}
	return n
}

// auditDoctored writes the alerts again, with faults, into a topic of their own.
func (w *World) auditDoctored(alerts []Alert) {
	w.t.Helper()
	topic := w.Name("doctored")
	w.Topic(w.t, topic, w.Partitions, nil)
	d := &doctor{rand: rand.New(rand.NewPCG(9, 10)), alerts: alerts, ill: make(map[int]bool)}
	var out []*sarama.ProducerMessage
	for _, a := range alerts {
		out = append(out, copyOf(topic, a))
	}
	var want faultCounts
	for range 4 { // neighbours of one symbol change places
		i := d.pick(func(a Alert) bool { return true })
		j := slices.IndexFunc(alerts[i+1:], func(a Alert) bool {
			return a.Partition == alerts[i].Partition && string(a.Key) == string(alerts[i].Key)
		})
		if j < 0 || d.ill[i+1+j] {
			continue
		}
		d.ill[i+1+j] = true
		out[i], out[i+1+j] = out[i+1+j], out[i]
		want.OutOfOrder++
	}
	hit := func(a Alert) bool { return a.Result == record.Hit }
	for range 6 {
		out[d.pick(hit)] = nil
		want.Lost++
	}
	for range 5 { // a digit more, and a price of another time
		m := out[d.pick(hit)]
		m.Value = sarama.ByteEncoder(bytes.Replace(m.Value.(sarama.ByteEncoder), []byte(`"price":`), []byte(`"price":9`), 1))
		want.Wrong++
	}
	for range 3 { // what it cites gives another price, or none
		i := d.pick(hit)
		setHeader(out[i], enrich.HeaderMarket, fmt.Sprintf("%d/%d", alerts[i].Cited.Partition, alerts[i].Market.Offset))
		want.Wrong++
	}
	for range 3 {
		m := out[d.pick(hit)]
		m.Value = sarama.ByteEncoder(bytes.Replace(m.Value.(sarama.ByteEncoder), []byte(` {"n": `), []byte(` {"n":`), 1))
		want.Wrong++
	}
	for range 4 { // the same once more, where that changes no order
		i := d.pick(func(a Alert) bool { return lastOf(alerts, a) })
		out = append(out, copyOf(topic, alerts[i]))
		want.Doubled++
	}
	for i := range 7 {
		m := copyOf(topic, alerts[i])
		setHeader(m, enrich.HeaderSource, fmt.Sprintf("%s/%d/%d", w.Notes, i%auditPartitions, 1_000_000+i))
		out = append(out, m)
		want.Foreign++
	}
	w.Producer().SendMessages(slices.DeleteFunc(out, func(m *sarama.ProducerMessage) bool { return m == nil }))
	r, code := w.Audit(Settings{"topics.enriched_alerts": topic})
	if code != 1 || r.faultCounts != want {
		w.t.Errorf("doctored: exit code %d,\ngot  %+v,\nwant %+v\n%v", code, r.faultCounts, want, r.Examples)
	}
	kinds := make(map[any]int)
	for _, e := range r.Examples {
		kinds[e["kind"]]++
		if e["topic"] == "" || e["key"] == "gone" {
			w.t.Errorf("example %v", e)
		}
	}
	if len(kinds) < 5 {
		w.t.Errorf("examples of %v only", slices.Collect(maps.Keys(kinds)))
	}
}

// doctor picks alerts that have no fault yet.
type doctor struct {
	rand   *rand.Rand
	alerts []Alert
	ill    map[int]bool
}

func (d *doctor) pick(fits func(Alert) bool) int {
	for {
		i := d.rand.IntN(len(d.alerts))
		if !d.ill[i] && fits(d.alerts[i]) {
			d.ill[i] = true
			return i
		}
	}
}

// lastOf tells whether no younger alert of the same symbol follows in its
// partition.
func lastOf(alerts []Alert, a Alert) bool {
	return !slices.ContainsFunc(alerts, func(b Alert) bool {
		return b.Partition == a.Partition && string(b.Key) == string(a.Key) && b.Offset > a.Offset
	})
}

func copyOf(topic string, a Alert) *sarama.ProducerMessage {
	m := &sarama.ProducerMessage{
		Topic: topic, Partition: a.Partition, Timestamp: a.Timestamp,
		Key: sarama.ByteEncoder(a.Key), Value: sarama.ByteEncoder(a.Value),
	}
	for _, h := range a.Headers {
		m.Headers = append(m.Headers, *h)
	}
	return m
}

func setHeader(m *sarama.ProducerMessage, name, value string) {
	for i := range m.Headers {
		if string(m.Headers[i].Key) == name {
			m.Headers[i].Value = []byte(value)
		}
	}
}

// auditCompacted has the broker compact the market topic, and audits again.
func (w *World) auditCompacted(before map[int32][]*sarama.ConsumerMessage, alerts []Alert, misses int64) {
	w.t.Helper()
	w.compact(w.Market)
	left := w.readThrough(w.Market)
	present := make(map[place]bool)
	removed := size(before)
	for p, records := range left {
		for _, m := range records {
			present[place{p, m.Offset}] = true
		}
	}
	for p, records := range before {
		for _, m := range records {
			if present[place{p, m.Offset}] {
				removed--
			}
		}
	}
	unverifiable := int64(0)
	for _, a := range alerts {
		switch {
		case a.Result == record.Hit:
			if !present[place{a.Market.Partition, a.Market.Offset}] {
				unverifiable++
			}
		case givesPrice(w.t, left[a.Cited.Partition], string(a.Key), a.Cited.Next):
			unverifiable++
		}
	}
	w.t.Logf("compaction took %d of %d market records", removed, size(before))
	r, code := w.Audit(nil)
	// The dead letters of bad ticks have lost their source as well.
	for p, records := range before {
		for _, m := range records {
			if string(m.Value) == badPrice && !present[place{p, m.Offset}] {
				unverifiable++
			}
		}
	}
	got, want := r.faultCounts, faultCounts{Unverifiable: unverifiable}
	if code != 0 || got != want || unverifiable == 0 || unverifiable >= int64(len(alerts)) || r.Missed != misses {
		w.t.Errorf("after the compaction: exit code %d,\ngot  %+v, %d missed,\nwant %+v, %d\n%v", code, got, r.Missed, want, misses, r.Examples)
	}
}

// givesPrice tells whether the ticks below next give the symbol a price, by
// the rule of below, with tombstones.
func givesPrice(t testing.TB, market []*sarama.ConsumerMessage, symbol string, next int64) bool {
	t.Helper()
	var has *sarama.ConsumerMessage
	for _, m := range market {
		if m.Offset < next && string(m.Key) == symbol && string(m.Value) != badPrice &&
			(has == nil || !m.Timestamp.Before(has.Timestamp)) {
			has = m
		}
	}
	return has != nil && has.Value != nil
}

// compact makes the topic a compacted one and waits until its cleaner has been
// through every partition. A segment is closed by the next record, so one of a
// symbol of its own is written.
func (w *World) compact(topic string) {
	w.t.Helper()
	set := func(value string) sarama.IncrementalAlterConfigsEntry {
		return sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
	}
	err := w.Admin().IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"cleanup.policy": set("compact"), "min.cleanable.dirty.ratio": set("0.01"), "segment.ms": set("100"),
		"delete.retention.ms": set("0"), "max.compaction.lag.ms": set("1000"),
	}, false)
	if err != nil {
		w.t.Fatal(err)
	}
	before := w.Read(topic)
	for p := range w.Partitions {
		w.Send(topic, Record{Key: "closing", Value: `{"price": 1}`}.At(p))
	}
	await(w.t, "the broker to compact "+topic, func() error {
		for p, records := range w.readThrough(topic) {
			if len(records) > len(before[p])/2 {
				return fmt.Errorf("partition %d still has %d of %d records", p, len(records), len(before[p]))
			}
		}
		return nil
	})
}

// readThrough reads a topic whose offsets have gaps, up to the last record of
// each partition, of which there must be one at its end.
func (w *World) readThrough(topic string) map[int32][]*sarama.ConsumerMessage {
	w.t.Helper()
	consumer, err := sarama.NewConsumer(w.Brokers, w.Config())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = consumer.Close() }()
	all := make(map[int32][]*sarama.ConsumerMessage)
	for p, end := range w.Ends(topic) {
		part, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
		if err != nil {
			w.t.Fatal(err)
		}
		limit := time.After(patience)
		for last := int64(-1); last < end-1; {
			select {
			case m := <-part.Messages():
				all[p] = append(all[p], m)
				last = m.Offset
			case <-limit:
				w.t.Fatalf("reading %s/%d: offset %d has not come", topic, p, end-1)
			}
		}
		_ = part.Close()
	}
	return all
}
