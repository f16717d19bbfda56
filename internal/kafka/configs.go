package kafka

import (
	"time"

	"github.com/IBM/sarama"
)

// Retries inside sarama's metadata refresh. Few, because RefreshMetadata
// returns only when no partition of the topic lacks a leader any more: with
// many, one leaderless partition would hold up all others of its topic. Every
// caller here tries again by itself, and the group through groupConfig.
const metadataRetries = 3

// healRetries × backoff is 30s, the time that the group's session outlasts
// whatever heals by itself: a partition without leader when its claim starts, a
// coordinator that moves, offsets pending in a transaction (at most 10s for a
// producer that died; design asks for at least 25s).
const healRetries = 300

// base is what all clients have in common. Each call makes a Config of its own:
// sarama's clients must not share one.
func base(o Options, dialer *conns) *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = o.ClientID
	c.RackID = o.Rack
	c.Version, _ = parseVersion(o.Version) // validated by Connect

	c.Net.Proxy.Enable = true // the only way to bring one's own dialer
	c.Net.Proxy.Dialer = dialer
	c.Net.DialTimeout = dialTimeout
	c.Net.ReadTimeout = 10 * time.Second
	c.Net.WriteTimeout = 10 * time.Second

	// Only topics that somebody asked about: a cluster may have thousands.
	c.Metadata.Full = false
	c.Metadata.AllowAutoTopicCreation = false
	c.Metadata.RefreshFrequency = o.MetadataRefresh / 2
	c.Metadata.Retry.Max = metadataRetries
	c.Metadata.Retry.Backoff = backoff

	c.Consumer.IsolationLevel = isolation(o.ReadCommitted)
	return c
}

func isolation(readCommitted bool) sarama.IsolationLevel {
	if readCommitted {
		return sarama.ReadCommitted
	}
	return sarama.ReadUncommitted
}

// fetchConfig is for the claims.
func fetchConfig(o Options, dialer *conns) *sarama.Config {
	c := base(o, dialer)
	c.Net.ReadTimeout = fetchReadTimeout(o)

	// The claims are for ownership: a Fetcher reads the partitions, and the
	// claims are paused. What they fetch before that is dropped, so it is to be
	// as little as a broker can be asked for.
	c.ChannelBufferSize = 0
	c.Consumer.Fetch.Min = 1
	c.Consumer.Fetch.Default = 1
	c.Consumer.Fetch.MaxBytes = 1
	c.Consumer.MaxWaitTime = o.FetchMaxWait
	c.Consumer.Retry.Backoff = backoff // after a leader change; sarama's 2s is a pause
	// The claims are drained at all times, so what takes longer is a starved
	// process, and giving up its subscription would only add a pause.
	c.Consumer.MaxProcessingTime = 5 * time.Second
	c.Consumer.Return.Errors = true // Group reads them

	c.Consumer.Offsets.AutoCommit.Enable = false // see CommitOffsets
	c.Consumer.Offsets.Initial = sarama.OffsetOldest

	g := &c.Consumer.Group
	g.InstanceId = o.InstanceID
	g.Heartbeat.Interval = o.Heartbeat
	g.Session.Timeout = o.SessionTimeout
	g.Rebalance.Timeout = o.RebalanceTimeout
	g.Rebalance.Retry.Backoff = backoff // paid when several members start at once
	g.Rebalance.Retry.Max = healRetries
	g.ResetInvalidOffsets = true // else the claim, and with it the session, fails
	if len(o.Strategies) > 0 {
		g.Rebalance.GroupStrategies = o.Strategies
	}
	return c
}

// fetchReadTimeout bounds a fetch that hangs: it must not eat the rebalance that
// its claim is part of.
func fetchReadTimeout(o Options) time.Duration { return min(10*time.Second, o.RebalanceTimeout/3) }

// groupConfig is what the group reads through groupClient: the fetching
// client's, with the patience that ends or saves a session.
func groupConfig(o Options, dialer *conns) *sarama.Config {
	c := fetchConfig(o, dialer)
	c.Metadata.Retry.Max = healRetries
	if o.Transactional {
		// sarama fetches offsets with RequireStable only then. Its claims read
		// nothing, so this says nothing about records.
		c.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	return c
}

// coordinatorConfig is for the group's own connection.
func coordinatorConfig(o Options, dialer *conns) *sarama.Config {
	c := base(o, dialer)
	// JoinGroup waits for the slowest member. Connections whose other end is
	// gone are found by TCP, see conns.
	c.Net.ReadTimeout = o.RebalanceTimeout + 10*time.Second
	// groupClient sets the pace; and a background refresh would wait for a
	// JoinGroup with the client's lock held (LeastLoadedBroker).
	c.Metadata.Retry.Max = 0
	c.Metadata.RefreshFrequency = 0
	return c
}

// producerConfig suits idempotent batches, sarama's producer's or one's own.
func producerConfig(o Options, dialer *conns) *sarama.Config {
	c := base(o, dialer)
	c.Net.MaxOpenRequests = 1 // belongs here only
	c.Net.ReadTimeout = 15 * time.Second
	// A refresh of sarama's would go through the connections that outputs take and
	// hold their lock until it is answered, which a connection that is half dead
	// never does, and LeastLoadedBroker would wait for that with the lock of the
	// whole client held: outputs for other brokers would wait, too. deliver.Writer
	// asks by itself, of brokers without a request under way.
	c.Metadata.RefreshFrequency = 0
	c.Producer.Timeout = 10 * time.Second // what brokers wait for in-sync replicas
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Producer.Retry.Max = 5000 // never MaxInt: sarama allocates that many states a partition
	c.Producer.Retry.Backoff = backoff
	c.Producer.Return.Successes = true
	return c
}

// transactionConfig is for the coordinators of transactions. A request is
// answered soon or not at all, and Transactions tries again by itself.
func transactionConfig(o Options, dialer *conns) *sarama.Config {
	c := base(o, dialer)
	c.Metadata.Retry.Max = 0
	c.Net.ReadTimeout = 5 * time.Second
	return c
}

// adminConfig and logConfig are for short requests that are tried again here.
func adminConfig(o Options, dialer *conns) *sarama.Config { return base(o, dialer) }

func logConfig(o Options, dialer *conns) *sarama.Config { return base(o, dialer) }
