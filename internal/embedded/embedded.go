// Package embedded is a Kafka broker inside the process: it serves the demo,
// which must work where there is no Kafka, and the tests that must be fast.
//
// It wraps kfake, which keeps its logs in memory and speaks the real protocol
// over loopback. It must never be reachable from another machine, keep
// anything on disk, or be imported by the service.
//
// What differs from Apache Kafka, and so must not be tested here alone: there
// is no replication and no initial rebalance delay (the first member of a new
// group gets everything at once), sessions shorter than [MinSessionTimeout] are
// refused, a static member whose subscription bytes change causes a rebalance
// (Apache Kafka leaves the group alone), and timestamps are neither limited nor
// are message.timestamp.before.max.ms and .after.max.ms described.
package embedded

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// MinSessionTimeout is the shortest group session timeout that the broker
// takes; a shorter one fails the join with INVALID_SESSION_TIMEOUT.
const MinSessionTimeout = 6 * time.Second

// Version is the protocol version to ask sarama for, as for Kafka's own
// releases. Every version from 2.8.0 to the newest that sarama knows works;
// this one is old enough for every client and new enough for all that joiner
// sends (TestWhatJoinerNeeds runs the span).
const Version = "3.6.0"

// Topic is a topic that exists from the start.
type Topic struct {
	Name       string
	Partitions int32 // at least 1
}

// Options describes the cluster. The zero value is one broker without topics.
type Options struct {
	// Brokers is their number, 1 where it is 0.
	Brokers int
	// Topics exist when Start returns. Others are not made by asking for
	// them: auto-creation is off.
	Topics []Topic
	// Configs are broker configurations, as message.max.bytes.
	Configs map[string]string
	// Knows are the requests that the brokers know, with the newest version of
	// each, as of an older release; nil: all that kfake does.
	Knows *kversion.Versions
}

func (o Options) validate() error {
	var errs []error
	if o.Brokers < 0 {
		errs = append(errs, fmt.Errorf("brokers: %d is negative", o.Brokers))
	}
	for _, t := range o.Topics {
		if t.Name == "" {
			errs = append(errs, errors.New("topics: a name is empty"))
		}
		if t.Partitions < 1 {
			errs = append(errs, fmt.Errorf("topic %s: %d partitions, at least 1 is needed", t.Name, t.Partitions))
		}
	}
	return errors.Join(errs...)
}

// Cluster is a running embedded cluster.
type Cluster struct {
	fake  *kfake.Cluster
	addrs []string
	close sync.Once
}

// Start runs a cluster on free ports of 127.0.0.1. Its only errors are options
// out of range and a loopback that gives no ports.
func Start(opts Options) (*Cluster, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	fake, err := kfake.NewCluster(opts.kfake()...)
	if err != nil {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	// Asked for now: kfake's answer would never come after Close.
	return &Cluster{fake: fake, addrs: fake.ListenAddrs()}, nil
}

func (o Options) kfake() []kfake.Opt {
	opts := []kfake.Opt{
		kfake.NumBrokers(max(1, o.Brokers)),
		kfake.GroupMinSessionTimeout(MinSessionTimeout),
		kfake.BrokerConfigs(o.Configs),
	}
	for _, t := range o.Topics {
		opts = append(opts, kfake.SeedTopics(t.Partitions, t.Name))
	}
	if o.Knows != nil {
		opts = append(opts, kfake.MaxVersions(o.Knows))
	}
	return opts
}

// Addrs returns the bootstrap addresses, one a broker; they stay the same until
// Close and may be asked for after it.
func (c *Cluster) Addrs() []string { return slices.Clone(c.addrs) }

// Fake returns the cluster underneath, for tests that move leaders or answer a
// request in its stead. It must not be used after Close: it would hang.
func (c *Cluster) Fake() *kfake.Cluster { return c.fake }

// Close ends the cluster and every connection to it. It may be called more than
// once. Close the clients first, or they will try to reconnect.
func (c *Cluster) Close() { c.close.Do(c.fake.Close) }
