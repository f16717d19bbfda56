package demo

import (
	"fmt"
	"time"
)

// instrument is a symbol of the demo with its prices, oldest first, as the
// market writes them: decimal text that has to come out as it went in.
type instrument struct {
	symbol string
	prices []string
}

// instruments returns ten symbols, which murmur2 spreads over all six
// partitions, awkward names among them: bytes, not text, are what is compared.
func instruments() []instrument {
	return []instrument{
		{"BBCA", []string{"9125", "9150", "9150.25"}},
		{"TLKM", []string{"2810", "2800", "2790"}},
		{"ASII", []string{"4510", "4525.50", "4530"}},
		{"GOTO", []string{"66", "67", "68"}},
		{"BRK.B", []string{"472.115", "472.20", "471.98"}},
		{"M&M.NS", []string{"2711.05", "2712.00", "2709.95"}},
		{"日経225", []string{"39568.06", "39701.99", "39680.10"}},
		{"AAPL", []string{"229.87", "229.90", "230.05"}},
		{"BTC-USD", []string{"64250.123456789012345678", "64251.5", "64249.000000000000000001"}},
		{"7203.T", []string{"2641.5", "2644", "2639.5"}},
	}
}

// message is one record to produce.
type message struct {
	key, value string
	at         time.Time
}

// data is what every strategy gets.
type data struct {
	ticks, notes []message
	last         map[string]string // symbol -> the price each of its notifications must get
}

const notesPerSymbol = 3

// newData writes ticks from a moment on, one a second, and notifications after
// the last of them, so that there is one right price for each.
func newData(from time.Time) data {
	d := data{last: map[string]string{}}
	from = from.Truncate(time.Second)
	for _, in := range instruments() {
		for i, price := range in.prices {
			at := from.Add(time.Duration(i) * time.Second)
			d.ticks = append(d.ticks, message{in.symbol, fmt.Sprintf(`{"price":%s}`, price), at})
			d.last[in.symbol] = price
		}
	}
	for n := range notesPerSymbol {
		at := from.Add(time.Duration(10+n) * time.Second)
		for i, in := range instruments() {
			value := fmt.Sprintf(`{"user":"u%d","condition":"above","threshold":%s}`, 100*n+i, in.prices[0])
			d.notes = append(d.notes, message{in.symbol, value, at})
		}
	}
	return d
}
