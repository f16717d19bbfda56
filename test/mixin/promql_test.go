package mixin

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Expressions are taken apart by their words, which is enough to know what they
// name; whether they are expressions at all, Prometheus says.

// A selector: a metric, and its matchers where it has some.
var selectorForm = regexp.MustCompile(`\b(?:joiner_\w+|go_\w+|process_\w+|up\b|ALERTS\b)(?:\{[^}]*\})?`)

// selectors are the selectors of an expression, each once.
func selectors(expr string) []string {
	found := selectorForm.FindAllString(expr, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

func metricOf(selector string) string {
	name, _, _ := strings.Cut(selector, "{")
	return name
}

var groupingForm = regexp.MustCompile(`\b(?:by|on|ignoring|group_left|group_right|without)\s*\(([^)]*)\)`)

// groupings are the labels by which an expression groups and matches.
func groupings(expr string) (labels []string) {
	for _, m := range groupingForm.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	slices.Sort(labels)
	return slices.Compact(labels)
}

func TestExpressionsAreTakenApart(t *testing.T) {
	const expr = `sum by (le, job) (rate(joiner_a_bucket{x="joiner_b", y=~"$z"}[5m])) > on (job) group_left () up or joiner_c offset 1m`
	if diff := cmp.Diff([]string{`joiner_a_bucket{x="joiner_b", y=~"$z"}`, "joiner_c", "up"}, selectors(expr)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"job", "le"}, groupings(expr)); diff != "" {
		t.Error(diff)
	}
}
