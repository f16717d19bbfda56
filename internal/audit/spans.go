package audit

import "sort"

// late are the ticks of one symbol up to an event time, as far as they matter
// to a notification of that time: where a tick has both a later event time and
// a higher offset than another, the other never does. So offsets fall from the
// front to the back, and for ticks that come in order there is only one.
type late []version

func (l late) with(v version) late {
	for len(l) > 0 && l[len(l)-1].offset < v.offset {
		l = l[:len(l)-1]
	}
	return append(l, v)
}

// any tells whether one of the ticks from this time on has at least this offset.
func (l late) any(from, offset int64) bool {
	i := sort.Search(len(l), func(i int) bool { return l[i].time >= from })
	return i < len(l) && l[i].offset >= offset
}

// sweep goes through one symbol's ticks and notifications by event time.
type sweep struct {
	partition int32
	symbol    symbol
	ticks     late
	prices    late // those that are not tombstones
	newest    version
	some      bool
}

// settleSpans finds the alerts that a later tick would have changed, and says
// what the market has for notifications without an output.
func (a *auditor) settleSpans() error {
	rows, err := a.spans.sorted()
	if err != nil {
		return err
	}
	var w sweep
	for s := rows.peek(); s != nil; s = rows.peek() {
		if s.partition != w.partition || s.symbol != w.symbol {
			w = sweep{partition: s.partition, symbol: s.symbol, ticks: w.ticks[:0], prices: w.prices[:0]}
		}
		switch {
		case !s.asks:
			w.take(version{time: s.time, offset: s.offset, none: s.none})
		case s.kind == isDrop:
			if err := a.drops.add(&drop{note: s.alert, priced: w.some && !w.newest.none}); err != nil {
				return err
			}
		default:
			a.revise(s, &w)
		}
		if err := rows.advance(); err != nil {
			return err
		}
	}
	return nil
}

func (w *sweep) take(v version) {
	w.newest, w.some = v, true
	w.ticks = w.ticks.with(v)
	if !v.none {
		w.prices = w.prices.with(v)
	}
}

// revise counts an alert that a later tick would have given another price. A
// tombstone changes nothing for one that has none.
func (a *auditor) revise(s *span, w *sweep) {
	ticks := w.ticks
	if s.none {
		ticks = w.prices
	}
	if !ticks.any(s.from, s.offset) {
		return
	}
	a.report.Revised++
	a.say(kindRevised, a.topics.Alerts.Name, s.alert, "a tick at or above %d/%d, of no later event time, would have won", s.partition, s.offset)
}

// settleDrops counts the notifications without an output: where any partition
// had a price, they were not to be dropped.
func (a *auditor) settleDrops() error {
	rows, err := a.drops.sorted()
	if err != nil {
		return err
	}
	for d := rows.peek(); d != nil; d = rows.peek() {
		note, priced := d.note, false
		for ; d != nil && d.note == note; d = rows.peek() {
			priced = priced || d.priced
			if err := rows.advance(); err != nil {
				return err
			}
		}
		if priced {
			a.lost(note, nil)
			continue
		}
		a.dropped(note, "no price, and join.on_miss is drop")
	}
	return nil
}
