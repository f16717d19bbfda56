package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"joiner/internal/record"
)

// model is the rule said naively: it keeps every tick it was ever given.
type model struct {
	history record.Millis
	ticks   map[string][]seen
	next    int64
}

type seen struct {
	time      record.Millis
	offset    int64
	price     string
	tombstone bool
}

func (m *model) apply(symbol string, s seen) Applied {
	m.next = max(m.next, s.offset+1)
	all := m.sorted(symbol)
	m.ticks[symbol] = append(m.ticks[symbol], s)
	if n := len(all); n > 0 {
		newest := all[n-1]
		if s.time < newest.time || s.time == newest.time && s.offset < newest.offset {
			return Late
		}
	}
	if s.tombstone {
		return Tombstone
	}
	return Accepted
}

// sorted returns one tick an event time, the one with the highest offset.
func (m *model) sorted(symbol string) []seen {
	all := slices.Clone(m.ticks[symbol])
	slices.SortFunc(all, func(a, b seen) int {
		if a.time != b.time {
			return int(a.time - b.time)
		}
		return int(a.offset - b.offset)
	})
	var out []seen
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].time == s.time {
			out[n-1] = s
			continue
		}
		out = append(out, s)
	}
	return out
}

// kept returns the versions that join.history keeps.
func (m *model) kept(symbol string) []seen {
	all := m.sorted(symbol)
	if len(all) == 0 {
		return nil
	}
	start := all[len(all)-1].time - m.history
	first := 0
	for i, s := range all {
		if s.time <= start {
			first = i
		}
	}
	return all[first:]
}

// price returns the version that answers for at.
func (m *model) price(symbol string, at record.Millis) (s seen, found, asOf bool) {
	kept := m.kept(symbol)
	if len(kept) == 0 {
		return seen{}, false, false
	}
	answer := kept[0]
	for _, s := range kept {
		if s.time <= at {
			answer = s
		}
	}
	inForce, known := seen{}, false
	for _, s := range m.sorted(symbol) {
		if s.time <= at {
			inForce, known = s, true
		}
	}
	return answer, !answer.tombstone, known && inForce == answer
}

func (m *model) symbols() (n int) {
	for symbol := range m.ticks {
		if all := m.sorted(symbol); !all[len(all)-1].tombstone {
			n++
		}
	}
	return n
}

// kept returns the table's own versions of a symbol, the newest last.
func kept(t *Table, symbol string) []seen {
	e := t.entries[symbol]
	if e == nil {
		return nil
	}
	var out []seen
	if e.past != nil {
		for _, v := range e.past.kept() {
			out = append(out, plain(v))
		}
	}
	return append(out, plain(e.newest))
}

func plain(v version) seen {
	s := seen{time: v.time, offset: v.offset, tombstone: v.tombstone}
	if !v.tombstone {
		s.price = string(v.text)
	}
	return s
}

func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := rapid.SampledFrom([]record.Millis{0, 1, 5, 20, 1000}).Draw(t, "history")
		table := New(3, time.Duration(history)*time.Millisecond)
		m := &model{history: history, ticks: map[string][]seen{}}
		symbols := []string{"BBCA", "BRK.B", "\xff\xfe", ""}
		symbol := rapid.SampledFrom(symbols)
		at := rapid.Custom(func(t *rapid.T) record.Millis {
			return record.Millis(rapid.IntRange(-5, 60).Draw(t, "at"))
		})
		byOffset := map[int64]seen{}
		bySymbol := map[int64]string{}
		var offset int64

		t.Repeat(map[string]func(*rapid.T){
			"tick": func(t *rapid.T) {
				offset += rapid.Int64Range(1, 3).Draw(t, "gap")
				s := seen{time: at.Draw(t, "time"), offset: offset}
				s.tombstone = rapid.IntRange(0, 5).Draw(t, "tombstone") == 0
				if !s.tombstone {
					s.price = priceOf(t, offset)
				}
				byOffset[offset], bySymbol[offset] = s, symbol.Draw(t, "symbol")
				check(t, table, m, bySymbol[offset], s)
			},
			"replay": func(t *rapid.T) {
				from := rapid.Int64Range(0, offset).Draw(t, "from")
				for o := from; o <= offset; o++ {
					if s, ok := byOffset[o]; ok {
						check(t, table, m, bySymbol[o], s)
					}
				}
			},
			"bad": func(t *rapid.T) {
				offset++
				table.Lock()
				table.Advance(offset)
				table.Unlock()
				m.next = offset + 1
			},
			"": func(t *rapid.T) {
				s, when := symbol.Draw(t, "symbol"), at.Draw(t, "when")
				compare(t, table, m, s, when)
				if got, want := table.Symbols(), m.symbols(); got != want {
					t.Fatalf("%d symbols, want %d", got, want)
				}
				if table.Next() != m.next {
					t.Fatalf("next %d, want %d", table.Next(), m.next)
				}
				if got, want := kept(table, s), m.kept(s); !slices.Equal(got, want) {
					t.Fatalf("kept %v, want %v", got, want)
				}
				if got, want := table.Bytes(), footprint(table); got != want {
					t.Fatalf("counted %d bytes, holds %d", got, want)
				}
			},
		})
	})
}

// priceOf makes prices of many lengths, some above what a buffer keeps.
func priceOf(t *rapid.T, offset int64) string {
	digits := rapid.SampledFrom([]int{1, 8, 30, 600, 3000}).Draw(t, "digits")
	return fmt.Sprintf("%0*d", digits, offset)
}

func check(t *rapid.T, table *Table, m *model, symbol string, s seen) {
	t.Helper()
	tick := &record.Tick{Symbol: []byte(symbol), EventTime: s.time, Tombstone: s.tombstone}
	if !s.tombstone {
		tick.Price = []byte(s.price)
	}
	table.Lock()
	got := table.Apply(tick, s.offset)
	table.Unlock()
	if want := m.apply(symbol, s); got != want {
		t.Fatalf("%q at %d, offset %d: %v, want %v", symbol, s.time, s.offset, got, want)
	}
	clear(tick.Symbol) // the record's memory is not the table's
	clear(tick.Price)
}

func compare(t *rapid.T, table *Table, m *model, symbol string, at record.Millis) {
	t.Helper()
	want, found, asOf := m.price(symbol, at)
	a := table.Ask([]byte(symbol), at)
	p, gotFound, gotAsOf := table.Lookup([]byte(symbol), at)
	if a.Price != p || a.Found != gotFound || a.AsOf != gotAsOf || a.Next != m.next {
		t.Fatalf("Ask %+v and Lookup %+v %v %v differ", a, p, gotFound, gotAsOf)
	}
	v, inPlaceFound, inPlaceAsOf := table.Price([]byte(symbol), at)
	if inPlaceFound != gotFound || inPlaceAsOf != gotAsOf || string(v.Text) != p.Text ||
		v.EventTime != p.EventTime || v.Offset != p.Offset {
		t.Fatalf("Price %+v and Lookup %+v differ", v, p)
	}
	if gotFound != found || gotAsOf != asOf {
		t.Fatalf("%q at %d: found %v as of %v, want %v %v", symbol, at, gotFound, gotAsOf, found, asOf)
	}
	if !found {
		return
	}
	wanted := record.Price{Text: want.price, EventTime: want.time, Partition: 3, Offset: want.offset}
	if p != wanted {
		t.Fatalf("%q at %d: %+v, want %+v", symbol, at, p, wanted)
	}
}

// footprint counts what the table holds, from what is there.
func footprint(t *Table) (n int64) {
	for symbol, e := range t.entries {
		n += symbolBytes + int64(len(symbol)) + int64(cap(e.newest.text))
		if t.changes != nil {
			n += numberedBytes
		}
		if e.past == nil {
			continue
		}
		n += pastBytes + int64(cap(e.past.versions))*versionBytes + int64(cap(e.past.spare))
		for _, v := range e.past.versions {
			n += int64(cap(v.text))
		}
	}
	return n
}
