package check

import (
	"time"

	"joiner/internal/checkpoint"
	"joiner/internal/hot"
	"joiner/internal/kafka"
	"joiner/internal/record"
)

// Facts are what was seen. Where something was not, the error beside it says
// why; nothing else there means anything then.
type Facts struct {
	Now       time.Time     // by the clock of this machine
	Bootstrap []kafka.Visit // of the configured servers, in their order
	Brokers   []kafka.Visit // of all brokers that those told of, by number

	// Connected is why the service's own clients could not be made.
	Connected error

	Layouts     map[string]kafka.Layout // by topic
	LayoutsErr  error
	Settings    map[string]kafka.Settings // by topic
	SettingsErr error

	// Creatable is what brokers say to making an output that is missing, by
	// topic; only under topics.create.
	Creatable map[string]error

	Group        kafka.Group
	GroupErr     error
	ComesBack    string // whether a pod that stops does, in words; only where Options.ComesBack is set
	ComesBackErr error
	// Place is the directory for checkpoints as it is on this machine; only where
	// there is one.
	Place         checkpoint.Place
	PlaceErr      error
	Transaction   error // what trying a transactional id came to; under exactly_once only
	Inputs        [record.Sides]InputFacts
	CommittedErr  error
	PartitionsErr error // why no partition was looked into
}

// InputFacts are what was seen of one input's records.
type InputFacts struct {
	Partitions []PartitionFacts // by number
	Keys       Suspect          // who places its keys
	Misplaced  Suspect          // who places those that lie otherwise than configured
	Growth     Growth           // what else may be why
}

// PartitionFacts are what was seen of one partition.
type PartitionFacts struct {
	ID  int32
	Err error // it could not be looked into

	Start, End int64 // of the log
	Committed  int64 // by the group; -1: nothing
	// Next is the timestamp of the record at the committed offset (or of the
	// first, where nothing is committed); NoTimestamp where there is none to
	// come.
	Next record.Millis

	Sample Sample
}

// position is where the group goes on.
func (p *PartitionFacts) position(latest bool) int64 {
	switch {
	case p.Committed >= 0:
		return p.Committed
	case latest:
		return p.End
	default:
		return p.Start
	}
}

// Sample is what the tail of a partition holds.
type Sample struct {
	At      time.Time // when it was read
	Records int
	Bytes   int64
	Largest int // bytes of the largest record

	Oldest, Newest record.Millis // record timestamps; NoTimestamp where none has one
	// Behind is how far a record's timestamp was at most behind one before it.
	Behind time.Duration
	// Late is how far one record in a hundred was behind, or more, and ten records
	// at least: what is not the doing of a stray.
	Late time.Duration
	// Event is the newest event time, EventOldest the oldest.
	Event, EventOldest record.Millis

	OutOfOrder int    // ticks older than one before them of the same symbol
	Disordered string // such a symbol

	Bad       map[record.Kind]int    // records that cannot be joined
	BadDetail map[record.Kind]string // where one of them lies, and what is wrong with it
	Keyless   int                    // with nothing to judge their place by
	Misplaced int
	Keys      []hot.Key // the most frequent, with their counts in the sample
}
