package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/oauth2"

	"joiner/internal/record"
	"joiner/internal/tlsfiles"
	"joiner/test/pki"
)

// planted is a secret that must appear nowhere. TestMain has sarama's log
// searched for it.
const planted = "pl4nted-s3cret/+="

// safe is a cluster that is not for everybody: TLS, and SASL where users are
// given as kfake options.
type safe struct {
	t         *testing.T
	fake      *kfake.Cluster
	addrs     []string
	authority *pki.Authority
	dir       string
}

// newSafe starts one broker. Its certificate is read anew for each connection.
func newSafe(t *testing.T, mutual bool, opts ...kfake.Opt) *safe {
	t.Helper()
	s := &safe{t: t, dir: t.TempDir()}
	s.authority = s.newAuthority()
	s.issue(s.authority, "broker", pki.Request{Name: "broker", Hosts: []string{"127.0.0.1"}})
	s.issue(s.authority, "client", pki.Request{Name: "joiner"})
	s.trust(s.authority)
	s.write("broker-ca.pem", s.authority.PEM())
	source, err := tlsfiles.New(tlsfiles.Files{CA: s.file("broker-ca.pem"), Cert: s.file("broker.pem"), Key: s.file("broker.key")})
	if err != nil {
		t.Fatal(err)
	}
	s.start(append(opts, kfake.TLS(source.Server(mutual)))...)
	return s
}

func (s *safe) start(opts ...kfake.Opt) {
	s.t.Helper()
	fake, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(6 * time.Second), kfake.SeedTopics(1, "t"),
	}, opts...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(fake.Close)
	s.fake, s.addrs = fake, fake.ListenAddrs()
}

func (s *safe) newAuthority() *pki.Authority {
	s.t.Helper()
	a, err := pki.NewAuthority("authority")
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *safe) file(name string) string { return filepath.Join(s.dir, name) }

func (s *safe) write(name string, text []byte) {
	s.t.Helper()
	if err := pki.Replace(s.file(name), text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *safe) issue(a *pki.Authority, name string, r pki.Request) {
	s.t.Helper()
	pair, err := a.Issue(r)
	if err == nil {
		err = pair.Write(s.file(name+".pem"), s.file(name+".key"))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *safe) trust(a *pki.Authority) { s.write("ca.pem", a.PEM()) }

func (s *safe) tls() TLS { return TLS{Enabled: true, CAFile: s.file("ca.pem")} }

func (s *safe) mutual() TLS {
	return TLS{Enabled: true, CAFile: s.file("ca.pem"), CertFile: s.file("client.pem"), KeyFile: s.file("client.key")}
}

// passwords is a password that can be changed.
type passwords struct{ now atomic.Value }

func password(text string) *passwords {
	p := &passwords{}
	p.now.Store(text)
	return p
}

func (p *passwords) read() (string, error) { return p.now.Load().(string), nil }

func (s *safe) options(security Security, log *zap.Logger) Options {
	o := Options{
		Brokers: s.addrs, Topics: []string{"t"}, ReadCommitted: true, GroupID: unique("group"),
		Security: security, Log: log,
	}
	groupOptions(&o)
	return o
}

func (s *safe) connect(o Options) *Clients {
	s.t.Helper()
	c, err := Connect(deadline(s.t), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.t.Errorf("closing: %v", err)
		}
	})
	return c
}

// works has every client ask something, and the group and a Fetcher work.
func works(t *testing.T, c *Clients) {
	t.Helper()
	for name, client := range map[string]sarama.Client{
		"fetch": c.Fetch, "coordinator": c.Coordinator, "producer": c.Producer, "admin": c.Admin, "log": c.Log,
	} {
		if err := client.RefreshMetadata("t"); err != nil {
			t.Errorf("%s client: %v", name, err)
		}
	}
	end(t, c, "t", 0)
	if _, _, err := c.Reader.Bounds(deadline(t), "t", 0); err != nil {
		t.Errorf("log bounds: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h, _, ended := consume(ctx, t, c, "t")
	eventually(t, "a session", func() bool { return h.setups.Load() > 0 })
	offsets := map[string]map[int32]int64{"t": {0: 0}}
	if refused, err := c.CommitOffsets(deadline(t), h.generation(c), offsets, nil); err != nil || len(refused) > 0 {
		t.Errorf("commit: %v, refused %v", err, refused)
	}
	sink := &counter{}
	f := c.NewFetcher(FetcherOptions{})
	f.Add("t", 0, 0, sink)
	eventually(t, "a fetch", func() bool { return sink.calls.Load() > 0 })
	f.Close()
	cancel()
	if err := finish(t, ended); err != nil {
		t.Errorf("the session ended with %v", err)
	}
}

// counter is a Sink that counts.
type counter struct{ calls atomic.Int64 }

func (s *counter) Deliver([]record.Record, int64, int64, int64) { s.calls.Add(1) }
func (s *counter) Full() bool                                   { return false }
func (s *counter) Batch() []record.Record                       { return nil }

// What is wrong with a connection is to be named within ten seconds, whatever
// the broker and the token endpoint do: each step ends before, and a token that
// does not come leaves time to say so. Nothing else comes between a dial and
// what /readyz says of it.
func TestStepsEndBeforeTenSeconds(t *testing.T) {
	const named = 10 * time.Second
	if dialTimeout >= named || secureTimeout >= named || tokenTimeout >= secureTimeout {
		t.Errorf("a dial ends after %v, what follows after %v, a request for a token after %v", dialTimeout, secureTimeout, tokenTimeout)
	}
}

func TestEveryClientIsSecured(t *testing.T) {
	const user = "joiner"
	for _, c := range []struct {
		mechanism string
		mutual    bool
	}{{"", false}, {"", true}, {"PLAIN", false}, {"SCRAM-SHA-256", false}, {"SCRAM-SHA-512", true}} {
		t.Run(fmt.Sprintf("%s,mutual=%t", c.mechanism, c.mutual), func(t *testing.T) {
			var opts []kfake.Opt
			security := Security{}
			if c.mechanism != "" {
				opts = append(opts, kfake.EnableSASL(), kfake.Superuser(c.mechanism, user, planted))
				security.SASL = SASL{Mechanism: c.mechanism, Username: user, Password: password(planted).read}
			}
			s := newSafe(t, c.mutual, opts...)
			security.TLS = s.tls()
			if c.mutual {
				security.TLS = s.mutual()
			}
			core, logs := observer.New(zapcore.DebugLevel)
			clients := s.connect(s.options(security, zap.New(core)))
			works(t, clients)
			silent(t, logs)
			cert, ca := clients.opts.Access.NotAfter()
			if cert.IsZero() == c.mutual || ca.IsZero() {
				t.Errorf("certificates are valid until %v and %v", cert, ca)
			}
		})
	}
}

// silent fails if the planted secret was logged.
func silent(t *testing.T, logs *observer.ObservedLogs) {
	t.Helper()
	for _, l := range logs.All() {
		if text := fmt.Sprint(l.Message, l.ContextMap()); strings.Contains(text, planted) {
			t.Errorf("a secret was logged: %s", text)
		}
	}
}

// refuse has the broker answer every authentication as Apache Kafka does (kfake
// closes the connection), with a text that repeats what it was sent.
func (s *safe) refuse(yes *atomic.Bool) {
	s.fake.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		if !yes.Load() {
			return nil, nil, false
		}
		asked := req.(*kmsg.SASLAuthenticateRequest)
		resp := asked.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		text := "Authentication failed: " + string(asked.SASLAuthBytes)
		resp.ErrorMessage = &text
		return resp, nil, true
	})
}

// start connects in the background and waits for refusals with these words.
func (s *safe) refused(o Options, logs *observer.ObservedLogs, words ...string) (connected chan *Clients) {
	s.t.Helper()
	if o.Access == nil {
		access, err := NewAccess(o.Security, "joiner", o.Log)
		if err != nil {
			s.t.Fatal(err)
		}
		o.Access = access
	}
	connected = make(chan *Clients, 1)
	ctx := deadline(s.t)
	go func() {
		c, err := Connect(ctx, o)
		if err != nil {
			s.t.Error(err)
		}
		connected <- c
	}()
	const said = "could be reached, but not be talked to"
	// It is remembered before it is logged.
	eventually(s.t, "a refusal", func() bool {
		return len(o.Access.Refusals()) > 0 && logs.FilterMessageSnippet(said).Len() > 0
	})
	reason := strings.Join(o.Access.Refusals(), "; ")
	for _, w := range append(words, s.addrs[0]) {
		if !strings.Contains(reason, w) {
			s.t.Errorf("the reason is %q, want %q in it", reason, w)
		}
	}
	lines := logs.FilterMessageSnippet(said).All()
	if len(lines) == 0 || lines[0].Level != zapcore.ErrorLevel || lines[0].ContextMap()["broker"] != s.addrs[0] {
		s.t.Errorf("logged %v", lines)
	}
	silent(s.t, logs)
	if strings.Contains(reason, planted) {
		s.t.Errorf("the reason holds the secret: %s", reason)
	}
	return connected
}

// mended takes the clients of refused, which must have come by themselves.
func (s *safe) mended(connected chan *Clients) {
	s.t.Helper()
	select {
	case c := <-connected:
		if c == nil {
			return
		}
		works(s.t, c)
		if left := c.opts.Access.Refusals(); len(left) > 0 {
			s.t.Errorf("after it was mended: %v", left)
		}
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	case <-deadline(s.t).Done():
		s.t.Fatal("never connected")
	}
}

func TestWrongPasswordIsNamedAndReadAgain(t *testing.T) {
	// The broker repeats what it was sent: of PLAIN the password itself.
	for mechanism, said := range map[string]string{"PLAIN": "<redacted>", "SCRAM-SHA-256": "Authentication failed"} {
		t.Run(mechanism, func(t *testing.T) {
			s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser(mechanism, "joiner", "right"))
			var refusing atomic.Bool
			refusing.Store(true)
			s.refuse(&refusing)
			word := password(planted)
			core, logs := observer.New(zapcore.DebugLevel)
			o := s.options(Security{TLS: s.tls(), SASL: SASL{Mechanism: mechanism, Username: "joiner", Password: word.read}}, zap.New(core))
			connected := s.refused(o, logs, mechanism, "user joiner", "password is wrong", said)
			refusing.Store(false)
			word.now.Store("right")
			s.mended(connected)
		})
	}
}

func TestClosedConnectionIsNamed(t *testing.T) {
	s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser("PLAIN", "joiner", "right"))
	word := password(planted)
	core, logs := observer.New(zapcore.DebugLevel)
	o := s.options(Security{TLS: s.tls(), SASL: SASL{Mechanism: "PLAIN", Username: "joiner", Password: word.read}}, zap.New(core))
	connected := s.refused(o, logs, "closed the connection", "password")
	word.now.Store("right")
	s.mended(connected)
}

func TestUnreadablePasswordIsNamed(t *testing.T) {
	s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser("PLAIN", "joiner", "right"))
	file := s.file("password")
	core, logs := observer.New(zapcore.DebugLevel)
	o := s.options(Security{TLS: s.tls(), SASL: SASL{
		Mechanism: "PLAIN", Username: "joiner",
		Password: func() (string, error) { b, err := os.ReadFile(file); return string(b), err },
	}}, zap.New(core))
	connected := s.refused(o, logs, "password", file)
	s.write("password", []byte("right"))
	s.mended(connected)
}

func TestWrongMechanismIsNamed(t *testing.T) {
	s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser("PLAIN", "joiner", "right"))
	var only atomic.Bool
	only.Store(true)
	s.fake.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		if !only.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.ErrorCode, resp.SupportedMechanisms = kerr.UnsupportedSaslMechanism.Code, []string{"GSSAPI", "SCRAM-SHA-256"}
		return resp, nil, true
	})
	core, logs := observer.New(zapcore.DebugLevel)
	o := s.options(Security{TLS: s.tls(), SASL: SASL{Mechanism: "PLAIN", Username: "joiner", Password: password("right").read}}, zap.New(core))
	connected := s.refused(o, logs, "PLAIN", "does not offer", "GSSAPI, SCRAM-SHA-256")
	only.Store(false)
	s.mended(connected)
}

func TestListenerWithoutAuthenticationIsNamed(t *testing.T) {
	s := newSafe(t, false)
	var illegal atomic.Bool
	illegal.Store(true)
	s.fake.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.ErrorCode = kerr.IllegalSaslState.Code
		return resp, nil, true
	})
	core, logs := observer.New(zapcore.DebugLevel)
	access, err := NewAccess(Security{TLS: s.tls(), SASL: SASL{Mechanism: "PLAIN", Username: "joiner", Password: password("right").read}}, "joiner", zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	d := newConns(Options{Access: access}.withDefaults())
	defer d.shut()
	_, err = d.Dial("tcp", s.addrs[0])
	var refused *Refused
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "takes no authentication") {
		t.Errorf("dialling gave %v", err)
	}
	if lasting(err) || answered(err) || !disconnected(err) {
		t.Error("a refusal is no broker's answer to a request, and not for good")
	}
	silent(t, logs)
}

func TestCertificatesAreReadAgain(t *testing.T) {
	s := newSafe(t, true)
	stranger := s.newAuthority()
	s.trust(stranger)
	core, logs := observer.New(zapcore.DebugLevel)
	connected := s.refused(s.options(Security{TLS: s.mutual()}, zap.New(core)), logs, "TLS", "certificate")
	s.trust(s.authority)
	s.mended(connected)

	s.issue(stranger, "client", pki.Request{Name: "joiner"})
	core, logs = observer.New(zapcore.DebugLevel)
	connected = s.refused(s.options(Security{TLS: s.mutual()}, zap.New(core)), logs, "TLS", "certificate")
	s.issue(s.authority, "client", pki.Request{Name: "joiner"})
	s.mended(connected)

	// The brokers move to another authority while the clients are connected.
	c := s.connect(s.options(Security{TLS: s.mutual()}, zap.New(core)))
	s.issue(stranger, "broker", pki.Request{Name: "broker", Hosts: []string{"127.0.0.1"}})
	s.trust(stranger)
	for _, d := range c.conns {
		d.interrupt()
	}
	works(t, c)
}

func TestServerNameIsChecked(t *testing.T) {
	s := newSafe(t, false)
	s.issue(s.authority, "broker", pki.Request{Name: "broker", Hosts: []string{"broker.example"}})
	core, logs := observer.New(zapcore.DebugLevel)
	connected := s.refused(s.options(Security{TLS: s.tls()}, zap.New(core)), logs, "certificate", "127.0.0.1")
	s.issue(s.authority, "broker", pki.Request{Name: "broker", Hosts: []string{"127.0.0.1"}})
	s.mended(connected)

	named := s.tls()
	named.ServerName = "broker.example"
	s.issue(s.authority, "broker", pki.Request{Name: "broker", Hosts: []string{"broker.example"}})
	works(t, s.connect(s.options(Security{TLS: named}, nil)))
	insecure := TLS{Enabled: true, Insecure: true}
	works(t, s.connect(s.options(Security{TLS: insecure}, nil)))
}

func TestListenerWithoutTLSIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	access, err := NewAccess(Security{TLS: TLS{Enabled: true}}, "joiner", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := newConns(Options{Access: access}.withDefaults())
	defer d.shut()
	for _, answer := range []string{"", "HTTP/1.1 400 Bad Request\r\n\r\n"} {
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<12))
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		}()
		_, err := d.Dial("tcp", l.Addr().String())
		var refused *Refused
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "speak TLS") {
			t.Errorf("dialling gave %v", err)
		}
	}
}

// TestSessionsAreReplaced has the broker close every connection that is used
// after its session's end (KIP-368).
func TestSessionsAreReplaced(t *testing.T) {
	s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "joiner", planted),
		kfake.BrokerConfigs(map[string]string{"connections.max.reauth.ms": "2500"}))
	var authenticated atomic.Int64
	s.fake.ControlKey(int16(kmsg.SASLHandshake), func(kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		authenticated.Add(1)
		return nil, nil, false
	})
	core, logs := observer.New(zapcore.WarnLevel)
	c := s.connect(s.options(Security{TLS: s.tls(), SASL: SASL{
		Mechanism: "SCRAM-SHA-256", Username: "joiner", Password: password(planted).read,
	}}, zap.New(core)))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, ended := consume(ctx, t, c, "t")
	f, sink := c.NewFetcher(FetcherOptions{}), &counter{}
	defer f.Close()
	f.Add("t", 0, 0, sink)
	eventually(t, "a session", func() bool { return h.setups.Load() > 0 })
	first := authenticated.Load()
	// Three generations of the five clients' connections and the fetcher's.
	eventually(t, "new connections", func() bool {
		end(t, c, "t", 0)
		return authenticated.Load() >= first+3*6
	})
	before := sink.calls.Load()
	eventually(t, "more fetches", func() bool { return sink.calls.Load() > before })
	if got := h.setups.Load(); got != 1 {
		t.Errorf("%d sessions of the group, want the first to last", got)
	}
	for _, l := range logs.FilterMessageSnippet("fetching from a broker failed").All() {
		t.Errorf("a fetch was lost to a session's end: %v", l.ContextMap())
	}
	cancel()
	if err := finish(t, ended); err != nil {
		t.Error(err)
	}
}

// TestJoinOutlivesItsSession has the first session of a connection come to its
// end while a JoinGroup waits on it for other members.
func TestJoinOutlivesItsSession(t *testing.T) {
	s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser("PLAIN", "joiner", planted),
		kfake.BrokerConfigs(map[string]string{"connections.max.reauth.ms": "3600000"}))
	joining, held := make(chan struct{}), newSleeper(t, s.fake)
	var once sync.Once
	s.fake.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		if req.(*kmsg.JoinGroupRequest).MemberID == "" {
			return nil, nil, false
		}
		once.Do(func() { close(joining) })
		held.sleep()
		return nil, nil, false
	})
	c := s.connect(s.options(Security{TLS: s.tls(), SASL: SASL{
		Mechanism: "PLAIN", Username: "joiner", Password: password(planted).read,
	}}, nil))
	defer held.wake()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, ended := consume(ctx, t, c, "t")
	<-joining
	var old []net.Conn
	c.joins.mu.Lock()
	for i := range c.joins.open {
		c.joins.open[i].due = time.Now()
		old = append(old, c.joins.open[i].Conn)
	}
	c.joins.mu.Unlock()
	pause(ctx, 3*renewEvery) // long enough for a replacement to begin, if one will
	held.wake()
	eventually(t, "a session", func() bool { return h.setups.Load() > 0 })
	eventually(t, "new connections", func() bool { return !slices.ContainsFunc(old, func(c net.Conn) bool { return !isClosed(c) }) })
	if got := h.setups.Load(); got != 1 {
		t.Errorf("%d sessions of the group, want the first to last", got)
	}
	cancel()
	if err := finish(t, ended); err != nil {
		t.Error(err)
	}
}

// TestInterruptUnderTLS has a JoinGroup wait for another member.
func TestInterruptUnderTLS(t *testing.T) {
	s := newSafe(t, false)
	joining, held := make(chan struct{}), newSleeper(t, s.fake)
	var once sync.Once
	s.fake.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		s.fake.KeepControl()
		once.Do(func() { close(joining) })
		held.sleep()
		return nil, nil, false
	})
	c := s.connect(s.options(Security{TLS: s.tls()}, nil))
	defer held.wake()
	ctx, cancel := context.WithCancel(context.Background())
	_, _, ended := consume(ctx, t, c, "t")
	<-joining
	cancel()
	c.InterruptJoin()
	_ = finish(t, ended)
}

// TestSilenceEndsWithTheDialer has a listener that takes connections and says
// nothing, as a process that was stopped does.
func TestSilenceEndsWithTheDialer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for name, security := range map[string]Security{
		"TLS":  {TLS: TLS{Enabled: true}},
		"SASL": {SASL: SASL{Mechanism: "PLAIN", Username: "u", Password: password("p").read}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, stop := range []func(*conns){(*conns).shut, (*conns).interrupt} {
				access, err := NewAccess(security, "joiner", nil)
				if err != nil {
					t.Fatal(err)
				}
				d := newConns(Options{Access: access}.withDefaults())
				result := make(chan error, 1)
				go func() {
					_, err := d.Dial("tcp", l.Addr().String())
					result <- err
				}()
				conn, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				stop(d)
				select {
				case err := <-result:
					if err == nil {
						t.Error("dialled")
					}
				case <-deadline(t).Done():
					t.Error("still dialling")
				}
				_ = conn.Close()
				d.shut()
			}
		})
	}
}

// TestRefusalsAreNotRepeatedAtOnce counts connections while many clients try.
func TestRefusalsAreNotRepeatedAtOnce(t *testing.T) {
	s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser("PLAIN", "joiner", "right"))
	refusing := &atomic.Bool{}
	refusing.Store(true)
	s.refuse(refusing)
	var dialled atomic.Int64
	access, err := NewAccess(Security{TLS: s.tls(), SASL: SASL{Mechanism: "PLAIN", Username: "joiner", Password: password(planted).read}}, "joiner", nil)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(1000, 0)
	access.now = func() time.Time { return clock }
	d := newConns(Options{Access: access, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}.withDefaults())
	defer d.shut()
	for range 5 {
		var refused *Refused
		if _, err := d.Dial("tcp", s.addrs[0]); !errors.As(err, &refused) {
			t.Errorf("dialling gave %v", err)
		}
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("dialled %d times, want once", n)
	}
	clock = clock.Add(refusalHolds)
	if _, err := d.Dial("tcp", s.addrs[0]); err == nil || dialled.Load() != 2 {
		t.Errorf("later dialled %d times in all, %v", dialled.Load(), err)
	}
	if n := len(access.Refusals()); n != 1 {
		t.Errorf("%d refusals", n)
	}
	clock = clock.Add(refusalCounts)
	if left := access.Refusals(); len(left) != 0 {
		t.Errorf("an old refusal is told of: %v", left)
	}
}

func TestToolsSeeTransactionsAsConfigured(t *testing.T) {
	for committed, want := range map[bool]sarama.IsolationLevel{true: sarama.ReadCommitted, false: sarama.ReadUncommitted} {
		conf, err := ToolConfig(ToolOptions{ClientID: "tool", Version: versionAuto, ReadCommitted: committed})
		if err != nil {
			t.Fatal(err)
		}
		if got := conf.Consumer.IsolationLevel; got != want {
			t.Errorf("read committed %t: isolation level %d, want %d", committed, got, want)
		}
	}
}

func TestToolsFailWithTheReason(t *testing.T) {
	s := newSafe(t, false, kfake.EnableSASL(), kfake.Superuser("PLAIN", "joiner", "right"))
	refusing := &atomic.Bool{}
	refusing.Store(true)
	s.refuse(refusing)
	security := Security{TLS: s.tls(), SASL: SASL{Mechanism: "PLAIN", Username: "joiner", Password: password(planted).read}}
	conf, err := ToolConfig(ToolOptions{ClientID: "tool", Version: versionAuto, Security: security})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sarama.NewClient(s.addrs, conf)
	if err == nil || !strings.Contains(err.Error(), "password is wrong") || strings.Contains(err.Error(), planted) {
		t.Errorf("a client gave %v", err)
	}
	refusing.Store(false)
	security.SASL.Password = password("right").read
	if conf, err = ToolConfig(ToolOptions{ClientID: "tool", Version: versionAuto, Security: security}); err != nil {
		t.Fatal(err)
	}
	client, err := sarama.NewClient(s.addrs, conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestOptionsWithBrokenFilesAreRefused(t *testing.T) {
	s := newSafe(t, false)
	s.write("client.key", []byte("nonsense"))
	_, err := Connect(deadline(t), s.options(Security{TLS: s.mutual()}, nil))
	if err == nil || !strings.Contains(err.Error(), "kafka.tls.key_file") {
		t.Errorf("connecting gave %v", err)
	}
	if _, err := NewAccess(Security{SASL: SASL{Mechanism: "GSSAPI"}}, "joiner", nil); err == nil {
		t.Error("an unknown mechanism was accepted")
	}
}

// Of a secret that is a common word, the words around it would tell which.
func TestWordsThatRepeatASecretAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		text    string
		secrets []string
		want    string
	}{
		{"unknown client or wrong secret", []string{"wrong"}, "<redacted>"},
		{"got a%2Fb", []string{"a/b", "a%2Fb"}, "<redacted>"},
		{"unknown client", []string{"hunter2", ""}, "unknown client"},
		{strings.Repeat("x", 400), nil, strings.Repeat("x", 300) + "…"},
	} {
		if got := quoted(c.text, c.secrets...); got != c.want {
			t.Errorf("%.40q: %q, want %q", c.text, got, c.want)
		}
	}
	said := &oauth2.RetrieveError{Response: &http.Response{Status: "401 Unauthorized", StatusCode: http.StatusUnauthorized}, ErrorCode: "invalid_client", ErrorDescription: "unknown client or wrong secret"}
	err := (&tokens{sasl: SASL{ClientID: "joiner"}}).endpointFault(said, "wrong")
	if want := "client joiner or its secret is wrong: 401 Unauthorized: invalid_client: <redacted>"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
