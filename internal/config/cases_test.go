package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// faultsHeading divides a case's configuration from what is wrong with it.
const faultsHeading = "# ---- faults\n"

// TestCases loads each testdata/conf.<case>.yml and compares what is wrong
// with what the file says of itself below the line; -update writes it there.
func TestCases(t *testing.T) {
	names, err := filepath.Glob("testdata/conf.*.yml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "conf."), ".yml"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			conf, want, _ := strings.Cut(string(text), faultsHeading)
			_, err = Load(Options{Path: name, Explicit: true})
			got := commented(faultsOf(t, err))
			if *update {
				if err := os.WriteFile(name, []byte(conf+faultsHeading+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got == "" {
				t.Fatal("nothing is wrong")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if strings.Contains(got, "hunter2") {
				t.Error("a fault quotes a secret")
			}
		})
	}
}

func commented(faults Faults) string {
	var b strings.Builder
	for _, f := range faults {
		f.Source = strings.TrimPrefix(f.Source, "testdata/")
		b.WriteString("# " + strings.ReplaceAll(f.Error(), "\n", "\n#   ") + "\n")
	}
	return b.String()
}
