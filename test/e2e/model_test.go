package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

// joined is what a notification's join must have found.
type joined struct {
	tick  *sarama.ConsumerMessage // nil: there is no price
	price string
	next  int64 // one above the last market record merged before it; 0 none
}

// joins computes the joins of a partition from its records, all of which lie
// there before anybody reads them. Nothing of the service is used: each record
// stands at the newest event time that its side has had up to it, both sides
// are sorted by that, ties to the market, and each symbol has the tick of the
// newest event time, of equal times the one of the higher offset. The event
// time is the record's. The result is by the notification's offset; late is
// the number of ticks older than what their symbol had.
func joins(t testing.TB, market, notes []*sarama.ConsumerMessage) (byOffset map[int64]joined, late int) {
	t.Helper()
	type item struct {
		stands int64
		note   bool
		m      *sarama.ConsumerMessage
	}
	var sequence []item
	add := func(records []*sarama.ConsumerMessage, note bool) {
		newest := int64(0)
		for _, m := range records {
			newest = max(newest, m.Timestamp.UnixMilli())
			sequence = append(sequence, item{newest, note, m})
		}
	}
	add(market, false) // first: ties are the market's
	add(notes, true)
	slices.SortStableFunc(sequence, func(a, b item) int { return cmp.Compare(a.stands, b.stands) })

	byOffset = make(map[int64]joined)
	table := make(map[string]*sarama.ConsumerMessage)
	next := int64(0)
	for _, i := range sequence {
		symbol := string(i.m.Key)
		has := table[symbol]
		if i.note {
			byOffset[i.m.Offset] = joined{has, priceOf(t, has), next}
			continue
		}
		next = i.m.Offset + 1
		if has != nil && i.m.Timestamp.Before(has.Timestamp) {
			late++
			continue
		}
		table[symbol] = i.m
	}
	return byOffset, late
}

// below computes what a notification finds where exactly the market records
// below next have been merged.
func below(t testing.TB, market []*sarama.ConsumerMessage, symbol string, next int64) joined {
	t.Helper()
	var has *sarama.ConsumerMessage
	for _, m := range market {
		if m.Offset >= next {
			break
		}
		if string(m.Key) == symbol && (has == nil || !m.Timestamp.Before(has.Timestamp)) {
			has = m
		}
	}
	return joined{has, priceOf(t, has), next}
}

func priceOf(t testing.TB, tick *sarama.ConsumerMessage) string {
	t.Helper()
	if tick == nil {
		return ""
	}
	var value struct{ Price json.Number }
	if err := json.Unmarshal(tick.Value, &value); err != nil {
		t.Fatalf("tick %s/%d offset %d: %v", tick.Topic, tick.Partition, tick.Offset, err)
	}
	return value.Price.String()
}

// faults collects what is wrong, and shows the first few of each kind.
type faults struct {
	t     testing.TB
	count map[string]int
}

func (f *faults) add(kind, format string, args ...any) {
	f.t.Helper()
	const shown = 5
	if f.count == nil {
		f.count = make(map[string]int)
	}
	f.count[kind]++
	if f.count[kind] <= shown {
		f.t.Errorf("%s: %s", kind, fmt.Sprintf(format, args...))
	}
}

// report says how many there were, where not all were shown.
func (f *faults) report() {
	f.t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(f.count)) {
		f.t.Errorf("%s: %d in all", kind, f.count[kind])
	}
}

// checkOnce fails the test unless every notification has exactly one alert,
// which carries it byte for byte, with its key, timestamp and headers, and
// unless a symbol's alerts lie in the order of its notifications.
func checkOnce(f *faults, notes map[int32][]*sarama.ConsumerMessage, alerts []Alert) {
	f.t.Helper()
	type source struct {
		partition int32
		offset    int64
	}
	owed := make(map[source]*sarama.ConsumerMessage)
	for p, records := range notes {
		for _, m := range records {
			owed[source{p, m.Offset}] = m
		}
	}
	total := len(owed)
	done := make(map[source]bool)
	last := make(map[string]int64)
	for _, a := range alerts {
		s := source{a.Source.Partition, a.Source.Offset}
		note := owed[s]
		switch {
		case note == nil:
			f.add("foreign", "alert at %d/%d is of offset %d, where no notification lies", a.Partition, a.Offset, s.offset)
			continue
		case done[s]:
			f.add("doubled", "notification %v", s)
			continue
		}
		done[s] = true
		sameRecord(f, note, a)
		symbol := fmt.Sprintf("%d %s", a.Partition, a.Key)
		if before, ok := last[symbol]; ok && before > s.offset {
			f.add("out of order", "%s: notification %d behind %d", symbol, s.offset, before)
		}
		last[symbol] = s.offset
	}
	for s := range owed {
		if !done[s] {
			f.add("lost", "notification %v", s)
		}
	}
	if len(alerts) < total {
		f.add("missing", "%d alerts for %d notifications", len(alerts), total)
	}
}

func sameRecord(f *faults, note *sarama.ConsumerMessage, a Alert) {
	f.t.Helper()
	if string(a.Notification) != string(note.Value) {
		f.add("changed", "notification %v carries %s, was %s", a.Source, a.Notification, note.Value)
	}
	if string(a.Key) != string(note.Key) || !a.Timestamp.Equal(note.Timestamp) {
		f.add("changed", "notification %v: key %q at %v, was %q at %v", a.Source, a.Key, a.Timestamp, note.Key, note.Timestamp)
	}
	for i, h := range note.Headers {
		if i >= len(a.Headers) || string(a.Headers[i].Key) != string(h.Key) || string(a.Headers[i].Value) != string(h.Value) {
			f.add("changed", "notification %v: its header %s is not where it was", a.Source, h.Key)
		}
	}
}

// checkJoin compares an alert with what its join must have found.
func checkJoin(f *faults, a Alert, want joined) {
	f.t.Helper()
	if a.Cited == nil || a.Cited.Partition != a.Partition || a.Cited.Next != want.next {
		f.add("wrong citation", "%v at %v cites %v, want %d/%d", a.Source, a.Timestamp.UnixMilli(), a.Cited, a.Partition, want.next)
	}
	if want.tick == nil {
		if a.Result != record.Miss || a.Market != nil {
			f.add("wrong", "%v has a price, there is none", a.Source)
		}
		return
	}
	if a.Result != record.Hit {
		f.add("wrong", "%v is a %s, the tick at offset %d has its price", a.Source, a.Result, want.tick.Offset)
		return
	}
	m := a.Market
	if m.Offset != want.tick.Offset || m.Partition != want.tick.Partition || m.Price != want.price || string(m.Symbol) != string(a.Key) {
		f.add("wrong", "%v at %d: %s from %d/%d, want %s from %d/%d of %d", a.Source, a.Timestamp.UnixMilli(),
			m.Price, m.Partition, m.Offset, want.price, want.tick.Partition, want.tick.Offset, want.tick.Timestamp.UnixMilli())
		return
	}
	at := want.tick.Timestamp.UnixMilli()
	if int64(m.EventTime) != at || m.AgeMS != a.Timestamp.UnixMilli()-at {
		f.add("wrong", "%v at %d: event time %d and age %d, the tick is of %d", a.Source, a.Timestamp.UnixMilli(), m.EventTime, m.AgeMS, at)
	}
}
