package kafka

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"joiner/internal/embedded"
)

func TestMain(m *testing.M) {
	// sarama's own log must not hold a secret either.
	sarama.Logger = log.New(vigilant{}, "", 0)
	sarama.DebugLogger = sarama.Logger
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// vigilant takes sarama's log and dies of a secret in it: a line has no test
// that it could fail.
type vigilant struct{}

func (vigilant) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(planted)) {
		panic(fmt.Sprintf("sarama logs a secret: %s", line))
	}
	return len(line), nil
}

const patience = 60 * time.Second // against hanging, never a measure

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// cluster is what a test talks to: the brokers that KAFKA_BROKERS names, else
// an embedded one.
type cluster struct {
	addrs []string
	fake  *embedded.Cluster // nil where the brokers are real
	admin sarama.ClusterAdmin
}

var names atomic.Int64

// unique returns a name that no earlier run has used.
func unique(what string) string {
	return fmt.Sprintf("%s-%d-%d", what, time.Now().UnixNano(), names.Add(1))
}

// anyCluster is for tests of what every broker does.
func anyCluster(t *testing.T) *cluster {
	t.Helper()
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		c := &cluster{addrs: strings.Split(brokers, ",")}
		c.connectAdmin(t)
		return c
	}
	return fakeCluster(t, 3)
}

// fakeCluster is for tests that move leaders and answer in a broker's stead.
func fakeCluster(t *testing.T, brokers int) *cluster {
	t.Helper()
	fake, err := embedded.Start(embedded.Options{Brokers: brokers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	c := &cluster{addrs: fake.Addrs(), fake: fake}
	c.connectAdmin(t)
	return c
}

func (c *cluster) connectAdmin(t *testing.T) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = autoVersion()
	admin, err := sarama.NewClusterAdmin(c.addrs, conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	c.admin = admin
}

// topic makes a topic and returns its name.
func (c *cluster) topic(t *testing.T, partitions int32, configs map[string]string) string {
	t.Helper()
	name := unique("topic")
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1, ConfigEntries: map[string]*string{}}
	for k, v := range configs {
		detail.ConfigEntries[k] = &v
	}
	if err := c.admin.CreateTopic(name, detail, false); err != nil {
		t.Fatal(err)
	}
	return name
}

// connect makes clients that are closed with the test.
func (c *cluster) connect(t *testing.T, change func(*Options)) *Clients {
	t.Helper()
	o := Options{Brokers: c.addrs, ReadCommitted: true, GroupID: unique("group"), Log: zaptest.NewLogger(t)}
	if change != nil {
		change(&o)
	}
	clients, err := Connect(deadline(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clients.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return clients
}

// sleeper has requests of an embedded cluster wait.
type sleeper struct {
	fake *kfake.Cluster
	wake func() // lets them go on; it may be called again
	free chan struct{}

	mu     sync.Mutex
	over   bool
	asleep sync.WaitGroup
}

// newSleeper has everybody awake before the cluster is closed, which must be
// the cleanup of an earlier one: a control function that wakes as its cluster is
// closed takes kfake's lock and keeps it, and the cluster's loop may wait for
// it for ever.
func newSleeper(t *testing.T, fake *kfake.Cluster) *sleeper {
	s := &sleeper{fake: fake, free: make(chan struct{})}
	s.wake = sync.OnceFunc(func() { close(s.free) })
	t.Cleanup(func() {
		s.mu.Lock()
		s.over = true
		s.mu.Unlock()
		s.wake()
		s.asleep.Wait()
	})
	return s
}

// sleep is called by a control function.
func (s *sleeper) sleep() {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.asleep.Add(1)
	s.mu.Unlock()
	defer s.asleep.Done()
	s.fake.SleepControl(func() { <-s.free })
}

// producer is a client that is not ours.
func (c *cluster) producer(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	p, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.addrs...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func send(t *testing.T, p *kgo.Client, topic string, partition int32, values ...string) {
	t.Helper()
	records := make([]*kgo.Record, 0, len(values))
	for _, v := range values {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k"), Value: []byte(v)})
	}
	if err := p.ProduceSync(deadline(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// transaction sends values in one transaction and ends it.
func transaction(t *testing.T, p *kgo.Client, commit bool, topic string, partition int32, values ...string) {
	t.Helper()
	if err := p.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	send(t, p, topic, partition, values...)
	if err := p.EndTransaction(deadline(t), kgo.TransactionEndTry(commit)); err != nil {
		t.Fatal(err)
	}
}
