// Package record holds the plain types that the rooms of joiner share: a
// consumed record, a decoded tick and notification, a price, a pair of
// offsets, an output.
//
// It must never import another package of this project, talk to Kafka, or
// read a clock: everybody imports it, so whatever it knew everybody would.
package record

import (
	"fmt"
	"time"
)

// Millis is a point in time in whole milliseconds since the Unix epoch, UTC.
// Kafka's record timestamps have this resolution, and event times are cut to
// it before they are compared.
type Millis int64

// NoTimestamp is what Kafka writes where a record carries no timestamp.
const NoTimestamp Millis = -1

// Time returns m as a time in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// MillisOf cuts t to whole milliseconds (towards the past).
func MillisOf(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Side names one of the two inputs of a task.
type Side uint8

// The two inputs.
const (
	Market       Side = iota // market-updates
	Notification             // notifications
	Sides                    // their number, for arrays
)

// Other returns the opposite input.
func (s Side) Other() Side { return 1 - s }

func (s Side) String() string {
	if s == Market {
		return "market"
	}
	return "notification"
}

// Header is one record header. Value is nil where Kafka's is null.
type Header struct {
	Key, Value []byte
}

// Record is one consumed record of a partition that its holder knows.
//
// Key and Value are nil where Kafka's are null and empty (non-nil) where they
// are empty. Both alias a whole fetch response: whoever keeps a part of them
// beyond the merge copies it, or the response stays in memory.
type Record struct {
	Offset    int64
	Timestamp Millis // NoTimestamp where the record has none
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Size is about what the record holds in memory, in bytes.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value) + recordOverhead
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// recordOverhead is the size of the structure itself and its list cell.
const recordOverhead = 112

// Tick is a decoded market update. Its slices alias the record.
type Tick struct {
	Symbol    []byte
	Price     []byte // the number as the market wrote it, a JSON number; nil for a tombstone
	EventTime Millis
	Tombstone bool // null value: the symbol has no price from EventTime on
}

// Note is a decoded notification. Symbol aliases the record.
type Note struct {
	Symbol    []byte
	EventTime Millis
}

// Price is one version of a symbol's price. It owns its bytes.
type Price struct {
	Text      string // a JSON number, decimal-equal to what the market said
	EventTime Millis
	Partition int32 // of the market topic
	Offset    int64 // of the tick
}

// Offsets is a task's progress: the next record to read of each input, by
// Side. Any cut of the merged sequence is such a pair.
type Offsets [Sides]int64

func (o Offsets) String() string {
	return fmt.Sprintf("market %d, notification %d", o[Market], o[Notification])
}

// Kind says why a record is dead-lettered; the values are those of the header
// joiner-error-kind.
type Kind string

// The kinds of dead letters.
const (
	InvalidJSON      Kind = "invalid_json"
	InvalidPrice     Kind = "invalid_price"
	InvalidEventTime Kind = "invalid_event_time"
	MissingSymbol    Kind = "missing_symbol"
	TooLarge         Kind = "too_large"
	NullValue        Kind = "null_value"
	NoPrice          Kind = "no_price"
	Unavailable      Kind = "unavailable"
	InvalidTimestamp Kind = "invalid_timestamp"
	Rejected         Kind = "rejected"
)

// Kinds lists every Kind, for label sets that exist from the start.
func Kinds() []Kind {
	return []Kind{
		InvalidJSON, InvalidPrice, InvalidEventTime, MissingSymbol, TooLarge,
		NullValue, NoPrice, Unavailable, InvalidTimestamp, Rejected,
	}
}

// Locality says whether this pod owns the market partition that holds the
// notification's symbol.
type Locality uint8

// The localities.
const (
	Local Locality = iota
	Remote
	Localities
)

func (l Locality) String() string {
	if l == Local {
		return "local"
	}
	return "remote"
}

// Result says what a join found.
type Result uint8

// The results of a join.
const (
	Hit    Result = iota // a price
	Miss                 // the owner has no price, or nobody was asked
	NoInfo               // asked, and no owner answered: "unavailable"
	Results
)

func (r Result) String() string {
	switch r {
	case Hit:
		return "hit"
	case Miss:
		return "miss"
	default:
		return "unavailable"
	}
}

// Output is one record on its way out: an enriched alert or a dead letter.
type Output struct {
	Topic     string
	Partition int32
	Timestamp Millis
	Key       []byte // nil is null
	Value     []byte // nil is null
	Headers   []Header

	// Owner hears what became of the output.
	Owner Owner
	// Tag is the owner's own mark on the output; nobody else reads it.
	Tag any
}

// Owner is told the fate of the outputs it has sent.
type Owner interface {
	// Settled is called exactly once for an output that was handed over and
	// not dropped: err is nil once all in-sync replicas have it, and a
	// *Refused where no attempt could ever succeed. Everything else is tried
	// again without a word. It may be called from any goroutine, and from
	// inside the call that handed the output over; it must not block.
	Settled(o *Output, err error)
}

// Refused reports an output that its topic will never take.
type Refused struct {
	Kind Kind // TooLarge, InvalidTimestamp or Rejected
	Err  error
}

func (r *Refused) Error() string { return string(r.Kind) + ": " + r.Err.Error() }

// Unwrap returns the reason.
func (r *Refused) Unwrap() error { return r.Err }
