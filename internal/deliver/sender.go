package deliver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/record"
)

// errStopped ends a wait for an answer when the writer stops.
var errStopped = errors.New("deliver: stopped")

// sender is one leader's goroutine: it has one request under way at a time,
// and what gathers meanwhile is the next.
type sender struct {
	w  *Writer
	id int32 // of the broker

	ready []*partition  // guarded by the writer's lock
	busy  bool          // a request is under way; guarded likewise
	began time.Time     // when it began; guarded likewise
	bytes int           // that gathered since the last request; guarded likewise
	wake  chan struct{} // something is ready
	full  chan struct{} // lingering makes no sense any more

	answers  chan answer
	onAnswer sarama.ProduceCallback
	batch    []*partition // of the request under way
	report   report

	lingers atomic.Bool
}

type answer struct {
	response *sarama.ProduceResponse
	err      error
}

// report is what a request's answer set off, told to others without the lock.
type report struct {
	receiver record.Owner // of the outcomes; nil: the outputs' owners
	outcomes []outcome
	failures []failure
}

// failure is a failed attempt for one partition.
type failure struct {
	topic     string
	partition int32
	name      string // Kafka's
	err       error
	restart   bool
	outputs   int

	transactional bool
}

// sender returns the running sender of a broker. It holds the lock.
func (w *Writer) sender(id int32) *sender {
	if s := w.senders[id]; s != nil {
		return s
	}
	s := &sender{
		w: w, id: id,
		wake:    make(chan struct{}, 1),
		full:    make(chan struct{}, 1),
		answers: make(chan answer, 1),
	}
	// Made once: it must not block, since it runs where responses are read.
	s.onAnswer = func(r *sarama.ProduceResponse, err error) { s.answers <- answer{r, err} }
	w.senders[id] = s
	w.wg.Add(1)
	go s.run()
	return s
}

func (s *sender) run() {
	defer s.w.wg.Done()
	var linger *time.Timer
	if s.w.linger > 0 {
		linger = time.NewTimer(s.w.linger)
		linger.Stop()
	}
	for s.await(linger) {
		s.take()
		if len(s.batch) == 0 {
			continue
		}
		if !s.exchange(s.batch) {
			return
		}
	}
}

// await returns once there is something to send and it has waited for company:
// for the linger, or until there is enough of it. What gathered while a request
// was under way waits as well, since a request costs a leader as much as some
// fifty outputs do. It returns false when the writer stops.
func (s *sender) await(linger *time.Timer) bool {
	ready := s.anyReady()
	for !ready {
		select {
		case <-s.wake:
		case <-s.w.abort:
			return false
		}
		ready = s.anyReady()
	}
	if linger == nil || s.enough() {
		return !s.stopped()
	}
	s.lingers.Store(true)
	defer s.lingers.Store(false)
	linger.Reset(s.w.linger)
	defer linger.Stop()
	for !s.enough() {
		select {
		case <-linger.C:
			return true
		case <-s.full: // perhaps of a time gone by
		case <-s.w.closing:
			return true
		case <-s.w.abort:
			return false
		}
	}
	return true
}

// enough reports whether waiting for company makes no sense any more: there is
// plenty, or something has waited for a second attempt already.
func (s *sender) enough() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	total := 0
	for _, p := range s.ready {
		if p.batch.open() {
			return true
		}
		total += p.bytes
	}
	return total >= lingerBytes
}

// lingerBytes is plenty: a larger request costs a leader no less a byte.
const lingerBytes = 128 << 10

// gather counts bytes that became ready. It holds the writer's lock.
func (s *sender) gather(bytes int) {
	s.bytes += bytes
	if s.bytes >= lingerBytes {
		signal(s.full)
	}
}

func (s *sender) anyReady() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return len(s.ready) > 0
}

func (s *sender) stopped() bool {
	select {
	case <-s.w.abort:
		return true
	default:
		return false
	}
}

// take moves as many ready partitions as fit into the next request.
func (s *sender) take() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.batch = s.batch[:0]
	s.bytes = 0
	total, n := 0, 0
	for _, p := range s.ready {
		p.turns++
		if p.empty() { // dropped meanwhile
			p.at = idle
			n++
			continue
		}
		if p.renew { // its batch was given up meanwhile
			s.w.wait(p, 0)
			n++
			continue
		}
		size := p.size()
		if total > 0 && total+size > maxRequestBytes {
			break
		}
		p.fill()
		p.at = sending
		total += size
		s.batch = append(s.batch, p)
		n++
	}
	rest := copy(s.ready, s.ready[n:])
	clear(s.ready[rest:])
	s.ready = s.ready[:rest]
	s.busy, s.began = len(s.batch) > 0, time.Now()
}

// exchange sends the open batches of ps and settles them by the answer. It
// returns false when the writer stops.
func (s *sender) exchange(ps []*partition) bool {
	response, err := s.produce(s.w.request(ps))
	if errors.Is(err, errStopped) {
		return false
	}
	if unencodable(err) && len(ps) > 1 {
		// One batch cannot be encoded, and nothing tells which.
		for i := range ps {
			s.begins()
			if !s.exchange(ps[i : i+1]) {
				return false
			}
		}
		return true
	}
	s.conclude(ps, response, err)
	s.tell()
	return true
}

// begins notes that another request is under way.
func (s *sender) begins() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.busy, s.began = true, time.Now()
}

// request makes the Produce request for the open batches of ps. Their holder
// calls it, without the lock.
func (w *Writer) request(ps []*partition) *sarama.ProduceRequest {
	request := &sarama.ProduceRequest{
		TransactionalID: w.txnID,
		Version:         produceVersion(w.conf.Version),
		RequiredAcks:    sarama.WaitForAll,
		Timeout:         int32(w.conf.Producer.Timeout.Milliseconds()),
	}
	for _, p := range ps {
		p.batch.build(&w.slabs, w.codec, p.ident, p.seq)
		request.AddBatch(p.topic.name, p.id, p.batch.rb)
	}
	return request
}

// produceVersion is the newest version of Produce that sarama may send under
// the configured protocol version; the connection lowers it to what the broker
// knows. Record batches need 3 (KIP-98), errors by record 8 (KIP-467).
func produceVersion(v sarama.KafkaVersion) int16 {
	switch {
	case v.IsAtLeast(sarama.V3_7_0_0):
		return 10
	case v.IsAtLeast(sarama.V2_8_0_0):
		return 9
	case v.IsAtLeast(sarama.V2_4_0_0):
		return 8
	case v.IsAtLeast(sarama.V2_1_0_0):
		return 7
	default:
		return 3
	}
}

// produce sends a request and waits for its answer. Not Broker.Produce: that
// holds the broker's lock meanwhile, on which a metadata refresh would hang.
func (s *sender) produce(request *sarama.ProduceRequest) (*sarama.ProduceResponse, error) {
	broker, err := s.w.client.Broker(s.id)
	if err != nil {
		return nil, err
	}
	err = broker.AsyncProduce(request, s.onAnswer)
	var response *sarama.ProduceResponse
	if err == nil {
		select {
		case a := <-s.answers:
			response, err = a.response, a.err
		case <-s.w.abort:
			return nil, errStopped
		}
	}
	if err != nil && !unencodable(err) {
		// Whatever is left on this connection cannot be trusted; the client
		// opens it again. An error says only that it was closed already.
		_ = broker.Close()
	}
	return response, err
}

// unencodable reports whether sarama could not make bytes of the request.
func unencodable(err error) bool {
	var encoding sarama.PacketEncodingError
	return errors.As(err, &encoding)
}

// conclude applies an answer to the partitions of its request, which then go
// where they belong.
func (s *sender) conclude(ps []*partition, response *sarama.ProduceResponse, err error) {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	s.busy = false
	s.report.receiver = w.receiver // a later one must not hear of these outcomes
	s.report.outcomes = s.report.outcomes[:0]
	s.report.failures = s.report.failures[:0]
	for _, p := range ps {
		block, failed := blockOf(p, response, err)
		if block == nil {
			s.report.fail(p, "NETWORK_EXCEPTION", failed, false)
			p.failed("NETWORK_EXCEPTION", failed)
			p.batch.uncertain = true
			w.retry(p, "")
			continue
		}
		w.settle(p, block, &s.report)
	}
	w.settled(len(s.report.outcomes))
}

// blockOf is the answer for one partition, or why there is none.
func blockOf(p *partition, response *sarama.ProduceResponse, err error) (*sarama.ProduceResponseBlock, error) {
	if unencodable(err) {
		return &sarama.ProduceResponseBlock{Err: sarama.ErrInvalidRecord}, nil
	}
	if err != nil {
		return nil, err
	}
	block := response.GetBlock(p.topic.name, p.id)
	if block == nil {
		return nil, sarama.ErrIncompleteResponse
	}
	return block, nil
}

// settle applies the broker's answer for one partition. It holds the lock.
func (w *Writer) settle(p *partition, block *sarama.ProduceResponseBlock, r *report) {
	name := errorName(block.Err)
	v := judge(block.Err)
	if v != written && !p.passing(block.Err, time.Now()) {
		r.fail(p, name, block.Err, v == restart)
		p.failed(name, nil)
	}
	if v != written && !notAppended(block.Err) {
		p.batch.uncertain = true
	}
	switch v {
	case written:
		w.succeed(p, r)
	case refused:
		w.refuse(p, block, r)
	case restart:
		if w.txnID != nil {
			w.lose(p, block.Err, r)
			return
		}
		// The broker's sequence is not ours any more (its state was lost, or
		// what it held was). Under an identity that the partition never used,
		// any bytes are safe: at worst they are there twice.
		p.renew = true
		w.retry(p, "")
	case forbidden:
		if block.Err == sarama.ErrTopicAuthorizationFailed {
			w.retry(p, missingWrite(p.topic.name))
			return
		}
		w.retry(p, "the broker does not take the outputs: "+name)
	case again:
		w.retry(p, "")
	}
}

// verification is for how long a leader may be unable to verify a transaction
// before that is a failure.
const verification = time.Second

// passing reports whether an answer says nothing against the brokers. Before a
// leader takes a transaction's first batch it asks the coordinator whether the
// partition is in it (KIP-890). Where the coordinator is still at something else
// of the transaction, or of the one before, Produce versions below 12 hear
// NOT_ENOUGH_REPLICAS, and the same bytes are taken a moment later. What lasts
// is told: then replicas are missing, or the coordinator. Its holder calls it,
// with the writer's lock.
func (p *partition) passing(code sarama.KError, now time.Time) bool {
	if code != sarama.ErrNotEnoughReplicas || !p.ident.transactional {
		p.unverified = time.Time{}
		return false
	}
	if p.unverified.IsZero() {
		p.unverified = now
	}
	return now.Sub(p.unverified) < verification
}

// succeed settles a batch that all in-sync replicas have. It holds the lock.
func (w *Writer) succeed(p *partition, r *report) {
	n := len(p.batch.entries)
	for i := range p.batch.entries {
		if o := p.batch.entries[i].out; p.batch.wanted(o) {
			r.outcomes = append(r.outcomes, outcome{out: o})
		}
	}
	p.seq = nextSequence(p.seq, n)
	p.suspects = max(0, p.suspects-n)
	p.fault, p.pauses, p.unverified, p.failing = "", 0, time.Time{}, failing{}
	p.batch.close()
	w.forward(p)
}

// refuse takes the records out of a batch that it was refused for and sends
// the others again, in order, at once: each refusal leaves fewer. A refused
// batch did not advance the broker's sequence, so theirs starts where it
// started, unless an earlier attempt may have been appended. It holds the lock.
func (w *Writer) refuse(p *partition, block *sarama.ProduceResponseBlock, r *report) {
	n := len(p.batch.entries)
	bad := badRecords(block, n)
	for i := range p.batch.entries {
		o := p.batch.entries[i].out
		if why, is := bad[i]; is && p.batch.wanted(o) {
			err := fmt.Errorf("the broker answered %s: %s", errorName(block.Err), why)
			r.outcomes = append(r.outcomes, outcome{o, refusal(kindOf(block.Err), o, err)})
		}
	}
	if p.batch.uncertain {
		p.renew = true
	}
	if len(bad) == 0 {
		p.suspects = max(p.suspects, n)
		p.split = n / 2
	} else {
		p.suspects = max(0, p.suspects-len(bad))
		p.split = max(1, p.suspects)
	}
	p.fault, p.pauses, p.failing = "", 0, failing{}
	p.unfill(func(i int) bool { _, is := bad[i]; return is })
	w.forward(p)
}

// badRecords are the indices of the records that a batch of n was refused for,
// with what the broker says of each (KIP-467); empty where it does not tell.
func badRecords(block *sarama.ProduceResponseBlock, n int) map[int]string {
	bad := make(map[int]string, len(block.RecordErrors))
	for _, e := range block.RecordErrors {
		if i := int(e.BatchIndex); i >= 0 && i < n {
			bad[i] = value(e.BatchIndexErrorMessage, block.ErrorMessage)
		}
	}
	if len(bad) == 0 && n == 1 {
		bad[0] = value(block.ErrorMessage)
	}
	return bad
}

func value(texts ...*string) string {
	for _, t := range texts {
		if t != nil {
			return *t
		}
	}
	return "no reason given"
}

// retry hands a partition whose batch must go out again to the router. It
// holds the lock.
func (w *Writer) retry(p *partition, fault string) {
	p.fault, p.fromBroker = fault, fault != ""
	if len(p.batch.dropped) > 0 {
		p.reduce()
	}
	if !p.batch.open() { // what is left of it, or behind it, was not tried yet
		w.forward(p)
		return
	}
	w.wait(p, p.pause())
}

// pause is how long a partition waits before the next attempt: longer and
// longer only where a person has to act.
func (p *partition) pause() time.Duration {
	if p.fault == "" {
		p.pauses = 0
		return backoff
	}
	d := min(backoff<<p.pauses, longestBackoff)
	p.pauses = min(p.pauses+1, 4)
	return d
}

func (r *report) fail(p *partition, name string, err error, restart bool) {
	r.failures = append(r.failures, failure{
		p.topic.name, p.id, name, err, restart, len(p.batch.entries), p.ident.transactional,
	})
}

// tell passes a report on: owners, metrics, the log. No lock is held.
func (s *sender) tell() {
	for _, o := range s.report.outcomes {
		o.tell(s.report.receiver)
	}
	clear(s.report.outcomes)
	for i := range s.report.failures {
		f := &s.report.failures[i]
		s.w.metrics.ProduceError(f.topic, f.name)
		s.w.faults.Warn(f.name+" "+f.topic, messageOf(f),
			zap.String("topic", f.topic), zap.Int32("partition", f.partition), zap.Int32("broker", s.id),
			zap.String("error_name", f.name), zap.Error(f.err), zap.Int("outputs", f.outputs))
	}
	clear(s.report.failures)
}

func messageOf(f *failure) string {
	if f.restart && !f.transactional {
		return "the broker lost a producer's sequence, outputs are sent again under a new producer id"
	}
	return "outputs were not taken"
}
