package state

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"joiner/internal/record"
)

func tick(symbol, price string, at record.Millis) *record.Tick {
	return &record.Tick{Symbol: []byte(symbol), Price: []byte(price), EventTime: at}
}

func TestExtremeTimes(t *testing.T) {
	table := New(0, time.Hour)
	for i, at := range []record.Millis{math.MinInt64, math.MinInt64 + 5, math.MaxInt64, 0} {
		table.Lock()
		table.Apply(tick("A", strconv.Itoa(i), at), int64(i))
		table.Unlock()
	}
	early := New(0, time.Hour)
	early.Lock()
	early.Apply(tick("A", "0", math.MinInt64), 0)
	early.Apply(tick("A", "1", math.MinInt64+5), 1)
	early.Unlock()
	if p, _, asOf := early.Lookup([]byte("A"), math.MinInt64+4); p.Text != "0" || !asOf {
		t.Errorf("%q as of %v: the first version lies within the span", p.Text, asOf)
	}
	for at, want := range map[record.Millis]string{math.MaxInt64: "2", math.MaxInt64 - 1: "3", 0: "3"} {
		if p, found, _ := table.Lookup([]byte("A"), at); !found || p.Text != want {
			t.Errorf("at %d: %q %v, want %q", at, p.Text, found, want)
		}
	}
}

func TestNegativeHistoryIsNone(t *testing.T) {
	table := New(0, -time.Second)
	table.Lock()
	table.Apply(tick("A", "1", 1), 0)
	table.Apply(tick("A", "2", 2), 1)
	table.Unlock()
	if p, _, asOf := table.Lookup([]byte("A"), 1); p.Text != "2" || asOf {
		t.Errorf("%q as of %v, want the newest, which is later", p.Text, asOf)
	}
}

func TestKnownSymbolDoesNotAllocate(t *testing.T) {
	for name, history := range map[string]time.Duration{"no history": 0, "history": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			table := New(0, history)
			symbol := []byte("BBCA")
			prices := [][]byte{[]byte("9150"), []byte("9150.25"), []byte("-1234567.8901234567890")}
			var n int64
			step := func() {
				table.Lock()
				tk := record.Tick{Symbol: symbol, Price: prices[n%3], EventTime: record.Millis(n)}
				table.Apply(&tk, n)
				tk = record.Tick{Symbol: symbol, EventTime: record.Millis(n + 1), Tombstone: true}
				table.Apply(&tk, n+1)
				tk.EventTime = 0 // late
				table.Apply(&tk, n+2)
				table.Unlock()
				table.Price(symbol, record.Millis(n))
				n += 3
			}
			for range 1000 {
				step()
			}
			if got := testing.AllocsPerRun(1000, step); got != 0 {
				t.Errorf("%v allocations a step", got)
			}
		})
	}
}

func TestHugePriceIsGivenBack(t *testing.T) {
	table := New(0, 0)
	table.Lock()
	defer table.Unlock()
	table.Apply(tick("A", strings.Repeat("1", 1<<20), 1), 1)
	table.Apply(tick("A", "2", 2), 2)
	if table.Bytes() > 1024 {
		t.Errorf("%d bytes for one symbol with the price 2", table.Bytes())
	}
}

// A version list that has grown in a burst shrinks again, and never outgrows
// what the history can hold.
func TestHistoryMemoryIsBounded(t *testing.T) {
	table := New(0, 1000*time.Millisecond)
	table.Lock()
	defer table.Unlock()
	var at record.Millis
	for i := range int64(20_000) {
		at++
		table.Apply(tick("A", "9150.25", at), i)
	}
	if limit := int64(3000) * (versionBytes + minText); table.Bytes() > limit {
		t.Errorf("%d bytes for 1000 versions, want at most %d", table.Bytes(), limit)
	}
	for i := range int64(20_000) {
		at += 1000
		table.Apply(tick("A", "9150.25", at), 20_000+i)
	}
	if limit := int64(8192); table.Bytes() > limit {
		t.Errorf("%d bytes for two versions, want at most %d", table.Bytes(), limit)
	}
}

// Readers see whole batches: every symbol's price is its batch's number, and
// the position says which batch that was.
func TestConcurrentReaders(t *testing.T) {
	for _, history := range []time.Duration{0, 50 * time.Millisecond} {
		table := New(7, history)
		symbols := make([][]byte, 20)
		for i := range symbols {
			symbols[i] = fmt.Appendf(nil, "S%d", i)
		}
		done := make(chan struct{})
		var readers sync.WaitGroup
		for r := range 4 {
			readers.Go(func() {
				for i := r; ; i++ {
					select {
					case <-done:
						return
					default:
						readOne(t, table, symbols, i%len(symbols))
					}
				}
			})
		}
		for batch := range int64(3000) {
			table.Lock()
			for i, s := range symbols {
				price := strconv.AppendInt(nil, batch, 10)
				table.Apply(&record.Tick{Symbol: s, Price: price, EventTime: record.Millis(batch)}, batch*int64(len(symbols))+int64(i))
			}
			table.Unlock()
			if p, found, asOf := table.Price(symbols[0], record.Millis(batch)); !found || !asOf || string(p.Text) != strconv.FormatInt(batch, 10) {
				t.Errorf("the writer reads %+v %v %v in batch %d", p, found, asOf, batch)
			}
		}
		close(done)
		readers.Wait()
	}
}

func readOne(t *testing.T, table *Table, symbols [][]byte, i int) {
	a := table.Ask(symbols[i], math.MaxInt64)
	if table.Symbols() > len(symbols) || table.Bytes() < 0 || table.Next() < a.Next {
		t.Errorf("%d symbols, %d bytes, next %d after %d", table.Symbols(), table.Bytes(), table.Next(), a.Next)
	}
	if !a.Found {
		return
	}
	batch := a.Next/int64(len(symbols)) - 1
	if a.Price.Text != strconv.FormatInt(batch, 10) || a.Price.Offset != batch*int64(len(symbols))+int64(i) || a.Price.Partition != 7 {
		t.Errorf("%+v in batch %d", a, batch)
	}
}

func BenchmarkApplyKnown(b *testing.B) {
	for _, history := range []time.Duration{0, 5 * time.Second} {
		b.Run("history="+history.String(), func(b *testing.B) {
			benchmarkApply(b, New(0, history))
		})
	}
}

// benchmarkApply applies ticks of symbols that the table has already.
func benchmarkApply(b *testing.B, table *Table) {
	const symbols = 10_000
	keys := names(symbols)
	price := []byte("9150.25")
	var n int64
	apply := func() {
		tk := record.Tick{Symbol: keys[n%symbols], Price: price, EventTime: record.Millis(n / 100)}
		table.Apply(&tk, n)
		n++
	}
	table.Lock()
	defer table.Unlock()
	for range symbols {
		apply()
	}
	b.ReportAllocs()
	for b.Loop() {
		apply()
	}
}

func BenchmarkPrice(b *testing.B) {
	const symbols = 10_000
	table, keys := New(0, 0), names(symbols)
	table.Lock()
	for i, k := range keys {
		table.Apply(&record.Tick{Symbol: k, Price: []byte("9150.25"), EventTime: 1}, int64(i))
	}
	table.Unlock()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if _, found, _ := table.Price(keys[n%symbols], 2); !found {
			b.Fatal("no price")
		}
		n++
	}
}

// BenchmarkMillionSymbols reports the memory of a symbol, as the runtime sees
// it and as Bytes says.
func BenchmarkMillionSymbols(b *testing.B) {
	const symbols = 1_000_000
	for b.Loop() {
		before := heap()
		table := New(0, 0)
		key := make([]byte, 12)
		copy(key, "SYMB")
		tk := record.Tick{Symbol: key, Price: []byte("9150.25"), EventTime: 1}
		table.Lock()
		for i := range int64(symbols) {
			binary.BigEndian.PutUint64(key[4:], uint64(i))
			table.Apply(&tk, i)
		}
		table.Unlock()
		b.ReportMetric(float64(heap()-before)/symbols, "heap-B/symbol")
		b.ReportMetric(float64(table.Bytes())/symbols, "counted-B/symbol")
		runtime.KeepAlive(table)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func names(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = fmt.Appendf(nil, "SYM%05d", i)
	}
	return out
}
