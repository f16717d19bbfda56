package enrich

import (
	"encoding/base64"
	"slices"
	"strconv"
	"unicode/utf8"

	"joiner/internal/record"
)

// The names of the headers that joiner adds.
const (
	HeaderSource     = "joiner-source"      // topic/partition/offset of the record that an output came from
	HeaderMarket     = "joiner-market"      // partition/next: what the join had seen of the market
	HeaderErrorKind  = "joiner-error-kind"  // a record.Kind
	HeaderError      = "joiner-error"       // for people
	HeaderValueBytes = "joiner-value-bytes" // how long the value was that had to be left out
)

// Source names the record that an output came from.
type Source struct {
	Topic     string
	Partition int32
	Offset    int64
}

// Citation says what a join had seen of the market when it was made: Next is
// one above the offset of the last record of the partition, good or bad, that
// was merged or restored before it, 0 where there was none.
type Citation struct {
	Partition int32
	Next      int64
}

// Match is what a join found for a notification.
type Match struct {
	Result   record.Result
	Locality record.Locality
	Symbol   []byte // as bytes; written in base64 where it is not UTF-8
	// Price is a JSON number, written as it is; nil where there is none, and
	// then the fields below mean nothing.
	Price     []byte
	PriceTime record.Millis // the tick's event time
	Partition int32         // where the tick lies
	Offset    int64
	NotAsOf   bool // the price is not the one of the notification's event time; said of remote prices only
}

// AppendAlert appends the value of an enriched alert: the notification byte
// for byte, which must be valid JSON, what the market said, and how the two
// were joined. Nothing in it depends on a clock: the age is the notification's
// event time minus the tick's, in milliseconds, and may be negative.
func AppendAlert(dst, notification []byte, noteTime record.Millis, m *Match) []byte {
	dst = append(dst, `{"notification":`...)
	dst = append(dst, notification...)
	dst = append(dst, `,"market":`...)
	dst = appendMarket(dst, noteTime, m)
	dst = append(dst, `,"join":{"locality":"`...)
	dst = append(dst, m.Locality.String()...)
	dst = append(dst, `","result":"`...)
	dst = append(dst, m.Result.String()...)
	dst = append(dst, '"')
	if m.NotAsOf && m.Price != nil {
		dst = append(dst, `,"as_of":false`...)
	}
	return append(dst, `}}`...)
}

func appendMarket(dst []byte, noteTime record.Millis, m *Match) []byte {
	if m.Price == nil {
		return append(dst, `null`...)
	}
	dst = appendSymbol(append(dst, '{'), m.Symbol)
	dst = append(dst, `,"price":`...)
	dst = append(dst, m.Price...)
	dst = append(dst, `,"event_time":"`...)
	dst = AppendTime(dst, m.PriceTime)
	dst = append(dst, `","age_ms":`...)
	dst = strconv.AppendInt(dst, int64(noteTime-m.PriceTime), 10)
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(m.Partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, m.Offset, 10)
	return append(dst, '}')
}

// appendSymbol appends the member symbol, or symbol_base64 where no JSON
// string could hold the bytes.
func appendSymbol(dst, symbol []byte) []byte {
	if utf8.Valid(symbol) {
		return appendQuoted(append(dst, `"symbol":`...), symbol)
	}
	dst = append(dst, `"symbol_base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, symbol)
	return append(dst, '"')
}

// alertRoom is about what AppendAlert adds to its variable parts, and the two
// headers with them.
const alertRoom = 320

// AppendSource appends s as the header joiner-source has it: T/3/991.
func AppendSource(dst []byte, s Source) []byte {
	dst = append(dst, s.Topic...)
	dst = strconv.AppendInt(append(dst, '/'), int64(s.Partition), 10)
	return strconv.AppendInt(append(dst, '/'), s.Offset, 10)
}

// AppendCitation appends c as the header joiner-market has it: 3/10423.
func AppendCitation(dst []byte, c Citation) []byte {
	dst = strconv.AppendInt(dst, int64(c.Partition), 10)
	return strconv.AppendInt(append(dst, '/'), c.Next, 10)
}

// NewAlert returns the enriched alert of the notification r as an output for
// topic, in the partition and with the timestamp of the notification. cited is
// nil where nobody was asked or answered. Owner and Seq are the caller's to
// set.
//
// The output owns its bytes, since it outlives the fetch response that r and
// perhaps the price lie in. Its headers are those of the notification, in their
// order and with their duplicates, and behind them joiner-source and, where
// there is a citation, joiner-market: a notification that had headers of these
// names keeps them, and of headers of one name the last counts.
func NewAlert(topic string, source Source, r *record.Record, noteTime record.Millis, m *Match, cited *Citation) *record.Output {
	room := alertRoom + len(r.Value) + len(m.Symbol) + len(m.Price)
	b := newBuilder(topic, source.Partition, r, source, room)
	at := len(b.buf)
	b.buf = AppendAlert(b.buf, r.Value, noteTime, m)
	b.out.Value = b.since(at)
	b.addSource(source)
	if cited != nil {
		at = len(b.buf)
		b.buf = AppendCitation(append(b.buf, HeaderMarket...), *cited)
		b.add(at, len(HeaderMarket))
	}
	return &b.out
}

// DeadLetter returns the record r, which came from source and could not be
// joined or sent for the reason given, as an output for partition of topic:
// its key, value and headers as they are, null where they are null, and its
// timestamp, which the caller replaces where the topic would not take it.
// Owner and Seq are the caller's to set. The output owns its bytes.
func DeadLetter(topic string, partition int32, source Source, r *record.Record, kind record.Kind, detail string) *record.Output {
	room := len(r.Value) + len(HeaderErrorKind) + len(kind) + len(HeaderError) + len(detail)
	b := newBuilder(topic, partition, r, source, room)
	b.out.Value = b.keep(r.Value)
	b.addSource(source)
	b.addText(HeaderErrorKind, string(kind))
	b.addText(HeaderError, detail)
	return &b.out
}

// WithoutValue returns a dead letter that was too large for its topic as one
// that keeps key, headers and timestamp, with an empty value and the length of
// the value in joiner-value-bytes. A null value stays null, of 0 bytes. The
// result shares the bytes of o, which stays as it is.
func WithoutValue(o *record.Output) *record.Output {
	c := *o
	if o.Value != nil {
		c.Value = []byte{}
	}
	c.Headers = append(slices.Clip(c.Headers), record.Header{
		Key:   []byte(HeaderValueBytes),
		Value: strconv.AppendInt(nil, int64(len(o.Value)), 10),
	})
	return &c
}

// builder makes an output whose bytes lie in one buffer. The slices that it
// hands out stay right where the buffer has to grow, only then it is not one.
type builder struct {
	out    record.Output
	buf    []byte
	inline [4]record.Header // saves an allocation where headers are few
}

// newBuilder begins an output with the key and headers of r; room is what will
// come besides those and joiner-source, in bytes.
func newBuilder(topic string, partition int32, r *record.Record, source Source, room int) *builder {
	const sourceRoom = len(HeaderSource) + len("/2147483647/9223372036854775807")
	room += sourceRoom + len(source.Topic) + len(r.Key)
	for i := range r.Headers {
		room += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	b := &builder{buf: make([]byte, 0, room)}
	b.out = record.Output{Topic: topic, Partition: partition, Timestamp: r.Timestamp, Key: b.keep(r.Key)}
	b.out.Headers = b.inline[:0]
	if most := len(r.Headers) + 3; most > len(b.inline) {
		b.out.Headers = make([]record.Header, 0, most)
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		b.out.Headers = append(b.out.Headers, record.Header{Key: b.keep(h.Key), Value: b.keep(h.Value)})
	}
	return b
}

// since returns what was put into the buffer from at on; appending to it
// copies it.
func (b *builder) since(at int) []byte { return b.buf[at:len(b.buf):len(b.buf)] }

// keep copies s into the buffer; null stays null, and empty is not null.
func (b *builder) keep(s []byte) []byte {
	if s == nil {
		return nil
	}
	at := len(b.buf)
	b.buf = append(b.buf, s...)
	return b.since(at)
}

// add adds a header whose name, of name bytes, and value were put into the
// buffer from at on.
func (b *builder) add(at, name int) {
	both := b.since(at)
	b.out.Headers = append(b.out.Headers, record.Header{Key: both[:name:name], Value: both[name:]})
}

func (b *builder) addText(name, value string) {
	at := len(b.buf)
	b.buf = append(append(b.buf, name...), value...)
	b.add(at, len(name))
}

func (b *builder) addSource(s Source) {
	at := len(b.buf)
	b.buf = AppendSource(append(b.buf, HeaderSource...), s)
	b.add(at, len(HeaderSource))
}
