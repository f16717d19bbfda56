package bounded

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One connection more than there may be is closed at once; one that is closed makes
// room, however often it is.
func TestListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var full atomic.Int32
	ln := Listener(inner, 2, func(from net.Addr) {
		if from != nil {
			full.Add(1)
		}
	})
	accepted := make(chan net.Conn, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	defer func() {
		_ = ln.Close()
		<-done
	}()
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	first, second := dial(), dial()
	_, _ = first, second
	a, b := <-accepted, <-accepted
	for range 3 {
		third := dial()
		_ = third.SetReadDeadline(time.Now().Add(30 * time.Second)) // against hanging
		if n, err := third.Read(make([]byte, 1)); n != 0 || err == nil || isTimeout(err) {
			t.Errorf("one more: %d bytes, %v", n, err)
		}
	}
	if full.Load() != 3 || len(accepted) != 0 {
		t.Errorf("%d were told of, %d accepted", full.Load(), len(accepted))
	}
	_ = a.Close()
	_ = a.Close() // as net/http does
	dial()
	c := <-accepted
	fifth := dial()
	_ = fifth.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := fifth.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("room for two more: %v", err)
	}
	_, _ = b.Close(), c.Close()
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
