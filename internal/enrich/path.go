package enrich

import (
	"errors"
	"fmt"
	"strings"
)

// Words that stand for a part of the record and not for a member of its value.
const (
	fromKey    = "key"    // the record's key
	fromRecord = "record" // the record's own timestamp
)

// ParsePath splits a path into the names of the members it leads through,
// from the outside in: "price" is the member of that name, "quote.last" the
// member last of the member quote.
//
// A backslash takes the character behind it literally: `a\.b` is one member
// with a dot in its name, `\\` a backslash in one, and `\key` and `\record` are
// the members key and record, which mean parts of the record otherwise. An
// empty name is an error, and so is a backslash at the end.
func ParsePath(path string) ([]string, error) {
	if path == "" {
		return nil, errors.New("empty path: name a member of the value")
	}
	var names []string
	var name strings.Builder
	for i := 0; i < len(path); i++ {
		switch c := path[i]; c {
		case '.':
			names = append(names, name.String())
			name.Reset()
		case '\\':
			if i++; i == len(path) {
				return nil, fmt.Errorf("path %q ends in a backslash: write two for one", path)
			}
			name.WriteByte(path[i])
		default:
			name.WriteByte(c)
		}
	}
	names = append(names, name.String())
	for _, n := range names {
		if n == "" {
			return nil, fmt.Errorf("path %q has an empty name: one dot stands between two names", path)
		}
	}
	return names, nil
}
