package server

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// maxScrapes is how many scrapes may run at once; more get 503. A scraper
// that piles up must not take the joiner's CPU.
const maxScrapes = 4

// routes serves what http.listen shows. The mux answers 404 to what it does
// not know and 405, with Allow, to any method but GET and HEAD; below /v1/ such
// answers are JSON, as all are there.
func routes(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /livez", livez(o.Status))
	mux.Handle("GET /readyz", readyz(o.Status))
	mux.HandleFunc("/v1", notFound) // else it would lead to /v1/
	mux.HandleFunc("/v1/", notFound)
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: maxScrapes,
		// What can be collected is worth more than an error page.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      zap.NewStdLog(o.Log),
	}))
	if o.Views != nil {
		mux.HandleFunc("GET /v1/status", statusHandler(o.Views))
		mux.HandleFunc("/v1/status", refuseMethod)
		pageRoutes(mux)
	}
	if o.Prices == nil {
		return mux
	}
	prices := newPricesHandler(o.Prices)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isPrices(r.RequestURI) {
			prices.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// livez says that the process listens, and fails where it is stuck with work to
// do. It asks no broker: one that is away must not get a pod killed.
func livez(status Status) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		header(w, "text/plain; charset=utf-8")
		stalled := status.Stalled()
		if len(stalled) == 0 {
			_, _ = w.Write([]byte("ok\n")) // the client may have gone
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(strings.Join(stalled, "\n") + "\n"))
	}
}

func readyz(status Status) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		r := status.Ready()
		if r.Reasons == nil {
			r.Reasons = []string{} // a list for every reader, never null
		}
		if r.Notes == nil {
			r.Notes = []string{}
		}
		code := http.StatusOK
		if !r.Ready {
			code = http.StatusServiceUnavailable
		}
		header(w, "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(r) // the client may have gone
	}
}

func header(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// pprofRoutes serves the profiles without http.DefaultServeMux, on which
// importing net/http/pprof puts them and which nothing here serves.
func pprofRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // go tool pprof asks so; it changes nothing
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// recovering answers 500 where a handler panics and logs where, instead of
// cutting the connection without a word. A panic after the first byte can
// only cut it.
func recovering(log *zap.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // the sentinel itself, as net/http compares it
				panic(p)
			}
			log.Error("http handler panicked",
				zap.String("path", r.URL.Path), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			http.Error(w, "internal error", http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}
