package enrich

import (
	"bytes"
	"fmt"

	"joiner/internal/record"
)

// Bad says why a record cannot be joined.
type Bad struct {
	Kind   record.Kind // the value of the header joiner-error-kind
	Detail string      // the value of the header joiner-error; quotes nothing from the record
}

func (b *Bad) String() string { return string(b.Kind) + ": " + b.Detail }

// MarketOptions say where a market update has what. Each is a path into the
// value (see [ParsePath]), or a word for a part of the record.
type MarketOptions struct {
	Symbol        string // "key" or a path
	Price         string // a path
	EventTime     string // "record" (the record's timestamp) or a path
	EventTimeUnit string // auto (or ""), s, ms, us, ns, rfc3339; for a path only
}

// NoteOptions say where a notification has what, as [MarketOptions] do.
type NoteOptions struct {
	Symbol        string
	EventTime     string
	EventTimeUnit string
}

// none is the slot of what is not in the value.
const none = -1

// layout is what both decoders share: the members to pick, and which of them
// is what.
type layout struct {
	root   *node // nil where the value need only be valid
	symbol int   // none: the key
	time   int   // none: the record's timestamp
	unit   unit
	slots  int // given out so far
}

func newLayout(side, symbol, eventTime, eventTimeUnit string) (layout, error) {
	l := layout{symbol: none, time: none}
	var err error
	if symbol != fromKey {
		if l.symbol, err = l.want(side+".symbol", symbol, fromRecord); err != nil {
			return layout{}, err
		}
	}
	if eventTime != fromRecord {
		if l.time, err = l.want(side+".event_time", eventTime, fromKey); err != nil {
			return layout{}, err
		}
	}
	if l.unit, err = parseUnit(eventTimeUnit); err != nil {
		return layout{}, fmt.Errorf("%s.event_time_unit: %w", side, err)
	}
	return l, nil
}

// want adds a path to the layout and returns its slot. The refused words mean
// a part of the record that cannot hold what setting asks for.
func (l *layout) want(setting, path string, refused ...string) (int, error) {
	for _, word := range refused {
		if path == word {
			return 0, fmt.Errorf(`%s: the record's %s cannot hold it; a member of that name is written \%s`,
				setting, partName(word), word)
		}
	}
	names, err := ParsePath(path)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", setting, err)
	}
	if l.root == nil {
		l.root = newRoot()
	}
	slot := l.root.add(names, l.slots)
	if slot == l.slots {
		l.slots++
	}
	return slot, nil
}

func partName(word string) string {
	if word == fromRecord {
		return "timestamp"
	}
	return word
}

// scan checks that the record's value is a JSON object and picks from it.
func (l *layout) scan(value []byte, p *picks) *Bad {
	if end := scanObject(value, l.root, p); end < 0 {
		return badJSON(value, ^end)
	}
	return nil
}

// badJSON explains a fault at position at, in terms that quote nothing.
func badJSON(value []byte, at int) *Bad {
	bad := func(format string, args ...any) *Bad {
		return &Bad{Kind: record.InvalidJSON, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(value) == 0:
		return bad("the value is empty, not a JSON object")
	case at >= len(value):
		return bad("the value ends inside its JSON, after %d bytes", len(value))
	case bytes.HasPrefix(value, []byte("\xEF\xBB\xBF")):
		return bad("the value begins with a byte-order mark, which JSON does not allow")
	case len(bytes.TrimLeft(value[:at], " \t\r\n")) == 0:
		return bad("the value is not a JSON object: byte %d is no opening brace", at)
	case value[at] == '{' || value[at] == '[':
		return bad("the value is not valid JSON at byte %d, or nested more than %d deep", at, maxDepth)
	}
	return bad("the value is not valid JSON at byte %d", at)
}

// ByKey reports whether a record's symbol is its key.
func (l *layout) ByKey() bool { return l.symbol == none }

// symbolOf returns the record's symbol, nil where it has none.
func (l *layout) symbolOf(r *record.Record, p *picks) []byte {
	if l.symbol == none {
		return r.Key
	}
	symbol, _, _ := text(p.raw(r.Value, l.symbol))
	return symbol
}

func (l *layout) missingSymbol(r *record.Record) *Bad {
	detail := "the record's key is empty"
	switch {
	case l.symbol != none:
		detail = "no non-empty string or number where the symbol should be"
	case r.Key == nil:
		detail = "the record has no key"
	}
	return &Bad{Kind: record.MissingSymbol, Detail: detail}
}

// timeOf returns the record's event time.
func (l *layout) timeOf(r *record.Record, p *picks) (record.Millis, *Bad) {
	if l.time == none {
		return timestampOf(r)
	}
	t, quoted, ok := text(p.raw(r.Value, l.time))
	if !ok {
		return 0, &Bad{Kind: record.InvalidEventTime, Detail: "no number or string where the event time should be"}
	}
	ms, ok := parseEventTime(t, quoted, l.unit)
	if !ok {
		return 0, &Bad{Kind: record.InvalidEventTime, Detail: "the event time is none in the unit asked for, or outside the years 0000 to 9999"}
	}
	return ms, nil
}

// timestampOf returns the record's own timestamp as an event time. A record
// without one has no event time; invalid_timestamp is for outputs that cannot
// carry theirs.
func timestampOf(r *record.Record) (record.Millis, *Bad) {
	if r.Timestamp == record.NoTimestamp {
		return 0, &Bad{Kind: record.InvalidEventTime, Detail: "the record has no timestamp"}
	}
	if r.Timestamp < minEventTime || r.Timestamp > maxEventTime {
		return 0, &Bad{Kind: record.InvalidEventTime, Detail: "the record's timestamp is outside the years 0000 to 9999"}
	}
	return r.Timestamp, nil
}

// MarketRules is the version of what MarketDecoder makes of a record, under given
// options. A checkpoint is used by a build of the same version only: whatever
// gives some record another tick, or makes a tick of one that was none, increases
// it, so that tables are made anew from the topic.
const MarketRules = 1

// MarketDecoder decodes market updates. It is immutable.
type MarketDecoder struct {
	layout
	price int
}

// NewMarketDecoder returns a decoder for values laid out as o says. Errors
// name the setting, as in "market.price".
func NewMarketDecoder(o MarketOptions) (*MarketDecoder, error) {
	l, err := newLayout("market", o.Symbol, o.EventTime, o.EventTimeUnit)
	if err != nil {
		return nil, err
	}
	price, err := l.want("market.price", o.Price, fromKey, fromRecord)
	if err != nil {
		return nil, err
	}
	return &MarketDecoder{layout: l, price: price}, nil
}

// Decode returns the tick that r is, or why it is none: invalid_json,
// missing_symbol, invalid_price or invalid_event_time. A null value is a
// tombstone, whose symbol is the key and whose time is the record's, whatever
// the options say.
//
// The price is the number as it stands in the value, of any length and
// exponent, and always a JSON number. The tick aliases r, except for a symbol
// that was written with escapes. A good record costs no allocation otherwise.
func (d *MarketDecoder) Decode(r *record.Record) (record.Tick, *Bad) {
	if r.Value == nil {
		return tombstone(r)
	}
	var p picks
	if bad := d.scan(r.Value, &p); bad != nil {
		return record.Tick{}, bad
	}
	symbol := d.symbolOf(r, &p)
	if len(symbol) == 0 {
		return record.Tick{}, d.missingSymbol(r)
	}
	price, quoted, ok := text(p.raw(r.Value, d.price))
	if !ok {
		return record.Tick{}, &Bad{Kind: record.InvalidPrice, Detail: "no number or numeric string where the price should be"}
	}
	if quoted && !isNumber(price) {
		return record.Tick{}, &Bad{Kind: record.InvalidPrice, Detail: "the price is a string that does not hold a JSON number"}
	}
	at, bad := d.timeOf(r, &p)
	if bad != nil {
		return record.Tick{}, bad
	}
	return record.Tick{Symbol: symbol, Price: price, EventTime: at}, nil
}

func tombstone(r *record.Record) (record.Tick, *Bad) {
	if len(r.Key) == 0 {
		return record.Tick{}, &Bad{Kind: record.MissingSymbol, Detail: "a null value whose record has no key, or an empty one"}
	}
	at, bad := timestampOf(r)
	if bad != nil {
		return record.Tick{}, bad
	}
	return record.Tick{Symbol: r.Key, EventTime: at, Tombstone: true}, nil
}

// NoteDecoder decodes notifications. It is immutable.
type NoteDecoder struct{ layout }

// NewNoteDecoder returns a decoder for values laid out as o says. Errors name
// the setting, as in "notification.symbol".
func NewNoteDecoder(o NoteOptions) (*NoteDecoder, error) {
	l, err := newLayout("notification", o.Symbol, o.EventTime, o.EventTimeUnit)
	if err != nil {
		return nil, err
	}
	return &NoteDecoder{layout: l}, nil
}

// Decode returns the notification that r is, or why it is none: null_value,
// invalid_json, missing_symbol or invalid_event_time. It aliases r, except for
// a symbol that was written with escapes; a good record costs no allocation
// otherwise.
func (d *NoteDecoder) Decode(r *record.Record) (record.Note, *Bad) {
	if r.Value == nil {
		return record.Note{}, &Bad{Kind: record.NullValue, Detail: "the value is null, not a JSON object"}
	}
	var p picks
	if bad := d.scan(r.Value, &p); bad != nil {
		return record.Note{}, bad
	}
	symbol := d.symbolOf(r, &p)
	if len(symbol) == 0 {
		return record.Note{}, d.missingSymbol(r)
	}
	at, bad := d.timeOf(r, &p)
	if bad != nil {
		return record.Note{}, bad
	}
	return record.Note{Symbol: symbol, EventTime: at}, nil
}
