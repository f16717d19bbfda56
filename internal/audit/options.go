package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"joiner/internal/enrich"
	"joiner/internal/kafka"
	"joiner/internal/placement"
	"joiner/internal/record"
)

// Options say what the service is configured to do, and what to look at.
type Options struct {
	Kafka kafka.Options // the brokers; ReadCommitted decides what is seen

	Market, Notifications, Alerts string // topics
	DeadLetters                   string // topic; empty: off

	DecodeTick func(*record.Record) (record.Tick, *enrich.Bad)
	DecodeNote func(*record.Record) (record.Note, *enrich.Bad)
	// Placer says where the market's producers put a symbol.
	Placer *placement.Placer

	History      time.Duration // join.history
	DropMisses   bool          // join.on_miss: drop
	DropNoAnswer bool          // join.on_unavailable: drop
	DeadMisses   bool          // join.on_miss: dead_letter
	DeadNoAnswer bool          // join.on_unavailable: dead_letter
	StartLatest  bool          // notification.start: latest
	// MaxMessageBytes is delivery.max_message_bytes; 0: what the topic takes.
	MaxMessageBytes int64
	LocalIsCertain  bool // no wait is configured: a local miss has been looked up

	// Since and Until bound the record timestamps of the notifications that
	// are looked at: from Since up to but not including Until. Zero: no bound.
	Since, Until time.Time

	Memory   int64         // bytes for sorting, 8 MiB to 64 GiB
	TempDir  string        // where rows go that do not fit; empty: the system's
	Examples int           // of each kind at most
	Connect  time.Duration // how long a broker may take to answer at first, 1s or more

	Progress func(line string) // hears how far it is; may be nil
}

// DefaultOptions returns what the command does when asked for nothing else; the
// cluster, the topics and what the configuration says of them are to be set.
func DefaultOptions() Options {
	return Options{Memory: 256 << 20, Examples: 5, Connect: 30 * time.Second}
}

// ErrOptions is wrapped by errors about options that make no sense.
var ErrOptions = errors.New("wrong options")

// Of memory more than the most would hold more rows than an index counts.
const (
	leastMemory = 8 << 20
	mostMemory  = 64 << 30
)

func (o Options) validate() error {
	switch {
	case o.Memory < leastMemory:
		return fmt.Errorf("%w: --memory: %d MiB is too little, give it %d MiB or more", ErrOptions, o.Memory>>20, leastMemory>>20)
	case o.Memory > mostMemory:
		return fmt.Errorf("%w: --memory: %d MiB is too much, give it %d MiB or less", ErrOptions, o.Memory>>20, mostMemory>>20)
	case o.Connect < time.Second:
		return fmt.Errorf("%w: --connect-timeout: %v is too short, give it 1s or more", ErrOptions, o.Connect)
	case o.Examples < 0:
		return fmt.Errorf("%w: --examples: %d is negative", ErrOptions, o.Examples)
	case !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until):
		return fmt.Errorf("%w: --since: nothing lies between %s and --until, %s",
			ErrOptions, o.Since.Format(time.RFC3339), o.Until.Format(time.RFC3339))
	}
	return o.tryDisk()
}

// tryDisk finds out now whether rows can be written, not when the memory is
// full, which may be hours later.
func (o Options) tryDisk() error {
	file, err := os.CreateTemp(o.TempDir, "joiner-audit-*")
	if err != nil {
		return fmt.Errorf("%w: --temp-dir: %w", ErrOptions, err)
	}
	if err := errors.Join(os.Remove(file.Name()), file.Close()); err != nil {
		return fmt.Errorf("%w: --temp-dir: %w", ErrOptions, err)
	}
	return nil
}

// Log reads partitions, each up to an end that the caller names.
type Log interface {
	// Bounds returns where a partition begins and ends now.
	Bounds(ctx context.Context, topic string, partition int32) (start, end int64, err error)
	// Since returns the first offset of a record with at least this timestamp,
	// and the end where there is none.
	Since(ctx context.Context, topic string, partition int32, at record.Millis) (int64, error)
	// Read calls each with the records from from up to but not including to, in
	// order, in batches; what no longer exists is passed over. The records are
	// each's only until it returns.
	Read(ctx context.Context, topic string, partition int32, from, to int64,
		each func([]record.Record) error, progress func(position int64)) error
}

// Topic is what the audit knows of a topic.
type Topic struct {
	Name       string
	Partitions int32 // 0: it does not exist
	// Compacted is set where records may have been removed for newer ones of
	// their key.
	Compacted bool
	// AppendTime is set where the broker replaces timestamps, or nobody could
	// say that it does not.
	AppendTime bool
	// Before and After are how far a timestamp may lie from the broker's clock,
	// in milliseconds; 0: not known.
	Before, After int64
	// MaxBytes is max.message.bytes; 0: not known.
	MaxBytes int64
}

// Topics are the four of them. DeadLetters has no name where it is off.
type Topics struct{ Market, Notifications, Alerts, DeadLetters Topic }
