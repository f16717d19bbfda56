package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	ready := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(ready)
		}
		_, _ = io.WriteString(w, r.URL.Path+" says so\n")
	}))
	defer s.Close()
	for _, c := range []struct {
		status         int
		args           []string
		code           int
		stdout, stderr string
	}{
		{200, nil, 0, "/readyz says so\n", ""},
		{503, nil, 1, "", "/readyz: 503 Service Unavailable: /readyz says so\n"},
		{503, []string{"--live"}, 0, "/livez says so\n", ""},
	} {
		ready = c.status
		var stdout, stderr bytes.Buffer
		code := run(append([]string{"health", "--http-listen", s.Listener.Addr().String()}, c.args...),
			&process{stdout: &stdout, stderr: &stderr})
		if code != c.code || stdout.String() != c.stdout || !strings.HasSuffix(stderr.String(), c.stderr) {
			t.Errorf("%d, %v: code %d, %q, %q, want %d, %q, …%q", c.status, c.args, code, stdout.String(), stderr.String(), c.code, c.stdout, c.stderr)
		}
	}
}
