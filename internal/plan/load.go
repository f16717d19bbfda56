package plan

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"joiner/internal/load"
)

// Weight is how much of a load one symbol makes.
type Weight struct {
	Symbol string
	Weight float64 // a share or a rate, in any unit; 0 or more
}

// Load is how records spread over symbols; ticks and notifications spread
// alike. The zero value spreads them evenly over the partitions, whatever
// symbols there are.
type Load struct {
	// Name says what it is, for humans.
	Name    string
	Symbols []Weight
}

// Bounds of a load file.
const (
	maxLoadBytes = 256 << 20
	maxSymbols   = 2_000_000
)

// ReadLoad reads what --load says: zipf:S or hot:SHARE (or uniform), as `joiner
// load` understands them, over that many symbols of the names that it uses; or
// the name of a file, see ParseLoad.
func ReadLoad(spec string, symbols int) (Load, error) {
	kind, _, _ := strings.Cut(spec, ":")
	switch kind {
	case "uniform", "zipf", "hot":
		skew, err := load.ParseSkew(spec)
		if err != nil {
			return Load{}, err
		}
		if symbols < 1 || symbols > maxSymbols {
			return Load{}, fmt.Errorf("%d symbols: use 1 to %d", symbols, maxSymbols)
		}
		return generated(skew, symbols), nil
	}
	file, err := os.Open(spec)
	if errors.Is(err, os.ErrNotExist) {
		return Load{}, fmt.Errorf("%q is no file, nor zipf:S, hot:SHARE or uniform", spec)
	}
	if err != nil {
		return Load{}, err
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, maxLoadBytes+1))
	if err != nil {
		return Load{}, err
	}
	if len(text) > maxLoadBytes {
		return Load{}, fmt.Errorf("%s is larger than %d bytes", spec, maxLoadBytes)
	}
	list, err := ParseLoad(text)
	if err != nil {
		return Load{}, fmt.Errorf("%s:%w", spec, err)
	}
	return Load{Name: fmt.Sprintf("%d symbols of %s", len(list), spec), Symbols: list}, nil
}

func generated(skew load.Skew, symbols int) Load {
	l := Load{Name: fmt.Sprintf("%d symbols, %s", symbols, skew)}
	for i, w := range skew.Weights(symbols) {
		l.Symbols = append(l.Symbols, Weight{string(load.SymbolName(i, symbols)), w})
	}
	return l
}

// LineError says which line of a load file is wrong, and why.
type LineError struct {
	Line   int // from 1
	Reason string
}

func (e *LineError) Error() string { return fmt.Sprintf("%d: %s", e.Line, e.Reason) }

// ParseLoad reads a list of symbols and weights, one a line: `symbol weight`
// with white space between, or comma-separated (RFC 4180: a symbol that holds a
// comma or a quote is quoted), where what follows the weight is ignored and the
// first line may be a heading. Empty lines and those that begin with # are left
// out.
//
// A symbol without a weight or with one that is negative or not a finite
// number, a symbol that is empty or listed twice, and a list without any weight
// above 0 are errors; all are a *LineError.
func ParseLoad(text []byte) ([]Weight, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	var (
		list   []Weight
		first  = make(map[string]int)
		sum    float64
		number int
		data   int // lines that were not left out
	)
	for line := range bytes.Lines(text) {
		number++
		content := string(bytes.TrimSpace(line))
		if content == "" || content[0] == '#' {
			continue
		}
		data++
		w, heading, problem := parseWeight(content)
		if heading && data == 1 {
			continue
		}
		if problem != "" {
			return nil, &LineError{number, problem}
		}
		if before, twice := first[w.Symbol]; twice {
			return nil, &LineError{number, fmt.Sprintf("symbol %q is already in line %d", w.Symbol, before)}
		}
		if len(list) == maxSymbols {
			return nil, &LineError{number, fmt.Sprintf("more than %d symbols", maxSymbols)}
		}
		first[w.Symbol] = number
		list = append(list, w)
		sum += w.Weight
	}
	if !(sum > 0) || math.IsInf(sum, 0) {
		return nil, &LineError{max(number, 1), fmt.Sprintf("the weights add up to %v: something above 0 is needed", sum)}
	}
	return list, nil
}

// parseWeight reads one line. It may be a heading where its weight is no number
// at all and it is comma-separated.
func parseWeight(line string) (w Weight, heading bool, problem string) {
	fields := strings.Fields(line)
	separated := strings.ContainsAny(line, ",\"")
	if separated {
		r := csv.NewReader(strings.NewReader(line))
		r.FieldsPerRecord, r.TrimLeadingSpace = -1, true
		record, err := r.Read()
		if err != nil {
			return w, false, fmt.Sprintf("is not comma-separated: %v", errors.Unwrap(err))
		}
		fields = record[:min(len(record), 2)]
	}
	if len(fields) != 2 {
		return w, false, "write a symbol and its weight"
	}
	if w.Symbol = strings.TrimSpace(fields[0]); w.Symbol == "" {
		return w, false, "the symbol is empty"
	}
	var err error
	w.Weight, err = strconv.ParseFloat(strings.TrimSpace(fields[1]), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return w, separated, fmt.Sprintf("%q is no weight: write a number", fields[1])
	}
	if w.Weight < 0 || math.IsNaN(w.Weight) || math.IsInf(w.Weight, 0) {
		return w, false, fmt.Sprintf("weight %s: write a finite number of 0 or more", fields[1])
	}
	return w, false, ""
}
