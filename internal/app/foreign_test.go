package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/IBM/sarama"

	"joiner/internal/config"
	"joiner/internal/record"
)

// consumer is a member of the group that is no joiner.
type consumer struct{}

func (consumer) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (consumer) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (consumer) ConsumeClaim(s sarama.ConsumerGroupSession, _ sarama.ConsumerGroupClaim) error {
	<-s.Context().Done()
	return nil
}

// consume has a consumer of a topic in the pods' group, until what it returns is
// called.
func (s *stage) consume(group, topic string, strategy sarama.BalanceStrategy) (stop func()) {
	s.t.Helper()
	c := sarama.NewConfig()
	c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	g, err := sarama.NewConsumerGroup(s.cluster.Addrs(), group, c)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			_ = g.Consume(ctx, []string{topic}, consumer{})
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		_ = g.Close()
		ended.Wait()
	})
}

// A member that is no joiner and takes notifications is no fault of the pod, which
// stays ready and says whose they are, in /readyz and as the group's problem.
func TestForeignMemberIsNoted(t *testing.T) {
	s := newStage(t, allTopics()...)
	p := s.start(func(c *config.Config) { c.Group.Strategy = "range" })
	p.awaitReady()
	stop := s.consume(p.o.Config.Group.ID, "notifications", sarama.NewBalanceStrategyRange())
	t.Cleanup(stop)
	await(t, func() string {
		r := p.Ready()
		i := slices.IndexFunc(r.Notes, func(note string) bool { return strings.Contains(note, " is no joiner and owns partitions ") })
		if i < 0 || !r.Ready {
			return fmt.Sprintf("%+v", r)
		}
		if !strings.HasPrefix(r.Notes[i], "member sarama-") || !strings.HasSuffix(r.Notes[i], " of notifications: their notifications get no alert") {
			t.Fatal(r.Notes[i])
		}
		for _, mine := range p.Member().Status().Owned[record.Notification] {
			if strings.Contains(strings.ReplaceAll(r.Notes[i], ",", " "), fmt.Sprintf(" %d ", mine)) {
				return fmt.Sprintf("partition %d is this pod's: %s", mine, r.Notes[i])
			}
		}
		return ""
	})
	stop()
	await(t, func() string {
		if r := p.Ready(); !r.Ready || len(r.Notes) > 0 {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	})
}
