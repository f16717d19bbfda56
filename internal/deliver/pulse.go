package deliver

import (
	"fmt"
	"sync/atomic"
	"time"

	"joiner/internal/record"
)

// callLimit is what no request to a leader takes, which its time-outs bound,
// whatever state the leader is in.
const callLimit = 10 * time.Minute

// Pulse is what outputs of one owner show.
type Pulse struct {
	Owner record.Owner // nil: they are the pod's
	record.Pulse
}

// Pulses shows the partitions that have outputs to be written. Each of them has
// a turn every second, with its leader's sender or with the router, whatever
// state the brokers are in; a request under way, and one that others are waiting
// behind, is its leader's to answer. It waits for nobody.
func (w *Writer) Pulses() []Pulse {
	if !record.TryLock(&w.mu) {
		return []Pulse{{Pulse: record.Pulse{Part: "writer", Work: "somebody holds the writer's lock"}}}
	}
	defer w.mu.Unlock()
	var pulses []Pulse
	if w.aborted || !w.running {
		return nil
	}
	for _, t := range w.topics {
		for _, p := range t.parts {
			if p != nil && !p.empty() {
				pulses = append(pulses, w.pulse(p))
			}
		}
	}
	return pulses
}

// pulse shows one partition. It holds the lock.
func (w *Writer) pulse(p *partition) Pulse {
	where := fmt.Sprintf("%s/%d", p.topic.name, p.id)
	out := Pulse{Owner: p.first().Owner, Pulse: record.Pulse{Part: "outputs to " + where, Done: p.turns}}
	waits := false
	switch p.at {
	case ready:
		waits = p.leader.lingers.Load() || p.leader.waits()
	case sending:
		waits = p.leader.waits()
	case waiting:
		waits = w.routing.Load() || time.Now().Before(p.due)
	case idle:
	}
	if !waits {
		out.Work = fmt.Sprintf("%d outputs are to be written to %s and nobody sees to it", len(p.batch.entries)+p.queued(), where)
	}
	return out
}

// first returns the output that is to be written next. The partition must not be
// empty.
func (p *partition) first() *record.Output {
	if p.batch.open() {
		return p.batch.entries[0].out
	}
	return p.queue[p.head].out
}

// waits tells whether a request is under way. It holds the lock.
func (s *sender) waits() bool { return s.busy && time.Since(s.began) < callLimit }

// turns counts what is done one after the other, each within a bound, and knows
// since when the one under way is.
type turns struct {
	n     atomic.Uint64
	began atomic.Pointer[time.Time] // nil: none is under way
}

func (t *turns) begin() {
	now := time.Now()
	t.began.Store(&now)
}

func (t *turns) end() {
	t.began.Store(nil)
	t.n.Add(1)
}

// pulse shows that a turn has taken longer than the bound.
func (t *turns) pulse(part string, bound time.Duration) Pulse {
	p := record.Pulse{Part: part, Done: t.n.Load()}
	if began := t.began.Load(); began != nil && time.Since(*began) > bound {
		p.Work = fmt.Sprintf("what takes %s at most has not come to an end", bound)
	}
	return Pulse{Pulse: p}
}

// Pulses shows that commits come to an end: each does within a time-out, whatever
// the brokers do. It waits for nobody.
func (c *Committer) Pulses() []Pulse { return []Pulse{c.turns.pulse("committer", 3*c.o.Timeout)} }

// Pulses shows the writer's partitions, and that transactions come to an end:
// each request does within a time-out, whatever the brokers do. It waits for
// nobody.
func (t *Transactor) Pulses() []Pulse {
	return append(t.o.Writer.Pulses(), t.turns.pulse("transactor", 6*t.o.Timeout))
}
