package enrich

import (
	"bytes"
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"joiner/internal/record"
)

// symbols are what the documentation promises to carry unharmed.
var symbols = []string{"BRK.B", "M&M.NS", "日経225", "a/b", "..", "\xff\xfe", "\x00", `"\`, " ", "</script>"}

var (
	marketDefaults = MarketOptions{Symbol: "key", Price: "price", EventTime: "record", EventTimeUnit: "auto"}
	noteDefaults   = NoteOptions{Symbol: "key", EventTime: "record", EventTimeUnit: "auto"}
)

func marketDecoder(t testing.TB, o MarketOptions) *MarketDecoder {
	t.Helper()
	d, err := NewMarketDecoder(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func noteDecoder(t testing.TB, o NoteOptions) *NoteDecoder {
	t.Helper()
	d, err := NewNoteDecoder(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestParsePath(t *testing.T) {
	for path, want := range map[string][]string{
		`price`:      {"price"},
		`quote.last`: {"quote", "last"},
		`a.b.c`:      {"a", "b", "c"},
		`a\.b.c`:     {"a.b", "c"},
		`a\\b`:       {`a\b`},
		`\key`:       {"key"},
		`\record`:    {"record"},
		`quote.key`:  {"quote", "key"},
		`日経.225`:     {"日経", "225"},
		"\x20x\x20":  {" x "},
	} {
		if got, err := ParsePath(path); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	for _, path := range []string{``, `.`, `a.`, `.a`, `a..b`, `a\`} {
		if got, err := ParsePath(path); err == nil {
			t.Errorf("%q is taken for a path: %q", path, got)
		}
	}
}

func TestDecoderErrorsNameTheSetting(t *testing.T) {
	for _, c := range []struct {
		change  func(o *MarketOptions)
		setting string
	}{
		{func(o *MarketOptions) { o.Symbol = "record" }, "market.symbol"},
		{func(o *MarketOptions) { o.Symbol = "" }, "market.symbol"},
		{func(o *MarketOptions) { o.Price = "key" }, "market.price"},
		{func(o *MarketOptions) { o.Price = "record" }, "market.price"},
		{func(o *MarketOptions) { o.Price = "a..b" }, "market.price"},
		{func(o *MarketOptions) { o.EventTime = "key" }, "market.event_time"},
		{func(o *MarketOptions) { o.EventTime = `a\` }, "market.event_time"},
		{func(o *MarketOptions) { o.EventTimeUnit = "min" }, "market.event_time_unit"},
	} {
		o := marketDefaults
		c.change(&o)
		if _, err := NewMarketDecoder(o); err == nil || !strings.HasPrefix(err.Error(), c.setting+": ") {
			t.Errorf("%+v: error %v, want one about %s", o, err, c.setting)
		}
	}
	for _, o := range []NoteOptions{
		{Symbol: "record", EventTime: "record"}, {Symbol: "key", EventTime: "key"}, {Symbol: "key", EventTime: "record", EventTimeUnit: "x"},
	} {
		if _, err := NewNoteDecoder(o); err == nil || !strings.HasPrefix(err.Error(), "notification.") {
			t.Errorf("%+v: error %v", o, err)
		}
	}
}

func TestMarketDecode(t *testing.T) {
	inValue := MarketOptions{Symbol: "instrument.id", Price: "quote.last", EventTime: "quote.at", EventTimeUnit: "auto"}
	odd := MarketOptions{Symbol: `\key`, Price: `last\.price`, EventTime: `\record`, EventTimeUnit: "us"}
	for _, c := range []struct {
		name   string
		o      MarketOptions
		key    string // "-" is null
		value  string // "-" is null
		at     record.Millis
		symbol string
		price  string // "" with a time is a tombstone
		time   record.Millis
		kind   record.Kind
	}{
		{"plain", marketDefaults, "BBCA", `{"price":9150.25}`, 5, "BBCA", `9150.25`, 5, ""},
		{"string", marketDefaults, "BBCA", `{"price":"9150.2500"}`, 5, "BBCA", `9150.2500`, 5, ""},
		{"escaped string", marketDefaults, "BBCA", `{"price":"\u0039150"}`, 5, "BBCA", `9150`, 5, ""},
		{"escaped name", marketDefaults, "BBCA", `{"pr\u0069ce":1}`, 5, "BBCA", `1`, 5, ""},
		{"negative", marketDefaults, "CLK20", `{"price":-37.63}`, 5, "CLK20", `-37.63`, 5, ""},
		{"zero", marketDefaults, "A", `{"price":-0.00}`, 5, "A", `-0.00`, 5, ""},
		{"absurd exponent", marketDefaults, "A", `{"price":1e999999999}`, 5, "A", `1e999999999`, 5, ""},
		{"long", marketDefaults, "A", `{"price":0.123456789012345678901234567890}`, 5, "A", `0.123456789012345678901234567890`, 5, ""},
		{"last duplicate", marketDefaults, "A", `{"price":1,"price":2}`, 5, "A", `2`, 5, ""},
		{"last duplicate is bad", marketDefaults, "A", `{"price":1,"price":null}`, 5, "", "", 0, record.InvalidPrice},
		{"before 1970", marketDefaults, "A", `{"price":1}`, -2, "A", `1`, -2, ""},
		{"tombstone", marketDefaults, "A", `-`, 7, "A", ``, 7, ""},
		{"tombstone by path", inValue, "A", `-`, 7, "A", ``, 7, ""},
		{"tombstone, null key", marketDefaults, "-", `-`, 7, "", "", 0, record.MissingSymbol},
		{"tombstone, empty key", marketDefaults, "", `-`, 7, "", "", 0, record.MissingSymbol},
		{"tombstone, no timestamp", marketDefaults, "A", `-`, record.NoTimestamp, "", "", 0, record.InvalidEventTime},
		{"null key", marketDefaults, "-", `{"price":1}`, 5, "", "", 0, record.MissingSymbol},
		{"empty key", marketDefaults, "", `{"price":1}`, 5, "", "", 0, record.MissingSymbol},
		{"no timestamp", marketDefaults, "A", `{"price":1}`, record.NoTimestamp, "", "", 0, record.InvalidEventTime},
		{"timestamp out of range", marketDefaults, "A", `{"price":1}`, maxEventTime + 1, "", "", 0, record.InvalidEventTime},
		{"no price", marketDefaults, "A", `{"Price":1}`, 5, "", "", 0, record.InvalidPrice},
		{"word", marketDefaults, "A", `{"price":"abc"}`, 5, "", "", 0, record.InvalidPrice},
		{"empty string", marketDefaults, "A", `{"price":""}`, 5, "", "", 0, record.InvalidPrice},
		{"spaces", marketDefaults, "A", `{"price":" 1"}`, 5, "", "", 0, record.InvalidPrice},
		{"plus", marketDefaults, "A", `{"price":"+1"}`, 5, "", "", 0, record.InvalidPrice},
		{"leading zero", marketDefaults, "A", `{"price":"01"}`, 5, "", "", 0, record.InvalidPrice},
		{"bare point", marketDefaults, "A", `{"price":"1."}`, 5, "", "", 0, record.InvalidPrice},
		{"thousands", marketDefaults, "A", `{"price":"9,150"}`, 5, "", "", 0, record.InvalidPrice},
		{"not a number", marketDefaults, "A", `{"price":"NaN"}`, 5, "", "", 0, record.InvalidPrice},
		{"bool", marketDefaults, "A", `{"price":true}`, 5, "", "", 0, record.InvalidPrice},
		{"array", marketDefaults, "A", `{"price":[1]}`, 5, "", "", 0, record.InvalidPrice},
		{"object", marketDefaults, "A", `{"price":{"price":1}}`, 5, "", "", 0, record.InvalidPrice},
		{"empty value", marketDefaults, "A", ``, 5, "", "", 0, record.InvalidJSON},
		{"truncated", marketDefaults, "A", `{"price":1`, 5, "", "", 0, record.InvalidJSON},
		{"array value", marketDefaults, "A", `[{"price":1}]`, 5, "", "", 0, record.InvalidJSON},
		{"byte-order mark", marketDefaults, "A", "\xEF\xBB\xBF{\"price\":1}", 5, "", "", 0, record.InvalidJSON},
		{"bare leading zero", marketDefaults, "A", `{"price":01}`, 5, "", "", 0, record.InvalidJSON},
		{"bare NaN", marketDefaults, "A", `{"price":NaN}`, 5, "", "", 0, record.InvalidJSON},
		{"trailing junk", marketDefaults, "A", `{"price":1}x`, 5, "", "", 0, record.InvalidJSON},
		{"binary", marketDefaults, "A", "\x00\x01\x02", 5, "", "", 0, record.InvalidJSON},
		{"junk without a key", marketDefaults, "-", `{`, 5, "", "", 0, record.InvalidJSON},
		{"paths", inValue, "-", `{"instrument":{"id":"BRK.B"},"quote":{"last":"1.5","at":1700000000}}`, 5, "BRK.B", `1.5`, 1_700_000_000_000, ""},
		{"paths, escapes", inValue, "k", `{"instrument":{"id":"M\u0026M.NS"},"quote":{"last":1,"at":"2026-01-05T03:00:00.1239Z"}}`, 5, "M&M.NS", `1`, 1_767_582_000_123, ""},
		{"paths, bytes", inValue, "k", "{\"instrument\":{\"id\":\"\xff\xfe\"},\"quote\":{\"last\":1,\"at\":-0.0001}}", 5, "\xff\xfe", `1`, -1, ""},
		{"paths, number for a symbol", inValue, "k", `{"instrument":{"id":4711},"quote":{"last":1,"at":0}}`, 5, "4711", `1`, 0, ""},
		{"paths, no symbol", inValue, "k", `{"quote":{"last":1,"at":0}}`, 5, "", "", 0, record.MissingSymbol},
		{"paths, empty symbol", inValue, "k", `{"instrument":{"id":""},"quote":{"last":1,"at":0}}`, 5, "", "", 0, record.MissingSymbol},
		{"paths, null symbol", inValue, "k", `{"instrument":{"id":null},"quote":{"last":1,"at":0}}`, 5, "", "", 0, record.MissingSymbol},
		{"paths, symbol in an array", inValue, "k", `{"instrument":[{"id":"A"}],"quote":{"last":1,"at":0}}`, 5, "", "", 0, record.MissingSymbol},
		{"paths, no time", inValue, "k", `{"instrument":{"id":"A"},"quote":{"last":1}}`, 5, "", "", 0, record.InvalidEventTime},
		{"paths, null time", inValue, "k", `{"instrument":{"id":"A"},"quote":{"last":1,"at":null}}`, 5, "", "", 0, record.InvalidEventTime},
		{"paths, word for a time", inValue, "k", `{"instrument":{"id":"A"},"quote":{"last":1,"at":"now"}}`, 5, "", "", 0, record.InvalidEventTime},
		{"paths, time out of range", inValue, "k", `{"instrument":{"id":"A"},"quote":{"last":1,"at":1e300}}`, 5, "", "", 0, record.InvalidEventTime},
		{"paths, record without a timestamp", inValue, "k", `{"instrument":{"id":"A"},"quote":{"last":1,"at":1}}`, record.NoTimestamp, "A", `1`, 1_000, ""},
		{"odd names", odd, "k", `{"key":"A","last.price":1,"record":1999,"last":{"price":2}}`, 5, "A", `1`, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := marketDecoder(t, c.o)
			r := record.Record{Key: nullable(c.key), Value: nullable(c.value), Timestamp: c.at}
			tick, bad := d.Decode(&r)
			if c.kind != "" {
				if bad == nil || bad.Kind != c.kind || bad.Detail == "" {
					t.Fatalf("got %+v, %v; want %s", tick, bad, c.kind)
				}
				return
			}
			if bad != nil {
				t.Fatal(bad)
			}
			if string(tick.Symbol) != c.symbol || string(tick.Price) != c.price || tick.EventTime != c.time || tick.Tombstone != (c.price == "") {
				t.Errorf("got %q %s at %d, tombstone %v; want %q %s at %d", tick.Symbol, tick.Price, tick.EventTime, tick.Tombstone, c.symbol, c.price, c.time)
			}
			if tick.Tombstone && tick.Price != nil {
				t.Errorf("a tombstone has the price %q", tick.Price)
			}
		})
	}
}

// nullable returns s as bytes, nil for "-".
func nullable(s string) []byte {
	if s == "-" {
		return nil
	}
	return []byte(s)
}

func TestNoteDecode(t *testing.T) {
	inValue := NoteOptions{Symbol: "s", EventTime: "at", EventTimeUnit: "ms"}
	for _, c := range []struct {
		name       string
		o          NoteOptions
		key, value string
		at         record.Millis
		symbol     string
		time       record.Millis
		kind       record.Kind
	}{
		{"plain", noteDefaults, "BBCA", `{"rule":"above 9000"}`, 5, "BBCA", 5, ""},
		{"empty object", noteDefaults, "BBCA", ` {} `, 5, "BBCA", 5, ""},
		{"by path", inValue, "-", `{"s":"a/b","at":12.9}`, 5, "a/b", 12, ""},
		{"null value", noteDefaults, "BBCA", `-`, 5, "", 0, record.NullValue},
		{"null value and key", noteDefaults, "-", `-`, 5, "", 0, record.NullValue},
		{"null in JSON", noteDefaults, "BBCA", `null`, 5, "", 0, record.InvalidJSON},
		{"empty value", noteDefaults, "BBCA", ``, 5, "", 0, record.InvalidJSON},
		{"string", noteDefaults, "BBCA", `"x"`, 5, "", 0, record.InvalidJSON},
		{"bad escape", noteDefaults, "BBCA", `{"a":"\x"}`, 5, "", 0, record.InvalidJSON},
		{"null key", noteDefaults, "-", `{}`, 5, "", 0, record.MissingSymbol},
		{"empty key", noteDefaults, "", `{}`, 5, "", 0, record.MissingSymbol},
		{"no timestamp", noteDefaults, "A", `{}`, record.NoTimestamp, "", 0, record.InvalidEventTime},
		{"no symbol by path", inValue, "A", `{"at":1}`, 5, "", 0, record.MissingSymbol},
		{"no time by path", inValue, "A", `{"s":"A"}`, 5, "", 0, record.InvalidEventTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := noteDecoder(t, c.o)
			r := record.Record{Key: nullable(c.key), Value: nullable(c.value), Timestamp: c.at}
			note, bad := d.Decode(&r)
			if c.kind != "" {
				if bad == nil || bad.Kind != c.kind || bad.Detail == "" {
					t.Fatalf("got %+v, %v; want %s", note, bad, c.kind)
				}
				return
			}
			if bad != nil {
				t.Fatal(bad)
			}
			if string(note.Symbol) != c.symbol || note.EventTime != c.time {
				t.Errorf("got %q at %d", note.Symbol, note.EventTime)
			}
		})
	}
}

func TestSymbolsAreBytes(t *testing.T) {
	byKey, noteByKey := marketDecoder(t, marketDefaults), noteDecoder(t, noteDefaults)
	o := marketDefaults
	o.Symbol = "s"
	byPath := marketDecoder(t, o)
	for _, s := range symbols {
		r := record.Record{Key: []byte(s), Value: []byte(`{"price":1}`), Timestamp: 1}
		if tick, bad := byKey.Decode(&r); bad != nil || string(tick.Symbol) != s {
			t.Errorf("%q by key: %q, %v", s, tick.Symbol, bad)
		}
		if note, bad := noteByKey.Decode(&r); bad != nil || string(note.Symbol) != s {
			t.Errorf("%q by key of a notification: %q, %v", s, note.Symbol, bad)
		}
		value := append(appendQuoted([]byte(`{"price":1,"s":`), []byte(s)), '}')
		r = record.Record{Value: value, Timestamp: 1}
		if tick, bad := byPath.Decode(&r); bad != nil || string(tick.Symbol) != s {
			t.Errorf("%q by path in %q: %q, %v", s, value, tick.Symbol, bad)
		}
	}
}

func TestDetailsQuoteNothing(t *testing.T) {
	m := marketDecoder(t, MarketOptions{Symbol: "s", Price: "price", EventTime: "at"})
	for _, v := range []string{
		`{"secret`, `"secret"`, `{"a":"secret\x"}`, `{"s":["secret"]}`, `{"s":"A","price":"secret"}`, `{"s":"A","price":1,"at":"secret"}`, "\xEF\xBB\xBFsecret",
		`{"secret"[`,
	} {
		_, bad := m.Decode(&record.Record{Key: []byte("secret"), Value: []byte(v), Timestamp: 1})
		if bad == nil || strings.Contains(bad.String(), "secret") {
			t.Errorf("%s: %v", v, bad)
		}
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	byKey := marketDecoder(t, marketDefaults)
	byPath := marketDecoder(t, MarketOptions{Symbol: "exchange", Price: "price", EventTime: "sequence", EventTimeUnit: "s"})
	notes := noteDecoder(t, noteDefaults)
	r := record.Record{Key: []byte("BBCA"), Value: []byte(tick200), Timestamp: 1}
	for name, decode := range map[string]func() *Bad{
		"tick by key":  func() *Bad { _, bad := byKey.Decode(&r); return bad },
		"tick by path": func() *Bad { _, bad := byPath.Decode(&r); return bad },
		"notification": func() *Bad { _, bad := notes.Decode(&r); return bad },
	} {
		if bad := decode(); bad != nil {
			t.Fatalf("%s: %v", name, bad)
		}
		if n := testing.AllocsPerRun(100, func() { decode() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func FuzzMarketDecode(f *testing.F) {
	for _, s := range objects {
		f.Add([]byte("BBCA"), []byte(s))
	}
	f.Add([]byte(nil), []byte(`{"price":"-1.5e3","quote":{"at":"2026-01-05T03:00:00Z","s":"a"}}`))
	d := marketDecoder(f, MarketOptions{Symbol: "quote.s", Price: "price", EventTime: "quote.at"})
	byKey := marketDecoder(f, marketDefaults)
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r := record.Record{Key: key, Value: value, Timestamp: 1}
		for _, d := range []*MarketDecoder{d, byKey} {
			before := bytes.Clone(value)
			tick, bad := d.Decode(&r)
			if !bytes.Equal(before, value) {
				t.Fatal("decoding changed the value")
			}
			if bad != nil || tick.Tombstone {
				continue
			}
			if len(tick.Symbol) == 0 || !json.Valid(tick.Price) || !isNumber(tick.Price) {
				t.Fatalf("a good tick of %q: symbol %q, price %q", value, tick.Symbol, tick.Price)
			}
			checkPrice(t, value, tick.Price)
		}
	})
}

// checkPrice compares a price with what encoding/json reads in value.
func checkPrice(t *testing.T, value, price []byte) {
	t.Helper()
	want, ok := pickByTheBook(value, [][]string{{"price"}})
	if !ok {
		t.Fatalf("a good tick in invalid JSON %q", value)
	}
	var n json.Number // takes a numeric string as well
	if err := json.Unmarshal(want[0], &n); err != nil {
		t.Fatalf("%q: %v", want[0], err)
	}
	if string(price) != n.String() {
		t.Fatalf("%q: price %s, want %s", value, price, n)
	}
	if len(price) < 20 && !bytes.ContainsAny(price, "eE") {
		if _, ok := new(big.Rat).SetString(string(price)); !ok {
			t.Fatalf("price %s is no decimal", price)
		}
	}
}

func FuzzNoteDecode(f *testing.F) {
	for _, s := range objects {
		f.Add([]byte("BBCA"), []byte(s))
	}
	d := noteDecoder(f, NoteOptions{Symbol: "key", EventTime: "quote.last", EventTimeUnit: "ms"})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		note, bad := d.Decode(&record.Record{Key: key, Value: value, Timestamp: 1})
		if bad != nil {
			return
		}
		if !json.Valid(value) || !bytes.Equal(note.Symbol, key) || len(key) == 0 {
			t.Fatalf("a good notification: key %q, value %q, %+v", key, value, note)
		}
	})
}
