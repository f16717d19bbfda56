package config

import (
	"fmt"
	"slices"
	"strings"
)

// unknown is the fault of a key that does not exist, with the key that was
// probably meant.
func (s schema) unknown(key, source string) Fault {
	f := Fault{Key: key, Problem: "unknown key", Cure: "`joiner config --defaults` lists every key", Source: source}
	if near := s.nearest(key); near != "" {
		f.Cure = fmt.Sprintf("did you mean %s?", near)
	}
	return f
}

// nearest returns the known key that key most probably stands for, empty
// where none is close. A right name in the wrong section is found, and so is
// kafka.clientId.
func (s schema) nearest(key string) string {
	best, distance := "", 2+len(key)/4
	for _, f := range s.candidates(key) {
		d := editDistance(plain(key), plain(f))
		if lastPart(plain(key)) == lastPart(plain(f)) {
			d = min(d, 1)
		}
		if d < distance {
			best, distance = f, d
		}
	}
	return best
}

// candidates are the leaves, and the sections too for a key at the top.
func (s schema) candidates(key string) []string {
	if strings.Contains(key, ".") {
		return s.keys
	}
	return append(slices.Clone(s.sections), s.keys...)
}

// plain takes away what people write differently: case, underscore, hyphen.
func plain(key string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(key))
}

func lastPart(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// editDistance counts the single-byte insertions, deletions and replacements
// that turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := corner
			if a[i] != b[j] {
				replaced++
			}
			corner = row[j+1]
			row[j+1] = min(replaced, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
