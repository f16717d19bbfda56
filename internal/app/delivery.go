package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"joiner/internal/config"
	"joiner/internal/deliver"
	"joiner/internal/kafka"
	"joiner/internal/metrics"
	"joiner/internal/task"
)

// delivery brings the tasks' outputs out and commits their progress, under one
// of the guarantees of delivery.guarantee.
type delivery interface {
	task.Sink
	// Faults lists the output partitions that wait for a person.
	Faults() []deliver.Fault
	// Waits says what everything waits for; "" nothing.
	Waits() string
	// Notes says what stands still for want of brokers, and since when.
	Notes() []string
	// Pulses shows what is still to be written and committed.
	Pulses() []deliver.Pulse

	register(*task.Task)
	unregister(*task.Task)
	// commit commits all that the task may commit.
	commit(context.Context, *task.Task) error
	// settle is task.Options.Settle.
	settle() func(context.Context, *task.Task) error
}

// startDelivery makes what delivery.guarantee asks for.
func (a *App) startDelivery(ctx context.Context, s *stack) error {
	if err := a.startWriter(s); err != nil {
		return err
	}
	if a.o.Config.Delivery.Guarantee == config.ExactlyOnce {
		return a.startTransactor(ctx, s)
	}
	return a.startCommitter(s)
}

func (a *App) startWriter(s *stack) (err error) {
	c := a.o.Config
	o := deliver.Options{
		Client: a.clients.Producer, Linger: c.Delivery.Linger, Compression: c.Delivery.Compression,
		MaxMessageBytes: c.Delivery.MaxMessageBytes, Limits: a.outputs.limits,
		TransactionalID: a.transactionalID(),
		Log:             a.log, Metrics: deliver.Metrics{ProduceError: a.metrics.Delivery.ProduceError},
	}
	if o.TransactionalID != "" {
		o.Linger = 0 // a transaction hands its outputs over all at once
	}
	if a.writer, err = deliver.NewWriter(o); err != nil {
		return err
	}
	s.goRun("writer", a.writer.Run)
	s.push("writer", func(ctx context.Context) error {
		if left := a.writer.Close(ctx); left > 0 {
			return fmt.Errorf("%d outputs were never acknowledged", left)
		}
		return nil
	})
	return nil
}

// committing is the member in whose name offsets are committed.
func (a *App) committing() (deliver.Generation, bool) {
	session, ok := a.member.Session()
	return deliver.Generation{
		Group: a.o.Config.Group.ID, MemberID: session.MemberID, InstanceID: a.o.Config.Group.InstanceID,
		Generation: session.Generation,
	}, ok
}

func generation(g deliver.Generation) kafka.Generation {
	return kafka.Generation{Group: g.Group, MemberID: g.MemberID, InstanceID: g.InstanceID, Generation: g.Generation}
}

// countCommit counts a commit, within a transaction or not.
func (a *App) countCommit(ok bool) {
	if ok {
		a.metrics.Delivery.CommitsOK.Inc()
		return
	}
	a.metrics.Delivery.CommitsFailed.Inc()
}

func (a *App) startCommitter(s *stack) error {
	committer, err := deliver.NewCommitter(deliver.CommitterOptions{
		Interval: a.o.Config.Delivery.CommitInterval,
		Topics:   a.topics,
		Member:   a.committing,
		Commit: func(ctx context.Context, g deliver.Generation, offsets map[string]map[int32]int64) (map[string]map[int32]error, error) {
			return a.clients.CommitOffsets(ctx, generation(g), offsets, a.resumer.labels(offsets))
		},
		OnResult: a.countCommit,
		Log:      a.o.Logger, // it names the group itself
	})
	if err != nil {
		return err
	}
	a.delivery = atLeastOnce{a.writer, committer}
	s.goRun("committer", committer.Run)
	return nil
}

// atLeastOnce writes outputs as they come and commits what is acknowledged.
type atLeastOnce struct {
	*deliver.Writer
	committer *deliver.Committer
}

// Waits implements delivery: the writer's partitions wait each for itself.
func (d atLeastOnce) Waits() string { return "" }

// Pulses implements delivery.
func (d atLeastOnce) Pulses() []deliver.Pulse {
	return append(d.Writer.Pulses(), d.committer.Pulses()...)
}

// Notes implements delivery.
func (d atLeastOnce) Notes() []string {
	return append(d.Writer.Notes(), d.committer.Notes()...)
}

func (d atLeastOnce) register(t *task.Task)   { d.committer.Register(t) }
func (d atLeastOnce) unregister(t *task.Task) { d.committer.Unregister(t) }
func (d atLeastOnce) commit(ctx context.Context, t *task.Task) error {
	return d.committer.CommitNow(ctx, t)
}
func (d atLeastOnce) settle() func(context.Context, *task.Task) error { return nil }

// transactionTimeout is how long a transaction may last. It bounds for how long
// a pod that died hides what others write behind it, where nobody fences it.
const transactionTimeout = 10 * time.Second

// transactionalID is this pod's, "" under at_least_once. A member with an
// instance id has the same one again when it restarts, and so ends what it left
// open; others are fenced by whoever takes their partitions over.
func (a *App) transactionalID() string {
	c := a.o.Config
	if c.Delivery.Guarantee != config.ExactlyOnce {
		return ""
	}
	if c.Group.InstanceID != "" {
		return c.TransactionalIDPrefix() + c.Group.InstanceID
	}
	return c.TransactionalIDPrefix() + a.o.Identity
}

// startTransactor makes the transactional producer, before the group is joined,
// so that nothing of an earlier one under the same id is pending by then. It
// fails where the brokers cannot do it, or not for us.
func (a *App) startTransactor(ctx context.Context, s *stack) error {
	requests := a.clients.Transactions(a.transactionalID(), transactionTimeout)
	if err := requests.Check(ctx); err != nil {
		return fmt.Errorf("delivery.guarantee: exactly_once: %w", err)
	}
	transactor, err := deliver.NewTransactor(deliver.TransactorOptions{
		Interval: a.o.Config.Delivery.CommitInterval, Timeout: transactionTimeout,
		Writer: a.writer, Coordinator: txnRequests{requests, a.clients, a.resumer},
		Member: a.committing,
		May: func(p deliver.Participant, g deliver.Generation) bool {
			t, ok := p.(*task.Task)
			return ok && a.member.MayCommit(t, g.Generation)
		},
		Topics:   a.topics,
		OnFenced: a.member.Rejoin,
		OnOutcome: func(o deliver.Outcome) {
			a.countCommit(o == deliver.Committed)
			a.metrics.Delivery.Transactions[transactionOutcome(o)].Inc()
		},
		Log: a.o.Logger, // it names the group itself
	})
	if err != nil {
		return err
	}
	if err := transactor.Init(ctx); err != nil {
		return fmt.Errorf("delivery.guarantee: exactly_once: %w", err)
	}
	a.delivery = exactlyOnce{transactor}
	s.goRun("transactor", transactor.Run)
	a.fencer.fence = requests.Fence
	s.push("fencing", a.fencer.stop)
	a.log.Info("writing in transactions", zap.String("transactional_id", a.transactionalID()))
	return nil
}

func transactionOutcome(o deliver.Outcome) metrics.TransactionOutcome {
	switch o {
	case deliver.Committed:
		return metrics.TransactionCommitted
	case deliver.Aborted:
		return metrics.TransactionAborted
	case deliver.Fenced:
		return metrics.TransactionFenced
	default:
		return metrics.TransactionUnknown
	}
}

// exactlyOnce writes outputs and commits progress in transactions.
type exactlyOnce struct{ *deliver.Transactor }

func (d exactlyOnce) register(t *task.Task)   { d.Register(t) }
func (d exactlyOnce) unregister(t *task.Task) { d.Unregister(t) }
func (d exactlyOnce) commit(ctx context.Context, t *task.Task) error {
	return d.CommitNow(ctx, t)
}
func (d exactlyOnce) settle() func(context.Context, *task.Task) error { return d.commit }

// txnRequests are kafka's requests in deliver's words.
type txnRequests struct {
	requests *kafka.Transactions
	clients  *kafka.Clients
	resumer  *resumer
}

// Init implements deliver.Coordinator.
func (r txnRequests) Init(ctx context.Context) (deliver.Producer, error) {
	p, err := r.requests.Init(ctx)
	return deliver.Producer(p), err
}

// AddPartitions implements deliver.Coordinator.
func (r txnRequests) AddPartitions(ctx context.Context, p deliver.Producer, partitions map[string][]int32) error {
	return partitionFaults(r.requests.AddPartitions(ctx, kafka.Producer(p), partitions))
}

// partitionFaults puts an error of partitions into deliver's words.
func partitionFaults(err error) error {
	var failed kafka.PartitionErrors
	if !errors.As(err, &failed) {
		return err
	}
	faults := &deliver.PartitionFaults{Err: err}
	for topic, byID := range failed {
		for id, why := range byID {
			faults.Faults = append(faults.Faults, deliver.Fault{Topic: topic, Partition: id, Reason: deliver.ErrorName(why)})
		}
	}
	return faults
}

// AddOffsets implements deliver.Coordinator.
func (r txnRequests) AddOffsets(ctx context.Context, p deliver.Producer, group string) error {
	return r.requests.AddOffsets(ctx, kafka.Producer(p), group)
}

// CommitOffsets implements deliver.Coordinator.
func (r txnRequests) CommitOffsets(ctx context.Context, p deliver.Producer, g deliver.Generation, offsets map[string]map[int32]int64) error {
	return partitionFaults(r.requests.CommitOffsets(ctx, kafka.Producer(p), generation(g), offsets, r.resumer.labels(offsets)))
}

// End implements deliver.Coordinator.
func (r txnRequests) End(ctx context.Context, p deliver.Producer, commit bool) (lost bool, err error) {
	return r.requests.End(ctx, kafka.Producer(p), commit)
}

// Committed implements deliver.Coordinator.
func (r txnRequests) Committed(ctx context.Context, partitions map[string][]int32) (map[string]map[int32]int64, error) {
	return r.clients.CommittedOffsets(ctx, partitions)
}
