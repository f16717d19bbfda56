package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Producer is what the transaction coordinator knows a transactional producer
// by. Each Init raises the epoch, which fences whoever holds an older one.
type Producer struct {
	ID    int64
	Epoch int16
}

// Transactions are the requests that a transaction is made of (KIP-98,
// KIP-447), all but Produce, for one transactional id. They go over a client of
// their own, so that they wait neither for a JoinGroup nor for replicas.
//
// A coordinator that is away, loading, another one by now or still busy with
// the transaction before is asked again until the context ends: all of these
// requests may be repeated. The methods may be called from any goroutine, but
// those of one transaction one after the other.
type Transactions struct {
	c       *Clients
	id      string
	timeout time.Duration
}

// Transactions returns the requests for a transactional id. A transaction that
// lasts longer than timeout is aborted by the coordinator. Options.Transactional
// must be set.
func (c *Clients) Transactions(id string, timeout time.Duration) *Transactions {
	return &Transactions{c: c, id: id, timeout: timeout}
}

// PartitionErrors says which partitions a request failed for, and why.
type PartitionErrors map[string]map[int32]error

func (e PartitionErrors) Error() string {
	for topic, partitions := range e {
		for id, err := range partitions {
			return fmt.Sprintf("%s/%d: %v", topic, id, err)
		}
	}
	return "no partition failed"
}

// Unwrap returns the errors of the partitions.
func (e PartitionErrors) Unwrap() []error {
	var errs []error
	for _, partitions := range e {
		for _, err := range partitions {
			errs = append(errs, err)
		}
	}
	return errs
}

// Init makes this process the id's producer. Whoever was before is fenced, its
// open transaction is aborted, and one that was being committed is: when Init
// returns, no offset of the id is pending any more.
func (x *Transactions) Init(ctx context.Context) (Producer, error) {
	p, err := x.init(ctx, x.id, func() bool { return true })
	return p, x.missed(err)
}

// missed notes the right that err shows to be missing, for readiness: without it
// nothing goes out any more. It returns err.
func (x *Transactions) missed(err error) error {
	switch {
	case err == nil:
		x.c.rights.seen(writeTxn(x.id)) // each of these requests needs it
	case errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed):
		return x.c.rights.missed(writeTxn(x.id), err)
	case errors.Is(err, sarama.ErrGroupAuthorizationFailed):
		return x.c.rights.missed(readGroup(x.c.opts.GroupID), err)
	}
	return err
}

// Fence ends the transaction of a producer that is gone. still is asked before
// each attempt whether it still is; where not, nothing is done.
func (x *Transactions) Fence(ctx context.Context, id string, still func() bool) error {
	_, err := x.init(ctx, id, still)
	if errors.Is(err, errAlive) {
		return nil
	}
	return err
}

// errAlive ends the fencing of a producer that has come back.
var errAlive = errors.New("the producer has come back")

func (x *Transactions) init(ctx context.Context, id string, wanted func() bool) (Producer, error) {
	version := x.c.Transaction.Config().Version
	resp, err := call(ctx, x, "making a transactional producer", transactionCoordinator(id),
		func(b *sarama.Broker) (*sarama.InitProducerIDResponse, error) {
			if !wanted() {
				return nil, errAlive
			}
			return b.InitProducerID(&sarama.InitProducerIDRequest{
				Version: initVersion(version), TransactionalID: &id, TransactionTimeout: x.timeout,
				ProducerID: -1, ProducerEpoch: -1,
			})
		},
		func(r *sarama.InitProducerIDResponse) error { return fault(r.Err) })
	if err != nil {
		return Producer{}, fmt.Errorf("transactional id %s: %w", id, err)
	}
	return Producer{resp.ProducerID, resp.ProducerEpoch}, nil
}

func initVersion(v sarama.KafkaVersion) int16 {
	if v.IsAtLeast(sarama.V2_7_0_0) {
		return 4
	}
	return 3
}

// txnVersion is the newest version that sarama sends of the other requests; the
// connection lowers it to what the broker knows.
const txnVersion = 3

// AddPartitions begins a transaction, or adds partitions to it. The error is
// PartitionErrors where some cannot be written to; then none was added.
func (x *Transactions) AddPartitions(ctx context.Context, p Producer, partitions map[string][]int32) error {
	_, err := call(ctx, x, "adding partitions to a transaction", transactionCoordinator(x.id),
		func(b *sarama.Broker) (*sarama.AddPartitionsToTxnResponse, error) {
			return b.AddPartitionsToTxn(&sarama.AddPartitionsToTxnRequest{
				Version: txnVersion, TransactionalID: x.id, ProducerID: p.ID, ProducerEpoch: p.Epoch,
				TopicPartitions: partitions,
			})
		},
		func(r *sarama.AddPartitionsToTxnResponse) error { return partitionFault(r.Errors, partitions) })
	return x.missed(err)
}

// AddOffsets adds the group's offsets to the transaction, which it begins where
// there is none.
func (x *Transactions) AddOffsets(ctx context.Context, p Producer, group string) error {
	_, err := call(ctx, x, "adding offsets to a transaction", transactionCoordinator(x.id),
		func(b *sarama.Broker) (*sarama.AddOffsetsToTxnResponse, error) {
			return b.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
				Version: txnVersion, TransactionalID: x.id, ProducerID: p.ID, ProducerEpoch: p.Epoch, GroupID: group,
			})
		},
		func(r *sarama.AddOffsetsToTxnResponse) error { return fault(r.Err) })
	return x.missed(err)
}

// CommitOffsets puts offsets into the transaction, in the name of a member and
// a generation: the group's coordinator refuses those of a generation that is
// over (KIP-447).
func (x *Transactions) CommitOffsets(ctx context.Context, p Producer, gen Generation, offsets map[string]map[int32]int64, labels Labels) error {
	topics := make(map[string][]*sarama.PartitionOffsetMetadata, len(offsets))
	asked := make(map[string][]int32, len(offsets))
	for topic, partitions := range offsets {
		for id, offset := range partitions {
			label := labels[topic][id]
			topics[topic] = append(topics[topic], &sarama.PartitionOffsetMetadata{Partition: id, Offset: offset, LeaderEpoch: -1, Metadata: &label})
			asked[topic] = append(asked[topic], id)
		}
	}
	var instance *string
	if gen.InstanceID != "" {
		instance = &gen.InstanceID
	}
	_, err := call(ctx, x, "committing offsets in a transaction", groupCoordinator(gen.Group),
		func(b *sarama.Broker) (*sarama.TxnOffsetCommitResponse, error) {
			return b.TxnOffsetCommit(&sarama.TxnOffsetCommitRequest{
				Version: txnVersion, TransactionalID: x.id, ProducerID: p.ID, ProducerEpoch: p.Epoch,
				GroupID: gen.Group, GenerationID: gen.Generation, MemberID: gen.MemberID, GroupInstanceID: instance,
				Topics: topics,
			})
		},
		func(r *sarama.TxnOffsetCommitResponse) error { return partitionFault(r.Topics, asked) })
	return x.missed(err)
}

// End commits or aborts the transaction. lost tells that no answer came to an
// earlier attempt, so that with an error the transaction may have been ended
// either way.
func (x *Transactions) End(ctx context.Context, p Producer, commit bool) (lost bool, err error) {
	_, err = call(ctx, x, "ending a transaction", transactionCoordinator(x.id),
		func(b *sarama.Broker) (*sarama.EndTxnResponse, error) {
			resp, err := b.EndTxn(&sarama.EndTxnRequest{
				Version: txnVersion, TransactionalID: x.id, ProducerID: p.ID, ProducerEpoch: p.Epoch,
				TransactionResult: commit,
			})
			return resp, err
		},
		func(r *sarama.EndTxnResponse) error { return fault(r.Err) })
	var unanswered *lostAnswer
	lost = errors.As(err, &unanswered)
	return lost, x.missed(err)
}

// lostAnswer marks the error of a request that was repeated because no answer
// came, or none that says whether it was carried out.
type lostAnswer struct{ error }

func (l *lostAnswer) Unwrap() error { return l.error }

// fault turns a code into an error.
func fault(code sarama.KError) error {
	if code == sarama.ErrNoError {
		return nil
	}
	return code
}

// partitionFault is the error of an answer by partition: PartitionErrors where
// it is about partitions, one of the codes where it is about the producer, the
// member or the coordinator, who are the same for all of them.
func partitionFault(answers map[string][]*sarama.PartitionError, asked map[string][]int32) error {
	byTopic := make(map[string]map[int32]sarama.KError, len(answers))
	for topic, list := range answers {
		byTopic[topic] = make(map[int32]sarama.KError, len(list))
		for _, a := range list {
			byTopic[topic][a.Partition] = a.Err
		}
	}
	var failed, skipped PartitionErrors
	for topic, ids := range asked {
		for _, id := range ids {
			code, told := byTopic[topic][id]
			switch {
			case !told:
				return sarama.ErrIncompleteResponse
			case code == sarama.ErrNoError:
			case code == sarama.ErrOperationNotAttempted:
				put((*map[string]map[int32]error)(&skipped), topic, id, error(code))
			case ofPartition(code):
				put((*map[string]map[int32]error)(&failed), topic, id, error(code))
			default:
				return code
			}
		}
	}
	switch {
	case failed != nil:
		return failed
	case skipped != nil:
		return skipped
	}
	return nil
}

// ofPartition tells whether a code is about the partition that it comes with.
func ofPartition(code sarama.KError) bool {
	switch code {
	case sarama.ErrUnknownTopicOrPartition, sarama.ErrTopicAuthorizationFailed, sarama.ErrInvalidTopic:
		return true
	}
	return false
}

// passes tells whether the same request may succeed a little later.
func passes(code sarama.KError) bool {
	switch code {
	case sarama.ErrConcurrentTransactions, // the one before is still being ended
		sarama.ErrNotCoordinatorForConsumer, sarama.ErrConsumerCoordinatorNotAvailable, sarama.ErrOffsetsLoadInProgress,
		sarama.ErrRequestTimedOut, sarama.ErrNetworkException, sarama.ErrUnknown, sarama.ErrUnstableOffsetCommit,
		sarama.ErrTransactionCoordinatorFenced, sarama.ErrKafkaStorageError, sarama.ErrThrottlingQuotaExceeded:
		return true
	}
	return false
}

// undecided tells whether a request that was answered so may have been, or may
// still be, carried out.
func undecided(code sarama.KError) bool {
	switch code {
	case sarama.ErrRequestTimedOut, sarama.ErrNetworkException, sarama.ErrUnknown,
		sarama.ErrConsumerCoordinatorNotAvailable, sarama.ErrTransactionCoordinatorFenced, sarama.ErrKafkaStorageError:
		return true
	}
	return false
}

// coordinator is how a request finds the broker that it goes to.
type coordinator struct {
	name    string
	find    func(sarama.Client) (*sarama.Broker, error)
	refresh func(sarama.Client) error
}

func transactionCoordinator(id string) coordinator {
	return coordinator{
		name:    "transactional id " + id,
		find:    func(c sarama.Client) (*sarama.Broker, error) { return c.TransactionCoordinator(id) },
		refresh: func(c sarama.Client) error { return c.RefreshTransactionCoordinator(id) },
	}
}

func groupCoordinator(group string) coordinator {
	return coordinator{
		name:    "group " + group,
		find:    func(c sarama.Client) (*sarama.Broker, error) { return c.Coordinator(group) },
		refresh: func(c sarama.Client) error { return c.RefreshCoordinator(group) },
	}
}

// The pause before a request is repeated. The markers of the transaction before
// are written in some milliseconds, so the first pauses are short.
const (
	firstTxnPause = 5 * time.Millisecond
	lastTxnPause  = backoff
)

// call sends a request to its coordinator until it has an answer that counts.
func call[T any](ctx context.Context, x *Transactions, what string, at coordinator,
	send func(*sarama.Broker) (T, error), judge func(T) error,
) (T, error) {
	var none T
	lost := false
	for wait := firstTxnPause; ; wait = min(2*wait, lastTxnPause) {
		v, err := within(ctx, func() (T, error) { return once(x.c.Transaction, at, send) })
		answer := err == nil
		if answer {
			err = judge(v)
		}
		var code sarama.KError
		isCode := errors.As(err, &code)
		switch {
		case err == nil:
			return v, nil
		case answer && (!isCode || !passes(code)):
			return none, marked(fmt.Errorf("%s: %w", what, err), lost)
		case !answer && lasting(err) || errors.Is(err, errAlive):
			return none, marked(fmt.Errorf("%s: %w", what, err), lost)
		}
		var idle *unsent
		lost = lost || !answer && !errors.As(err, &idle) || undecided(code)
		if code != sarama.ErrConcurrentTransactions {
			x.c.faults.Warn(what+" "+at.name, "trying again",
				zap.String("request", what), zap.String("coordinator_of", at.name), zap.Error(err))
		}
		if ctx.Err() == nil && answer && coordinatorAway(code) {
			_, _ = within(ctx, func() (struct{}, error) { return struct{}{}, at.refresh(x.c.Transaction) })
		}
		if ctx.Err() != nil || !pause(ctx, wait) {
			return none, marked(expired(ctx, what, nil, err), lost)
		}
	}
}

// unsent is why a request did not leave.
type unsent struct{ error }

func (u *unsent) Unwrap() error { return u.error }

func marked(err error, lost bool) error {
	if lost {
		return &lostAnswer{err}
	}
	return err
}

// once sends a request; after a fault the next has a fresh connection to a
// coordinator that was looked up anew.
func once[T any](client sarama.Client, at coordinator, send func(*sarama.Broker) (T, error)) (T, error) {
	b, err := at.find(client)
	if err != nil {
		var none T
		return none, &unsent{err}
	}
	v, err := send(b)
	if err != nil && !errors.Is(err, errAlive) {
		_ = b.Close()
		_ = at.refresh(client)
	}
	return v, err
}

// need is a request that transactions need, by Kafka's number.
type need struct {
	key, version int16
	name, since  string
}

func needs() []need {
	return []need{
		{0, 3, "Produce", "0.11"},
		{9, 7, "OffsetFetch", "2.5"}, // RequireStable (KIP-447)
		{10, 1, "FindCoordinator", "0.11"},
		{22, 0, "InitProducerId", "0.11"},
		{24, 0, "AddPartitionsToTxn", "0.11"},
		{25, 0, "AddOffsetsToTxn", "0.11"},
		{26, 0, "EndTxn", "0.11"},
		{28, 3, "TxnOffsetCommit", "2.5"}, // fenced by the generation (KIP-447)
	}
}

// Check reports brokers that cannot do transactions that are fenced by the
// group's generation, by name, with what they lack. Brokers that do not answer
// are passed over: it asks those that do.
func (x *Transactions) Check(ctx context.Context) error {
	var errs []error
	brokers := x.c.Transaction.Brokers()
	slices.SortFunc(brokers, func(a, b *sarama.Broker) int { return int(a.ID() - b.ID()) })
	for _, known := range brokers {
		lacks, err := within(ctx, func() (error, error) { return x.lacks(known.ID()) })
		if err != nil {
			x.c.faults.Warn("apis", "a broker does not tell which requests it knows",
				zap.Int32("broker", known.ID()), zap.String("address", known.Addr()), zap.Error(err))
		}
		errs = append(errs, lacks)
	}
	return errors.Join(errs...)
}

func (x *Transactions) lacks(id int32) (lacks error, err error) {
	b, err := x.c.Transaction.Broker(id)
	if err != nil {
		return nil, err
	}
	resp, err := b.ApiVersions(&sarama.ApiVersionsRequest{Version: 3, ClientSoftwareName: "joiner", ClientSoftwareVersion: "1"})
	if err != nil {
		return nil, err
	}
	newest := make(map[int16]int16, len(resp.ApiKeys))
	for _, k := range resp.ApiKeys {
		newest[k.ApiKey] = k.MaxVersion
	}
	for _, n := range needs() {
		if v, known := newest[n.key]; !known || v < n.version {
			return fmt.Errorf("broker %d at %s does not know %s version %d, which Kafka has from %s on: %w",
				id, b.Addr(), n.name, n.version, n.since, sarama.ErrUnsupportedVersion), nil
		}
	}
	return nil, nil
}
