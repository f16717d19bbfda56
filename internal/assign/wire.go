package assign

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Both formats are a header of three bytes and fields until the end:
//
//	version  1 byte   the major version; a reader knows its own only
//	'j'      1 byte   ours
//	kind     1 byte   what it is: a member echoes back whatever it was last
//	                  assigned when its strategy has no user data of its own,
//	                  so a directory may well arrive where user data should
//	fields            uvarint tag, uvarint length, that many bytes
//
// A field of an unknown tag is skipped, of a repeated one the last counts
// unless it is said to repeat, and bytes at the end of a field's body that the
// reader does not know are ignored: that is how a format grows within its major
// version. sarama's own sticky data begins with a zero byte, so it is never
// taken for ours.
const (
	formatVersion = 1
	formatMark    = 'j'
	kindUserData  = 'u'
	kindDirectory = 'd'
	headerSize    = 3
)

// tagDeflated holds more fields, compressed by DEFLATE (RFC 1951).
const tagDeflated = 15

// maxInflated bounds what a compressed field may grow to, in bytes: 10,000
// partitions and 1,000 members need about a tenth.
const maxInflated = 4 << 20

var (
	errForeign   = errors.New("not written by a joiner")
	errTruncated = errors.New("data ends in the middle of a field")
)

// versionError reports data of ours in a format that this version cannot read.
type versionError struct{ version byte }

func (e versionError) Error() string {
	return fmt.Sprintf("format version %d, only %d is known", e.version, formatVersion)
}

func header(kind byte) []byte { return []byte{formatVersion, formatMark, kind} }

// openFormat checks the header and returns the fields.
func openFormat(data []byte, kind byte) ([]byte, error) {
	if len(data) < headerSize || data[0] == 0 || data[1] != formatMark || data[2] != kind {
		return nil, errForeign
	}
	if data[0] != formatVersion {
		return nil, versionError{data[0]}
	}
	return data[headerSize:], nil
}

func appendField(dst []byte, tag uint64, body []byte) []byte {
	dst = binary.AppendUvarint(dst, tag)
	return appendBytes(dst, body)
}

func appendBytes[T string | []byte](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// appendText leaves empty texts out: absent and empty mean the same.
func appendText(dst []byte, tag uint64, text string) []byte {
	if text == "" {
		return dst
	}
	return appendField(dst, tag, []byte(text))
}

// appendNumber leaves zeros out.
func appendNumber(dst []byte, tag, n uint64) []byte {
	if n == 0 {
		return dst
	}
	return appendField(dst, tag, binary.AppendUvarint(nil, n))
}

// eachField calls f with every field, those that are compressed included.
func eachField(fields []byte, f func(tag uint64, body *cursor) error) error {
	return walkFields(fields, true, f)
}

func walkFields(fields []byte, inflate bool, f func(uint64, *cursor) error) error {
	c := cursor{b: fields}
	for len(c.b) > 0 {
		tag, body := c.uvarint(), c.bytes()
		if c.err != nil {
			return c.err
		}
		if tag == tagDeflated && inflate {
			more, err := inflated(body)
			if err != nil {
				return err
			}
			// Not again inside: nobody writes that, and it would multiply.
			if err := walkFields(more, false, f); err != nil {
				return err
			}
			continue
		}
		in := cursor{b: body}
		if err := f(tag, &in); err != nil {
			return fmt.Errorf("field %d: %w", tag, err)
		}
		if in.err != nil {
			return fmt.Errorf("field %d: %w", tag, in.err)
		}
	}
	return nil
}

func inflated(body []byte) ([]byte, error) {
	r := flate.NewReader(bytes.NewReader(body))
	out, err := io.ReadAll(io.LimitReader(r, maxInflated+1))
	if err != nil {
		return nil, fmt.Errorf("inflate: %w", err)
	}
	if len(out) > maxInflated {
		return nil, fmt.Errorf("inflate: more than %d bytes", maxInflated)
	}
	return out, nil
}

func deflated(fields []byte) ([]byte, error) {
	var buf bytes.Buffer
	w, err := flate.NewWriter(&buf, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(fields); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// cursor reads the body of a field. Its first failure sticks; reads after it
// give zeros.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail(errTruncated)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// int32 reads a number that must fit.
func (c *cursor) int32() int32 {
	v := c.uvarint()
	if v > 1<<31-1 {
		c.fail(fmt.Errorf("%d does not fit 31 bits", v))
		return 0
	}
	return int32(v)
}

// bytes returns a slice of the data it reads from.
func (c *cursor) bytes() []byte {
	n := c.uvarint()
	if n > uint64(len(c.b)) {
		c.fail(errTruncated)
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) text() string { return string(c.bytes()) }

// length reads a number of elements, each at least one byte long, so that a
// length can never ask for more memory than its data has bytes.
func (c *cursor) length() int {
	n := c.uvarint()
	if n > uint64(len(c.b)) {
		c.fail(errTruncated)
		return 0
	}
	return int(n)
}

func appendTexts(dst []byte, texts []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(texts)))
	for _, t := range texts {
		dst = appendBytes(dst, t)
	}
	return dst
}

func (c *cursor) texts() []string {
	out := make([]string, 0, c.length())
	for range cap(out) {
		out = append(out, c.text())
	}
	return out
}

// maxIndex bounds partition numbers in runs: a run of two bytes can name two
// thousand million of them.
const maxIndex = 1 << 20

// appendRuns writes ascending numbers as runs: how many to skip, how many
// follow each other.
func appendRuns(dst []byte, sorted []int32) []byte {
	var runs []uint64
	next := int32(0)
	for i := 0; i < len(sorted); {
		j := i + 1
		for j < len(sorted) && sorted[j] == sorted[j-1]+1 {
			j++
		}
		runs = append(runs, uint64(sorted[i]-next), uint64(j-i))
		next = sorted[j-1] + 1
		i = j
	}
	dst = binary.AppendUvarint(dst, uint64(len(runs)/2))
	for _, v := range runs {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}

func (c *cursor) runs() []int32 {
	var out []int32
	next := uint64(0)
	for range c.length() {
		skip, n := c.uvarint(), c.uvarint()
		if skip > maxIndex || n > maxIndex || next+skip+n > maxIndex {
			c.fail(fmt.Errorf("partition numbers beyond %d", maxIndex))
		}
		if c.err != nil {
			return nil
		}
		next += skip
		out = slices.Grow(out, int(n))
		for range n {
			out = append(out, int32(next))
			next++
		}
	}
	return out
}
