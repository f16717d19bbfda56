package plan

import (
	"bytes"
	"encoding/csv"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseLoad(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []Weight
	}{
		"lines":              {"BBCA 3\nBRK.B\t0.5\n", []Weight{{"BBCA", 3}, {"BRK.B", 0.5}}},
		"no end of line":     {"BBCA 3", []Weight{{"BBCA", 3}}},
		"windows":            {"\ufeffBBCA 3\r\nTLKM 1\r\n", []Weight{{"BBCA", 3}, {"TLKM", 1}}},
		"left out":           {"# symbols\n\n  BBCA   1e3  \n", []Weight{{"BBCA", 1000}}},
		"commas":             {"BBCA,3\nTLKM, 1\n", []Weight{{"BBCA", 3}, {"TLKM", 1}}},
		"heading":            {"symbol,rate,venue\nBBCA,3,IDX\nTLKM,0,IDX\n", []Weight{{"BBCA", 3}, {"TLKM", 0}}},
		"heading after note": {"# from the exchange\nsymbol,rate\nBBCA,3\n", []Weight{{"BBCA", 3}}},
		"quoted":             {"\"A,B\",2\n\"say \"\"hi\"\"\",1\n", []Weight{{"A,B", 2}, {`say "hi"`, 1}}},
		"spaces in a symbol": {"BRK B,2\n", []Weight{{"BRK B", 2}}},
		"other alphabets":    {"日経225 4\n", []Weight{{"日経225", 4}}},
	} {
		got, err := ParseLoad([]byte(tc.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseLoadRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		line int
	}{
		"empty":               {"", 1},
		"notes only":          {"# nothing\n", 1},
		"no weight":           {"BBCA 1\nTLKM\n", 2},
		"three words":         {"BBCA 1 IDX\n", 1},
		"no number":           {"BBCA many\n", 1},
		"second heading":      {"symbol,rate\nsymbol,rate\nBBCA,1\n", 2},
		"no symbol":           {"BBCA,1\n,2\n", 2},
		"negative":            {"BBCA -1\n", 1},
		"not a number":        {"BBCA NaN\n", 1},
		"infinite":            {"BBCA inf\n", 1},
		"too large":           {"BBCA 1e999\n", 1},
		"too large together":  {"BBCA 1e308\nTLKM 1e308\n", 2},
		"nothing but zeros":   {"BBCA 0\nTLKM 0\n", 2},
		"twice":               {"BBCA 1\nTLKM 1\nBBCA 1\n", 3},
		"twice, one in a csv": {"BBCA 1\nBBCA,1\n", 2},
		"quote left open":     {"\"BBCA,1\n", 1},
		"one column":          {"\"BBCA\"\n", 1},
	} {
		_, err := ParseLoad([]byte(tc.text))
		var wrong *LineError
		if !errors.As(err, &wrong) || wrong.Line != tc.line || wrong.Reason == "" {
			t.Errorf("%s: %v, want line %d", name, err, tc.line)
		}
	}
}

func TestReadLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "symbols")
	if err := os.WriteFile(file, []byte("BBCA 3\nTLKM 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		spec    string
		symbols int
		want    int
		first   float64 // share of the heaviest
	}{
		{file, 9, 2, 0.75},
		{"uniform", 10, 10, 0.1},
		{"hot:0.3", 8, 8, 0.3},
		{"hot:0.3", 1, 1, 1},
		{"zipf:1", 3, 3, 6.0 / 11},
	} {
		l, err := ReadLoad(tc.spec, tc.symbols)
		if err != nil {
			t.Errorf("%s: %v", tc.spec, err)
			continue
		}
		sum := 0.0
		for _, w := range l.Symbols {
			sum += w.Weight
		}
		if share := l.Symbols[0].Weight / sum; len(l.Symbols) != tc.want || math.Abs(share-tc.first) > 1e-12 || l.Name == "" {
			t.Errorf("%s: %d symbols, the first with %v", tc.spec, len(l.Symbols), share)
		}
	}
	for _, spec := range []string{"zipf:0", "zipf", "hot:2", "hot:x", "uniform:1", "no/such/file", "", t.TempDir()} {
		if _, err := ReadLoad(spec, 10); err == nil {
			t.Errorf("%q: accepted", spec)
		}
	}
	if _, err := ReadLoad("uniform", 0); err == nil {
		t.Error("no symbols: accepted")
	}
}

func FuzzParseLoad(f *testing.F) {
	for _, text := range []string{"BBCA 3\nBRK.B\t0.5\n", "symbol,rate\nBBCA,3\n\"A,B\",1e-3\n", "# x\n\n", "\"", "A 1e999", "A,", "\ufeffA 1\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseLoad(text)
		if err != nil {
			var wrong *LineError
			if !errors.As(err, &wrong) || wrong.Line < 1 || wrong.Line > bytes.Count(text, []byte("\n"))+1 {
				t.Fatalf("%+v in %d bytes", err, len(text))
			}
			return
		}
		// What was read can be written down and read again.
		var b strings.Builder
		w := csv.NewWriter(&b)
		seen := make(map[string]bool)
		for _, one := range list {
			if one.Symbol == "" || seen[one.Symbol] || !(one.Weight >= 0) {
				t.Fatalf("%+v among %+v", one, list)
			}
			seen[one.Symbol] = true
			if strings.HasPrefix(one.Symbol, "#") || strings.ContainsAny(one.Symbol, "\r\n") {
				return // would need quotes that the csv package does not write
			}
			_ = w.Write([]string{one.Symbol, strconv.FormatFloat(one.Weight, 'g', -1, 64)})
		}
		w.Flush()
		again, err := ParseLoad([]byte(b.String()))
		if err != nil {
			t.Fatalf("cannot read %q again: %v", b.String(), err)
		}
		if diff := cmp.Diff(list, again); diff != "" {
			t.Fatalf("(-first +again):\n%s", diff)
		}
	})
}
