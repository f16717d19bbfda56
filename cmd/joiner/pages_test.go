package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"joiner/internal/app"
	"joiner/internal/config"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block is a fenced passage of a page, without its fences.
type block struct{ language, text string }

func blocks(page string) (found []block) {
	var open *block
	for line := range strings.Lines(page) {
		language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open == nil:
			open = &block{language: language}
		case fence:
			found, open = append(found, *open), nil
		case open != nil:
			open.text += line
		}
	}
	return found
}

// What pages show of joiner plan is what it prints: each run of lines between
// two … as it stands, in this order.
func TestPagesShowWhatPlanPrints(t *testing.T) {
	for _, name := range []string{"README.md", "docs/operations.md"} {
		shown := 0
		for _, b := range blocks(page(t, name)) {
			command, want, _ := strings.Cut(b.text, "\n")
			args, ok := strings.CutPrefix(command, "$ joiner plan ")
			if !ok {
				continue
			}
			shown++
			var stdout, stderr bytes.Buffer
			if code := run(append([]string{"plan"}, strings.Fields(args)...), &process{stdout: &stdout, stderr: &stderr}); code != exitOK {
				t.Errorf("%s: %s: code %d, %s", name, command, code, &stderr)
				continue
			}
			rest := "\n" + stdout.String()
			for _, lines := range strings.Split("\n"+want, "…\n") {
				_, after, ok := strings.Cut(rest, lines)
				if !ok {
					t.Errorf("%s: %s does not print\n%s\nbut\n%s", name, command, lines, rest)
					break
				}
				rest = "\n" + after
			}
		}
		if shown == 0 {
			t.Errorf("%s shows no joiner plan", name)
		}
	}
}

// The configurations that the page shows are ones that joiner takes; those that
// name files are for test/e2e, which has such files.
func TestPagesShowConfigurations(t *testing.T) {
	loaded := 0
	for _, b := range blocks(page(t, "docs/operations.md")) {
		if b.language != "yaml" || strings.Contains(b.text, "apiVersion:") || strings.Contains(b.text, "_file:") {
			continue
		}
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Options{Path: file, Explicit: true})
		if err == nil {
			err = app.Check(c.Config)
		}
		if err != nil {
			t.Errorf("%v:\n%s", err, b.text)
		}
		loaded++
	}
	if loaded < 5 {
		t.Errorf("%d configurations: they are not found", loaded)
	}
}
