package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CheckpointVerdict says what became of a checkpoint when a task began.
type CheckpointVerdict uint8

// The verdicts of joiner_checkpoint_restores_total.
const (
	CheckpointUsed     CheckpointVerdict = iota
	CheckpointAbsent                     // there was none, or none that could be reached
	CheckpointDamaged                    // it could not be read
	CheckpointForeign                    // another cluster's, topic's, group's or partition's
	CheckpointTooNew                     // in a format of the future
	CheckpointFuture                     // above the committed offset, or the log's end
	CheckpointStale                      // the topic may have forgotten what came since
	CheckpointChanged                    // made under other rules
	CheckpointVerdicts                   // their number, for arrays
)

func (v CheckpointVerdict) String() string {
	return [CheckpointVerdicts]string{"used", "absent", "damaged", "foreign", "too_new", "future", "stale", "changed"}[v]
}

// Checkpoints is what is counted of checkpoints.
type Checkpoints struct {
	Failures prometheus.Counter // attempts to write
	Restores [CheckpointVerdicts]prometheus.Counter
}

func newCheckpoints(f factory) Checkpoints {
	c := Checkpoints{Failures: f.NewCounter(prometheus.CounterOpts{
		Name: "joiner_checkpoint_failures_total",
		Help: "Failed attempts to write a checkpoint.",
	})}
	restores := f.counters("joiner_checkpoint_restores_total",
		"Tasks that began under state.dir, by what became of the checkpoint that they found.", "outcome")
	for v := range CheckpointVerdicts {
		c.Restores[v] = restores.WithLabelValues(v.String())
	}
	return c
}

// SetLastCheckpoint sets what joiner_checkpoint_last_success_timestamp_seconds
// asks at each scrape; before, and where it says the zero time, it is 0. last is
// called from any goroutine and must not block.
func (m *Metrics) SetLastCheckpoint(last func() time.Time) { m.checkpointed.Store(&last) }

func (m *Metrics) lastCheckpoint() float64 {
	last := m.checkpointed.Load()
	if last == nil {
		return 0
	}
	at := (*last)()
	if at.IsZero() {
		return 0
	}
	return float64(at.UnixMilli()) / 1000
}
