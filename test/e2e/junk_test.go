package e2e

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

const (
	junkPods       = 2
	junkPartitions = 4
	junkSymbols    = 20
	junkRounds     = 10 // good ticks, bad ticks, good and bad notifications of each symbol
	alertBytes     = 100_000
	deadBytes      = 1_000_000
)

// bad is a kind of record that cannot be joined.
type bad struct {
	kind  record.Kind
	value string
	null  bool
	noKey bool
}

func badTicks() []bad {
	return []bad{
		{kind: record.InvalidJSON, value: `{"price": 12.5`},
		{kind: record.InvalidJSON, value: `[{"price": 12.5}]`},
		{kind: record.InvalidJSON, value: "\ufeff" + `{"price": 12.5}`},
		{kind: record.InvalidJSON, value: "\x00\x01\xfe\xff{\"price\": 12.5}"},
		{kind: record.InvalidJSON, value: `{"price": 012.5}`},
		{kind: record.InvalidJSON, value: ``},
		{kind: record.InvalidPrice, value: `{"price": "abc"}`},
		{kind: record.InvalidPrice, value: `{"Price": 12.5}`},
		{kind: record.InvalidPrice, value: `{"price": null}`},
		{kind: record.MissingSymbol, value: `{"price": 12.5}`, noKey: true},
		{kind: record.MissingSymbol, null: true, noKey: true},
	}
}

func badNotes() []bad {
	return []bad{
		{kind: record.InvalidJSON, value: `{"text": "cut`},
		{kind: record.InvalidJSON, value: `["text"]`},
		{kind: record.InvalidJSON, value: "\ufeff{}"},
		{kind: record.InvalidJSON, value: "\xca\xfe\xba\xbe"},
		{kind: record.InvalidJSON, value: `{"text": "raw` + "\x01" + `"}`},
		{kind: record.InvalidJSON, value: `"text"`},
		{kind: record.NullValue, null: true},
		{kind: record.MissingSymbol, value: `{"text": "whose?"}`, noKey: true},
	}
}

func (b bad) record(key string, partition int32, at int64) Record {
	r := Record{Key: key, Value: b.value, Null: b.null, Time: at, Headers: [][2]string{{"trace", key}, {"kind", string(b.kind)}}}
	if b.noKey {
		r.Key = ""
	}
	return r.At(partition)
}

// owed is what must become of a produced record.
type owed struct {
	m    *sarama.ProducerMessage
	kind record.Kind // "": an alert, or for a tick nothing
}

// Half of the input is junk: it goes to the dead-letter topic, each record
// once, whole and by its kind, the group does not notice, and every good
// record comes out.
func TestKafkaJunk(t *testing.T) {
	w := NewWorld(t, junkPartitions, map[string]map[string]string{
		// The inputs take what the outputs do not.
		"notes":  {"message.timestamp.after.max.ms": "86400000000", "max.message.bytes": "4000000"},
		"alerts": {"max.message.bytes": strconv.Itoa(alertBytes)},
		"dead":   {"max.message.bytes": strconv.Itoa(deadBytes)},
	})
	pods := w.Pods(junkPods, nil)
	pods.AwaitBalanced(junkPartitions)
	before := groupView(pods)

	ticks, notes := w.junk()
	producer := w.Producer()
	for _, side := range [][]owed{ticks, notes} { // each notification is newer than all ticks
		messages := make([]*sarama.ProducerMessage, len(side))
		for i, o := range side {
			messages[i] = o.m
		}
		producer.SendMessages(messages)
	}
	good, dead := 0, 0
	for _, o := range notes {
		if o.kind == "" {
			good++
		}
	}
	for _, o := range slices.Concat(ticks, notes) {
		if o.kind != "" {
			dead++
		}
	}
	w.AwaitCount(w.Alerts, int64(good), pods)
	w.AwaitCount(w.Dead, int64(dead), pods)
	w.AwaitNoLag()

	metrics := pods.Metrics()
	if after := groupView(pods); !slices.Equal(before, after) {
		t.Errorf("the group has changed: generations and rebalances were %v, are %v", before, after)
	}
	pods.Stop()
	deadNotes := int64(0)
	for _, o := range notes {
		if o.kind != "" {
			deadNotes++
		}
	}
	if r, code := w.Audit(nil); code != 0 || r.faultCounts != (faultCounts{}) || r.Notifications != int64(len(notes)) ||
		r.DeadLettered != deadNotes || r.DeadLettered+r.TicksDeadLettered != int64(dead) {
		t.Errorf("the audit of %d notifications, %d of %d dead letters theirs, ends with %d: %+v", len(notes), deadNotes, dead, code, r)
	}
	checkJunkAlerts(w, ticks, notes)
	checkDeadLetters(w, slices.Concat(ticks, notes))
	checkJunkMetrics(w, metrics, ticks, notes)
	t.Logf("%d ticks and %d notifications: %d alerts, %d dead letters", len(ticks), len(notes), good, dead)
}

// groupView is what each pod says of its group.
func groupView(pods Pods) (view []float64) {
	for _, p := range pods {
		m := p.Metrics()
		view = append(view, m.Sum("joiner_group_generation"), m.Sum("joiner_rebalances_total"))
	}
	return view
}

// junk makes the inputs: of every symbol, a good record for each bad one.
func (w *World) junk() (ticks, notes []owed) {
	now := time.Now().Add(-time.Minute).UnixMilli()
	tick := func(kind record.Kind, r Record) { ticks = append(ticks, owed{w.message(w.Market, r), kind}) }
	note := func(kind record.Kind, r Record) { notes = append(notes, owed{w.message(w.Notes, r), kind}) }
	for round := range junkRounds {
		for s := range junkSymbols {
			key := fmt.Sprintf("SYM%d", s)
			n := round*junkSymbols + s
			at := now + int64(n)
			b := badTicks()[n%len(badTicks())]
			tick("", Record{Key: key, Value: fmt.Sprintf(`{"price": %d.75}`, n), Time: at})
			tick(b.kind, b.record(key, w.Home(key), at))

			at += junkRounds * junkSymbols
			b = badNotes()[n%len(badNotes())]
			note(b.kind, b.record(key, w.Home(key), at))
			note("", Record{Key: key, Value: fmt.Sprintf(`{"n": %d}`, n), Time: at, Headers: [][2]string{{"trace", key}}})
		}
	}
	// The last tick of one symbol says that it has no price any more.
	tick("", Record{Key: "SYM0", Null: true, Time: now + junkRounds*junkSymbols})

	at := now + 2*junkRounds*junkSymbols
	trace := [][2]string{{"trace", "special"}}
	note(record.TooLarge, Record{Key: "SYM1", Value: `{"text": "` + strings.Repeat("x", alertBytes) + `"}`, Time: at, Headers: trace})
	note(record.TooLarge, Record{Key: "SYM2", Value: `{"text": "` + strings.Repeat("y", 2*deadBytes) + `"}`, Time: at, Headers: trace})
	ahead := time.Now().Add(2 * time.Hour).UnixMilli()
	note(record.InvalidTimestamp, Record{Key: "SYM3", Value: `{"text": "tomorrow"}`, Time: ahead, Headers: trace})
	for s := range junkSymbols { // life goes on behind them
		note("", Record{Key: fmt.Sprintf("SYM%d", s), Value: `{"n": "last"}`, Time: at + 1})
	}
	return ticks, notes
}

// consumed is the message as a consumer will see it.
func (o owed) consumed(w *World) *sarama.ConsumerMessage {
	w.t.Helper()
	c := &sarama.ConsumerMessage{Topic: o.m.Topic, Partition: o.m.Partition, Offset: o.m.Offset, Timestamp: o.m.Timestamp}
	c.Key, c.Value = w.encode(o.m.Key), w.encode(o.m.Value)
	for i := range o.m.Headers {
		c.Headers = append(c.Headers, &o.m.Headers[i])
	}
	return c
}

func (o owed) source() string {
	return fmt.Sprintf("%s/%d/%d", o.m.Topic, o.m.Partition, o.m.Offset)
}

func checkJunkAlerts(w *World, ticks, notes []owed) {
	w.t.Helper()
	f := &faults{t: w.t}
	last := make(map[string]*sarama.ConsumerMessage)
	next := make(map[int32]int64)
	for _, o := range ticks {
		next[o.m.Partition] = max(next[o.m.Partition], o.m.Offset+1)
		if o.kind == "" {
			m := o.consumed(w)
			last[string(m.Key)] = m
		}
	}
	last["SYM0"] = nil // a tombstone
	good := make(map[int32][]*sarama.ConsumerMessage)
	for _, o := range notes {
		if o.kind == "" {
			good[o.m.Partition] = append(good[o.m.Partition], o.consumed(w))
		}
	}
	alerts := w.ReadAlerts()
	checkOnce(f, good, alerts)
	for _, a := range alerts {
		tick := last[string(a.Key)]
		checkJoin(f, a, joined{tick, priceOf(w.t, tick), next[a.Partition]})
	}
	f.report()
}

func checkDeadLetters(w *World, all []owed) {
	w.t.Helper()
	f := &faults{t: w.t}
	want := make(map[string]owed)
	for _, o := range all {
		if o.kind != "" {
			want[o.source()] = o
		}
	}
	for p, letters := range w.Read(w.Dead) {
		for _, m := range letters {
			source, _ := Header(m, enrich.HeaderSource)
			o, ok := want[source]
			if !ok {
				f.add("foreign", "dead letter %d/%d of %q: not owed, or again", p, m.Offset, source)
				continue
			}
			delete(want, source)
			checkDeadLetter(f, m, o, o.consumed(w))
		}
	}
	for source, o := range want {
		f.add("lost", "no dead letter of %s, which is %s", source, o.kind)
	}
	f.report()
}

func checkDeadLetter(f *faults, m *sarama.ConsumerMessage, o owed, was *sarama.ConsumerMessage) {
	f.t.Helper()
	if kind, _ := Header(m, enrich.HeaderErrorKind); kind != string(o.kind) {
		f.add("wrong kind", "%s is %q, want %q", o.source(), kind, o.kind)
	}
	if text, ok := Header(m, enrich.HeaderError); !ok || text == "" {
		f.add("no reason", "%s: %s says %q", o.source(), enrich.HeaderError, text)
	}
	if m.Partition != was.Partition || !same(m.Key, was.Key) {
		f.add("changed", "%s lies in partition %d with key %q, was %q", o.source(), m.Partition, m.Key, was.Key)
	}
	for i, h := range was.Headers {
		if i >= len(m.Headers) || string(m.Headers[i].Key) != string(h.Key) || string(m.Headers[i].Value) != string(h.Value) {
			f.add("changed", "%s: its header %s is not where it was", o.source(), h.Key)
		}
	}
	if o.kind == record.InvalidTimestamp {
		if ahead := time.Until(m.Timestamp); ahead > time.Hour {
			f.add("changed", "%s lies in the dead letters %v ahead", o.source(), ahead)
		}
	} else if !m.Timestamp.Equal(was.Timestamp) {
		f.add("changed", "%s: timestamp %v, was %v", o.source(), m.Timestamp, was.Timestamp)
	}
	left := was.Value
	if len(was.Value) > deadBytes {
		left = []byte{}
		if n, _ := Header(m, enrich.HeaderValueBytes); n != strconv.Itoa(len(was.Value)) {
			f.add("wrong size", "%s: %s is %q, want %d", o.source(), enrich.HeaderValueBytes, n, len(was.Value))
		}
	}
	if !same(m.Value, left) {
		f.add("changed", "%s: a value of %d bytes, was %d", o.source(), len(m.Value), len(left))
	}
}

// same tells null from empty.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func checkJunkMetrics(w *World, m Metrics, ticks, notes []owed) {
	w.t.Helper()
	for topic, side := range map[string][]owed{w.Market: ticks, w.Notes: notes} {
		kinds := make(map[record.Kind]int)
		for _, o := range side {
			kinds[o.kind]++
		}
		dead := 0
		for _, kind := range record.Kinds() {
			dead += kinds[kind]
			expect(w.t, m, kinds[kind], "joiner_dead_letters_total", "topic", topic, "kind", string(kind))
		}
		expect(w.t, m, dead, "joiner_records_total", "topic", topic, "outcome", "dead_lettered")
		expect(w.t, m, 0, "joiner_records_total", "topic", topic, "outcome", "skipped")
		expect(w.t, m, len(side), "joiner_records_total", "topic", topic)
		expect(w.t, m, len(side), "joiner_partition_records_total", "topic", topic)
	}
	expect(w.t, m, 1, "joiner_records_total", "topic", w.Market, "outcome", "tombstone")
	expect(w.t, m, 0, "joiner_alerts_dropped_total")
	expect(w.t, m, 0, "joiner_produce_errors_total")
}
