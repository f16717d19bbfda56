package kafka

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"

	"joiner/internal/record"
)

func TestTimestamps(t *testing.T) {
	for name, test := range map[string]struct {
		at   time.Time
		want record.Millis
	}{
		"none":            {time.Time{}, record.NoTimestamp},
		"none, and delta": {time.Time{}.Add(5 * time.Millisecond), record.NoTimestamp},
		"before 1970":     {time.UnixMilli(-1), record.NoTimestamp},
		"1970":            {time.UnixMilli(0), 0},
		"now":             {time.UnixMilli(1767582000123), 1767582000123},
	} {
		if got := timestamp(test.at); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestFromRecord(t *testing.T) {
	b := &sarama.RecordBatch{FirstOffset: 10, FirstTimestamp: time.UnixMilli(1000), MaxTimestamp: time.UnixMilli(5000)}
	r := &sarama.Record{
		OffsetDelta: 2, TimestampDelta: 3*time.Millisecond + 999*time.Microsecond, Key: []byte{}, Value: nil,
		Headers: []*sarama.RecordHeader{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a")}},
	}
	want := record.Record{
		Offset: 12, Timestamp: 1003, Key: []byte{},
		Headers: []record.Header{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a")}},
	}
	if diff := cmp.Diff(want, FromRecord(b, r)); diff != "" {
		t.Error(diff)
	}
	b.LogAppendTime = true
	if got := FromRecord(b, r).Timestamp; got != 5000 {
		t.Errorf("with LogAppendTime: %d, want the batch's highest", got)
	}
}
