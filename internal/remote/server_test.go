package remote

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/metrics"
	"joiner/internal/task"
)

func post(t *testing.T, c *http.Client, method, url string, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // or the connection is not used again
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestServerBounds(t *testing.T) {
	f, _ := ownerB()
	s := serve(t, f, func(o *ServerOptions) {
		o.Status = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") })
	})
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	many := requestTo(1)
	many.asked = make([]asked, MaxKeys+1)
	url := "http://" + s.Addr().String()
	for _, r := range []struct {
		name, method, path string
		body               []byte
		want               int
	}{
		{"a look-up", "POST", lookupPath, requestTo(1).encode(), 200},
		{"a panic", "GET", statusPath, nil, 500},
		{"another method", "GET", lookupPath, nil, 405},
		{"another path", "GET", "/metrics", nil, 404},
		{"the root", "GET", "/", nil, 404},
		{"nonsense", "POST", lookupPath, []byte("hello"), 400},
		{"nothing", "POST", lookupPath, nil, 400},
		{"too large", "POST", lookupPath, make([]byte, MaxBytes+1), 413},
		{"too many keys", "POST", lookupPath, many.encode(), 413},
		{"a look-up after all that", "POST", lookupPath, requestTo(1).encode(), 200},
	} {
		if got := post(t, c, r.method, url+r.path, r.body); got != r.want {
			t.Errorf("%s: status %d, want %d", r.name, got, r.want)
		}
	}
	bare := serve(t, f, nil)
	if got := post(t, c, "GET", "http://"+bare.Addr().String()+statusPath, nil); got != 404 {
		t.Errorf("status where there is none: %d", got)
	}
}

// One request more than may be under way is told so, counted as an overload, and
// asked again.
func TestTooManyRequests(t *testing.T) {
	p := newPair(t, func(o *ServerOptions) { o.limits.inFlight = 1 }, nil)
	p.server.slots <- struct{}{}
	got := make(chan task.Answer, 1)
	p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
	await(t, "an overload", func() bool { return p.client.count(metrics.LookupOverload) > 0 })
	<-p.server.slots
	if a := p.client.get(t, got); a.Outcome != task.Found {
		t.Errorf("%+v", a)
	}
}

// Requests that come slowly hold no place among those that are answered, and
// are bounded themselves.
func TestSlowBodiesHoldNobodyUp(t *testing.T) {
	p := newPair(t, func(o *ServerOptions) { o.limits = limits{inFlight: 1, reading: 2} }, nil)
	slow := func() {
		conn, err := net.Dial("tcp", p.server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc", lookupPath)
	}
	slow()
	await(t, "a slow request", func() bool { return len(p.server.reads) == 1 })
	if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Found || p.client.count(metrics.LookupOverload) != 0 {
		t.Errorf("%+v after %d overloads", a, p.client.count(metrics.LookupOverload))
	}
	slow()
	await(t, "two slow requests", func() bool { return len(p.server.reads) == 2 })
	url := "http://" + p.server.Addr().String() + lookupPath
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	if got := post(t, c, "POST", url, requestTo(1).encode()); got != http.StatusTooManyRequests {
		t.Errorf("status %d", got)
	}
}

// One connection more than there may be is closed; another one's end makes room.
func TestTooManyConnections(t *testing.T) {
	f, _ := ownerB()
	s := serve(t, f, func(o *ServerOptions) { o.limits.connections = 1 })
	url := "http://" + s.Addr().String() + lookupPath
	first, second := &http.Client{Transport: &http.Transport{}}, &http.Client{Transport: &http.Transport{}}
	defer second.CloseIdleConnections()
	if got := post(t, first, "POST", url, requestTo(1).encode()); got != http.StatusOK {
		t.Errorf("the first: status %d", got)
	}
	ask := func() error {
		resp, err := second.Post(url, contentType, bytes.NewReader(requestTo(1).encode()))
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := ask(); err == nil {
		t.Error("one more is served")
	}
	if got := post(t, first, "POST", url, requestTo(1).encode()); got != http.StatusOK {
		t.Errorf("the first again: status %d", got)
	}
	first.CloseIdleConnections()
	await(t, "room for another", func() bool { return ask() == nil })
}

// The answering side says why a pod cannot connect.
func TestFailedHandshakesAreLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	ours, theirs := newAuthority(t), newAuthority(t)
	p := newPair(t, func(o *ServerOptions) { o.TLS, o.Log = ours.server(t), zap.New(core) },
		func(o *ClientOptions) { o.TLS, o.Patience = theirs.client(), 100*time.Millisecond })
	if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Unanswered {
		t.Errorf("%+v", a)
	}
	await(t, "a log line", func() bool {
		return strings.Contains(texts(logs), "TLS handshake error")
	})
}

func texts(logs *observer.ObservedLogs) string {
	text := ""
	for _, e := range logs.All() {
		text += fmt.Sprintln(e.Message, e.ContextMap())
	}
	return text
}

// A pod that stands still takes connections and never shakes hands.
func TestHandshakesEnd(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background()) // as net/http dials: the request's end is not in it
	defer cancel()
	go func() {
		conn, err := dialTLS(ctx, &net.Dialer{Timeout: 50 * time.Millisecond}, newAuthority(t).client(), "tcp", ln.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	case <-time.After(patience):
		t.Error("the handshake goes on")
	}
}

func TestStatus(t *testing.T) {
	f := newFake("b")
	s := serve(t, f, func(o *ServerOptions) {
		o.Status = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"id":"b"}`)) })
	})
	c := ask(t, newFake("a"), nil)
	var got bytes.Buffer
	if err := c.Status(t.Context(), s.Addr().String(), &got); err != nil || got.String() != `{"id":"b"}` {
		t.Errorf("%s, %v", &got, err)
	}
	const most = 1 << 20
	large := serve(t, f, func(o *ServerOptions) {
		o.Status = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, most+1)) })
	})
	if err := c.Status(t.Context(), large.Addr().String(), &limited{left: most}); err == nil || !strings.Contains(err.Error(), "1048576 bytes") {
		t.Errorf("a status without bounds: %v", err)
	}
	var status statusError
	if err := c.Status(t.Context(), serve(t, f, nil).Addr().String(), &got); !errors.As(err, &status) || status.code != 404 || !strings.Contains(err.Error(), "peer.tls") {
		t.Errorf("%v", err)
	}
}

// authority signs certificates for 127.0.0.1.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pool: x509.NewCertPool()}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) server(t *testing.T) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{a.sign(t)}}
}

func (a *authority) client(certs ...tls.Certificate) func(string) (*tls.Config, error) {
	return func(host string) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.pool, ServerName: host, Certificates: certs}, nil
	}
}

func tokenOf(text string) *Tokens { return NewTokens(func() (string, error) { return text, nil }) }

// Who may ask, and whom: with TLS, client certificates and a token, each side
// refuses whom it does not know.
func TestWhoMayAsk(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	mutual := ours.server(t)
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, ours.pool
	for _, c := range []struct {
		name   string
		server func(*ServerOptions)
		client func(*ClientOptions)
		want   task.Outcome
		log    string
	}{
		{"TLS", func(o *ServerOptions) { o.TLS = ours.server(t) }, func(o *ClientOptions) { o.TLS = ours.client() }, task.Found, ""},
		{"another authority's server", func(o *ServerOptions) { o.TLS = theirs.server(t) }, func(o *ClientOptions) { o.TLS, o.Token = ours.client(), tokenOf("s3cret") }, task.Unanswered, "certificate"},
		{"no TLS on the other side", nil, func(o *ClientOptions) { o.TLS = ours.client() }, task.Unanswered, "HTTPS"},
		{"no TLS on this side", func(o *ServerOptions) { o.TLS = ours.server(t) }, nil, task.Unanswered, "HTTP"},
		{"client certificate", func(o *ServerOptions) { o.TLS = mutual }, func(o *ClientOptions) { o.TLS = ours.client(ours.sign(t)) }, task.Found, ""},
		{"no client certificate", func(o *ServerOptions) { o.TLS = mutual }, func(o *ClientOptions) { o.TLS = ours.client() }, task.Unanswered, "certificate"},
		{"another authority's client", func(o *ServerOptions) { o.TLS = mutual }, func(o *ClientOptions) { o.TLS = ours.client(theirs.sign(t)) }, task.Unanswered, "certificate"},
		{"token", withToken(ours, t, "s3cret"), func(o *ClientOptions) { o.TLS, o.Token = ours.client(), tokenOf("s3cret") }, task.Found, ""},
		{"wrong token", withToken(ours, t, "s3cret"), func(o *ClientOptions) { o.TLS, o.Token = ours.client(), tokenOf("s3cre") }, task.Unanswered, "peer.token"},
		{"no token", withToken(ours, t, "s3cret"), func(o *ClientOptions) { o.TLS = ours.client() }, task.Unanswered, "peer.token"},
		{"an empty token is none", withToken(ours, t, ""), func(o *ClientOptions) { o.TLS, o.Token = ours.client(), tokenOf("") }, task.Unanswered, "peer.token"},
		{"a token that cannot be read", withToken(ours, t, "s3cret"), func(o *ClientOptions) {
			o.TLS, o.Token = ours.client(), NewTokens(func() (string, error) { return "", errors.New("no such file") })
		}, task.Unanswered, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			patiently(t, fmt.Sprintf("%q in the log", c.log), 200*time.Millisecond, func(limit time.Duration) bool {
				core, logs := observer.New(zap.DebugLevel)
				p := newPair(t, c.server, func(o *ClientOptions) {
					o.Patience, o.Log = limit, zap.New(core)
					if c.want == task.Found {
						o.Patience = patience
					}
					if c.client != nil {
						c.client(o)
					}
				})
				if a := p.client.one(t, 1, "BBCA"); a.Outcome != c.want {
					t.Errorf("%+v", a)
				}
				text := texts(logs)
				if strings.Contains(text, "s3cret") {
					t.Errorf("a token in the log: %q", text)
				}
				if !strings.Contains(text, c.log) {
					t.Logf("%v of patience, log %q", limit, text)
					return false
				}
				return true
			})
		})
	}
}

func withToken(a *authority, t *testing.T, token string) func(*ServerOptions) {
	return func(o *ServerOptions) { o.TLS, o.Token = a.server(t), tokenOf(token) }
}

// changing is a token that a test changes, and the clock by which it counts.
type changing struct {
	*Tokens
	text  atomic.Value
	ahead atomic.Int64
}

func newChanging(text string) *changing {
	c := &changing{}
	c.text.Store(text)
	began := time.Now()
	c.Tokens = NewTokens(func() (string, error) { return c.text.Load().(string), nil })
	c.now = func() time.Time { return began.Add(time.Duration(c.ahead.Load())) }
	return c
}

func (c *changing) pass(d time.Duration) { c.ahead.Add(int64(d)) }

// A token that rotates is the new one with the next request, on a connection
// that stays, whichever pod sees it first; for a while.
func TestTokenRotates(t *testing.T) {
	ca := newAuthority(t)
	answers, asks := newChanging("one"), newChanging("one")
	p := newPair(t, func(o *ServerOptions) { o.TLS, o.Token = ca.server(t), answers.Tokens },
		func(o *ClientOptions) { o.TLS, o.Token = ca.client(), asks.Tokens })
	found := func(when string) {
		t.Helper()
		if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Found {
			t.Errorf("%s: %+v", when, a)
		}
		if n := p.client.count(metrics.LookupError); n != 0 {
			t.Errorf("%s: %d errors", when, n)
		}
	}
	found("one token")
	asks.text.Store("two")
	found("who asks knows the new one first")
	answers.text.Store("two")
	found("both know it")
	answers.text.Store("three")
	found("who answers knows the next one first")
	asks.text.Store("three")
	found("both know that")
	for _, text := range []string{"f", "fo", "fou", "four"} { // written in place, and read meanwhile
		asks.text.Store(text)
		found("who asks has read " + text)
	}
	answers.text.Store("four")
	found("both know the fourth")
	for _, text := range []string{"five", "six", "seven"} {
		answers.text.Store(text)
		found("who answers has read " + text)
	}
}

// Whom a pod lets in after its token has changed, and what it shows.
func TestPreviousTokenCountsForAWhile(t *testing.T) {
	ca := newAuthority(t)
	tokens := newChanging("one")
	p := newPair(t, func(o *ServerOptions) { o.TLS, o.Token = ca.server(t), tokens.Tokens },
		func(o *ClientOptions) { o.TLS, o.Token = ca.client(), tokens.Tokens })
	knocks := func(when string, want map[string]int) {
		t.Helper()
		for token, status := range want {
			tr := newTransport(&ClientOptions{TLS: ca.client(), Token: tokenOf(token)}, names{})
			err := tr.do(t.Context(), http.MethodPost, p.server.Addr().String(), lookupPath, []byte("nothing"), 1<<10, func([]byte) error { return nil })
			tr.close()
			var refused statusError
			if !errors.As(err, &refused) || refused.code != status {
				t.Errorf("%s, with %q: %v, want HTTP %d", when, token, err, status)
			}
		}
	}
	const in, out = http.StatusBadRequest, http.StatusUnauthorized
	knocks("at first", map[string]int{"one": in, "two": out, "": out})
	tokens.text.Store("two")
	knocks("changed", map[string]int{"two": in, "one": in, "three": out, "": out})
	tokens.pass(previousCounts - 1)
	knocks("a while later", map[string]int{"two": in, "one": in})
	tokens.pass(1)
	knocks("later still", map[string]int{"two": in, "one": out, "": out})
	tokens.text.Store("three")
	knocks("changed again", map[string]int{"three": in, "two": in, "one": out})
	tokens.text.Store("four")
	knocks("and at once again", map[string]int{"four": in, "three": in, "two": in, "one": out})
	tokens.pass(time.Second)
	for _, part := range []string{"f", "fi", "fiv", "fiv.", "fiv.."} {
		tokens.text.Store(part)
		knocks("read half", map[string]int{part: in, "four": in, "two": in})
	}
	tokens.text.Store("five")
	knocks("read whole", map[string]int{"five": in, "four": in, "two": in, "fiv..": out, "one": out})
	tokens.pass(previousCounts)
	knocks("in the end", map[string]int{"five": in, "fiv": out, "fi": out, "four": out, "two": out, "": out})
}

// One that nobody shows for hours is seen to change nevertheless.
func TestTokenIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text atomic.Value
		text.Store("one")
		tokens := NewTokens(func() (string, error) {
			if text.Load() == "" {
				return "", errors.New("gone")
			}
			return text.Load().(string), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go tokens.Watch(ctx)
		time.Sleep(time.Hour)
		text.Store("")
		time.Sleep(time.Minute) // what cannot be read is no change
		text.Store("two")
		time.Sleep(time.Minute)
		if now, before, err := tokens.all(); now != "two" || !slices.Equal(before, []string{"one"}) || err != nil {
			t.Errorf("%q, before %q, %v", now, before, err)
		}
		time.Sleep(previousCounts)
		if now, before, err := tokens.all(); now != "two" || len(before) != 0 || err != nil {
			t.Errorf("%q, before %q, %v", now, before, err)
		}
	})
}

func TestTokenNeedsTLS(t *testing.T) {
	f := newFake("a")
	if _, err := NewClient(ClientOptions{Group: f, Token: tokenOf("x"), Log: zap.NewNop()}); err == nil {
		t.Error("a client would send its token in the clear")
	}
	if _, err := Listen(context.Background(), ServerOptions{Listen: "127.0.0.1:0", Group: f, Token: tokenOf("x"), Log: zap.NewNop()}); err == nil {
		t.Error("a server would be sent tokens in the clear")
	}
}

func TestNames(t *testing.T) {
	n, err := newNames([]string{"pod-0.joiner", "*.Pods.example", "10.1.0.0/16", "192.0.2.7", "::1", "::ffff:172.16.0.0/108"})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		"pod-0.joiner": true, "POD-0.joiner.": true, "pod-1.joiner": false, "pod-0.joiner.evil": false,
		"a.pods.example": true, "a.b.pods.example": true, "pods.example": false, "xpods.example": false,
		"10.1.2.3": true, "10.2.0.1": false, "192.0.2.7": true, "::ffff:192.0.2.7": true, "::1": true, "0:0:0:0:0:0:0:1": true,
		"172.17.1.1": true, "::ffff:172.31.0.1": true, "172.32.0.1": false,
		"localhost": false, "": false, "10.1.2.3.evil": false,
	} {
		if got := n.has(host); got != want {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
	if all, _ := newNames(nil); !all.has("anything") {
		t.Error("no names must mean all")
	}
	for _, entry := range []string{"", "pod:8081", "*", "*.", "a.*.b", "10.0.0.0/33", "user@host"} {
		if _, err := Allows([]string{entry}); err == nil {
			t.Errorf("%q is taken", entry)
		}
	}
}

// Of answers that are larger than others one is read at a time, since each may be as
// long as a record; those of usual length do not wait for it.
func TestLargeAnswersAreReadOneAtATime(t *testing.T) {
	large := make(chan struct{}, 1)
	read := func(ctx context.Context, size int, ok bool) *limited {
		t.Helper()
		l := &limited{left: maxResponse, ctx: ctx, large: large}
		text := bytes.Repeat([]byte("x"), size)
		n, err := io.Copy(l, struct{ io.Reader }{bytes.NewReader(text)})
		if (err == nil) != ok || ok && (int(n) != size || !bytes.Equal(l.buf.Bytes(), text)) {
			t.Errorf("%d bytes: %d taken, %v", size, n, err)
		}
		if l.buf.Cap() > 2*largeResponse+bytes.MinRead && !l.turn {
			t.Errorf("%d bytes are held for an answer that has to wait", l.buf.Cap())
		}
		return l
	}
	first := read(t.Context(), maxResponse, true)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	read(over, largeResponse+1, false).release() // it has to wait, and its time is over
	read(t.Context(), largeResponse, true).release()
	first.release()
	read(t.Context(), largeResponse+1, true).release()
	read(t.Context(), maxResponse+1, false).release() // too long
	if len(large) != 0 {
		t.Error("somebody has kept the turn")
	}
}
