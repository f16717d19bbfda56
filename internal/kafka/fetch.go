package kafka

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

// chunk is what one fetch of one partition told.
type chunk struct {
	records []record.Record // visible ones, from the position asked for on
	next    int64           // where to go on; the position asked for if nothing was learnt
	end     int64           // end for the isolation level
	high    int64           // high watermark
	partial bool            // not even one whole batch came: ask for more bytes

	// spill makes room in records when they are at their capacity: it takes
	// them away and puts an empty slice in their place. nil: they grow.
	spill func(c *chunk)
}

// parse makes a chunk of a fetch at position. Under read committed, records of
// aborted transactions are left out; control records (transaction markers)
// always are. The records are appended to buf, which may be nil.
func parse(block *sarama.FetchResponseBlock, position int64, committed bool, buf []record.Record) (chunk, error) {
	c := chunk{records: buf}
	err := c.parse(block, position, committed)
	return c, err
}

// parse is parse into c, whose records and spill are set. After an error c is
// right up to c.next.
func (c *chunk) parse(block *sarama.FetchResponseBlock, position int64, committed bool) error {
	c.next, c.high, c.end = position, block.HighWaterMarkOffset, block.HighWaterMarkOffset
	if committed {
		c.end = block.LastStableOffset
	}
	aborted := newAborts(block.AbortedTransactions)
	for _, set := range block.RecordsSet {
		switch {
		case set.MsgSet != nil:
			c.addMessages(set.MsgSet, position)
		case set.RecordBatch == nil:
		case set.RecordBatch.PartialTrailingRecord:
			// Only ever the last; what it holds is not to be trusted.
			c.partial = c.next == position
			return nil
		default:
			if err := c.addBatch(set.RecordBatch, position, committed, aborted); err != nil {
				return err
			}
		}
	}
	if len(block.RecordsSet) == 0 {
		c.next = max(c.next, pastEmpty(block))
	}
	c.partial = c.next == position && (block.Partial || partialMessages(block))
	return nil
}

func (c *chunk) add(r record.Record) {
	if c.spill != nil && len(c.records) == cap(c.records) {
		c.spill(c)
	}
	c.records = append(c.records, r)
}

func (c *chunk) addBatch(b *sarama.RecordBatch, position int64, committed bool, aborted *aborts) error {
	hidden := false
	if committed {
		aborted.reach(b.LastOffset())
		hidden = b.IsTransactional && aborted.open[b.ProducerID]
	}
	if b.Control {
		hidden = true
		if err := aborted.marker(b); err != nil {
			return fmt.Errorf("control batch at offset %d: %w", b.FirstOffset, err)
		}
	}
	// The batch's own last offset and not its last record's: compaction leaves
	// gaps at the end.
	c.next = max(c.next, b.LastOffset()+1)
	if hidden {
		return nil
	}
	for _, r := range b.Records {
		if b.FirstOffset+r.OffsetDelta >= position {
			c.add(FromRecord(b, r))
		}
	}
	return nil
}

// addMessages takes the formats before Kafka 0.11, which old segments keep. In
// format 1 the offsets inside a compressed message count from 0, and the
// wrapper bears the offset of the last.
func (c *chunk) addMessages(set *sarama.MessageSet, position int64) {
	for _, wrapper := range set.Messages {
		inner := wrapper.Messages()
		if len(inner) == 0 {
			continue
		}
		base := int64(0)
		if wrapper.Msg.Set != nil && wrapper.Msg.Version >= 1 {
			base = wrapper.Offset - inner[len(inner)-1].Offset
		}
		for _, m := range inner {
			offset := base + m.Offset
			if offset < position {
				continue
			}
			at := m.Msg.Timestamp
			if m.Msg.LogAppendTime {
				at = wrapper.Msg.Timestamp
			}
			c.add(record.Record{Offset: offset, Timestamp: timestamp(at), Key: m.Msg.Key, Value: m.Msg.Value})
		}
		c.next = max(c.next, wrapper.Offset+1)
	}
}

func partialMessages(block *sarama.FetchResponseBlock) bool {
	n := len(block.RecordsSet)
	return n > 0 && block.RecordsSet[n-1].MsgSet != nil && block.RecordsSet[n-1].MsgSet.PartialTrailingMessage
}

// pastEmpty returns the offset behind the batches of a response of which none
// has a record left, as compaction leaves them; 0 where there is no batch.
// sarama drops such batches and keeps that offset to itself, so it is read by
// reflection: without it a reader would stand before them for ever, or have to
// try offset by offset. A test fails when the field goes.
func pastEmpty(block *sarama.FetchResponseBlock) int64 {
	field := reflect.ValueOf(block).Elem().FieldByName("recordsNextOffset")
	if !field.IsValid() || field.Kind() != reflect.Pointer || field.IsNil() {
		return 0
	}
	return field.Elem().Int()
}

// aborts follows which producers' records belong to an aborted transaction, as
// a fetch's batches go by (KIP-98): from its first offset, which the response
// names, to its abort marker, which lies in the log.
type aborts struct {
	coming []*sarama.AbortedTransaction // by first offset
	open   map[int64]bool               // by producer id
}

func newAborts(txns []*sarama.AbortedTransaction) *aborts {
	coming := slices.Clone(txns)
	slices.SortFunc(coming, func(a, b *sarama.AbortedTransaction) int {
		return cmp.Compare(a.FirstOffset, b.FirstOffset)
	})
	return &aborts{coming: coming, open: make(map[int64]bool, len(coming))}
}

// reach opens the transactions that have begun up to offset.
func (a *aborts) reach(offset int64) {
	for len(a.coming) > 0 && a.coming[0].FirstOffset <= offset {
		a.open[a.coming[0].ProducerID] = true
		a.coming = a.coming[1:]
	}
}

// abortMarker is the type of a control record that ends an aborted transaction.
const abortMarker = 0

// marker ends the producer's aborted transaction. Control records of other
// types mean nothing here.
func (a *aborts) marker(b *sarama.RecordBatch) error {
	if len(b.Records) == 0 {
		return nil // compacted away, its transaction with it
	}
	key := b.Records[0].Key // version, type: two int16
	if len(key) < 4 {
		return fmt.Errorf("key of %d bytes, 4 are needed", len(key))
	}
	if binary.BigEndian.Uint16(key[2:]) == abortMarker {
		delete(a.open, b.ProducerID)
	}
	return nil
}
