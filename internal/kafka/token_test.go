package kafka

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// provider is a token endpoint.
type provider struct {
	*httptest.Server
	asked   atomic.Int64
	secret  atomic.Value  // that it takes
	lasts   atomic.Int64  // seconds; 0: it does not say
	release chan struct{} // it answers when this is closed; nil: at once
}

func newProvider(t *testing.T, conf *tls.Config) *provider {
	t.Helper()
	p := &provider{}
	p.secret.Store(planted)
	p.lasts.Store(3600)
	p.Server = httptest.NewUnstartedServer(p)
	if conf != nil {
		p.TLS = conf
		p.StartTLS()
	} else {
		p.Start()
	}
	t.Cleanup(p.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := p.asked.Add(1)
	if p.release != nil {
		select {
		case <-p.release:
		case <-r.Context().Done():
			return
		}
	}
	if err := r.ParseForm(); err != nil || r.Form.Get("grant_type") != "client_credentials" || r.Form.Get("scope") != "a b" {
		http.Error(w, "what is this?", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, given, _ := r.BasicAuth()
	if given == "" {
		given = r.Form.Get("client_secret")
	}
	if got := p.unescaped(given); got != p.secret.Load() {
		w.WriteHeader(http.StatusUnauthorized)
		// A careless one, which repeats what it was sent.
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_client", "error_description": "not the secret: " + got})
		return
	}
	answer := map[string]any{"access_token": fmt.Sprintf("token-%d", n), "token_type": "Bearer"}
	if lasts := p.lasts.Load(); lasts > 0 {
		answer["expires_in"] = lasts
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// unescaped undoes what RFC 6749 (2.3.1) has clients do before Basic.
func (p *provider) unescaped(s string) string {
	return strings.NewReplacer("%2F", "/", "%2B", "+", "%3D", "=").Replace(s)
}

func (p *provider) sasl(secret *passwords) SASL {
	return SASL{
		Mechanism: oauthBearer, TokenURL: p.URL + "/token?private=" + planted, ClientID: "joiner-client",
		ClientSecret: secret.read, Scopes: []string{"a", "b"},
	}
}

func TestTokensAreKeptUntilShortlyBeforeTheyExpire(t *testing.T) {
	p := newProvider(t, nil)
	tokens := newTokens(p.sasl(password(planted)), nil)
	start := time.Now()
	clock := start
	tokens.now = func() time.Time { return clock }
	want := func(at time.Duration, token string) {
		t.Helper()
		clock = start.Add(at)
		if got, err := tokens.get(deadline(t)); err != nil || got != token {
			t.Errorf("after %v: %q, %v; want %q", at, got, err, token)
		}
	}
	want(0, "token-1")
	want(58*time.Minute, "token-1")
	want(59*time.Minute+30*time.Second, "token-2") // within the margin of its end
	p.lasts.Store(10)
	tokens.drop("token-2") // another would be as wrong
	want(59*time.Minute+30*time.Second+tokenYoung-time.Second, "token-2")
	clock = start.Add(59*time.Minute + 30*time.Second + tokenYoung)
	tokens.drop("token-2")
	want(0, "token-3")
	want(7*time.Second, "token-3")
	want(9*time.Second, "token-4") // a fifth of ten seconds
	tokens.drop("another")
	want(9*time.Second, "token-4")
	p.lasts.Store(0)
	clock = clock.Add(tokenYoung)
	tokens.drop("token-4")
	want(0, "token-5")
	want(tokenUnknownLife-time.Second, "token-5")
	want(tokenUnknownLife+time.Second, "token-6")
}

func TestOneRequestForATokenAtATime(t *testing.T) {
	p := newProvider(t, nil)
	p.release = make(chan struct{})
	tokens := newTokens(p.sasl(password(planted)), nil)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if got, err := tokens.get(deadline(t)); err != nil || got != "token-1" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	eventually(t, "a request", func() bool { return p.asked.Load() == 1 })
	// One that gives up waiting disturbs nobody.
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tokens.get(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context ended: %v", err)
	}
	close(p.release)
	wg.Wait()
	// oauth2 may try twice to find out how to send the secret, had it failed.
	if n := p.asked.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestEndpointFaultsAreNamedWithoutTheSecret(t *testing.T) {
	p := newProvider(t, nil)
	redirecting := httptest.NewServer(http.RedirectHandler(p.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirecting.Close)
	hello := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello " + planted)) }))
	t.Cleanup(hello.Close)
	encrypted := newProvider(t, nil)
	encrypted.Close()
	for _, c := range []struct {
		name, url, secret string
		wants             []string
	}{
		{"wrong secret", p.URL, planted + "x", []string{"client joiner-client or its secret is wrong", "401", "invalid_client"}},
		{"redirect", redirecting.URL, planted, []string{"307"}},
		{"no JSON", hello.URL, planted, []string{"missing access_token"}},
		{"nobody", "http://127.0.0.1:1/token", planted, []string{"127.0.0.1:1", "refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.asked.Store(0)
			s := p.sasl(password(c.secret))
			s.TokenURL = c.url + "?private=" + planted
			tokens := newTokens(s, nil)
			_, err := tokens.get(deadline(t))
			if err == nil {
				t.Fatal("a token")
			}
			for _, want := range append(c.wants, "token endpoint http://127.0.0.1:") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), planted) {
				t.Errorf("the secret is in %q", err)
			}
			if c.name == "redirect" && p.asked.Load() != 0 {
				t.Error("the secret was sent where the endpoint pointed to")
			}
			asked := p.asked.Load()
			if _, again := tokens.get(deadline(t)); !errors.Is(again, err) || p.asked.Load() != asked {
				t.Errorf("at once again: %v, %d requests after %d", again, p.asked.Load(), asked)
			}
		})
	}
}

// TestSlowEndpointIsBounded has an endpoint that never answers.
func TestSlowEndpointIsBounded(t *testing.T) {
	p := newProvider(t, nil)
	p.release = make(chan struct{})
	t.Cleanup(func() { close(p.release) }) // not before
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	tokens := newTokens(p.sasl(password(planted)), nil)
	if _, err := tokens.get(ctx); err == nil {
		t.Error("a token")
	}
}

// TestOAuthBearer has the broker's side answered in its stead: kfake does not
// know the mechanism.
func TestOAuthBearer(t *testing.T) {
	s := newSafe(t, false)
	conf := &tls.Config{}
	pair, err := tls.LoadX509KeyPair(s.file("broker.pem"), s.file("broker.key"))
	if err != nil {
		t.Fatal(err)
	}
	conf.Certificates = []tls.Certificate{pair}
	p := newProvider(t, conf)
	var revoked atomic.Value // a token
	revoked.Store("")
	s.fake.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		if m := req.(*kmsg.SASLHandshakeRequest).Mechanism; m != oauthBearer {
			t.Errorf("mechanism %q", m)
		}
		return resp, nil, true
	})
	s.fake.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		asked := req.(*kmsg.SASLAuthenticateRequest)
		resp := asked.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		text := string(asked.SASLAuthBytes)
		switch {
		case text == "\x01": // the client has seen the refusal
			resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
			message := `{"status":"invalid_token"}`
			resp.ErrorMessage = &message
		case revoked.Load() != "" && strings.Contains(text, revoked.Load().(string)+"\x01"):
			resp.SASLAuthBytes = []byte(`{"status":"invalid_token"}`)
		case !strings.HasPrefix(text, "n,,\x01auth=Bearer token-"):
			t.Errorf("authenticated with %q", text)
		}
		return resp, nil, true
	})
	secret := password("old")
	core, logs := observer.New(zapcore.DebugLevel)
	o := s.options(Security{TLS: s.tls(), SASL: p.sasl(secret)}, zap.New(core))
	connected := s.refused(o, logs, oauthBearer, "user joiner-client", "its secret is wrong")
	secret.now.Store(planted)
	s.mended(connected)

	// The broker refuses the token that is kept: the next is a new one.
	asked := p.asked.Load()
	access, err := NewAccess(o.Security, "joiner", zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	d := newConns(Options{Access: access}.withDefaults())
	defer d.shut()
	token, err := access.tokens.get(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	revoked.Store(token)
	access.tokens.now = func() time.Time { return time.Now().Add(tokenYoung) }
	if _, err := d.Dial("tcp", s.addrs[0]); err == nil || !strings.Contains(err.Error(), "token is wrong") || strings.Contains(err.Error(), token) {
		t.Errorf("with a revoked token dialling gave %v", err)
	}
	access.forget(s.addrs[0]) // no need to wait
	conn, err := d.Dial("tcp", s.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if got := p.asked.Load(); got < asked+2 {
		t.Errorf("%d requests for tokens, want two more than %d", got, asked)
	}
	silent(t, logs)
}

// TestBrokerThatEndsConnectionsUsesUpNoTokens has a broker that restarts: it
// takes connections and ends them in the middle of the authentication, which
// says nothing of the token, until it says that the token is wrong and ends the
// connection then, or refuses it as it should.
func TestBrokerThatEndsConnectionsUsesUpNoTokens(t *testing.T) {
	s := newSafe(t, false)
	p := newProvider(t, nil)
	s.fake.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		return req.ResponseKind(), nil, true
	})
	var rude, seen atomic.Bool
	s.fake.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		if !rude.Load() || string(req.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes) == "\x01" {
			seen.Store(rude.Load())
			return nil, errors.New("shutting down"), true
		}
		resp.SASLAuthBytes = []byte(`{"status":"invalid_token"}`)
		return resp, nil, true
	})
	access, err := NewAccess(Security{TLS: s.tls(), SASL: p.sasl(password(planted))}, "joiner", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := newConns(Options{Access: access}.withDefaults())
	defer d.shut()
	dial := func(want string) {
		t.Helper()
		_, err := d.Dial("tcp", s.addrs[0])
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("dialling gave %v, want %q", err, want)
		}
	}
	clock := time.Now()
	access.tokens.now = func() time.Time { return clock }
	for range 20 {
		clock = clock.Add(tokenYoung)
		dial("the broker closed the connection")
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("%d tokens for 20 connections that the broker ended", n)
	}
	rude.Store(true)
	dial("the token is wrong")
	if !seen.Load() {
		t.Error("the broker's word was not answered")
	}
	dial("the token is wrong") // held: nobody is asked
	access.forget(s.addrs[0])
	dial("the token is wrong") // a new one
	if n := p.asked.Load(); n != 2 {
		t.Errorf("%d tokens, want a second one after the broker's refusal", n)
	}
	for range 20 {
		access.forget(s.addrs[0])
		dial("the token is wrong")
	}
	if n := p.asked.Load(); n != 2 {
		t.Errorf("%d tokens, want no third one so soon after the second", n)
	}
}
