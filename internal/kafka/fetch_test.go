package kafka

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// logged is a record batch as it lies in a log.
type logged struct {
	kmsg.RecordBatch
	records []kmsg.Record
}

func newLogged(first int64, offsets int32) *logged {
	return &logged{RecordBatch: kmsg.RecordBatch{
		FirstOffset: first, LastOffsetDelta: offsets - 1, PartitionLeaderEpoch: -1, Magic: 2, ProducerID: -1, ProducerEpoch: -1,
	}}
}

// of marks the batch as part of a producer's transaction.
func (b *logged) of(producer int64) *logged {
	b.ProducerID, b.Attributes = producer, b.Attributes|transactionalBit
	return b
}

// marker makes it the end of a transaction.
func (b *logged) marker(key []byte) *logged {
	b.Attributes |= controlBit
	return b.add(0, key, nil)
}

func (b *logged) add(delta int32, key, value []byte, headers ...kmsg.Header) *logged {
	b.records = append(b.records, kmsg.Record{OffsetDelta: delta, Key: key, Value: value, Headers: headers})
	return b
}

func (b *logged) last() int64 { return b.FirstOffset + int64(b.LastOffsetDelta) }

// raw is the batch's bytes.
func (b *logged) raw() []byte {
	whole := b.RecordBatch
	whole.NumRecords, whole.Records = int32(len(b.records)), nil
	for _, r := range b.records {
		r.Length = 0
		r.Length = int32(len(r.AppendTo(nil)) - 1) // without the length itself: 0 takes one byte
		whole.Records = r.AppendTo(whole.Records)
	}
	if codec := kgo.CompressionCodecType(whole.Attributes & codecBits); codec != kgo.CodecNone {
		whole.Records = compressed(codec, whole.Records)
	}
	return sealed(whole)
}

// sealed is the batch with its length and checksum.
func sealed(b kmsg.RecordBatch) []byte {
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[lengthAt:], uint32(len(raw)-lengthEnd))
	binary.BigEndian.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcEnd:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// history is a log made at random, with what a reader must see of it.
type history struct {
	batches []*logged
	visible []int64 // offsets that read committed shows
	every   []int64 // offsets of all data records
	aborted []span
	stable  int64 // last stable offset
	end     int64
}

type span struct{ producer, first, marker int64 }

// drawHistory interleaves plain batches and the transactions of three
// producers, some aborted, some left open, and then lets compaction take
// records out: at the edges of batches, and whole batches.
func drawHistory(t *rapid.T) history {
	var h history
	open := map[int64][]int64{} // producer: the offsets of its transaction
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		producer := rapid.Int64Range(0, 3).Draw(t, "producer") // 0: plain
		ends := len(open[producer]) > 0 && rapid.Bool().Draw(t, "ends")
		if ends {
			h.endTransaction(t, producer, open)
			continue
		}
		h.addBatch(t, producer, open)
	}
	h.stable = h.end
	for _, offsets := range open {
		if len(offsets) > 0 {
			h.stable = min(h.stable, offsets[0])
		}
	}
	h.visible = slices.DeleteFunc(h.visible, func(o int64) bool { return o >= h.stable })
	slices.Sort(h.visible)
	return h
}

func (h *history) addBatch(t *rapid.T, producer int64, open map[int64][]int64) {
	n := rapid.Int32Range(1, 5).Draw(t, "records")
	b := newLogged(h.end, n)
	b.FirstTimestamp = 1
	if producer > 0 {
		b.of(producer - 1)
	}
	b.Attributes |= int16(rapid.SampledFrom([]kgo.CompressionCodecType{
		kgo.CodecNone, kgo.CodecNone, kgo.CodecGzip, kgo.CodecSnappy, kgo.CodecLz4, kgo.CodecZstd,
	}).Draw(t, "codec"))
	for delta := range n {
		offset := h.end + int64(delta)
		if producer > 0 {
			open[producer] = append(open[producer], offset)
		}
		if rapid.IntRange(0, 4).Draw(t, "compacted") == 0 {
			continue
		}
		b.add(delta, nil, []byte{byte(offset)})
		h.every = append(h.every, offset)
		if producer == 0 {
			h.visible = append(h.visible, offset)
		}
	}
	h.batches = append(h.batches, b)
	h.end += int64(n)
}

func (h *history) endTransaction(t *rapid.T, producer int64, open map[int64][]int64) {
	commit := rapid.Bool().Draw(t, "commit")
	key := []byte{0, 0, 0, 0}
	if commit {
		key[3] = 1
		for _, o := range open[producer] {
			if slices.Contains(h.every, o) {
				h.visible = append(h.visible, o)
			}
		}
	} else {
		h.aborted = append(h.aborted, span{producer - 1, open[producer][0], h.end})
	}
	h.batches = append(h.batches, newLogged(h.end, 1).of(producer-1).marker(key))
	delete(open, producer)
	h.end++
}

// fetch answers like a broker: whole batches from the one that holds position
// on, at most limit, below the end for the isolation level. It returns the last
// offset that it covers, -1 where there is none.
func (h *history) fetch(position int64, limit int, committed bool) (p *block, last int64) {
	p = newBlock(h.end, h.stable)
	bound := h.end
	if committed {
		bound = h.stable
	}
	last = -1
	for _, b := range h.batches {
		if b.last() < position || b.FirstOffset >= bound || limit == 0 {
			continue
		}
		p.RecordBatches = append(p.RecordBatches, b.raw()...)
		last = b.last()
		limit--
	}
	for _, a := range h.aborted {
		if committed && a.marker >= position && a.first <= last {
			p.AbortedTransactions = append(p.AbortedTransactions,
				kmsg.FetchResponseTopicPartitionAbortedTransaction{ProducerID: a.producer, FirstOffset: a.first})
		}
	}
	return p, last
}

func newBlock(high, stable int64, batches ...*logged) *block {
	p := kmsg.NewFetchResponseTopicPartition()
	p.HighWatermark, p.LastStableOffset = high, stable
	for _, b := range batches {
		p.RecordBatches = append(p.RecordBatches, b.raw()...)
	}
	return &p
}

func parse(p *block, position int64, committed bool) (chunk, error) {
	c := chunk{codec: newDecompressor(maxBatchBytes)}
	err := c.parse(p, position, committed)
	return c, err
}

func TestParseShowsWhatIsCommitted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		committed := rapid.Bool().Draw(t, "read committed")
		want, end := h.every, h.end
		if committed {
			want, end = h.visible, h.stable
		}
		from := rapid.Int64Range(0, h.end).Draw(t, "from")
		want = slices.DeleteFunc(slices.Clone(want), func(o int64) bool { return o < from })

		var got []int64
		for position := from; ; {
			p, last := h.fetch(position, rapid.IntRange(1, 4).Draw(t, "batches"), committed)
			c, err := parse(p, position, committed)
			if err != nil {
				t.Fatal(err)
			}
			if c.end != end || c.partial {
				t.Fatalf("end %d, partial %v; want %d", c.end, c.partial, end)
			}
			for _, r := range c.records {
				if r.Value[0] != byte(r.Offset) {
					t.Fatalf("offset %d has the value of %d", r.Offset, r.Value[0])
				}
				got = append(got, r.Offset)
			}
			if last < 0 {
				break
			}
			if c.next != last+1 {
				t.Fatalf("next %d behind a batch that ends at %d", c.next, last)
			}
			position = c.next
		}
		if !slices.Equal(want, got) {
			t.Fatalf("from %d: shown %v, want %v", from, got, want)
		}
	})
}

// Wherever a response is cut, what came whole counts, and nothing of the rest.
func TestParsePartialBatches(t *testing.T) {
	first, second := newLogged(5, 1).add(0, nil, []byte("a")), newLogged(6, 9).add(8, nil, []byte("b"))
	whole := newBlock(15, 15, first, second)
	for cut := range len(whole.RecordBatches) + 1 {
		p := *whole
		p.RecordBatches = whole.RecordBatches[:cut]
		next, n := int64(5), 0
		if cut >= len(first.raw()) {
			next, n = 6, 1
		}
		if cut == len(whole.RecordBatches) {
			next, n = 15, 2
		}
		c, err := parse(&p, 5, true)
		if partial := cut > 0 && next == 5; err != nil || c.next != next || len(c.records) != n || c.partial != partial {
			t.Errorf("cut at %d: next %d, %d records, partial %v, error %v; want %d, %d, %v", cut, c.next, len(c.records), c.partial, err, next, n, partial)
		}
	}
}

func TestParseRefusesABrokenMarker(t *testing.T) {
	if _, err := parse(newBlock(1, 1, newLogged(0, 1).of(1).marker([]byte{0, 0})), 0, true); err == nil {
		t.Error("a marker without a type is taken")
	}
}

// emptyBatch is what compaction leaves of a batch whose records all went: it
// must keep the producer's sequence.
func emptyBatch(first int64, offsets int32) []byte { return newLogged(first, offsets).raw() }

// Nothing in them is shown, and the position passes over them.
func TestReaderPassesOverEmptyBatches(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	send(t, k.producer(t), topic, 0, "a", "b", "c", "d", "e", "f", "g")
	c := k.connect(t, nil)

	fetches := 0
	k.fake.Fake().ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.fake.Fake().KeepControl()
		asked := req.(*kmsg.FetchRequest)
		offset := asked.Topics[0].Partitions[0].FetchOffset
		if offset >= 5 {
			return nil, nil, false // from here on there are records
		}
		fetches++
		resp := asked.ResponseKind().(*kmsg.FetchResponse)
		p := kmsg.NewFetchResponseTopicPartition()
		p.HighWatermark, p.LastStableOffset, p.RecordBatches = 7, 7, emptyBatch(0, 3)
		if offset >= 3 {
			p.RecordBatches = append(emptyBatch(3, 1), emptyBatch(4, 1)...)
		}
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = asked.Topics[0].Topic, asked.Topics[0].TopicID
		rt.Partitions = append(rt.Partitions, p)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	if diff := cmp.Diff([]string{"f", "g"}, readAll(t, c, topic, 0, 0, 7)); diff != "" {
		t.Error(diff)
	}
	if fetches != 2 {
		t.Errorf("%d fetches of empty batches, want 2", fetches)
	}
}
