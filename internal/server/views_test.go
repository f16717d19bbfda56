package server

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"joiner/internal/status"
)

// views answers with what the test wants.
type views struct{ err error }

func (v views) Pod() status.View { return status.View{Group: "g", Scope: status.ScopePod} }

func (v views) Group(context.Context) (status.View, error) {
	return status.View{
		Group: "g", Scope: status.ScopeGroup,
		Hottest: []status.HotRate{{Symbol: "<script>alert(1)</script>", Share: .5}},
	}, v.err
}

func TestStatusScopes(t *testing.T) {
	f := start(t, func(o *Options) { o.Views = views{} })
	for _, c := range []struct {
		path  string
		code  int
		scope any
	}{
		{"/v1/status", 200, "pod"},
		{"/v1/status?scope=pod", 200, "pod"},
		{"/v1/status?scope=group", 200, "group"},
		{"/v1/status?scope=Group", 400, nil},
		{"/v1/status?scope=all", 400, nil},
	} {
		r := f.get(t, c.path)
		var body map[string]any
		if err := json.Unmarshal([]byte(r.body), &body); err != nil || r.code != c.code || body["scope"] != c.scope {
			t.Errorf("%s: %d %s %v", c.path, r.code, r.body, err)
		}
		if strings.Contains(r.body, "<script>") {
			t.Errorf("%s: markup in the answer: %s", c.path, r.body)
		}
	}
	if r := f.do(t, http.MethodPost, f.Addr(), "/v1/status", nil); r.code != 405 {
		t.Errorf("POST: %d", r.code)
	}
}

func TestStatusThatFails(t *testing.T) {
	f := start(t, func(o *Options) { o.Views = views{err: errors.New("broken")} })
	if r := f.get(t, "/v1/status?scope=group"); r.code != 503 || !strings.Contains(r.body, `"reason":"failed"`) {
		t.Errorf("%d %s", r.code, r.body)
	}
	if r := f.do(t, "POST", f.Addr(), "/v1/status", nil); r.code != 405 || r.header.Get("Allow") != "GET, HEAD" || !strings.Contains(r.body, `"reason":"method_not_allowed"`) {
		t.Errorf("POST: %d %s", r.code, r.body)
	}
	if r := f.get(t, "/v1/status"); r.code != 200 {
		t.Errorf("this pod's own: %d", r.code)
	}
}

func TestPageAndItsAssets(t *testing.T) {
	f := start(t, func(o *Options) { o.Views = views{} })
	for path, ct := range map[string]string{
		"/":                "text/html; charset=utf-8",
		"/assets/page.js":  "text/javascript; charset=utf-8",
		"/assets/page.css": "text/css; charset=utf-8",
		"/assets/icon.svg": "image/svg+xml",
	} {
		r := f.get(t, path)
		if r.code != 200 || r.header.Get("Content-Type") != ct || r.body == "" {
			t.Errorf("%s: %d %s", path, r.code, r.header.Get("Content-Type"))
		}
		csp := r.header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'self';") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", path, csp)
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY", "Cache-Control": "no-cache",
		} {
			if got := r.header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		if r := f.do(t, http.MethodGet, f.Addr(), path, http.Header{"If-None-Match": {r.header.Get("Etag")}}); r.code != 304 {
			t.Errorf("%s again: %d", path, r.code)
		}
		if r := f.do(t, http.MethodHead, f.Addr(), path, nil); r.code != 200 || r.body != "" {
			t.Errorf("HEAD %s: %d", path, r.code)
		}
		if r := f.do(t, http.MethodPost, f.Addr(), path, nil); r.code != 405 {
			t.Errorf("POST %s: %d", path, r.code)
		}
	}
	for _, path := range []string{"/assets/", "/assets/index.html", "/index.html", "/page/page.js", "/favicon.ico"} {
		if r := f.get(t, path); r.code != 404 {
			t.Errorf("%s: %d", path, r.code)
		}
	}
}

// The page must work with default-src 'self' alone, behind any path prefix,
// and without the network: nothing inline, nothing from elsewhere, no absolute
// path. And it must never turn data into markup.
func TestPageIsSelfContained(t *testing.T) {
	forbidden := regexp.MustCompile(`(?i)style\s*=|\son[a-z]+\s*=|<style|<script(?:\s[^>]*)?>[^<]|(?:src|href)="/|url\(|@import|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`)
	namespace := `xmlns="http://www.w3.org/2000/svg"`
	err := fs.WalkDir(pageFiles, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(pageFiles, path)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(b), namespace, "")
		if found := forbidden.FindString(text); found != "" {
			t.Errorf("%s has %q", path, found)
		}
		if strings.Contains(text, "//") && regexp.MustCompile(`https?://|["'(]//`).MatchString(text) {
			t.Errorf("%s names another place", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
