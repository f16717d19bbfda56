package deliver

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// patientFor is how long something may fail, over and over, without saying: an
	// election takes less.
	patientFor = 2 * time.Second
	// mostNotes bounds how many partitions are told of one by one.
	mostNotes = 5
)

// wait is what everything waits for: what has failed since then, over and over.
type wait struct {
	since time.Time
	err   error // of the last try; nil: the first is under way
}

// tell says what has not been possible since when, and why; "" where that is
// nothing, or not for long.
func (w *wait) tell(what, unanswered string) string {
	if w == nil || time.Since(w.since) < patientFor {
		return ""
	}
	why := unanswered
	if w.err != nil {
		why = w.err.Error()
	}
	return fmt.Sprintf("%s since %s: %s", what, instant(w.since), why)
}

func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// failing is since when a partition's outputs have not been taken, and why by
// the last attempt. The zero value: nothing is known against them.
type failing struct {
	since  time.Time
	name   string // Kafka's, or what is missing
	err    error  // that no answer came with; nil: one came
	broker int32  // that was asked; noBroker: none
}

// noBroker stands for nobody in particular.
const noBroker = -1

// failed notes an attempt that failed. Its holder calls it, with the writer's
// lock; it costs nothing where outputs are taken.
func (p *partition) failed(name string, err error) {
	f := failing{since: p.failing.since, name: name, err: err, broker: noBroker}
	if f.since.IsZero() {
		f.since = time.Now()
	}
	if p.leader != nil {
		f.broker = p.leader.id
	}
	p.failing = f
}

func (f *failing) why() string {
	switch {
	case f.broker == noBroker:
		return f.name
	case f.err == nil:
		return fmt.Sprintf("%s (broker %d)", f.name, f.broker)
	}
	return fmt.Sprintf("%s (broker %d: %v)", f.name, f.broker, f.err)
}

// Notes says which output partitions stand still, since when and why, those that
// do so for longest first: what the brokers do not take or answer, for which no
// person has to act (Faults has the others). At most a handful is told of one by
// one.
func (w *Writer) Notes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	still := w.standing()
	slices.SortFunc(still, func(a, b *partition) int {
		return cmp.Or(a.failing.since.Compare(b.failing.since), cmp.Compare(a.topic.name, b.topic.name), cmp.Compare(a.id, b.id))
	})
	var notes []string
	for _, p := range still[:min(len(still), mostNotes)] {
		notes = append(notes, fmt.Sprintf("%s/%d: %d outputs have not been acknowledged since %s: %s",
			p.topic.name, p.id, p.waiters(), instant(p.failing.since), p.failing.why()))
	}
	if more := len(still) - mostNotes; more > 0 {
		notes = append(notes, fmt.Sprintf("outputs to %d more partitions have not been acknowledged either", more))
	}
	return notes
}

// standing lists the partitions that stand still. w.mu is held.
func (w *Writer) standing() (still []*partition) {
	for _, t := range w.topics {
		for _, p := range t.parts {
			if p == nil || p.empty() || p.fault != "" || p.failing.since.IsZero() || time.Since(p.failing.since) < patientFor {
				continue
			}
			still = append(still, p)
		}
	}
	return still
}

// waiters is how many outputs wait for the partition.
func (p *partition) waiters() int { return len(p.batch.entries) + p.queued() }

// waits notes that a commit is tried, and what it failed with, nil before there
// is an answer. The turn is held.
func (c *Committer) waits(err error) {
	next := wait{since: time.Now(), err: err}
	if last := c.wait.Load(); last != nil {
		next.since = last.since
		if err == nil {
			next.err = last.err
		}
	}
	c.wait.Store(&next)
}

// Notes says since when commits fail, and why. It waits for nobody.
func (c *Committer) Notes() []string {
	if note := c.wait.Load().tell("offsets have not been committed", "the coordinator has not answered yet"); note != "" {
		return []string{note}
	}
	return nil
}

// Notes is the writer's: what transactions wait for is in Waits.
func (t *Transactor) Notes() []string { return t.o.Writer.Notes() }
