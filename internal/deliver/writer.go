package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/sampled"
)

// backoff is the pause between two attempts to send the same bytes; where a
// person has to act it grows up to longestBackoff.
const (
	backoff        = 100 * time.Millisecond
	longestBackoff = time.Second
)

// Limits are what a topic takes. The zero value is "not known": then nothing
// is refused here and the broker decides.
type Limits struct {
	MaxMessageBytes int           // max.message.bytes; 0 not known
	TimestampBefore time.Duration // message.timestamp.before.max.ms; 0 no limit (KIP-937)
	TimestampAfter  time.Duration // message.timestamp.after.max.ms; 0 no limit (KIP-937)
	LogAppendTime   bool          // message.timestamp.type: the broker replaces timestamps, so their limits do not count
}

// Metrics are the writer's hooks. They are called from its senders, must not
// block, and may be nil.
type Metrics struct {
	// ProduceError counts one failed attempt for one partition's batch by
	// Kafka's error name, NETWORK_EXCEPTION where no answer came.
	ProduceError func(topic, errName string)
}

// Options are what a Writer needs.
type Options struct {
	// Client is the producer's own: its connections carry nothing else, and
	// Net.MaxOpenRequests is 1. The writer closes a connection that fails and
	// never the client. Of its configuration these count: Version;
	// Producer.Timeout, how long a leader may wait for its replicas;
	// Net.ReadTimeout, which must be longer, and Net.DialTimeout, which bound
	// how long a silent leader keeps its partitions (a few seconds);
	// Metadata.Retry.Max small, since the writer repeats on its own;
	// Metadata.AllowAutoTopicCreation false.
	Client sarama.Client
	// Linger is how long the first output waits for company, unless there is
	// plenty; 0 not at all: what gathers while a request is under way is then
	// the next batch.
	Linger time.Duration
	// Compression is none, gzip, snappy, lz4 or zstd; "" is none.
	Compression string
	// MaxMessageBytes bounds a record with its batch, uncompressed; 0 leaves
	// it to the topic.
	MaxMessageBytes int
	// TransactionalID makes the outputs parts of transactions, which a
	// Transactor makes: then nobody else may call Send. "": none.
	TransactionalID string
	// Limits tells what a topic takes. Called for each Send, from any
	// goroutine; must not block. Nil: not known.
	Limits func(topic string) Limits
	// Now is the clock that timestamps are held against; nil is time.Now.
	Now func() time.Time

	Log     *zap.Logger // nil: nothing is logged
	Metrics Metrics
}

// Fault is a partition whose outputs wait for a person: a right is missing,
// the topic or the partition is not there, a setting does not fit.
type Fault struct {
	Topic     string
	Partition int32
	Reason    string
}

// Writer writes outputs at least once, in order within each partition, with
// acks from all in-sync replicas. Its methods may be called from any
// goroutine. It sends nothing before Run.
//
// Under a Transactor, which does so exactly once, it is the part that writes:
// see txn_writer.go.
type Writer struct {
	client  sarama.Client
	conf    *sarama.Config
	codec   sarama.CompressionCodec
	linger  time.Duration
	max     int
	limits  func(string) Limits
	now     func() time.Time
	metrics Metrics
	log     *zap.Logger
	faults  *sampled.Log
	txnID   *string // nil without transactions

	kick    chan struct{} // wakes the router
	closing chan struct{} // Close has begun: nothing lingers
	drained chan struct{} // closing and nothing left
	abort   chan struct{} // everything stops
	wg      sync.WaitGroup

	refreshing atomic.Bool // the client looks for its brokers
	routing    atomic.Bool // the router waits for a broker
	slabs      sync.Pool   // of *slab

	mu      sync.Mutex
	topics  map[string]*topic
	senders map[int32]*sender
	waiting []*partition
	asking  map[int32]bool // brokers with a metadata or identity request of ours under way
	turn    int            // of the broker to ask next
	ident   identity       // the newest
	pending int            // outputs handed over, neither settled nor dropped
	// receiver hears what becomes of outputs in their owners' stead; nil
	// without transactions.
	receiver record.Owner
	running  bool
	closed   bool
	aborted  bool
}

// topic is an output topic that was sent to.
type topic struct {
	name  string
	max   int          // bytes of a batch, as last heard from Options.Limits
	parts []*partition // by number; nil where nothing was sent
}

func (t *topic) batchBytes() int { return min(t.max, maxBatchBytes) }

// NewWriter returns a writer that does not run yet. It fails where an option
// has no meaning.
func NewWriter(o Options) (*Writer, error) {
	codec, err := codecOf(o.Compression)
	if err != nil {
		return nil, err
	}
	if o.Client == nil {
		return nil, errors.New("deliver: no client")
	}
	if o.Linger < 0 || o.MaxMessageBytes < 0 {
		return nil, fmt.Errorf("deliver: linger %s and max message bytes %d must not be negative", o.Linger, o.MaxMessageBytes)
	}
	if o.Limits == nil {
		o.Limits = func(string) Limits { return Limits{} }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Metrics.ProduceError == nil {
		o.Metrics.ProduceError = func(string, string) {}
	}
	w := &Writer{
		client:  o.Client,
		conf:    o.Client.Config(),
		codec:   codec,
		linger:  o.Linger,
		max:     o.MaxMessageBytes,
		limits:  o.Limits,
		now:     o.Now,
		metrics: o.Metrics,
		log:     o.Log,
		faults:  sampled.New(o.Log, nil),
		kick:    make(chan struct{}, 1),
		closing: make(chan struct{}),
		drained: make(chan struct{}),
		abort:   make(chan struct{}),
		topics:  make(map[string]*topic),
		senders: make(map[int32]*sender),
		asking:  make(map[int32]bool),
	}
	if o.TransactionalID != "" {
		w.txnID, w.receiver = &o.TransactionalID, nobody{}
	}
	return w, nil
}

func codecOf(name string) (sarama.CompressionCodec, error) {
	switch name {
	case "", "none":
		return sarama.CompressionNone, nil
	case "gzip":
		return sarama.CompressionGZIP, nil
	case "snappy":
		return sarama.CompressionSnappy, nil
	case "lz4":
		return sarama.CompressionLZ4, nil
	case "zstd":
		return sarama.CompressionZSTD, nil
	default:
		return 0, fmt.Errorf("deliver: compression %q is none of none, gzip, snappy, lz4, zstd", name)
	}
}

// Send hands outputs over and never blocks. Order is kept per (Topic,
// Partition). The outputs and their bytes must not change until they are
// settled. Each one's Owner.Settled is called exactly once unless it is
// dropped: with nil, or with a *record.Refused, for what can be told at once
// from inside Send. Outputs sent after Close began are never settled.
func (w *Writer) Send(outputs []*record.Output) {
	for len(outputs) > 0 {
		run := sameTopic(outputs)
		w.send(outputs[:run])
		outputs = outputs[run:]
	}
}

// sameTopic returns how many of the first outputs share their topic.
func sameTopic(outputs []*record.Output) int {
	for i, o := range outputs {
		if o.Topic != outputs[0].Topic {
			return i
		}
	}
	return len(outputs)
}

// send takes outputs of one topic.
func (w *Writer) send(outputs []*record.Output) {
	lim := w.limits(outputs[0].Topic)
	most := w.most(lim)
	bad := check(outputs, lim, most, record.MillisOf(w.now()))
	w.mu.Lock()
	w.accept(outputs, bad, most)
	receiver := w.receiver
	w.mu.Unlock()
	for _, r := range bad {
		r.tell(receiver)
	}
}

// outcome is an output's fate on its way to its owner.
type outcome struct {
	out *record.Output
	err error
}

// tell passes it on to the output's owner, or to whoever stands in for it.
func (r outcome) tell(receiver record.Owner) {
	if receiver == nil {
		receiver = r.out.Owner
	}
	receiver.Settled(r.out, r.err)
}

// check returns the outputs that no broker could take, in order.
func check(outputs []*record.Output, lim Limits, most int, now record.Millis) []outcome {
	var bad []outcome
	for _, o := range outputs {
		if err := refuse(o, lim, most, now); err != nil {
			bad = append(bad, outcome{o, err})
		}
	}
	return bad
}

// most is the smaller of our own limit and the topic's, in bytes.
func (w *Writer) most(lim Limits) int {
	// Below sarama's own limit of a request, whatever the topic takes.
	most := int(sarama.MaxRequestSize) / 10 * 9
	if w.max > 0 {
		most = min(most, w.max)
	}
	if lim.MaxMessageBytes > 0 {
		most = min(most, lim.MaxMessageBytes)
	}
	return most
}

func refuse(o *record.Output, lim Limits, most int, now record.Millis) error {
	if o.Partition < 0 {
		return refusal(record.Rejected, o, errors.New("no such partition can exist"))
	}
	if size := batchOverhead + sizeOf(o); size > most {
		return refusal(record.TooLarge, o, fmt.Errorf("%d bytes are more than the %d that fit", size, most))
	}
	ts := o.Timestamp
	if ts < 0 || ts > maxTimestamp {
		return refusal(record.InvalidTimestamp, o, fmt.Errorf("timestamp %d ms cannot be encoded", ts))
	}
	if lim.LogAppendTime {
		return nil
	}
	if after := lim.TimestampAfter; after > 0 && int64(ts-now) > after.Milliseconds() {
		return refusal(record.InvalidTimestamp, o, fmt.Errorf("timestamp %d ms is more than %s ahead", ts, after))
	}
	if before := lim.TimestampBefore; before > 0 && int64(now-ts) > before.Milliseconds() {
		return refusal(record.InvalidTimestamp, o, fmt.Errorf("timestamp %d ms is more than %s ago", ts, before))
	}
	return nil
}

func refusal(kind record.Kind, o *record.Output, err error) *record.Refused {
	return &record.Refused{Kind: kind, Err: fmt.Errorf("output to %s/%d: %w", o.Topic, o.Partition, err)}
}

// accept queues the outputs of one topic that are not in bad. It holds the
// lock.
func (w *Writer) accept(outputs []*record.Output, bad []outcome, most int) {
	if w.closed {
		return
	}
	t := w.topic(outputs[0].Topic)
	t.max = most
	for _, o := range outputs {
		if len(bad) > 0 && bad[0].out == o {
			bad = bad[1:]
			continue
		}
		w.pending++
		p := t.partition(o.Partition)
		e := entry{out: o, size: sizeOf(o)}
		p.push(e)
		w.stir(p, e.size)
	}
}

func (w *Writer) topic(name string) *topic {
	t := w.topics[name]
	if t == nil {
		t = &topic{name: name}
		w.topics[name] = t
	}
	return t
}

func (t *topic) partition(id int32) *partition {
	for int(id) >= len(t.parts) {
		t.parts = append(t.parts, nil)
	}
	p := t.parts[id]
	if p == nil {
		p = &partition{topic: t, id: id, renew: true}
		t.parts[id] = p
	}
	return p
}

// stir puts an idle partition on its way, and tells a lingering leader when
// there is enough for a batch. It holds the lock.
func (w *Writer) stir(p *partition, size int) {
	switch p.at {
	case idle:
		p.failing = failing{} // of outputs that nobody wants any more
		w.forward(p)
	case ready:
		p.leader.gather(size)
	case sending, waiting:
	}
}

// forward sends a partition that nobody holds to where it belongs now: its
// leader, the router, or rest. It holds the lock.
func (w *Writer) forward(p *partition) {
	switch {
	case p.empty():
		p.at = idle
	case p.leader == nil || p.renew:
		w.wait(p, 0)
	default:
		p.at = ready
		p.leader.ready = append(p.leader.ready, p)
		p.leader.gather(p.bytes)
		signal(p.leader.wake)
	}
}

// wait hands a partition to the router, which looks for its leader after the
// pause. It holds the lock.
func (w *Writer) wait(p *partition, pause time.Duration) {
	p.at = waiting
	p.leader = nil
	p.due = time.Now().Add(pause)
	w.waiting = append(w.waiting, p)
	signal(w.kick)
}

// signal wakes whoever listens to c, once.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Drop forgets every output of owner and returns how many that were. For
// those, Settled is not called any more; one whose result was in already may
// still be on its way when Drop returns. An output in a request under way, or
// in a batch that the broker may have, may still be written. Owners must be
// comparable.
func (w *Writer) Drop(owner record.Owner) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, t := range w.topics {
		for _, p := range t.parts {
			if p != nil {
				n += p.drop(owner)
			}
		}
	}
	w.settled(n)
	return n
}

// settled counts n outputs off. It holds the lock.
func (w *Writer) settled(n int) {
	w.pending -= n
	if w.closed && w.pending == 0 && n > 0 {
		close(w.drained)
	}
}

// Pending returns how many outputs were handed over and are neither settled
// nor dropped.
func (w *Writer) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending
}

// Faults lists the partitions whose outputs wait for a person, for readiness.
func (w *Writer) Faults() []Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Fault
	for _, t := range w.topics {
		for _, p := range t.parts {
			if p != nil && p.fault != "" && !p.empty() {
				out = append(out, Fault{Topic: t.name, Partition: p.id, Reason: p.fault})
			}
		}
	}
	return out
}

// Run does the writer's work until Close has ended or ctx is done, whichever
// comes first; then requests under way are abandoned. A sender that waits for
// a connection at that moment ends with the client. Run must be called once.
func (w *Writer) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.running {
		w.mu.Unlock()
		return errors.New("deliver: the writer runs already")
	}
	w.running = true
	w.mu.Unlock()

	done := make(chan struct{})
	go func() {
		defer close(done)
		w.route()
	}()
	select {
	case <-ctx.Done():
		w.stop()
	case <-w.abort:
	}
	<-done
	return nil
}

// stop ends everything.
func (w *Writer) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.aborted {
		w.aborted = true
		close(w.abort)
	}
}

// Close takes no more outputs, waits until those handed over are settled or
// dropped or ctx is done, then stops Run. It returns how many outputs were
// never acknowledged. It does not close the client.
func (w *Writer) Close(ctx context.Context) int {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.closing)
		if w.pending == 0 {
			close(w.drained)
		}
	}
	w.mu.Unlock()

	select {
	case <-w.drained:
	case <-w.abort:
	case <-ctx.Done():
	}
	w.stop()
	w.join(ctx)
	return w.Pending()
}

// join waits for the senders, as long as ctx allows: one that waits for a
// connection ends only with the client.
func (w *Writer) join(ctx context.Context) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		w.wg.Wait()
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
}
