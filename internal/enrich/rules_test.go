package enrich

import (
	"fmt"
	"hash/fnv"
	"testing"

	"joiner/internal/record"
)

// rulesDigest is of what the market decoder makes of the records below. Where it
// changes although they do not, MarketRules has to be increased with it: stored
// prices were made by other rules then.
const (
	rulesVersion = 1
	rulesDigest  = 0x2a830834abde5841
)

func TestMarketRules(t *testing.T) {
	if got := digest(t); got != rulesDigest || rulesVersion != MarketRules {
		t.Errorf("the decoder makes other ticks of the same records: digest %#x, version %d, MarketRules %d", got, rulesVersion, MarketRules)
	}
}

func digest(t *testing.T) uint64 {
	t.Helper()
	sum := fnv.New64a()
	for _, o := range []MarketOptions{
		{Symbol: "key", Price: "price", EventTime: "record", EventTimeUnit: "auto"},
		{Symbol: "s", Price: "q.p", EventTime: "at", EventTimeUnit: "auto"},
		{Symbol: "s", Price: "q.p", EventTime: "at", EventTimeUnit: "us"},
		{Symbol: "s", Price: "q.p", EventTime: "at", EventTimeUnit: "rfc3339"},
	} {
		d, err := NewMarketDecoder(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range [][]byte{nil, {}, []byte("BBCA"), []byte("\xff")} {
			for _, value := range rulesValues {
				r := record.Record{Key: key, Value: value, Timestamp: 1_700_000_000_123}
				tick, bad := d.Decode(&r)
				kind := record.Kind("")
				if bad != nil {
					kind = bad.Kind
				}
				fmt.Fprintf(sum, "%q %q %d %t %s\n", tick.Symbol, tick.Price, tick.EventTime, tick.Tombstone, kind)
			}
		}
	}
	return sum.Sum64()
}

var rulesValues = func() (values [][]byte) {
	values = append(values, nil, []byte{})
	prices := []string{
		"1", "-0", "0.10", "1e400", "1E-3", "01", "1.", ".5", "+1", "NaN", "null", "true", "[]", "{}", `""`, `"1"`, `"-1.50e3"`, `" 1"`,
		`"1 "`, `"0x1"`, `"1_0"`, `"\u0031"`, `"١"`, "123456789012345678901234567890.123456789",
	}
	times := []string{
		"1", "1700000000", "1700000000123", "1700000000123456", "1700000000123456789", "99999999999", "100000000000", "1e11", "-1", "1.9",
		"1700000000.5", `"1700000000"`, `"2026-01-05T03:00:00.123456Z"`, `"2026-01-05T03:00:00+07:00"`, `"2026-01-05 03:00:00"`, `""`, "null", "{}",
	}
	for _, price := range prices {
		values = append(values, fmt.Appendf(nil, `{"price":%s,"s":"A","at":1700000000123,"q":{"p":%s}}`, price, price))
	}
	for _, at := range times {
		values = append(values, fmt.Appendf(nil, `{"price":1,"s":"A","at":%s,"q":{"p":2}}`, at))
	}
	for _, symbol := range []string{`"A"`, `""`, "null", "1", `"\u0041"`, `"\ud83d\ude00"`, `"\ud800"`, "[]"} {
		values = append(values, fmt.Appendf(nil, `{"s":%s,"at":1700000000123,"q":{"p":2}}`, symbol))
	}
	for _, text := range []string{
		`{"price":1,"price":2}`, `{"Price":1}`, `{"price":1} `, ` {"price":1}`, `{"price":1}x`, `{"price":1,}`, `{'price':1}`, "[1]", "1", `"x"`,
		"{\"price\":1,\"x\":\"\x01\"}", "{\"price\":1,\"x\":\"\xff\"}", `{"pr\u0069ce":3}`, `{"q":{"p":1},"q":{"p":2},"s":"A","at":1}`, `{"q":[{"p":1}]}`, "\ufeff{\"price\":1}",
	} {
		values = append(values, []byte(text))
	}
	return values
}()
