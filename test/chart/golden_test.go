package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden compares with a file, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(read(t, path), got); diff != "" {
		t.Errorf("%s differs (-want +got), -update rewrites it:\n%s", path, diff)
	}
}

func TestGolden(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			golden(t, filepath.Join(c.dir, "golden.yaml"), withoutMixin(c.render(t)))
		})
	}
}

// withoutMixin leaves out what is in files of its own, and has tests of its own:
// a new alert changes no golden file.
func withoutMixin(rendering string) string {
	dashboards := regexp.MustCompile(`(?m)^(  [a-z0-9-]+\.json: \|\n)(    .*\n|\n)+`)
	rendering = dashboards.ReplaceAllString(rendering, "${1}    (as in mixin/dashboards)\n")
	groups := regexp.MustCompile(`(?m)^(  groups:\n)(    .*\n|\n)+`)
	return groups.ReplaceAllString(rendering, "${1}    (as in mixin/rules)\n")
}

func TestLint(t *testing.T) {
	for _, c := range cases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, errs, err := helm(append([]string{"lint", "--strict", "--kube-version", kubeVersion, chartDir}, c.args...)...)
			if err != nil {
				t.Errorf("%v\n%s%s", err, out, errs)
			}
		})
	}
}
