package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// statusFunc answers with what the test wants.
type statusFunc func() Readiness

func (f statusFunc) Ready() Readiness  { return f() }
func (f statusFunc) Stalled() []string { return nil }

// stalled is a pod that has stalled, so badly that Ready does not come back.
type stalled []string

func (stalled) Ready() Readiness    { select {} }
func (s stalled) Stalled() []string { return s }

func ready() Readiness {
	return Readiness{Ready: true, Assigned: true, CaughtUp: true}
}

type fixture struct {
	*Server
	client *http.Client
	logs   *observer.ObservedLogs
}

func start(t *testing.T, change func(*Options)) fixture {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	o := Options{
		Listen:   "127.0.0.1:0",
		Status:   statusFunc(ready),
		Gatherer: prometheus.NewRegistry(),
		Log:      zap.New(core),
	}
	if change != nil {
		change(&o)
	}
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{Server: s, client: &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}, logs: logs}
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

type response struct {
	code   int
	header http.Header
	body   string
}

func (f fixture) do(t *testing.T, method string, addr net.Addr, path string, header http.Header) response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr.String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{res.StatusCode, res.Header, string(body)}
}

func (f fixture) get(t *testing.T, path string) response {
	t.Helper()
	return f.do(t, http.MethodGet, f.Addr(), path, nil)
}

func TestRoutes(t *testing.T) {
	f := start(t, nil)
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/livez", 200},
		{"HEAD", "/livez", 200},
		{"GET", "/readyz", 200},
		{"GET", "/metrics", 200},
		{"POST", "/livez", 405},
		{"PUT", "/readyz", 405},
		{"DELETE", "/metrics", 405},
		{"GET", "/nothing", 404},
		{"POST", "/nothing", 404},
		{"GET", "/livez/more", 404},
		{"GET", "/debug/pprof/", 404}, // has a listener of its own
	} {
		r := f.do(t, c.method, f.Addr(), c.path, nil)
		if r.code != c.code {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, r.code, c.code)
		}
		if c.code == 405 && r.header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, r.header.Get("Allow"))
		}
	}
	if f.PprofAddr() != nil {
		t.Error("pprof listens unasked")
	}
}

func TestReadiness(t *testing.T) {
	var now atomic.Pointer[Readiness]
	f := start(t, func(o *Options) {
		o.Status = statusFunc(func() Readiness { return *now.Load() })
	})
	for _, c := range []struct {
		status Readiness
		code   int
		body   map[string]any
	}{
		{
			Readiness{Restoring: true, Assigned: true, Reasons: []string{"partition 3 of market-updates: 42 records to restore"}},
			503,
			map[string]any{
				"ready": false, "assigned": true, "restoring": true, "caught_up": false,
				"reasons": []any{"partition 3 of market-updates: 42 records to restore"}, "notes": []any{},
			},
		},
		{
			ready(),
			200,
			map[string]any{"ready": true, "assigned": true, "restoring": false, "caught_up": true, "reasons": []any{}, "notes": []any{}},
		},
		{
			Readiness{Ready: true, Assigned: true, CaughtUp: true, Notes: []string{"3 of 30 records are misplaced"}},
			200,
			map[string]any{
				"ready": true, "assigned": true, "restoring": false, "caught_up": true,
				"reasons": []any{}, "notes": []any{"3 of 30 records are misplaced"},
			},
		},
		{
			Readiness{Reasons: []string{"no assignment yet"}},
			503,
			map[string]any{
				"ready": false, "assigned": false, "restoring": false, "caught_up": false,
				"reasons": []any{"no assignment yet"}, "notes": []any{},
			},
		},
	} {
		now.Store(&c.status)
		r := f.get(t, "/readyz")
		if r.code != c.code {
			t.Errorf("%+v: %d, want %d", c.status, r.code, c.code)
		}
		if got := r.header.Get("Content-Type"); got != "application/json" {
			t.Errorf("content type %q", got)
		}
		if got := r.header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("cache control %q", got)
		}
		var body map[string]any
		if err := json.Unmarshal([]byte(r.body), &body); err != nil {
			t.Errorf("%q: %v", r.body, err)
		}
		if d := cmp.Diff(c.body, body); d != "" {
			t.Error(d)
		}
		if live := f.get(t, "/livez"); live.code != 200 {
			t.Errorf("liveness follows readiness: %d", live.code)
		}
	}
}

func TestMetricsFormats(t *testing.T) {
	f := start(t, func(o *Options) {
		reg := prometheus.NewRegistry()
		reg.MustRegister(collectors.NewGoCollector())
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "things_seconds", Help: "Things.", NativeHistogramBucketFactor: 1.1, Buckets: []float64{1},
		})
		h.Observe(0.5)
		reg.MustRegister(h)
		o.Gatherer = reg
	})
	for accept, want := range map[string]string{
		"": "text/plain",
		"application/openmetrics-text;version=1.0.0":                                                 "application/openmetrics-text",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "application/vnd.google.protobuf",
	} {
		r := f.do(t, http.MethodGet, f.Addr(), "/metrics", http.Header{"Accept": {accept}})
		got, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
		if err != nil || got != want || r.code != 200 {
			t.Errorf("accept %q: %d %q, %v", accept, r.code, r.header.Get("Content-Type"), err)
		}
		if !strings.Contains(r.body, "things_seconds") || !strings.Contains(r.body, "go_goroutines") {
			t.Errorf("accept %q: metrics missing", accept)
		}
		if openMetrics := strings.HasSuffix(r.body, "# EOF\n"); openMetrics != (want == "application/openmetrics-text") {
			t.Errorf("accept %q: wrong ending", accept)
		}
	}
}

// failing is a collector that cannot collect.
type failing struct{ *prometheus.Desc }

func (f failing) Describe(ch chan<- *prometheus.Desc) { ch <- f.Desc }
func (f failing) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(f.Desc, errors.New("broken"))
}

func TestOneBrokenMetricDoesNotHideTheOthers(t *testing.T) {
	f := start(t, func(o *Options) {
		reg := prometheus.NewRegistry()
		reg.MustRegister(failing{prometheus.NewDesc("broken", "Broken.", nil, nil)}, collectors.NewGoCollector())
		o.Gatherer = reg
	})
	if r := f.get(t, "/metrics"); r.code != 200 || !strings.Contains(r.body, "go_goroutines") {
		t.Errorf("%d %q", r.code, r.body)
	}
	if f.logs.Len() == 0 {
		t.Error("nothing is logged")
	}
}

func TestPanicIsAnsweredAndLogged(t *testing.T) {
	f := start(t, func(o *Options) {
		o.Status = statusFunc(func() Readiness { panic("boom") })
	})
	for range 2 {
		if r := f.get(t, "/readyz"); r.code != 500 || strings.Contains(r.body, "boom") {
			t.Errorf("%d %q", r.code, r.body)
		}
	}
	if got := f.logs.FilterMessage("http handler panicked").Len(); got != 2 {
		t.Errorf("%d panics logged", got)
	}
	if r := f.get(t, "/livez"); r.code != 200 {
		t.Errorf("liveness %d", r.code)
	}
}

func TestPprof(t *testing.T) {
	f := start(t, func(o *Options) { o.PprofListen = "127.0.0.1:0" })
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=1"} {
		if r := f.do(t, http.MethodGet, f.PprofAddr(), path, nil); r.code != 200 {
			t.Errorf("%s: %d %q", path, r.code, r.body)
		}
	}
	for _, path := range []string{"/metrics", "/livez"} {
		if r := f.do(t, http.MethodGet, f.PprofAddr(), path, nil); r.code != 404 {
			t.Errorf("%s on the pprof listener: %d", path, r.code)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := ln.Addr().String()
	for key, o := range map[string]Options{
		"http.listen":       {Listen: taken},
		"http.pprof_listen": {Listen: "127.0.0.1:0", PprofListen: taken},
	} {
		o.Status, o.Gatherer, o.Log = statusFunc(ready), prometheus.NewRegistry(), zap.NewNop()
		_, err := Start(t.Context(), o)
		var op *net.OpError
		if !errors.As(err, &op) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), taken) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestMissingOptions(t *testing.T) {
	whole := Options{Listen: "127.0.0.1:0", Status: statusFunc(ready), Gatherer: prometheus.NewRegistry(), Log: zap.NewNop()}
	for name, cut := range map[string]func(*Options){
		"Status":   func(o *Options) { o.Status = nil },
		"Gatherer": func(o *Options) { o.Gatherer = nil },
		"Log":      func(o *Options) { o.Log = nil },
	} {
		o := whole
		cut(&o)
		if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// blocked holds /readyz until it is let go.
type blocked struct{ entered, release chan struct{} }

func (b blocked) Ready() Readiness {
	b.entered <- struct{}{}
	<-b.release
	return ready()
}

func (blocked) Stalled() []string { return nil }

func TestCloseLetsRequestsFinish(t *testing.T) {
	b := blocked{make(chan struct{}), make(chan struct{})}
	f := start(t, func(o *Options) { o.Status = b })
	codes := make(chan int)
	go func() { codes <- f.code("/readyz") }()
	<-b.entered

	closed := make(chan error)
	go func() { closed <- f.Close(context.Background()) }()
	<-f.main.done // it listens no more, and the request is still under way
	select {
	case err := <-closed:
		t.Fatalf("closed before the request ended: %v", err)
	default:
	}
	close(b.release)
	if code := <-codes; code != 200 {
		t.Errorf("the request under way got %d", code)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if code := f.code("/livez"); code != 0 {
		t.Errorf("it still answers: %d", code)
	}
}

func TestCloseCutsRequestsOffWhenTimeIsUp(t *testing.T) {
	b := blocked{make(chan struct{}), make(chan struct{})}
	f := start(t, func(o *Options) { o.Status = b })
	codes := make(chan int)
	go func() { codes <- f.code("/readyz") }()
	<-b.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if code := <-codes; code != 0 {
		t.Errorf("the request that was cut off got %d", code)
	}
	close(b.release)
}

// code is the status of a GET, 0 where there was no answer. Unlike get it
// may be called outside the test's goroutine.
func (f fixture) code(path string) int {
	res, err := f.client.Get("http://" + f.Addr().String() + path)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	return res.StatusCode
}

func TestLivenessNamesWhatHasStalled(t *testing.T) {
	f := start(t, func(o *Options) {
		o.Status = stalled{"partition 3 has stalled since 2026-01-05T03:00:00Z (merge): 5 records wait", "the pod has stalled"}
	})
	r := f.get(t, "/livez")
	if r.code != http.StatusServiceUnavailable {
		t.Errorf("code %d", r.code)
	}
	if want := "partition 3 has stalled since 2026-01-05T03:00:00Z (merge): 5 records wait\nthe pod has stalled\n"; r.body != want {
		t.Errorf("%q, want %q", r.body, want)
	}
}

// Whoever only connects gets no more than a bounded number of connections, and the
// log says so once.
func TestTooManyConnections(t *testing.T) {
	s := start(t, func(o *Options) { o.connections = 1 })
	open, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := io.WriteString(open, "GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := open.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the first: %v", err)
	}
	ask := func() error {
		resp, err := s.client.Get("http://" + s.Addr().String() + "/livez")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := ask(); err == nil {
		t.Error("one more is served")
	}
	if n := s.logs.FilterMessage("too many connections, one more was closed").FilterField(zap.String("listener", "http.listen")).Len(); n != 1 {
		t.Errorf("%d lines", n)
	}
	_ = open.Close()
	for deadline := time.Now().Add(30 * time.Second); ask() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no room for another")
		}
	}
}
