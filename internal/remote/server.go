package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"

	"joiner/internal/bounded"
	"joiner/internal/sampled"
)

// Where the pods ask.
const (
	lookupPath = "/v1/lookup"
	statusPath = "/v1/status"
)

// ServerOptions says what a Server is made of. Fields without a remark are
// required.
type ServerOptions struct {
	// Listen is host:port; port 0 takes a free one.
	Listen string
	Group  Group
	// TLS encrypts; nil: nothing is.
	TLS *tls.Config
	// Token must be shown by every request; nil: none is asked for. It needs
	// TLS.
	Token *Tokens
	// Status answers GET /v1/status with this pod's own part; nil: not found.
	Status http.Handler
	Log    *zap.Logger

	limits limits // zero: the default
}

// limits bounds what askers may take.
type limits struct{ inFlight, reading, connections int }

// Limits on what one peer may hold: a slow request is a broken or hostile one.
const (
	maxInFlight       = 64              // look-ups at a time; one more is told so
	maxReading        = 4 * maxInFlight // look-ups that have not come in full, likewise
	maxStatus         = 4               // status requests likewise
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = readTimeout + maxBudget + 10*time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// Server answers other pods. Close it.
type Server struct {
	o      ServerOptions
	answer answerer
	faults *sampled.Log
	addr   net.Addr
	http   *http.Server
	reads  chan struct{}
	slots  chan struct{}
	pages  chan struct{}
	done   chan struct{}
}

// Listen opens the listener and serves until Close; ctx bounds only the
// opening. The error names peer.listen, or a token that would go without TLS.
func Listen(ctx context.Context, o ServerOptions) (*Server, error) {
	if o.Token != nil && o.TLS == nil {
		return nil, errors.New("peer.token: a token without TLS would cross the network in the clear")
	}
	if o.limits.inFlight == 0 {
		o.limits.inFlight = maxInFlight
	}
	if o.limits.reading == 0 {
		o.limits.reading = maxReading
	}
	if o.limits.connections == 0 {
		o.limits.connections = bounded.Connections
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("peer.listen: cannot listen on %q: %w", o.Listen, err)
	}
	s := &Server{
		o: o, answer: answerer{o.Group}, faults: sampled.New(o.Log, nil), addr: ln.Addr(),
		reads: make(chan struct{}, o.limits.reading), slots: make(chan struct{}, o.limits.inFlight),
		pages: make(chan struct{}, maxStatus), done: make(chan struct{}),
	}
	s.http = &http.Server{
		Handler:           s.recovering(s.authorized(s.routes())),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(faultLog{s.faults}, "", 0),
		Protocols:         onlyHTTP1(),
	}
	ln = bounded.Listener(ln, o.limits.connections, func(from net.Addr) {
		s.faults.Warn("connections", "too many connections from other pods, one more was closed",
			zap.Int("open", o.limits.connections), zap.Stringer("from", from))
	})
	if o.TLS != nil {
		ln = tls.NewListener(ln, withoutHTTP2(o.TLS))
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			o.Log.Error("peer listener ended", zap.Stringer("address", s.addr), zap.Error(err))
		}
	}()
	return s, nil
}

// faultLog takes what net/http says of connections: a handshake that failed is
// the one hint at a wrong certificate on the other side.
type faultLog struct{ faults *sampled.Log }

func (l faultLog) Write(line []byte) (int, error) {
	l.faults.Warn("connection", "a connection from another pod failed", zap.ByteString("error", bytes.TrimSpace(line)))
	return len(line), nil
}

// onlyHTTP1: one request a connection is what bounds a peer.
func onlyHTTP1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// withoutHTTP2 keeps a client from agreeing to what is not served.
func withoutHTTP2(conf *tls.Config) *tls.Config {
	conf = conf.Clone()
	conf.NextProtos = []string{"http/1.1"}
	inner := conf.GetConfigForClient
	if inner == nil {
		return conf
	}
	conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := inner(hello)
		if err != nil || c == nil {
			return nil, err
		}
		c = c.Clone()
		c.NextProtos = []string{"http/1.1"}
		return c, nil
	}
	return conf
}

// Addr is where it listens, with the real port.
func (s *Server) Addr() net.Addr { return s.addr }

// Close stops listening at once, lets requests under way finish until ctx ends,
// and then cuts them off, which it reports.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("peer listener on %s: requests cut off: %w", s.addr, errors.Join(err, s.http.Close()))
	}
	<-s.done
	return err
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+lookupPath, s.lookup)
	if s.o.Status != nil {
		mux.HandleFunc("GET "+statusPath, s.status)
	}
	return mux
}

// recovering keeps a request that goes wrong from taking the process down.
func (s *Server) recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			s.o.Log.Error("a peer's request failed", zap.String("path", r.URL.Path), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			http.Error(w, "internal error", http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}

// authorized lets through who shows the token.
func (s *Server) authorized(next http.Handler) http.Handler {
	if s.o.Token == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, before, err := s.o.Token.all()
		if err != nil {
			s.faults.Warn("token", "the peers' token cannot be read, their requests are refused", zap.Error(err))
			http.Error(w, "no token can be checked now", http.StatusServiceUnavailable)
			return
		}
		header := r.Header.Get("Authorization")
		ok := sameToken(header, want)
		for _, old := range before { // all are compared, whatever comes of the first
			same := sameToken(header, old)
			ok = ok || same
		}
		if !ok {
			s.faults.Warn("unauthorized", "a request without the peers' token was refused", zap.String("from", r.RemoteAddr))
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "peer.token is not the one expected here", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

const bearer = "Bearer "

// sameToken compares in a time that tells neither the token nor its length.
func sameToken(header, want string) bool {
	got, ok := strings.CutPrefix(header, bearer)
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && ok && want != ""
}

// take reserves one of the slots, or says that there is none.
func take(w http.ResponseWriter, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests at a time", http.StatusTooManyRequests)
		return false
	}
}

// status answers with this pod's part of the group's status.
func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	if !take(w, s.pages) {
		return
	}
	defer func() { <-s.pages }()
	s.o.Status.ServeHTTP(w, r)
}

const contentType = "application/octet-stream"

// readBody reads a look-up whole, or says why not. It has bounds of its own:
// whoever sends slowly must not hold a place among those that are answered.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	if !take(w, s.reads) {
		return nil, false
	}
	defer func() { <-s.reads }()
	var body bytes.Buffer
	body.Grow(int(min(max(r.ContentLength, 0), readAhead)) + bytes.MinRead)
	_, err := io.Copy(&body, http.MaxBytesReader(w, r.Body, MaxBytes))
	if err == nil {
		return body.Bytes(), true
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		http.Error(w, fmt.Sprintf("more than %d bytes", MaxBytes), http.StatusRequestEntityTooLarge)
		return nil, false
	}
	http.Error(w, "the request did not come in full", http.StatusBadRequest)
	return nil, false
}

// readAhead bounds the memory that a body gets before it has come.
const readAhead = 64 << 10

func (s *Server) lookup(w http.ResponseWriter, r *http.Request) {
	body, ok := s.readBody(w, r)
	if !ok || !take(w, s.slots) {
		return
	}
	defer func() { <-s.slots }()
	req, err := decodeRequest(body)
	switch {
	case errors.Is(err, errTooMany):
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		s.faults.Warn("unreadable", "a look-up that cannot be read was refused", zap.String("from", r.RemoteAddr), zap.Error(err))
		http.Error(w, "not a look-up that this version reads", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), req.budget)
	defer cancel()
	resp := s.answer.answer(ctx, req)
	if resp.refusal != "" {
		s.o.Log.Debug("look-up refused", zap.String("asker", req.asker), zap.String("from", r.RemoteAddr), zap.String("reason", resp.refusal))
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(resp.encode()) // the asker asks again
}
