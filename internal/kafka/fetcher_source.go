package kafka

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
)

// source asks one broker for the feeds that it holds.
type source struct {
	f    *Fetcher
	id   int32
	wake chan struct{}

	// Guarded by Fetcher.mu.
	addr  string
	feeds []*Feed
	link  *link
	since time.Time // when the request under way began; zero: none

	// called is when its goroutine began to wait for the broker (for a
	// connection, an answer, or the end of a throttling), since Fetcher.made; 0
	// while it does not.
	called atomic.Int64

	// Its goroutine's own.
	round  []*Feed // a copy of feeds
	first  int     // where it begins
	asked  []*Feed // those in the request
	told   map[partition]*block
	unsure []*Feed // those that are due and whose topic is to be looked at first
}

func newSource(f *Fetcher, id int32) *source {
	return &source{f: f, id: id, wake: make(chan struct{}, 1), told: make(map[partition]*block)}
}

// run asks until there is nothing left to ask for. A feed that comes later
// makes a new source.
func (s *source) run() {
	defer s.hangUp()
	for s.copyFeeds() {
		req, idle := s.request()
		if len(s.unsure) > 0 {
			s.calls()
			s.verify()
			s.called.Store(0)
			continue
		}
		if len(s.asked) == 0 {
			s.sleep(idle)
			continue
		}
		s.calls()
		resp, err := s.fetch(req)
		s.called.Store(0)
		if err != nil {
			s.failed(err)
			continue
		}
		s.answered(resp)
	}
}

// place hands a feed over, which may wait for brokers.
func (s *source) place(fd *Feed) {
	s.calls()
	s.f.place(fd)
	s.called.Store(0)
}

// calls notes that the goroutine waits for the broker from now on.
func (s *source) calls() { s.called.Store(max(int64(time.Since(s.f.made)), 1)) }

// copyFeeds makes the round, or forgets the source where there is none.
func (s *source) copyFeeds() bool {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	clear(s.round)
	if s.f.closed || len(s.feeds) == 0 {
		delete(s.f.sources, s.id)
		return false
	}
	// Each round begins with another: a broker fills a response in the order of the
	// request (KIP-74), and the last ones would get nothing while there is much for
	// the first.
	s.first = (s.first + 1) % len(s.feeds)
	s.round = append(append(s.round[:0], s.feeds[s.first:]...), s.feeds[:s.first]...)
	return true
}

// request asks for all that is due; where that is nothing, idle says when to
// look again.
func (s *source) request() (req *kmsg.FetchRequest, idle time.Duration) {
	now := time.Now()
	idle = time.Hour // for a wake
	s.asked, s.unsure = s.asked[:0], s.unsure[:0]
	req = s.empty()
	for _, fd := range s.round {
		if fd.expired(now) {
			fd.replica = noReplica
			s.place(fd)
			continue
		}
		due, wait := fd.due(now)
		if !due {
			if wait > 0 {
				idle = min(idle, wait)
			}
			continue
		}
		if fd.unsure(now) {
			s.unsure = append(s.unsure, fd)
			continue
		}
		req.MaxBytes = max(req.MaxBytes, fd.bytes)
		addPartition(req, fd.partition, fd.position, fd.bytes, fd.epoch)
		s.asked = append(s.asked, fd)
	}
	if len(s.unsure) == 0 {
		for _, fd := range s.asked {
			fd.asked = now
		}
	}
	return req, idle
}

// verify asks the broker whether the partitions that are unsure still belong to
// the topics that they are read of. What it says it says of what it has now, and
// the fetch follows over the same connection.
func (s *source) verify() {
	ids, err := s.topicIDs()
	if err != nil {
		s.asked = append(s.asked[:0], s.unsure...)
		s.failed(err)
		return
	}
	now := time.Now()
	for _, fd := range s.unsure {
		switch t, told := ids[fd.topic]; {
		case !told || !t.Exists() && t.Err == nil:
			s.f.faults.Warn("fetch topic", "a topic does not exist, looking for it",
				zap.String("topic", fd.topic), zap.Int32("partition", fd.id), zap.Int32("broker", s.id))
			s.f.search(fd)
		case t.ID != "" && t.ID != fd.topicID:
			s.f.leave(fd)
			fd.remade()
		default: // a missing right is the fetch's to tell
			fd.sure = now
		}
	}
}

// topicIDs looks up the topics of the partitions that are unsure.
func (s *source) topicIDs() (map[string]Topic, error) {
	var names []string
	for _, fd := range s.unsure {
		if !slices.Contains(names, fd.topic) {
			names = append(names, fd.topic)
		}
	}
	topics, err := s.connect().topics(names)
	s.ended()
	return topics, err
}

func (s *source) empty() *kmsg.FetchRequest {
	o := &s.f.o
	req := newFetch(s.f.isolation, o.ResponseBytes)
	req.MaxWaitMillis, req.MinBytes = int32(o.MaxWait/time.Millisecond), o.MinBytes
	req.Rack = s.f.clients.Rack
	return req
}

func (s *source) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	case <-s.f.ctx.Done():
	}
}

func (s *source) fetch(req *kmsg.FetchRequest) (*kmsg.FetchResponse, error) {
	resp, err := s.connect().fetch(req)
	s.ended()
	return resp, err
}

// ended notes that no request is under way.
func (s *source) ended() {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.since = time.Time{}
}

// connect returns the connection, a new one where there is none, the broker has
// moved to another address, or the session's end is near (KIP-368). The dialling
// is part of the first request.
func (s *source) connect() *link {
	s.f.mu.Lock()
	l, addr := s.link, s.addr
	if l != nil && l.addr == addr && !l.overdue(time.Now()) {
		s.since = time.Now()
		s.f.mu.Unlock()
		return l
	}
	s.f.mu.Unlock()
	s.hangUp()

	l = newLink(addr, newConns(s.f.clients), s.f.clients.ClientID, s.f.readTimeout)
	s.f.mu.Lock()
	s.link = l
	s.since = time.Now()
	if s.f.closed {
		l.cut() // Close has not seen it
	}
	s.f.mu.Unlock()
	return l
}

func (s *source) hangUp() {
	s.f.mu.Lock()
	l := s.link
	s.link, s.since = nil, time.Time{}
	s.f.mu.Unlock()
	if l == nil {
		return
	}
	l.close()
}

// failed sends the feeds of a failed request to look for their leaders. Where
// the response made no sense they stay.
func (s *source) failed(err error) {
	if s.f.ctx.Err() != nil {
		return
	}
	s.f.faults.Warn("fetch", "fetching from a broker failed, trying again",
		zap.Int32("broker", s.id), zap.Int("partitions", len(s.asked)), zap.String("topic", s.asked[0].topic),
		zap.Int32("partition", s.asked[0].id), zap.Int64("offset", s.asked[0].position), zap.Error(err))
	if !answered(err) {
		s.calls()
		s.hangUp()
		s.called.Store(0)
	}
	if answered(err) || disconnected(err) {
		for _, fd := range s.asked {
			fd.replica = noReplica
			s.f.search(fd)
		}
		return
	}
	for _, fd := range s.asked {
		fd.until = time.Now().Add(slow)
	}
}

// disconnected tells whether err is about the connection and not about what
// came over it.
func disconnected(err error) bool {
	var fault net.Error
	var refused *Refused
	return errors.As(err, &fault) || errors.As(err, &refused) || endOfConnection(err) || errors.Is(err, sarama.ErrNotConnected)
}

// endOfConnection tells whether err says that the other end, or this one, has
// closed.
func endOfConnection(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// answered deals a response out to the feeds that it was asked for.
func (s *source) answered(resp *kmsg.FetchResponse) {
	wait := time.Duration(resp.ThrottleMillis) * time.Millisecond
	if wait <= 0 || len(resp.Topics) > 0 { // else it has throttled all
		blocksOf(resp, s.told)
		for _, fd := range s.asked {
			s.deal(fd, s.told[fd.partition])
		}
		clear(s.told)
	}
	if wait > 0 {
		s.calls()
		pause(s.f.ctx, wait)
		s.called.Store(0)
	}
}

// blocksOf puts what the response tells into told.
func blocksOf(resp *kmsg.FetchResponse, told map[partition]*block) {
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			told[partition{t.Topic, t.Partitions[j].Partition}] = &t.Partitions[j]
		}
	}
}

func (s *source) deal(fd *Feed, p *block) {
	next, err := fd.take(p)
	if err != nil {
		s.f.faults.Warn("fetch partition", "a partition could not be read, trying again",
			zap.String("topic", fd.topic), zap.Int32("partition", fd.id), zap.Int64("offset", fd.position),
			zap.Int32("broker", s.id), zap.Error(err))
	}
	switch next {
	case stays:
	case moves:
		s.place(fd)
	case seeks:
		s.f.search(fd)
	case strays:
		s.f.leave(fd)
		s.f.wg.Go(func() { s.f.backInRange(fd) })
	}
}
