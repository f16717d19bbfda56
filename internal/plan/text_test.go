package plan

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"joiner/internal/assign"
)

// brittle fails once it has taken so many bytes.
type brittle struct {
	room int
	err  error
}

func (b *brittle) Write(p []byte) (int, error) {
	if b.room -= len(p); b.room < 0 {
		return 0, b.err
	}
	return len(p), nil
}

func TestTextTellsOfItsWriter(t *testing.T) {
	o := options(t, 6, "4,5", assign.Strategies()...)
	o.PeakRate, o.MemberRate = 10, 3
	r := run(t, o)
	var all bytes.Buffer
	if err := r.Text(&all); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	for room := 0; room < all.Len(); room += 7 {
		if err := r.Text(&brittle{room, full}); !errors.Is(err, full) {
			t.Fatalf("%d of %d bytes written, error %v", room, all.Len(), err)
		}
	}
}

// Whatever is planned can be read in a terminal of 120 columns.
func TestTextFits(t *testing.T) {
	for _, partitions := range []int32{1, 16, 48, 49, 120} {
		o := options(t, partitions, "3,30,-m15,+m10000,20", assign.Strategies()...)
		o.PeakRate, o.MemberRate = 1_000_000, 10_000
		o.Load = Load{Name: "awkward", Symbols: []Weight{{strings.Repeat("日", 300), 1}, {"tab\tand\nline", 1}, {"\xff\x00", 1}}}
		var out bytes.Buffer
		if err := run(t, o).Text(&out); err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(out.Bytes()) || bytes.ContainsAny(out.Bytes(), "\t\x00") {
			t.Errorf("%d partitions: something raw in it", partitions)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 120 {
				t.Errorf("%d partitions: %d columns: %s", partitions, n, line)
			}
		}
	}
}
