package deliver

import (
	"net"
	"sync"
	"testing"
)

// proxy dials brokers and cuts connections between a request and its answer.
type proxy struct {
	mu   sync.Mutex
	left int // answers to cut off
	cut  int // cut off so far
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	return &proxy{}
}

// Dial is sarama's proxy.Dialer.
func (p *proxy) Dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		return nil, err
	}
	return &cuttable{Conn: conn, proxy: p}, nil
}

func (p *proxy) cutAnswers(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = n
}

func (p *proxy) cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

func (p *proxy) cutNow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		return false
	}
	p.left--
	p.cut++
	return true
}

// cuttable is a connection whose next answer may get lost: it arrives, so the
// broker has done its work, but nobody sees it.
type cuttable struct {
	net.Conn
	proxy *proxy
}

func (c *cuttable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.proxy.cutNow() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

var _ net.Conn = (*cuttable)(nil)
