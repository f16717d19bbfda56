package enrich

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"joiner/internal/record"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const (
	noteTime = record.Millis(1_767_582_000_135)
	tickTime = record.Millis(1_767_582_000_123) // 2026-01-05T03:00:00.123Z
)

func hit() *Match {
	return &Match{
		Result: record.Hit, Locality: record.Local, Symbol: []byte("BBCA"), Price: []byte("9150.25"),
		PriceTime: tickTime, Partition: 3, Offset: 10422,
	}
}

func TestAppendAlert(t *testing.T) {
	for _, c := range []struct {
		name   string
		note   string
		change func(m *Match)
		want   string
	}{
		{
			"hit", `{"...": "as it came"}`, func(*Match) {},
			`{"notification":{"...": "as it came"},"market":{"symbol":"BBCA","price":9150.25,"event_time":"2026-01-05T03:00:00.123Z","age_ms":12,"partition":3,"offset":10422},"join":{"locality":"local","result":"hit"}}`,
		}, {
			"remote, not as of", `{}`, func(m *Match) { m.Locality, m.NotAsOf = record.Remote, true },
			`{"notification":{},"market":{"symbol":"BBCA","price":9150.25,"event_time":"2026-01-05T03:00:00.123Z","age_ms":12,"partition":3,"offset":10422},"join":{"locality":"remote","result":"hit","as_of":false}}`,
		}, {
			"miss", "{\"a\" :\t[1, 2]}\n", func(m *Match) { *m = Match{Result: record.Miss} },
			"{\"notification\":{\"a\" :\t[1, 2]}\n,\"market\":null,\"join\":{\"locality\":\"local\",\"result\":\"miss\"}}",
		}, {
			"unavailable", `{}`, func(m *Match) {
				*m = Match{Result: record.NoInfo, Locality: record.Remote, NotAsOf: true}
			},
			`{"notification":{},"market":null,"join":{"locality":"remote","result":"unavailable"}}`,
		}, {
			"later tick, exact price", `{}`, func(m *Match) {
				m.PriceTime, m.Price = noteTime+1, []byte("-0.10000000000000000000001E+400")
			},
			`{"notification":{},"market":{"symbol":"BBCA","price":-0.10000000000000000000001E+400,"event_time":"2026-01-05T03:00:00.136Z","age_ms":-1,"partition":3,"offset":10422},"join":{"locality":"local","result":"hit"}}`,
		}, {
			"HTML stays", `{}`, func(m *Match) { m.Symbol = []byte("M&M.NS<>\u2028") },
			"{\"notification\":{},\"market\":{\"symbol\":\"M&M.NS<>\u2028\",\"price\":9150.25,\"event_time\":\"2026-01-05T03:00:00.123Z\",\"age_ms\":12,\"partition\":3,\"offset\":10422},\"join\":{\"locality\":\"local\",\"result\":\"hit\"}}",
		}, {
			"not UTF-8", `{}`, func(m *Match) { m.Symbol = []byte{0xFF, 0xFE} },
			`{"notification":{},"market":{"symbol_base64":"//4=","price":9150.25,"event_time":"2026-01-05T03:00:00.123Z","age_ms":12,"partition":3,"offset":10422},"join":{"locality":"local","result":"hit"}}`,
		}, {
			"escapes", `{}`, func(m *Match) { m.Symbol = []byte("\"\\\b\f\n\r\t\x00\x1f\x7f") },
			`{"notification":{},"market":{"symbol":"\"\\\b\f\n\r\t\u0000\u001f` + "\x7f" + `","price":9150.25,"event_time":"2026-01-05T03:00:00.123Z","age_ms":12,"partition":3,"offset":10422},"join":{"locality":"local","result":"hit"}}`,
		},
	} {
		m := hit()
		c.change(m)
		got := AppendAlert([]byte("before"), []byte(c.note), noteTime, m)
		if string(got) != "before"+c.want {
			t.Errorf("%s:\n got %s\nwant before%s", c.name, got, c.want)
		}
		if !json.Valid([]byte(c.want)) {
			t.Errorf("%s: what is wanted is no JSON", c.name)
		}
	}
}

// TestAlertRoundTrip writes alerts of every sort and reads them back.
func TestAlertRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		note := rapid.SampledFrom([]string{`{}`, `{"a":[1,{"b":" \u0000"}]}`, note200, "{\"x\":\"\xff\"}"}).Draw(t, "note")
		m := &Match{
			Result:   record.Result(rapid.IntRange(0, int(record.Results)-1).Draw(t, "result")),
			Locality: record.Locality(rapid.IntRange(0, int(record.Localities)-1).Draw(t, "locality")),
		}
		at := record.Millis(rapid.Int64Range(int64(minEventTime), int64(maxEventTime)).Draw(t, "note time"))
		want := Alert{Notification: json.RawMessage(note), Locality: m.Locality, Result: m.Result}
		if m.Result == record.Hit {
			symbol := rapid.OneOf(rapid.SampledFrom(symbols), rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
			m.Symbol = []byte(symbol.Draw(t, "symbol"))
			m.Price = []byte(rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,9})?`).Draw(t, "price"))
			m.PriceTime = record.Millis(rapid.Int64Range(int64(minEventTime), int64(maxEventTime)).Draw(t, "price time"))
			m.Partition, m.Offset = rapid.Int32Min(0).Draw(t, "partition"), rapid.Int64Min(0).Draw(t, "offset")
			m.NotAsOf = rapid.Bool().Draw(t, "not as of")
			want.NotAsOf = m.NotAsOf
			want.Market = &AlertMarket{
				Symbol: m.Symbol, Price: string(m.Price), EventTime: m.PriceTime,
				AgeMS: int64(at - m.PriceTime), Partition: m.Partition, Offset: m.Offset,
			}
		}
		value := AppendAlert(nil, []byte(note), at, m)
		got, err := ParseAlert(value)
		if err != nil {
			t.Fatalf("%s: %v", value, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", value, diff)
		}
		if utf8.ValidString(note) && !utf8.Valid(value) {
			t.Fatalf("%q is not UTF-8", value)
		}
	})
}

func TestParseAlertRefuses(t *testing.T) {
	good := string(AppendAlert(nil, []byte(`{}`), noteTime, hit()))
	if _, err := ParseAlert([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new string }{
		{good, ``}, {good, `[]`}, {good, `{}`}, {good, good + `x`},
		{`"notification"`, `"n"`},
		{`"local"`, `"here"`}, {`"hit"`, `"found"`}, {`"hit"`, `"miss"`}, {`"hit"`, `"unavailable"`},
		{`"market":{`, `"market":null,"x":{`},
		{`"symbol"`, `"symbol_base64":"QQ==","symbol"`}, {`"symbol"`, `"sym"`},
		{`"symbol":"BBCA"`, `"symbol_base64":"*"`},
		{`9150.25`, `"9150.25"`}, {`9150.25`, `null`}, {`"price"`, `"cost"`},
		{`2026-01-05T`, `2026-13-05T`}, {`"event_time"`, `"time"`},
		{`"age_ms"`, `"age"`}, {`"age_ms":12`, `"age_ms":1.5`}, {`"partition"`, `"part"`}, {`"offset"`, `"off"`}, {`10422`, `1e99`},
	} {
		changed := strings.Replace(good, c.old, c.new, 1)
		if changed == good {
			t.Fatalf("%s does not occur", c.old)
		}
		if a, err := ParseAlert([]byte(changed)); err == nil {
			t.Errorf("%s is taken for an alert: %+v", changed, a)
		}
	}
	loose := "{ \"join\":{\"result\":\"hit\",\"locality\":\"local\",\"as_of\":true,\"more\":1},\n\"market\":{\"offset\":1,\"partition\":0,\"age_ms\":0,\"event_time\":\"1970-01-01T00:00:00Z\",\"price\":1,\"symbol\":\"\\u0041\"}, \"notification\" : {\"a\": 1} , \"more\":[]}"
	got, err := ParseAlert([]byte(loose))
	want := Alert{Notification: json.RawMessage(`{"a": 1}`), Market: &AlertMarket{Symbol: []byte("A"), Price: "1", Offset: 1}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("other members and another order: %v (-want +got):\n%s", err, diff)
	}
}

func TestParseSource(t *testing.T) {
	for text, want := range map[string]Source{
		"notifications/3/991": {"notifications", 3, 991},
		"a.b-c_d/0/0":         {"a.b-c_d", 0, 0},
		fmt.Sprintf("t/%d/%d", math.MaxInt32, math.MaxInt64):   {"t", math.MaxInt32, math.MaxInt64},
		strings.Repeat("t", 249) + "/2147483647/1234567890123": {strings.Repeat("t", 249), math.MaxInt32, 1234567890123},
	} {
		got, err := ParseSource([]byte(text))
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if back := AppendSource(nil, want); string(back) != text {
			t.Errorf("%+v is written %s", want, back)
		}
	}
	for _, text := range []string{
		"", "/", "//", "t", "t/1", "/1/2", "t/1/", "t//2", "t/-1/2", "t/1/-2", "t/+1/2", "t/01/2", "t/1/02", "t/1/2 ", "t/2147483648/0",
		"t/0/9223372036854775808", "a/b/1/2", "t/x/2", "t/1/x", "t/1/2/", "t/0x1/2", "t/1_0/2",
	} {
		if got, err := ParseSource([]byte(text)); err == nil {
			t.Errorf("%q is taken for a source: %+v", text, got)
		}
	}
}

func TestParseCitation(t *testing.T) {
	for text, want := range map[string]Citation{
		"3/10423": {3, 10423}, "0/0": {0, 0}, "2147483647/9223372036854775807": {math.MaxInt32, math.MaxInt64},
	} {
		got, err := ParseCitation([]byte(text))
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if back := AppendCitation(nil, want); string(back) != text {
			t.Errorf("%+v is written %s", want, back)
		}
	}
	for _, text := range []string{"", "/", "3", "3/", "/3", "-1/2", "1/-2", "1/2/3", "01/2", "1/02", "x/1", " 1/2", "2147483648/1"} {
		if got, err := ParseCitation([]byte(text)); err == nil {
			t.Errorf("%q is taken for a citation: %+v", text, got)
		}
	}
}

func headersOf(pairs ...string) []record.Header {
	headers := []record.Header{}
	for i := 0; i < len(pairs); i += 2 {
		headers = append(headers, record.Header{Key: []byte(pairs[i]), Value: nullable(pairs[i+1])})
	}
	return headers
}

var bbca = Source{Topic: "notifications", Partition: 3, Offset: 991}

// withOurs are the headers of the alert of bbca at 3/10423.
func withOurs(orig []record.Header) []record.Header {
	return append(slices.Clip(orig), headersOf("joiner-source", "notifications/3/991", "joiner-market", "3/10423")...)
}

// header returns the value of the last header of that name.
func header(headers []record.Header, name string) (value []byte, ok bool) {
	for _, h := range slices.Backward(headers) {
		if string(h.Key) == name {
			return h.Value, true
		}
	}
	return nil, false
}

// spoil overwrites everything that lies in r, as the next fetch response may.
func spoil(r *record.Record) {
	for _, b := range [][]byte{r.Key, r.Value} {
		clear(b)
	}
	for _, h := range r.Headers {
		clear(h.Key)
		clear(h.Value)
	}
	clear(r.Headers)
}

func TestNewAlert(t *testing.T) {
	for _, headers := range [][]record.Header{
		nil, headersOf("a", "", "b", "-"), headersOf("a", "1", "a", "2", "joiner-market", "x", "joiner-source", "old/0/1", "long", strings.Repeat("v", 1000), "z", "26"),
	} {
		for _, key := range []string{"BBCA", "", "-"} {
			r := &record.Record{Offset: 991, Timestamp: 77, Key: nullable(key), Value: []byte(`{"id": 1}`)}
			for _, h := range headers {
				r.Headers = append(r.Headers, record.Header{Key: bytes.Clone(h.Key), Value: bytes.Clone(h.Value)})
			}
			m := hit()
			got := NewAlert("enriched-alerts", bbca, r, noteTime, m, &Citation{Partition: 3, Next: 10423})
			want := &record.Output{
				Topic: "enriched-alerts", Partition: 3, Timestamp: 77, Key: nullable(key),
				Value:   AppendAlert(nil, []byte(`{"id": 1}`), noteTime, hit()),
				Headers: withOurs(headers),
			}
			spoil(r)
			clear(m.Price)
			clear(m.Symbol)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("key %q, %d headers (-want +got):\n%s", key, len(headers), diff)
			}
		}
	}
	r := &record.Record{Key: []byte("A"), Value: []byte(`{}`)}
	got := NewAlert("t", bbca, r, 0, &Match{Result: record.NoInfo}, nil)
	if _, ok := header(got.Headers, HeaderMarket); ok {
		t.Error("joiner-market where nobody answered")
	}
	got.Headers = append(got.Headers, record.Header{Key: []byte("x")})
	got.Value = append(got.Value, "xxxxxxxx"...)
	if v, _ := header(got.Headers, HeaderSource); string(v) != "notifications/3/991" {
		t.Errorf("appending to the value wrote into a header: %s", v)
	}
}

// TestNewAlertOutgrowsItsBuffer escapes more than there is room for.
func TestNewAlertOutgrowsItsBuffer(t *testing.T) {
	m := hit()
	m.Symbol = bytes.Repeat([]byte{0}, 1000)
	r := &record.Record{Key: m.Symbol, Value: []byte(`{}`), Headers: headersOf("a", "1")}
	got := NewAlert("t", bbca, r, noteTime, m, &Citation{3, 10423})
	want := &record.Output{
		Topic: "t", Partition: 3, Key: m.Symbol, Value: AppendAlert(nil, r.Value, noteTime, m),
		Headers: withOurs(r.Headers),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDeadLetter(t *testing.T) {
	for _, key := range []string{"BBCA", "", "-", "\xff\xfe"} {
		for _, value := range []string{"junk\x00", "", "-"} {
			r := &record.Record{Offset: 991, Timestamp: record.NoTimestamp, Key: nullable(key), Value: nullable(value), Headers: headersOf("a", "-", "joiner-error", "old")}
			got := DeadLetter("dlq", 1, bbca, r, record.InvalidJSON, "the value is not valid JSON at byte 0")
			spoil(r)
			want := &record.Output{
				Topic: "dlq", Partition: 1, Timestamp: record.NoTimestamp, Key: nullable(key), Value: nullable(value),
				Headers: headersOf("a", "-", "joiner-error", "old", "joiner-source", "notifications/3/991",
					"joiner-error-kind", "invalid_json", "joiner-error", "the value is not valid JSON at byte 0"),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("key %q, value %q (-want +got):\n%s", key, value, diff)
			}

			short := WithoutValue(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("WithoutValue changed its argument:\n%s", diff)
			}
			size := fmt.Sprint(len(want.Value))
			if want.Value != nil {
				want.Value = []byte{}
			}
			want.Headers = append(want.Headers, headersOf("joiner-value-bytes", size)...)
			if diff := cmp.Diff(want, short); diff != "" {
				t.Errorf("without its value (-want +got):\n%s", diff)
			}
		}
	}
}

func TestEncodeAllocations(t *testing.T) {
	r := &record.Record{Key: []byte("BBCA"), Value: []byte(note200), Headers: headersOf("trace", "1")}
	m, buf := hit(), make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { buf = AppendAlert(buf[:0], r.Value, noteTime, m) }); n != 0 {
		t.Errorf("AppendAlert into a buffer that is long enough: %v allocations", n)
	}
	cited := &Citation{Partition: 3, Next: 10423}
	var out *record.Output
	if n := testing.AllocsPerRun(100, func() { out = NewAlert("t", bbca, r, noteTime, m, cited) }); n > 2 {
		t.Errorf("NewAlert: %v allocations, want the output and its bytes", n)
	}
	if len(out.Headers) != 3 {
		t.Errorf("headers %v", out.Headers)
	}
}

func FuzzAppendAlert(f *testing.F) {
	for _, s := range symbols {
		f.Add([]byte(s), []byte(`{"a":1}`))
	}
	f.Fuzz(func(t *testing.T, symbol, note []byte) {
		var p picks
		if scanObject(note, nil, &p) < 0 || bytes.Count(note, []byte("{"))+bytes.Count(note, []byte("[")) >= maxDepth {
			return // as deep as may be is too deep for encoding/json one level down
		}
		m := hit()
		m.Symbol = symbol
		value := AppendAlert(nil, note, noteTime, m)
		if !json.Valid(value) || !bytes.Contains(value, note) {
			t.Fatalf("%q is no JSON, or holds no %q", value, note)
		}
		a, err := ParseAlert(value)
		if err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		if !bytes.Equal(a.Market.Symbol, symbol) || !bytes.Equal(a.Notification, bytes.Trim(note, " \t\r\n")) {
			t.Fatalf("%q comes back as %q, %q", value, a.Market.Symbol, a.Notification)
		}
	})
}

func FuzzParseAlert(f *testing.F) {
	f.Add(AppendAlert(nil, []byte(`{}`), noteTime, hit()))
	f.Add(AppendAlert(nil, []byte(` {"a":"\ud800"} `), noteTime, &Match{Result: record.Miss}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseAlert(b)
		if err != nil {
			return
		}
		if !json.Valid(b) || !json.Valid(a.Notification) || !bytes.Contains(b, a.Notification) {
			t.Fatalf("%q: notification %q", b, a.Notification)
		}
		if a.Market != nil && !isNumber([]byte(a.Market.Price)) {
			t.Fatalf("%q: price %q", b, a.Market.Price)
		}
	})
}

func FuzzParseSource(f *testing.F) {
	for _, s := range []string{"notifications/3/991", "t/0/0", "a/b/1/2", "/", "t/01/2"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := ParseSource(b); err == nil && !bytes.Equal(AppendSource(nil, s), b) {
			t.Fatalf("%q is read as %+v", b, s)
		}
	})
}

func FuzzParseCitation(f *testing.F) {
	for _, s := range []string{"3/10423", "0/0", "01/2", "1/2/3"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseCitation(b); err == nil && !bytes.Equal(AppendCitation(nil, c), b) {
			t.Fatalf("%q is read as %+v", b, c)
		}
	})
}
