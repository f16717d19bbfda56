package audit

import (
	"context"
	"math"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

type questionStream = stream[question, *question]

// replayer takes the ticks of one market partition in offset order and answers
// the questions as it passes the offsets that they cite.
type replayer struct {
	*auditor
	partition int32
	x         extent
	table     *table
	questions *questionStream
	rows      *outputStream

	position int64 // the next offset to come
	gap      bool  // offsets below it have no record
}

// replay goes through the market partitions.
func (a *auditor) replay(ctx context.Context, questions *questionStream, rows *outputStream) error {
	for p, x := range a.market {
		r := &replayer{
			auditor: a, partition: int32(p), x: x, questions: questions, rows: rows,
			table: newTable(a.o.History.Milliseconds()), position: x.start,
		}
		if err := r.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *replayer) run(ctx context.Context) error {
	if r.question(math.MaxInt64) == nil && r.row(math.MaxInt64) == nil {
		return nil // nobody wants to know anything of this partition
	}
	err := r.read(ctx, r.topics.Market.Name, r.partition, r.x.from, r.x.end, func(rec *record.Record) error {
		return r.take(ctx, rec)
	})
	if err != nil {
		return err
	}
	return r.reach(ctx, r.x.end)
}

// question returns the next question of this partition that cites at most
// offset next.
func (r *replayer) question(next int64) *question {
	q := r.questions.peek()
	if q == nil || q.partition != r.partition || q.next > next {
		return nil
	}
	return q
}

// row returns the next dead letter of a tick below offset.
func (r *replayer) row(offset int64) *output {
	o := r.rows.peek()
	if o == nil || o.side != marketSide || o.source.partition != r.partition || o.source.offset >= offset {
		return nil
	}
	return o
}

// reach answers what cites offsets up to this one, which is the next to come,
// and settles dead letters of ticks below it that are not there.
func (r *replayer) reach(ctx context.Context, offset int64) error {
	for q := r.question(offset); q != nil; q = r.question(offset) {
		// Nothing lies between the last record and the one at offset, so a
		// citation between them has a gap below it if there is one.
		r.gap = r.gap || q.next > r.position
		if err := r.answer(q); err != nil {
			return err
		}
		if err := r.questions.advance(); err != nil {
			return err
		}
	}
	r.gap = r.gap || offset > r.position
	for o := r.row(offset); o != nil; o = r.row(offset) {
		if err := r.orphan(ctx, o); err != nil {
			return err
		}
		if err := r.rows.advance(); err != nil {
			return err
		}
	}
	return nil
}

// orphan deals with a dead letter whose tick is not there.
func (r *replayer) orphan(ctx context.Context, o *output) error {
	if !r.inWindow(o.when) {
		return nil
	}
	if err := r.refreshMarket(ctx, r.partition); err != nil {
		return err
	}
	if r.topics.Market.Compacted || o.source.offset < r.market[r.partition].start {
		r.unverifiable(r.topicOf(o), o.at, "%s was deleted", r.sourceName(o))
		return nil
	}
	r.foreign(r.topicOf(o), o.at, "there is no %s", r.sourceName(o))
	return nil
}

func (r *replayer) take(ctx context.Context, rec *record.Record) error {
	if err := r.reach(ctx, rec.Offset); err != nil {
		return err
	}
	r.position = rec.Offset + 1
	r.report.Ticks++
	tick, bad := r.o.DecodeTick(rec)
	if err := r.deadLetters(rec, bad); err != nil {
		return err
	}
	if bad != nil {
		return nil
	}
	return r.apply(&tick, rec.Offset)
}

// deadLetters holds a tick against the dead letters that name it.
func (r *replayer) deadLetters(rec *record.Record, bad *enrich.Bad) error {
	o := r.row(rec.Offset + 1)
	if o == nil && bad == nil {
		return nil // the usual case
	}
	inside := r.inWindow(int64(rec.Timestamp))
	n := original{
		offset: rec.Offset, bad: bad, meta: r.hash.meta(rec.Key, rec.Headers),
		value: r.hash.bytes(rec.Value), bytes: int64(len(rec.Value)), when: int64(rec.Timestamp),
	}
	count := 0
	for ; o != nil; o = r.row(rec.Offset + 1) {
		if inside {
			count++
			r.deadLetter(&n, o, count)
		}
		if err := r.rows.advance(); err != nil {
			return err
		}
	}
	if !inside || bad == nil {
		return nil
	}
	if count > 0 {
		r.report.TicksDeadLettered++
		return nil
	}
	r.missingDeadLetter(&n)
	return nil
}

func (r *replayer) deadLetter(n *original, o *output, count int) {
	if count > 1 {
		r.report.Doubled++
		r.say(kindDoubled, r.topicOf(o), o.at, "%s has another dead letter", r.sourceName(o))
	}
	var why string
	switch {
	case o.flaw != flawNone:
		why = o.flaw.String()
	case n.bad == nil:
		why = "it is " + string(o.kindName()) + ", and the tick is good"
	case n.bad.Kind != o.kindName():
		why = "it is " + string(o.kindName()) + ", and the tick is " + string(n.bad.Kind)
	default:
		why = r.judgeDeadCopy(n, o)
	}
	if why != "" {
		r.wrong(r.topicOf(o), o.at, "of %s: %s", r.sourceName(o), why)
		return
	}
	r.report.Verified++
}

// missingDeadLetter counts a bad tick without a dead letter, if one is to be
// expected: an alert cites an offset above it, so it has been merged.
func (r *replayer) missingDeadLetter(n *original) {
	dead := &r.topics.DeadLetters
	if dead.Partitions == 0 || dead.Compacted || r.dead[r.partition%dead.Partitions].start > 0 {
		return
	}
	q := r.question(math.MaxInt64)
	if q == nil {
		return
	}
	r.report.TicksLost++
	r.say(kindTickLost, r.topics.Market.Name, place{r.partition, n.offset}, "it is %s, was merged, and there is no dead letter", n.bad.Kind)
}

// apply merges a tick into the table, and keeps it for later where a
// notification with a later event time has been joined without it.
func (r *replayer) apply(tick *record.Tick, offset int64) error {
	v := version{time: int64(tick.EventTime), offset: offset, none: tick.Tombstone}
	if !tick.Tombstone {
		v.price = r.hash.price(tick.Price)
	}
	symbol := r.hash.symbol(tick.Symbol)
	e := r.table.entry(symbol)
	r.table.apply(e, v)
	if !e.asked || e.latest < v.time {
		return nil
	}
	return r.spans.add(&span{partition: r.partition, symbol: symbol, time: v.time, offset: offset, none: v.none})
}

// answer compares what an alert says with what the table says.
func (r *replayer) answer(q *question) error {
	if q.kind == isDrop {
		e := r.table.entry(q.symbol)
		e.ask(q.time)
		return r.spans.add(&span{
			partition: r.partition, symbol: q.symbol, time: q.time, asks: true, offset: math.MinInt64,
			kind: isDrop, from: math.MinInt64, alert: q.alert,
		})
	}
	e := r.table.entry(q.symbol)
	v, found := r.table.at(e, q.time)
	priced := found && !v.none
	switch {
	case q.kind == isNone && q.next <= r.x.start && r.x.start > 0:
		r.unverifiable(r.topics.Alerts.Name, q.alert, "all ticks below %d/%d were deleted", q.partition, q.next)
		return nil
	case q.kind == isNone && !priced:
		return r.right(q, e, v, found)
	case q.kind == isHit && priced && v.offset == q.tick:
		if v.time != q.tickTime || v.price != q.price {
			r.wrong(r.topics.Alerts.Name, q.alert, "the tick at %d/%d has another price or event time", q.partition, q.tick)
			return nil
		}
		return r.right(q, e, v, found)
	}
	d := doubt{
		partition: q.partition, tick: q.tick, alert: q.alert, kind: q.kind, symbol: q.symbol,
		tickTime: q.tickTime, price: q.price, found: found, gap: r.gap,
	}
	if q.kind == isNone {
		d.tick = math.MinInt64
	}
	if found {
		d.time, d.offset = v.time, v.offset
	}
	return r.doubts.add(&d)
}

// right counts an alert that says what the ticks say, and has the ticks to come
// looked at for one that would have won.
func (r *replayer) right(q *question, e *entry, v version, found bool) error {
	r.report.Verified++
	if r.x.start > 0 || r.topics.Market.Compacted && r.gap {
		r.report.Uncontradicted++
	}
	from, possible := r.table.wouldWin(e, v, found, q.time)
	if !q.last || !possible {
		return nil
	}
	e.ask(q.time)
	return r.spans.add(&span{
		partition: r.partition, symbol: q.symbol, time: q.time, asks: true, offset: q.next,
		none: q.kind == isNone, kind: q.kind, from: from, alert: q.alert,
	})
}
