package kafka

import (
	"encoding/binary"
	"math"
	"net"
	"sync"
	"sync/atomic"
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
	// enforce is set while a rebalance is wanted: see Clients.EnforceRebalance.
	enforce atomic.Bool

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

// lastProven is when the newest request was sent that proved the session; zero: none
// has.
func (l *lease) lastProven() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proven
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
	w.requests.feed(b, func(head, _ []byte) { w.request(head, sent) })
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
	errorSize       = 2
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
	if key == keyJoinGroup {
		w.joins = true
		w.lease.enforce.Store(false) // whatever it was wanted for, here it begins
	}
	if len(w.asked) >= maxAsked {
		clear(w.asked)
	}
	w.asked[int32(binary.BigEndian.Uint32(head[4:]))] = asked{
		key: key, version: int16(binary.BigEndian.Uint16(head[2:])), sent: sent,
	}
}

// response looks at the beginning of an answer, of which tail is what lies in the
// reader's own bytes.
func (w *watched) response(head, tail []byte) {
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
			w.enforce(a, head[correlationSize:], tail)
		}
	}
}

// enforce shows the reader a heartbeat's answer as one that tells of a
// rebalance, where one is wanted. An error code that came in two pieces is left
// as it is: the next heartbeat's will not.
func (w *watched) enforce(a asked, body, tail []byte) {
	if a.key != keyHeartbeat || len(body) != a.codeAt()+errorSize || len(tail) < errorSize {
		return
	}
	code := tail[len(tail)-errorSize:]
	if binary.BigEndian.Uint16(code) == 0 && w.lease.enforce.CompareAndSwap(true, false) {
		binary.BigEndian.PutUint16(code, errRebalance)
	}
}

// codeAt is where an answer has its error code, behind the correlation id.
func (a asked) codeAt() (at int) {
	throttle := int16(throttleSince)
	if a.key == keyJoinGroup {
		throttle = joinThrottleSince
	}
	if a.flexible() {
		at++
	}
	if a.version >= throttle {
		at += throttleSize
	}
	return at
}

// flexible tells whether the answer's header has tagged fields.
func (a asked) flexible() bool {
	if a.key == keyJoinGroup {
		return a.version >= joinFlexibleSince
	}
	return a.version >= flexibleSince
}

// succeeded reads an answer's error code. A heartbeat that is told of a
// rebalance counts as one.
func (a asked) succeeded(body []byte) bool {
	if a.flexible() && (len(body) == 0 || body[0] != 0) {
		return false // tagged fields that nobody sends
	}
	at := a.codeAt()
	if len(body) < at+errorSize {
		return false
	}
	code := int16(binary.BigEndian.Uint16(body[at:]))
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
// byte that is looked at. tail is the part of b that the head ends with: what is
// written there, the owner of b reads.
func (s *splitter) feed(b []byte, each func(head, tail []byte)) {
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
		tail := b[:n:n]
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
			each(s.buf[lengthSize:], tail)
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

// EnforceRebalance has the member join its group again at its next heartbeat, as
// Java's enforceRebalance does (KIP-568), which sarama does not have. Under a
// cooperative strategy its claims go on meanwhile, else they end as in any
// rebalance. What sarama is shown is what it would hear if somebody else had begun
// one: the answer to a heartbeat. It is asked for once: a join that comes in
// between serves as well. Whether the coordinator takes the join for the beginning
// of a rebalance is for what the member says in it.
func (c *Clients) EnforceRebalance() { c.lease.enforce.Store(true) }
