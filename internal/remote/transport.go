package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// transport sends requests to pods, and to nobody else.
type transport struct {
	http    *http.Client
	scheme  string
	token   *Tokens // nil: none
	allowed names
	large   chan struct{} // taken by whoever reads a large answer
}

// newTransport makes one.
func newTransport(o *ClientOptions, allowed names) *transport {
	t := &transport{scheme: "http", token: o.Token, allowed: allowed, large: make(chan struct{}, 1)}
	dialer := &net.Dialer{Timeout: dialTimeout}
	rt := &http.Transport{
		Proxy:                  nil, // pods are neighbours, whatever the environment says
		DialContext:            dialer.DialContext,
		MaxConnsPerHost:        maxPerHost,
		MaxIdleConnsPerHost:    maxPerOwner,
		MaxIdleConns:           maxFlight,
		IdleConnTimeout:        idleTimeout / 2, // before the other side ends it
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true,
		Protocols:              onlyHTTP1(),
	}
	if o.TLS != nil {
		t.scheme = "https"
		rt.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialTLS(ctx, dialer, o.TLS, network, address)
		}
	}
	t.http = &http.Client{
		Transport: rt,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // whoever redirects is no pod
		},
	}
	return t
}

const dialTimeout = 5 * time.Second

// maxPerHost bounds the connections to one address: one that is asked in two
// generations, or by a hint as well, has maxPerOwner requests for each, and a
// look-up that waits for a connection does so within its own time. One is for a
// status.
const maxPerHost = 4*maxPerOwner + 1

// dialTLS dials with the certificates as they are now. The dialer's time-out
// bounds the handshake as well: net/http takes the request's own end away from
// what it dials with, and a pod that stands still takes connections and never
// shakes hands.
func dialTLS(ctx context.Context, dialer *net.Dialer, conf func(string) (*tls.Config, error), network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	c, err := conf(host)
	if err != nil {
		return nil, err
	}
	raw, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialer.Timeout)
	defer cancel()
	conn := tls.Client(raw, c)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// statusError is an answer that is none.
type statusError struct{ code int }

func (e statusError) Error() string {
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("the other pod refuses this one's peer.token or certificate (HTTP %d)", e.code)
	case http.StatusTooManyRequests:
		return "the other pod has too many requests at a time"
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		// A TLS listener answers plain HTTP with 400, and whatever is no joiner
		// has no such path.
		return fmt.Sprintf("what listens there does not speak as this pod does (HTTP %d): is peer.tls set alike on both pods, and peer.advertise where the other one's peer.listen is reached?", e.code)
	}
	return fmt.Sprintf("HTTP %d", e.code)
}

// errNotAllowed reports an address outside peer.allowed_names.
var errNotAllowed = errors.New("its host is not in peer.allowed_names")

// errNoAddress reports an address that is not host:port and nothing else. It
// comes from another member, who may have written anything.
var errNoAddress = errors.New("it is not host:port")

func (t *transport) url(address, path string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "/@?#\\ \t\r\n") {
		return "", errNoAddress
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", errNoAddress
	}
	if !t.allowed.has(host) {
		return "", errNotAllowed
	}
	u := url.URL{Scheme: t.scheme, Host: net.JoinHostPort(host, port), Path: path}
	return u.String(), nil
}

// do sends one request and hands at most limit bytes of its answer to read, which
// must not keep them.
func (t *transport) do(ctx context.Context, method, address, path string, body []byte, limit int, read func([]byte) error) error {
	in := &limited{left: limit, ctx: ctx, large: t.large}
	defer in.release()
	if err := t.copy(ctx, method, address, path, body, in); err != nil {
		return err
	}
	return read(in.buf.Bytes())
}

// limited takes so many bytes and no more. Beyond largeResponse it waits for its
// turn, or the owners of maxFlight requests could have an asker hold gigabytes.
type limited struct {
	buf   bytes.Buffer
	left  int
	ctx   context.Context
	large chan struct{}
	turn  bool // it has it
}

func (l *limited) release() {
	if l.turn {
		<-l.large
	}
}

// wait waits for the turn of a large answer.
func (l *limited) wait() error {
	if l.turn {
		return nil
	}
	select {
	case l.large <- struct{}{}:
		l.turn = true
		return nil
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
}

// Write implements io.Writer, for which ReadFrom does the work.
func (l *limited) Write(b []byte) (int, error) {
	n, err := l.ReadFrom(bytes.NewReader(b))
	return int(n), err
}

// ReadFrom spares io.Copy its 32 KiB: most answers are a few hundred bytes.
func (l *limited) ReadFrom(r io.Reader) (int64, error) {
	most := l.left
	n, err := l.take(r, min(most, max(largeResponse-l.buf.Len(), 0)))
	if err == nil && l.buf.Len() > largeResponse && l.left >= 0 {
		if err = l.wait(); err != nil {
			return n, err
		}
		var more int64
		more, err = l.take(r, l.left)
		n += more
	}
	if err == nil && l.left < 0 {
		err = fmt.Errorf("the answer has more than %d bytes", most)
	}
	return n, err
}

// take takes so many bytes, and one more where there are more.
func (l *limited) take(r io.Reader, most int) (int64, error) {
	n, err := l.buf.ReadFrom(io.LimitReader(r, int64(most)+1))
	l.left -= int(n)
	return n, err
}

// copy sends one request and copies its answer to w, as far as w takes it. A pod
// that refuses the token may not have seen yet that it has changed, and is shown
// those of before.
func (t *transport) copy(ctx context.Context, method, address, path string, body []byte, w io.Writer) error {
	u, err := t.url(address, path)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	var token string
	var before []string
	if t.token != nil {
		if token, before, err = t.token.all(); err != nil {
			return err
		}
	}
	err = t.send(ctx, method, u, token, body, w)
	for _, old := range before { // a few at most
		var refused statusError
		if !errors.As(err, &refused) || refused.code != http.StatusUnauthorized {
			return err
		}
		err = t.send(ctx, method, u, old, body, w)
	}
	return err
}

// send sends one request with this token; "" is none.
func (t *transport) send(ctx context.Context, method, u, token string, body []byte, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, method, u, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	if token != "" {
		req.Header.Set("Authorization", bearer+token)
	}
	resp, err := t.http.Do(req)
	if err != nil {
		return failedRequest(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 512)) // so that the connection is used again
		return statusError{resp.StatusCode}
	}
	_, err = io.Copy(w, resp.Body)
	return err
}

func (t *transport) close() { t.http.CloseIdleConnections() }
