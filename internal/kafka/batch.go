package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"

	"joiner/internal/record"
)

// Where things stand in a record batch of format 2 (KIP-98), and in the messages
// that came before it, as far as they agree: the first offset, the length of
// what follows it, and the format.
const (
	lengthAt     = 8
	lengthEnd    = 12
	formatAt     = 16
	formatEnd    = 17
	crcAt        = 17
	crcEnd       = 21 // what follows is what the checksum is of
	batchHeadEnd = 61
)

// Attributes of a batch.
const (
	codecBits         = 0x7
	logAppendTimeBit  = 0x8 // of messages of format 1, too
	transactionalBit  = 0x10
	controlBit        = 0x20
	batchFormat       = 2
	oldestBatchFormat = 0 // messages
)

// errCut says that a batch is not there as a whole: brokers cut a response where
// it is full.
var errCut = errors.New("a batch is cut short")

// errBatch says that a batch makes no sense.
var errBatch = errors.New("a record batch that cannot be read")

// cutBatch takes the first batch, or message, off raw. Its error is errCut, or
// that the length makes no sense.
func cutBatch(raw []byte) (one, rest []byte, err error) {
	if len(raw) < formatEnd {
		return nil, nil, errCut
	}
	length := int32(binary.BigEndian.Uint32(raw[lengthAt:]))
	if length < formatEnd-lengthEnd {
		return nil, nil, fmt.Errorf("%w: it says that %d bytes follow", errBatch, length)
	}
	if int64(length) > int64(len(raw)-lengthEnd) {
		return nil, nil, errCut
	}
	end := lengthEnd + int(length)
	return raw[:end:end], raw[end:], nil
}

// batch is a record batch of format 2.
type batch struct {
	first, last int64 // offsets that it stands for, of whatever is left in it
	attributes  uint16
	base, max   int64 // timestamps
	producer    int64
	count       int32
	records     []byte // as they are stored
}

func (b *batch) is(bit uint16) bool { return b.attributes&bit != 0 }

// castagnoli is the polynomial of a batch's checksum.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // made once, by crc32

// readBatch reads a batch's head and compares its checksum.
func readBatch(raw []byte) (batch, error) {
	if len(raw) < batchHeadEnd {
		return batch{}, fmt.Errorf("%w: it has %d bytes", errBatch, len(raw))
	}
	if want, is := binary.BigEndian.Uint32(raw[crcAt:]), crc32.Checksum(raw[crcEnd:], castagnoli()); want != is {
		return batch{}, fmt.Errorf("%w: its checksum is %08x, not %08x", errBatch, is, want)
	}
	int64At := func(at int) int64 { return int64(binary.BigEndian.Uint64(raw[at:])) }
	int32At := func(at int) int32 { return int32(binary.BigEndian.Uint32(raw[at:])) }
	b := batch{
		first:      int64At(0),
		attributes: binary.BigEndian.Uint16(raw[21:]),
		base:       int64At(27),
		max:        int64At(35),
		producer:   int64At(43),
		count:      int32At(57),
		records:    raw[batchHeadEnd:],
	}
	delta := int32At(23)
	b.last = b.first + int64(delta)
	if delta < 0 || b.count < 0 {
		return batch{}, fmt.Errorf("%w: %d records, the last at %d behind the first", errBatch, b.count, delta)
	}
	return b, nil
}

// body returns the records' bytes, without compression.
func (b *batch) body(d kgo.Decompressor) ([]byte, error) {
	codec := kgo.CompressionCodecType(b.attributes & codecBits)
	if codec == kgo.CodecNone {
		return b.records, nil
	}
	body, err := d.Decompress(b.records, codec)
	if err != nil {
		return nil, fmt.Errorf("%w: its records cannot be decompressed: %w", errBatch, err)
	}
	return body, nil
}

// each calls f with the batch's records from the offset position on. Their
// slices alias body, and the record is each's only until it returns.
func (b *batch) each(body []byte, position int64, f func() *record.Record) error {
	c := cursor{buf: body}
	for i := range b.count {
		if err := b.next(&c, position, f); err != nil {
			return fmt.Errorf("%w: record %d of %d: %w", errBatch, i+1, b.count, err)
		}
	}
	if c.at != len(body) {
		return fmt.Errorf("%w: %d bytes are left behind its %d records", errBatch, len(body)-c.at, b.count)
	}
	return nil
}

// errRecord says that a record's lengths contradict each other.
var errRecord = errors.New("its lengths make no sense")

// next reads one record into what slot returns, or passes over it.
func (b *batch) next(c *cursor, position int64, slot func() *record.Record) error {
	length := c.varint()
	end := c.at + int(length)
	if c.bad || length < 0 || length > int64(len(c.buf)-c.at) {
		return errRecord
	}
	c.at++ // attributes, of which there are none
	at := b.base + c.varint()
	offset := b.first + c.varint()
	if c.bad || offset < b.first || offset > b.last {
		return errRecord
	}
	if offset < position {
		c.at = end
		return nil
	}
	key, value := c.field(), c.field()
	headers, err := c.headers(end)
	if err != nil || c.bad || c.at != end {
		return errRecord
	}
	if b.is(logAppendTimeBit) {
		at = b.max
	}
	r := slot()
	r.Offset, r.Timestamp, r.Key, r.Value, r.Headers = offset, timestamp(at), key, value, headers
	return nil
}

// timestamp is Kafka's: every negative one says that there is none.
func timestamp(ms int64) record.Millis {
	if ms < 0 {
		return record.NoTimestamp
	}
	return record.Millis(ms)
}

// cursor reads a batch's records. Once it is bad all that it returns is.
type cursor struct {
	buf []byte
	at  int
	bad bool
}

// varint reads a zigzag number, as most are of one byte.
func (c *cursor) varint() int64 {
	if c.at < len(c.buf) && c.buf[c.at] < 0x80 {
		v := c.buf[c.at]
		c.at++
		return int64(v>>1) ^ -int64(v&1)
	}
	return c.longVarint()
}

func (c *cursor) longVarint() int64 {
	if c.at > len(c.buf) {
		c.bad = true
		return 0
	}
	v, n := binary.Varint(c.buf[c.at:])
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.at += n
	return v
}

// field reads bytes behind their length: nil where they are null, not nil where
// there are none.
func (c *cursor) field() []byte {
	n := c.varint()
	if n < 0 {
		c.bad = c.bad || n < -1
		return nil
	}
	if c.bad || n > int64(len(c.buf)-c.at) {
		c.bad = true
		return nil
	}
	from := c.at
	c.at += int(n)
	return c.buf[from:c.at:c.at]
}

// headers reads a record's headers, which end at end at the latest.
func (c *cursor) headers(end int) ([]record.Header, error) {
	n := c.varint()
	if n == 0 && !c.bad {
		return nil, nil
	}
	if c.bad || n < 0 || n > int64(end-c.at)/2 { // each takes two bytes at least
		return nil, errRecord
	}
	headers := make([]record.Header, n)
	for i := range headers {
		headers[i].Key = c.field()
		headers[i].Value = c.field()
	}
	return headers, nil
}

// oldMessage reads a message of the formats before Kafka 0.11, which old segments
// keep, with all that it holds where it is compressed, and calls f with those
// from the offset position on. last is the last offset that it stands for.
func oldMessage(raw []byte, position int64, d kgo.Decompressor, f func(record.Record)) (last int64, err error) {
	last = int64(binary.BigEndian.Uint64(raw))
	part := block{RecordBatches: raw}
	found, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: position}, &part, d, nil)
	if found.Err != nil {
		return 0, fmt.Errorf("%w: a message of format %d: %w", errBatch, raw[formatAt], found.Err)
	}
	stamp, stamped := appendTime(raw)
	for _, r := range found.Records {
		one := record.Record{Offset: r.Offset, Timestamp: timestamp(r.Timestamp.UnixMilli()), Key: r.Key, Value: r.Value}
		switch {
		case raw[formatAt] == oldestBatchFormat:
			one.Timestamp = record.NoTimestamp
		case stamped:
			one.Timestamp = stamp
		}
		f(one)
	}
	return last, nil
}

// appendTime is the time that the broker has given a message of format 1, and
// with it all that it holds (KIP-32).
func appendTime(raw []byte) (record.Millis, bool) {
	const attributesAt, timestampAt, timestampEnd = 17, 18, 26
	if raw[formatAt] != 1 || len(raw) < timestampEnd || raw[attributesAt]&logAppendTimeBit == 0 {
		return 0, false
	}
	return timestamp(int64(binary.BigEndian.Uint64(raw[timestampAt:]))), true
}
