package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

// Prices answers what a symbol's price is now, wherever its table lies. Its
// method is called by any goroutine and must return when ctx ends. Its error is
// a *NoPrice where it can say more than that it failed.
type Prices interface {
	PriceNow(ctx context.Context, symbol []byte) (Price, error)
}

// Price is a symbol's newest price.
type Price struct {
	record.Price
	Owner string // ID of the member in whose table it stands
}

// NoPrice says why there is no price.
type NoPrice struct {
	// Reason is one of the Reason constants, or another word in that style.
	Reason string
	// Owner is the ID of the member that is asked, empty where nobody knows.
	Owner string
	Err   error // in words; nil where the reason says it all
}

// Why there is no price. All but the first two are 503: the next try may bring
// one.
const (
	ReasonNoPrice    = "no_price"    // 404: the owner has none, whoever asks
	ReasonBadRequest = "bad_request" // 400
	ReasonRestoring  = "restoring"   // the owner is reading its prices back
	ReasonNoOwner    = "no_owner"    // nobody owns the partition, or this pod has no assignment yet
	ReasonMoving     = "moving"      // the one that was asked is its owner no more
	// ReasonNoCoordinator: the group's coordinator has been silent for a session
	// timeout, and the owner does not know whether it is one.
	ReasonNoCoordinator = "no_coordinator"
	ReasonUnreachable   = "unreachable" // its owner cannot be asked
	ReasonTimeout       = "timeout"     // its owner has not answered
	ReasonOverload      = "overload"    // too many such requests at once
	ReasonFailed        = "failed"      // anything else
)

func (e *NoPrice) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return e.Reason
}

// Unwrap returns the cause.
func (e *NoPrice) Unwrap() error { return e.Err }

func (e *NoPrice) code() int {
	switch e.Reason {
	case ReasonNoPrice:
		return http.StatusNotFound
	case ReasonBadRequest:
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

const (
	pricesPath = "/v1/prices"
	// maxSymbols bounds one request; maxHeaderBytes bounds what they hold.
	maxSymbols = 1000
	// pricesWithin bounds the asking, so that a request ends before its
	// client loses patience.
	pricesWithin = 3 * time.Second
	// pricesAtOnce bounds the requests under way; more get 503.
	pricesAtOnce = 64
	// lookupsAtOnce bounds the symbols of one request that are asked for at
	// the same time.
	lookupsAtOnce = 32
)

// pricesHandler serves /v1/prices. It is reached before the mux, which cleans
// paths: what a symbol's segment holds is data.
type pricesHandler struct {
	prices Prices
	now    func() time.Time
	room   chan struct{}
}

func newPricesHandler(p Prices) *pricesHandler {
	return &pricesHandler{prices: p, now: time.Now, room: make(chan struct{}, pricesAtOnce)}
}

func (h *pricesHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuseMethod(w, r)
		return
	}
	symbols, single, err := symbolsOf(r.RequestURI)
	if err != nil {
		writeFault(w, http.StatusBadRequest, &NoPrice{Reason: ReasonBadRequest, Err: err})
		return
	}
	select {
	case h.room <- struct{}{}:
		defer func() { <-h.room }()
	default:
		w.Header().Set("Retry-After", "1")
		writeFault(w, http.StatusServiceUnavailable, &NoPrice{Reason: ReasonOverload, Err: errOverload})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pricesWithin)
	defer cancel()
	answers := h.ask(ctx, symbols)
	if !single {
		writeJSON(w, http.StatusOK, map[string]any{"prices": answers})
		return
	}
	if a := answers[0]; a.failed != nil {
		writeFault(w, a.failed.code(), a.failed)
		return
	}
	writeJSON(w, http.StatusOK, answers[0])
}

// ask asks for all symbols, a bounded number at a time.
func (h *pricesHandler) ask(ctx context.Context, symbols []string) []priceAnswer {
	answers := make([]priceAnswer, len(symbols))
	room := make(chan struct{}, lookupsAtOnce)
	var asking sync.WaitGroup
	for i, symbol := range symbols {
		room <- struct{}{} // each call ends with ctx at the latest
		asking.Go(func() {
			defer func() { <-room }()
			answers[i] = h.askOne(ctx, symbol)
		})
	}
	asking.Wait()
	return answers
}

func (h *pricesHandler) askOne(ctx context.Context, symbol string) priceAnswer {
	p, err := h.prices.PriceNow(ctx, []byte(symbol))
	a := priceAnswer{symbol: symbol, price: p}
	if err != nil {
		a.failed = noPriceOf(err)
		return a
	}
	a.age = record.MillisOf(h.now()) - p.EventTime
	return a
}

func noPriceOf(err error) *NoPrice {
	var known *NoPrice
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.DeadlineExceeded):
		return &NoPrice{Reason: ReasonTimeout, Err: errors.New("nobody has answered in time")}
	}
	return &NoPrice{Reason: ReasonFailed, Err: err}
}

// priceAnswer is what stands for one symbol.
type priceAnswer struct {
	symbol string
	price  Price
	age    record.Millis
	failed *NoPrice
}

// priceJSON is a symbol's entry; error and reason take the price's place where
// there is none.
type priceJSON struct {
	Symbol    *string         `json:"symbol,omitempty"`
	Base64    *string         `json:"symbol_base64,omitempty"`
	Price     json.RawMessage `json:"price,omitempty"`
	EventTime string          `json:"event_time,omitempty"`
	AgeMS     *record.Millis  `json:"age_ms,omitempty"`
	Partition *int32          `json:"partition,omitempty"`
	Offset    *int64          `json:"offset,omitempty"`
	Error     string          `json:"error,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Owner     string          `json:"owner"`
}

// MarshalJSON writes the price as the market wrote it: it is a JSON number,
// whose digits no float has touched.
func (a priceAnswer) MarshalJSON() ([]byte, error) {
	var j priceJSON
	if utf8.ValidString(a.symbol) {
		j.Symbol = &a.symbol
	} else {
		s := base64.StdEncoding.EncodeToString([]byte(a.symbol))
		j.Base64 = &s
	}
	if a.failed != nil {
		j.Error, j.Reason, j.Owner = a.failed.Error(), a.failed.Reason, a.failed.Owner
		return json.Marshal(j)
	}
	p := a.price
	j.Price, j.EventTime = json.RawMessage(p.Text), string(enrich.AppendTime(nil, p.EventTime))
	j.AgeMS, j.Partition, j.Offset, j.Owner = &a.age, &p.Partition, &p.Offset, p.Owner
	return json.Marshal(j)
}

// symbolsOf reads the symbols out of a request target, as it came on the wire:
// one percent-encoded path segment behind /v1/prices/, or the query's symbol
// parameters. single tells that one was asked for, whose answer stands alone.
func symbolsOf(target string) (symbols []string, single bool, err error) {
	path, query, _ := strings.Cut(pathOf(target), "?")
	if segment, ok := strings.CutPrefix(path, pricesPath+"/"); ok {
		symbol, err := segmentSymbol(segment)
		return []string{symbol}, true, err
	}
	if symbols, err = querySymbols(query); err != nil {
		return nil, false, err
	}
	return symbols, len(symbols) == 1, nil
}

// isPrices reports whether the request target is this handler's.
func isPrices(target string) bool {
	path, _, _ := strings.Cut(pathOf(target), "?")
	return path == pricesPath || strings.HasPrefix(path, pricesPath+"/")
}

// pathOf takes scheme and host off a target in absolute form, as proxies send
// it.
func pathOf(target string) string {
	if strings.HasPrefix(target, "/") {
		return target
	}
	_, rest, ok := strings.Cut(target, "://")
	if !ok {
		return target
	}
	at := strings.IndexAny(rest, "/?")
	if at < 0 {
		return "/"
	}
	return rest[at:]
}

func segmentSymbol(segment string) (string, error) {
	if strings.Contains(segment, "/") {
		return "", errors.New("the path has more than one segment behind " + pricesPath + "/: write a slash within a symbol as %2F, or use ?symbol=")
	}
	symbol, err := url.PathUnescape(segment)
	if err != nil {
		return "", fmt.Errorf("the symbol in the path: %w", err)
	}
	return symbol, nil
}

// querySymbols reads the symbol parameters. Unlike url.ParseQuery it takes a
// semicolon for what it is, a byte; other parameters are ignored.
func querySymbols(query string) ([]string, error) {
	var symbols []string
	for pair := range strings.SplitSeq(query, "&") {
		name, value, ok := strings.Cut(pair, "=")
		if n, err := url.QueryUnescape(name); err != nil || n != "symbol" || !ok {
			continue
		}
		symbol, err := url.QueryUnescape(value)
		if err != nil {
			return nil, fmt.Errorf("symbol %d of the query: %w", len(symbols)+1, err)
		}
		if symbols = append(symbols, symbol); len(symbols) > maxSymbols {
			return nil, fmt.Errorf("more than %d symbols", maxSymbols)
		}
	}
	if len(symbols) == 0 {
		return nil, errors.New("no symbol: use " + pricesPath + "/SYMBOL or ?symbol=SYMBOL, which may be repeated")
	}
	return symbols, nil
}

func refuseMethod(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Allow", "GET, HEAD")
	writeFault(w, http.StatusMethodNotAllowed, &NoPrice{Reason: "method_not_allowed", Err: errors.New("use GET")})
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	writeFault(w, http.StatusNotFound, &NoPrice{Reason: "not_found", Err: errors.New("there is /v1/prices and /v1/status")})
}

func writeFault(w http.ResponseWriter, code int, e *NoPrice) {
	writeJSON(w, code, map[string]string{"error": e.Error(), "reason": e.Reason, "owner": e.Owner})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		// A price that is no JSON number never gets into a table.
		code, b = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written","reason":"failed","owner":""}`)
	}
	header(w, "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // the client may have gone
}
