package kafka

import (
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/absence"
)

// backstop is what no call into a sarama client takes. Time-outs inside sarama
// bound it, one for each broker and try, so what it takes at most follows the
// size of the cluster: about 20 minutes with three brokers that take connections
// and say nothing, some hours with a hundred. It is here for calls that never
// return, and far from all others.
const backstop = 12 * time.Hour

// beat knows for how long the group's loop has done nothing.
type beat struct {
	made  time.Time
	turns atomic.Uint64
	last  atomic.Int64                    // turn, since made
	under atomic.Int64                    // calls that may wait for brokers
	away  atomic.Pointer[absence.Absence] // of the group's coordinator; nil: it is there
}

func newBeat() *beat { return &beat{made: time.Now()} }

// turn notes that the loop does something.
func (b *beat) turn() {
	b.turns.Add(1)
	b.last.Store(int64(time.Since(b.made)))
}

// call notes that the loop turns to brokers, and waits for them until the end.
func (b *beat) call() (end func()) {
	b.turn()
	over := b.wait()
	return func() {
		b.turn()
		over()
	}
}

// wait notes that brokers are waited for until the end, by the loop or by what
// goes on without it.
func (b *beat) wait() (end func()) {
	b.under.Add(1)
	return func() { b.under.Add(-1) }
}

// quiet reports that nothing has been done for so long, nor waited for.
func (b *beat) quiet(limit time.Duration) bool {
	since := time.Since(b.made) - time.Duration(b.last.Load())
	return since > limit && b.under.Load() == 0 || since > limit+backstop
}

// GroupPulse shows what the group's loop does: each time that it wants the
// coordinator, as for every heartbeat, each search for it and each look at the
// topics is a turn, however it ends, so it has turns whatever state the brokers
// are in. quiet reports that there was none for longer than the loop waits for
// anything else (a join, tasks that are handed over, its own pauses), and that no
// broker is waited for. Before the group is first joined it means nothing.
func (c *Clients) GroupPulse() (turns uint64, quiet bool) {
	limit := callLimit + 2*c.opts.RebalanceTimeout + 4*c.opts.Heartbeat
	return c.beat.turns.Load(), c.beat.quiet(limit)
}

// Partitions is asked for while a plan is made, and by the look for new ones,
// which goes on whatever the loop does: it is waited for, and no turn.
func (g *groupClient) Partitions(topic string) ([]int32, error) {
	defer g.beat.wait()()
	return g.Client.Partitions(topic)
}

// Topics is as Partitions.
func (g *groupClient) Topics() ([]string, error) {
	defer g.beat.wait()()
	return g.Client.Topics()
}

var _ sarama.Client = (*groupClient)(nil)
