package kafka

import (
	"encoding/binary"
	"math"
	"net"
	"sync"
	"time"
)

// lease knows how long ago the group's coordinator last took this member for
// alive. sarama reports no heartbeats, so the connections themselves are
// watched: a request of the session that was answered with success proves that
// the session was alive when it was sent, and will be for a session timeout
// from then on, since the coordinator counts from a later moment.
//
// Other answers on the same connection prove nothing: a process that was
// stopped for an hour and continued has its metadata refreshed as well.
type lease struct {
	now func() time.Time

	mu     sync.Mutex
	proven time.Time // when the newest such request was sent; zero: none yet
}

func newLease() *lease { return &lease{now: time.Now} }

// silence is how long ago the session was last proven. It is the longer of what
// the monotonic and the wall clock say: the one stands still while a machine is
// suspended, the other may be set back.
func (l *lease) silence() time.Duration {
	l.mu.Lock()
	proven := l.proven
	l.mu.Unlock()
	if proven.IsZero() {
		return math.MaxInt64
	}
	now := l.now()
	return max(now.Sub(proven), now.Round(0).Sub(proven.Round(0)))
}

func (l *lease) prove(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent.After(l.proven) {
		l.proven = sent
	}
}

// watch returns conn with an eye on what passes.
func (l *lease) watch(conn net.Conn) *watched {
	return &watched{
		Conn: conn, lease: l, asked: make(map[int32]asked),
		requests: splitter{want: requestHead}, responses: splitter{want: responseHead},
	}
}

// asked is a request whose answer will tell something.
type asked struct {
	key, version int16
	sent         time.Time
}

// watched is a connection to the coordinator.
type watched struct {
	net.Conn
	lease *lease

	requests  splitter // the writer's own
	responses splitter // the reader's own

	mu    sync.Mutex
	asked map[int32]asked // by correlation id
	joins bool            // see joining
}

// joining tells whether a JoinGroup has left on the connection and the
// SyncGroup that belongs to it is not answered yet. sarama sends both on one
// connection, or gives the session up.
func (w *watched) joining() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.joins
}

// Write notes the session's requests on their way out. The moment is that
// before the bytes leave.
func (w *watched) Write(b []byte) (int, error) {
	sent := w.lease.now()
	w.requests.feed(b, func(head []byte) { w.request(head, sent) })
	return w.Conn.Write(b)
}

// Read looks for their answers.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.responses.feed(b[:n], w.response)
	return n, err
}

// The session's requests, by Kafka's key, and the versions from which on their
// answers begin with a throttle time and their headers with tagged fields.
const (
	keyJoinGroup = 11
	keyHeartbeat = 12
	keySyncGroup = 14

	throttleSince     = 1 // of heartbeats and SyncGroup
	flexibleSince     = 4
	joinThrottleSince = 2
	joinFlexibleSince = 6
	errRebalance      = 27 // REBALANCE_IN_PROGRESS

	correlationSize = 4
	throttleSize    = 4
	requestHead     = 8  // key, version, correlation id
	responseHead    = 11 // correlation id, no tagged fields, throttle time, error code
	maxFrame        = 1 << 30
	maxAsked        = 64 // more were never answered
)

func (w *watched) request(head []byte, sent time.Time) {
	if len(head) < requestHead {
		return
	}
	key := int16(binary.BigEndian.Uint16(head))
	if key != keyHeartbeat && key != keySyncGroup && key != keyJoinGroup {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.joins = w.joins || key == keyJoinGroup
	if len(w.asked) >= maxAsked {
		clear(w.asked)
	}
	w.asked[int32(binary.BigEndian.Uint32(head[4:]))] = asked{
		key: key, version: int16(binary.BigEndian.Uint16(head[2:])), sent: sent,
	}
}

func (w *watched) response(head []byte) {
	if len(head) < correlationSize {
		return
	}
	id := int32(binary.BigEndian.Uint32(head))
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.asked[id]
	delete(w.asked, id)
	switch success := ok && a.succeeded(head[correlationSize:]); {
	case !ok:
	case a.key == keyJoinGroup:
		w.joins = success
	default:
		w.joins = w.joins && a.key != keySyncGroup
		if success {
			w.lease.prove(a.sent)
		}
	}
}

// succeeded reads an answer's error code. A heartbeat that is told of a
// rebalance counts as one.
func (a asked) succeeded(body []byte) bool {
	skip, throttle, flexible := 0, int16(throttleSince), int16(flexibleSince)
	if a.key == keyJoinGroup {
		throttle, flexible = joinThrottleSince, joinFlexibleSince
	}
	if a.version >= flexible {
		if len(body) == 0 || body[0] != 0 {
			return false // tagged fields that nobody sends
		}
		skip++
	}
	if a.version >= throttle {
		skip += throttleSize
	}
	if len(body) < skip+2 {
		return false
	}
	code := int16(binary.BigEndian.Uint16(body[skip:]))
	return code == 0 || a.key == keyHeartbeat && code == errRebalance
}

// splitter finds the frames in a stream of Kafka's protocol: a length in four
// bytes and that many bytes more.
type splitter struct {
	want   int    // how many bytes of each frame are looked at
	buf    []byte // the length of the frame under way and its beginning
	left   int    // what is left of it behind that
	broken bool   // no such stream: nothing is looked at any more
}

const lengthSize = 4

// feed calls each with the beginning of every frame of which b brings the last
// byte that is looked at.
func (s *splitter) feed(b []byte, each func(head []byte)) {
	for len(b) > 0 && !s.broken {
		if s.left > 0 {
			n := min(s.left, len(b))
			s.left -= n
			b = b[n:]
			continue
		}
		need, size := lengthSize, 0
		if len(s.buf) >= lengthSize {
			size = int(binary.BigEndian.Uint32(s.buf))
			need += min(size, s.want)
		}
		n := min(need-len(s.buf), len(b))
		s.buf = append(s.buf, b[:n]...)
		b = b[n:]
		switch {
		case len(s.buf) < need:
		case need == lengthSize:
			size := int32(binary.BigEndian.Uint32(s.buf))
			s.broken = size < 0 || size > maxFrame
			if size == 0 {
				s.buf = s.buf[:0]
			}
		default:
			each(s.buf[lengthSize:])
			s.left = size - (need - lengthSize)
			s.buf = s.buf[:0]
		}
	}
}

// Silence is how long ago the newest request of the group's session was sent
// that its coordinator has answered with success: above the session timeout the
// group may have given this member's partitions to others. It is very long
// before the first one.
func (c *Clients) Silence() time.Duration { return c.lease.silence() }
