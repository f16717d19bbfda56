package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Clients are the connections of one process to one cluster; the package
// comment says why there are so many. Use them, but do not close them one by one.
type Clients struct {
	Fetch       sarama.Client
	Coordinator sarama.Client
	Producer    sarama.Client
	Admin       sarama.Client
	Log         sarama.Client
	Transaction sarama.Client // nil unless Options.Transactional

	Ends   *Ends   // where partitions end
	Reader *Reader // reads partitions without a claim
	Facts  *Facts  // what topics are like

	opts   Options
	group  *groupClient
	faults *sampler
	rights *rights
	conns  []*conns // of all clients
	joins  *conns   // the coordinator client's, among them

	sessions sessions
	lease    *lease
	beat     *beat

	mu       sync.Mutex
	fetchers []*Fetcher
	closed   bool

	closing sync.Once
	err     error
}

// Connect makes the clients and returns once a broker has answered. Until then
// it tries again, at first every 100ms and at last every 5s: the first failure
// is logged at once, later ones are sampled. It fails only where ctx ends or
// the options make no sense.
func Connect(ctx context.Context, o Options) (*Clients, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	c := &Clients{opts: o, faults: newSampler(o.Log), lease: newLease(), beat: newBeat()}
	c.rights = newRights(o, c.faults)
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.await(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// open makes the clients; none of them dials yet, since Metadata.Full is off.
func (c *Clients) open() error {
	var group *sarama.Config
	renewing, cancel := context.WithCancel(context.Background())
	c.sessions.cancel = cancel
	for _, one := range []struct {
		name   string
		client *sarama.Client
		config func(Options, *conns) *sarama.Config
	}{
		{"admin", &c.Admin, adminConfig},
		{"fetch", &c.Fetch, fetchConfig},
		{"coordinator", &c.Coordinator, coordinatorConfig},
		{"producer", &c.Producer, producerConfig},
		{"log", &c.Log, logConfig},
		{"transaction", &c.Transaction, transactionConfig},
	} {
		if one.client == &c.Transaction && !c.opts.Transactional {
			continue
		}
		dialer := newConns(c.opts)
		if one.name == "coordinator" {
			dialer.watch = c.lease.watch
		}
		c.conns = append(c.conns, dialer)
		client, err := sarama.NewClient(c.opts.Brokers, one.config(c.opts, dialer))
		if err != nil {
			return fmt.Errorf("%s client: %w", one.name, err)
		}
		*one.client = client
		c.sessions.renew(renewing, client, dialer)
		switch one.name {
		case "fetch":
			group = groupConfig(c.opts, dialer)
		case "coordinator":
			c.joins = dialer
		}
	}
	c.group = newGroupClient(c.Fetch, c.Coordinator, group, c.faults, c.rights, c.beat)
	c.Ends = newEnds(c.Admin, isolation(c.opts.ReadCommitted), c.faults, c.rights)
	c.Reader = &Reader{
		client: c.Log, links: newLinks(c.opts, c.Log.Config().Net.ReadTimeout), codec: newDecompressor(maxBatchBytes),
		committed: c.opts.ReadCommitted, faults: c.faults, rights: c.rights,
	}
	c.Facts = &Facts{client: c.Admin, faults: c.faults, rights: c.rights, log: c.opts.Log}
	return nil
}

const (
	connectBackoff    = 100 * time.Millisecond
	connectBackoffMax = 5 * time.Second
)

// await returns when a broker has told which brokers there are.
func (c *Clients) await(ctx context.Context) error {
	wait := connectBackoff
	for {
		err := c.prime(ctx, c.Admin)
		if err == nil {
			break
		}
		if ctx.Err() != nil || lasting(err) {
			return fmt.Errorf("connecting to %v: %w", c.opts.Brokers, err)
		}
		c.faults.Warn("connect", "no broker answers, trying again",
			zap.Strings("brokers", c.opts.Brokers), zap.Error(err), zap.Duration("next_try_in", wait))
		if !pause(ctx, wait) {
			return fmt.Errorf("connecting to %v: %w (last fault: %w)", c.opts.Brokers, ctx.Err(), err)
		}
		wait = min(2*wait, connectBackoffMax)
	}
	// The others learn now which brokers there are, or later by themselves.
	for _, client := range []sarama.Client{c.Fetch, c.Coordinator, c.Producer, c.Log, c.Transaction} {
		if client == nil {
			continue
		}
		if err := c.prime(ctx, client); err != nil {
			c.faults.Warn("prime", "metadata is not complete yet", zap.Error(err))
		}
	}
	return ctx.Err()
}

// prime fetches client's metadata. A topic that is missing or has no leader is
// no error: a broker has answered.
func (c *Clients) prime(ctx context.Context, client sarama.Client) error {
	_, err := within(ctx, func() (struct{}, error) {
		return struct{}{}, client.RefreshMetadata(c.opts.Topics...)
	})
	if err != nil && ctx.Err() == nil && len(client.Brokers()) > 0 {
		return nil
	}
	return err
}

// Group joins nothing yet: it makes the consumer group whose Consume does. Its
// Errors are read here and logged (sampled), so nobody else should. Close the
// group before the clients.
func (c *Clients) Group() (sarama.ConsumerGroup, error) {
	if c.opts.GroupID == "" || len(c.opts.Strategies) == 0 {
		return nil, errors.New("consumer group: a group id and a strategy are needed")
	}
	if err := c.group.conf.Validate(); err != nil {
		return nil, fmt.Errorf("consumer group %s: %w", c.opts.GroupID, err)
	}
	group, err := sarama.NewConsumerGroupFromClient(c.opts.GroupID, c.group)
	if err != nil {
		return nil, fmt.Errorf("consumer group %s: %w", c.opts.GroupID, err)
	}
	go func() {
		for err := range group.Errors() {
			c.reportGroupError(err)
		}
	}()
	return group, nil
}

func (c *Clients) reportGroupError(err error) {
	fields := []zap.Field{zap.String("group", c.opts.GroupID)}
	var at *sarama.ConsumerError
	if errors.As(err, &at) {
		fields = append(fields, zap.String("topic", at.Topic), zap.Int32("partition", at.Partition))
		err = c.rights.missed(readTopic(at.Topic), at.Err)
	}
	if errors.Is(err, sarama.ErrGroupAuthorizationFailed) {
		err = c.rights.missed(readGroup(c.opts.GroupID), err)
	}
	c.faults.Warn("group", "the group reports a fault", append(fields, zap.Error(err))...)
}

// InterruptJoin ends a JoinGroup that is under way, and every wait for the
// coordinator, for a shutdown: JoinGroup lasts up to the rebalance timeout, and
// nothing in sarama interrupts it. End the context given to Consume before. The
// group can still leave afterwards, through a new connection, but waits for an
// absent coordinator only for a second.
func (c *Clients) InterruptJoin() {
	c.group.interrupt()
	c.joins.interrupt()
}

// Close ends every request under way and all connections. Pending questions
// about ends are answered with ErrClosed. It may be called more than once.
func (c *Clients) Close() error {
	c.closing.Do(func() {
		// First the connections: sarama's Close would wait for responses.
		for _, d := range c.conns {
			d.shut()
		}
		if c.Reader != nil {
			c.Reader.links.close()
		}
		c.sessions.close()
		for _, f := range c.release() {
			f.Close()
		}
		if c.Ends != nil {
			c.Ends.close()
		}
		var errs []error
		for _, client := range []sarama.Client{c.Fetch, c.Coordinator, c.Producer, c.Admin, c.Log, c.Transaction} {
			if client != nil {
				errs = append(errs, client.Close())
			}
		}
		c.err = errors.Join(errs...)
	})
	return c.err
}

// keep sees to it that Close closes f, and tells whether it still will.
func (c *Clients) keep(f *Fetcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetchers = append(c.fetchers, f)
	return !c.closed
}

// release returns what keep has been given.
func (c *Clients) release() []*Fetcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.fetchers
}
