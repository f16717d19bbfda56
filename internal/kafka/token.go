package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"joiner/internal/tlsfiles"
)

// tokens gets access tokens for OAUTHBEARER by client credentials and keeps the
// last one until shortly before it expires. One request is under way at a time,
// however many connections want a token.
//
// The system's authorities may vouch for the endpoint, and so may those of
// kafka.tls.ca_file: identity providers are mostly public, and where a company
// signs its brokers' certificates itself, it signs its provider's too. The
// client certificate is for brokers and not shown.
type tokens struct {
	sasl SASL
	tls  *tlsfiles.Source // of the brokers; nil: not encrypted
	now  func() time.Time
	turn chan struct{} // holds one: whose turn it is to ask

	mu    sync.Mutex
	token string
	got   time.Time // when it was got
	until time.Time // when to get another
	fault error     // of the last try
	again time.Time // when to try again after it
}

const (
	// tokenTimeout bounds a request for a token; it is part of opening a
	// connection.
	tokenTimeout = 5 * time.Second
	// tokenMargin before its end a token is not used any more, or a fifth of
	// its life where that is less: a connection that begins with it should live
	// a while, and clocks differ.
	tokenMargin = time.Minute
	// tokenUnknownLife is how long a token is used whose endpoint does not say.
	tokenUnknownLife = time.Minute
	// tokenYoung is for how long a token that brokers refuse is not exchanged
	// for another, which would be as wrong: each broker refuses it each second,
	// and identity providers lock clients out that ask so often.
	tokenYoung = 5 * time.Second
	// tokenHold is how long an endpoint that has failed is left alone.
	tokenHold = time.Second
)

func newTokens(s SASL, files *tlsfiles.Source) *tokens {
	return &tokens{sasl: s, tls: files, now: time.Now, turn: make(chan struct{}, 1)}
}

// client makes a client for one request: they are an hour apart or so, and
// authorities may have changed.
func (t *tokens) client() (*http.Client, error) {
	transport := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if t.tls != nil {
		conf, err := t.tls.ClientBeside()
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = conf
	}
	return &http.Client{
		Transport: transport,
		Timeout:   tokenTimeout,
		// The secret goes to the address that is configured and to no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// get returns a token that is not about to expire.
func (t *tokens) get(ctx context.Context) (string, error) {
	if token, err := t.known(); token != "" || err != nil {
		return token, err
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", fmt.Errorf("waiting for a token: %w", ctx.Err())
	}
	if token, err := t.known(); token != "" || err != nil {
		return token, err // somebody else's request brought it
	}
	token, err := t.fetch(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return "", ctx.Err() // the asker's end, not the endpoint's fault
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.fault, t.again = err, t.now().Add(tokenHold)
		return "", err
	}
	t.token, t.got, t.until, t.fault = token.AccessToken, t.now(), t.useUntil(token.Expiry), nil
	return t.token, nil
}

// known returns the token at hand, or the fault that it is too early to try
// again after; neither means to ask.
func (t *tokens) known() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if t.token != "" && now.Before(t.until) {
		return t.token, nil
	}
	if t.fault != nil && now.Before(t.again) {
		return "", t.fault
	}
	return "", nil
}

func (t *tokens) useUntil(expiry time.Time) time.Time {
	now := t.now()
	if expiry.IsZero() {
		return now.Add(tokenUnknownLife)
	}
	return expiry.Add(-min(tokenMargin, expiry.Sub(now)/5))
}

// drop forgets a token that a broker has refused, unless it is a young one.
func (t *tokens) drop(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == token && t.now().Sub(t.got) >= tokenYoung {
		t.token = ""
	}
}

// fetch asks the endpoint. Its errors name the endpoint and what it says, never
// the secret.
func (t *tokens) fetch(ctx context.Context) (*oauth2.Token, error) {
	secret, err := t.sasl.ClientSecret()
	if err != nil {
		return nil, fmt.Errorf("the client secret cannot be read: %w", err)
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	conf := clientcredentials.Config{
		ClientID: t.sasl.ClientID, ClientSecret: secret,
		TokenURL: t.sasl.TokenURL, Scopes: t.sasl.Scopes,
	}
	token, err := conf.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		return nil, fmt.Errorf("token endpoint %s: %w", shown(t.sasl.TokenURL), t.endpointFault(err, secret))
	}
	return token, nil
}

// endpointFault is the endpoint's error without the secret and without the
// response's body, which may be anything.
func (t *tokens) endpointFault(err error, secret string) error {
	var said *oauth2.RetrieveError
	if errors.As(err, &said) {
		text := quoted(said.Response.Status, secret, url.QueryEscape(secret))
		if code := said.Response.StatusCode; code == http.StatusUnauthorized || said.ErrorCode == "invalid_client" {
			text = "client " + t.sasl.ClientID + " or its secret is wrong: " + text
		}
		if said.ErrorCode != "" {
			text += ": " + quoted(said.ErrorCode, secret, url.QueryEscape(secret))
		}
		if said.ErrorDescription != "" {
			text += ": " + quoted(said.ErrorDescription, secret, url.QueryEscape(secret))
		}
		return errors.New(text)
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // the address is named already, without its query
	}
	return errors.New(redacted(err.Error(), secret, url.QueryEscape(secret)))
}

// shown is an address without what may be secret in it.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "(not an address)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
