package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"time"

	"joiner/internal/status"
)

// Views tells how the pod and its group stand. Its methods are called by any
// goroutine. Pod must not block; Group asks other pods, and must return when
// ctx ends and in any case within a few seconds.
type Views interface {
	Pod() status.View
	Group(ctx context.Context) (status.View, error)
}

var (
	errScope    = errors.New("scope: use pod or group")
	errOverload = errors.New("too many requests at once")
)

// groupAtOnce bounds the requests that wait for the group's answer.
const groupAtOnce = 64

// statusHandler serves /v1/status.
func statusHandler(v Views) http.HandlerFunc {
	room := make(chan struct{}, groupAtOnce)
	return func(w http.ResponseWriter, r *http.Request) {
		switch scope := r.URL.Query().Get("scope"); status.Scope(scope) {
		case "", status.ScopePod:
			writeJSON(w, http.StatusOK, v.Pod())
			return
		case status.ScopeGroup:
		default:
			writeFault(w, http.StatusBadRequest, &NoPrice{Reason: ReasonBadRequest, Err: errScope})
			return
		}
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
		default:
			w.Header().Set("Retry-After", "1")
			writeFault(w, http.StatusServiceUnavailable, &NoPrice{Reason: ReasonOverload, Err: errOverload})
			return
		}
		view, err := v.Group(r.Context())
		if err != nil {
			writeFault(w, http.StatusServiceUnavailable, noPriceOf(err))
			return
		}
		writeJSON(w, http.StatusOK, view)
	}
}

//go:embed page
var pageFiles embed.FS

// policy keeps the page to what comes from this pod: no foreign script, style,
// picture or connection, nothing written into it by its data, and no other page
// around it.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageRoutes serves the status page and its assets, all out of the binary.
func pageRoutes(mux *http.ServeMux) {
	for pattern, name := range map[string]string{
		"GET /{$}":             "index.html",
		"GET /assets/page.css": "page.css",
		"GET /assets/page.js":  "page.js",
		"GET /assets/icon.svg": "icon.svg",
	} {
		mux.Handle(pattern, pageFile(name))
	}
}

func contentType(name string) string {
	switch path.Ext(name) {
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/html; charset=utf-8"
}

// pageFile serves one file, which a browser may keep but asks about each time:
// after an upgrade an old script must not meet a new page.
func pageFile(name string) http.HandlerFunc {
	content, err := fs.ReadFile(pageFiles, path.Join("page", name))
	if err != nil {
		panic(err) // the binary was built without it
	}
	sum := sha256.Sum256(content)
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		header(w, contentType(name))
		h := w.Header()
		h.Set("Cache-Control", "no-cache")
		h.Set("Etag", etag)
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Frame-Options", "DENY") // for what is older than frame-ancestors
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	}
}
