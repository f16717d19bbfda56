package kafka

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"joiner/internal/record"
)

func compressed(codec kgo.CompressionCodecType, raw []byte) []byte {
	c, err := kgo.DefaultCompressor(map[kgo.CompressionCodecType]kgo.CompressionCodec{
		kgo.CodecGzip: kgo.GzipCompression(), kgo.CodecSnappy: kgo.SnappyCompression(),
		kgo.CodecLz4: kgo.Lz4Compression(), kgo.CodecZstd: kgo.ZstdCompression(),
	}[codec])
	if err != nil {
		panic(err)
	}
	out, used := c.Compress(new(bytes.Buffer), raw)
	if used != codec {
		panic("it is not compressed")
	}
	return out
}

func TestBatchRecords(t *testing.T) {
	b := newLogged(10, 5)
	b.FirstTimestamp, b.MaxTimestamp = 1000, 5000
	b.records = []kmsg.Record{
		{OffsetDelta: 0, TimestampDelta64: -1, Key: []byte{}, Value: nil},
		{OffsetDelta: 2, TimestampDelta64: 3, Key: nil, Value: []byte{}, Headers: []kmsg.Header{
			{Key: "a", Value: []byte("1")}, {Key: "a"}, {Key: "", Value: []byte{}},
		}},
		{OffsetDelta: 4, TimestampDelta64: -1001, Key: []byte("k"), Value: []byte("v")},
	}
	want := []record.Record{
		{Offset: 10, Timestamp: 999, Key: []byte{}},
		{Offset: 12, Timestamp: 1003, Value: []byte{}, Headers: []record.Header{
			{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a")}, {Key: []byte{}, Value: []byte{}},
		}},
		{Offset: 14, Timestamp: record.NoTimestamp, Key: []byte("k"), Value: []byte("v")},
	}
	for codec := kgo.CodecNone; codec <= kgo.CodecZstd; codec++ {
		b.Attributes = int16(codec)
		c, err := parse(newBlock(15, 15, b), 10, true)
		if err != nil {
			t.Fatalf("codec %d: %v", codec, err)
		}
		if diff := cmp.Diff(want, c.records); diff != "" {
			t.Errorf("codec %d: %s", codec, diff)
		}
	}
	c, err := parse(newBlock(15, 15, b), 13, true)
	if err != nil || len(c.records) != 1 || c.records[0].Offset != 14 {
		t.Errorf("from 13: %+v, %v", c.records, err)
	}

	// A topic that stamps records itself has one timestamp a batch, its highest.
	b.Attributes = logAppendTimeBit
	if c, err = parse(newBlock(15, 15, b), 10, true); err != nil || c.records[0].Timestamp != 5000 || c.records[2].Timestamp != 5000 {
		t.Errorf("with LogAppendTime: %+v, %v", c.records, err)
	}
}

// What is wrong with a batch is said with its offset, and what came before it
// counts.
func TestBrokenBatches(t *testing.T) {
	good := newLogged(3, 1).add(0, nil, []byte("good"))
	record := func(fields ...int64) []byte {
		var raw []byte
		for _, f := range fields {
			raw = binary.AppendVarint(raw, f)
		}
		return append(binary.AppendVarint(nil, int64(len(raw))), raw...)
	}
	head := func(change func(*kmsg.RecordBatch)) []byte {
		b := newLogged(4, 2).RecordBatch
		b.NumRecords = 1
		change(&b)
		return sealed(b)
	}
	body := func(raw []byte) []byte {
		return head(func(b *kmsg.RecordBatch) { b.Records = raw })
	}
	flipped := newLogged(4, 1).add(0, nil, []byte("bad")).raw()
	flipped[len(flipped)-1] ^= 1
	short := make([]byte, 40)
	binary.BigEndian.PutUint32(short[lengthAt:], 28)
	short[formatAt] = 2
	negative := bytes.Clone(short)
	binary.BigEndian.PutUint32(negative[lengthAt:], 1<<31)
	later := bytes.Clone(flipped)
	later[formatAt] = 3
	for name, raw := range map[string][]byte{
		"checksum":                   flipped,
		"shorter than its head":      short,
		"negative length":            negative,
		"a later format":             later,
		"more records than there is": body(nil),
		"negative count":             head(func(b *kmsg.RecordBatch) { b.NumRecords = -1 }),
		"negative delta":             head(func(b *kmsg.RecordBatch) { b.LastOffsetDelta = -1 }),
		"bytes left":                 body(append(record(0, 0, 0, -1, -1, 0), 0)),
		"longer than the batch":      body(binary.AppendVarint(nil, 7)),
		"length beyond an int":       body(binary.AppendVarint(nil, math.MaxInt64)),
		"length below nothing":       body(binary.AppendVarint(nil, math.MinInt64)),
		"longer than its fields":     body(record(0, 0, 0, -1, -1, 0, 0)),
		"shorter than its fields":    body(append(record(0, 0, 0, -1), binary.AppendVarint(binary.AppendVarint(nil, -1), 0)...)),
		"key beyond":                 body(record(0, 0, 0, 1<<40, -1, 0)),
		"key below null":             body(record(0, 0, 0, -2, -1, 0)),
		"value beyond":               body(record(0, 0, 0, -1, 5, 0)),
		"headers beyond":             body(record(0, 0, 0, -1, -1, 1<<20)),
		"headers below nothing":      body(record(0, 0, 0, -1, -1, -1)),
		"offset behind the last":     body(record(0, 0, 2, -1, -1, 0)),
		"offset before the first":    body(record(0, 0, -1, -1, -1, 0)),
		"an endless number":          body([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}),
		"no such codec":              head(func(b *kmsg.RecordBatch) { b.Attributes, b.Records = 7, []byte{1} }),
		"not compressed at all":      head(func(b *kmsg.RecordBatch) { b.Attributes, b.Records = 1, []byte("plain") }),
	} {
		p := newBlock(9, 9, good)
		p.RecordBatches = append(p.RecordBatches, raw...)
		c, err := parse(p, 3, true)
		if len(c.records) == 0 || string(c.records[0].Value) != "good" {
			t.Fatalf("%s: what came before is lost", name)
		}
		if taken := c.records[len(c.records)-1].Offset; !errors.Is(err, errBatch) || c.next != taken+1 {
			t.Errorf("%s: error %v, next %d behind %d", name, err, c.next, taken)
		}
	}
}

// message is one of the formats before Kafka 0.11.
func message(format byte, attributes byte, offset, at int64, value []byte) []byte {
	raw := append(binary.BigEndian.AppendUint64(nil, uint64(offset)), make([]byte, 8)...)
	raw = append(raw, format, attributes)
	if format == 1 {
		raw = binary.BigEndian.AppendUint64(raw, uint64(at))
	}
	raw = binary.BigEndian.AppendUint32(raw, math.MaxUint32) // no key
	raw = append(binary.BigEndian.AppendUint32(raw, uint32(len(value))), value...)
	binary.BigEndian.PutUint32(raw[lengthAt:], uint32(len(raw)-lengthEnd))
	binary.BigEndian.PutUint32(raw[12:], crc32.ChecksumIEEE(raw[16:]))
	return raw
}

func TestOldMessages(t *testing.T) {
	zip := func(inner ...[]byte) []byte { return compressed(kgo.CodecGzip, bytes.Join(inner, nil)) }
	p := newBlock(11, 11)
	p.RecordBatches = bytes.Join([][]byte{
		message(0, 0, 3, 0, []byte("before")),
		message(1, 0, 4, 7, []byte("single")),
		message(1, 1, 6, 9, zip(message(1, 0, 0, 7, []byte("a")), message(1, 0, 1, 8, []byte("b")))), // relative offsets
		message(0, 1, 8, 0, zip(message(0, 0, 7, 0, []byte("c")), message(0, 0, 8, 0, []byte("d")))), // absolute ones
		message(1, 1|logAppendTimeBit, 9, 9, zip(message(1, 0, 0, 7, []byte("e")))),
		newLogged(10, 1).add(0, nil, []byte("f")).raw(),
	}, nil)
	c, err := parse(p, 4, true)
	if err != nil {
		t.Fatal(err)
	}
	at := []record.Millis{7, 7, 8, record.NoTimestamp, record.NoTimestamp, 9, 0}
	var want []record.Record
	for i, v := range []string{"single", "a", "b", "c", "d", "e", "f"} {
		want = append(want, record.Record{Offset: int64(4 + i), Timestamp: at[i], Value: []byte(v)})
	}
	if diff := cmp.Diff(want, c.records); diff != "" {
		t.Error(diff)
	}
	if c.next != 11 {
		t.Errorf("next %d, want 11", c.next)
	}

	raw := message(1, 0, 4, 7, []byte("single"))
	raw[len(raw)-1] ^= 1
	p.RecordBatches = raw
	if c, err = parse(p, 4, true); !errors.Is(err, errBatch) || c.next != 4 {
		t.Errorf("a message with another checksum: error %v, next %d", err, c.next)
	}
}

func TestBatchDoesNotAllocate(t *testing.T) {
	b := newLogged(0, 50)
	for i := range int32(50) {
		b.add(i, []byte("key"), []byte("value"))
	}
	p := newBlock(50, 50, b)
	c := chunk{records: make([]record.Record, 0, 50), codec: newDecompressor(maxBatchBytes)}
	allocs := testing.AllocsPerRun(100, func() {
		c.records = c.records[:0]
		if err := c.parse(p, 0, true); err != nil || len(c.records) != 50 {
			t.Fatal(err, len(c.records))
		}
	})
	if allocs > 2 { // once a response, not once a record
		t.Errorf("%v allocations for 50 records", allocs)
	}
}

// Whatever a broker sends, nothing but an error comes of what makes no sense,
// and what is read can be read again.
func FuzzBatches(f *testing.F) {
	whole := newLogged(5, 3).add(0, []byte("k"), []byte("v"), kmsg.Header{Key: "h", Value: []byte("x")}).add(2, nil, nil)
	f.Add(whole.raw(), int64(5))
	f.Add(newLogged(5, 1).of(3).marker([]byte{0, 0, 0, 0}).raw(), int64(0))
	f.Add(message(1, 1, 6, 9, compressed(kgo.CodecGzip, message(1, 0, 0, 7, []byte("a")))), int64(6))
	for codec := kgo.CodecGzip; codec <= kgo.CodecZstd; codec++ {
		whole.Attributes = int16(codec)
		f.Add(append(emptyBatch(0, 5), whole.raw()...), int64(1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, position int64) {
		// The checksum would hide everything behind it.
		for rest := raw; ; {
			one, more, err := cutBatch(rest)
			if err != nil {
				break
			}
			if one[formatAt] == 2 && len(one) >= batchHeadEnd {
				binary.BigEndian.PutUint32(one[crcAt:], crc32.Checksum(one[crcEnd:], castagnoli()))
			}
			rest = more
		}
		p := newBlock(1, 1)
		p.RecordBatches = raw
		c, _ := parse(p, position, true)
		if c.next < position {
			t.Fatalf("next %d before %d", c.next, position)
		}
		for _, r := range c.records {
			if r.Offset < position || r.Offset >= c.next && raw[formatAt] == 2 {
				t.Fatalf("offset %d from %d to %d in %s", r.Offset, position, c.next, hex.EncodeToString(raw))
			}
			_ = len(r.Key) + len(r.Value)
		}
	})
}

func BenchmarkBatch(b *testing.B) {
	one := newLogged(0, 500)
	value := bytes.Repeat([]byte("x"), 200)
	for i := range int32(500) {
		one.add(i, []byte("SYM1234"), value)
	}
	p := newBlock(500, 500, one)
	c := chunk{records: make([]record.Record, 0, 500), codec: newDecompressor(maxBatchBytes)}
	b.SetBytes(int64(len(p.RecordBatches)))
	b.ReportAllocs()
	for b.Loop() {
		c.records = c.records[:0]
		if err := c.parse(p, 0, true); err != nil || len(c.records) != 500 {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*500), "ns/record")
}

// A batch that would be too large without its compression stops its partition and
// is named, and takes no more memory than that.
func TestBatchesThatGrow(t *testing.T) {
	const most = 1 << 20
	for codec := kgo.CodecGzip; codec <= kgo.CodecZstd; codec++ {
		for _, size := range []int{most - 1000, most, 8 * most} {
			b := newLogged(4, 1).add(0, nil, make([]byte, size))
			b.Attributes = int16(codec)
			c := chunk{codec: newDecompressor(most)}
			err := c.parse(newBlock(5, 5, newLogged(3, 1).add(0, nil, []byte("good")), b), 3, true)
			if size < most {
				if err != nil || len(c.records) != 2 || c.next != 5 {
					t.Errorf("codec %d, %d bytes: %d records, next %d, error %v", codec, size, len(c.records), c.next, err)
				}
				continue
			}
			if codec == kgo.CodecSnappy {
				continue // bounded by its own ratio
			}
			if !errors.Is(err, errTooLarge) || !errors.Is(err, errBatch) || len(c.records) != 1 || c.next != 4 {
				t.Errorf("codec %d, %d bytes: %d records, next %d, error %v", codec, size, len(c.records), c.next, err)
			}
		}
	}
}
