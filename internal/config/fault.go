package config

import (
	"slices"
	"strings"
)

// Fault is one thing wrong with a configuration.
type Fault struct {
	Key     string // the dotted path of the key; empty where no single key is at fault
	Problem string // what is wrong; never quotes a secret
	Cure    string // what would be right; may be empty where Problem says it
	Source  string // where the value was set: "config.yaml:12", "JOINER_GROUP_ID", "--set"; empty: a default
}

// Error returns the fault in one line.
func (f Fault) Error() string {
	var b strings.Builder
	if f.Key != "" {
		b.WriteString(f.Key + ": ")
	}
	b.WriteString(f.Problem)
	if f.Cure != "" {
		b.WriteString("; " + f.Cure)
	}
	if f.Source != "" {
		b.WriteString(" (" + f.Source + ")")
	}
	return b.String()
}

// Faults is everything wrong with a configuration, in the order of its keys.
// Find it in an error with errors.As.
type Faults []Fault

// Error returns one fault a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Keys returns the keys at fault, each once, in order.
func (f Faults) Keys() []string {
	var keys []string
	for _, fault := range f {
		if !slices.Contains(keys, fault.Key) {
			keys = append(keys, fault.Key)
		}
	}
	return keys
}

// err returns f as an error, nil where there is no fault.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// sortByKey puts faults into the order of the documented file; what has no
// known key (an unknown one, a broken file) comes first, since it may be the
// cause of the rest.
func (f Faults) sortByKey(order map[string]int) {
	slices.SortStableFunc(f, func(a, b Fault) int {
		return rank(order, a.Key) - rank(order, b.Key)
	})
}

func rank(order map[string]int, key string) int {
	key, _, _ = strings.Cut(key, "[") // topics.reserved[0].partition
	if i, ok := order[withoutIndex(key)]; ok {
		return i
	}
	return -1
}

// withoutIndex turns topics.reserved[0].partition into topics.reserved.
func withoutIndex(key string) string {
	key, _, _ = strings.Cut(key, "[")
	return key
}
