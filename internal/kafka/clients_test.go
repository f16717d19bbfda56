package kafka

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// gate stands before the network of a dialer: shut, it refuses new connections
// and breaks those that it let through, as a broker does that goes down.
type gate struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex
	shut    bool
	refused int
	through []net.Conn
}

func newGate() *gate { return &gate{dial: (&net.Dialer{}).DialContext} }

func (g *gate) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		g.refused++
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	conn, err := g.dial(ctx, network, address)
	if err == nil {
		g.through = append(g.through, conn)
	}
	return conn, err
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for _, c := range g.through {
		_ = c.Close()
	}
	g.through = nil
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

func (g *gate) refusals() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// eventually waits for what must come true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := deadline(t)
	for !ok() {
		if !pause(ctx, 10*time.Millisecond) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestConnectWaitsForBrokers(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	g := newGate()
	g.close()
	core, logs := observer.New(zapcore.WarnLevel)
	connected := make(chan *Clients, 1)
	go func() {
		c, err := Connect(deadline(t), Options{Brokers: k.addrs, Dial: g.Dial, Topics: []string{topic}, Log: zap.New(core)})
		if err != nil {
			t.Error(err)
		}
		connected <- c
	}()
	// sarama dials several times a try.
	eventually(t, "three tries", func() bool { return g.refusals() > 2*(metadataRetries+1) })
	g.open()
	c := <-connected
	if c == nil {
		return
	}
	defer c.Close()
	if got := end(t, c, topic, 0); got != 0 {
		t.Errorf("end %d", got)
	}
	tries := logs.FilterMessage("no broker answers, trying again").All()
	if len(tries) != 1 {
		t.Fatalf("%d lines for tries within the sampling interval, want the first one's", len(tries))
	}
	if got := tries[0].ContextMap()["error"]; !strings.Contains(got.(string), "refused") {
		t.Errorf("the line says %v, not why", got)
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	g := newGate()
	g.close()
	for name, o := range map[string]Options{
		"nobody listens": {Brokers: []string{"127.0.0.1:1"}, Dial: g.Dial},
		"a wrong name":   {Brokers: []string{"no-such-host.invalid:9092"}},
		"silence": {Brokers: []string{"127.0.0.1:1"}, Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			t.Cleanup(func() { _ = there.Close() })
			return here, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			if _, err := Connect(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestConnectRefusesWhatMakesNoSense(t *testing.T) {
	_, err := Connect(context.Background(), Options{
		Version: "new", Heartbeat: time.Second, SessionTimeout: 2 * time.Second, RebalanceTimeout: time.Microsecond, FetchMin: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"brokers", "version", "session timeout", "rebalance timeout", "fetch min"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
}

func TestConnectWithoutItsTopics(t *testing.T) {
	k := anyCluster(t)
	missing := unique("missing")
	c := k.connect(t, func(o *Options) { o.Topics = []string{missing} })
	topics, err := c.Facts.Topics(deadline(t), missing)
	if err != nil || topics[missing].Exists() {
		t.Errorf("connecting made the topic: %+v, %v", topics[missing], err)
	}
}

func TestVersions(t *testing.T) {
	for s, want := range map[string]sarama.KafkaVersion{
		"auto": autoVersion(), "2.8.0": sarama.V2_8_0_0, "4.0.0": sarama.V4_0_0_0,
	} {
		if got, err := parseVersion(s); err != nil || got != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "2.7.0", "0.11.0.0", "3", "latest"} {
		if v, err := parseVersion(s); err == nil {
			t.Errorf("%q is taken as %v", s, v)
		}
	}
}

// Every span of versions that a broker may know is spoken.
func TestEachVersionSpeaks(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	send(t, k.producer(t), topic, 0, "a")
	for _, version := range []string{"auto", "2.8.0", sarama.MaxVersion.String()} {
		t.Run(version, func(t *testing.T) {
			c := k.connect(t, func(o *Options) { o.Version = version })
			if got := end(t, c, topic, 0); got != 1 {
				t.Errorf("end %d", got)
			}
			if got := readAll(t, c, topic, 0, 0, 1); len(got) != 1 {
				t.Errorf("read %v", got)
			}
			mustCommit(t, c, offsets{topic: {0: 1}})
			wantCommitted(t, c, offsets{topic: {0: 1}})
			if got, err := c.Facts.Configs(deadline(t), topic); err != nil || !got[topic].Known {
				t.Errorf("configs %+v, %v", got, err)
			}
		})
	}
}

func TestConfigsAreSeparateAndValid(t *testing.T) {
	o := Options{Brokers: []string{"a:1"}, Strategies: []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}}.withDefaults()
	seen := map[*sarama.Config]string{}
	for name, make := range map[string]func(Options, *conns) *sarama.Config{
		"fetch": fetchConfig, "group": groupConfig, "coordinator": coordinatorConfig,
		"producer": producerConfig, "admin": adminConfig, "log": logConfig,
	} {
		c := make(o, newConns(o))
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.Metadata.AllowAutoTopicCreation || c.Metadata.Full {
			t.Errorf("%s: may create topics, or asks for all", name)
		}
		if single := c.Net.MaxOpenRequests == 1; single != (name == "producer") {
			t.Errorf("%s: Net.MaxOpenRequests %d", name, c.Net.MaxOpenRequests)
		}
		seen[c] = name
	}
	if len(seen) != 6 {
		t.Error("a config is shared")
	}
	if got := fetchConfig(o, nil); got.Net.ReadTimeout > o.RebalanceTimeout/3 || got.Consumer.Offsets.AutoCommit.Enable {
		t.Errorf("fetch: read timeout %v, auto-commit %v", got.Net.ReadTimeout, got.Consumer.Offsets.AutoCommit.Enable)
	}
	if got := coordinatorConfig(o, nil).Net.ReadTimeout; got <= o.RebalanceTimeout {
		t.Errorf("coordinator: a read timeout of %v cuts a JoinGroup off", got)
	}
	if got := groupConfig(o, nil).Metadata.Retry; time.Duration(got.Max)*got.Backoff < 25*time.Second {
		t.Errorf("group: %d retries of %v do not cover 25s", got.Max, got.Backoff)
	}
	if got := fetchConfig(o, nil).Metadata.RefreshFrequency; got != o.MetadataRefresh/2 {
		t.Errorf("metadata is refreshed every %v", got)
	}
	for name, c := range map[string]*sarama.Config{"producer": producerConfig(o, nil), "coordinator": coordinatorConfig(o, nil)} {
		if got := c.Metadata.RefreshFrequency; got != 0 {
			t.Errorf("%s: what must not wait shares its connections with a refresh every %v", name, got)
		}
	}
}

func TestCloseTwiceAndAfter(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	c := k.connect(t, nil)
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if _, _, err := c.Reader.Bounds(deadline(t), topic, 0); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("bounds after Close: %v", err)
	}
	if _, err := c.CommitOffsets(deadline(t), nobody(c), offsets{topic: {0: 1}}, nil); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("commit after Close: %v", err)
	}
	if _, err := c.Facts.Topics(deadline(t), topic); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("topics after Close: %v", err)
	}
	if _, err := c.conns[0].Dial("tcp", k.addrs[0]); err == nil {
		t.Error("dialled after Close")
	}
}

func TestConnsForgetWhatIsClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := newConns(Options{}.withDefaults())
	defer c.shut()
	for range 5 {
		conn, err := c.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := conn.(*net.TCPConn); !ok {
			t.Fatalf("sarama would not see a broken %T", conn)
		}
		if len(c.open) != 1 {
			t.Fatalf("%d connections are remembered, want the open one", len(c.open))
		}
		_ = conn.Close()
	}
}
