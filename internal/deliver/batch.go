package deliver

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

const (
	// batchOverhead is what a record batch of format 2 takes beside its
	// records, in bytes; the broker compares max.message.bytes with the whole.
	batchOverhead = 61
	// deltaSlack bounds what a record's timestamp and offset deltas and a
	// longer length prefix add to its size alone in a batch, in bytes.
	deltaSlack = 14
	// maxBatchBytes bounds a batch of more than one record, uncompressed: just
	// under the broker's default max.message.bytes of 1,048,588.
	maxBatchBytes = 1 << 20
	// maxRequestBytes bounds the batches of one request. Larger ones only keep
	// a leader's other partitions waiting.
	maxRequestBytes = 8 << 20
	// maxTimestamp is the last one that sarama can encode: it goes through
	// nanoseconds in 64 bits.
	maxTimestamp = record.Millis(math.MaxInt64 / int64(time.Millisecond))
)

// entry is an output that waits or is under way, with its size in bytes alone
// in a batch, the batch's own overhead not counted.
type entry struct {
	out  *record.Output
	size int
}

// batch is a partition's open batch: outputs taken from its queue that go out
// together, the same bytes until they are settled. It is open while it has
// entries.
type batch struct {
	entries []entry
	bytes   int
	// dropped are the owners who no longer want to hear. The bytes stay as
	// they are, since the broker may have them.
	dropped []record.Owner
	// uncertain: an attempt may have been appended without our knowing.
	uncertain bool

	rb   *sarama.RecordBatch // built at the first attempt
	slab *slab
}

func (b *batch) open() bool { return len(b.entries) > 0 }

// wanted reports whether somebody still waits for the output.
func (b *batch) wanted(o *record.Output) bool {
	for _, owner := range b.dropped {
		if o.Owner == owner {
			return false
		}
	}
	return true
}

// abandoned reports whether nobody waits for any output of the batch.
func (b *batch) abandoned() bool {
	for i := range b.entries {
		if b.wanted(b.entries[i].out) {
			return false
		}
	}
	return true
}

// close gives the batch's memory back and leaves it empty.
func (b *batch) close() {
	clear(b.entries)
	clear(b.dropped)
	if b.slab != nil {
		b.slab.release()
	}
	*b = batch{entries: b.entries[:0], dropped: b.dropped[:0]}
}

// build makes the record batch, once, and stamps it with the identity and the
// sequence under which it goes out. sarama keeps the encoded records inside,
// so later attempts send the same bytes without encoding or compressing again.
func (b *batch) build(slabs *sync.Pool, codec sarama.CompressionCodec, id identity, seq int32) {
	if b.rb == nil {
		b.slab = acquireSlab(slabs, b.entries)
		b.rb = b.slab.batch(b.entries, codec)
	}
	b.rb.ProducerID = id.id
	b.rb.ProducerEpoch = id.epoch
	b.rb.FirstSequence = seq
	b.rb.IsTransactional = id.transactional
}

// slab is the memory of one batch's records. Slabs are shared by all
// partitions: no more are alive than there are batches under way.
type slab struct {
	pool       *sync.Pool // where it comes from
	records    []sarama.Record
	pointers   []*sarama.Record
	headers    []sarama.RecordHeader
	headerPtrs []*sarama.RecordHeader
}

func acquireSlab(pool *sync.Pool, entries []entry) *slab {
	s, ok := pool.Get().(*slab)
	if !ok {
		s = &slab{pool: pool}
	}
	headers := 0
	for i := range entries {
		headers += len(entries[i].out.Headers)
	}
	// Sized before the first use: records are pointed at.
	if cap(s.records) < len(entries) {
		s.records = make([]sarama.Record, len(entries))
		s.pointers = make([]*sarama.Record, len(entries))
	}
	if cap(s.headers) < headers {
		s.headers = make([]sarama.RecordHeader, headers)
		s.headerPtrs = make([]*sarama.RecordHeader, headers)
	}
	s.records = s.records[:len(entries)]
	s.pointers = s.pointers[:len(entries)]
	s.headers = s.headers[:headers]
	s.headerPtrs = s.headerPtrs[:headers]
	return s
}

func (s *slab) release() {
	clear(s.records) // they hold the outputs' bytes
	clear(s.headers)
	s.pool.Put(s)
}

func (s *slab) batch(entries []entry, codec sarama.CompressionCodec) *sarama.RecordBatch {
	first := entries[0].out.Timestamp
	last := first
	h := 0
	for i := range entries {
		o := entries[i].out
		last = max(last, o.Timestamp)
		from := h
		for j := range o.Headers {
			s.headers[h] = sarama.RecordHeader{Key: o.Headers[j].Key, Value: o.Headers[j].Value}
			s.headerPtrs[h] = &s.headers[h]
			h++
		}
		s.records[i] = sarama.Record{
			Headers:        s.headerPtrs[from:h:h],
			TimestampDelta: time.Duration(o.Timestamp-first) * time.Millisecond,
			OffsetDelta:    int64(i),
			Key:            o.Key,
			Value:          o.Value,
		}
		s.pointers[i] = &s.records[i]
	}
	return &sarama.RecordBatch{
		Version:          2,
		Codec:            codec,
		CompressionLevel: sarama.CompressionLevelDefault,
		LastOffsetDelta:  int32(len(entries) - 1),
		FirstTimestamp:   first.Time(),
		MaxTimestamp:     last.Time(),
		Records:          s.pointers,
	}
}

// sizeOf is the encoded size in bytes of an output alone in a batch, without
// the batch's overhead.
func sizeOf(o *record.Output) int {
	n := 3 // attributes and two deltas of zero
	n += fieldSize(len(o.Key)) + fieldSize(len(o.Value)) + varintSize(len(o.Headers))
	for i := range o.Headers {
		n += fieldSize(len(o.Headers[i].Key)) + fieldSize(len(o.Headers[i].Value))
	}
	return n + varintSize(n)
}

// fieldSize is the size of n bytes behind their length (null is as short as
// empty).
func fieldSize(n int) int { return n + varintSize(n) }

// varintSize is the size of a zigzag varint of n ≥ 0.
func varintSize(n int) int { return (bits.Len64(uint64(n)<<1|1) + 6) / 7 }

// nextSequence is the sequence after n records from seq: 0 follows the largest
// 32-bit integer (KIP-98).
func nextSequence(seq int32, n int) int32 {
	return int32((int64(seq) + int64(n)) % (math.MaxInt32 + 1))
}
