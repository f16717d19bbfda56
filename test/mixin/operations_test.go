package mixin

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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

// The table names, beside each metric, the alerts that rest on it.
func TestMetricsTableNamesTheAlerts(t *testing.T) {
	want := map[string][]string{}
	for _, r := range readRules(t) {
		for _, s := range selectors(r.Expr) {
			if name := metricOf(s); !ofPrometheus(name) && !slices.Contains(want[name], r.Alert) {
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
