package kafka

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// absence is since when somebody is away, and what the last try failed with.
// What is handed out is not changed any more.
type absence struct {
	since, last time.Time
	err         error
}

// again is the absence after another try that failed; a is nil before the first.
func (a *absence) again(now time.Time, err error) *absence {
	next := &absence{since: now, last: now, err: err}
	if a != nil {
		next.since = a.since
	}
	return next
}

const (
	// awayFor is how long somebody may be away without saying: a restart of the
	// process behind an address that connections are refused at for a moment is no
	// news.
	awayFor = 2 * time.Second
	// mostAbsent bounds how many brokers are told of one by one.
	mostAbsent = 5
)

// tell says since when, and why; "" where that is not for long.
func (a *absence) tell(now time.Time, what string) string {
	if a == nil || now.Sub(a.since) < awayFor {
		return ""
	}
	return fmt.Sprintf("%s since %s: %v", what, a.since.UTC().Format(time.RFC3339), a.err)
}

// CoordinatorAway says since when the group's coordinator has been looked for in
// vain, and why; "" where it has not.
func (c *Clients) CoordinatorAway() string {
	return c.beat.away.Load().tell(time.Now(), "the group's coordinator has been away")
}

// missed notes that a broker takes no connection.
func (a *Access) missed(broker string, err error) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, before := a.now(), a.absent[broker]
	if before != nil && now.Sub(before.last) > refusalCounts {
		before = nil // nobody knows what was in between
	}
	a.absent[broker] = before.again(now, err)
}

// reached notes that a broker takes connections.
func (a *Access) reached(broker string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.absent, broker)
}

// Unreachable says which brokers take no connection, since when and why, in their
// order, as far as somebody has tried within the last half minute: at most a
// handful of them one by one.
func (a *Access) Unreachable() []string {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for broker, gone := range a.absent {
		if a.now().Sub(gone.last) > refusalCounts {
			continue
		}
		if text := gone.tell(a.now(), "broker "+broker+" cannot be reached"); text != "" {
			all = append(all, text)
		}
	}
	slices.SortFunc(all, strings.Compare)
	if more := len(all) - mostAbsent; more > 0 {
		all = append(all[:mostAbsent], fmt.Sprintf("%d more brokers cannot be reached", more))
	}
	return all
}
