package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"joiner/internal/record"
	"joiner/internal/wire"
)

// A snapshot is a head and, for each symbol, an entry. Where they lie, or how
// they travel, is not said here: a checkpoint keeps them in a store on a disk.
//
// An entry is its versions, oldest first, the newest last, none of them
// without a successor unless it is the newest:
//
//	version   uvarint length, that many bytes:
//	  flags   uvarint   1: a tombstone
//	  time    varint    event time in ms
//	  offset  uvarint   of the tick
//	  price   the price's text: uvarint length, bytes
//	  …       ignored
//
// The head's format version (wire.FormatVersion) is that of the entries, too.

// The fields of a head.
const (
	headCluster   = 1
	headGroup     = 2
	headTopic     = 3
	headTopicID   = 4
	headPartition = 5
	headRules     = 6
	headHistory   = 7
	headFrom      = 8
	headUpTo      = 9
	headNext      = 10
	headWritten   = 11
	headSince     = 12
)

const flagTombstone = 1

// Scope says whose prices a snapshot holds.
type Scope struct {
	Cluster   string
	Group     string
	Topic     string // the market topic's name
	TopicID   string // changes when the topic is made anew
	Partition int32
	// Rules is how a price is made of a record, in the words of whoever knows:
	// two snapshots of the same records differ where it does.
	Rules string
	// History is the table's join.history.
	History record.Millis
}

// Head says what a snapshot is of.
type Head struct {
	Scope
	// From is the offset up to which every record is in the snapshot: where
	// reading goes on.
	From int64
	// UpTo is the offset below which all lie that any part of the snapshot was
	// made of, at least From. Between the two the snapshot may hold some records'
	// work and lack others': read up to UpTo, the table is whole again.
	UpTo int64
	// Next is Table.Next at UpTo.
	Next int64
	// Written is the wall clock when the snapshot was taken.
	Written record.Millis
	// Since is a moment before which no record at or above From was written, as
	// far as that was known: at most Written.
	Since record.Millis
}

// AppendHead encodes a head.
func AppendHead(dst []byte, h *Head) []byte {
	dst = append(dst, wire.Header(wire.KindSnapshot)...)
	dst = wire.AppendText(dst, headCluster, h.Cluster)
	dst = wire.AppendText(dst, headGroup, h.Group)
	dst = wire.AppendText(dst, headTopic, h.Topic)
	dst = wire.AppendText(dst, headTopicID, h.TopicID)
	dst = wire.AppendNumber(dst, headPartition, uint64(h.Partition))
	dst = wire.AppendText(dst, headRules, h.Rules)
	dst = wire.AppendNumber(dst, headHistory, uint64(h.History))
	dst = wire.AppendNumber(dst, headFrom, uint64(h.From))
	dst = wire.AppendNumber(dst, headUpTo, uint64(h.UpTo))
	dst = wire.AppendNumber(dst, headNext, uint64(h.Next))
	dst = wire.AppendNumber(dst, headWritten, uint64(max(0, h.Written)))
	return wire.AppendNumber(dst, headSince, uint64(max(0, h.Since)))
}

// DecodeHead decodes a head. Its errors are those of package wire (a
// wire.VersionError where it was written in a format of the future), and
// ErrDamaged where it contradicts itself.
func DecodeHead(data []byte) (Head, error) {
	var h Head
	fields, err := wire.Open(data, wire.KindSnapshot)
	if err != nil {
		return h, fmt.Errorf("snapshot: %w", err)
	}
	err = wire.EachField(fields, func(tag uint64, c *wire.Cursor) error {
		switch tag {
		case headCluster:
			h.Cluster = string(c.Rest())
		case headGroup:
			h.Group = string(c.Rest())
		case headTopic:
			h.Topic = string(c.Rest())
		case headTopicID:
			h.TopicID = string(c.Rest())
		case headPartition:
			h.Partition = c.Int32()
		case headRules:
			h.Rules = string(c.Rest())
		case headHistory:
			h.History = record.Millis(natural(c))
		case headFrom:
			h.From = natural(c)
		case headUpTo:
			h.UpTo = natural(c)
		case headNext:
			h.Next = natural(c)
		case headWritten:
			h.Written = record.Millis(natural(c))
		case headSince:
			h.Since = record.Millis(natural(c))
		}
		return nil
	})
	if err != nil {
		return h, fmt.Errorf("snapshot: %w", err)
	}
	if h.From > h.UpTo || h.Next > h.UpTo || h.Since > h.Written {
		return h, fmt.Errorf("snapshot from %d up to %d, next %d: %w", h.From, h.UpTo, h.Next, ErrDamaged)
	}
	return h, nil
}

// natural reads a number that fits 63 bits.
func natural(c *wire.Cursor) int64 {
	n := c.Uvarint()
	if n > 1<<63-1 {
		c.Fail(ErrDamaged)
		return 0
	}
	return int64(n)
}

// ErrDamaged reports a snapshot that nobody wrote like this.
var ErrDamaged = errors.New("damaged")

// appendEntry encodes what is known of a symbol.
func appendEntry(dst []byte, e *entry) []byte {
	if e.past != nil {
		kept := e.past.kept()
		for i := range kept {
			dst = appendVersion(dst, &kept[i])
		}
	}
	return appendVersion(dst, &e.newest)
}

func appendVersion(dst []byte, v *version) []byte {
	var head [3 * binary.MaxVarintLen64]byte
	flags, text := uint64(0), v.text
	if v.tombstone {
		flags, text = flagTombstone, nil
	}
	h := binary.AppendUvarint(head[:0], flags)
	h = binary.AppendVarint(h, int64(v.time))
	h = binary.AppendUvarint(h, uint64(v.offset))
	dst = binary.AppendUvarint(dst, uint64(len(h)+uvarintLen(len(text))+len(text)))
	dst = append(dst, h...)
	return wire.AppendBytes(dst, text)
}

func uvarintLen(n int) int {
	size := 1
	for n >= 1<<7 {
		n >>= 7
		size++
	}
	return size
}

// Load enters a symbol as it was taken; it must not be in the table yet, and
// the data must be no other format's. With a shorter join.history than the one
// it was taken under, versions that are not kept any more are left out. It is
// no change. Lock must be held. It fails with ErrDamaged, and then leaves the
// table as it was.
func (t *Table) Load(symbol, data []byte) error {
	if t.entries[string(symbol)] != nil {
		return fmt.Errorf("symbol %q comes twice: %w", symbol, ErrDamaged)
	}
	versions, err := decodeEntry(t.loading[:0], data)
	t.loading = versions
	if err != nil {
		return fmt.Errorf("symbol %q: %w", symbol, err)
	}
	e := t.enter(string(symbol))
	for i := range versions {
		v := &versions[i]
		if i > 0 && t.history > 0 {
			t.push(e)
		}
		t.set(&e.newest, &record.Tick{Price: v.text, EventTime: v.time, Tombstone: v.tombstone}, v.offset)
		t.trim(e)
	}
	if !e.newest.tombstone {
		t.symbols.Add(1)
	}
	return nil
}

// Loaded ends a series of Load: next is the head's Next. Lock must be held.
func (t *Table) Loaded(next int64) {
	t.loading = nil
	t.next.Store(next)
}

// Clear forgets everything, as after a Load that failed half way. Lock must be
// held.
func (t *Table) Clear() {
	t.entries = make(map[string]*entry)
	t.slab, t.loading = nil, nil
	if t.changes != nil {
		t.changes = &changes{}
	}
	t.next.Store(0)
	t.symbols.Store(0)
	t.bytes.Store(0)
}

// decodeEntry appends the versions, whose texts alias the data.
func decodeEntry(versions []version, data []byte) ([]version, error) {
	c := wire.NewCursor(data)
	for len(c.Rest()) > 0 {
		body := wire.NewCursor(c.Bytes())
		flags := body.Uvarint()
		v := version{time: record.Millis(body.Varint()), offset: natural(body), text: body.Bytes()}
		v.tombstone = flags&flagTombstone != 0
		if c.Err() != nil || body.Err() != nil {
			return versions, fmt.Errorf("version %d: %w", len(versions), ErrDamaged)
		}
		if n := len(versions); n > 0 && versions[n-1].time >= v.time {
			return versions, fmt.Errorf("versions out of order: %w", ErrDamaged)
		}
		if v.tombstone != (len(v.text) == 0) || !v.tombstone && !number(v.text) {
			return versions, fmt.Errorf("price %q, tombstone %t: %w", v.text, v.tombstone, ErrDamaged)
		}
		versions = append(versions, v)
	}
	if len(versions) == 0 {
		return versions, fmt.Errorf("no version: %w", ErrDamaged)
	}
	return versions, nil
}

// number reports whether text is a JSON number and nothing else.
func number(text []byte) bool {
	first, last := text[0], text[len(text)-1]
	return (first == '-' || '0' <= first && first <= '9') && '0' <= last && last <= '9' && json.Valid(text)
}
