package chart

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	core "k8s.io/api/core/v1"
)

// TestDashboards: Grafana gets the files as they are.
func TestDashboards(t *testing.T) {
	objects := decode(t, render(t, "--set", "dashboards.enabled=true"))
	files, err := filepath.Glob(filepath.Join(chartDir, "mixin/dashboards/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboard: %v", err)
	}
	for _, c := range every[*core.ConfigMap](objects) {
		if c.Labels["grafana_dashboard"] != "1" {
			continue
		}
		if len(c.Data) != len(files) {
			t.Errorf("%d dashboards of %d", len(c.Data), len(files))
		}
		for _, path := range files {
			if got, want := c.Data[filepath.Base(path)], read(t, path); strings.TrimSpace(got) != strings.TrimSpace(want) {
				t.Errorf("%s differs from its file", filepath.Base(path))
			}
		}
		return
	}
	t.Error("no ConfigMap has the label of dashboards")
}

// TestRules: Prometheus gets the rules as they are, less those that are turned
// off.
func TestRules(t *testing.T) {
	want := asMap(t, read(t, filepath.Join(chartDir, "mixin/rules/joiner.yaml")))
	objects := decode(t, render(t, "--set", "prometheusRule.enabled=true"))
	rule := only[*monitoring.PrometheusRule](t, objects)
	var text string
	for _, o := range objects {
		if o.kind() == "PrometheusRule" {
			text = o.text
		}
	}
	got := asMap(t, text)["spec"].(map[string]any)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rules differ from their file (-file +rendered):\n%s", diff)
	}

	off := rule.Spec.Groups[0].Rules[0].Alert
	objects = decode(t, render(t, "--set", "prometheusRule.enabled=true,prometheusRule.disabled={"+off+"},prometheusRule.ruleLabels.team=a,prometheusRule.runbookBase=https://example.com/book"))
	for _, g := range only[*monitoring.PrometheusRule](t, objects).Spec.Groups {
		for _, r := range g.Rules {
			switch {
			case r.Alert == off:
				t.Errorf("%s is turned off", off)
			case r.Alert != "" && r.Labels["team"] != "a":
				t.Errorf("%s has the labels %v", r.Alert, r.Labels)
			case r.Alert != "" && !strings.HasPrefix(r.Annotations["runbook_url"], "https://example.com/book#"):
				t.Errorf("%s: runbook_url %s", r.Alert, r.Annotations["runbook_url"])
			}
		}
	}
}
