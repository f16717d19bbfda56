package server

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"joiner/internal/record"
)

// priceFunc answers with what the test wants.
type priceFunc func(ctx context.Context, symbol []byte) (Price, error)

func (f priceFunc) PriceNow(ctx context.Context, symbol []byte) (Price, error) { return f(ctx, symbol) }

// echo has a price for every symbol, whose owner names its bytes.
func echo(_ context.Context, symbol []byte) (Price, error) {
	return Price{
		Price: record.Price{Text: "9150.250000000000000000001", EventTime: 1767582000123, Partition: 3, Offset: 10422},
		Owner: fmt.Sprintf("%x", symbol),
	}, nil
}

// raw sends a request target as it is, past every client that would clean it.
func (f fixture) raw(t *testing.T, method, target string) (*http.Response, map[string]any) {
	t.Helper()
	conn, err := net.Dial("tcp", f.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, target); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body map[string]any
	if res.Header.Get("Content-Type") == "application/json" && method != http.MethodHead {
		if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
			t.Fatalf("%s: %v", target, err)
		}
	}
	return res, body
}

func withPrices(p priceFunc) func(*Options) { return func(o *Options) { o.Prices = p } }

// What a symbol's path segment or parameter holds is data, byte for byte.
func TestSymbolsAreData(t *testing.T) {
	f := start(t, withPrices(echo))
	for _, c := range []struct{ target, symbol string }{
		{"/v1/prices/BBCA", "BBCA"},
		{"/v1/prices/a%2Fb", "a/b"},
		{"/v1/prices/a%2fb", "a/b"},
		{"/v1/prices/%2F%2F", "//"},
		{"/v1/prices/..", ".."},
		{"/v1/prices/%2e%2E", ".."},
		{"/v1/prices/.", "."},
		{"/v1/prices/%2E%2E%2F%2E%2E%2Fmetrics", "../../metrics"},
		{"/v1/prices/", ""},
		{"/v1/prices/M&M.NS", "M&M.NS"},
		{"/v1/prices/a+b", "a+b"},
		{"/v1/prices/a%20b", "a b"},
		{"/v1/prices/a%25b", "a%b"},
		{"/v1/prices/%FF%FE%00", "\xff\xfe\x00"},
		{"/v1/prices/%E6%97%A5%E7%B5%8C225", "日経225"},
		{"/v1/prices/\xe6\x97\xa5", "\xe6\x97\xa5"}, // not encoded at all
		{"/v1/prices/a|b%2Fc\"", "a|b/c\""},         // where net/url would lose the %2F
		{"/v1/prices/a#b", "a#b"},
		{"/v1/prices/a?x=1", "a"},
		{"/v1/prices/a;b", "a;b"},
		{"http://elsewhere:8080/v1/prices/a%2Fb", "a/b"}, // as a proxy asks
		{"/v1/prices?symbol=BBCA", "BBCA"},
		{"/v1/prices?symbol=a/b", "a/b"},
		{"/v1/prices?symbol=%2F..%2F", "/../"},
		{"/v1/prices?symbol=", ""},
		{"/v1/prices?symbol=a+b", "a b"},
		{"/v1/prices?symbol=a%2Bb", "a+b"},
		{"/v1/prices?symbol=a;b", "a;b"},
		{"/v1/prices?symbol=a=b", "a=b"},
		{"/v1/prices?symbol=%FF", "\xff"},
		{"/v1/prices?_=17&symbol=A&%zz", "A"}, // what is not ours is nobody's error
	} {
		res, body := f.raw(t, "GET", c.target)
		if res.StatusCode != http.StatusOK || body["owner"] != fmt.Sprintf("%x", c.symbol) {
			t.Errorf("%q: %d %v, want the price of %q", c.target, res.StatusCode, body, c.symbol)
		}
	}
}

func TestPriceIsWrittenAsTheMarketWroteIt(t *testing.T) {
	f := start(t, withPrices(echo))
	before := time.Now().UnixMilli()
	r := f.get(t, "/v1/prices/BBCA")
	if !strings.Contains(r.body, `"price":9150.250000000000000000001,`) {
		t.Errorf("the price has changed: %s", r.body)
	}
	var got struct {
		AgeMS int64 `json:"age_ms"`
	}
	if err := json.Unmarshal([]byte(r.body), &got); err != nil {
		t.Fatal(err)
	}
	if got.AgeMS < before-1767582000123 || got.AgeMS > time.Now().UnixMilli()-1767582000123 {
		t.Errorf("age_ms %d", got.AgeMS)
	}
	want := fmt.Sprintf(`{"symbol":"BBCA","price":9150.250000000000000000001,"event_time":"2026-01-05T03:00:00.123Z","age_ms":%d,"partition":3,"offset":10422,"owner":"42424341"}`+"\n", got.AgeMS)
	if r.body != want {
		t.Errorf("%s\nwant %s", r.body, want)
	}
	if ct, cc := r.header.Get("Content-Type"), r.header.Get("Cache-Control"); ct != "application/json" || cc != "no-store" {
		t.Errorf("%s, %s", ct, cc)
	}
	if r := f.get(t, "/v1/prices/%FF%FE"); !strings.HasPrefix(r.body, `{"symbol_base64":"//4=","price"`) {
		t.Errorf("a symbol that is no text: %s", r.body)
	}
}

func TestNoPrice(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		want map[string]any
	}{
		{&NoPrice{Reason: ReasonNoPrice, Owner: "m2", Err: errors.New("no price")}, 404, map[string]any{"error": "no price", "reason": "no_price", "owner": "m2"}},
		{&NoPrice{Reason: ReasonRestoring, Owner: "m2"}, 503, map[string]any{"error": "restoring", "reason": "restoring", "owner": "m2"}},
		{fmt.Errorf("asking: %w", &NoPrice{Reason: ReasonNoOwner}), 503, map[string]any{"error": "no_owner", "reason": "no_owner", "owner": ""}},
		{fmt.Errorf("asking: %w", context.DeadlineExceeded), 503, map[string]any{"error": "nobody has answered in time", "reason": "timeout", "owner": ""}},
		{errors.New("broken"), 503, map[string]any{"error": "broken", "reason": "failed", "owner": ""}},
	} {
		f := start(t, withPrices(func(context.Context, []byte) (Price, error) { return Price{}, c.err }))
		res, body := f.raw(t, "GET", "/v1/prices/BBCA")
		if d := cmp.Diff(c.want, body); res.StatusCode != c.code || d != "" {
			t.Errorf("%v: %d %s", c.err, res.StatusCode, d)
		}
	}
}

func TestBadRequests(t *testing.T) {
	f := start(t, withPrices(echo))
	for _, c := range []struct {
		method, target string
		code           int
		reason         any
	}{
		{"GET", "/v1/prices", 400, "bad_request"},
		{"GET", "/v1/prices?", 400, "bad_request"},
		{"GET", "/v1/prices?symbols=A", 400, "bad_request"},
		{"GET", "/v1/prices?symbol", 400, "bad_request"},
		{"GET", "/v1/prices?symbol=%zz", 400, "bad_request"},
		{"GET", "/v1/prices/a/b", 400, "bad_request"},
		{"GET", "/v1/prices//", 400, "bad_request"},
		{"GET", "/v1/prices/../../metrics", 400, "bad_request"},
		{"GET", "/v1/prices?" + strings.Repeat("symbol=&", maxSymbols+1), 400, "bad_request"},
		{"POST", "/v1/prices/A", 405, "method_not_allowed"},
		{"DELETE", "/v1/prices?symbol=A", 405, "method_not_allowed"},
		{"GET", "/v1/pricesX", 404, "not_found"},
		{"GET", "/v1/prices%3Fsymbol=A", 404, "not_found"},
		{"GET", "/v1/", 404, "not_found"},
		{"POST", "/v1/nothing", 404, "not_found"},
		{"GET", "/v1", 404, "not_found"},
		{"GET", "/v1/prices?" + strings.Repeat("symbol="+strings.Repeat("A", 100)+"&", maxSymbols), 200, nil},
		{"GET", "/v1/prices?symbol=" + strings.Repeat("A", 2*maxHeaderBytes), 431, nil},
	} {
		res, body := f.raw(t, c.method, c.target)
		if res.StatusCode != c.code || body["reason"] != c.reason {
			t.Errorf("%s %.60q: %d %v, want %d %v", c.method, c.target, res.StatusCode, body, c.code, c.reason)
		}
		if c.code == 405 && res.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q", c.method, c.target, res.Header.Get("Allow"))
		}
	}
	if res, _ := f.raw(t, "HEAD", "/v1/prices/A"); res.StatusCode != http.StatusOK || res.ContentLength <= 0 {
		t.Errorf("HEAD: %d, %d bytes announced", res.StatusCode, res.ContentLength)
	}
}

// Several symbols are answered in the order asked, twice where asked twice;
// one without a price keeps its place and says why.
func TestSeveralPrices(t *testing.T) {
	f := start(t, withPrices(func(ctx context.Context, symbol []byte) (Price, error) {
		if string(symbol) == "B" {
			return Price{}, &NoPrice{Reason: ReasonNoPrice, Owner: "m2", Err: errors.New("no price")}
		}
		return echo(ctx, symbol)
	}))
	res, body := f.raw(t, "GET", "/v1/prices?symbol=C&symbol=B&symbol=%FF&symbol=A&symbol=C")
	list, _ := body["prices"].([]any)
	if res.StatusCode != http.StatusOK || len(list) != 5 {
		t.Fatalf("%d %v", res.StatusCode, body)
	}
	var owners []any
	for _, e := range list {
		owners = append(owners, e.(map[string]any)["owner"])
	}
	if d := cmp.Diff([]any{"43", "m2", "ff", "41", "43"}, owners); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]any{"symbol": "B", "error": "no price", "reason": "no_price", "owner": "m2"}, list[1]); d != "" {
		t.Error(d)
	}
}

// Requests beyond the bound are refused at once; those under way are answered.
func TestPricesOverload(t *testing.T) {
	var inside atomic.Int32
	full, release := make(chan struct{}), make(chan struct{})
	f := start(t, withPrices(func(ctx context.Context, symbol []byte) (Price, error) {
		if inside.Add(1) == pricesAtOnce {
			close(full)
		}
		<-release
		return echo(ctx, symbol)
	}))
	codes := make(chan int, pricesAtOnce)
	for range pricesAtOnce {
		go func() { codes <- f.code("/v1/prices/A") }()
	}
	<-full
	res, body := f.raw(t, "GET", "/v1/prices/A")
	if res.StatusCode != http.StatusServiceUnavailable || body["reason"] != "overload" || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", res.StatusCode, body)
	}
	close(release)
	for range pricesAtOnce {
		if code := <-codes; code != 200 {
			t.Errorf("one of those under way got %d", code)
		}
	}
}

func FuzzSymbolsOf(f *testing.F) {
	for _, s := range []string{"/v1/prices/a%2Fb", "/v1/prices?symbol=a&symbol=%FF", "/v1/prices/..", "http://h/v1/prices/x", "/v1/prices//", "/v1/prices?symbol=%z", "?", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		symbols, single, err := symbolsOf(target)
		if err == nil && (len(symbols) == 0 || len(symbols) > maxSymbols || single != (len(symbols) == 1)) {
			t.Fatalf("%q: %d symbols, single %v", target, len(symbols), single)
		}
		// What is encoded comes back as it was, whichever way it goes.
		for _, encoded := range []string{
			pricesPath + "/" + url.PathEscape(target),
			pricesPath + "?symbol=" + url.QueryEscape(target),
		} {
			symbols, single, err := symbolsOf(encoded)
			if err != nil || !single || symbols[0] != target {
				t.Fatalf("%q as %q: %q, %v", target, encoded, symbols, err)
			}
			if !isPrices(encoded) {
				t.Fatalf("%q is not routed here", encoded)
			}
		}
	})
}

func FuzzPriceAnswer(f *testing.F) {
	f.Add("BBCA")
	f.Add("\xff</script>")
	f.Fuzz(func(t *testing.T, symbol string) {
		b, err := json.Marshal(priceAnswer{symbol: symbol, price: Price{Price: record.Price{Text: "1"}}})
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Symbol *string `json:"symbol"`
			Base64 string  `json:"symbol_base64"`
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if got.Symbol == nil {
			raw, err := base64.StdEncoding.DecodeString(got.Base64)
			s := string(raw)
			if err != nil {
				t.Fatal(err)
			}
			got.Symbol = &s
		}
		if *got.Symbol != symbol {
			t.Fatalf("%q came out as %q: %s", symbol, *got.Symbol, b)
		}
	})
}
