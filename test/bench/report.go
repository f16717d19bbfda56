package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
)

// notify shows progress, apart from the results.
func notify(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// percentile returns the smallest value that p percent of the values do not
// exceed, NaN without any.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// median is the middle value, or the mean of the two in the middle.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// spread shows the median and, in brackets, the least and the greatest.
func spread(format string, values []float64) string {
	return fmt.Sprintf(format+" ("+format+"–"+format+")", median(values), slices.Min(values), slices.Max(values))
}

// ratios divides round by round: what was measured side by side.
func ratios(of, by []float64) []float64 {
	all := make([]float64, len(of))
	for i := range of {
		all[i] = of[i] / by[i]
	}
	return all
}

func column[T any](rows []T, pick func(T) float64) []float64 {
	values := make([]float64, len(rows))
	for i, row := range rows {
		values[i] = pick(row)
	}
	return values
}

func reportThroughput(out io.Writer, opts options, contenders []contender, results [][]round) {
	fmt.Fprintf(out, "\nThroughput: %d ticks, %d notifications, values of %d bytes, %d partitions, %d symbols; %d CPUs, %s\nMedian (least–greatest) of %d interleaved rounds.\n\n",
		opts.ticks, opts.ticks/ticksPerNotification, opts.valueBytes, opts.partitions, opts.symbols, runtime.NumCPU(), runtime.Version(), opts.rounds)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	rate := func(r round) float64 { return r.rate }
	cpu := func(r round) float64 { return r.cpu }
	memory := func(r round) float64 { return r.memory }
	fmt.Fprintln(table, "\trecords/s\tCPU s per million records\tpeak MB")
	for i, c := range contenders {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", c.name,
			spread("%.0f", column(results[i], rate)), spread("%.2f", column(results[i], cpu)), spread("%.0f", column(results[i], memory)))
	}
	compare := func(i, by int) {
		fmt.Fprintf(table, "%s / %s\t%s\t%s\t%s\n", contenders[i].name, contenders[by].name,
			spread("%.2f", ratios(column(results[i], rate), column(results[by], rate))),
			spread("%.2f", ratios(column(results[i], cpu), column(results[by], cpu))),
			spread("%.2f", ratios(column(results[i], memory), column(results[by], memory))))
	}
	for i := 1; i < len(contenders); i++ {
		compare(i, 0)
		if contenders[i].transactional {
			compare(i, i-1) // the same without transactions
		}
	}
	_ = table.Flush()
}

func reportLatency(out io.Writer, opts options, contenders []contender, results [][]delays) {
	fmt.Fprintf(out, "\nLatency at %d notifications and %d ticks a second, from handing over to the output's append time\nMedian (least–greatest) of %d interleaved rounds of %v.\n\n",
		opts.rate, opts.rate*ticksPerNotification, opts.latencyRounds, opts.latencyFor)
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\tmedian ms\t99th percentile ms\tCPU ms a second")
	for i, c := range contenders {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", c.name,
			spread("%.1f", column(results[i], func(d delays) float64 { return percentile(d.all, 50) })),
			spread("%.1f", column(results[i], func(d delays) float64 { return percentile(d.all, 99) })),
			spread("%.0f", column(results[i], func(d delays) float64 { return d.cpu })))
	}
	_ = table.Flush()
}
