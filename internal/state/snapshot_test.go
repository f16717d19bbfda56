package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"joiner/internal/record"
	"joiner/internal/wire"
)

// saver is a disk under a table: what was saved, piece by piece, each piece
// with its head in one step, and what is lost in a crash.
type saver struct {
	saved  map[string]string
	head   Head
	staged map[string]string
}

func (s *saver) save(h Head) {
	if s.saved == nil {
		s.saved = map[string]string{}
	}
	maps.Copy(s.saved, s.staged)
	s.head, s.staged = h, nil
}

func (s *saver) take(table *Table, limit int) (left int, next int64) {
	return table.Take(limit, func(symbol string, data []byte) {
		if s.staged == nil {
			s.staged = map[string]string{}
		}
		s.staged[symbol] = string(data)
	})
}

// TestRestoredTableAgainstModel takes, saves, fails to save and crashes at any
// point between ticks, and restores from what was saved and the log: the table
// is always the one that the ticks below the position give.
func TestRestoredTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := rapid.SampledFrom([]record.Millis{0, 5, 20, 1000}).Draw(t, "history")
		symbols := []string{"BBCA", "BRK.B", "\xff\xfe", "", "A", "B", "C"}
		symbol := rapid.SampledFrom(symbols)
		type logged struct {
			symbol string
			tick   *seen // nil: a bad record
		}
		var log []logged
		m := &model{history: history, ticks: map[string][]seen{}}
		fresh := func() *Table {
			table := New(3, time.Duration(history)*time.Millisecond)
			table.TrackChanges()
			return table
		}
		table, disk := fresh(), &saver{}
		apply := func(table *Table, offset int64) {
			l := log[offset]
			table.Lock()
			defer table.Unlock()
			if l.tick == nil {
				table.Advance(offset)
				return
			}
			tick := &record.Tick{Symbol: []byte(l.symbol), EventTime: l.tick.time, Tombstone: l.tick.tombstone}
			if !l.tick.tombstone {
				tick.Price = []byte(l.tick.price)
			}
			table.Apply(tick, offset)
		}

		t.Repeat(map[string]func(*rapid.T){
			"tick": func(t *rapid.T) {
				offset := int64(len(log))
				s := seen{time: record.Millis(rapid.IntRange(-5, 60).Draw(t, "time")), offset: offset}
				if s.tombstone = rapid.IntRange(0, 5).Draw(t, "tombstone") == 0; !s.tombstone {
					s.price = fmt.Sprint(1 + offset)
				}
				name := symbol.Draw(t, "symbol")
				log = append(log, logged{name, &s})
				apply(table, offset)
				m.apply(name, s)
			},
			"bad": func(*rapid.T) {
				log = append(log, logged{})
				apply(table, int64(len(log)-1))
				m.next = int64(len(log))
			},
			"take": func(t *rapid.T) {
				disk.take(table, rapid.IntRange(1, 4).Draw(t, "limit"))
			},
			// A piece: what was taken up to now, over an older whole.
			"save a piece": func(*rapid.T) {
				h := disk.head
				h.UpTo, h.Next = table.Next(), table.Next()
				disk.save(h)
				table.Settle(true)
			},
			"save all": func(t *rapid.T) {
				left, next := disk.take(table, rapid.SampledFrom([]int{1, 2, 1000}).Draw(t, "limit"))
				h := Head{From: next, UpTo: next, Next: next}
				if left > 0 {
					h.From = disk.head.From
				}
				disk.save(h)
				table.Settle(true)
			},
			"fail to save": func(*rapid.T) {
				disk.staged = nil
				table.Settle(false)
			},
			"lose what was saved": func(*rapid.T) {
				*disk = saver{}
				table.TakeAll()
			},
			"crash": func(t *rapid.T) {
				disk.staged = nil
				table = fresh()
				table.Lock()
				for name, data := range disk.saved {
					if err := table.Load([]byte(name), []byte(data)); err != nil {
						t.Fatalf("load %q: %v", name, err)
					}
				}
				table.Loaded(disk.head.Next)
				table.Unlock()
				for offset := disk.head.From; offset < int64(len(log)); offset++ {
					apply(table, offset)
				}
			},
			"": func(t *rapid.T) {
				if table.Next() != m.next {
					t.Fatalf("next %d, want %d", table.Next(), m.next)
				}
				if got, want := table.Symbols(), m.symbols(); got != want {
					t.Fatalf("%d symbols, want %d", got, want)
				}
				if got, want := table.Bytes(), footprint(table); got != want {
					t.Fatalf("counted %d bytes, holds %d", got, want)
				}
				for _, name := range symbols {
					if got, want := kept(table, name), m.kept(name); !slices.Equal(got, want) {
						t.Fatalf("%q: kept %v, want %v", name, got, want)
					}
				}
				compare(t, table, m, symbol.Draw(t, "asked"), record.Millis(rapid.IntRange(-5, 60).Draw(t, "when")))
			},
		})
	})
}

func TestNothingIsTakenUntracked(t *testing.T) {
	table := New(0, 0)
	table.Lock()
	table.Apply(tick("A", "1", 1), 4)
	table.Unlock()
	left, next := table.Take(10, func(string, []byte) { t.Error("taken") })
	table.Settle(true)
	table.TakeAll()
	if left != 0 || next != 5 {
		t.Errorf("%d left, next %d", left, next)
	}
}

// Entries that did not change are not taken again, be they many.
func TestOnlyChangesAreTaken(t *testing.T) {
	table := New(0, time.Second)
	table.TrackChanges()
	keys := names(3000)
	table.Lock()
	for i, k := range keys {
		table.Apply(&record.Tick{Symbol: k, Price: []byte("1"), EventTime: 10_000}, int64(i))
	}
	table.Unlock()
	drain := func() map[string]bool {
		taken := map[string]bool{}
		for {
			left, _ := table.Take(700, func(symbol string, _ []byte) {
				if taken[symbol] {
					t.Errorf("%s is taken twice", symbol)
				}
				taken[symbol] = true
			})
			if left == 0 {
				table.Settle(true)
				return taken
			}
		}
	}
	if n := len(drain()); n != len(keys) {
		t.Fatalf("%d entries taken, want all %d", n, len(keys))
	}
	table.Lock()
	table.Apply(&record.Tick{Symbol: keys[2999], Price: []byte("2"), EventTime: 10_001}, 3000) // newest
	table.Apply(&record.Tick{Symbol: keys[70], Price: []byte("3"), EventTime: 9_500}, 3001)    // a version of the past
	table.Apply(&record.Tick{Symbol: keys[71], Price: []byte("4"), EventTime: 10_000}, 5)      // loses
	table.Apply(&record.Tick{Symbol: []byte("new"), EventTime: 1, Tombstone: true}, 3003)
	table.Advance(3004)
	table.Unlock()
	want := map[string]bool{string(keys[2999]): true, string(keys[70]): true, "new": true}
	if diff := cmp.Diff(want, drain()); diff != "" {
		t.Error(diff)
	}
	if n := len(drain()); n != 0 {
		t.Errorf("%d entries taken of none that changed", n)
	}
	table.TakeAll()
	if n := len(drain()); n != len(keys)+1 {
		t.Errorf("%d entries taken, want all %d", n, len(keys)+1)
	}
}

func TestHeadSurvives(t *testing.T) {
	h := Head{
		Scope: Scope{
			Cluster: "c1", Group: "g\xff", Topic: "market-updates", TopicID: "id", Partition: 11,
			Rules: "price=last", History: 60_000,
		},
		From: 7, UpTo: 9, Next: 8, Written: 1_700_000_000_123, Since: 1_600_000_000_000,
	}
	data := AppendHead(nil, &h)
	got, err := DecodeHead(data)
	if err != nil || got != h {
		t.Errorf("%+v %v, want %+v", got, err, h)
	}
	const golden = "\x01js\x01\x02c1\x02\x02g\xff\x03\x0emarket-updates\x04\x02id\x05\x01\v\x06\nprice=last" +
		"\a\x03\xe0\xd4\x03\b\x01\a\t\x01\t\n\x01\b\v\x06\xfb\xd0\x95\xff\xbc1\f\x06\x80\x80\xba\xbb\xc8."
	if string(data) != golden {
		t.Errorf("written as %q", data)
	}
	var version wire.VersionError
	if _, err := DecodeHead(append([]byte{2}, data[1:]...)); !errors.As(err, &version) || version.Version != 2 {
		t.Errorf("a format of the future: %v", err)
	}
	if _, err := DecodeHead(wire.AppendField(bytes.Clone(data), 99, []byte("later"))); err != nil {
		t.Errorf("a field of the future: %v", err)
	}
	for name, data := range map[string][]byte{
		"empty":         nil,
		"another kind":  wire.Header(wire.KindAnswers),
		"from above":    AppendHead(nil, &Head{From: 2, UpTo: 1}),
		"next above":    AppendHead(nil, &Head{Next: 2, UpTo: 1}),
		"since later":   AppendHead(nil, &Head{Since: 2, Written: 1}),
		"beyond 63 bit": wire.AppendNumber(wire.Header(wire.KindSnapshot), headFrom, math.MaxUint64),
	} {
		if _, err := DecodeHead(data); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDamagedEntries(t *testing.T) {
	one := func(price string, at record.Millis, tombstone bool) []byte {
		return appendVersion(nil, &version{time: at, offset: 5, text: []byte(price), tombstone: tombstone})
	}
	for name, data := range map[string][]byte{
		"empty":               {},
		"cut":                 one("9150.25", 1, false)[:5],
		"cut in a version":    {2, 0, 2},
		"no price":            one("", 1, false),
		"not a number":        one(`"9"`, 1, false),
		"number with a space": one("9 ", 1, false),
		"two at one time":     append(one("1", 1, false), one("2", 1, false)...),
		"out of order":        append(one("1", 2, false), one("2", 1, false)...),
	} {
		table := New(0, time.Second)
		table.TrackChanges()
		table.Lock()
		if err := table.Load([]byte("A"), data); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		table.Unlock()
		if table.Holds([]byte("A")) || table.Bytes() != 0 {
			t.Errorf("%s: something is left of it", name)
		}
	}
	table := New(0, 0)
	table.Lock()
	defer table.Unlock()
	if err := table.Load([]byte("A"), one("1", 1, false)); err != nil {
		t.Fatal(err)
	}
	if err := table.Load([]byte("A"), one("1", 1, false)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a symbol that comes twice: %v", err)
	}
	table.Clear()
	if table.Bytes() != 0 || table.Symbols() != 0 || table.Next() != 0 || table.Holds([]byte("A")) {
		t.Error("a cleared table holds something")
	}
}

// A field that a later version adds to a version is skipped.
func TestEntryOfTheFutureIsRead(t *testing.T) {
	v := appendVersion(nil, &version{time: 4, offset: 5, text: []byte("9")})
	v = append(append([]byte{v[0] + 2}, v[1:]...), 1, 2)
	table := New(0, 0)
	table.Lock()
	defer table.Unlock()
	if err := table.Load([]byte("A"), v); err != nil {
		t.Fatal(err)
	}
	if p, found, _ := table.Price([]byte("A"), 4); !found || string(p.Text) != "9" || p.Offset != 5 {
		t.Errorf("%+v %v", p, found)
	}
}

func TestShorterHistoryIsCutWhenLoaded(t *testing.T) {
	long := New(0, time.Second)
	long.TrackChanges()
	long.Lock()
	for i := range int64(10) {
		long.Apply(tick("A", fmt.Sprint(i), record.Millis(100*i)), i)
	}
	long.Unlock()
	var data []byte
	long.Take(1, func(_ string, d []byte) { data = bytes.Clone(d) })
	for history, versions := range map[time.Duration]int{0: 1, 100 * time.Millisecond: 2, 250 * time.Millisecond: 4, time.Hour: 10} {
		short := New(0, history)
		short.Lock()
		if err := short.Load([]byte("A"), data); err != nil {
			t.Fatal(err)
		}
		short.Unlock()
		if n := len(kept(short, "A")); n != versions {
			t.Errorf("history %v: %d versions, want %d", history, n, versions)
		}
		if got, want := short.Bytes(), footprint(short); got != want {
			t.Errorf("history %v: counted %d bytes, holds %d", history, got, want)
		}
	}
}

func FuzzDecodeHead(f *testing.F) {
	f.Add(AppendHead(nil, &Head{Scope: Scope{Cluster: "c", Partition: 3}, From: 1, UpTo: 2, Next: 2, Written: 9, Since: 8}))
	f.Add([]byte{2, 'j', 's'})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := DecodeHead(data)
		if err != nil {
			return
		}
		again, err := DecodeHead(AppendHead(nil, &h))
		if err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

func FuzzLoad(f *testing.F) {
	two := appendVersion(nil, &version{time: -5, offset: 1, text: []byte("-1.5e3")})
	f.Add([]byte("A"), appendVersion(two, &version{time: 7, offset: 9, tombstone: true}))
	f.Add([]byte(""), []byte{4, 0, 2, 5, 0})
	f.Fuzz(func(t *testing.T, symbol, data []byte) {
		table := New(0, time.Hour)
		table.TrackChanges()
		table.Lock()
		err := table.Load(symbol, data)
		table.Unlock()
		if err != nil {
			return
		}
		before := kept(table, string(symbol))
		table.TakeAll()
		again := New(0, time.Hour)
		again.Lock()
		defer again.Unlock()
		table.Take(1, func(s string, d []byte) {
			if err := again.Load([]byte(s), d); err != nil {
				t.Fatal(err)
			}
		})
		if after := kept(again, string(symbol)); !slices.Equal(before, after) {
			t.Errorf("%v became %v", before, after)
		}
	})
}

// BenchmarkApplyTracked is BenchmarkApplyKnown under state.dir.
func BenchmarkApplyTracked(b *testing.B) {
	table := New(0, 0)
	table.TrackChanges()
	benchmarkApply(b, table)
}

func BenchmarkTake(b *testing.B) {
	const symbols = 100_000
	table, keys := New(0, 0), names(symbols)
	table.TrackChanges()
	table.Lock()
	for i, k := range keys {
		table.Apply(&record.Tick{Symbol: k, Price: []byte("9150.25"), EventTime: 1}, int64(i))
	}
	table.Unlock()
	size := 0
	for b.Loop() {
		if left, _ := table.Take(1, func(_ string, d []byte) { size += len(d) }); left == 0 {
			table.TakeAll()
		}
	}
}
