// Package stall watches that whoever has work does some: the clock for a
// process that is alive and stuck, as the group's session timeout is the one
// for a process that is dead (sarama heartbeats whatever the tasks do).
//
// It knows neither tasks nor brokers. What is watched shows samples, and says
// itself whether it has work; the judge only compares them. It must never
//
//   - take a wait for somebody else for a stall: brokers that are away, for
//     however long, are no work, and a restart would not bring them back;
//   - fire for time that the process did not have: it counts its own looks, so
//     a process that was stopped for ten minutes and continued has had one;
//   - wait for what it watches, which may be stuck with a lock held.
package stall

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Options are what a Watch needs.
type Options struct {
	// Timeout is how long a part may have work and do none; more than 0. A
	// stall is found up to a twentieth later, and not before minLooks looks.
	Timeout time.Duration
	// Samples shows all parts that are watched. It must not block.
	Samples func() []Sample
	// OnStalls hears of the stalls that there are, after every look. It must
	// not block. May be nil.
	OnStalls func([]Stall)
	Log      *zap.Logger // nil: nothing is logged
}

// The pace of looking: a twentieth of the timeout, within bounds.
const (
	looksPerTimeout = 20
	slowestLook     = time.Second
	quickestLook    = 50 * time.Millisecond
	minLooks        = 3
)

// Watch looks at the samples until its Run ends.
type Watch struct {
	o     Options
	every time.Duration
	judge *judge
	now   atomic.Pointer[[]Stall]
}

// New returns a watch that does not run yet. It fails where an option is
// missing.
func New(o Options) (*Watch, error) {
	if o.Timeout <= 0 {
		return nil, fmt.Errorf("stall: timeout %s must be more than 0", o.Timeout)
	}
	if o.Samples == nil {
		return nil, errors.New("stall: nothing to watch")
	}
	if o.OnStalls == nil {
		o.OnStalls = func([]Stall) {}
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	every := min(max(o.Timeout/looksPerTimeout, quickestLook), slowestLook)
	looks := int((o.Timeout + every - 1) / every)
	w := &Watch{o: o, every: every, judge: newJudge(max(looks, minLooks))}
	w.now.Store(&[]Stall{})
	return w, nil
}

// Run looks until ctx ends. A look that comes late is one look.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look()
		}
	}
}

// look judges one moment and tells what changed.
func (w *Watch) look() {
	now := time.Now()
	began, ended := w.judge.look(now, w.o.Samples())
	all := w.judge.stalls()
	w.now.Store(&all)
	w.o.OnStalls(all)
	for _, s := range began {
		w.o.Log.Error("stalled: there is work, and none of it was done for group.stall_timeout; /livez fails",
			append(fieldsOf(s), zap.Duration("stall_timeout", w.o.Timeout))...)
	}
	for _, s := range ended {
		w.o.Log.Info("a stall has ended", append(fieldsOf(s), zap.Duration("lasted", now.Sub(s.Since)))...)
	}
}

func fieldsOf(s Stall) []zap.Field {
	fields := []zap.Field{zap.String("part", s.Part), zap.String("work", s.Work), zap.Time("since", s.Since)}
	if s.Partition != Pod {
		fields = append(fields, zap.Int32("partition", s.Partition))
	}
	return fields
}

// Stalls lists what has stalled, as of the last look. It waits for nobody, and
// the list must not be changed.
func (w *Watch) Stalls() []Stall { return *w.now.Load() }

// Stalled reports whether the partition has stalled, or the pod as a whole.
func Stalled(stalls []Stall, partition int32) bool {
	for _, s := range stalls {
		if s.Partition == partition || s.Partition == Pod {
			return true
		}
	}
	return false
}
