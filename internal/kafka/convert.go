package kafka

import (
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

// FromRecord returns a record of a fetched batch. Key, value and headers alias
// it; null stays nil and empty stays non-nil. A topic that stamps records itself
// (LogAppendTime) has one timestamp a batch, its highest.
func FromRecord(b *sarama.RecordBatch, r *sarama.Record) record.Record {
	at := b.FirstTimestamp.Add(r.TimestampDelta)
	if b.LogAppendTime {
		at = b.MaxTimestamp
	}
	return record.Record{
		Offset:    b.FirstOffset + r.OffsetDelta,
		Timestamp: timestamp(at),
		Key:       r.Key,
		Value:     r.Value,
		Headers:   headers(r.Headers),
	}
}

// timestamp cuts t to milliseconds. sarama shows a negative timestamp, which
// is how Kafka says that there is none, as the zero time (plus a delta).
func timestamp(t time.Time) record.Millis {
	if ms := record.MillisOf(t); ms >= 0 {
		return ms
	}
	return record.NoTimestamp
}

func headers(in []*sarama.RecordHeader) []record.Header {
	if len(in) == 0 {
		return nil
	}
	out := make([]record.Header, len(in))
	for i, h := range in {
		out[i] = record.Header{Key: h.Key, Value: h.Value}
	}
	return out
}
