package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"joiner/internal/checkpoint"
	"joiner/internal/config"
	"joiner/internal/enrich"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/state"
	"joiner/internal/task"
)

const (
	// finalPatience bounds how long a stop waits for last checkpoints: the
	// offsets are committed by then, so all that is lost is time at the next
	// start.
	finalPatience = 5 * time.Second

	// configPatience is how long a task that begins waits for its topic's
	// configuration, where a right is missing or brokers are slow.
	configPatience = 5 * time.Second

	// deleteRetention is what is assumed where the topic's configuration may not
	// be read: Kafka's default.
	deleteRetention = 24 * time.Hour
)

// openCheckpoints takes state.dir, where there is one.
func (a *App) openCheckpoints(ctx context.Context, s *stack) error {
	c := a.o.Config
	if c.State.Dir == "" {
		return nil
	}
	counts := &a.metrics.Checkpoints
	dir, err := checkpoint.Open(ctx, checkpoint.Options{
		Path: c.State.Dir, Interval: c.State.CheckpointInterval,
		// A predecessor that is stopping may take as long as we would.
		LockWait:  c.Shutdown.Timeout,
		Log:       a.log,
		Faults:    a.faults,
		OnFailure: counts.Failures.Inc,
		OnRestore: func(v checkpoint.Verdict) { counts.Restores[checkpointVerdict(v)].Inc() },
	})
	if err != nil {
		return fmt.Errorf("state.dir: %w", err)
	}
	a.checkpoints = dir
	a.metrics.SetLastCheckpoint(dir.LastSuccess)
	s.push("checkpoints", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, finalPatience)
		defer cancel()
		dir.Close(ctx)
		return nil // what was not written is read from the topic
	})
	return nil
}

func checkpointVerdict(v checkpoint.Verdict) metrics.CheckpointVerdict {
	switch v {
	case checkpoint.Used:
		return metrics.CheckpointUsed
	case checkpoint.Absent:
		return metrics.CheckpointAbsent
	case checkpoint.Foreign:
		return metrics.CheckpointForeign
	case checkpoint.TooNew:
		return metrics.CheckpointTooNew
	case checkpoint.Future:
		return metrics.CheckpointFuture
	case checkpoint.Stale:
		return metrics.CheckpointStale
	case checkpoint.Changed:
		return metrics.CheckpointChanged
	default:
		return metrics.CheckpointDamaged
	}
}

// checkpointOf is the checkpoint of a task; nil where there are none.
func (a *App) checkpointOf(index int32) task.Checkpoint {
	if a.checkpoints == nil {
		return nil
	}
	return session{a.checkpoints.Session(index, func(ctx context.Context) (checkpoint.Facts, error) {
		return a.checkpointFacts(ctx, index)
	})}
}

// session is a checkpoint.Session as its task sees it.
type session struct{ *checkpoint.Session }

// Load implements task.Checkpoint.
func (s session) Load(ctx context.Context, table *state.Table, start, committed, end int64) (from int64) {
	return s.Session.Load(ctx, table, checkpoint.Range{Start: start, Committed: committed, End: end})
}

// Begin implements task.Checkpoint.
func (s session) Begin(progress func() task.Progress) {
	s.Session.Begin(func() checkpoint.Progress { return checkpoint.Progress(progress()) })
}

// checkpointFacts says what a checkpoint has to belong to: the topic is the one
// that the task has begun to read, not the one that has its name by now.
func (a *App) checkpointFacts(ctx context.Context, index int32) (checkpoint.Facts, error) {
	c := a.o.Config
	topic := a.topics[record.Market]
	if a.clients.Facts.Cluster() == "" {
		if _, err := a.clients.Facts.Topics(ctx, topic); err != nil {
			return checkpoint.Facts{}, err
		}
	}
	f := checkpoint.Facts{
		Scope: state.Scope{
			Cluster: a.clients.Facts.Cluster(), Group: c.Group.ID,
			Topic: topic, TopicID: a.resumer.readID(topic, index), Partition: index,
			Rules: priceRules(c), History: record.Millis(c.Join.History.Milliseconds()),
		},
		Compacted: true, DeleteRetention: deleteRetention,
	}
	limited, cancel := context.WithTimeout(ctx, configPatience)
	defer cancel()
	configs, err := a.clients.Facts.Configs(limited, topic)
	switch known := configs[topic]; {
	case err != nil || !known.Known:
		a.faults.Warn("checkpoint retention", "delete.retention.ms of the market topic is not known: a checkpoint is trusted for Kafka's default",
			zap.String("topic", topic), zap.Duration("default", deleteRetention), zap.Error(err))
	default:
		f.Compacted = strings.Contains(known.CleanupPolicy, "compact")
		if known.DeleteRetention >= 0 {
			f.DeleteRetention = time.Duration(known.DeleteRetention) * time.Millisecond
		}
	}
	return f, nil
}

// priceRules is all that decides which prices a table has after given records:
// how this build decodes them, and its configuration.
func priceRules(c config.Config) string {
	return fmt.Sprintf("rules=%d symbol=%q price=%q event_time=%q unit=%s isolation=%s",
		enrich.MarketRules, c.Market.Symbol, c.Market.Price, c.Market.EventTime, c.Market.EventTimeUnit, c.Kafka.IsolationLevel)
}
