// Package server answers over HTTP what an operator and a kubelet ask: /livez,
// /readyz, /metrics, /v1/prices, /v1/status and the status page, and on a
// listener of its own, where wanted, pprof.
//
// It is read-only and must never show a secret or a payload, wait for a
// broker, or let a request that goes wrong take the process down. What another
// pod has to be asked for is bounded in time and in number.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"joiner/internal/bounded"
	"joiner/internal/sampled"
)

// Status tells how the pod is doing. Its methods are called by any goroutine,
// at every probe, and must not block.
type Status interface {
	Ready() Readiness
	// Stalled says what has work and does none of it, each with its name and
	// since when; empty else. It waits for nobody, whatever is stuck.
	Stalled() []string
}

// Readiness is the answer of /readyz. A pod is ready once it is assigned and
// all its tasks are restored; as an idle spare it is ready too.
type Readiness struct {
	Ready     bool `json:"ready"`
	Assigned  bool `json:"assigned"`  // the group has given this pod its part, which may be none
	Restoring bool `json:"restoring"` // a task is reading back its prices
	CaughtUp  bool `json:"caught_up"` // every task has reached the market end that it saw at its assignment
	// Reasons say what is missing, naming topics and partitions; empty when
	// ready.
	Reasons []string `json:"reasons"`
	// Notes are what an operator should know and what makes no pod unready,
	// such as misplaced keys; most often empty.
	Notes []string `json:"notes"`
}

// Options says what to serve, and where.
type Options struct {
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// PprofListen is the same for pprof; empty serves none.
	PprofListen string

	Status   Status
	Gatherer prometheus.Gatherer
	// Views is what /v1/status and the status page show; nil: there is neither.
	Views Views
	// Prices is behind /v1/prices; nil: there is no such path.
	Prices Prices
	Log    *zap.Logger

	connections int // for each listener; 0: bounded.Connections
}

func (o Options) validate() error {
	switch {
	case o.Status == nil:
		return errors.New("server: no Status")
	case o.Gatherer == nil:
		return errors.New("server: no Gatherer")
	case o.Log == nil:
		return errors.New("server: no Log")
	}
	return nil
}

// Server is a running server. Close it.
type Server struct {
	log   *zap.Logger
	most  int // connections of a listener
	main  *listener
	pprof *listener // nil without one
}

// listener is one open port and what serves it.
type listener struct {
	addr net.Addr
	http *http.Server
	done chan struct{} // closed when serving has ended
}

// Limits on what one client may hold. Everything that is served is small and
// comes from memory, so a slow request is a broken or a hostile one.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 128 << 10 // maxSymbols of a hundred bytes and more in a query
	// pprofWriteTimeout bounds the longest profile; net/http/pprof refuses
	// one that would take longer.
	pprofWriteTimeout = 5 * time.Minute
)

// Start opens the listeners and serves until Close. It returns an error that
// names the address where one cannot be opened; ctx bounds only the opening.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Server{log: o.Log, most: cmp.Or(o.connections, bounded.Connections)}
	var err error
	if s.main, err = s.serve(ctx, "http.listen", o.Listen, routes(o), writeTimeout); err != nil {
		return nil, err
	}
	if o.PprofListen == "" {
		return s, nil
	}
	if s.pprof, err = s.serve(ctx, "http.pprof_listen", o.PprofListen, pprofRoutes(), pprofWriteTimeout); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// serve opens one listener. key is the configuration key, for the error.
func (s *Server) serve(ctx context.Context, key, addr string, h http.Handler, write time.Duration) (*listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %q: %w", key, addr, err)
	}
	faults := sampled.New(s.log, nil)
	ln = bounded.Listener(ln, s.most, func(from net.Addr) {
		faults.Warn("connections", "too many connections, one more was closed",
			zap.String("listener", key), zap.Int("open", s.most), zap.Stringer("from", from))
	})
	l := &listener{
		addr: ln.Addr(),
		done: make(chan struct{}),
		http: &http.Server{
			Handler:           recovering(s.log, h),
			ReadHeaderTimeout: readHeaderTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      write,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          zap.NewStdLog(s.log),
		},
	}
	go func() {
		defer close(l.done)
		if err := l.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("http server ended", zap.String("address", addr), zap.Error(err))
		}
	}()
	return l, nil
}

// Addr is where it listens, with the real port.
func (s *Server) Addr() net.Addr { return s.main.addr }

// PprofAddr is where pprof listens, nil where it does not.
func (s *Server) PprofAddr() net.Addr {
	if s.pprof == nil {
		return nil
	}
	return s.pprof.addr
}

// Close stops listening at once, lets requests under way finish until ctx
// ends, and then cuts them off, which it reports. It may be called again.
func (s *Server) Close(ctx context.Context) error {
	listeners := []*listener{s.main}
	if s.pprof != nil {
		listeners = append(listeners, s.pprof)
	}
	errs := make([]error, len(listeners))
	var wg sync.WaitGroup
	for i, l := range listeners {
		wg.Go(func() { errs[i] = l.close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *listener) close(ctx context.Context) error {
	err := l.http.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("http server on %s: requests cut off: %w", l.addr, errors.Join(err, l.http.Close()))
	}
	<-l.done
	return err
}
