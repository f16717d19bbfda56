// Package page tests the status page in a real headless Chromium. It starts one
// browser: `make test-page`. With PAGE_PICTURES=DIR it leaves pictures there.
package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"joiner/internal/server"
	"joiner/internal/status"
	"joiner/test/chromium"
)

const (
	market = "market-updates"
	notes  = "notifications"
)

// hostile is a symbol, and has to stay one.
const hostile = "<script>document.title='hacked'</script>"

// twin is a symbol that looks like what another one is shown as, which is not
// UTF-8.
const twin = "base64://4="

// fake is a group as the test wants it.
type fake struct{ view atomic.Pointer[status.View] }

func (f *fake) Pod() status.View                           { return *f.view.Load() }
func (f *fake) Group(context.Context) (status.View, error) { return *f.view.Load(), nil }
func (f *fake) Stalled() []string                          { return nil }
func (f *fake) Ready() server.Readiness                    { return server.Readiness{Ready: true} }

func ptr[T any](v T) *T { return &v }

// view is a group of so many members and partitions; every ninth partition is
// in some other state than running.
func view(members, partitions int) status.View {
	v := status.View{
		Group: "price-alerts", Generation: 42, Strategy: "copartition", Scope: status.ScopeGroup, Pod: "m1", At: "2026-01-05T03:00:00.123Z",
		Inputs: status.Inputs{MarketUpdates: market, Notifications: notes},
		Joins:  status.NewJoins(),
	}
	v.Joins["local"]["hit"], v.Joins["local"]["miss"], v.Joins["remote"]["hit"] = 1_204_331, 12, 1_403
	for i, s := range []string{"BBCA", "BTC-USD", "日経225", "M&M.NS", hostile, "AAPL", "\xff\xfe", "BRK.B", twin} {
		v.Hottest = append(v.Hottest, status.HotRate{Symbol: status.Symbol(s), Share: 0.12 / float64(i+1)})
	}
	for i := range members {
		m := status.Member{ID: fmt.Sprintf("m%d", i+1), Address: fmt.Sprintf("10.0.0.%d:8081", i+1), Reachable: ptr(true), Ready: ptr(true)}
		m.Joins = status.NewJoins()
		m.Joins["local"]["hit"] = 1000
		if i == members-1 && members > 3 {
			m.Reachable, m.Ready, m.Error, m.Joins = ptr(false), nil, "it has not answered in time", nil
		}
		v.Members = append(v.Members, m)
	}
	for p := range partitions {
		owner := v.Members[p%members].ID
		t := status.Task{Partition: int32(p), Owner: owner, Colocated: true, State: status.StateRunning,
			CaughtUp: ptr(true), Remaining: ptr(int64(0)), Symbols: ptr(int64(166 + p)), Unsettled: ptr(int64(3)), Topics: map[string]status.Half{}}
		for side, topic := range []string{market, notes} {
			end := int64(1_000_000 + 7919*p + 31*side)
			t.Topics[topic] = status.Half{Owner: owner, Position: ptr(end), Committed: ptr(end - int64(p%5)), HighWatermark: ptr(end), Lag: ptr(int64(p % 5)), Leader: ptr(int32(1 + p%3))}
		}
		switch {
		case p%9 == 4:
			t.State, t.CaughtUp, t.Remaining = status.StateRestoring, ptr(false), ptr(int64(48_211))
		case p%9 == 7:
			t.State, t.Owner, t.Colocated, t.CaughtUp, t.Remaining = status.StateMoving, "", false, nil, nil
			t.Topics = map[string]status.Half{market: {}, notes: {}}
		case p%9 == 2:
			t.Colocated = false
			h := t.Topics[market]
			h.Owner = v.Members[(p+1)%members].ID
			t.Topics[market] = h
		case owner == v.Members[members-1].ID && members > 3:
			t.State, t.CaughtUp, t.Remaining, t.Symbols = status.StateUnknown, nil, nil, nil
			for topic := range t.Topics {
				t.Topics[topic] = status.Half{Owner: owner}
			}
		}
		v.Tasks = append(v.Tasks, t)
	}
	return v
}

// site is a pod's server with a fake behind it.
type site struct {
	fake
	t      *testing.T
	server *server.Server
	addr   string
}

func serve(t *testing.T, v status.View) *site {
	t.Helper()
	s := &site{t: t, addr: "127.0.0.1:0"}
	s.view.Store(&v)
	s.start()
	s.addr = s.server.Addr().String()
	t.Cleanup(s.stop)
	return s
}

func (s *site) url() string { return "http://" + s.addr + "/" }

func (s *site) start() {
	s.t.Helper()
	var err error
	s.server, err = server.Start(context.Background(), server.Options{
		Listen: s.addr, Status: s, Views: s, Gatherer: prometheus.NewRegistry(), Log: zap.NewNop(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), chromium.Patience)
	defer cancel()
	_ = s.server.Close(ctx) // cut off or not: it is gone
}

// picture leaves a picture where somebody wants to look.
func picture(t *testing.T, tab *chromium.Tab, name string) {
	t.Helper()
	if dir := os.Getenv("PAGE_PICTURES"); dir != "" {
		tab.Picture(t, filepath.Join(dir, name+".png"))
	}
}

// faultless fails where the page complained of anything but what is allowed.
func faultless(t *testing.T, tab *chromium.Tab, allowed string) {
	t.Helper()
	for _, f := range tab.Faults() {
		if allowed == "" || !strings.Contains(f, allowed) {
			t.Error(f)
		}
	}
}

func equal(t *testing.T, tab *chromium.Tab, expression string, want any) {
	t.Helper()
	var got any
	tab.Eval(t, expression, &got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: %s", expression, d)
	}
}

const drawn = "document.body.dataset.drawn > 0"

// TestChromium is one test, so that one browser serves all.
func TestChromium(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser: make test-page")
	}
	b := chromium.Start(t)
	for name, test := range map[string]func(*testing.T, *chromium.Browser){
		"small":           small,
		"large":           large,
		"stale":           stale,
		"without scripts": withoutScripts,
		"behind a path":   behindAPath,
		"a member joins":  memberJoins,
	} {
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

// small shows every part of the page, and that symbols stay text.
func small(t *testing.T, b *chromium.Browser) {
	s := serve(t, view(4, 6))
	tab := b.Open(t, s.url(), 1280, 1000)
	tab.Await(t, drawn)
	picture(t, tab, "small-light")

	equal(t, tab, "document.title", "joiner · price-alerts")
	equal(t, tab, chipsOf("m1"), "0 chip both,4 chip both busy")
	equal(t, tab, chipsOf("m3"), "2 chip notifications")
	equal(t, tab, chipsOf("m4"), "2 chip market,3 chip dim")
	equal(t, tab, cellsOf(0), "0|m1|running|166|0|1,000,000|1,000,000|1|0|1,000,031|1,000,031|1")
	equal(t, tab, cellsOf(2), "2|m3 (market: m4)|running|168|2|1,015,836|1,015,838|3|2|1,015,867|1,015,869|3")
	equal(t, tab, cellsOf(3), "3|m4|not known|–|–|–|–|–|–|–|–|–")
	equal(t, tab, "document.querySelector('tr[data-locality=local]').innerText.split(/\\s+/).slice(0, 5).join(' ')", "local 1,204,331 12 0 99.9%")
	equal(t, tab, "[...document.querySelectorAll('#hot th')].map((e) => e.textContent).slice(4)", []any{hostile, "AAPL", twin, "BRK.B", twin})
	equal(t, tab, "[...document.querySelectorAll('#hot tr')].map((e) => e.children[1].textContent).slice(6)", []any{"1.7%", "1.5%", "1.3%"})
	equal(t, tab, "document.scripts.length", float64(1))

	// Half of what is left has been restored; nothing else moves.
	tab.Eval(t, "window.row = document.querySelector('#parts tr[data-partition=\"4\"]'), window.top0 = row.getBoundingClientRect().top, true", new(bool))
	v := view(4, 6)
	v.Tasks[4].Remaining = ptr(int64(48_211 / 2))
	v.At = "2026-01-05T03:00:02.123Z"
	v.Members[0].Joins["local"]["hit"] += 50
	v.Members[1].Joins["remote"]["hit"] += 7
	s.view.Store(&v)
	tab.Await(t, "row.innerText.includes('24,105 left')")
	equal(t, tab, "document.getElementById('t-rate').textContent", "28.5")
	equal(t, tab, "document.querySelector('tr[data-locality=remote] td:last-child').textContent", "3.5")
	equal(t, tab, "row.querySelector('[role=progressbar]').getAttribute('aria-valuenow')", "50")
	equal(t, tab, "row.isConnected && row.getBoundingClientRect().top === top0", true)

	tab.Scheme(t, "dark")
	picture(t, tab, "small-dark")
	tab.Size(t, 420, 900)
	equal(t, tab, "document.documentElement.scrollWidth", float64(420))
	picture(t, tab, "small-phone")
	faultless(t, tab, "")
}

// chipsOf lists a member's partitions and how they look.
func chipsOf(member string) string {
	return "[...document.querySelectorAll('#members tr[data-member=\"" + member + "\"] .chip')].map((c) => c.textContent + ' ' + c.className).join()"
}

func cellsOf(partition int) string {
	return fmt.Sprintf("[...document.querySelectorAll('#parts tr[data-partition=\"%d\"] > *')].map((c) => c.innerText.trim()).join('|')", partition)
}

// large shows 1,000 partitions, and the filter.
func large(t *testing.T, b *chromium.Browser) {
	s := serve(t, view(20, 1000))
	tab := b.Open(t, s.url(), 1440, 1200)
	tab.Await(t, drawn)
	picture(t, tab, "large-light")
	equal(t, tab, "new Set([...document.querySelectorAll('#members .chip')].map((c) => c.dataset.partition)).size", float64(1000))
	equal(t, tab, "document.querySelectorAll('#parts tr').length", float64(1000))
	tab.Eval(t, "document.getElementById('only').click(), true", new(bool))
	equal(t, tab, "document.querySelectorAll('#parts tr').length < 300 && document.getElementById('shown').textContent.endsWith('of 1,000')", true)
	equal(t, tab, "[...document.querySelectorAll('#parts .state')].filter((e) => e.innerText === 'running').length", float64(0))
	faultless(t, tab, "")
}

// stale shows a pod that goes away and comes back.
func stale(t *testing.T, b *chromium.Browser) {
	s := serve(t, view(4, 6))
	tab := b.Open(t, s.url(), 1280, 800)
	tab.Await(t, drawn)
	equal(t, tab, "document.getElementById('link-text').textContent", "live")
	s.stop()
	tab.Await(t, "document.getElementById('stale').innerText.includes('does not answer')")
	equal(t, tab, "document.getElementById('link-text').textContent", "no answer")
	equal(t, tab, chipsOf("m1"), "0 chip both,4 chip both busy") // the last answer stays
	picture(t, tab, "stale")
	s.start()
	tab.Await(t, "document.getElementById('stale').hidden && document.getElementById('link-text').textContent === 'live'")
	faultless(t, tab, "ERR_CONNECTION_REFUSED")
}

// behindAPath reaches the page as through a proxy that serves it below a path.
func behindAPath(t *testing.T, b *chromium.Browser) {
	s := serve(t, view(4, 6))
	target, err := url.Parse(s.url())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/pods/joiner-0/proxy", httputil.NewSingleHostReverseProxy(target)))
	t.Cleanup(proxy.Close)
	tab := b.Open(t, proxy.URL+"/pods/joiner-0/proxy/", 1280, 800)
	tab.Await(t, drawn)
	equal(t, tab, chipsOf("m1"), "0 chip both,4 chip both busy")
	faultless(t, tab, "")
}

func withoutScripts(t *testing.T, b *chromium.Browser) {
	s := serve(t, view(4, 6))
	tab := b.Open(t, "about:blank", 1280, 800)
	tab.Scripts(t, false)
	tab.Load(t, s.url())
	tab.Await(t, "document.querySelector('noscript a')")
	equal(t, tab, "document.querySelector('noscript a').href", s.url()+"v1/status?scope=group")
	picture(t, tab, "without-scripts")
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
