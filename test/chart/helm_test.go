package chart

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const (
	chartDir  = "../../deploy/helm"
	release   = "prices"
	namespace = "market"
	// What the cluster is said to be: renderings must not depend on Helm's own default.
	kubeVersion = "1.37.0"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// tools are the programs under test, found or built before the first test, and
// what the cases were rendered to.
var tools struct {
	helm, helmDocs, joiner string
	rendered               sync.Map
}

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run finds Helm, which `make test-chart` names, and builds joiner.
func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "joiner-chart-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if tools.helm, err = tool("HELM", "helm"); err != nil {
		return 0, err
	}
	if tools.helmDocs, err = tool("HELM_DOCS", "helm-docs"); err != nil {
		return 0, err
	}
	// Helm keeps nothing of this, and nothing of the caller's is looked at.
	for _, name := range []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"} {
		if err := os.Setenv(name, filepath.Join(dir, strings.ToLower(name))); err != nil {
			return 0, err
		}
	}
	if err := os.Setenv("KUBECONFIG", filepath.Join(dir, "none")); err != nil {
		return 0, err
	}
	tools.joiner = filepath.Join(dir, "joiner")
	build := exec.Command("go", "build", "-o", tools.joiner, "./cmd/joiner")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building joiner: %w\n%s", err, out)
	}
	return m.Run(), nil
}

func tool(variable, name string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is not set, and %s is not installed: `make test-chart` builds it", variable, name)
	}
	return path, nil
}

// helm runs Helm and returns what it printed.
func helm(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := exec.Command(tools.helm, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func template(args ...string) (stdout, stderr string, err error) {
	all := []string{"template", release, chartDir, "--namespace", namespace, "--kube-version", kubeVersion}
	return helm(append(all, args...)...)
}

// render is template for values that are in order.
func render(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, err := template(args...)
	if err != nil {
		t.Fatalf("helm template %s: %v\n%s", strings.Join(args, " "), err, errs)
	}
	if errs != "" {
		t.Errorf("helm template %s warns: %s", strings.Join(args, " "), errs)
	}
	return out
}

// renderValues renders with values given as text.
func renderValues(t *testing.T, values string, args ...string) string {
	t.Helper()
	return render(t, append([]string{"--values", file(t, "values.yaml", values)}, args...)...)
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	// Not t.TempDir, which is named after the test: Helm takes a comma for the
	// end of a file's name.
	dir, err := os.MkdirTemp("", "joiner-values-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// aCase is a set of values that people would use, and what comes of it.
type aCase struct {
	name, dir string
	args      []string // of helm template, the values among them
}

// render renders once for all tests.
func (c aCase) render(t *testing.T) string {
	t.Helper()
	known, ok := tools.rendered.Load(c.name)
	if !ok {
		known = render(t, c.args...)
		tools.rendered.Store(c.name, known)
	}
	return known.(string)
}

// cases reads testdata/cases: a folder each, with values.yaml and, where the
// command line matters, args, one a line.
func cases(t *testing.T) []aCase {
	t.Helper()
	folders, err := filepath.Glob("testdata/cases/*")
	if err != nil || len(folders) < 10 {
		t.Fatalf("testdata/cases holds %d cases (%v), and ten are the least", len(folders), err)
	}
	all := make([]aCase, 0, len(folders))
	for _, dir := range folders {
		c := aCase{name: filepath.Base(dir), dir: dir, args: []string{"--values", filepath.Join(dir, "values.yaml")}}
		if args, err := os.ReadFile(filepath.Join(dir, "args")); err == nil {
			c.args = append(c.args, strings.Split(strings.TrimSpace(string(args)), "\n")...)
		}
		all = append(all, c)
	}
	return all
}

// eachCase runs a test over the objects of every case.
func eachCase(t *testing.T, test func(t *testing.T, c aCase, objects []object)) {
	t.Helper()
	for _, c := range cases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, c, decode(t, c.render(t)))
		})
	}
}
