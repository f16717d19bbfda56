// Package docs tests that what the pages of this repository point at is there.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// pages are all Markdown files, relative to root.
func pages(t *testing.T) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			page, err := filepath.Rel(root, path)
			found = append(found, page)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// prose is a page without its code, in which brackets mean something else.
func prose(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```.*?^```$")
	return blocks.ReplaceAllString(string(text), "")
}

// anchor is what a heading is called in links: lower case, without marks, with
// hyphens for spaces.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose(t, page), -1) {
		found[anchor(m[1])] = true
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code := regexp.MustCompile("`[^`\n]*`")
	links := 0
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(prose(t, page), ""), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			path, fragment, _ := strings.Cut(target, "#")
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: %s: %v", page, target, err)
				continue
			}
			if fragment != "" && !anchors(t, to)[fragment] {
				t.Errorf("%s: %s: %s has no such heading", page, target, to)
			}
		}
	}
	if links == 0 {
		t.Error("no link was found: the pages are not read")
	}
}

// A page that is named in running text or in code, as in "docs/check.md", is
// there as well, also where a command's help names it.
func TestNamedPagesExist(t *testing.T) {
	named := regexp.MustCompile(`\bdocs/[a-z_-]+\.md\b`)
	seen := 0
	check := func(path string) {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllString(string(text), -1) {
			seen++
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s names %s: %v", path, name, err)
			}
		}
	}
	for _, page := range pages(t) {
		check(page)
	}
	commands, err := filepath.Glob(filepath.Join(root, "cmd/joiner/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		check(rel)
	}
	if seen == 0 {
		t.Error("no page is named: nothing was read")
	}
}
