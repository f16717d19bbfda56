package mixin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	rulesDir    = root + "/deploy/helm/mixin/rules"
	rulesFile   = "joiner.yaml"
	rulesTests  = "joiner_test.yaml"
	runbookPage = "docs/runbook.md"
)

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// readRules are the alerts, in the order of the file.
func readRules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	readYAML(t, filepath.Join(rulesDir, rulesFile), &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there is no rule")
	}
	return all
}

func TestAlertsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range readRules(t) {
		if !regexp.MustCompile(`^Joiner[A-Z]\w+$`).MatchString(r.Alert) || seen[r.Alert] {
			t.Errorf("the name %q is not one of its own that begins with Joiner", r.Alert)
		}
		seen[r.Alert] = true
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		if want := runbookPage + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !strings.Contains(r.Annotations["summary"], "$labels.job") || len(r.Annotations["description"]) < len(r.Annotations["summary"]) {
			t.Errorf("%s: a summary names the release, a description says more:\n%s\n%s", r.Alert, r.Annotations["summary"], r.Annotations["description"])
		}
		// Two releases in one Prometheus must not be added up.
		for _, m := range regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`).FindAllStringSubmatch(r.Expr, -1) {
			if !strings.HasPrefix(m[1], "namespace, job") {
				t.Errorf("%s: grouped by %q, without namespace and job", r.Alert, m[1])
			}
		}
	}
}

// A section of the runbook says these three, in this order.
var sectionForm = regexp.MustCompile(`(?s)^\s*\*\*What it means\.\*\* .{40,}\n\n\*\*How to confirm\.\*\* .{40,}\n\n\*\*What to do\.\*\* .{40,}$`)

// runbook is the page's sections by heading.
func runbook(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, runbookPage))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		if _, ok := sections[title]; ok {
			t.Errorf("%s has two sections %s", runbookPage, title)
		}
		sections[title] = strings.TrimSpace(body)
	}
	return sections
}

func TestRunbookHasASectionForEachAlert(t *testing.T) {
	sections := runbook(t)
	for _, r := range readRules(t) {
		body, ok := sections[r.Alert]
		if !ok {
			t.Errorf("%s has no section %s", runbookPage, r.Alert)
			continue
		}
		delete(sections, r.Alert)
		if !sectionForm.MatchString(body) {
			t.Errorf("%s: %s does not say what it means, how to confirm and what to do:\n%s", runbookPage, r.Alert, body)
		}
	}
	for title := range sections {
		t.Errorf("%s: there is no alert %s", runbookPage, title)
	}
}

// ruleTest is what promtool reads of one case.
type ruleTest struct {
	Name          string
	AlertRuleTest []struct {
		Alertname string
		ExpAlerts []map[string]any `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
}

func readRuleTests(t *testing.T) []ruleTest {
	t.Helper()
	var file struct {
		RuleFiles []string `yaml:"rule_files"`
		Tests     []ruleTest
	}
	readYAML(t, filepath.Join(rulesDir, rulesTests), &file)
	if !slices.Equal(file.RuleFiles, []string{rulesFile}) {
		t.Errorf("%s tests %v", rulesTests, file.RuleFiles)
	}
	return file.Tests
}

func TestEveryAlertHasAFiringAndASilentCase(t *testing.T) {
	firing, silent := map[string]bool{}, map[string]bool{}
	names := map[string]bool{}
	for _, c := range readRuleTests(t) {
		if c.Name == "" || names[c.Name] {
			t.Errorf("a case is named %q, which is not its own", c.Name)
		}
		names[c.Name] = true
		for _, a := range c.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				firing[a.Alertname] = true
			} else {
				silent[a.Alertname] = true
			}
		}
	}
	for _, r := range readRules(t) {
		if !firing[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: a case in which it fires: %t; one in which it is silent: %t", r.Alert, firing[r.Alert], silent[r.Alert])
		}
		delete(firing, r.Alert)
		delete(silent, r.Alert)
	}
	for name := range firing {
		t.Errorf("%s is tested and is no alert", name)
	}
	for name := range silent {
		t.Errorf("%s is tested and is no alert", name)
	}
}

// Each state of a lagging partition has a case, which looks at all three alerts.
func TestTheFourStatesOfLagAreTested(t *testing.T) {
	want := map[string]string{
		"STOP": "JoinerPartitionStopped", "STALL": "JoinerPartitionStalled", "WARN": "JoinerLagGrowing", "OK": "",
	}
	for state, alert := range want {
		cases := 0
		for _, c := range readRuleTests(t) {
			if !strings.HasPrefix(c.Name, state+":") {
				continue
			}
			cases++
			fires := map[string]bool{}
			for _, a := range c.AlertRuleTest {
				fires[a.Alertname] = len(a.ExpAlerts) == 1
			}
			for _, name := range []string{"JoinerPartitionStopped", "JoinerPartitionStalled", "JoinerLagGrowing"} {
				if got, looked := fires[name]; !looked || got != (name == alert) {
					t.Errorf("%s: %s fires: %t (looked at: %t)", c.Name, name, got, looked)
				}
			}
		}
		if cases == 0 {
			t.Errorf("no case is named %s: …", state)
		}
	}
}

func TestPromtool(t *testing.T) {
	tool := installed(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", rulesFile},
		{"test", "rules", rulesTests},
	} {
		t.Run(strings.Join(args[:2], " "), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), tool, args...)
			cmd.Dir = rulesDir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		})
	}
}

// installed finds a tool of Prometheus, or has test/install put it in its place.
func installed(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: make test-mixin runs it")
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "test", "install"), name).CombinedOutput(); err != nil {
		t.Fatalf("test/install %s: %v\n%s", name, err, out)
	}
	cache := os.Getenv("JOINER_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache", "joiner")
	}
	path := filepath.Join(cache, "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(fmt.Errorf("%s is not where test/install should have put it: %w", name, err))
	}
	return path
}
