package audit

import (
	"math"
	"slices"
	"sort"
)

// table holds the versions of each symbol of one market partition as the
// documented rule of join.history has them. It is written from that rule and
// shares nothing with the service's table.
type table struct {
	history int64 // milliseconds
	entries map[symbol]*entry
}

// version is a price, or that there is none, from its time on.
type version struct {
	time   int64
	offset int64
	price  uint64
	none   bool // a tombstone
}

// entry is a symbol: its versions, oldest first, no two of one time.
type entry struct {
	versions []version
	// latest is the newest event time of the notifications that were joined so
	// far, where there were any.
	latest int64
	asked  bool
}

func newTable(history int64) *table {
	return &table{history: max(history, 0), entries: make(map[symbol]*entry)}
}

// entry returns the symbol's, and makes one where it is new.
func (t *table) entry(s symbol) *entry {
	e := t.entries[s]
	if e == nil {
		e = &entry{}
		t.entries[s] = e
	}
	return e
}

// ask notes that a notification of this event time was joined.
func (e *entry) ask(time int64) {
	if !e.asked || time > e.latest {
		e.asked, e.latest = true, time
	}
}

// apply takes a tick, which has a higher offset than all before it, and so takes
// the place of one of the same event time. Of the versions that result it keeps those that are in force at any time
// from the start of the span on, which is history before the newest.
func (t *table) apply(e *entry, v version) {
	n := len(e.versions)
	switch {
	case n == 0 || v.time > e.versions[n-1].time:
		e.versions = append(e.versions, v)
	case v.time == e.versions[n-1].time:
		e.versions[n-1] = v
	default:
		t.insert(e, v)
	}
	t.trim(e)
}

func (t *table) insert(e *entry, v version) {
	i := sort.Search(len(e.versions), func(i int) bool { return e.versions[i].time >= v.time })
	if e.versions[i].time != v.time {
		e.versions = slices.Insert(e.versions, i, v)
		return
	}
	e.versions[i] = v
}

func (t *table) trim(e *entry) {
	start := t.spanStart(e)
	keep := 0
	for keep+1 < len(e.versions) && e.versions[keep+1].time <= start {
		keep++
	}
	if keep > 0 {
		n := copy(e.versions, e.versions[keep:])
		e.versions = e.versions[:n]
	}
}

// spanStart is history before the newest version. Without history it is that
// version's own time, so that no other is kept.
func (t *table) spanStart(e *entry) int64 {
	newest := e.versions[len(e.versions)-1].time
	if newest < math.MinInt64+t.history {
		return math.MinInt64
	}
	return newest - t.history
}

// at returns the version that answers for an event time: the one in force then,
// else the oldest that is kept.
func (t *table) at(e *entry, time int64) (v version, found bool) {
	if len(e.versions) == 0 {
		return version{}, false
	}
	i := sort.Search(len(e.versions), func(i int) bool { return e.versions[i].time > time })
	return e.versions[max(i-1, 0)], true
}

// wouldWin tells from which event time on a tick that is still to come, of at
// most the event time asked for, would take the place of the version v that
// answered. None can where it would be trimmed: the version that followed it
// was in force at the start of the span already.
func (t *table) wouldWin(e *entry, v version, found bool, time int64) (from int64, possible bool) {
	switch {
	case !found:
		return math.MinInt64, true
	case v.time <= time:
		return v.time, true
	default:
		return math.MinInt64, v.time > t.spanStart(e)
	}
}
