package deliver

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// askPatience is how long one broker may take over a question of the router's
// before another is asked: a broker that hangs must not keep partitions from
// leaders that do not.
const askPatience = time.Second

// errNoBroker says that there is nobody to ask at the moment.
var errNoBroker = errors.New("deliver: no broker to ask")

// route looks for the leaders and the identity that waiting partitions need,
// until the writer stops. It alone takes partitions out of waiting.
//
// It asks for metadata itself instead of through the client, whose refresh
// retries on its own for as long as one topic is missing, may create topics,
// and does not tell a missing right from a missing partition.
func (w *Writer) route() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if pause, any := w.round(); any {
			timer.Reset(pause)
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-w.kick:
		case <-w.abort:
			return
		}
	}
}

// round routes what is due and returns how long the rest has to wait.
func (w *Writer) round() (pause time.Duration, any bool) {
	due, topics, renew := w.takeDue()
	if len(due) > 0 {
		w.routing.Store(true)
		unidentified := w.identify(renew)
		leaders, err := w.leaders(topics)
		w.routing.Store(false)
		if err != nil {
			w.faults.Warn("metadata", "the leaders of output partitions are not known", zap.Error(err), zap.Strings("topics", topics))
		}
		w.assign(due, leaders, unidentified)
	}
	return w.untilDue()
}

// takeDue takes the partitions whose pause is over out of waiting. They are
// the router's until it hands them on.
func (w *Writer) takeDue() (due []*partition, topics []string, renew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	rest := w.waiting[:0]
	for _, p := range w.waiting {
		p.turns++
		switch {
		case p.empty(): // dropped meanwhile
			p.at = idle
		case p.due.After(now):
			rest = append(rest, p)
		default:
			due = append(due, p)
			renew = renew || p.stale(w.ident)
			if !slices.Contains(topics, p.topic.name) {
				topics = append(topics, p.topic.name)
			}
		}
	}
	clear(w.waiting[len(rest):])
	w.waiting = rest
	return due, topics, renew
}

func (w *Writer) untilDue() (pause time.Duration, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, p := range w.waiting {
		if d := time.Until(p.due); i == 0 || d < pause {
			pause = d
		}
	}
	return max(pause, time.Millisecond), len(w.waiting) > 0
}

// stale reports whether p needs an identity newer than newest.
func (p *partition) stale(newest identity) bool {
	return p.renew && newest.generation <= p.ident.generation
}

// identify obtains a producer id (KIP-98) where needed, and returns why
// partitions that need one have to wait: "" where a pause is enough.
func (w *Writer) identify(needed bool) (fault string) {
	if !needed || w.txnID != nil { // a transaction's identity comes with it
		return ""
	}
	r, err := ask(w, func(b *sarama.Broker) (*sarama.InitProducerIDResponse, error) {
		return b.InitProducerID(&sarama.InitProducerIDRequest{
			Version:    initVersion(w.conf.Version),
			ProducerID: -1, ProducerEpoch: -1, // none yet (KIP-360)
		})
	})
	if err == nil && r.Err != sarama.ErrNoError {
		err = r.Err
	}
	if err != nil {
		w.faults.Warn("identify", "no producer id", zap.Error(err))
		var code sarama.KError
		if errors.As(err, &code) && judge(code) == forbidden {
			return "missing right: IdempotentWrite on the cluster, or Write on any topic (" + errorName(code) + " for a producer id)"
		}
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ident = identity{id: r.ProducerID, epoch: r.ProducerEpoch, generation: w.ident.generation + 1}
	w.log.Info("got a producer id", zap.Int64("producer_id", r.ProducerID), zap.Int("generation", w.ident.generation))
	return ""
}

// initVersion is the newest version of InitProducerId that sarama may send
// under the configured protocol version.
func initVersion(v sarama.KafkaVersion) int16 {
	switch {
	case v.IsAtLeast(sarama.V2_7_0_0):
		return 4
	case v.IsAtLeast(sarama.V2_5_0_0):
		return 3
	case v.IsAtLeast(sarama.V2_4_0_0):
		return 2
	case v.IsAtLeast(sarama.V2_0_0_0):
		return 1
	default:
		return 0
	}
}

// leaders asks for fresh metadata of topics and makes sure that the client
// knows the brokers that lead there. Nil, with the reason, where nobody told.
func (w *Writer) leaders(topics []string) (*leaders, error) {
	response, err := ask(w, func(b *sarama.Broker) (*sarama.MetadataResponse, error) {
		request := sarama.NewMetadataRequest(w.conf.Version, topics)
		request.AllowAutoTopicCreation = false
		return b.GetMetadata(request)
	})
	if err != nil {
		w.refreshClient(topics)
		return nil, err
	}
	return &leaders{metadata: response, known: w.known(response, topics)}, nil
}

// known returns the brokers of a response that the client can reach under the
// same address, and lets the client look for the others.
func (w *Writer) known(response *sarama.MetadataResponse, topics []string) map[int32]bool {
	known := make(map[int32]bool, len(response.Brokers))
	for _, b := range response.Brokers {
		mine, err := w.client.Broker(b.ID())
		if err != nil || mine.Addr() != b.Addr() {
			w.refreshClient(topics)
			continue
		}
		known[b.ID()] = true
	}
	return known
}

// refreshClient lets the client find its brokers anew, from the bootstrap
// servers if need be: whoever is asked about the topics tells of all brokers, and
// without a topic would tell of everybody's. It may take long, so nobody waits
// for it.
func (w *Writer) refreshClient(topics []string) {
	if !w.refreshing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.refreshing.Store(false)
		err := w.client.RefreshMetadata(topics...)
		var code sarama.KError
		if err == nil || errors.As(err, &code) || w.client.Closed() {
			return // what a broker says of a topic is the router's to tell
		}
		w.faults.Warn("refresh", "brokers cannot be found", zap.Error(err))
	}()
}

// ask puts a question to one broker, of those that answer, for at most
// askPatience. The router asks, and the transactor before a trial: where both do
// at once, neither is given a broker that is busy with the other's question.
func ask[T any](w *Writer, question func(*sarama.Broker) (T, error)) (T, error) {
	type reply struct {
		value T
		err   error
	}
	var none T
	broker := w.pick()
	if broker == nil {
		return none, errNoBroker
	}
	replies := make(chan reply, 1)
	go func() {
		value, err := question(broker)
		w.mu.Lock()
		delete(w.asking, broker.ID())
		w.mu.Unlock()
		replies <- reply{value, err}
	}()
	patience := time.NewTimer(askPatience)
	defer patience.Stop()
	select {
	case r := <-replies:
		return r.value, r.err
	case <-patience.C:
		return none, fmt.Errorf("broker %d does not answer", broker.ID())
	case <-w.abort:
		return none, errStopped
	}
}

// pick chooses the broker to ask next: in turn, one that is not busy with our
// last question, and rather one without a request of ours under way, since a
// broker answers one after the other.
func (w *Writer) pick() *sarama.Broker {
	brokers := w.client.Brokers()
	slices.SortFunc(brokers, func(a, b *sarama.Broker) int { return int(a.ID()) - int(b.ID()) })
	if broker := w.pickOf(brokers); broker != nil {
		opened, err := w.client.Broker(broker.ID())
		if err == nil {
			return opened
		}
		w.forgetAsked(broker.ID())
		return nil
	}
	if len(brokers) > 0 {
		return nil
	}
	seed := w.client.LeastLoadedBroker()
	if seed == nil || !w.markAsked(seed.ID()) {
		return nil
	}
	return seed
}

func (w *Writer) pickOf(brokers []*sarama.Broker) *sarama.Broker {
	w.mu.Lock()
	defer w.mu.Unlock()
	var choice *sarama.Broker
	w.turn++
	for i := range brokers {
		b := brokers[(w.turn+i)%len(brokers)]
		if w.asking[b.ID()] {
			continue
		}
		s := w.senders[b.ID()]
		if s == nil || !s.busy {
			choice = b
			break
		}
		if choice == nil {
			choice = b
		}
	}
	if choice != nil {
		w.asking[choice.ID()] = true
	}
	return choice
}

func (w *Writer) markAsked(id int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asking[id] {
		return false
	}
	w.asking[id] = true
	return true
}

func (w *Writer) forgetAsked(id int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.asking, id)
}

// leaders is what one metadata response says.
type leaders struct {
	metadata *sarama.MetadataResponse
	known    map[int32]bool
}

// of returns a partition's leader, or why it has none: fault where a person
// has to act, "" where a pause is enough.
func (l *leaders) of(topic string, partition int32) (leader int32, fault string, ok bool) {
	if l == nil {
		return noBroker, "", false
	}
	t := find(l.metadata.Topics, func(t *sarama.TopicMetadata) bool { return t.Name == topic })
	if t == nil {
		return noBroker, "", false
	}
	switch t.Err {
	case sarama.ErrNoError, sarama.ErrLeaderNotAvailable:
	case sarama.ErrUnknownTopicOrPartition:
		return 0, "the topic does not exist", false
	default:
		if t.Err == sarama.ErrTopicAuthorizationFailed {
			return 0, missingWrite(topic), false
		}
		if judge(t.Err) == forbidden {
			return 0, "no right to the topic: " + errorName(t.Err), false
		}
		return noBroker, "", false
	}
	p := find(t.Partitions, func(p *sarama.PartitionMetadata) bool { return p.ID == partition })
	if p == nil {
		if len(t.Partitions) == 0 {
			return noBroker, "", false
		}
		return 0, fmt.Sprintf("the topic has %d partitions only", len(t.Partitions)), false
	}
	// A leader that is on its way or unknown to the client is waited for.
	return p.Leader, "", p.Leader >= 0 && l.known[p.Leader]
}

// lacking says what keeps outputs from going to a leader.
func (l *leaders) lacking(leader int32) string {
	switch {
	case leader < 0:
		return "it has no leader"
	case !l.known[leader]:
		return fmt.Sprintf("its leader, broker %d, cannot be found", leader)
	}
	return "no broker gives a producer id"
}

// missingWrite names the right that outputs wait for.
func missingWrite(topic string) string {
	return "missing right: Write on topic " + topic + " (" + errorName(sarama.ErrTopicAuthorizationFailed) + ")"
}

func find[T any](list []*T, is func(*T) bool) *T {
	for _, e := range list {
		if is(e) {
			return e
		}
	}
	return nil
}

// assign hands due partitions to their leaders' senders, or back to wait.
func (w *Writer) assign(due []*partition, l *leaders, unidentified string) {
	for _, f := range w.assignLocked(due, l, unidentified) {
		w.faults.Warn("fault "+f.Topic+" "+f.Reason, "outputs wait",
			zap.String("topic", f.Topic), zap.Int32("partition", f.Partition), zap.String("reason", f.Reason))
	}
}

func (w *Writer) assignLocked(due []*partition, l *leaders, unidentified string) (faults []Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range due {
		if p.empty() {
			p.at = idle
			continue
		}
		leader, fault, ok := l.of(p.topic.name, p.id)
		if p.stale(w.ident) {
			ok = false
			if fault == "" {
				fault = unidentified
			}
		}
		// What the leader refused before is not mended by finding it again.
		if !p.fromBroker || fault != "" {
			p.fault, p.fromBroker = fault, false
		}
		if fault != "" {
			faults = append(faults, Fault{p.topic.name, p.id, fault})
		}
		if !ok && l != nil { // else what the last attempt failed with is told
			p.failed(l.lacking(leader), nil)
		}
		if !ok && p.failing.since.IsZero() {
			p.failed("no broker says which one leads it", nil)
		}
		if !ok || w.aborted {
			w.wait(p, p.pause())
			continue
		}
		w.start(p, leader)
	}
	return faults
}

// start gives a partition to its leader's sender, with a new identity where
// its sequence is not to be trusted. It holds the lock.
func (w *Writer) start(p *partition, leader int32) {
	if p.renew {
		p.ident, p.seq, p.renew = w.ident, 0, false
	}
	p.leader = w.sender(leader)
	w.forward(p)
	if p.batch.open() {
		signal(p.leader.full) // it has waited long enough
	}
}
