package mixin

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"joiner/test/proc"
)

const (
	root          = "../.."
	dashboardFile = root + "/deploy/helm/mixin/dashboards/joiner.json"
)

func updating() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the dashboard anew")
	code := m.Run() // parses the flags
	proc.CleanUp()
	os.Exit(code)
}

func TestDashboardIsUpToDate(t *testing.T) {
	want, err := dashboard()
	if err != nil {
		t.Fatal(err)
	}
	if updating() {
		if err := os.MkdirAll(filepath.Dir(dashboardFile), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dashboardFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what test/mixin makes: go test ./test/mixin -update", dashboardFile)
	}
}

// board is a dashboard as it is read back: what the tests look at, from the
// file that people load and not from what made it.
type board struct {
	UID           string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type, AllValue string
			IncludeAll           bool
			Definition           string
			Datasource           struct{ UID string }
		}
	}
	Panels []boardPanel
}

type boardPanel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		RefID, Expr, LegendFormat, Format string
		Datasource                        struct{ UID string }
	}
}

func readBoard(t *testing.T) board {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDashboardForm(t *testing.T) {
	b := readBoard(t)
	if b.UID == "" || b.SchemaVersion < 36 {
		t.Errorf("uid %q, schemaVersion %d: data sources are objects from 36 on", b.UID, b.SchemaVersion)
	}
	names := []string{}
	for _, v := range b.Templating.List {
		names = append(names, v.Name)
		if v.Type != "query" {
			continue
		}
		if v.Datasource.UID != "${datasource}" || v.AllValue != ".*" || !v.IncludeAll {
			t.Errorf("variable %s: data source %q, all is %q (offered: %t)", v.Name, v.Datasource.UID, v.AllValue, v.IncludeAll)
		}
	}
	if want := []string{"datasource", "namespace", "job"}; !slices.Equal(names, want) {
		t.Errorf("the variables are %v, want %v", names, want)
	}
	ids, titles := map[int]bool{}, map[string]bool{}
	taken := map[[2]int]string{}
	for _, p := range b.Panels {
		if p.ID <= 0 || ids[p.ID] {
			t.Errorf("%s: the id %d is not its own", p.Title, p.ID)
		}
		if p.Title == "" || titles[p.Title] {
			t.Errorf("panel %d: the title %q is not its own", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		checkPlace(t, p, taken)
		if p.Type != "row" {
			checkPanel(t, p)
		}
	}
}

// checkPlace marks the cells of the grid that the panel takes.
func checkPlace(t *testing.T, p boardPanel, taken map[[2]int]string) {
	t.Helper()
	g := p.GridPos
	if g.W < 1 || g.H < 1 || g.X < 0 || g.Y < 0 || g.X+g.W > 24 {
		t.Errorf("%s: %+v is outside the grid of 24 columns", p.Title, g)
	}
	for x := g.X; x < g.X+g.W; x++ {
		for y := g.Y; y < g.Y+g.H; y++ {
			if other, ok := taken[[2]int{x, y}]; ok {
				t.Errorf("%s and %s are both at column %d, line %d", p.Title, other, x, y)
				return
			}
			taken[[2]int{x, y}] = p.Title
		}
	}
}

func checkPanel(t *testing.T, p boardPanel) {
	t.Helper()
	if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
		t.Errorf("%s: description %q, unit %q, %d queries", p.Title, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets))
	}
	if p.Datasource.UID != "${datasource}" {
		t.Errorf("%s: the data source is %q and not the variable", p.Title, p.Datasource.UID)
	}
	refs := map[string]bool{}
	for _, q := range p.Targets {
		if refs[q.RefID] || q.RefID == "" {
			t.Errorf("%s: the reference %q is not its own", p.Title, q.RefID)
		}
		refs[q.RefID] = true
		if q.Datasource.UID != "${datasource}" {
			t.Errorf("%s %s: the data source is %q and not the variable", p.Title, q.RefID, q.Datasource.UID)
		}
		if q.LegendFormat == "" && q.Format != "table" {
			t.Errorf("%s %s has no legend", p.Title, q.RefID)
		}
		for _, s := range selectors(q.Expr) {
			if !strings.Contains(s, `namespace=~"$namespace"`) || !strings.Contains(s, `job=~"$job"`) {
				t.Errorf("%s %s: %s is not bound by the variables", p.Title, q.RefID, s)
			}
		}
	}
}

// What issue and runbook promise is shown.
func TestDashboardShowsWhatMatters(t *testing.T) {
	var all strings.Builder
	for _, p := range readBoard(t).Panels {
		for _, q := range p.Targets {
			fmt.Fprintln(&all, q.Expr)
		}
	}
	for _, metric := range []string{
		"joiner_joins_total", "joiner_alert_latency_seconds_bucket", "joiner_price_age_seconds_bucket",
		"joiner_lag_records", "joiner_lag_seconds", "joiner_partition_records_total", "joiner_hottest_key_share_ratio",
		"joiner_colocated_partitions", "joiner_rebalances_total", "joiner_task_pause_seconds_bucket",
		"joiner_restore_remaining_records", "joiner_dead_letters_total", "joiner_misplaced_keys_total",
		"joiner_retention_headroom_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes",
	} {
		if !regexp.MustCompile(`\b` + metric + `\b`).MatchString(all.String()) {
			t.Errorf("no panel shows %s", metric)
		}
	}
}
