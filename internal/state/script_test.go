package state

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"joiner/internal/record"
)

var update = flag.Bool("update", false, "rewrite the expected outcomes in testdata")

// TestScripts runs testdata/*.txt: blocks of commands, "----", the outcome,
// an empty line. Offsets count up by themselves.
//
//	history 5m          a new, empty table
//	tick BBCA 10:00 9150
//	tombstone BBCA 10:01
//	replay 0            apply everything from that offset on again
//	price BBCA 10:02
//	symbols
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{table: New(0, 0)}
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(string(content)), "\n\n") {
		commands, want, _ := strings.Cut(block+"\n", "----\n")
		got := s.run(t, commands)
		fmt.Fprintf(&out, "%s----\n%s\n", commands, got)
		if !*update && strings.TrimSpace(want) != strings.TrimSpace(got) {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", commands, got, want)
		}
	}
	if !*update {
		return
	}
	if err := os.WriteFile(file, []byte(strings.TrimSpace(out.String())+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

type script struct {
	table *Table
	log   []record.Tick
}

func (s *script) run(t *testing.T, commands string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(commands), "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		s.command(t, &out, f)
	}
	return out.String()
}

func (s *script) command(t *testing.T, out *strings.Builder, f []string) {
	t.Helper()
	switch f[0] {
	case "history":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			t.Fatal(err)
		}
		s.table, s.log = New(0, d), nil
	case "tick":
		s.append(out, record.Tick{Symbol: []byte(f[1]), EventTime: clock(t, f[2]), Price: []byte(f[3])})
	case "tombstone":
		s.append(out, record.Tick{Symbol: []byte(f[1]), EventTime: clock(t, f[2]), Tombstone: true})
	case "replay":
		var from int
		if _, err := fmt.Sscan(f[1], &from); err != nil {
			t.Fatal(err)
		}
		for i := from; i < len(s.log); i++ {
			fmt.Fprintf(out, "%d %v\n", i, s.apply(i))
		}
	case "price":
		s.price(out, f[1], clock(t, f[2]))
	case "symbols":
		fmt.Fprintf(out, "%d, next %d\n", s.table.Symbols(), s.table.Next())
	default:
		t.Fatalf("unknown command %q", f[0])
	}
}

func (s *script) append(out *strings.Builder, tick record.Tick) {
	s.log = append(s.log, tick)
	fmt.Fprintf(out, "%d %v\n", len(s.log)-1, s.apply(len(s.log)-1))
}

func (s *script) apply(i int) Applied {
	s.table.Lock()
	defer s.table.Unlock()
	return s.table.Apply(&s.log[i], int64(i))
}

func (s *script) price(out *strings.Builder, symbol string, at record.Millis) {
	p, found, asOf := s.table.Price([]byte(symbol), at)
	if !found {
		fmt.Fprintf(out, "none, as of %v\n", asOf)
		return
	}
	fmt.Fprintf(out, "%s of %s at %d, as of %v\n", p.Text, p.EventTime.Time().Format("15:04"), p.Offset, asOf)
}

func clock(t *testing.T, s string) record.Millis {
	t.Helper()
	at, err := time.Parse("2006-01-02 15:04", "2026-01-05 "+s)
	if err != nil {
		t.Fatal(err)
	}
	return record.MillisOf(at)
}
