package check

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Status is what a finding comes to.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warning Status = "warning" // may go wrong, or could not be looked at
	Failure Status = "failure" // is wrong: the service does not run so, or loses something
)

// Finding is one line of the report.
type Finding struct {
	ID      string `json:"id"` // one of IDs
	Status  Status `json:"status"`
	Subject string `json:"subject"` // a topic, a broker, the group, a key of the configuration
	Message string `json:"message"`
	Remedy  string `json:"remedy"` // empty for ok

	// since is what alone is why nothing could be looked at: a topic that does not
	// exist, or kafka.brokers, none of which answers.
	since string
	blind bool // something could not be looked at
}

// Report is what joiner check prints.
type Report struct {
	Findings []Finding `json:"findings"`
	Failed   int       `json:"failed"` // findings that are failures
	Warned   int       `json:"warned"` // findings that are warnings
}

func reportOf(findings []Finding) Report {
	r := Report{Findings: findings}
	for _, f := range findings {
		switch f.Status {
		case Failure:
			r.Failed++
		case Warning:
			r.Warned++
		}
	}
	return r
}

// Text writes the report for people: a line a finding, and under it what to do.
// The worst come last, where a terminal and Helm leave them in sight. What could
// not be looked at since a topic does not exist is one line for the topic, and
// since nobody answers one line for all.
func (r Report) Text(w io.Writer) error {
	lines, skipped := r.lines()
	// Remedies are kept out of the columns, which they would stretch.
	var table strings.Builder
	columns := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, f := range lines {
		fmt.Fprintf(columns, "%s\t%s\t%s\t%s\n", f.Status, f.ID, f.Subject, f.Message)
	}
	if err := columns.Flush(); err != nil {
		return err
	}
	rows := strings.SplitAfter(table.String(), "\n")
	for i, f := range lines {
		if _, err := io.WriteString(w, rows[i]); err != nil {
			return err
		}
		if f.Remedy == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "         → %s\n", f.Remedy); err != nil {
			return err
		}
	}
	sum := fmt.Sprintf("%s, %s, %d ok", count(r.Failed, "failure"), count(r.Warned-skipped, "warning"), len(r.Findings)-r.Failed-r.Warned)
	if skipped > 0 {
		sum += fmt.Sprintf(", %d skipped", skipped)
	}
	_, err := fmt.Fprintln(w, sum)
	return err
}

// skip is how Text names a check that a missing topic, or a cluster that is away,
// makes impossible. The object has it as a warning, as it has what a missing
// right hides.
const skip Status = "skipped"

// nobody is what a finding is since where no server of kafka.brokers answers.
const nobody = "kafka.brokers"

// lines are the findings as Text has them; skipped are how many of them are in
// lines of their common reason.
func (r Report) lines() (lines []Finding, skipped int) {
	at := make(map[string]int) // by the reason
	for _, f := range r.Findings {
		if f.since == "" {
			lines = append(lines, f)
			continue
		}
		skipped++
		i, begun := at[f.since]
		switch {
		case !begun:
			at[f.since] = len(lines)
			lines = append(lines, skippedFor(f))
		case !strings.HasSuffix(lines[i].Message, " "+f.ID):
			lines[i].Message += ", " + f.ID
		}
	}
	weight := map[Status]int{OK: 0, skip: 1, Warning: 2, Failure: 3}
	slices.SortStableFunc(lines, func(a, b Finding) int { return weight[a.Status] - weight[b.Status] })
	return lines, skipped
}

// skippedFor begins the line of a common reason with the first check that is
// skipped for it.
func skippedFor(f Finding) Finding {
	id, why := "(missing)", "does not exist"
	if f.since == nobody {
		id, why = "(away)", "no server answers"
	}
	return Finding{ID: id, Status: skip, Subject: f.since, Message: why + ", so nothing was looked at for " + f.ID}
}

// count names a number of things, in words that end in s where there are
// several.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// say makes findings for one check.
func ok(subject, format string, args ...any) Finding {
	return Finding{Status: OK, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

func warn(subject, remedy, format string, args ...any) Finding {
	return Finding{Status: Warning, Subject: subject, Remedy: remedy, Message: fmt.Sprintf(format, args...)}
}

func fail(subject, remedy, format string, args ...any) Finding {
	f := warn(subject, remedy, format, args...)
	f.Status = Failure
	return f
}

// tidy is f with texts that stay on their line, in their column, and away from
// the terminal: errors of several lines come from libraries, and the names of
// members from whoever is in the group.
func (f Finding) tidy() Finding {
	f.Subject, f.Message, f.Remedy = oneLine(f.Subject), oneLine(f.Message), oneLine(f.Remedy)
	return f
}

func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }), "; ")
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
	}
	return b.String()
}
