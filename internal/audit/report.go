package audit

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"joiner/internal/record"
)

// Report is what the topics say about the join. Counts are of notifications
// where not said otherwise.
type Report struct {
	Notifications int64 `json:"notifications"` // read, in the window
	Alerts        int64 `json:"alerts"`        // records, copies among them

	Lost         int64 `json:"lost"`         // neither alert nor dead letter, without a reason
	Doubled      int64 `json:"doubled"`      // outputs beyond the first of their source
	Wrong        int64 `json:"wrong"`        // outputs
	OutOfOrder   int64 `json:"out_of_order"` // whose last copy lies before that of an older one of the symbol
	DeadLettered int64 `json:"dead_lettered"`
	Dropped      int64 `json:"dropped"`
	Missed       int64 `json:"missed"`       // whose last alert says miss
	Unavailable  int64 `json:"unavailable"`  // whose last alert says unavailable
	Revised      int64 `json:"revised"`      // that a later tick would have given another price
	Unverifiable int64 `json:"unverifiable"` // outputs, and notifications whose output may have been deleted
	Foreign      int64 `json:"foreign"`      // outputs

	// Verified is the number of outputs that were found right.
	Verified int64 `json:"verified"`
	// Uncontradicted is how many of them rest on a market partition of which
	// earlier ticks are gone: no tick that is left says otherwise.
	Uncontradicted int64 `json:"uncontradicted"`

	Ticks             int64 `json:"ticks"`               // market records read
	TicksDeadLettered int64 `json:"ticks_dead_lettered"` // bad ones that have a dead letter
	TicksLost         int64 `json:"ticks_lost"`          // bad ones that were merged and have none

	Window   Window    `json:"window"`
	Examples []Example `json:"examples"`
	Notes    []string  `json:"notes"` // for people
}

// Window is what the audit covered.
type Window struct {
	Since      *time.Time `json:"since"`
	Until      *time.Time `json:"until"`
	Isolation  string     `json:"isolation"`
	Partitions []Covered  `json:"partitions"`
}

// Covered is what was read of one partition.
type Covered struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"` // offset
	To        int64  `json:"to"`   // offset, not included
	Records   int64  `json:"records"`
	// Oldest and Newest are the record timestamps; nil where none has one.
	Oldest *time.Time `json:"oldest"`
	Newest *time.Time `json:"newest"`
}

// Example is one finding, by the record that it is about.
type Example struct {
	Kind      string `json:"kind"` // the name of the figure
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Key       string `json:"key"` // quoted where it is not plain text
	Detail    string `json:"detail"`
}

// The figures of which examples are given.
const (
	kindLost         = "lost"
	kindDoubled      = "doubled"
	kindWrong        = "wrong"
	kindOutOfOrder   = "out_of_order"
	kindDropped      = "dropped"
	kindRevised      = "revised"
	kindUnverifiable = "unverifiable"
	kindForeign      = "foreign"
	kindTickLost     = "ticks_lost"
)

// Failure says why the join is not proven, in words that name the figures;
// empty where it is.
func (r *Report) Failure() string {
	var faults []string
	for _, one := range []struct {
		n    int64
		what string
	}{
		{r.Lost, "lost"}, {r.Doubled, "doubled"}, {r.Wrong, "wrong"}, {r.OutOfOrder, "out of order"},
		{r.Foreign, "foreign"}, {r.TicksLost, "bad ticks lost"},
	} {
		if one.n > 0 {
			faults = append(faults, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	if len(faults) == 0 && r.Verified == 0 {
		return "nothing could be verified"
	}
	return strings.Join(faults, ", ")
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, one := range []struct {
		name string
		n    int64
		what string
	}{
		{"notifications", r.Notifications, ""},
		{"alerts", r.Alerts, ""},
		{"lost", r.Lost, ""},
		{"doubled", r.Doubled, ""},
		{"wrong", r.Wrong, ""},
		{"out of order", r.OutOfOrder, ""},
		{"foreign", r.Foreign, "outputs without a known source"},
		{"dead-lettered", r.DeadLettered, ""},
		{"dropped", r.Dropped, "as the configuration permits; these could not be told from lost ones"},
		{"missed", r.Missed, "no price"},
		{"unavailable", r.Unavailable, "no owner answered"},
		{"revised", r.Revised, "a later tick would have given another price"},
		{"unverifiable", r.Unverifiable, "what would prove them was compacted or deleted"},
		{"verified", r.Verified, "outputs found right"},
		{"uncontradicted", r.Uncontradicted, "of those, with earlier ticks gone"},
		{"ticks", r.Ticks, ""},
		{"bad ticks", r.TicksDeadLettered, "dead-lettered"},
		{"bad ticks lost", r.TicksLost, "merged, and not dead-lettered"},
	} {
		fmt.Fprintf(b, "%-15s %12d", one.name, one.n)
		if one.what != "" && one.n > 0 {
			fmt.Fprintf(b, "  %s", one.what)
		}
		fmt.Fprintln(b)
	}
	r.windowText(b)
	for _, e := range r.Examples {
		fmt.Fprintf(b, "%s: %s/%d offset %d, key %s: %s\n", e.Kind, e.Topic, e.Partition, e.Offset, e.Key, e.Detail)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
	return b.Flush()
}

// windowText sums the window up by topic.
func (r *Report) windowText(w io.Writer) {
	var topics []string
	sums := make(map[string]*Covered)
	for _, c := range r.Window.Partitions {
		sum := sums[c.Topic]
		if sum == nil {
			sum = &Covered{Topic: c.Topic}
			sums[c.Topic] = sum
			topics = append(topics, c.Topic)
		}
		sum.Partition++
		sum.Records += c.Records
		sum.To += c.To - c.From
		sum.Oldest, sum.Newest = earlier(sum.Oldest, c.Oldest), later(sum.Newest, c.Newest)
	}
	fmt.Fprintf(w, "window          %s%s\n", r.Window.Isolation, bounds(r.Window.Since, r.Window.Until))
	for _, t := range topics {
		sum := sums[t]
		fmt.Fprintf(w, "  %s: %d partitions, %d records in %d offsets", t, sum.Partition, sum.Records, sum.To)
		if sum.Oldest != nil {
			fmt.Fprintf(w, ", %s to %s", sum.Oldest.Format(time.RFC3339), sum.Newest.Format(time.RFC3339))
		}
		fmt.Fprintln(w)
	}
}

func bounds(since, until *time.Time) string {
	text := ""
	if since != nil {
		text += ", since " + since.Format(time.RFC3339)
	}
	if until != nil {
		text += ", until " + until.Format(time.RFC3339)
	}
	return text
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

func later(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.After(*a) {
		return b
	}
	return a
}

// see takes a batch that was read.
func (c *Covered) see(records []record.Record) {
	c.Records += int64(len(records))
	for i := range records {
		at := records[i].Timestamp
		if at == record.NoTimestamp {
			continue
		}
		if c.Oldest == nil || int64(at) < c.Oldest.UnixMilli() {
			t := at.Time()
			c.Oldest = &t
		}
		if c.Newest == nil || int64(at) > c.Newest.UnixMilli() {
			t := at.Time()
			c.Newest = &t
		}
	}
}
