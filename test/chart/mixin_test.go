package chart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDashboards: Grafana gets the file, under a name, a title and a uid of this
// release, whose pods it shows at first.
func TestDashboards(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chartDir, "mixin/dashboards/*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the dashboards are %v, %v; the chart knows of one", files, err)
	}
	want := asMap(t, read(t, files[0]))
	uids := map[string]bool{}
	for _, args := range [][]string{nil, {"--namespace", "bazaar"}, {"--set", "fullnameOverride=east"}} {
		objects := decode(t, render(t, append([]string{"--set", "dashboards.enabled=true"}, args...)...))
		text, home, name := dashboardOf(t, objects)
		got := asMap(t, text)
		if wanted := fmt.Sprintf("joiner (%s/%s)", home, name); got["title"] != wanted {
			t.Errorf("its title is %v, and %s is wanted", got["title"], wanted)
		}
		for i, value := range []string{home, name} {
			v := got["templating"].(map[string]any)["list"].([]any)[i+1].(map[string]any)
			current := map[string]any{"selected": true, "text": []any{value}, "value": []any{value}}
			if diff := cmp.Diff(current, v["current"]); diff != "" {
				t.Errorf("%v shows at first (-want +got):\n%s", v["name"], diff)
			}
			v["current"] = want["templating"].(map[string]any)["list"].([]any)[i+1].(map[string]any)["current"]
		}
		uid := got["uid"].(string)
		if uids[uid] || len(uid) > 40 {
			t.Errorf("the uid %s is not its own, or longer than Grafana takes", uid)
		}
		uids[uid] = true
		got["uid"], got["title"] = want["uid"], want["title"]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("it differs from its file in more than that (-file +rendered):\n%s", diff)
		}
	}
}

// dashboardOf returns the one dashboard and whose it is.
func dashboardOf(t *testing.T, objects []object) (text, namespace, name string) {
	t.Helper()
	set := only[*apps.StatefulSet](t, objects)
	for _, c := range every[*core.ConfigMap](objects) {
		if c.Labels["grafana_dashboard"] != "1" {
			continue
		}
		key := set.Namespace + "-" + set.Name + ".json"
		if len(c.Data) != 1 || c.Data[key] == "" {
			t.Errorf("%s has no %s, or more than that", c.Name, key)
		}
		return c.Data[key], set.Namespace, set.Name
	}
	t.Fatal("no ConfigMap has the label of dashboards")
	return "", "", ""
}

// TestRules: Prometheus gets the rules as they are where they are of all
// releases, less those that are turned off, and else with namespace and job in
// every selector.
func TestRules(t *testing.T) {
	want := asMap(t, read(t, filepath.Join(chartDir, "mixin/rules/joiner.yaml")))
	got := rulesOf(t, render(t, "--set", "prometheusRule.enabled=true,prometheusRule.scoped=false"))[0]
	if diff := cmp.Diff(want, asMap(t, got)); diff != "" {
		t.Errorf("the rules differ from their file (-file +rendered):\n%s", diff)
	}
	scoped := rulesOf(t, render(t, "--set", "prometheusRule.enabled=true"))[0]
	bound := regexp.MustCompile(`\{namespace="market", job="prices-joiner"(, )?`)
	bare := bound.ReplaceAllString(scoped, "{")
	if diff := cmp.Diff(want, asMap(t, strings.ReplaceAll(bare, "{}", ""))); diff != "" {
		t.Errorf("scoped rules differ in more than their scope (-file +rendered):\n%s", diff)
	}
	for _, s := range regexp.MustCompile(`\b(?:joiner_[a-z0-9_]+|process_[a-z0-9_]+|up\b|ALERTS\b)(?:\{[^}]*\})?`).FindAllString(expressions(t, scoped), -1) {
		if !bound.MatchString(s) {
			t.Errorf("%s is of every release", s)
		}
	}

	rule := only[*monitoring.PrometheusRule](t, decode(t, render(t, "--set", "prometheusRule.enabled=true")))
	off := rule.Spec.Groups[0].Rules[0].Alert
	objects := decode(t, render(t, "--set", "prometheusRule.enabled=true,prometheusRule.disabled={"+off+"},prometheusRule.ruleLabels.team=a,prometheusRule.runbookBase=https://example.com/book"))
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

// rulesOf are the rules of a rendering, each object's as a file of Prometheus.
func rulesOf(t *testing.T, rendering string) (files []string) {
	t.Helper()
	for _, o := range decode(t, rendering) {
		if o.kind() != "PrometheusRule" {
			continue
		}
		text, err := yaml.Marshal(asMap(t, o.text)["spec"])
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, string(text))
	}
	if len(files) == 0 {
		t.Fatal("there is no PrometheusRule")
	}
	return files
}

// expressions are those of a file of rules.
func expressions(t *testing.T, rules string) string {
	t.Helper()
	var all strings.Builder
	for _, g := range asMap(t, rules)["groups"].([]any) {
		for _, r := range g.(map[string]any)["rules"].([]any) {
			fmt.Fprintln(&all, r.(map[string]any)["expr"])
		}
	}
	return all.String()
}

// TestReleasesAreWatchedApart installs the chart four times, as two parts of one
// release and under one name in two namespaces, has one Prometheus load the rules
// of all, and lets promtool say of whom they speak.
func TestReleasesAreWatchedApart(t *testing.T) {
	above := umbrella(t, "east", "west")
	dir := t.TempDir()
	number := 0
	for _, install := range [][]string{
		{"shop", "umbrella", above, "--set", "east.prometheusRule.ruleLabels.team=a,west.prometheusRule.ruleLabels.team=b"},
		{"market", "prices", chartDir, "--set", "prometheusRule.enabled=true,prometheusRule.disabled={JoinerMisses}"},
		{"bazaar", "prices", chartDir, "--set", "prometheusRule.enabled=true"},
	} {
		out, errs, err := helm(append([]string{"template", install[1], install[2], "--namespace", install[0], "--kube-version", kubeVersion}, install[3:]...)...)
		if err != nil {
			t.Fatal(errs)
		}
		for _, text := range rulesOf(t, out) {
			number++
			write(t, filepath.Join(dir, fmt.Sprintf("rules%d.yaml", number)), text)
		}
	}
	if number != 4 {
		t.Fatalf("%d installations have rules", number)
	}
	write(t, filepath.Join(dir, "test.yaml"), read(t, "testdata/releases.yaml"))
	cmd := exec.CommandContext(t.Context(), promtool(t), "test", "rules", "test.yaml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// umbrella is a chart that has this one several times.
func umbrella(t *testing.T, aliases ...string) (dir string) {
	t.Helper()
	chart, err := filepath.Abs(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	var uses, values strings.Builder
	for _, alias := range aliases {
		fmt.Fprintf(&uses, "  - {name: joiner, version: '>=0.0.0-0', repository: 'file://%s', alias: %s}\n", chart, alias)
		fmt.Fprintf(&values, "%s: {prometheusRule: {enabled: true}}\n", alias)
	}
	write(t, filepath.Join(dir, "Chart.yaml"), "apiVersion: v2\nname: above\nversion: 1.0.0\ndependencies:\n"+uses.String())
	write(t, filepath.Join(dir, "values.yaml"), values.String())
	if _, errs, err := helm("dependency", "update", dir); err != nil {
		t.Fatal(errs)
	}
	return dir
}

// promtool is where it is installed, or where test/install puts it.
func promtool(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	path := filepath.Join(os.Getenv("JOINER_CACHE"), "bin", "promtool")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("promtool is not installed, `make test-chart` does that: %v", err)
	}
	return path
}

// TestSharedNamespace: what two releases of one name make in a third namespace
// has two names.
func TestSharedNamespace(t *testing.T) {
	const there = "serviceMonitor.enabled=true,serviceMonitor.namespace=watch," +
		"prometheusRule.enabled=true,prometheusRule.namespace=watch,dashboards.enabled=true,dashboards.namespace=watch"
	seen := map[string]bool{}
	for _, home := range []string{"market", "bazaar"} {
		guests := 0
		for _, o := range decode(t, render(t, "--namespace", home, "--set", there)) {
			if o.GetNamespace() != "watch" {
				continue
			}
			guests++
			if seen[o.String()] {
				t.Errorf("%s is made by both", o)
			}
			seen[o.String()] = true
		}
		if guests != 3 {
			t.Errorf("%d objects are in the namespace", guests)
		}
	}
}
