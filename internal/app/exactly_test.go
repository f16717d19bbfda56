package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"joiner/internal/config"
	"joiner/internal/kafka"
	"joiner/internal/metrics"
	"joiner/internal/record"
)

func exactly(c *config.Config) {
	c.Delivery.Guarantee = config.ExactlyOnce
	c.Delivery.CommitInterval = 50 * time.Millisecond
}

// reading are clients as a consumer of the outputs has them.
func (s *stage) reading() *kafka.Clients {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	clients, err := kafka.Connect(ctx, kafka.Options{
		Brokers: s.cluster.Addrs(), ReadCommitted: true, GroupID: "joiner", Transactional: true,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = clients.Close() })
	return clients
}

// sources counts what a topic's committed records say they come from. Reading
// ends at the partitions' ends, which are markers of transactions: a reader that
// waited for a record at the last offset would never return.
func (s *stage) sources(clients *kafka.Clients, topic string) map[string]int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	seen := make(map[string]int)
	for p := range int32(partitions) {
		start, end, err := clients.Reader.Bounds(ctx, topic, p)
		if err != nil {
			s.t.Fatal(err)
		}
		err = clients.Reader.Read(ctx, topic, p, start, end, func(recs []record.Record) error {
			for i := range recs {
				for _, h := range recs[i].Headers {
					if string(h.Key) == "joiner-source" {
						seen[string(h.Value)]++
					}
				}
			}
			return nil
		}, func(int64) {})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return seen
}

// feeding sends a tick and a notification a millisecond until it is stopped.
type feeding struct {
	stop func() (notes int)
}

func (s *stage) feed() feeding {
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(time.Millisecond):
			}
			symbol := symbols[n%len(symbols)]
			at := time.Now().Truncate(time.Millisecond)
			s.send("market-updates", home(symbol), symbol, fmt.Sprintf(`{"price":%d}`, n), at)
			value := `{}`
			if n%50 == 49 {
				value = `no JSON` // a dead letter
			}
			s.send("notifications", home(symbol), symbol, value, at)
			n++
		}
	})
	return feeding{stop: sync.OnceValue(func() int {
		close(stopped)
		wg.Wait()
		return n
	})}
}

func (p *pod) transactions(o metrics.TransactionOutcome) int {
	return int(testutil.ToFloat64(p.metrics.Delivery.Transactions[o]))
}

func (p *pod) awaitTasks(n int) {
	p.t.Helper()
	await(p.t, func() string {
		if have := len(p.Member().Status().Tasks); have != n {
			return fmt.Sprintf("%d tasks, want %d", have, n)
		}
		return ""
	})
}

// awaitCommitted waits until the group has committed everything.
func (s *stage) awaitCommitted(clients *kafka.Clients) {
	s.t.Helper()
	await(s.t, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, topic := range []string{"market-updates", "notifications"} {
			all := make([]int32, partitions)
			for p := range all {
				all[p] = int32(p)
			}
			have, err := clients.CommittedOffsets(ctx, map[string][]int32{topic: all})
			if err != nil {
				s.t.Fatal(err)
			}
			for _, p := range all {
				if end, err := s.client.GetOffset(topic, p, sarama.OffsetNewest); err != nil || have[topic][p] != end {
					return fmt.Sprintf("%s/%d: %d of %d committed (%v)", topic, p, have[topic][p], end, err)
				}
			}
		}
		return ""
	})
}

// Under load, members come and go, and one is fenced in the middle of it: by
// somebody who has taken its transactional id. Every notification has one output
// in the end.
func TestExactlyOnce(t *testing.T) {
	s := newStage(t, allTopics()...)
	clients := s.reading()
	load := s.feed()
	defer load.stop()

	first, second := s.start(exactly), s.start(exactly)
	first.awaitTasks(partitions / 2)
	second.awaitTasks(partitions / 2)
	third := s.start(exactly)
	third.awaitTasks(partitions / 3)
	time.Sleep(300 * time.Millisecond)

	// Somebody else takes the second one's transactional id.
	tasks := second.Member().Status().Tasks
	usurper := clients.Transactions(second.transactionalID(), 10*time.Second)
	if _, err := usurper.Init(context.Background()); err != nil {
		t.Fatal(err)
	}
	await(t, func() string {
		if second.transactions(metrics.TransactionFenced) == 0 {
			return "the second pod was not fenced"
		}
		return ""
	})
	second.awaitTasks(len(tasks))
	await(t, func() string {
		for _, ts := range second.Member().Status().Tasks {
			if ts.Committed == (record.Offsets{-1, -1}) {
				return "the second pod has not committed since"
			}
		}
		return ""
	})
	if err := third.stop(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	notes := load.stop()
	s.awaitCommitted(clients)

	seen := s.sources(clients, "enriched-alerts")
	alerts := len(seen)
	for source, n := range s.sources(clients, "enriched-alerts-dlq") {
		seen[source] += n
	}
	doubled := 0
	for source, n := range seen {
		if n != 1 {
			doubled++
			t.Errorf("%s has %d outputs", source, n)
		}
	}
	if len(seen) != notes {
		t.Errorf("%d notifications have %d outputs", notes, len(seen))
	}
	counts := map[string]int{}
	for _, p := range []*pod{first, second, third} {
		for o, name := range []string{"committed", "aborted", "fenced", "unknown"} {
			counts[name] += p.transactions(metrics.TransactionOutcome(o))
		}
	}
	t.Logf("%d notifications, %d alerts, %d dead letters, %d doubled; transactions %v",
		notes, alerts, len(seen)-alerts, doubled, counts)
}

// An idle pod makes no transactions, but commits its start.
func TestIdlePodMakesNoTransactions(t *testing.T) {
	s := newStage(t, allTopics()...)
	p := s.start(exactly)
	p.awaitReady()
	await(t, func() string {
		for _, ts := range p.Member().Status().Tasks {
			if ts.Committed != (record.Offsets{}) {
				return fmt.Sprintf("partition %d: committed %s", ts.Index, ts.Committed)
			}
		}
		return ""
	})
	before := p.transactions(metrics.TransactionCommitted)
	time.Sleep(500 * time.Millisecond)
	if after := p.transactions(metrics.TransactionCommitted); after != before {
		t.Errorf("%d transactions without work", after-before)
	}
}

// A pod that may not have its transactions says so and ends, instead of joining
// the group to hold partitions that it cannot commit.
func TestExactlyOnceIsRefused(t *testing.T) {
	s := newStage(t, allTopics()...)
	s.cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.TransactionalIDAuthorizationFailed, Count: -1})
	c := s.config()
	exactly(&c)
	a, err := New(Options{Config: c, Identity: "me"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = a.Run(ctx)
	if !errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed) || !strings.Contains(err.Error(), "joiner-me") {
		t.Errorf("run: %v", err)
	}
}

// The last transaction of a pod that stops holds all that it has joined.
func TestExactlyOnceStopCommits(t *testing.T) {
	s := newStage(t, allTopics()...)
	clients := s.reading()
	p := s.start(func(c *config.Config) {
		exactly(c)
		c.Delivery.CommitInterval = time.Hour // nothing is committed but at the end
	})
	p.awaitReady()
	for i := range 20 {
		s.send("notifications", home(symbols[0]), symbols[0], fmt.Sprintf(`{"n":%d}`, i), time.Now())
	}
	await(t, func() string {
		for _, ts := range p.Member().Status().Tasks {
			if ts.Index == home(symbols[0]) && ts.Position[record.Notification] == 20 {
				return ""
			}
		}
		return "not joined yet"
	})
	if n := len(s.sources(clients, "enriched-alerts")); n > 0 {
		t.Fatalf("%d alerts before the commit", n)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if n := len(s.sources(clients, "enriched-alerts")); n != 20 {
		t.Errorf("%d alerts after the stop, want 20", n)
	}
	s.awaitCommitted(clients)
}
