package audit

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"joiner/internal/record"
)

// symbol stands for a symbol's bytes.
type symbol [2]uint64

// hasher makes short stand-ins for bytes that only need be compared. Its keys
// are drawn at random, so nobody can prepare two that collide.
type hasher struct {
	one, two maphash.Seed
	scratch  []byte
}

func newHasher() *hasher {
	return &hasher{one: maphash.MakeSeed(), two: maphash.MakeSeed()}
}

func (h *hasher) symbol(b []byte) symbol {
	return symbol{maphash.Bytes(h.one, b), maphash.Bytes(h.two, b)}
}

// bytes tells null from empty.
func (h *hasher) bytes(b []byte) uint64 {
	if b == nil {
		return 0
	}
	return maphash.Bytes(h.one, b)
}

func (h *hasher) price(text []byte) uint64 {
	h.scratch = canonical(h.scratch[:0], text)
	return maphash.Bytes(h.one, h.scratch)
}

// meta stands for a record's key and headers, in their order, null and empty
// told apart.
func (h *hasher) meta(key []byte, headers []record.Header) uint64 {
	b := appendPart(h.scratch[:0], key)
	for i := range headers {
		b = appendPart(appendPart(b, headers[i].Key), headers[i].Value)
	}
	h.scratch = b
	return maphash.Bytes(h.one, b)
}

func appendPart(dst, part []byte) []byte {
	if part == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(append(dst, 1), uint64(len(part))), part...)
}

// opening is how joiner begins an alert.
const opening = `{"notification":`

// embedded returns the notification inside an alert's value, byte for byte:
// with the white space around it where the alert is written as joiner writes
// it. inner is the notification without, as the alert's decoder returned it.
// Where the alert is written otherwise, its white space is its own.
func embedded(value, inner []byte) []byte {
	const space = " \t\r\n"
	rest, ok := bytes.CutPrefix(value, []byte(opening))
	if !ok {
		return inner
	}
	lead := len(rest) - len(bytes.TrimLeft(rest, space))
	end := lead + len(inner)
	if end > len(rest) || !bytes.Equal(rest[lead:end], inner) {
		return inner // another member of that name, further on
	}
	tail := rest[end:]
	return rest[:end+len(tail)-len(bytes.TrimLeft(tail, space))]
}
