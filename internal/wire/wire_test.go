package wire

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

func TestFields(t *testing.T) {
	data := Header(KindQuestions)
	data = AppendText(data, 1, "group")
	data = AppendNumber(data, 2, 300)
	data = AppendText(data, 3, "")  // left out
	data = AppendNumber(data, 4, 0) // likewise
	data = AppendField(data, 5, AppendRuns(nil, []int32{0, 1, 5}))
	data = AppendField(data, 6, AppendTexts(nil, []string{"a", ""}))
	data = AppendField(data, 7, binary.AppendVarint(nil, -9))
	data = AppendField(data, 99, []byte("of a later version"))

	fields, err := Open(data, KindQuestions)
	if err != nil {
		t.Fatal(err)
	}
	var tags []uint64
	err = EachField(fields, func(tag uint64, c *Cursor) error {
		tags = append(tags, tag)
		switch tag {
		case 1:
			if got := string(c.Rest()); got != "group" {
				t.Errorf("text %q", got)
			}
		case 2:
			if got := c.Int32(); got != 300 {
				t.Errorf("number %d", got)
			}
		case 5:
			if got := c.Runs(); !slices.Equal(got, []int32{0, 1, 5}) {
				t.Errorf("runs %v", got)
			}
		case 6:
			if got := c.Texts(); !slices.Equal(got, []string{"a", ""}) {
				t.Errorf("texts %q", got)
			}
		case 7:
			if got := c.Varint(); got != -9 {
				t.Errorf("signed number %d", got)
			}
		}
		return nil
	})
	if err != nil || !slices.Equal(tags, []uint64{1, 2, 5, 6, 7, 99}) {
		t.Errorf("fields %v, error %v", tags, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	var version VersionError
	if _, err := Open([]byte{FormatVersion + 1, 'j', KindAnswers}, KindAnswers); !errors.As(err, &version) || version.Version != FormatVersion+1 {
		t.Errorf("a later version: %v", err)
	}
	for name, data := range map[string][]byte{
		"nothing": nil, "short": {1, 'j'}, "another kind": Header(KindDirectory), "no mark": {1, 'x', KindAnswers}, "sarama's": {0, 'j', KindAnswers},
	} {
		if _, err := Open(data, KindAnswers); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Compressed fields share one bound: many of them, each of which keeps it, would
// let a message of a mebibyte grow to a gibibyte.
func TestCompressedFieldsAreBoundedTogether(t *testing.T) {
	compressed := func(fields []byte) []byte {
		body, err := Deflate(fields)
		if err != nil {
			t.Fatal(err)
		}
		return AppendField(nil, TagDeflated, body)
	}
	third := compressed(AppendField(nil, 9, make([]byte, MaxInflated/3)))
	for name, test := range map[string]struct {
		field []byte
		times int
		fits  bool
	}{
		"within":         {third, 2, true},
		"large ones":     {third, 4, false},
		"many that fit":  {compressed(AppendText(nil, 9, "group")), 500, true},
		"many and small": {compressed(nil), 1100, false},
		"one too large":  {compressed(AppendField(nil, 9, make([]byte, MaxInflated))), 1, false},
	} {
		grown := 0
		err := EachField(slices.Repeat(test.field, test.times), func(_ uint64, c *Cursor) error {
			grown += len(c.Rest())
			return nil
		})
		if (err == nil) != test.fits || grown > MaxInflated {
			t.Errorf("%s: grown to %d bytes, error %v", name, grown, err)
		}
	}
}

// FuzzFields reads anything by every reader: none may panic, and none may take
// more memory than the data has bytes.
func FuzzFields(f *testing.F) {
	f.Add(AppendField(nil, 5, AppendRuns(nil, []int32{0, 1, 5})))
	f.Add(AppendField(nil, 6, AppendTexts(nil, []string{"a", ""})))
	if body, err := Deflate(AppendText(nil, 1, "group")); err == nil {
		f.Add(AppendField(nil, TagDeflated, body))
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		readers := []func(*Cursor){
			func(c *Cursor) { c.Uvarint() }, func(c *Cursor) { c.Varint() }, func(c *Cursor) { c.Int32() },
			func(c *Cursor) { c.Texts() }, func(c *Cursor) { c.Runs() }, func(c *Cursor) { c.Text() },
		}
		for _, read := range readers {
			_ = EachField(data, func(_ uint64, c *Cursor) error {
				read(c)
				return nil
			})
		}
	})
}
