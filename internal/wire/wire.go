package wire

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Every format is a header of three bytes and fields until the end:
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
	// FormatVersion is the major version that is written, and the only one
	// that is read.
	FormatVersion = 1
	// HeaderSize is the length of a header in bytes.
	HeaderSize = 3

	formatMark = 'j'
)

// The kinds of data, one for each format.
const (
	KindUserData  = 'u' // a member to the leader of its group
	KindDirectory = 'd' // the leader to the members
	KindQuestions = 'q' // a pod to the owner of prices
	KindAnswers   = 'a' // and back
	KindSnapshot  = 's' // a price table, to whoever goes on with it
)

// TagDeflated holds more fields, compressed by DEFLATE (RFC 1951), in any
// format.
const TagDeflated = 15

// MaxInflated bounds what the compressed fields of one message may grow to
// together, in bytes: 10,000 partitions and 1,000 members need about a tenth.
const MaxInflated = 4 << 20

// leastInflated is what a compressed field counts for at least: an empty one
// costs its reader something as well, and a message has room for a million.
const leastInflated = 4 << 10

// What Open and EachField report.
var (
	ErrForeign   = errors.New("not written by a joiner")
	ErrTruncated = errors.New("data ends in the middle of a field")
)

// VersionError reports data of ours in a format that this version cannot read.
type VersionError struct{ Version byte }

func (e VersionError) Error() string {
	return fmt.Sprintf("format version %d, only %d is known", e.Version, FormatVersion)
}

// Header begins data of the kind.
func Header(kind byte) []byte { return []byte{FormatVersion, formatMark, kind} }

// Open checks the header and returns the fields. Errors: ErrForeign, also for
// data of another kind, or a VersionError.
func Open(data []byte, kind byte) ([]byte, error) {
	if len(data) < HeaderSize || data[0] == 0 || data[1] != formatMark || data[2] != kind {
		return nil, ErrForeign
	}
	if data[0] != FormatVersion {
		return nil, VersionError{data[0]}
	}
	return data[HeaderSize:], nil
}

// AppendField appends a field of that tag.
func AppendField(dst []byte, tag uint64, body []byte) []byte {
	dst = binary.AppendUvarint(dst, tag)
	return AppendBytes(dst, body)
}

// AppendBytes appends a length and that many bytes, for Cursor.Bytes and Text.
func AppendBytes[T string | []byte](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// AppendText appends a field that is a text. It leaves empty ones out: absent
// and empty mean the same.
func AppendText(dst []byte, tag uint64, text string) []byte {
	if text == "" {
		return dst
	}
	return AppendField(dst, tag, []byte(text))
}

// AppendNumber appends a field that is a number. It leaves zeros out.
func AppendNumber(dst []byte, tag, n uint64) []byte {
	if n == 0 {
		return dst
	}
	return AppendField(dst, tag, binary.AppendUvarint(nil, n))
}

// EachField calls f with every field, those that are compressed included. The
// first error of f or of a cursor ends it; it names the tag.
func EachField(fields []byte, f func(tag uint64, body *Cursor) error) error {
	w := walk{each: f, room: MaxInflated}
	return w.fields(fields, true)
}

// walk goes through the fields of one message.
type walk struct {
	each   func(uint64, *Cursor) error
	room   int // what compressed fields may still grow to
	reader io.ReadCloser
}

func (w *walk) fields(fields []byte, inflate bool) error {
	c := Cursor{b: fields}
	for len(c.b) > 0 {
		tag, body := c.Uvarint(), c.Bytes()
		if c.err != nil {
			return c.err
		}
		if tag == TagDeflated && inflate {
			more, err := w.inflated(body)
			if err != nil {
				return err
			}
			// Not again inside: nobody writes that, and it would multiply.
			if err := w.fields(more, false); err != nil {
				return err
			}
			continue
		}
		in := Cursor{b: body}
		if err := w.each(tag, &in); err != nil {
			return fmt.Errorf("field %d: %w", tag, err)
		}
		if in.err != nil {
			return fmt.Errorf("field %d: %w", tag, in.err)
		}
	}
	return nil
}

func (w *walk) inflated(body []byte) ([]byte, error) {
	from := bytes.NewReader(body)
	if r, again := w.reader.(flate.Resetter); again {
		if err := r.Reset(from, nil); err != nil {
			return nil, fmt.Errorf("inflate: %w", err)
		}
	} else {
		w.reader = flate.NewReader(from)
	}
	out, err := io.ReadAll(io.LimitReader(w.reader, int64(w.room)+1))
	if err != nil {
		return nil, fmt.Errorf("inflate: %w", err)
	}
	if w.room -= max(len(out), leastInflated); w.room < 0 {
		return nil, fmt.Errorf("inflate: more than %d bytes", MaxInflated)
	}
	return out, nil
}

// Deflate compresses fields for a TagDeflated.
func Deflate(fields []byte) ([]byte, error) {
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

// Cursor reads the body of a field. Its first failure sticks; reads after it
// give zeros. What it returns aliases the data.
type Cursor struct {
	b   []byte
	err error
}

// NewCursor reads from body.
func NewCursor(body []byte) *Cursor { return &Cursor{b: body} }

// Rest is what has not been read, empty after a failure.
func (c *Cursor) Rest() []byte { return c.b }

// Err is the first failure.
func (c *Cursor) Err() error { return c.err }

// Fail makes err the cursor's failure unless it has one.
func (c *Cursor) Fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

// Uvarint reads an unsigned number.
func (c *Cursor) Uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.Fail(ErrTruncated)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// Varint reads a signed number (zigzag).
func (c *Cursor) Varint() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.Fail(ErrTruncated)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// Int32 reads a number that must fit 31 bits.
func (c *Cursor) Int32() int32 {
	v := c.Uvarint()
	if v > 1<<31-1 {
		c.Fail(fmt.Errorf("%d does not fit 31 bits", v))
		return 0
	}
	return int32(v)
}

// Bytes reads a length and returns a slice of the data it reads from.
func (c *Cursor) Bytes() []byte {
	n := c.Uvarint()
	if n > uint64(len(c.b)) {
		c.Fail(ErrTruncated)
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

// Text is Bytes as a text.
func (c *Cursor) Text() string { return string(c.Bytes()) }

// Length reads a number of elements, each at least one byte long, so that a
// length can never ask for more memory than its data has bytes.
func (c *Cursor) Length() int {
	n := c.Uvarint()
	if n > uint64(len(c.b)) {
		c.Fail(ErrTruncated)
		return 0
	}
	return int(n)
}

// AppendTexts appends a list of texts, for Cursor.Texts.
func AppendTexts(dst []byte, texts []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(texts)))
	for _, t := range texts {
		dst = AppendBytes(dst, t)
	}
	return dst
}

// Texts reads what AppendTexts wrote.
func (c *Cursor) Texts() []string {
	out := make([]string, 0, c.Length())
	for range cap(out) {
		out = append(out, c.Text())
	}
	return out
}

// MaxIndex bounds partition numbers in runs: a run of two bytes can name two
// thousand million of them.
const MaxIndex = 1 << 20

// AppendRuns writes ascending numbers as runs: how many to skip, how many
// follow each other.
func AppendRuns(dst []byte, sorted []int32) []byte {
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

// Runs reads what AppendRuns wrote.
func (c *Cursor) Runs() []int32 {
	var out []int32
	next := uint64(0)
	for range c.Length() {
		skip, n := c.Uvarint(), c.Uvarint()
		if skip > MaxIndex || n > MaxIndex || next+skip+n > MaxIndex {
			c.Fail(fmt.Errorf("partition numbers beyond %d", MaxIndex))
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
