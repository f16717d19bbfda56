package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"

	"joiner/internal/config"
	"joiner/internal/deliver"
	"joiner/internal/record"
	"joiner/internal/task"
)

// A stop that cannot bring its work to an end fails, and says of which
// partition something is left.
func TestStopSaysWhatIsLeft(t *testing.T) {
	for _, test := range []struct {
		name string
		key  int16 // of the requests that no broker answers
		want []string
	}{
		{"commit", kmsg.OffsetCommit.Int16(), []string{"notification 1; committed", "commit of 1 partitions"}},
		{"outputs", kmsg.Produce.Int16(), []string{"1 outputs unacknowledged"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, allTopics()...)
			var away atomic.Bool
			fake := s.cluster.Fake()
			fake.ControlKey(test.key, func(req kmsg.Request) (kmsg.Response, error, bool) {
				fake.KeepControl()
				if p, ok := req.(*kmsg.ProduceRequest); ok && p.Topics[0].Topic != "enriched-alerts" {
					return nil, nil, false
				}
				return nil, errors.New("connection lost"), away.Load()
			})
			p := s.start(func(c *config.Config) {
				c.Shutdown.Timeout = 4 * time.Second
				c.Delivery.CommitInterval = time.Hour
			})
			p.awaitReady()
			if test.key == kmsg.Produce.Int16() {
				away.Store(true)
			}
			s.send("notifications", home("BBCA"), "BBCA", `{}`, time.Now())
			await(t, func() string {
				for _, task := range p.member.Status().Tasks {
					if task.Index == home("BBCA") && task.Position[1] == 1 && (away.Load() || task.Unsettled == 0) {
						return ""
					}
				}
				return "the notification is not joined"
			})
			away.Store(true)
			err := p.stop()
			if err == nil {
				t.Fatal("the stop claims to be clean")
			}
			for _, want := range append(test.want, fmt.Sprintf("uncommitted: partition %d: position market 0, notification 1", home("BBCA"))) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

// What is said at the end is what is true then.
func TestLeftoversThatTurnOutCommitted(t *testing.T) {
	var l leftovers
	statuses := []task.Status{
		{Index: 0, Position: record.Offsets{5, 7}, Committed: record.Offsets{5, 3}, Unsettled: 4},
		{Index: 1, Position: record.Offsets{2, 2}, Committed: record.Offsets{2, 1}, Unsettled: 1},
	}
	for i := range statuses {
		l.add(func() task.Status { return statuses[i] }, "no answer to EndTxn")
	}
	statuses[0].Committed, statuses[0].Unsettled = statuses[0].Position, 0
	if err := l.err(); err == nil || strings.Contains(err.Error(), "partition 0") || !strings.Contains(err.Error(), "partition 1: position") {
		t.Errorf("of two partitions, one of which is committed by now: %v", err)
	}
	statuses[1].Unsettled = 0
	if l.err() == nil {
		t.Error("a partition that is not committed up to its position is said to be")
	}
	statuses[1].Committed = statuses[1].Position
	if err := l.err(); err != nil {
		t.Errorf("all is committed: %v", err)
	}
}

func TestMovedOn(t *testing.T) {
	for err, want := range map[error]bool{
		deliver.ErrNoMember:                true,
		sarama.ErrIllegalGeneration:        true,
		context.DeadlineExceeded:           false,
		sarama.ErrTopicAuthorizationFailed: false,
	} {
		if got := movedOn(fmt.Errorf("commit of 1 partitions: %w", err)); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}
