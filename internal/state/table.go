// Package state keeps the prices of one partition of market-updates: for each
// symbol the newest version, the tombstones among them, and with join.history
// the versions behind it.
//
// What a table holds depends only on the set of ticks it was given, not on
// their order, and giving one twice changes nothing; so a restore may replay
// what the table has already seen.
//
// It must never know notifications, talk to Kafka or read a clock.
package state

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"joiner/internal/record"
)

// Applied says what a tick did to the table.
type Applied uint8

// What Apply answers.
const (
	// Accepted is a price that is now the symbol's newest.
	Accepted Applied = iota
	// Late is a price or tombstone older than what the table holds for its
	// symbol. With a history it may still have become one of the versions.
	Late
	// Tombstone is a tombstone that is now the symbol's newest version.
	Tombstone
)

func (a Applied) String() string {
	switch a {
	case Accepted:
		return "accepted"
	case Late:
		return "late"
	default:
		return "tombstone"
	}
}

// View is a price inside the table. Text is valid until the next Apply.
type View struct {
	Text      []byte // a JSON number
	EventTime record.Millis
	Offset    int64
}

// Answer is what a reader gets: a price and how far the table had read when
// it was the answer, which is what makes a join provable.
type Answer struct {
	Price record.Price // zero unless Found
	Found bool
	AsOf  bool  // as in Price
	Next  int64 // as in Next, at the moment of the answer
}

// Table is the price table of one partition. It has one writer, which holds
// Lock around any number of calls of Apply and Advance, and any number of
// readers. The zero value is not usable: use New.
type Table struct {
	mu        sync.RWMutex
	partition int32
	history   record.Millis
	entries   map[string]*entry
	slab      []entry   // entries are carved from it: fewer objects for the collector
	changes   *changes  // nil: nobody saves the table
	loading   []version // Load's own

	next    atomic.Int64
	symbols atomic.Int64
	bytes   atomic.Int64
}

// entry is what is known of one symbol. It is never removed: a tombstone has
// to outlive older ticks that are still to come.
type entry struct {
	newest version
	past   *past // nil until there is one
}

// version is a price, or a tombstone, from its time on.
type version struct {
	time      record.Millis
	offset    int64
	text      []byte // its buffer is reused, also after a tombstone
	tombstone bool
	// number is the entry's in changes. It has a meaning in an entry's newest
	// version only, where it lies in what is padding otherwise.
	number uint32
}

const (
	// minText is the capacity a price buffer starts with: room for a number
	// with every digit of a float64, so that a longer price of a known symbol
	// need not allocate.
	minText = 24
	// wasteText is from where on a buffer that is mostly unused is given
	// back: prices are as long as their record allows, and one absurd number
	// must not hold its size for ever.
	wasteText = 512

	minSlab, maxSlab = 16, 1024

	// mapSlot is about what the map takes for one symbol: a key, a pointer, a
	// control byte, and the free slots beside it.
	mapSlot      = 48
	symbolBytes  = int64(unsafe.Sizeof(entry{})) + mapSlot
	versionBytes = int64(unsafe.Sizeof(version{}))
)

// New returns an empty table of the given market partition. history is how
// far behind a symbol's newest event time its versions are kept, rounded down
// to milliseconds; zero or less keeps the newest alone.
func New(partition int32, history time.Duration) *Table {
	return &Table{
		partition: partition,
		history:   record.Millis(max(0, history.Milliseconds())),
		entries:   make(map[string]*entry),
	}
}

// Lock keeps readers out while the writer applies a batch.
func (t *Table) Lock() { t.mu.Lock() }

// Unlock lets readers in again.
func (t *Table) Unlock() { t.mu.Unlock() }

// Partition returns the number of the market partition.
func (t *Table) Partition() int32 { return t.partition }

// Symbols counts the symbols that have a price. Those whose newest version is
// a tombstone are remembered but not counted. Any goroutine may ask.
func (t *Table) Symbols() int { return int(t.symbols.Load()) }

// Bytes is about how much memory the table takes. Any goroutine may ask.
func (t *Table) Bytes() int64 { return t.bytes.Load() }

// Next is one above the offset of the last record, good or bad, that was
// merged or restored; 0 where there was none. Any goroutine may ask, but only
// Ask gives a reader a price together with the Next that belongs to it.
func (t *Table) Next() int64 { return t.next.Load() }

// Advance notes that the record at offset was dealt with without changing the
// table, since it was bad. It never goes back. Lock must be held.
func (t *Table) Advance(offset int64) {
	if offset >= t.next.Load() {
		t.next.Store(offset + 1)
	}
}

// Apply merges the tick read at offset. The newest event time wins, at equal
// times the higher offset. It copies what it keeps; Lock must be held.
//
// A tick of a known symbol does not allocate unless its price is longer than
// any before it, or a history has to grow.
func (t *Table) Apply(tick *record.Tick, offset int64) Applied {
	t.Advance(offset)
	e := t.entries[string(tick.Symbol)]
	if e == nil {
		return t.add(tick, offset)
	}
	if older(tick.EventTime, offset, &e.newest) {
		if t.applyLate(e, tick, offset) {
			t.changes.mark(e)
		}
		return Late
	}
	t.applyNewest(e, tick, offset)
	t.changes.mark(e)
	return applied(tick)
}

// older reports whether a tick loses against v. The tick that v was made of
// does not: replayed, it is judged as it was the first time.
func older(at record.Millis, offset int64, v *version) bool {
	if at != v.time {
		return at < v.time
	}
	return offset < v.offset
}

func applied(tick *record.Tick) Applied {
	if tick.Tombstone {
		return Tombstone
	}
	return Accepted
}

func (t *Table) add(tick *record.Tick, offset int64) Applied {
	e := t.enter(string(tick.Symbol))
	t.set(&e.newest, tick, offset)
	if !tick.Tombstone {
		t.symbols.Add(1)
	}
	t.changes.mark(e)
	return applied(tick)
}

// enter makes room for a symbol that the table has not seen.
func (t *Table) enter(symbol string) *entry {
	e := t.carve()
	t.entries[symbol] = e
	t.bytes.Add(symbolBytes + int64(len(symbol)))
	if t.changes != nil {
		t.bytes.Add(t.changes.enter(symbol, e))
	}
	return e
}

// carve returns a new entry out of the current slab.
func (t *Table) carve() *entry {
	if len(t.slab) == cap(t.slab) {
		t.slab = make([]entry, 0, min(maxSlab, max(minSlab, 2*cap(t.slab))))
	}
	t.slab = t.slab[:len(t.slab)+1]
	return &t.slab[len(t.slab)-1]
}

func (t *Table) applyNewest(e *entry, tick *record.Tick, offset int64) {
	if tick.Tombstone != e.newest.tombstone {
		t.symbols.Add(change(tick.Tombstone))
	}
	// At equal times only the higher offset is ever in force: it takes the
	// place of the other.
	if t.history > 0 && tick.EventTime > e.newest.time {
		t.push(e)
	}
	t.set(&e.newest, tick, offset)
	t.trim(e)
}

func change(tombstone bool) int64 {
	if tombstone {
		return -1
	}
	return 1
}

// set makes v the version of the tick, in the buffer that v has.
func (t *Table) set(v *version, tick *record.Tick, offset int64) {
	v.time, v.offset, v.tombstone = tick.EventTime, offset, tick.Tombstone
	before := cap(v.text)
	v.text = fill(v.text, tick.Price)
	if after := cap(v.text); after != before {
		t.bytes.Add(int64(after - before))
	}
}

// fill copies text into buf, or into a new buffer where buf is too small or
// wastefully large.
func fill(buf, text []byte) []byte {
	if cap(buf) >= len(text) && (cap(buf) <= wasteText || cap(buf) <= 4*len(text)) {
		return append(buf[:0], text...)
	}
	if len(text) == 0 {
		return nil
	}
	return append(make([]byte, 0, max(minText, len(text))), text...)
}

// spanStart is where the history behind the symbol's newest version begins.
func (t *Table) spanStart(e *entry) record.Millis {
	if e.newest.time < math.MinInt64+t.history {
		return math.MinInt64
	}
	return e.newest.time - t.history
}

// inForce returns the version that answers for the time at, and whether it is
// the one in force then among all that the table has seen: the last one not
// after at, else the oldest kept, which with no history is the newest.
func (e *entry) inForce(at record.Millis) (v *version, asOf bool) {
	if e.newest.time <= at || e.past == nil {
		return &e.newest, e.newest.time <= at
	}
	kept := e.past.kept()
	if len(kept) == 0 {
		return &e.newest, false
	}
	i := after(kept, at)
	if i == 0 {
		return &kept[0], false
	}
	return &kept[i-1], true
}

// Price returns the symbol's price for an event time of at: the version in
// force then, else the oldest kept, which with no history is the newest
// whatever at. A tombstone in its place means no price (found is false).
//
// asOf reports whether the version that decided the answer, be it a price or
// a tombstone, is the one in force at at among all that the table has seen;
// it is false for a symbol that was never seen.
//
// Price is for the writer, which needs no lock for it. It does not allocate,
// and its answer is valid until the next Apply.
func (t *Table) Price(symbol []byte, at record.Millis) (p View, found, asOf bool) {
	e := t.entries[string(symbol)]
	if e == nil {
		return View{}, false, false
	}
	v, asOf := e.inForce(at)
	if v.tombstone {
		return View{}, false, asOf
	}
	return View{Text: v.text, EventTime: v.time, Offset: v.offset}, true, asOf
}

// Holds reports whether the table has ever seen the symbol, be its newest
// version a price or a tombstone. It is for the writer, as Price is.
func (t *Table) Holds(symbol []byte) bool { return t.entries[string(symbol)] != nil }

// Ask is Price for any goroutine: it takes the read lock, and what it returns
// is the caller's. The writer must not call it while it holds Lock.
func (t *Table) Ask(symbol []byte, at record.Millis) Answer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p, found, asOf := t.Price(symbol, at)
	a := Answer{Found: found, AsOf: asOf, Next: t.next.Load()}
	if found {
		a.Price = record.Price{
			Text:      string(p.Text),
			EventTime: p.EventTime,
			Partition: t.partition,
			Offset:    p.Offset,
		}
	}
	return a
}

// Lookup is Ask without the position.
func (t *Table) Lookup(symbol []byte, at record.Millis) (p record.Price, found, asOf bool) {
	a := t.Ask(symbol, at)
	return a.Price, a.Found, a.AsOf
}
