package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"joiner/internal/absence"
	"joiner/internal/sampled"
	"joiner/internal/tlsfiles"
)

// Security says how connections to brokers are encrypted and who connects. The
// zero value is neither.
type Security struct {
	TLS  TLS
	SASL SASL
}

// TLS encrypts connections. The files are read again for each.
type TLS struct {
	Enabled    bool
	CAFile     string // PEM; empty: the system's authorities
	CertFile   string // PEM; together with KeyFile: mutual TLS
	KeyFile    string
	ServerName string // expected in brokers' certificates; empty: the host that is dialled
	Insecure   bool   // brokers' certificates go unchecked
}

// SASL authenticates connections. The secrets are asked for again for each.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER; empty: none
	Username  string // PLAIN and SCRAM
	Password  func() (string, error)

	TokenURL     string // OAUTHBEARER, by client credentials (RFC 6749, section 4.4)
	ClientID     string
	ClientSecret func() (string, error)
	Scopes       []string
}

// Access opens connections as a Security says, and remembers which brokers
// refuse them. One serves all clients of a process; any goroutine may use it.
type Access struct {
	security Security
	tls      *tlsfiles.Source // nil: not encrypted
	tokens   *tokens          // OAUTHBEARER only
	clientID string
	log      *sampled.Log
	now      func() time.Time

	mu      sync.Mutex
	refused map[string]refusal // by broker address

	absent *absence.Roll[string] // of broker addresses that take no connection
}

type refusal struct {
	err  *Refused
	at   time.Time
	hold bool // the broker's answer, which is not asked for again at once
}

// Refused says that a broker could be reached, but not be talked to: its
// certificate is not trusted, or ours, the password or the token is not.
// Somebody has to mend that, here or there, so it is named; but both are mended
// while the process runs, so trying again makes sense. It never holds a secret.
type Refused struct {
	Broker string // host:port
	Step   string // what failed: TLS or SASL
	As     string // SASL: the mechanism and who authenticates with it
	Err    error  // never one of sarama's, which would be taken for a broker's answer to a request
}

func (r *Refused) Error() string {
	if r.As == "" {
		return fmt.Sprintf("broker %s: %s: %v", r.Broker, r.Step, r.Err)
	}
	return fmt.Sprintf("broker %s: %s %s: %v", r.Broker, r.Step, r.As, r.Err)
}

func (r *Refused) Unwrap() error { return r.Err }

const (
	stepTLS  = "TLS"
	stepSASL = "SASL"
)

// NewAccess reads the TLS files once; its errors name the configuration's keys.
// clientID is what brokers see in their logs.
func NewAccess(s Security, clientID string, log *zap.Logger) (*Access, error) {
	if log == nil {
		log = zap.NewNop()
	}
	a := &Access{
		security: s, clientID: clientID, log: sampled.New(log, nil), now: time.Now,
		refused: make(map[string]refusal),
	}
	a.absent = absence.NewRoll[string](func() time.Time { return a.now() })
	if s.TLS.Enabled {
		source, err := tlsfiles.New(tlsfiles.Files{
			CA: s.TLS.CAFile, Cert: s.TLS.CertFile, Key: s.TLS.KeyFile, Section: "kafka.tls",
			Report: func(err error) {
				a.log.Error("tls files", "a TLS file is not as it should be", zap.Error(err))
			},
		})
		if err != nil {
			return nil, err
		}
		a.tls = source
	}
	if s.SASL.Mechanism != "" && mechanismOf(s.SASL.Mechanism) == nil {
		return nil, fmt.Errorf("kafka.sasl.mechanism: %q is not known", s.SASL.Mechanism)
	}
	if s.SASL.Mechanism == oauthBearer {
		a.tokens = newTokens(s.SASL, a.tls)
	}
	return a, nil
}

// NotAfter returns until when the client certificate, and the first of the
// authorities to expire, are valid; zero where there is no such file.
func (a *Access) NotAfter() (cert, ca time.Time) {
	if a == nil || a.tls == nil {
		return time.Time{}, time.Time{}
	}
	return a.tls.NotAfter()
}

// TLSFaults says what is wrong with the files of kafka.tls, as they were last read.
func (a *Access) TLSFaults() []string {
	if a == nil || a.tls == nil {
		return nil
	}
	return a.tls.Faults()
}

// WatchTLS reads the files of kafka.tls now and then, until ctx ends.
func (a *Access) WatchTLS(ctx context.Context) {
	if a != nil && a.tls != nil {
		a.tls.Watch(ctx)
	}
}

const (
	// refusalCounts is how long a refusal is told of when nobody tries that
	// broker again: somebody does within kafka.metadata_refresh where it
	// matters.
	refusalCounts = 30 * time.Second
	// refusalHolds is how long a broker that has refused is not dialled again.
	// Many clients try every 100ms, and a hundred wrong passwords a second lock
	// accounts and fill the brokers' logs.
	refusalHolds = time.Second
)

// Refusals says which brokers refuse connections now, and why, in their order.
func (a *Access) Refusals() []string {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, r := range a.refused {
		if a.now().Sub(r.at) < refusalCounts {
			all = append(all, r.err.Error())
		}
	}
	slices.Sort(all)
	return all
}

// held returns the broker's last refusal while it is too early to ask again.
func (a *Access) held(broker string) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.refused[broker]
	if ok && r.hold && a.now().Sub(r.at) < refusalHolds {
		return r.err
	}
	return nil
}

// forget says that it is not known any more whether the broker refuses.
func (a *Access) forget(broker string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.refused, broker)
}

// note remembers a refusal and logs it.
func (a *Access) note(r *Refused, hold bool) {
	a.mu.Lock()
	a.refused[r.Broker] = refusal{err: r, at: a.now(), hold: hold}
	a.mu.Unlock()
	fields := []zap.Field{zap.String("broker", r.Broker), zap.String("step", r.Step), zap.Error(r.Err)}
	if s := a.security.SASL; r.Step == stepSASL {
		fields = append(fields, zap.String("mechanism", s.Mechanism), zap.String("user", s.user()))
	}
	a.log.Error("refused "+r.Broker, "a broker could be reached, but not be talked to; trying again", fields...)
}

// user is whom the connection is made for.
func (s SASL) user() string {
	if s.Mechanism == oauthBearer {
		return s.ClientID
	}
	return s.Username
}

// secure shakes hands on a fresh connection and returns what to talk through,
// and how long the broker lets it live (0: without limit). It fails with
// *Refused, with net.ErrClosed where ctx was cancelled, or with ctx's error; the
// connection is then the caller's to close.
func (a *Access) secure(ctx context.Context, conn net.Conn, broker string) (net.Conn, time.Duration, error) {
	if a == nil || (a.tls == nil && a.security.SASL.Mechanism == "") {
		return conn, 0, nil
	}
	secured, lifetime, err := a.shakeHands(ctx, conn, broker)
	var refused *Refused
	switch {
	case err == nil:
		a.forget(broker)
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled):
		return nil, 0, net.ErrClosed // ours
	case errors.As(err, &refused):
		a.note(refused, !disconnected(refused.Err))
	}
	return secured, lifetime, err
}

func (a *Access) shakeHands(ctx context.Context, conn net.Conn, broker string) (net.Conn, time.Duration, error) {
	// Whatever blocks below ends with ctx.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if a.tls != nil {
		secured, err := a.encrypt(ctx, conn, broker)
		if err != nil {
			return nil, 0, &Refused{Broker: broker, Step: stepTLS, Err: hintTLS(err)}
		}
		conn = secured
	}
	x := &opening{conn: conn, clientID: a.clientID}
	if a.security.SASL.Mechanism == "" {
		// TLS 1.3 brings the broker's verdict on our certificate with the first
		// answer. Asked for here, it can be named.
		if err := x.versions(); err != nil {
			return nil, 0, &Refused{Broker: broker, Step: stepTLS, Err: hintTLS(err)}
		}
		return conn, 0, done(ctx, stop)
	}
	lifetime, err := a.authenticate(ctx, x, broker)
	if err != nil {
		s := a.security.SASL
		if remoteAlert(err) {
			return nil, 0, &Refused{Broker: broker, Step: stepTLS, Err: hintTLS(err)} // see above
		}
		return nil, 0, &Refused{
			Broker: broker, Step: stepSASL, As: fmt.Sprintf("%s for user %s", s.Mechanism, s.user()),
			Err: hintSASL(err, s.Mechanism),
		}
	}
	return conn, lifetime, done(ctx, stop)
}

// done tells whether ctx has let the connection's deadline alone.
func done(ctx context.Context, stop func() bool) error {
	if stop() {
		return nil
	}
	return ctx.Err()
}

func (a *Access) encrypt(ctx context.Context, conn net.Conn, broker string) (net.Conn, error) {
	name := a.security.TLS.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(broker)
		if err != nil {
			return nil, err
		}
		name = host
	}
	conf, err := a.tls.Client(name, a.security.TLS.Insecure)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, conf)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secured, nil
}

// hintTLS adds what a fault in the handshake mostly means.
func hintTLS(err error) error {
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &header):
		return fmt.Errorf("%w (this listener seems not to speak TLS)", err)
	case endOfConnection(err):
		return fmt.Errorf("the broker closed the connection: %w (does this listener speak TLS?)", err)
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer to the handshake within %v (does this listener speak TLS?)", secureTimeout)
	}
	if remoteAlert(err) {
		return fmt.Errorf("the broker ended the handshake: %w (does it demand a client certificate, and trust this one?)", err)
	}
	return err
}

// remoteAlert tells whether the other end has refused the handshake.
func remoteAlert(err error) bool {
	var remote *net.OpError
	return errors.As(err, &remote) && remote.Op == "remote error"
}

// hintSASL is as hintTLS.
func hintSASL(err error, mechanism string) error {
	what := "user or password"
	if mechanism == oauthBearer {
		what = "token"
	}
	switch {
	case errors.Is(err, errNotTaken):
		return fmt.Errorf("the %s is wrong: %w", what, err)
	case endOfConnection(err):
		return fmt.Errorf("the broker closed the connection: %w (a wrong %s, or a listener that speaks another protocol)", err, what)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer within %v (does this listener speak another protocol?)", secureTimeout)
	}
	return err
}

// quoted is what the other side said, bounded, or nothing of it where it repeats
// a secret: of a secret that is a common word the rest of the sentence would
// tell which one.
func quoted(text string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" && strings.Contains(text, secret) {
			return "<redacted>"
		}
	}
	return redacted(text)
}

// redacted removes secrets that a text from elsewhere may repeat, and bounds
// it.
func redacted(text string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "<redacted>")
		}
	}
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
