package kafka

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// link is a connection to a broker over which records are fetched, one request
// at a time, and which belongs to no client. sarama's own would decode a
// response into structures of which most is thrown away again; here records are
// read out of its bytes, see chunk. kmsg has the form of all other messages.
type link struct {
	addr     string
	conns    *conns
	conn     net.Conn
	in       *bufio.Reader
	format   *kmsg.RequestFormatter
	patience time.Duration   // with a broker from which nothing comes
	newest   map[int16]int16 // versions that the broker knows, by request
	out      []byte          // the last request
	last     int32           // its correlation id
	used     time.Time       // when the last answer came
}

const (
	// fetchVersion brings a closest replica (KIP-392), and errors of the epoch
	// that the leader is asked under (KIP-320). From 13 on topics go by their
	// ids, of which brokers before 2.8 have none.
	fetchVersion = 12
	// fetchVersionLeast is the first with record batches and their transactions
	// (KIP-98).
	fetchVersionLeast = 4
	// metadataVersion is the first that tells topics' ids.
	metadataVersion = 10

	// maxResponse bounds a response, in bytes: one batch of maxReadBytes and what
	// stands around it. What is not Kafka's may well begin with a larger number.
	maxResponse = maxReadBytes + 1<<20
	// maxAhead is how much memory a response gets before any of it has come.
	maxAhead = 64 << 20
)

// newLink returns a connection that is opened with the first request. The dialer
// is the link's alone, for it to be cut.
func newLink(addr string, dialer *conns, clientID string, patience time.Duration) *link {
	l := &link{
		addr: addr, conns: dialer, patience: patience,
		format: kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)),
	}
	l.in = bufio.NewReader(steady{l})
	return l
}

// open dials, and asks the broker what it understands.
func (l *link) open() error {
	if l.conn != nil {
		return nil
	}
	conn, err := l.conns.Dial("tcp", l.addr)
	if err != nil {
		return err
	}
	l.conn = conn
	l.in.Reset(steady{l})
	if err := l.learn(); err != nil {
		// Without its versions nothing can be asked, and what has refused to tell
		// them may do so the next time.
		_ = conn.Close()
		l.conn = nil
		return fmt.Errorf("asking broker %s for its versions: %w", l.addr, err)
	}
	return nil
}

// learn asks for the versions of all requests (KIP-35).
func (l *link) learn() error {
	req, resp := kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrApiVersionsResponse()
	l.newest = map[int16]int16{req.Key(): 0}
	if err := l.exchange(req, resp); err != nil {
		return err
	}
	if resp.ErrorCode != 0 {
		return sarama.KError(resp.ErrorCode)
	}
	for _, k := range resp.ApiKeys {
		l.newest[k.ApiKey] = k.MaxVersion
	}
	if l.newest[int16(kmsg.Fetch)] < fetchVersionLeast {
		return fmt.Errorf("it knows no Fetch of version %d: %w", fetchVersionLeast, sarama.ErrUnsupportedVersion)
	}
	return nil
}

// steady reads from the link's connection as long as something comes within its
// patience.
type steady struct{ *link }

func (s steady) Read(b []byte) (int, error) {
	if err := s.conn.SetReadDeadline(time.Now().Add(s.patience)); err != nil {
		return 0, err
	}
	return s.conn.Read(b)
}

// ask sends a request, of the version that it has or of the broker's newest
// where that is older, and reads its answer, which keeps the bytes that it came
// in. After an error that is no broker's answer the link can only be closed.
func (l *link) ask(req kmsg.Request, resp kmsg.Response) error {
	if err := l.open(); err != nil {
		return err
	}
	return l.exchange(req, resp)
}

func (l *link) exchange(req kmsg.Request, resp kmsg.Response) error {
	newest, known := l.newest[req.Key()]
	if !known {
		return fmt.Errorf("broker %s: request %d: %w", l.addr, req.Key(), sarama.ErrUnsupportedVersion)
	}
	req.SetVersion(min(req.GetVersion(), newest))
	resp.SetVersion(req.GetVersion())
	l.last++
	l.out = l.format.AppendRequest(l.out[:0], req, l.last)
	if err := l.conn.SetWriteDeadline(time.Now().Add(l.patience)); err != nil {
		return err
	}
	if _, err := l.conn.Write(l.out); err != nil {
		return err
	}
	body, err := l.read()
	if err != nil {
		return err
	}
	if req.IsFlexible() && req.Key() != int16(kmsg.ApiVersions) { // KIP-511: that one's header never has tags
		if body, err = skipTags(body); err != nil {
			return err
		}
	}
	if err := resp.ReadFrom(body); err != nil {
		return fmt.Errorf("an answer of broker %s that cannot be read: %w", l.addr, err)
	}
	l.used = time.Now()
	return nil
}

// read returns the answer to the last request without its size and correlation
// id.
func (l *link) read() ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(l.in, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxResponse {
		return nil, fmt.Errorf("an answer of %d bytes from %s: not a Kafka broker, or a listener that speaks another protocol", size, l.addr)
	}
	if id := int32(binary.BigEndian.Uint32(head[4:])); id != l.last {
		return nil, fmt.Errorf("an answer of broker %s to request %d, %d was asked", l.addr, id, l.last)
	}
	size -= 4
	if size > maxAhead {
		var body bytes.Buffer
		_, err := io.CopyN(&body, l.in, int64(size))
		return body.Bytes(), unexpected(err)
	}
	body := make([]byte, size)
	_, err := io.ReadFull(l.in, body)
	return body, unexpected(err)
}

// unexpected is io.EOF in the middle of something.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// errTags says that an answer's header makes no sense.
var errTags = errors.New("an answer whose header cannot be read")

// skipTags passes over the tagged fields of a response's header (KIP-482), of
// which none is known.
func skipTags(body []byte) ([]byte, error) {
	number := func() (uint64, bool) {
		v, n := binary.Uvarint(body)
		if n <= 0 {
			return 0, false
		}
		body = body[n:]
		return v, true
	}
	for tags, ok := number(); ; tags-- {
		if !ok {
			return nil, errTags
		}
		if tags == 0 {
			return body, nil
		}
		if _, ok = number(); !ok {
			return nil, errTags
		}
		size, whole := number()
		if !whole || size > uint64(len(body)) {
			return nil, errTags
		}
		body = body[size:]
	}
}

// fetch asks for records. Records of the response alias its bytes.
func (l *link) fetch(req *kmsg.FetchRequest) (*kmsg.FetchResponse, error) {
	resp := kmsg.NewPtrFetchResponse()
	if err := l.ask(req, resp); err != nil {
		return nil, err
	}
	if resp.ErrorCode != 0 {
		return nil, sarama.KError(resp.ErrorCode)
	}
	return resp, nil
}

// topics asks what the broker knows of topics, by their names.
func (l *link) topics(names []string) (map[string]Topic, error) {
	req, resp := kmsg.NewPtrMetadataRequest(), kmsg.NewPtrMetadataResponse()
	req.SetVersion(metadataVersion)
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	if err := l.ask(req, resp); err != nil {
		return nil, err
	}
	topics := make(map[string]Topic, len(resp.Topics))
	for _, t := range resp.Topics {
		if t.Topic != nil {
			topics[*t.Topic] = newTopic(*t.Topic, sarama.KError(t.ErrorCode), len(t.Partitions), t.TopicID)
		}
	}
	return topics, nil
}

// overdue tells whether the connection's session is about to end (KIP-368).
func (l *link) overdue(now time.Time) bool { return len(l.conns.overdue(now)) > 0 }

// cut ends a request under way, and the connection with it. Anybody may call
// it.
func (l *link) cut() {
	if l != nil {
		l.conns.shut()
	}
}

// close ends the connection.
func (l *link) close() {
	l.cut()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

// newFetch returns a request for nothing yet. It is for no fetch session
// (KIP-227).
func newFetch(level sarama.IsolationLevel, maxBytes int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(fetchVersion)
	req.IsolationLevel, req.MaxBytes = int8(level), maxBytes
	return req
}

// addPartition asks for a partition's records, too. A leader of another epoch
// refuses it (KIP-320).
func addPartition(req *kmsg.FetchRequest, p partition, position int64, bytes, epoch int32) {
	one := kmsg.NewFetchRequestTopicPartition()
	one.Partition, one.FetchOffset, one.PartitionMaxBytes, one.CurrentLeaderEpoch = p.id, position, bytes, epoch
	for i := range req.Topics {
		if t := &req.Topics[i]; t.Topic == p.topic {
			t.Partitions = append(t.Partitions, one)
			return
		}
	}
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = p.topic
	topic.Partitions = append(topic.Partitions, one)
	req.Topics = append(req.Topics, topic)
}

// block is what a response tells of a partition.
type block = kmsg.FetchResponseTopicPartition

// links are connections to brokers that several take turns at.
type links struct {
	opts     Options
	patience time.Duration

	mu     sync.Mutex
	closed bool
	byAddr map[string]*turn
}

// turn is a connection for one at a time.
type turn struct {
	held chan struct{} // holds an element while somebody has the connection
	link *link         // its holder's; nil: none yet

	// Guarded by links.mu.
	dialer *conns // the connection's
	broken uint64 // how often it has failed
}

// idleLink is how long a connection may have been idle to be used again:
// brokers close one after ten minutes (connections.max.idle.ms), what lies
// between often sooner.
const idleLink = time.Minute

func newLinks(o Options, patience time.Duration) *links {
	return &links{opts: o, patience: patience, byAddr: make(map[string]*turn)}
}

// fetch asks the broker at addr. Where the connection fails for somebody, whoever
// has been waiting for it hears so, and does not wait for the same broker again:
// it may lead their partitions no more. What waits with a ctx that ends asks
// nobody.
func (ls *links) fetch(ctx context.Context, addr string, req *kmsg.FetchRequest) (*kmsg.FetchResponse, error) {
	t, broken := ls.turn(addr)
	select {
	case t.held <- struct{}{}:
		defer func() { <-t.held }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if ls.failures(t) != broken {
		return nil, &linkFault{fmt.Errorf("broker %s: %w", addr, sarama.ErrNotConnected)}
	}
	if err := ls.connect(addr, t); err != nil {
		return nil, &linkFault{err}
	}
	resp, err := t.link.fetch(req)
	if err != nil && !answered(err) {
		t.hangUp()
		ls.mu.Lock()
		t.broken++
		ls.mu.Unlock()
		err = &linkFault{err}
	}
	return resp, err
}

// linkFault is a fault of a connection of links, and of no client's.
type linkFault struct{ error }

func (f *linkFault) Unwrap() error { return f.error }

func (ls *links) turn(addr string) (t *turn, broken uint64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	t = ls.byAddr[addr]
	if t == nil {
		t = &turn{held: make(chan struct{}, 1)}
		ls.byAddr[addr] = t
	}
	return t, t.broken
}

func (ls *links) failures(t *turn) uint64 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return t.broken
}

// connect makes a connection, which is opened with the first request, where there
// is none or it is too old. The turn's holder calls it.
func (ls *links) connect(addr string, t *turn) error {
	now := time.Now()
	if t.link != nil && now.Sub(t.link.used) < idleLink && !t.link.overdue(now) {
		return nil
	}
	t.hangUp()
	dialer, err := ls.newDialer(t)
	if err != nil {
		return err
	}
	t.link = newLink(addr, dialer, ls.opts.ClientID, ls.patience)
	t.link.used = now
	return nil
}

// newDialer makes a dialer that close ends.
func (ls *links) newDialer(t *turn) (*conns, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		return nil, net.ErrClosed
	}
	t.dialer = newConns(ls.opts)
	return t.dialer, nil
}

func (t *turn) hangUp() {
	if t.link != nil {
		t.link.close()
		t.link = nil
	}
}

// close ends all requests, and those to come.
func (ls *links) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	for _, t := range ls.byAddr {
		if t.dialer != nil {
			t.dialer.shut()
		}
	}
}
