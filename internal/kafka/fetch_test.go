package kafka

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"joiner/internal/record"
)

// history is a log made at random, with what a reader must see of it.
type history struct {
	batches []*sarama.RecordBatch
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
	b := &sarama.RecordBatch{
		Version: 2, FirstOffset: h.end, LastOffsetDelta: n - 1, FirstTimestamp: time.UnixMilli(1),
		ProducerID: producer - 1, IsTransactional: producer > 0,
	}
	for delta := range int64(n) {
		offset := h.end + delta
		if producer > 0 {
			open[producer] = append(open[producer], offset)
		}
		if rapid.IntRange(0, 4).Draw(t, "compacted") == 0 {
			continue
		}
		b.Records = append(b.Records, &sarama.Record{OffsetDelta: delta, Value: []byte{byte(offset)}})
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
	h.batches = append(h.batches, &sarama.RecordBatch{
		Version: 2, FirstOffset: h.end, ProducerID: producer - 1, IsTransactional: true, Control: true,
		Records: []*sarama.Record{{Key: key}},
	})
	delete(open, producer)
	h.end++
}

// fetch answers like a broker: whole batches from the one that holds position
// on, at most limit, below the end for the isolation level.
func (h *history) fetch(position int64, limit int, committed bool) *sarama.FetchResponseBlock {
	block := &sarama.FetchResponseBlock{HighWaterMarkOffset: h.end, LastStableOffset: h.stable}
	bound := h.end
	if committed {
		bound = h.stable
	}
	last := int64(-1)
	for _, b := range h.batches {
		if b.LastOffset() < position || b.FirstOffset >= bound || len(block.RecordsSet) == limit {
			continue
		}
		if len(b.Records) == 0 {
			continue // sarama drops it
		}
		block.RecordsSet = append(block.RecordsSet, &sarama.Records{RecordBatch: b})
		last = b.LastOffset()
	}
	for _, a := range h.aborted {
		if committed && a.marker >= position && a.first <= last {
			block.AbortedTransactions = append(block.AbortedTransactions,
				&sarama.AbortedTransaction{ProducerID: a.producer, FirstOffset: a.first})
		}
	}
	return block
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
			limit := rapid.IntRange(1, 4).Draw(t, "batches")
			block := h.fetch(position, limit, committed)
			c, err := parse(block, position, committed, nil)
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
			if len(block.RecordsSet) == 0 {
				break // only batches without records are left
			}
			if last := block.RecordsSet[len(block.RecordsSet)-1].RecordBatch; c.next != last.LastOffset()+1 {
				t.Fatalf("next %d behind a batch that ends at %d", c.next, last.LastOffset())
			}
			position = c.next
		}
		if !slices.Equal(want, got) {
			t.Fatalf("from %d: shown %v, want %v", from, got, want)
		}
	})
}

func TestParsePartialBatches(t *testing.T) {
	whole := &sarama.Records{RecordBatch: &sarama.RecordBatch{FirstOffset: 5, Records: []*sarama.Record{{}}}}
	cut := &sarama.Records{RecordBatch: &sarama.RecordBatch{FirstOffset: 6, LastOffsetDelta: 9, PartialTrailingRecord: true}}
	for name, test := range map[string]struct {
		sets    []*sarama.Records
		header  bool // not even a header came whole
		next    int64
		partial bool
	}{
		"whole":       {[]*sarama.Records{whole}, false, 6, false},
		"whole, cut":  {[]*sarama.Records{whole, cut}, false, 6, false},
		"cut":         {[]*sarama.Records{cut}, false, 5, true},
		"header":      {nil, true, 5, true},
		"nothing":     {nil, false, 5, false},
		"old, cut":    {[]*sarama.Records{{MsgSet: &sarama.MessageSet{PartialTrailingMessage: true}}}, false, 5, true},
		"empty union": {[]*sarama.Records{{}}, false, 5, false},
	} {
		c, err := parse(&sarama.FetchResponseBlock{RecordsSet: test.sets, Partial: test.header}, 5, true, nil)
		if err != nil || c.next != test.next || c.partial != test.partial {
			t.Errorf("%s: next %d, partial %v, error %v; want %d, %v", name, c.next, c.partial, err, test.next, test.partial)
		}
	}
}

func TestParseRefusesABrokenMarker(t *testing.T) {
	b := &sarama.RecordBatch{Control: true, Records: []*sarama.Record{{Key: []byte{0, 0}}}}
	block := &sarama.FetchResponseBlock{RecordsSet: []*sarama.Records{{RecordBatch: b}}}
	if _, err := parse(block, 0, true, nil); err == nil {
		t.Error("a marker without a type is taken")
	}
}

func TestParseOldFormats(t *testing.T) {
	at, stamped := time.UnixMilli(7), time.UnixMilli(9)
	message := func(v int8, value string, append bool) *sarama.Message {
		return &sarama.Message{Version: v, Value: []byte(value), Timestamp: at, LogAppendTime: append}
	}
	wrapped := func(offset int64, v int8, append bool, inner ...*sarama.MessageBlock) *sarama.MessageBlock {
		return &sarama.MessageBlock{Offset: offset, Msg: &sarama.Message{
			Version: v, Timestamp: stamped, LogAppendTime: append, Set: &sarama.MessageSet{Messages: inner},
		}}
	}
	set := &sarama.MessageSet{Messages: []*sarama.MessageBlock{
		{Offset: 3, Msg: message(0, "before", false)},
		{Offset: 4, Msg: message(1, "single", false)},
		wrapped(6, 1, false, // relative offsets
			&sarama.MessageBlock{Offset: 0, Msg: message(1, "a", false)},
			&sarama.MessageBlock{Offset: 1, Msg: message(1, "b", false)}),
		wrapped(8, 0, false, // absolute ones
			&sarama.MessageBlock{Offset: 7, Msg: message(0, "c", false)},
			&sarama.MessageBlock{Offset: 8, Msg: message(0, "d", false)}),
		wrapped(9, 1, true, &sarama.MessageBlock{Offset: 0, Msg: message(1, "e", true)}),
	}}
	c, err := parse(&sarama.FetchResponseBlock{RecordsSet: []*sarama.Records{{MsgSet: set}}}, 4, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	var want []record.Record
	for i, v := range []string{"single", "a", "b", "c", "d", "e"} {
		want = append(want, record.Record{Offset: int64(4 + i), Timestamp: 7, Value: []byte(v)})
	}
	want[5].Timestamp = 9
	if diff := cmp.Diff(want, c.records); diff != "" {
		t.Error(diff)
	}
	if c.next != 10 {
		t.Errorf("next %d, want 10", c.next)
	}
}

// emptyBatch is what compaction leaves of a batch whose records all went: it
// must keep the producer's sequence.
func emptyBatch(first int64, offsets int32) []byte {
	b := kmsg.RecordBatch{
		FirstOffset: first, PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: offsets - 1,
		ProducerID: 1, Length: 49, // all that follows Length, without records
	}
	raw := b.AppendTo(nil)
	const crcAt, crcEnd = 17, 21
	binary.BigEndian.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcEnd:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// sarama hides batches without records, and how far they reach, from raw
// fetches; this also fails where the field that pastEmpty reads is gone.
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
