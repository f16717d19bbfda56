package deliver

import (
	"context"
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
		out.Work = fmt.Sprintf("%d outputs are to be written to %s and nobody sees to it", p.waiters(), where)
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
// when the one under way is to have ended.
type turns struct {
	n   atomic.Uint64
	due atomic.Pointer[time.Time] // nil: none is under way
}

// begin notes that what begins now ends well within the bound, or soon after
// ctx where that lasts longer.
func (t *turns) begin(ctx context.Context, bound time.Duration) {
	due := time.Now().Add(bound)
	if limit, ok := ctx.Deadline(); ok && limit.Add(bound).After(due) {
		due = limit.Add(bound)
	}
	t.due.Store(&due)
}

func (t *turns) end() {
	t.due.Store(nil)
	t.n.Add(1)
}

// pulse shows that a turn has taken longer than its bound.
func (t *turns) pulse(part string) Pulse {
	p := record.Pulse{Part: part, Done: t.n.Load()}
	if due := t.due.Load(); due != nil && time.Now().After(*due) {
		p.Work = "what was to have ended by " + due.UTC().Format(time.RFC3339) + " goes on"
	}
	return Pulse{Pulse: p}
}

// Pulses shows that commits come to an end: each does within a time-out, whatever
// the brokers do. It waits for nobody.
func (c *Committer) Pulses() []Pulse { return []Pulse{c.turns.pulse("committer")} }

// Pulses shows the writer's partitions, and that transactions come to an end:
// each request does within a time-out, whatever the brokers do. It waits for
// nobody.
func (t *Transactor) Pulses() []Pulse {
	return append(t.o.Writer.Pulses(), t.turns.pulse("transactor"))
}
