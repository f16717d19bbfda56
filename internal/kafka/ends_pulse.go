package kafka

import (
	"fmt"
	"time"

	"joiner/internal/record"
)

// errands counts what a goroutine of Ends does one after the other, and knows
// since when it waits for a broker. Guarded by Ends.mu.
type errands struct {
	n     uint64
	began time.Time // zero: it does not wait
}

// begin notes that a broker is waited for from now on, to the end.
func (e *Ends) begin(o *errands) (end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o.n++
	o.began = time.Now()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		o.n++
		o.began = time.Time{}
	}
}

// busy tells whether a broker is waited for.
func (e *errands) busy() bool { return !e.began.IsZero() && time.Since(e.began) < backstop }

// Pulses shows that questions are seen to: each is with the goroutine of a broker
// or with the search for leaders, which turn to them at once unless they wait for
// a broker themselves, and none is lost. It waits for nobody.
func (e *Ends) Pulses() []record.Pulse {
	if !record.TryLock(&e.mu) {
		return []record.Pulse{{Part: "ends", Work: "somebody holds the lock of the questions for ends"}}
	}
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	search := record.Pulse{Part: "ends: leaders", Done: e.search.n}
	if len(e.astray) > 0 && !e.search.busy() {
		search.Work = fmt.Sprintf("%d questions for ends wait for their leaders to be looked up, and nobody sees to it", len(e.astray))
	}
	pulses := []record.Pulse{search}
	waiting, busy := len(e.astray), e.search.busy()
	for _, l := range e.lanes {
		p := record.Pulse{Part: fmt.Sprintf("ends: broker %d", l.broker), Done: l.requests.n}
		if len(l.questions) > 0 && !l.requests.busy() {
			p.Work = fmt.Sprintf("%d questions for ends wait to be asked of broker %d, and nobody sees to it", len(l.questions), l.broker)
		}
		pulses = append(pulses, p)
		waiting += len(l.questions)
		busy = busy || l.requests.busy()
	}
	lost := record.Pulse{Part: "ends: answers", Done: e.told}
	if e.open > 0 && waiting == 0 && !busy {
		lost.Work = fmt.Sprintf("%d questions for ends are with nobody", e.open)
	}
	return append(pulses, lost)
}
