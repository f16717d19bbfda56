package state

import (
	"slices"
	"sort"
	"unsafe"

	"joiner/internal/record"
)

// past holds a symbol's versions before the newest, oldest first, no two with
// the same time. Those before head were trimmed: moving the rest down for
// each of them would cost a busy symbol its whole history a tick.
type past struct {
	versions []version
	head     int
	spare    []byte // the buffer of the version trimmed last, for the next one
}

// minPast is the capacity below which a list is not made smaller.
const minPast = 64

const pastBytes = int64(unsafe.Sizeof(past{}))

func (t *Table) newPast() *past {
	t.bytes.Add(pastBytes)
	return &past{}
}

func (p *past) kept() []version { return p.versions[p.head:] }

// after returns the index of the first version later than at.
func after(kept []version, at record.Millis) int {
	return sort.Search(len(kept), func(i int) bool { return kept[i].time > at })
}

// push moves the newest version, with its buffer, to the end of the past, and
// leaves a spare buffer in its place.
func (t *Table) push(e *entry) {
	if e.past == nil {
		e.past = t.newPast()
	}
	p := e.past
	t.room(p)
	p.versions = append(p.versions, e.newest)
	e.newest.text, p.spare = p.spare, nil
}

// room makes sure that one more version fits: at least half of the list being
// trimmed, the rest moves down (into a smaller list after a burst), else the
// list grows.
func (t *Table) room(p *past) {
	if len(p.versions) < cap(p.versions) {
		return
	}
	before := cap(p.versions)
	kept := p.kept()
	switch {
	case p.head == 0 || len(kept) > before/2:
		p.versions, p.head = slices.Grow(kept, max(1, before/2)), 0
	case before > minPast && len(kept) <= before/4:
		p.versions, p.head = append(make([]version, 0, before/2), kept...), 0
	default:
		n := copy(p.versions, kept)
		clear(p.versions[n:])
		p.versions, p.head = p.versions[:n], 0
	}
	if grown := cap(p.versions) - before; grown != 0 {
		t.bytes.Add(int64(grown) * versionBytes)
	}
}

// trim drops what ended before the span began: every version whose successor
// was in force at the span's start already.
func (t *Table) trim(e *entry) {
	p := e.past
	if p == nil {
		return
	}
	start := t.spanStart(e)
	for p.head < len(p.versions) && e.successor(p.head).time <= start {
		v := &p.versions[p.head]
		t.bytes.Add(-int64(cap(p.spare)))
		p.spare, v.text = v.text, nil
		p.head++
	}
}

// successor returns the version that came after the i-th of the past.
func (e *entry) successor(i int) *version {
	if i+1 < len(e.past.versions) {
		return &e.past.versions[i+1]
	}
	return &e.newest
}

// applyLate inserts a tick older than the newest version among the past ones,
// unless its time is taken by a higher offset or lies before the span, where
// another version was in force when the span began. It reports whether it has
// changed anything.
func (t *Table) applyLate(e *entry, tick *record.Tick, offset int64) bool {
	if t.history == 0 || tick.EventTime == e.newest.time {
		return false
	}
	if e.past == nil {
		e.past = t.newPast()
	}
	p := e.past
	i := p.head + after(p.kept(), tick.EventTime)
	if i > p.head && p.versions[i-1].time == tick.EventTime {
		if p.versions[i-1].offset >= offset {
			return false
		}
		t.set(&p.versions[i-1], tick, offset)
		return true
	}
	if e.successor(i-1).time <= t.spanStart(e) {
		return false
	}
	head := p.head
	t.room(p)
	i -= head - p.head
	p.versions = slices.Insert(p.versions, i, version{})
	t.set(&p.versions[i], tick, offset)
	t.trim(e)
	return true
}
