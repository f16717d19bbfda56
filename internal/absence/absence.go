// Package absence keeps since when somebody has been away and why, and says so
// once it is no passing thing any more: a broker that takes no connection, a
// coordinator, another pod.
//
// It must never ask anybody, hold up whoever notes a failure, or grow with
// whoever was away once.
package absence

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// silentFor is how long somebody may be away without saying: a restart of the
	// process behind an address that connections are refused at for a moment is no
	// news.
	silentFor = 2 * time.Second
	// Counts is how long a failure counts: nobody knows what has been since one
	// that is older.
	Counts = 30 * time.Second
	// most bounds how many are told of one by one.
	most = 5
)

// Absence is since when somebody is away, and what the last try failed with.
// What is handed out is not changed any more.
type Absence struct {
	since, last time.Time
	err         error
}

// Again is the absence after another try that failed; a is nil before the first.
func (a *Absence) Again(now time.Time, err error) *Absence {
	next := &Absence{since: now, last: now, err: err}
	if a != nil {
		next.since = a.since
	}
	return next
}

// Tell says since when, and why; "" where that is not for long.
func (a *Absence) Tell(now time.Time, what string) string {
	if a == nil || now.Sub(a.since) < silentFor {
		return ""
	}
	return fmt.Sprintf("%s since %s: %v", what, a.since.UTC().Format(time.RFC3339), a.err)
}

// Roll keeps who is away. Any goroutine may use it.
type Roll[Who comparable] struct {
	now func() time.Time

	mu   sync.Mutex
	away map[Who]*Absence
}

// NewRoll makes one on which nobody is.
func NewRoll[Who comparable](now func() time.Time) *Roll[Who] {
	return &Roll[Who]{now: now, away: make(map[Who]*Absence)}
}

// Missed notes a try that failed.
func (r *Roll[Who]) Missed(who Who, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	r.away[who] = r.away[who].Again(r.now(), err)
}

// Reached notes that somebody is there.
func (r *Roll[Who]) Reached(who Who) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.away, who)
}

// forget drops those whom nobody has tried for a while. r.mu is held.
func (r *Roll[Who]) forget() {
	now := r.now()
	for who, a := range r.away {
		if now.Sub(a.last) > Counts {
			delete(r.away, who)
		}
	}
}

// Tell says who is away, since when and why, in the order of the texts. What
// somebody does says one, "" where nobody is to be told of them. Beyond a handful
// the rest is a number, of which more says what they do.
func (r *Roll[Who]) Tell(one func(Who, error) string, more string) (notes []string) {
	r.mu.Lock()
	r.forget()
	for who, a := range r.away {
		what := one(who, a.err)
		if what == "" {
			continue
		}
		if note := a.Tell(r.now(), what); note != "" {
			notes = append(notes, note)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(notes, cmp.Compare)
	if n := len(notes) - most; n > 0 {
		notes = append(notes[:most], fmt.Sprintf("%d more %s", n, more))
	}
	return notes
}
