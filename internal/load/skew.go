package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Skew is how records spread over symbols. The zero value is uniform.
type Skew struct {
	kind  skewKind
	value float64 // zipf: the exponent; hot: the share
}

type skewKind uint8

const (
	uniform skewKind = iota
	zipf
	hot
)

// ParseSkew reads "uniform", "zipf:S" (the symbol of rank k is drawn in
// proportion to 1/k^S; S above 0, at most 10) or "hot:SHARE" (the first symbol
// gets this share of everything, from 0 to 1, the others the rest in equal
// parts).
func ParseSkew(s string) (Skew, error) {
	kind, arg, _ := strings.Cut(s, ":")
	switch kind {
	case "uniform":
		if arg == "" {
			return Skew{}, nil
		}
	case "zipf":
		if v, err := strconv.ParseFloat(arg, 64); err == nil && v > 0 && v <= maxZipf {
			return Skew{kind: zipf, value: v}, nil
		}
	case "hot":
		if v, err := strconv.ParseFloat(arg, 64); err == nil && v >= 0 && v <= 1 {
			return Skew{kind: hot, value: v}, nil
		}
	}
	return Skew{}, fmt.Errorf("%q is no skew: use uniform, zipf:S with 0 < S <= %d or hot:SHARE with 0 <= SHARE <= 1", s, maxZipf)
}

// maxZipf bounds the exponent: beyond it nothing but the first symbol is drawn.
const maxZipf = 10

// String returns what ParseSkew reads.
func (s Skew) String() string {
	v := strconv.FormatFloat(s.value, 'g', -1, 64)
	switch s.kind {
	case zipf:
		return "zipf:" + v
	case hot:
		return "hot:" + v
	default:
		return "uniform"
	}
}

// picker draws symbols by their number.
type picker struct {
	symbols int
	skew    Skew
	upTo    []float64 // zipf: the cumulative weights; rand.Zipf knows only S > 1
}

func newPicker(skew Skew, symbols int) *picker {
	p := &picker{symbols: symbols, skew: skew}
	if skew.kind != zipf {
		return p
	}
	p.upTo = make([]float64, symbols)
	sum := 0.0
	for i := range p.upTo {
		sum += math.Pow(float64(i+1), -skew.value)
		p.upTo[i] = sum
	}
	return p
}

// pick returns a symbol's number, below symbols.
func (p *picker) pick(rng *rand.Rand) int {
	switch p.skew.kind {
	case zipf:
		x := rng.Float64() * p.upTo[p.symbols-1]
		i, _ := slices.BinarySearch(p.upTo, x)
		return min(i, p.symbols-1)
	case hot:
		if p.symbols == 1 || rng.Float64() < p.skew.value {
			return 0
		}
		return 1 + rng.IntN(p.symbols-1)
	default:
		return rng.IntN(p.symbols)
	}
}

// Weights returns how often each of n symbols is drawn, as shares of all
// draws; they add up to 1. Symbol i is the one that SymbolName names.
func (s Skew) Weights(n int) []float64 {
	weights := make([]float64, n)
	sum := 0.0
	for i := range weights {
		weights[i] = s.weight(i, n)
		sum += weights[i]
	}
	for i := range weights {
		weights[i] /= sum
	}
	return weights
}

func (s Skew) weight(i, n int) float64 {
	switch {
	case s.kind == zipf:
		return math.Pow(float64(i+1), -s.value)
	case s.kind == hot && n > 1 && i == 0:
		return s.value
	case s.kind == hot && n > 1:
		return (1 - s.value) / float64(n-1)
	default:
		return 1
	}
}
