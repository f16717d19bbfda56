package enrich

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"joiner/internal/record"
)

// ParseSource reads a header joiner-source: topic/partition/offset, as
// [AppendSource] writes it and in no other form.
func ParseSource(b []byte) (Source, error) {
	rest, offset, ok := cutNumber(b, 64)
	if !ok {
		return Source{}, fmt.Errorf("%s %q: no offset behind the last slash", HeaderSource, b)
	}
	topic, partition, ok := cutNumber(rest, 32)
	if !ok {
		return Source{}, fmt.Errorf("%s %q: no partition before the last slash", HeaderSource, b)
	}
	if len(topic) == 0 || bytes.IndexByte(topic, '/') >= 0 {
		return Source{}, fmt.Errorf("%s %q: no topic before the partition", HeaderSource, b)
	}
	return Source{Topic: string(topic), Partition: int32(partition), Offset: offset}, nil
}

// ParseCitation reads a header joiner-market: partition/next, as
// [AppendCitation] writes it and in no other form.
func ParseCitation(b []byte) (Citation, error) {
	rest, next, ok := cutNumber(b, 64)
	if !ok {
		return Citation{}, fmt.Errorf("%s %q: no offset behind the slash", HeaderMarket, b)
	}
	partition, ok := parseCount(rest, 32)
	if !ok {
		return Citation{}, fmt.Errorf("%s %q: no partition before the slash", HeaderMarket, b)
	}
	return Citation{Partition: int32(partition), Next: next}, nil
}

// cutNumber cuts b at its last slash, behind which a number stands.
func cutNumber(b []byte, bits int) (before []byte, n int64, ok bool) {
	slash := bytes.LastIndexByte(b, '/')
	if slash < 0 {
		return nil, 0, false
	}
	n, ok = parseCount(b[slash+1:], bits)
	return b[:slash], n, ok
}

// parseCount reads a number of at least 0, without sign or leading zeros.
func parseCount(b []byte, bits int) (int64, bool) {
	if len(b) == 0 || len(b) > 1 && b[0] == '0' || !isDigit(b[0]) {
		return 0, false
	}
	n, err := strconv.ParseInt(string(b), 10, bits)
	return n, err == nil
}

// Alert is an enriched alert as it was read back.
type Alert struct {
	// Notification is the notification's value, byte for byte but for white
	// space around it.
	Notification json.RawMessage
	Market       *AlertMarket // nil where there was no price
	Locality     record.Locality
	Result       record.Result
	NotAsOf      bool // as_of was false
}

// AlertMarket is what an alert says of the market.
type AlertMarket struct {
	Symbol    []byte
	Price     string // the JSON number as it stands
	EventTime record.Millis
	AgeMS     int64 // the notification's event time minus EventTime
	Partition int32
	Offset    int64
}

// wireAlert is an alert as encoding/json knows it. Pointers tell what is
// missing from what is zero.
type wireAlert struct {
	Notification json.RawMessage `json:"notification"`
	Market       *wireMarket     `json:"market"`
	Join         struct {
		Locality string `json:"locality"`
		Result   string `json:"result"`
		AsOf     *bool  `json:"as_of"`
	} `json:"join"`
}

type wireMarket struct {
	Symbol       *string         `json:"symbol"`
	SymbolBase64 *string         `json:"symbol_base64"`
	Price        json.RawMessage `json:"price"`
	EventTime    string          `json:"event_time"`
	AgeMS        *int64          `json:"age_ms"`
	Partition    *int32          `json:"partition"`
	Offset       *int64          `json:"offset"`
}

// ParseAlert reads the value of an enriched alert, whoever wrote it: white
// space and the order of members do not matter, and members that are not known
// are passed over. An alert that lacks something, or says two things at once,
// is an error. It serves tools and tests, not the service, and takes its time.
func ParseAlert(b []byte) (Alert, error) {
	var w wireAlert
	if err := json.Unmarshal(b, &w); err != nil {
		return Alert{}, fmt.Errorf("enriched alert: %w", err)
	}
	a := Alert{Notification: notificationIn(b), NotAsOf: w.Join.AsOf != nil && !*w.Join.AsOf}
	if len(a.Notification) == 0 {
		return Alert{}, errors.New("enriched alert: no notification")
	}
	var ok bool
	if a.Locality, ok = named(w.Join.Locality, record.Localities); !ok {
		return Alert{}, fmt.Errorf("enriched alert: unknown locality %q", w.Join.Locality)
	}
	if a.Result, ok = named(w.Join.Result, record.Results); !ok {
		return Alert{}, fmt.Errorf("enriched alert: unknown result %q", w.Join.Result)
	}
	if (a.Result == record.Hit) != (w.Market != nil) {
		return Alert{}, fmt.Errorf("enriched alert: the result is %q, which market belies", w.Join.Result)
	}
	if w.Market == nil {
		return a, nil
	}
	m, err := w.Market.decode()
	if err != nil {
		return Alert{}, fmt.Errorf("enriched alert: market: %w", err)
	}
	a.Market = m
	return a, nil
}

// notificationIn returns the value of the member notification as it stands in
// b. White space that the notification began or ended with cannot be told from
// the alert's own, and is left out.
func notificationIn(b []byte) json.RawMessage {
	root := newRoot()
	slot := root.add([]string{"notification"}, 0)
	var p picks
	if end := scanObject(b, root, &p); end < 0 {
		return nil
	}
	return p.raw(b, slot)
}

// named returns the value below end that has this name.
func named[T interface {
	~uint8
	String() string
}](name string, end T) (T, bool) {
	for v := range end {
		if v.String() == name {
			return v, true
		}
	}
	return 0, false
}

func (w *wireMarket) decode() (*AlertMarket, error) {
	if w.AgeMS == nil || w.Partition == nil || w.Offset == nil {
		return nil, errors.New("age_ms, partition or offset is missing")
	}
	if !isNumber(w.Price) {
		return nil, errors.New("price is no number")
	}
	at, ok := parseEventTime([]byte(w.EventTime), true, unitRFC3339)
	if !ok {
		return nil, fmt.Errorf("event_time %q is no time of RFC 3339", w.EventTime)
	}
	symbol, err := w.symbol()
	if err != nil {
		return nil, err
	}
	return &AlertMarket{
		Symbol: symbol, Price: string(w.Price), EventTime: at,
		AgeMS: *w.AgeMS, Partition: *w.Partition, Offset: *w.Offset,
	}, nil
}

func (w *wireMarket) symbol() ([]byte, error) {
	switch {
	case (w.Symbol == nil) == (w.SymbolBase64 == nil):
		return nil, errors.New("there must be one of symbol and symbol_base64")
	case w.Symbol != nil:
		return []byte(*w.Symbol), nil
	}
	symbol, err := base64.StdEncoding.DecodeString(*w.SymbolBase64)
	if err != nil {
		return nil, fmt.Errorf("symbol_base64: %w", err)
	}
	return symbol, nil
}
