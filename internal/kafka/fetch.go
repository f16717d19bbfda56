package kafka

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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
	codec kgo.Decompressor
}

// parse makes c of a fetch at position; its records, spill and codec are set.
// Under read committed, records of aborted transactions are left out; control
// records (transaction markers) always are. Keys, values and headers alias the
// response. After an error c.next is behind the last record that could be read.
func (c *chunk) parse(p *block, position int64, committed bool) error {
	c.next, c.high, c.end = position, p.HighWatermark, p.HighWatermark
	if committed {
		c.end = p.LastStableOffset
	}
	aborted := newAborts(p.AbortedTransactions)
	for raw := p.RecordBatches; len(raw) > 0; {
		one, rest, err := cutBatch(raw)
		if err == errCut { //nolint:errorlint // our own, as it is
			c.partial = c.next == position
			return nil
		}
		if err == nil {
			err = c.take(one, position, committed, aborted)
		}
		if err != nil {
			return err
		}
		raw = rest
	}
	c.partial = false
	return nil
}

func (c *chunk) take(raw []byte, position int64, committed bool, aborted *aborts) error {
	if raw[formatAt] < batchFormat {
		last, err := oldMessage(raw, position, c.codec, func(r record.Record) { *c.slot() = r })
		if err != nil {
			return err
		}
		c.next = max(c.next, last+1)
		return nil
	}
	if raw[formatAt] > batchFormat {
		return fmt.Errorf("%w: its format is %d", errBatch, raw[formatAt])
	}
	b, err := readBatch(raw)
	if err != nil {
		return err
	}
	return c.takeBatch(&b, position, committed, aborted)
}

// passTaken moves next behind the last record, which would else come again: those
// in front of the one that cannot be read are good.
func (c *chunk) passTaken() {
	if n := len(c.records); n > 0 {
		c.next = max(c.next, c.records[n-1].Offset+1)
	}
}

// slot is where the next record goes.
func (c *chunk) slot() *record.Record {
	n := len(c.records)
	if n == cap(c.records) {
		if c.spill == nil {
			c.records = slices.Grow(c.records, 1)
		} else {
			c.spill(c)
			n = 0
		}
	}
	c.records = c.records[:n+1]
	return &c.records[n]
}

func (c *chunk) takeBatch(b *batch, position int64, committed bool, aborted *aborts) error {
	hidden := false
	if committed {
		aborted.reach(b.last)
		hidden = b.is(transactionalBit) && aborted.open[b.producer]
	}
	if b.is(controlBit) {
		hidden = true
		if err := aborted.marker(b, c.codec); err != nil {
			return fmt.Errorf("control batch at offset %d: %w", b.first, err)
		}
	}
	if !hidden && b.last >= position {
		body, err := b.body(c.codec)
		if err == nil {
			err = b.each(body, position, c.slot)
		}
		if err != nil {
			c.passTaken()
			return fmt.Errorf("batch at offset %d: %w", b.first, err)
		}
	}
	// The batch's own last offset and not its last record's: compaction leaves
	// gaps at the end, and batches of which nothing is left.
	c.next = max(c.next, b.last+1)
	return nil
}

// aborts follows which producers' records belong to an aborted transaction, as
// a fetch's batches go by (KIP-98): from its first offset, which the response
// names, to its abort marker, which lies in the log.
type aborts struct {
	coming []kmsg.FetchResponseTopicPartitionAbortedTransaction // by first offset
	open   map[int64]bool                                       // by producer id
}

func newAborts(txns []kmsg.FetchResponseTopicPartitionAbortedTransaction) *aborts {
	if len(txns) == 0 {
		return &aborts{}
	}
	coming := slices.Clone(txns)
	slices.SortFunc(coming, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
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
func (a *aborts) marker(b *batch, d kgo.Decompressor) error {
	if b.count == 0 {
		return nil // compacted away, its transaction with it
	}
	body, err := b.body(d)
	if err != nil {
		return err
	}
	var r record.Record
	if err := b.each(body, b.first, func() *record.Record { return &r }); err != nil {
		return err
	}
	if len(r.Key) < 4 { // version, type: two int16
		return fmt.Errorf("key of %d bytes, 4 are needed", len(r.Key))
	}
	if binary.BigEndian.Uint16(r.Key[2:]) == abortMarker {
		delete(a.open, b.producer)
	}
	return nil
}
