package task

import (
	"time"

	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/state"
)

// tally counts what a run of the merge did, so that the metrics are touched
// once a run and not once a record.
type tally struct {
	consumed  [record.Sides]int
	misplaced [record.Sides]int
	applied   [3]int // by state.Applied
}

func (c *tally) took(side record.Side, wellPlaced bool) {
	c.consumed[side]++
	if !wellPlaced {
		c.misplaced[side]++
	}
}

// report hands a run's counts and the task's standing to the metrics.
func (t *Task) report(next [record.Sides]record.Millis) {
	m, c := t.o.Metrics, &t.merge.tally
	ticks := &m.Records[record.Market]
	count(ticks[metrics.Accepted].Add, c.applied[state.Accepted])
	count(ticks[metrics.Late].Add, c.applied[state.Late])
	count(m.OutOfOrder.Add, c.applied[state.Late])
	count(ticks[metrics.Tombstone].Add, c.applied[state.Tombstone])
	for side := range record.Sides {
		if !t.o.Mine[side] {
			continue
		}
		m.CountRecords(side, c.consumed[side])
		count(m.Misplaced[side].Add, c.misplaced[side])
		t.o.Keys.Judged(side, c.consumed[side], c.misplaced[side])
		m.SetNext(side, next[side])
	}
	*c = tally{}
	t.reportEnds()
}

func count(add func(float64), n int) {
	if n > 0 {
		add(float64(n))
	}
}

// reportEnds shows how far the inputs reach and what is left to catch up.
func (t *Task) reportEnds() {
	t.mu.Lock()
	left := t.remaining()
	var hw [record.Sides]int64
	for side := range record.Sides {
		hw[side] = t.in[side].hw
	}
	t.mu.Unlock()
	t.o.Metrics.SetRestoreRemaining(left)
	for side := range record.Sides {
		t.o.Metrics.SetHighWatermark(side, hw[side])
	}
}

// countSettled counts a record whose output is acknowledged.
func (t *Task) countSettled(p *place) {
	m := t.o.Metrics
	if p.kind != "" {
		m.CountDeadLetter(p.side, p.kind)
		m.Records[p.side][metrics.DeadLettered].Inc()
		return
	}
	m.Records[p.side][metrics.Accepted].Inc()
	if p.out.Timestamp != record.NoTimestamp {
		m.AlertLatency.Observe(seconds(nowMillis() - p.out.Timestamp))
	}
}

// countJoin counts a join whose outcome is final.
func (t *Task) countJoin(p *place) {
	m, match := t.o.Metrics, &p.join.match
	m.Joins[match.Locality][match.Result].Inc()
	m.JoinDuration[match.Locality].Observe(time.Since(p.join.begun).Seconds())
	if match.Result == record.Hit {
		m.PriceAge.Observe(seconds(p.note.EventTime - match.PriceTime))
	}
}

func seconds(d record.Millis) float64 { return float64(d) / 1000 }

// skipped counts a record that got neither an alert nor a dead letter.
func (t *Task) skipped(p *place) {
	t.o.Metrics.Records[p.side][metrics.Skipped].Inc()
	t.ledger.remove(p)
}
