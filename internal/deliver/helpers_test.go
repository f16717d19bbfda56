package deliver

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/zap"

	"joiner/internal/record"
)

// patience bounds what must happen; only a hang reaches it.
const patience = 90 * time.Second

func newCluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func producerConfig() *sarama.Config {
	conf := sarama.NewConfig()
	conf.Version = sarama.V3_6_0_0
	conf.Net.MaxOpenRequests = 1
	conf.Metadata.Retry.Max = 1
	conf.Metadata.Retry.Backoff = 50 * time.Millisecond
	conf.Metadata.AllowAutoTopicCreation = false
	return conf
}

func newClient(t testing.TB, addrs []string, conf *sarama.Config) sarama.Client {
	t.Helper()
	client, err := sarama.NewClient(addrs, conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// running is a writer that runs until the test ends.
type running struct {
	*Writer
	t    testing.TB
	done chan error
}

func runWriter(t testing.TB, o Options) *running {
	t.Helper()
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	w, err := NewWriter(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Writer: w, t: t, done: make(chan error, 1)}
	go func() { r.done <- w.Run(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		w.Close(ctx)
		if err := <-r.done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return r
}

// fate is what an owner was told.
type fate struct {
	out *record.Output
	err error
}

// ledger is an owner that remembers the order in which it was told.
type ledger struct {
	mu    sync.Mutex
	fates []fate
	more  chan struct{}
}

func newLedger() *ledger { return &ledger{more: make(chan struct{}, 1)} }

func (l *ledger) Settled(o *record.Output, err error) {
	l.mu.Lock()
	l.fates = append(l.fates, fate{o, err})
	l.mu.Unlock()
	signal(l.more)
}

func (l *ledger) told() []fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]fate(nil), l.fates...)
}

// wait returns once n outputs are settled.
func (l *ledger) wait(t testing.TB, n int) []fate {
	t.Helper()
	deadline := time.After(patience)
	for {
		if told := l.told(); len(told) >= n {
			return told
		}
		select {
		case <-l.more:
		case <-deadline:
			t.Fatalf("%d of %d outputs settled", len(l.told()), n)
		}
	}
}

func outputs(owner record.Owner, topic string, partition int32, from, to int) []*record.Output {
	var out []*record.Output
	for i := from; i < to; i++ {
		out = append(out, &record.Output{
			Topic: topic, Partition: partition, Tag: int64(i), Owner: owner,
			Timestamp: record.MillisOf(time.Now()),
			Key:       fmt.Appendf(nil, "k%d", i%7),
			Value:     fmt.Appendf(nil, `{"n":%d}`, i),
			Headers:   []record.Header{{Key: []byte("joiner-source"), Value: fmt.Appendf(nil, "notifications/%d/%d", partition, i)}},
		})
	}
	return out
}

// readAll returns what a partition holds, in order.
func readAll(t testing.TB, client sarama.Client, topic string, partition int32) []*sarama.ConsumerMessage {
	t.Helper()
	end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
	if err != nil {
		t.Fatal(err)
	}
	if end == 0 {
		return nil
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = consumer.Close() }()
	pc, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pc.Close() }()
	var got []*sarama.ConsumerMessage
	deadline := time.After(patience)
	for {
		select {
		case m := <-pc.Messages():
			got = append(got, m)
			if m.Offset == end-1 {
				return got
			}
		case <-deadline:
			t.Fatalf("%s/%d: read %d records, the end is %d", topic, partition, len(got), end)
		}
	}
}

// values are the values of records, for comparison.
func values(messages []*sarama.ConsumerMessage) []string {
	var out []string
	for _, m := range messages {
		out = append(out, string(m.Value))
	}
	return out
}

func numbers(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf(`{"n":%d}`, i))
	}
	return out
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// seq is the number that a test's output was given.
func (f fate) seq() int64 { return f.out.Tag.(int64) }
