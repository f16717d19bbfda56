package audit

import (
	"bytes"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Rows come back in the order of their keys, all of them, whether they fit into
// memory or went through files of more than one level.
func TestSorterSorts(t *testing.T) {
	for _, n := range []int{0, 1, minRows, minRows + 1, minRows*(fanIn+2) + 17, minRows * fanIn} {
		dir := t.TempDir()
		s := newSorter[drop](dir, 0) // a buffer of minRows
		r := rand.New(rand.NewPCG(1, uint64(n)))
		want := make([]drop, n)
		for i := range want {
			want[i] = drop{note: place{int32(r.IntN(7) - 3), r.Int64() - r.Int64()}, priced: r.IntN(2) == 0}
			if err := s.add(&want[i]); err != nil {
				t.Fatal(err)
			}
		}
		slices.SortFunc(want, func(a, b drop) int {
			x, y := coder{}, coder{}
			a.code(&x)
			b.code(&y)
			return bytes.Compare(x.buf, y.buf)
		})
		rows, err := s.sorted()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]drop, 0, n)
		for d := rows.peek(); d != nil; d = rows.peek() {
			got = append(got, *d)
			if err := rows.advance(); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d rows: %d came back, or in another order", n, len(got))
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%d rows: files are left in the directory: %v, %v", n, left, err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSorterWithoutRoom(t *testing.T) {
	s := newSorter[drop](t.TempDir()+"/none", 0)
	var err error
	for range minRows + 1 {
		err = s.add(&drop{})
	}
	if err == nil || !strings.Contains(err.Error(), "sorting") {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// Keys compare as bytes as their fields compare.
func TestRowsKeepOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		draw := func() question {
			return question{
				partition: rapid.Int32().Draw(r, "partition"), next: rapid.Int64().Draw(r, "next"),
				tick: rapid.Int64().Draw(r, "tick"), last: rapid.Bool().Draw(r, "last"),
				symbol: symbol{rapid.Uint64().Draw(r, "a"), rapid.Uint64().Draw(r, "b")}, price: rapid.Uint64().Draw(r, "price"),
			}
		}
		a, b := draw(), draw()
		if rapid.Bool().Draw(r, "same partition") {
			b.partition = a.partition
		}
		x, y := coder{}, coder{}
		a.code(&x)
		b.code(&y)
		less := a.partition < b.partition || a.partition == b.partition && a.next < b.next
		more := b.partition < a.partition || a.partition == b.partition && b.next < a.next
		if c := bytes.Compare(x.buf, y.buf); less && c >= 0 || more && c <= 0 {
			r.Fatalf("%+v and %+v compare as %d", a, b, c)
		}
		var back question
		back.code(&coder{buf: x.buf, read: true})
		if back != a {
			r.Fatalf("%+v came back as %+v", a, back)
		}
	})
}

// Two numbers have one form if and only if they are equal.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{"0", "-0", "0.0", "1", "1.0", "10e-1", "1e+2", "100", "-1.50", "-1.5", "0.001", "1e-3", "12e99999999999999999999", "120e99999999999999999998"} {
		f.Add(s, "100")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := number(a), number(b)
		if x == nil || y == nil {
			canonical(nil, []byte(a)) // must not panic, whatever it is
			return
		}
		same := bytes.Equal(canonical(nil, []byte(a)), canonical(nil, []byte(b)))
		if same != (x.Cmp(y) == 0) {
			t.Errorf("%s and %s: one form: %v", a, b, same)
		}
		if prefixed := canonical([]byte("x"), []byte(a)); !bytes.Equal(prefixed[1:], canonical(nil, []byte(a))) {
			t.Errorf("%s behind something else is %s", a, prefixed)
		}
	})
}

// number reads a JSON number of a small exponent; nil where it is none.
func number(s string) *big.Rat {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	if len(exponent) > 3 || len(s) > 40 || strings.ContainsAny(s, "_/xXpPbBoO") || strings.HasPrefix(mantissa, "+") {
		return nil
	}
	whole, fraction, dot := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	if whole == "" || dot && fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return nil
	}
	n, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil
	}
	return n
}

// What an alert carries is told apart from what is written around it.
func FuzzEmbedded(f *testing.F) {
	f.Add([]byte(`{"a":1}`), " ", "\n")
	f.Add([]byte(`{"notification":{"a":1}}`), "", "")
	f.Fuzz(func(t *testing.T, inner []byte, before, after string) {
		const space = " \t\r\n"
		if strings.Trim(before+after, space) != "" || len(bytes.Trim(inner, space)) != len(inner) || len(inner) == 0 {
			return
		}
		whole := before + string(inner) + after
		if got := embedded([]byte(opening+whole+`,"market":null}`), inner); string(got) != whole {
			t.Errorf("%q came out as %q", whole, got)
		}
		if got := embedded([]byte(`{ "notification":`+whole+`,"market":null}`), inner); !bytes.Equal(got, inner) {
			t.Errorf("%q, in an alert that joiner did not write, came out as %q", whole, got)
		}
	})
}

// Numbers that no float or int64 holds.
func TestCanonicalOfLargeExponents(t *testing.T) {
	for _, one := range []struct {
		a, b string
		same bool
	}{
		{"12e99999999999999999999", "120e99999999999999999998", true},
		{"12e99999999999999999999", "12e99999999999999999998", false},
		{"1e9223372036854775807", "10e9223372036854775806", true},
		{"-1e-9223372036854775808", "-0.1e-9223372036854775807", true},
		{"0e99999999999999999999", "-0.00", true},
	} {
		if same := bytes.Equal(canonical(nil, []byte(one.a)), canonical(nil, []byte(one.b))); same != one.same {
			t.Errorf("%s and %s: %v", one.a, one.b, same)
		}
	}
}
