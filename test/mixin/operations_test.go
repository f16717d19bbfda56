package mixin

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"joiner/internal/config"
)

const operationsPage = "docs/operations.md"

// metricRow is a line of the table of metrics.
type metricRow struct {
	labels []string // sorted
	alerts []string
}

var metricRowForm = regexp.MustCompile("(?m)^\\| `(joiner_\\w+)(?:\\{([\\w,]+)\\})?` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$")

func documentedMetrics(t *testing.T) map[string]metricRow {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, operationsPage))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]metricRow{}
	for _, m := range metricRowForm.FindAllStringSubmatch(string(text), -1) {
		if _, ok := rows[m[1]]; ok {
			t.Errorf("%s has %s twice", operationsPage, m[1])
		}
		row := metricRow{alerts: regexp.MustCompile(`Joiner\w+`).FindAllString(m[5], -1)}
		if m[2] != "" {
			row.labels = strings.Split(m[2], ",")
		}
		slices.Sort(row.labels)
		slices.Sort(row.alerts)
		rows[m[1]] = row
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no table of metrics", operationsPage)
	}
	return rows
}

// expected are metrics of a feature that this version refuses to turn on: they
// come with it, and from then on must be there.
func expected(t *testing.T) []string {
	t.Helper()
	if checkpoints(t) {
		return nil
	}
	return []string{
		"joiner_checkpoint_failures_total", "joiner_checkpoint_last_success_timestamp_seconds",
		"joiner_checkpoint_restores_total", "joiner_restored_records_total",
	}
}

// checkpoints tells whether this version has them.
func checkpoints(t *testing.T) bool {
	t.Helper()
	c := config.Default()
	c.State.Dir = t.TempDir()
	return c.Validate() == nil
}

// Whoever adds a metric hears of the table at once, without joiners that run;
// that these export what the table has, TestPrometheusWatches looks.
func TestMetricsTableHasTheNamesInTheSource(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "internal/metrics/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	rows, later, found := documentedMetrics(t), expected(t), map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`"(joiner_\w+)"`).FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
			if _, ok := rows[m[1]]; !ok {
				t.Errorf("%s does not tell what %s says (%s)", operationsPage, m[1], file)
			}
		}
	}
	for name := range rows {
		if !found[name] && !slices.Contains(later, name) {
			t.Errorf("%s tells what %s says, which internal/metrics does not make", operationsPage, name)
		}
	}
}

// The table names, beside each metric, the alerts that rest on it.
func TestMetricsTableNamesTheAlerts(t *testing.T) {
	want := map[string][]string{}
	for _, r := range readRules(t) {
		for _, s := range selectors(r.Expr) {
			if name := metricOf(s); strings.HasPrefix(name, "joiner_") && !slices.Contains(want[name], r.Alert) {
				want[name] = append(want[name], r.Alert)
			}
		}
	}
	rows := documentedMetrics(t)
	for name, row := range rows {
		slices.Sort(want[name])
		if !slices.Equal(row.alerts, want[name]) {
			t.Errorf("%s names the alerts %v beside %s, it is used by %v", operationsPage, row.alerts, name, want[name])
		}
	}
	for name, alerts := range want {
		if _, ok := rows[name]; !ok {
			t.Errorf("%s does not have %s, on which %v rest", operationsPage, name, alerts)
		}
	}
}
