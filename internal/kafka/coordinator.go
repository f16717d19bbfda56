package kafka

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// groupClient is the sarama.Client that the consumer group sees: the fetching
// client, but for the coordinator, which has a client of its own, and for
// waiting where sarama would end the session, and with it every claim.
//
//   - sarama's heartbeat loop goes on to the next try at once after a request
//     that failed, so against a refused connection it burns all its retries in
//     milliseconds. Here a coordinator is handed out only when its connection
//     is open; until then it is looked for and dialled again every 100ms, for
//     up to 0.8 × the session timeout. Each of the loop's tries is then worth
//     a wait, and within one the session is still alive.
//   - A plan needs partition counts, not leaders: a partition without leader is
//     no reason to fail a metadata refresh, and with it the rebalance.
//   - A claim that starts while its leader is away fails, and ends the session,
//     unless the fault is one that sarama's claim retries know; a broken
//     connection is not. So those faults are shown as one of them.
//
// It keeps no word of what was answered when; the place to do so is attempt.
type groupClient struct {
	sarama.Client // fetching

	coordinator sarama.Client
	conf        *sarama.Config
	faults      *sampler
	rights      *rights
	beat        *beat

	stay     atomic.Bool   // see Clients.Stay
	stop     chan struct{} // closed by interrupt
	stopOnce sync.Once
}

func newGroupClient(fetch, coordinator sarama.Client, conf *sarama.Config, faults *sampler, rights *rights, beat *beat) *groupClient {
	return &groupClient{
		Client:      fetch,
		coordinator: coordinator,
		conf:        conf,
		faults:      faults,
		rights:      rights,
		beat:        beat,
		stop:        make(chan struct{}),
	}
}

// Config returns the group's configuration, which is more patient than the
// fetching client's own.
func (g *groupClient) Config() *sarama.Config { return g.conf }

// ErrStaying is what closing a group ends with that was told to Stay.
var ErrStaying = errors.New("the member stays in its group")

// Coordinator returns group's coordinator on an open connection. A member that
// stays has none: leaving is the only thing left that sarama asks it for, once
// the sessions are over.
func (g *groupClient) Coordinator(group string) (*sarama.Broker, error) {
	if g.stay.Load() {
		return nil, ErrStaying
	}
	return g.await(group, false)
}

// RefreshCoordinator looks group's coordinator up again and returns once its
// connection is open.
func (g *groupClient) RefreshCoordinator(group string) error {
	_, err := g.await(group, true)
	return err
}

// stoppingPatience is how long a wait lasts once a shutdown has begun.
const stoppingPatience = time.Second

func (g *groupClient) await(group string, refresh bool) (*sarama.Broker, error) {
	patience, stop := g.conf.Consumer.Group.Session.Timeout*8/10, g.stop
	if g.stopping() {
		patience, stop = min(patience, stoppingPatience), nil
	}
	deadline := time.Now().Add(patience)
	for {
		end := g.beat.call()
		broker, err := g.attempt(group, refresh)
		end()
		if err == nil {
			g.beat.away.Store(nil)
			return broker, nil
		}
		if errors.Is(err, sarama.ErrClosedClient) {
			return nil, err
		}
		g.beat.away.Store(g.beat.away.Load().Again(time.Now(), err))
		_ = g.rights.missed(readGroup(group), err)
		g.faults.Warn("coordinator", "the group's coordinator is away, trying again",
			zap.String("group", group), zap.Error(err))
		refresh = true
		if time.Until(deadline) <= 0 || !wait(stop, backoff) {
			return nil, fmt.Errorf("coordinator of group %s: %w", group, err)
		}
	}
}

// attempt returns the coordinator if its connection is open, or can be opened.
func (g *groupClient) attempt(group string, refresh bool) (*sarama.Broker, error) {
	if refresh {
		if err := g.coordinator.RefreshCoordinator(group); err != nil {
			return nil, err
		}
	}
	broker, err := g.coordinator.Coordinator(group) // dials where it must
	if err != nil {
		return nil, err
	}
	open, err := broker.Connected() // waits for the dialling
	if open {
		return broker, nil
	}
	if err == nil {
		err = sarama.ErrNotConnected
	}
	return nil, fmt.Errorf("broker %d at %s: %w", broker.ID(), broker.Addr(), err)
}

// RefreshMetadata is the fetching client's, but is content with partitions that
// have no leader.
func (g *groupClient) RefreshMetadata(topics ...string) error {
	defer g.beat.call()()
	err := g.Client.RefreshMetadata(topics...)
	if onlyLeaderless(err) {
		return nil
	}
	return err
}

func onlyLeaderless(err error) bool {
	if !errors.Is(err, sarama.ErrLeaderNotAvailable) {
		return false
	}
	for _, other := range []error{
		sarama.ErrUnknownTopicOrPartition, sarama.ErrTopicAuthorizationFailed, sarama.ErrInvalidTopic,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// GetOffset is asked for by a claim that starts.
func (g *groupClient) GetOffset(topic string, partition int32, at int64) (int64, error) {
	defer g.beat.wait()()
	offset, err := g.Client.GetOffset(topic, partition, at)
	return offset, claimFault(err)
}

// LeaderAndEpoch is asked for by a claim that starts.
func (g *groupClient) LeaderAndEpoch(topic string, partition int32) (*sarama.Broker, int32, error) {
	defer g.beat.wait()() // claims ask before each fetch
	broker, epoch, err := g.Client.LeaderAndEpoch(topic, partition)
	return broker, epoch, claimFault(err)
}

// claimFault shows a fault that time heals as one that sarama's claim tries
// again after.
func claimFault(err error) error {
	if err == nil || lasting(err) || errors.Is(err, sarama.ErrOffsetOutOfRange) {
		return err
	}
	return fmt.Errorf("%w: %w", sarama.ErrLeaderNotAvailable, err)
}

// readableTries × 100ms is how long PartitionNotReadable looks itself.
const readableTries = 20

// PartitionNotReadable waits a little for a leader: sarama asks before a claim
// starts, and then not again for five seconds, while an election takes less
// than one.
func (g *groupClient) PartitionNotReadable(topic string, partition int32) bool {
	defer g.beat.wait()()
	for range readableTries {
		if !g.Client.PartitionNotReadable(topic, partition) {
			return false
		}
		if g.stopping() || !wait(g.stop, backoff) {
			return true
		}
		if errors.Is(g.Client.RefreshMetadata(topic), sarama.ErrClosedClient) {
			return true
		}
	}
	return g.Client.PartitionNotReadable(topic, partition)
}

func (g *groupClient) interrupt() { g.stopOnce.Do(func() { close(g.stop) }) }

func (g *groupClient) stopping() bool {
	select {
	case <-g.stop:
		return true
	default:
		return false
	}
}

// wait pauses for d and tells whether stop is still open. A nil stop never
// closes.
func wait(stop <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}
