package load

import (
	"math/rand/v2"
	"strconv"
)

// event is one generated record. Its value belongs to the receiver.
type event struct {
	notification bool
	symbol       *symbol
	value        []byte
}

// symbol is one instrument on its random walk.
type symbol struct {
	name     []byte
	price    int64 // in units of 10^-decimals, at least 1
	step     int64 // the smallest change, in the same unit
	decimals int
}

// generator writes the same sequence of records for the same options: it knows
// no clock, and nothing that happens to a record changes the next one.
type generator struct {
	rng        *rand.Rand
	picker     *picker
	symbols    []symbol
	ticks      int // a notification
	valueBytes int

	left   int     // ticks until the next notification
	last   *symbol // of the last tick
	filler []byte
}

// A fixed second half of the seed, so that one number is enough for users.
const seedSalt = 0x6a6f696e6572 // "joiner"

func newGenerator(opts Options) *generator {
	g := &generator{
		rng:        rand.New(rand.NewPCG(opts.Seed, seedSalt)),
		picker:     newPicker(opts.Skew, opts.Symbols),
		ticks:      opts.TicksPerNotification,
		valueBytes: opts.ValueBytes,
		left:       opts.TicksPerNotification,
	}
	g.symbols = make([]symbol, opts.Symbols)
	for i := range g.symbols {
		g.symbols[i] = g.newSymbol(i, opts.Symbols)
	}
	g.filler = make([]byte, max(2*opts.ValueBytes, 1))
	for i := range g.filler {
		g.filler[i] = alphabet[g.rng.IntN(len(alphabet))]
	}
	return g
}

const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"

func (g *generator) newSymbol(i, n int) symbol {
	s := symbol{name: SymbolName(i, n), step: 1}
	switch g.rng.IntN(4) {
	case 0: // rupiah-like: whole, in steps of 5
		s.price, s.step = 50+5*g.rng.Int64N(4000), 5
	case 1: // currency-like
		s.price, s.decimals = 1_000+g.rng.Int64N(200_000), 4
	default:
		s.price, s.decimals = 100+g.rng.Int64N(100_000), 2
	}
	return s
}

// SymbolName turns the number i, of n symbols, into a ticker of at least four
// letters. Numbers side by side give names far apart, as in a real list of
// symbols; different numbers give different names since the factor shares no
// divisor with 26.
func SymbolName(i, n int) []byte {
	const factor, letters = 7919, 26
	size, span := 4, int64(letters*letters*letters*letters)
	for span < int64(n) {
		size, span = size+1, span*letters
	}
	x := int64(i) * factor % span
	name := make([]byte, size)
	for j := size - 1; j >= 0; j-- {
		name[j] = byte('A' + x%letters)
		x /= letters
	}
	return name
}

// next returns the next record: ticks, then the notification they gave rise to.
func (g *generator) next() event {
	if g.left > 0 {
		g.left--
		s := &g.symbols[g.picker.pick(g.rng)]
		g.last = s
		g.walk(s)
		return event{symbol: s, value: g.tick(s)}
	}
	g.left = g.ticks
	s := g.last
	if s == nil { // no ticks at all were asked for
		s = &g.symbols[g.picker.pick(g.rng)]
	}
	return event{notification: true, symbol: s, value: g.notification(s)}
}

// walk moves the price by up to three steps and never below one.
func (g *generator) walk(s *symbol) {
	s.price = max(s.step, s.price+s.step*(g.rng.Int64N(7)-3))
}

func (g *generator) tick(s *symbol) []byte {
	b := make([]byte, 0, max(g.valueBytes, 64))
	b = append(b, `{"price":`...)
	b = s.appendPrice(b)
	b = append(b, `,"size":`...)
	b = strconv.AppendInt(b, 1+g.rng.Int64N(500), 10)
	return g.pad(b)
}

func (g *generator) notification(s *symbol) []byte {
	b := make([]byte, 0, max(g.valueBytes, 96))
	b = append(b, `{"user":"u`...)
	b = strconv.AppendInt(b, g.rng.Int64N(100_000), 10)
	b = append(b, `","symbol":"`...)
	b = append(b, s.name...) // letters only: nothing to escape
	b = append(b, `","condition":"`...)
	if g.rng.IntN(2) == 0 {
		b = append(b, "above"...)
	} else {
		b = append(b, "below"...)
	}
	b = append(b, `","threshold":`...)
	b = s.appendPrice(b)
	return g.pad(b)
}

// appendPrice writes the price as a JSON number with all its decimals.
func (s *symbol) appendPrice(b []byte) []byte {
	unit := int64(1)
	for range s.decimals {
		unit *= 10
	}
	b = strconv.AppendInt(b, s.price/unit, 10)
	if s.decimals == 0 {
		return b
	}
	// The fraction with its leading zeros: a 1 in front, then overwritten.
	at := len(b)
	b = strconv.AppendInt(b, unit+s.price%unit, 10)
	b[at] = '.'
	return b
}

// pad closes the object, filled up to the size asked for where it is shorter.
func (g *generator) pad(b []byte) []byte {
	const open, shut = `,"pad":"`, `"}`
	missing := g.valueBytes - len(b) - len(open) - len(shut)
	if missing < 0 {
		return append(b, '}')
	}
	b = append(b, open...)
	from := g.rng.IntN(len(g.filler) - missing)
	b = append(b, g.filler[from:from+missing]...)
	return append(b, shut...)
}
