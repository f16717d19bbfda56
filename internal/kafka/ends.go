package kafka

import (
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Ends tells where partitions end for a reader of the clients' isolation
// level: the last stable offset under read committed, else the high watermark.
//
// One ListOffsets request is under way a broker. A question that arrives
// meanwhile goes into the next one, together with all others for that broker:
// the answer was read after the question was asked, and however many partitions
// ask, a broker gets one request at a time.
type Ends struct {
	client    sarama.Client
	isolation sarama.IsolationLevel
	faults    *sampler
	rights    *rights
	patience  time.Duration // endsPatience

	mu      sync.Mutex
	closed  bool
	leaders map[partition]int32 // as far as known; forgotten after a fault
	lanes   map[int32]*lane     // by broker
	astray  []*question         // whose partition's leader is to be found
	search  errands             // for leaders
	open    int                 // questions without an answer yet
	told    uint64              // answers

	seek chan struct{} // wakes the goroutine that finds leaders; capacity 1
	quit chan struct{}
	wg   sync.WaitGroup
}

type partition struct {
	topic string
	id    int32
}

type question struct {
	partition
	urgent bool
	asked  time.Time
	fault  error // of the last try
	done   func(end int64, err error)
}

// lane holds the questions for one broker, whose requests one goroutine sends.
type lane struct {
	broker    int32
	questions []*question
	urgent    bool
	requests  errands
	wake      chan struct{} // capacity 1
}

const (
	// endsBatch is how long a question that is not urgent waits for company.
	endsBatch = 50 * time.Millisecond
	// endsPatience is how long faults that time heals are tried again before
	// the asker hears of them.
	endsPatience = 5 * time.Second
)

func newEnds(client sarama.Client, isolation sarama.IsolationLevel, faults *sampler, rights *rights) *Ends {
	e := &Ends{
		client:    client,
		isolation: isolation,
		faults:    faults,
		rights:    rights,
		patience:  endsPatience,
		leaders:   make(map[partition]int32),
		lanes:     make(map[int32]*lane),
		seek:      make(chan struct{}, 1),
		quit:      make(chan struct{}),
	}
	e.wg.Go(e.findLeaders)
	return e
}

// Ask answers with the end offset of the partition, read after Ask was called.
// done is called exactly once, from another goroutine, and must not block; its
// error means that no broker could be asked for some seconds, that the right is
// missing, or ErrClosed: ask again. A question that is not urgent may wait up
// to 50ms for company.
func (e *Ends) Ask(topic string, id int32, urgent bool, done func(end int64, err error)) {
	q := &question{partition: partition{topic, id}, urgent: urgent, asked: time.Now(), done: done}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		go done(0, ErrClosed)
		return
	}
	e.open++
	e.route(q)
}

// answer gives a question its answer.
func (e *Ends) answer(q *question, end int64, err error) {
	q.done(end, err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	e.told++
}

// route hands q to its leader's lane, or has the leader found. e.mu is held.
func (e *Ends) route(q *question) {
	broker, known := e.leaders[q.partition]
	if !known {
		e.astray = append(e.astray, q)
		signal(e.seek)
		return
	}
	l := e.lanes[broker]
	if l == nil {
		l = &lane{broker: broker, wake: make(chan struct{}, 1)}
		e.lanes[broker] = l
		e.wg.Go(func() { e.runLane(l) })
	}
	l.questions = append(l.questions, q)
	l.urgent = l.urgent || q.urgent
	signal(l.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (e *Ends) runLane(l *lane) {
	for {
		batch := e.gather(l)
		if batch == nil {
			return
		}
		e.request(l, batch)
	}
}

// gather waits until there is something to ask and returns all of it; nil when
// closed.
func (e *Ends) gather(l *lane) []*question {
	for {
		batch, idle := e.take(l)
		if batch != nil {
			return batch
		}
		if !e.doze(l.wake, idle) {
			return nil
		}
	}
}

// take returns the questions that are due, or how long none will be.
func (e *Ends) take(l *lane) (batch []*question, idle time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(l.questions) == 0 {
		return nil, time.Hour
	}
	age := time.Since(l.questions[0].asked)
	if !l.urgent && age < endsBatch {
		return nil, endsBatch - age
	}
	batch, l.questions, l.urgent = l.questions, nil, false
	l.requests.n++
	return batch, 0
}

// doze waits for wake or d and tells whether Ends is still open.
func (e *Ends) doze(wake <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-e.quit:
		return false
	}
	return !e.isClosed()
}

// request asks the lane's broker once for the ends of all questions.
func (e *Ends) request(l *lane, batch []*question) {
	broker := l.broker
	end := e.begin(&l.requests)
	resp, err := e.list(broker, batch)
	end()
	if err != nil {
		e.failed(batch, fmt.Errorf("end offsets from broker %d: %w", broker, err))
		return
	}
	var astray []*question
	for _, q := range batch {
		offset, err := endOf(resp, q.partition)
		switch {
		case err == nil:
			e.answer(q, offset, nil)
		case lasting(err):
			_ = e.rights.missed(readTopic(q.topic), err)
			e.answer(q, 0, fmt.Errorf("end offset of %s/%d: %w", q.topic, q.id, err))
		default:
			q.fault = err
			astray = append(astray, q)
		}
	}
	e.failed(astray, nil)
}

func (e *Ends) list(id int32, batch []*question) (*sarama.OffsetResponse, error) {
	broker, err := e.client.Broker(id)
	if err != nil {
		return nil, err
	}
	req := sarama.NewOffsetRequest(e.client.Config().Version)
	req.IsolationLevel = e.isolation
	for _, q := range batch {
		req.AddBlock(q.topic, q.id, sarama.OffsetNewest, 1)
	}
	resp, err := broker.GetAvailableOffsets(req)
	if err != nil {
		_ = broker.Close() // sarama keeps one that timed out
	}
	return resp, err
}

func endOf(resp *sarama.OffsetResponse, p partition) (int64, error) {
	block := resp.GetBlock(p.topic, p.id)
	if block == nil {
		return 0, sarama.ErrIncompleteResponse
	}
	if block.Err != sarama.ErrNoError {
		return 0, block.Err
	}
	// After an election a leader may not know its end yet; from version 5 of
	// the request on it says OFFSET_NOT_AVAILABLE, before that -1.
	if block.Offset < 0 {
		return 0, sarama.ErrOffsetNotAvailable
	}
	return block.Offset, nil
}

// failed has the questions asked again, of whoever leads then, unless their
// time is over. A nil fault means that each has its own.
func (e *Ends) failed(batch []*question, fault error) {
	for _, q := range batch {
		if fault != nil {
			q.fault = fault
		}
		e.faults.Warn("ends", "an end offset could not be read",
			zap.String("topic", q.topic), zap.Int32("partition", q.id), zap.Error(q.fault))
		if lasting(q.fault) || time.Since(q.asked) > e.patience {
			e.answer(q, 0, fmt.Errorf("end offset of %s/%d: %w", q.topic, q.id, q.fault))
			continue
		}
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			e.answer(q, 0, ErrClosed)
			continue
		}
		delete(e.leaders, q.partition)
		e.astray = append(e.astray, q)
		signal(e.seek)
		e.mu.Unlock()
	}
}

// findLeaders routes the questions whose leader is not known.
func (e *Ends) findLeaders() {
	for e.doze(e.seek, time.Hour) {
		e.mu.Lock()
		batch := e.astray
		e.astray = nil
		e.search.n++
		e.mu.Unlock()
		e.find(batch)
	}
}

// find looks the leaders up, afresh where one is unknown or has just failed.
func (e *Ends) find(batch []*question) {
	stale := make(map[string]bool)
	again := false
	for _, q := range batch {
		again = again || q.fault != nil
		if q.fault != nil || e.client.PartitionNotReadable(q.topic, q.id) {
			stale[q.topic] = true
		}
	}
	if again && !wait(e.quit, backoff) {
		e.failed(batch, ErrClosed)
		return
	}
	for topic := range stale {
		end := e.begin(&e.search)
		// Its error matters only where the leader stays unknown.
		_ = e.client.RefreshMetadata(topic)
		end()
	}
	for _, q := range batch {
		e.found(q)
	}
}

func (e *Ends) found(q *question) {
	leader, err := e.leader(q)
	if err != nil {
		e.failed([]*question{q}, err)
		return
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		e.answer(q, 0, ErrClosed)
		return
	}
	e.leaders[q.partition] = leader.ID()
	e.route(q)
	e.mu.Unlock()
}

func (e *Ends) leader(q *question) (*sarama.Broker, error) {
	defer e.begin(&e.search)()
	// Leader would refresh once more, and wait for that.
	if e.client.PartitionNotReadable(q.topic, q.id) {
		return nil, sarama.ErrLeaderNotAvailable
	}
	return e.client.Leader(q.topic, q.id)
}

func (e *Ends) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// close answers what is pending with ErrClosed and waits for the goroutines.
// The client's connections must be shut before, or it waits for a response.
func (e *Ends) close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	close(e.quit)
	e.mu.Unlock()
	e.wg.Wait()

	left := e.astray // nobody else is left to touch it
	for _, l := range e.lanes {
		left = append(left, l.questions...)
	}
	for _, q := range left {
		e.answer(q, 0, ErrClosed)
	}
}
