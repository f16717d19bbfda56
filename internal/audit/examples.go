package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"joiner/internal/record"
)

// errFound ends a reading for one record.
var errFound = errors.New("found")

// nameExamples reads the keys of the records that examples are about: rows do
// not have them.
func (a *auditor) nameExamples(ctx context.Context) error {
	for i := range a.report.Examples {
		e := &a.report.Examples[i]
		e.Key = "gone"
		err := a.log.Read(ctx, e.Topic, e.Partition, e.Offset, e.Offset+1, func(records []record.Record) error {
			if records[0].Offset == e.Offset {
				e.Key = printable(records[0].Key)
			}
			return errFound
		}, nil)
		if err != nil && !errors.Is(err, errFound) {
			return fmt.Errorf("example %s/%d at offset %d: %w", e.Topic, e.Partition, e.Offset, err)
		}
	}
	order := []string{
		kindLost, kindDoubled, kindWrong, kindOutOfOrder, kindForeign, kindTickLost,
		kindUnverifiable, kindDropped, kindRevised,
	}
	slices.SortStableFunc(a.report.Examples, func(x, y Example) int {
		return slices.Index(order, x.Kind) - slices.Index(order, y.Kind)
	})
	return nil
}

// longestKey is how much of a key is shown, in bytes; topic, partition and
// offset find the record.
const longestKey = 64

// printable returns a key as text, quoted where it would not read as itself, cut
// where it is long.
func printable(key []byte) string {
	if len(key) > longestKey {
		return fmt.Sprintf("%s… (%d bytes)", strconv.QuoteToASCII(string(key[:longestKey])), len(key))
	}
	switch {
	case key == nil:
		return "null"
	case len(key) > 0 && utf8.Valid(key) && strconv.Quote(string(key)) == `"`+string(key)+`"` && string(key) != "null" && string(key) != "gone":
		return string(key)
	default:
		return strconv.QuoteToASCII(string(key))
	}
}

// explain says what the figures cannot.
func (a *auditor) explain() {
	r := &a.report
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if r.Dropped > 0 {
		note("%d dropped notifications could not be told from lost ones", r.Dropped)
	}
	if r.Lost > 0 {
		note("a notification that no joiner has reached counts as lost: stop the load first, or leave the newest out with --until")
	}
	if r.Uncontradicted > 0 {
		note("of %d right alerts earlier ticks are gone: those that are left say nothing else", r.Uncontradicted)
	}
	if m, n := a.topics.Market, a.topics.Notifications; m.Partitions != n.Partitions {
		note("topic %s has %d partitions and %s %d: joiner does not join what it was not given, grow the smaller one", m.Name, m.Partitions, n.Name, n.Partitions)
	}
	if a.topics.DeadLetters.Name != "" && a.topics.DeadLetters.Partitions == 0 {
		note("topic %s does not exist: there are no dead letters", a.topics.DeadLetters.Name)
	}
	if r.Examples == nil {
		r.Examples = []Example{}
	}
	if r.Notes == nil {
		r.Notes = []string{}
	}
	if r.Window.Partitions == nil {
		r.Window.Partitions = []Covered{}
	}
}
