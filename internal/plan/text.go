package plan

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Text writes the report for people: lines of at most about 100 columns, and
// nothing that needs a terminal.
func (r Report) Text(w io.Writer) error {
	t := &text{w: w}
	t.heading(r)
	for i, step := range r.Steps {
		t.step(r, i, step)
	}
	if r.Sizing != nil {
		t.sizing(r)
	}
	return t.err
}

// text remembers the first error of its writer.
type text struct {
	w   io.Writer
	err error
}

func (t *text) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

// table writes rows of tab-separated cells, aligned to the right.
func (t *text) table(rows []string) {
	var b strings.Builder // which never fails
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		_, _ = fmt.Fprintln(tw, row)
	}
	_ = tw.Flush()
	for line := range strings.Lines(b.String()) {
		t.printf("%s\n", strings.TrimRight(line, " \n"))
	}
}

func (t *text) heading(r Report) {
	var topics []string
	for _, topic := range r.inputs {
		topics = append(topics, fmt.Sprintf("%s %d", topic, r.Topics[topic]))
	}
	t.printf("partitions: %s\nload: %s\n", strings.Join(topics, ", "), r.Load)
	if r.Histories > 0 {
		t.printf("mean: what moved on average in %d groups with member ids in random order\n", r.Histories)
	}
	if len(r.Hottest) == 0 {
		return
	}
	t.printf("keys placed by %s; the hottest partitions:\n", r.Placement)
	rows := []string{"partition\tof all records\theaviest symbol\tof all records\t"}
	for _, h := range r.Hottest {
		rows = append(rows, fmt.Sprintf("%d\t%s\t%s\t%s\t", h.Partition, percent(h.Share), shown(h.Symbol), percent(h.SymbolShare)))
	}
	t.table(rows)
}

// shown makes a symbol, which may be any bytes, fit for a table.
func shown(s string) string {
	const most = 24
	quoted := strconv.Quote(s)
	if plain := quoted[1 : len(quoted)-1]; plain == s {
		quoted = plain
	}
	if runes := []rune(quoted); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return quoted
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func (t *text) step(r Report, i int, step Step) {
	t.printf("\nevent %d (%s): %d %s, %s\n", i+1, step.Event, step.Members, plural(step.Members, "member"), wrapNames(step.numbers))
	rated := r.Sizing != nil
	head := "strategy\ttogether\tlocal\ttasks\tidle\tmoved\tmean\tleast\tbusiest\tshare\t"
	if rated {
		head += "a second\tof its rate\t"
	}
	rows := []string{head}
	for _, s := range step.Strategies {
		row := fmt.Sprintf("%s\t%d of %d\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\t",
			s.Name, s.Colocated, s.Partitions, percent(s.LocalShare), tasks(s), s.Idle,
			s.Moved, mean(s.Mean), s.MovedMinimum, orNone(s.Bottleneck), percent(s.BottleneckShare))
		if rated {
			row += fmt.Sprintf("%.0f\t%.0f %%\t", s.BottleneckRate, 100*s.PodLoad)
		}
		rows = append(rows, row)
	}
	t.table(rows)
	for _, s := range step.Strategies {
		if s.Problem != "" {
			t.printf("  %s: %s\n", s.Name, s.Problem)
		}
		if m := s.Mean; m != nil && math.Abs(m.Colocated-float64(s.Colocated)) > 0.005 {
			t.printf("  %s: one draw of many; on average %.2f together, %s local\n", s.Name, m.Colocated, percent(m.LocalShare))
		}
	}
	t.ownership(r, step)
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// wrapNames keeps a group with many gaps short.
func wrapNames(numbers []int) string {
	const most = 70
	names := Names(numbers)
	if runes := []rune(names); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return names
}

func tasks(s StrategyOutcome) string {
	if s.Max == s.Min {
		return strconv.Itoa(s.Max)
	}
	return fmt.Sprintf("%d–%d", s.Min, s.Max)
}

func mean(m *Mean) string {
	if m == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", m.Moved)
}

func orNone(name string) string {
	if name == "" {
		return "-"
	}
	return name
}

// gridIndices is up to how many partitions every owner is shown, and gridRow
// how many stand in a line.
const (
	gridIndices = 48
	gridRow     = 16
)

// ownership shows who owns what: all of it where that is little, else how many
// members have how many tasks.
func (t *text) ownership(r Report, step Step) {
	indices := 0
	for _, n := range r.Topics {
		indices = max(indices, int(n))
	}
	if indices > gridIndices {
		t.summary(step)
		return
	}
	for from := 0; from < indices; from += gridRow {
		to := min(from+gridRow, indices)
		row := "owners\t"
		for p := from; p < to; p++ {
			row += strconv.Itoa(p) + "\t"
		}
		rows := []string{row}
		for _, s := range step.Strategies {
			rows = append(rows, r.owners(s, from, to)...)
		}
		t.table(rows)
	}
}

// owners is one row where both topics are owned alike, else one each.
func (r Report) owners(s StrategyOutcome, from, to int) []string {
	row := func(label, topic string) string {
		row := label + "\t"
		for p := from; p < to; p++ {
			owner := ""
			if owners := s.Ownership[topic]; p < len(owners) {
				owner = orNone(owners[p])
			}
			row += owner + "\t"
		}
		return row
	}
	marketTopic, notificationTopic := r.inputs[market], r.inputs[notes]
	if slices.Equal(s.Ownership[marketTopic], s.Ownership[notificationTopic]) {
		return []string{row(s.Name, marketTopic)}
	}
	return []string{row(s.Name+" market", marketTopic), row("notes", notificationTopic)}
}

// summary says how many members have how many tasks.
func (t *text) summary(step Step) {
	rows := []string{"strategy\tmembers\ttasks each\t"}
	for _, s := range step.Strategies {
		with := make(map[int]int)
		for _, n := range tasksOf(s.Ownership) {
			with[n]++
		}
		if s.Idle > 0 {
			with[0] = s.Idle
		}
		for i, n := range slices.Backward(slices.Sorted(maps.Keys(with))) {
			name := ""
			if i == len(with)-1 {
				name = s.Name
			}
			rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t", name, with[n], n))
		}
	}
	t.table(rows)
}

// members says how many are needed.
func (s *Sizing) members() string {
	switch {
	case s.MembersEnough == nil:
		return fmt.Sprintf("at least %d, and no number is enough for these partitions", s.MembersNeeded)
	case int(*s.MembersEnough) == s.MembersNeeded:
		return fmt.Sprint(s.MembersNeeded)
	}
	return fmt.Sprintf("at least %d, and %d to be enough whichever partitions each is given", s.MembersNeeded, *s.MembersEnough)
}

func (t *text) sizing(r Report) {
	s := r.Sizing
	t.printf("\nsizing for %.0f records a second at the peak, %.0f by one member\n", s.PeakRate, s.MemberRate)
	if s.PartitionsNeeded != nil {
		t.printf("  partitions needed: %d of each topic%s\n", *s.PartitionsNeeded, double(s.PartitionsForDouble))
		t.paragraph(larger(s), 4)
	} else {
		t.paragraph("partitions needed: "+s.Problem, 2)
	}
	t.paragraph(fmt.Sprintf("members needed: %s; more than %d would be idle", s.members(), s.MaxUsefulMembers), 2)
	switch {
	case s.Headroom < 0:
		t.printf("  headroom: none; the hottest partition alone is %.0f %% of what one member can do\n", 100/(1+s.Headroom))
	default:
		t.printf("  headroom: the peak can grow by %.0f %% before the hottest partition is too much for one member\n", 100*s.Headroom)
	}
	if s.PartitionsNeeded != nil && *s.PartitionsNeeded <= s.MaxUsefulMembers {
		t.printf("  there are enough; what growing to %d later would break:\n", s.Growth.To)
	} else {
		t.printf("  what growing to %d breaks:\n", s.Growth.To)
	}
	for _, line := range s.Growth.Breaks {
		t.paragraph("- "+line, 2)
	}
}

func double(partitions *int32) string {
	if partitions == nil {
		return "; no number is enough for twice the peak"
	}
	return fmt.Sprintf(", %d for twice the peak", *partitions)
}

// larger says which larger numbers than the one needed will do.
func larger(s *Sizing) string {
	if len(s.PartitionsTooFew) == 0 {
		return fmt.Sprintf("each number from %d to %d is enough", *s.PartitionsNeeded, s.PartitionsJudged)
	}
	return fmt.Sprintf("too few again, since the hash puts heavy symbols together: %s; all others up to %d are enough", list(s.PartitionsTooFew), s.PartitionsJudged)
}

// listed is how many numbers, or runs of them, are written out.
const listed = 12

// list writes ascending numbers, runs of them as from–to.
func list(numbers []int32) string {
	var words []string
	for i := 0; i < len(numbers); {
		end := i + 1
		for end < len(numbers) && numbers[end] == numbers[end-1]+1 {
			end++
		}
		if len(words) == listed {
			words = append(words, fmt.Sprintf("… (%d more)", len(numbers)-i))
			break
		}
		word := fmt.Sprint(numbers[i])
		if end-i > 1 {
			word += "–" + fmt.Sprint(numbers[end-1])
		}
		words = append(words, word)
		i = end
	}
	return strings.Join(words, ", ")
}

// paragraph wraps words at 90 columns.
func (t *text) paragraph(words string, indent int) {
	const width = 90
	lead := strings.Repeat(" ", indent)
	line := lead
	for i, word := range strings.Fields(words) {
		if i > 0 && len([]rune(line))+1+len([]rune(word)) > width {
			t.printf("%s\n", line)
			line = lead + "  "
		} else if i > 0 {
			line += " "
		}
		line += word
	}
	t.printf("%s\n", line)
}
