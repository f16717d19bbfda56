package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// frame is a length and that many bytes.
func frame(body ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func requestFrame(key, version int16, id int32) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, uint32(id))
	return frame(append(b, "client and body"...)...)
}

func responseFrame(id int32, body ...byte) []byte {
	return frame(append(binary.BigEndian.AppendUint32(nil, uint32(id)), body...)...)
}

// exchange passes one request and its response through a watched connection
// and tells how long the session is silent, in the units of the fake clock: it
// stands at 100 when the request leaves and at 107 at the end.
func exchange(t *testing.T, request, response []byte) (silence time.Duration) {
	t.Helper()
	now := time.Unix(100, 0)
	l := &lease{now: func() time.Time { return now }}
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	conn := l.watch(here)
	go func() {
		buf := make([]byte, len(request))
		for n := 0; n < len(buf); {
			m, err := there.Read(buf[n:])
			if err != nil {
				return
			}
			n += m
		}
		_, _ = there.Write(response)
	}()
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	now = time.Unix(107, 0)
	buf := make([]byte, len(response))
	for n := 0; n < len(buf); {
		m, err := conn.Read(buf[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	return l.silence()
}

func TestLeaseTakesTheSessionsOwnSuccesses(t *testing.T) {
	const proven, not = 7 * time.Second, time.Duration(math.MaxInt64)
	for _, c := range []struct {
		name     string
		request  []byte
		response []byte
		want     time.Duration
	}{
		{"heartbeat v0", requestFrame(12, 0, 5), responseFrame(5, 0, 0), proven},
		{"heartbeat v3", requestFrame(12, 3, 5), responseFrame(5, 0, 0, 0, 9, 0, 0), proven},
		{"heartbeat v4", requestFrame(12, 4, 5), responseFrame(5, 0, 0, 0, 0, 9, 0, 0, 0), proven},
		{"heartbeat during a rebalance", requestFrame(12, 3, 5), responseFrame(5, 0, 0, 0, 0, 0, 27), proven},
		{"sync v3", requestFrame(14, 3, 5), responseFrame(5, 0, 0, 0, 0, 0, 0, 1, 2, 3), proven},
		{"sync during a rebalance", requestFrame(14, 3, 5), responseFrame(5, 0, 0, 0, 0, 0, 27), not},
		{"unknown member", requestFrame(12, 4, 5), responseFrame(5, 0, 0, 0, 0, 0, 0, 25, 0), not},
		{"another's answer", requestFrame(12, 4, 5), responseFrame(6, 0, 0, 0, 0, 0, 0, 0, 0), not},
		{"metadata", requestFrame(3, 9, 5), responseFrame(5, 0, 0, 0, 0, 0, 0, 0, 0), not},
		{"a join", requestFrame(11, 5, 5), responseFrame(5, 0, 0, 0, 0, 0, 0), not},
		{"cut short", requestFrame(12, 4, 5), responseFrame(5, 0, 0), not},
		{"unknown tagged fields", requestFrame(12, 4, 5), responseFrame(5, 1, 0, 0, 0, 0, 0, 0), not},
		{"no such stream", requestFrame(12, 4, 5), []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), not},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := exchange(t, c.request, c.response); got != c.want {
				t.Errorf("silent for %v, want %v", got, c.want)
			}
		})
	}
}

// A machine that was suspended: the monotonic clock stood still, the wall clock
// went on.
func TestLeaseHeedsBothClocks(t *testing.T) {
	sent := time.Now()
	now := sent
	l := &lease{now: func() time.Time { return now }}
	l.prove(sent)
	now = sent.Round(0).Add(time.Hour) // without a monotonic reading
	if got := l.silence(); got < time.Hour {
		t.Errorf("silent for %v after an hour by the wall clock", got)
	}
	l.prove(sent.Add(-time.Minute)) // an answer that was overtaken
	now = sent.Add(time.Second)
	if got := l.silence(); got > time.Minute/2 {
		t.Errorf("silent for %v, a second after the newest proof", got)
	}
}

// However a stream is cut into pieces, the same frames are found in it.
func TestSplitterDoesNotCareForPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bodies := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 1, 10).Draw(t, "bodies")
		var stream []byte
		var want []string
		for _, body := range bodies {
			stream = append(stream, frame(body...)...)
			if len(body) > 0 {
				want = append(want, string(body[:min(len(body), responseHead)]))
			}
		}
		s := splitter{want: responseHead}
		var got []string
		for len(stream) > 0 {
			n := rapid.IntRange(1, len(stream)).Draw(t, "piece")
			s.feed(stream[:n], func(head, _ []byte) { got = append(got, string(head)) })
			stream = stream[n:]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("found %q, want %q", got, want)
		}
	})
}

func FuzzLease(f *testing.F) {
	f.Add(requestFrame(12, 4, 5), responseFrame(5, 0, 0, 0, 0, 9, 0, 0, 0), 3)
	f.Fuzz(func(_ *testing.T, out, in []byte, cut int) {
		w := newLease().watch(nil)
		for _, piece := range [][]byte{out[:min(max(cut, 0), len(out))], out[min(max(cut, 0), len(out)):]} {
			w.requests.feed(piece, func(head, _ []byte) { w.request(head, time.Now()) })
		}
		w.responses.feed(in, w.response)
	})
}

// talk has w send a request and take its response.
func talk(t *testing.T, w *watched, there net.Conn, request, response []byte) {
	t.Helper()
	go func() {
		_, _ = io.ReadFull(there, make([]byte, len(request)))
		_, _ = there.Write(response)
	}()
	if _, err := w.Write(request); err != nil {
		t.Fatal(err)
	}
	if len(response) == 0 {
		return
	}
	if _, err := io.ReadFull(w, make([]byte, len(response))); err != nil {
		t.Fatal(err)
	}
}

// A connection whose session is about to end is not replaced between a
// JoinGroup and its SyncGroup, and is afterwards, however the join ends.
func TestNoConnectionIsReplacedUnderAJoin(t *testing.T) {
	joined := map[int16][]byte{0: {0, 0, 1}, 1: {0, 0, 1}, 2: {0, 0, 0, 9, 0, 0, 1}, 5: {0, 0, 0, 9, 0, 0, 1}, 6: {0, 0, 0, 0, 9, 0, 0, 1}, 9: {0, 0, 0, 0, 9, 0, 0, 1}}
	refused := map[int16][]byte{1: {0, 79, 1}, 5: {0, 0, 0, 9, 0, 79, 1}, 9: {0, 0, 0, 0, 9, 0, 79, 1}}
	open := func(t *testing.T) (*watched, net.Conn, func() bool) {
		var there net.Conn
		d := newConns(Options{Dial: func(context.Context, string, string) (here net.Conn, err error) {
			here, there = net.Pipe()
			return here, nil
		}}.withDefaults())
		d.watch = newLease().watch
		conn, err := d.Dial("tcp", "broker:9092")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.shut(); _ = there.Close() })
		d.expect(d.open[0].Conn, time.Hour, conn.(*watched))
		return conn.(*watched), there, func() bool { return len(d.overdue(time.Now().Add(2*time.Hour))) > 0 }
	}
	for version, answer := range joined {
		t.Run(fmt.Sprintf("join v%d", version), func(t *testing.T) {
			w, there, replaced := open(t)
			talk(t, w, there, requestFrame(keyHeartbeat, 3, 1), responseFrame(1, 0, 0, 0, 0, 0, 27))
			talk(t, w, there, requestFrame(keyJoinGroup, version, 2), nil)
			if replaced() {
				t.Error("replaced under a JoinGroup")
			}
			go func() { _, _ = there.Write(responseFrame(2, answer...)) }()
			if _, err := io.ReadFull(w, make([]byte, len(responseFrame(2, answer...)))); err != nil {
				t.Fatal(err)
			}
			talk(t, w, there, requestFrame(keyHeartbeat, 3, 3), responseFrame(3, 0, 0, 0, 0, 0, 0))
			if replaced() {
				t.Error("replaced before the SyncGroup")
			}
			talk(t, w, there, requestFrame(keySyncGroup, 5, 4), nil)
			if replaced() {
				t.Error("replaced under the SyncGroup")
			}
			go func() { _, _ = there.Write(responseFrame(4, 0, 0, 0, 0, 0, 0, 27)) }()
			if _, err := io.ReadFull(w, make([]byte, 15)); err != nil {
				t.Fatal(err)
			}
			if !replaced() {
				t.Error("not replaced after the join")
			}
			if replaced() {
				t.Error("replaced twice")
			}
		})
	}
	for version, answer := range refused {
		t.Run(fmt.Sprintf("refused join v%d", version), func(t *testing.T) {
			w, there, replaced := open(t)
			talk(t, w, there, requestFrame(keyJoinGroup, version, 2), responseFrame(2, answer...))
			if !replaced() {
				t.Error("not replaced after a join that was refused")
			}
		})
	}
}

// A rebalance that is wanted is heard of once, in a heartbeat's good answer and in
// nothing else, wherever the bytes are cut, and the session counts as alive.
func TestEnforcedRebalance(t *testing.T) {
	const ok, rebalance, unknown = 0, 27, 25
	for _, c := range []struct {
		name         string
		key, version int16
		answer       []byte // up to the error code
		after        []byte
		code, want   byte
		stillWanted  bool
	}{
		{name: "v0", key: 12, version: 0, want: rebalance},
		{name: "v3", key: 12, version: 3, answer: make([]byte, 4), want: rebalance},
		{name: "v4", key: 12, version: 4, answer: make([]byte, 5), after: []byte{0}, want: rebalance},
		{name: "refused", key: 12, version: 4, answer: make([]byte, 5), after: []byte{0}, code: unknown, want: unknown, stillWanted: true},
		{name: "a sync", key: 14, version: 3, answer: make([]byte, 4), after: []byte{0, 0, 0, 0}, want: ok, stillWanted: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newLease().watch(nil)
			w.lease.enforce.Store(true)
			w.requests.feed(requestFrame(c.key, c.version, 5), func(head, _ []byte) { w.request(head, time.Now()) })
			answer := responseFrame(5, slices.Concat(c.answer, []byte{0, c.code}, c.after)...)
			at := len(answer) - len(c.after) - 1
			w.responses.feed(answer, w.response)
			if answer[at-1] != 0 || answer[at] != c.want {
				t.Errorf("the answer has error code %v, want %d", answer[at-1:at+1], c.want)
			}
			if got := w.lease.enforce.Load(); got != c.stillWanted {
				t.Errorf("still wanted: %t", got)
			}
			if alive := w.lease.silence() < time.Hour; alive != (c.code == ok) {
				t.Errorf("alive: %t", alive)
			}
		})
	}
}

// An error code that comes in two pieces is left as it is, and the next heartbeat's
// serves. A join that comes first serves, too.
func TestEnforcedRebalanceWaits(t *testing.T) {
	w := newLease().watch(nil)
	w.lease.enforce.Store(true)
	beat := func(cut int) []byte {
		w.requests.feed(requestFrame(12, 0, 5), func(head, _ []byte) { w.request(head, time.Now()) })
		answer := responseFrame(5, 0, 0)
		w.responses.feed(answer[:cut], w.response)
		w.responses.feed(answer[cut:], w.response)
		return answer
	}
	if got := beat(9); got[8] != 0 || got[9] != 0 {
		t.Errorf("half a code was written: %v", got)
	}
	if got := beat(4); got[9] != 27 {
		t.Errorf("the next heartbeat's answer is %v", got)
	}
	w.lease.enforce.Store(true)
	w.requests.feed(requestFrame(11, 5, 6), func(head, _ []byte) { w.request(head, time.Now()) })
	if got := beat(4); got[9] != 0 {
		t.Errorf("behind a join the answer is %v", got)
	}
}
