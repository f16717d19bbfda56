package enrich

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var mutations = flag.Int("enrich.mutations", 200_000, "how many mutated values the scanner is compared with encoding/json on")

// testPaths are what the comparisons pick: a member, a nested one, and one
// whose name needs escapes.
var testPaths = [maxPicks][]string{{"price"}, {"quote", "last"}, {"a\n\"é"}}

func rootOf(t testing.TB, paths ...[]string) *node {
	t.Helper()
	root := newRoot()
	for i, p := range paths {
		if slot := root.add(p, i); slot != i {
			t.Fatalf("path %q shares slot %d", p, slot)
		}
	}
	return root
}

// pickByTheBook does what scanObject does, with encoding/json and no thought
// of speed.
func pickByTheBook(b []byte, paths [][]string) (picked [][]byte, ok bool) {
	if !json.Valid(b) || b[skipSpaces(b, 0)] != '{' {
		return nil, false
	}
	for _, path := range paths {
		raw := json.RawMessage(b)
		for _, name := range path {
			var members map[string]json.RawMessage
			if raw != nil && raw[0] != 'n' && json.Unmarshal(raw, &members) == nil {
				raw = members[name]
			} else {
				raw = nil
			}
		}
		picked = append(picked, raw)
	}
	return picked, true
}

// sameAsTheBook compares the scanner with encoding/json on b.
func sameAsTheBook(t testing.TB, b []byte, root *node) {
	t.Helper()
	var p picks
	end := scanObject(b, root, &p)
	want, ok := pickByTheBook(b, testPaths[:])
	if ok != (end == len(b)) {
		t.Fatalf("%q: a valid object: %v, scanner answers %d", b, ok, end)
	}
	if !ok {
		if at := ^end; end >= 0 || at > len(b) {
			t.Fatalf("%q: position of the fault %d", b, at)
		}
		return
	}
	for i := range want {
		if got := p.raw(b, i); !bytes.Equal(got, want[i]) {
			t.Fatalf("%q: path %q picks %q, want %q", b, testPaths[i], got, want[i])
		}
	}
}

// objects are the seeds: whatever the grammar has, and what it nearly has.
var objects = []string{
	`{}`, ` { } `, "\t{\n}\r ", `{"price":1}`, `{"price" : 9150.25 , "x":[1,2,{"price":3}]}`,
	`{"price":1,"price":2}`, `{"quote":{"last":1},"quote":{"bid":2}}`, `{"quote":{"last":1},"quote":3}`,
	`{"quote":{"last":1,"last":"2"}}`, `{"quote":[{"last":1}]}`, `{"quote":null}`, `{"price":null}`,
	`{"pr\u0069ce":5}`, `{"pric\u0065":5,"price":6}`, `{"price":6,"\u0070rice":5}`, `{"a\n\"é":true}`, `{"a\u000a\u0022\u00e9":false}`, "{\"a\\n\\\"\u00e9\":7}",
	`{"\u0070\u0072\u0069\u0063\u0065":5}`, `{"price":-0}`, `{"price":-0.0e-0}`, `{"price":1E+5}`, `{"price":0.1e5}`, `{"price":1e999999999}`, `{"price":123456789012345678901234567890.5}`,
	`{"price":"\ud83d\ude00\ud800\udc00"}`, `{"price":"\ud800"}`, `{"price":"\udc00\ud800x"}`, `{"\ud800":1}`,
	`{"price":"\"\\\/\b\f\n\r\t"}`, `{"":""}`, `{"price":{"price":{"price":[]}}}`, "{\"price\":\"\xff\xfe\"}", "{\"\xff\":1}",
	`{"price":[true,false,null,[],{},""]}`, `{"price":"` + strings.Repeat("日経225 ", 20) + `"}`,
	`{"price":01}`, `{"price":1.}`, `{"price":+1}`, `{"price":.5}`, `{"price":-}`, `{"price":1e}`, `{"price":1e+}`, `{"price":NaN}`, `{"price":Infinity}`, `{"price":0x1}`, `{"price":--1}`, `{"price":1.5.5}`,
	`{"price":1,}`, `{,"price":1}`, `{"price":1 "x":2}`, `{"price"}`, `{"price":}`, `{price:1}`, `{'price':1}`, `{"price":1}}`, `{"price":1}{}`, `{"price":1} x`, `{"price":[1,]}`, `{"price":[,1]}`, `{"price":[1 2]}`, `{"price":[1}`,
	"\xEF\xBB\xBF{}", `[]`, `[{}]`, `1`, `"price"`, `null`, `true`, ``, ` `, `{`, `{"`, `{"price`, `{"price"`, `{"price":`, `{"price":"`, `{"price":"\`, `{"price":"\u12`, `{"price":t`, `{"price":nul`, `{"price":tru }`, `{"price":truee}`,
	"{\"price\":\"\x00\"}", "{\"price\":\"a\tb\"}", "{\"price\":\"12345678\x1f\"}", "{\"pr\nice\":1}", `{"price":"\x"}`, `{"price":"\u12g4"}`, `{"price":"\U0031"}`, `{"price":"\'"}`, "{\"price\":1\x00}", "{\"price\":\v1}", "{\u00a0}", "{}\x00", `{/**/}`, "{\"price\":\"\x7f\"}",
	tick200,
}

// tick200 is a market update of 200 bytes.
const tick200 = `{"price":9150.25,"bid":9125,"ask":9175,"volume":1834200,"currency":"IDR","exchange":"IDX","session":"regular","condition":["@","T"],"sequence":88123641,"trade_id":"7f1c2a9e-0b57-4d1c-9c0e-2f8ad1e70b"}`

func TestScanObjectOnSeeds(t *testing.T) {
	root := rootOf(t, testPaths[:]...)
	for _, s := range objects {
		sameAsTheBook(t, []byte(s), root)
		for cut := range len(s) {
			sameAsTheBook(t, []byte(s[:cut]), root)
		}
	}
}

// TestScanObjectOnMutations changes the seeds in small ways, the same ones in
// every run. More of them: go test -run Mutations -enrich.mutations 5000000.
func TestScanObjectOnMutations(t *testing.T) {
	root := rootOf(t, testPaths[:]...)
	rng := rand.New(rand.NewPCG(3, 8259))
	valid := 0
	for range *mutations {
		b := mutate(rng)
		sameAsTheBook(t, b, root)
		var p picks
		if scanObject(b, nil, &p) > 0 {
			valid++
		}
	}
	// Mutations that leave nothing valid, or all, would compare nothing.
	if share := float64(valid) / float64(*mutations); share < 0.05 || share > 0.9 {
		t.Errorf("%.0f %% of the mutated values are valid", 100*share)
	}
}

// alphabet are the bytes that mean something to a scanner, or nearly.
const alphabet = "{}[]:,\"\\/bfnrtu0123456789abcdefABCDEF+-.eE \t\n\r\x00\x1f\x7f\x80\xff\xEF\xBB\xBFxpriceql"

func mutate(rng *rand.Rand) []byte {
	b := []byte(objects[rng.IntN(len(objects))])
	for range 1 + rng.IntN(3) {
		at := rng.IntN(len(b) + 1)
		switch rng.IntN(7) {
		case 0: // another byte in its place
			if at < len(b) {
				b[at] = alphabet[rng.IntN(len(alphabet))]
			}
		case 1:
			b = slices.Insert(b, at, alphabet[rng.IntN(len(alphabet))])
		case 2:
			b = slices.Delete(b, at, min(len(b), at+1+rng.IntN(3)))
		case 3: // a part twice
			to := min(len(b), at+rng.IntN(12))
			b = slices.Insert(b, at, slices.Clone(b[at:to])...)
		case 4: // a part of another seed, which may be a whole value
			o := objects[rng.IntN(len(objects))]
			b = slices.Insert(b, at, []byte(o)...)
		case 5: // two members in one object: duplicates
			o := objects[rng.IntN(len(objects))]
			b = fmt.Appendf(nil, "{%s,%s}", inside(b), inside([]byte(o)))
		case 6:
			b = fmt.Appendf(nil, `{"quote":%s}`, b)
		}
	}
	return b
}

func inside(b []byte) []byte { return bytes.Trim(b, "{} ") }

func FuzzScanObject(f *testing.F) {
	for _, s := range objects {
		f.Add([]byte(s))
	}
	root := rootOf(f, testPaths[:]...)
	f.Fuzz(func(t *testing.T, b []byte) {
		// A name that encoding/json has to mend may become one that is asked
		// for; ours compares bytes. None of the paths holds U+FFFD, so the two
		// agree on all input.
		sameAsTheBook(t, b, root)
	})
}

func TestScanObjectDepth(t *testing.T) {
	for _, c := range []struct{ open, inner, shut string }{
		{`{"price":`, `{}`, `}`},
		{`[`, `[]`, `]`},
	} {
		for _, depth := range []int{maxDepth - 1, maxDepth, maxDepth + 1} {
			n := depth - 2 // the innermost, and the object around
			b := []byte(`{"x":` + strings.Repeat(c.open, n) + c.inner + strings.Repeat(c.shut, n) + `}`)
			var p picks
			if got, want := scanObject(b, newRoot(), &p) > 0, json.Valid(b); got != want {
				t.Errorf("%d deep in %s: %v, encoding/json says %v", depth, c.open, got, want)
			}
		}
	}
	hostile := []byte(`{"x":` + strings.Repeat("[", 5_000_000))
	var p picks
	if end := scanObject(hostile, nil, &p); end > 0 {
		t.Errorf("5,000,000 open brackets: %d", end)
	}
}

func TestSkipPlainAtEveryAlignment(t *testing.T) {
	for c := range 256 {
		stops := c < ' ' || c == '"' || c == '\\'
		for at := range 20 {
			b := bytes.Repeat([]byte("\x80"), 24)
			b[at] = byte(c)
			want := len(b)
			if stops {
				want = at
			}
			if got := skipPlain(b, 0); got != want {
				t.Fatalf("byte %#x at %d: stops at %d, want %d", c, at, got, want)
			}
		}
	}
}

func TestUnescapeAsEncodingJSON(t *testing.T) {
	for _, s := range []string{
		``, `plain`, `\"\\\/\b\f\n\r\t`, `M\u0026M.NS`, `\u65e5\u7d4c225`, `\ud83d\ude00`, `\uD83D\uDE00!`,
		`\u0000`, `\ufffd`,
	} {
		var want string
		if err := json.Unmarshal([]byte(`"`+s+`"`), &want); err != nil {
			t.Fatal(err)
		}
		if got := appendUnescaped(nil, []byte(s)); string(got) != want {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
	if got := appendUnescaped(nil, []byte("\xff\\u0041\xfe")); string(got) != "\xffA\xfe" {
		t.Errorf("bytes that are not UTF-8 became %q", got)
	}
}

// What encoding/json makes one, U+FFFD, are different symbols.
func TestUnpairedSurrogatesStayApart(t *testing.T) {
	for s, want := range map[string]string{
		`\ud800`: "\xed\xa0\x80", `\ud801`: "\xed\xa0\x81", `\udc00`: "\xed\xb0\x80", `\udfff`: "\xed\xbf\xbf",
		`\ud800\ud800\udc00`: "\xed\xa0\x80\U00010000", `\ud800\u0041`: "\xed\xa0\x80A",
		`\udc00\ud800`: "\xed\xb0\x80\xed\xa0\x80", `\ud800\n`: "\xed\xa0\x80\n", `x\ud83d`: "x\xed\xa0\xbd",
		`\ufffd`: "\ufffd",
	} {
		if got := string(appendUnescaped(nil, []byte(s))); got != want {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
	}
}

func TestLongEscapedName(t *testing.T) {
	name := strings.Repeat("日経", 100)
	for _, raw := range []string{strings.Repeat(`\u65e5\u7d4c`, 100), strings.Repeat(`日\u7d4c`, 100), name} {
		b := []byte(`{"` + raw + `":1}`)
		var p picks
		if end := scanObject(b, rootOf(t, []string{"x"}, []string{name}), &p); end != len(b) || string(p.raw(b, 1)) != "1" {
			t.Errorf("%s: picks %q", b, p.raw(b, 1))
		}
	}
}

func TestOverlappingPaths(t *testing.T) {
	root := rootOf(t, []string{"a"}, []string{"a", "b"}, []string{"a", "b", "c"})
	b := []byte(`{"a":{"b":{"c":1}},"a":{"b":{"d":2}}}`)
	var p picks
	if end := scanObject(b, root, &p); end != len(b) {
		t.Fatalf("scan: %d", end)
	}
	for slot, want := range []string{`{"b":{"d":2}}`, `{"d":2}`, ``} {
		if got := string(p.raw(b, slot)); got != want {
			t.Errorf("slot %d: %q, want %q", slot, got, want)
		}
	}
	if slot := root.add([]string{"a", "b"}, 3); slot != 1 {
		t.Errorf("a path asked for twice has slots 1 and %d", slot)
	}
}
