package demo

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Text writes the report as a table.
func (r Report) Text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(tw, "strategy\tlocal\tremote\tmiss\tunavailable\tenriched\tjoin p50\tjoin p99\tmoved\tleast\t")
	for _, s := range r.Strategies {
		_, _ = fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%d\t%d\t\n",
			s.Name, s.Local, s.Remote, s.Miss, s.Unavailable, s.Enriched,
			duration(s.JoinP50), duration(s.JoinP99), s.Moved, s.MovedMinimum)
	}
	return tw.Flush() // and with it whatever failed before
}

// duration writes microseconds in the unit that reads best.
func duration(us float64) string {
	if us >= 1000 {
		return fmt.Sprintf("%.1f ms", us/1000)
	}
	return fmt.Sprintf("%.1f µs", us)
}
