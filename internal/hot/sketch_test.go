package hot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// failer is what *testing.T and *rapid.T share.
type failer interface {
	Helper()
	Fatalf(string, ...any)
}

// bounds checks what a sketch promises against the exact counts.
func bounds(t failer, keys []Key, exact map[string]uint64, total uint64, capacity int) {
	t.Helper()
	var n uint64
	for _, c := range exact {
		n += c
	}
	if total != n {
		t.Fatalf("the total is %d, %d were added", total, n)
	}
	held := make(map[string]bool)
	for i, k := range keys {
		held[k.Name] = true
		if k.Count < exact[k.Name] {
			t.Fatalf("%q counts %d, it occurred %d times", k.Name, k.Count, exact[k.Name])
		}
		if k.Sure() > exact[k.Name] {
			t.Fatalf("%q surely counts %d, it occurred %d times", k.Name, k.Sure(), exact[k.Name])
		}
		if k.Error*uint64(capacity) > n {
			t.Fatalf("%q may be %d too high, more than %d/%d", k.Name, k.Error, n, capacity)
		}
		if i > 0 && keys[i-1].Count < k.Count {
			t.Fatalf("%v is not in the order of the counts", keys)
		}
	}
	if len(held) != len(keys) {
		t.Fatalf("a key is listed twice: %v", keys)
	}
	for name, c := range exact {
		if c*uint64(capacity) > n && !held[name] {
			t.Fatalf("%q occurred %d times of %d and is not among %d", name, c, n, capacity)
		}
	}
}

func TestSketchKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 12).Draw(t, "capacity")
		adds := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Key {
			return Key{
				Name:  rapid.StringOfN(rapid.RuneFrom([]rune("abcde")), 0, 2, -1).Draw(t, "key"),
				Count: rapid.Uint64Range(1, 70).Draw(t, "n"),
			}
		})).Draw(t, "adds")
		s, exact := New(capacity), make(map[string]uint64)
		for _, a := range adds {
			s.AddN([]byte(a.Name), a.Count)
			exact[a.Name] += a.Count
		}
		all := s.Top(capacity + 1)
		bounds(t, all, exact, s.Total(), capacity)
		if want := min(capacity, len(exact)); len(all) != want {
			t.Fatalf("%d keys with room for %d of %d", len(all), capacity, len(exact))
		}
		if len(exact) <= capacity {
			for _, k := range all {
				if k.Count != exact[k.Name] || k.Error != 0 {
					t.Fatalf("with room for all %q counts %d ± %d, it occurred %d times", k.Name, k.Count, k.Error, exact[k.Name])
				}
			}
		}
	})
}

// A model of the two windows: what was added before the last rotation but one
// is forgotten.
func TestRecentKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 8).Draw(t, "capacity")
		r := NewRecent(capacity)
		now, before := make(map[string]uint64), make(map[string]uint64)
		for _, op := range rapid.SliceOf(rapid.IntRange(-1, 20)).Draw(t, "ops") {
			if op < 0 {
				r.Rotate()
				now, before = make(map[string]uint64), now
				continue
			}
			key := fmt.Sprint(op % 13)
			r.AddN([]byte(key), uint64(op/13+1))
			now[key] += uint64(op/13 + 1)
		}
		both := make(map[string]uint64)
		var window uint64
		for k, n := range now {
			both[k] += n
			window += n
		}
		for k, n := range before {
			both[k] += n
		}
		bounds(t, r.Top(2*capacity), both, r.Total(), capacity)
		if r.Window() != window {
			t.Fatalf("the window holds %d, %d were added", r.Window(), window)
		}
	})
}

func FuzzSketch(f *testing.F) {
	f.Add([]byte("abcabcaab"), uint8(2))
	f.Add([]byte{0, 0, 0, 255, 1, 2, 3}, uint8(0))
	f.Fuzz(func(t *testing.T, stream []byte, room uint8) {
		capacity := max(int(room%16), 1)
		s, exact := New(int(room%16)), make(map[string]uint64)
		for i, b := range stream {
			key := stream[i : i+min(int(b%3), len(stream)-i)]
			s.Add(key)
			exact[string(key)]++
		}
		bounds(t, s.Top(16), exact, s.Total(), capacity)
	})
}

// The key is the caller's buffer, which is used again.
func TestSketchKeepsNoKey(t *testing.T) {
	s, key := New(1), []byte("a")
	s.Add(key)
	key[0] = 'b'
	if top := s.Top(1); top[0].Name != "a" {
		t.Errorf("the key became %q", top[0].Name)
	}
}

func TestTop(t *testing.T) {
	s := New(3)
	for _, key := range []string{"a", "b", "b", "c", "c", "c", "d"} {
		s.Add([]byte(key))
	}
	// d took a's place.
	all := []Key{{"c", 3, 0}, {"b", 2, 0}, {"d", 2, 1}}
	for _, n := range []int{-1, 0, 1, 2, 3, 4} {
		want := all[:min(max(n, 0), 3)]
		if got := s.Top(n); !slices.Equal(got, want) {
			t.Errorf("top %d: %v, want %v", n, got, want)
		}
	}
}

func TestRecentForgets(t *testing.T) {
	r := NewRecent(2)
	r.AddN([]byte("old"), 5)
	r.Rotate()
	r.AddN([]byte("new"), 3)
	if got, want := r.Top(9), []Key{{"old", 5, 0}, {"new", 3, 0}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	r.Rotate()
	if got, want := r.Top(9), []Key{{"new", 3, 0}}; !slices.Equal(got, want) || r.Total() != 3 {
		t.Errorf("%v of %d, want %v", got, r.Total(), want)
	}
}

func TestKnownKeysDoNotAllocate(t *testing.T) {
	s, key := New(8), []byte("BBCA")
	s.Add(key)
	if n := testing.AllocsPerRun(100, func() { s.Add(key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkAdd adds keys of three streams: all known, a few that dominate, and
// the worst case, in which nearly every key takes another's place.
func BenchmarkAdd(b *testing.B) {
	for _, bench := range []struct {
		name string
		keys [][]byte
	}{
		{"known", stream(100, 0)},
		{"zipf", stream(10_000, 1.1)},
		{"uniform", stream(10_000, 0)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			s, i := New(128), 0
			for b.Loop() {
				s.Add(bench.keys[i&(len(bench.keys)-1)])
				i++
			}
		})
	}
}

// stream is a power of two of keys, uniform or by Zipf's law.
func stream(distinct int, skew float64) [][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	next := func() uint64 { return rnd.Uint64N(uint64(distinct)) }
	if skew > 0 {
		next = rand.NewZipf(rnd, skew, 1, uint64(distinct-1)).Uint64
	}
	keys := make([][]byte, 1<<14)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "SYM%05d.X", next())
	}
	return keys
}
