package audit

import (
	"context"
	"errors"

	"joiner/internal/record"
)

// errFar ends a reading whose next doubt lies far ahead.
var errFar = errors.New("the next doubt lies far ahead")

// farAhead is how many offsets are read over rather than fetched anew.
const farAhead = 50_000

type doubtStream = stream[doubt, *doubt]

// settleDoubts holds the alerts that the ticks do not bear out against the tick
// that each names.
func (a *auditor) settleDoubts(ctx context.Context) error {
	rows, err := a.doubts.sorted()
	if err != nil {
		return err
	}
	for d := rows.peek(); d != nil; d = rows.peek() {
		if err := a.refreshMarket(ctx, d.partition); err != nil {
			return err
		}
		if d.kind == isNone {
			a.settleNone(d)
			if err := rows.advance(); err != nil {
				return err
			}
			continue
		}
		if err := a.settleFrom(ctx, rows, *d); err != nil {
			return err
		}
	}
	return nil
}

// refreshMarket asks where the partition begins now, since retention goes on.
func (a *auditor) refreshMarket(ctx context.Context, partition int32) error {
	start, _, err := a.log.Bounds(ctx, a.topics.Market.Name, partition)
	if err != nil {
		return err
	}
	a.market[partition].start = max(a.market[partition].start, start)
	return nil
}

// holes tells whether ticks that were below the citation are gone.
func (a *auditor) holes(d *doubt) bool {
	return a.market[d.partition].start > 0 || a.topics.Market.Compacted && d.gap
}

// settleNone judges an alert without a price, though the ticks that are left
// give one: a tombstone among those that are gone may have been newer.
func (a *auditor) settleNone(d *doubt) {
	if a.holes(d) {
		a.unverifiable(a.topics.Alerts.Name, d.alert, "it has no price, %d/%d has one, and earlier ticks are gone", d.partition, d.offset)
		return
	}
	a.wrong(a.topics.Alerts.Name, d.alert, "it has no price, and the ticks below joiner-market give the one of %d/%d", d.partition, d.offset)
}

// settleFrom reads the market from the tick of the first doubt on.
func (a *auditor) settleFrom(ctx context.Context, rows *doubtStream, first doubt) error {
	p := first.partition
	next := func(below int64) *doubt {
		d := rows.peek()
		if d == nil || d.partition != p || d.tick >= below {
			return nil
		}
		return d
	}
	absent := func(below int64) error {
		if next(below) == nil {
			return nil
		}
		if err := a.refreshMarket(ctx, p); err != nil {
			return err
		}
		for d := next(below); d != nil; d = next(below) {
			a.settleAbsent(d)
			if err := rows.advance(); err != nil {
				return err
			}
		}
		return nil
	}
	end := a.market[p].end
	err := a.log.Read(ctx, a.topics.Market.Name, p, first.tick, end, func(records []record.Record) error {
		for i := range records {
			r := &records[i]
			if err := absent(r.Offset); err != nil {
				return err
			}
			for d := next(r.Offset + 1); d != nil; d = next(r.Offset + 1) {
				a.settlePresent(d, r)
				if err := rows.advance(); err != nil {
					return err
				}
			}
			if next(r.Offset+farAhead) == nil {
				return errFar
			}
		}
		return nil
	}, nil)
	if errors.Is(err, errFar) {
		return nil
	}
	if err != nil {
		return err
	}
	return absent(end)
}

// settleAbsent judges an alert whose tick is not there.
func (a *auditor) settleAbsent(d *doubt) {
	if a.topics.Market.Compacted || d.tick < a.market[d.partition].start {
		a.unverifiable(a.topics.Alerts.Name, d.alert, "its tick at %d/%d was compacted or deleted", d.partition, d.tick)
		return
	}
	a.wrong(a.topics.Alerts.Name, d.alert, "there is no tick at %d/%d", d.partition, d.tick)
}

// settlePresent judges an alert whose tick r is there, but is not the one that
// the ticks seen give.
func (a *auditor) settlePresent(d *doubt, r *record.Record) {
	topic := a.topics.Alerts.Name
	tick, bad := a.o.DecodeTick(r)
	switch {
	case bad != nil || tick.Tombstone || a.hash.symbol(tick.Symbol) != d.symbol:
		a.wrong(topic, d.alert, "the record at %d/%d is no price of its symbol", d.partition, d.tick)
	case int64(tick.EventTime) != d.tickTime || a.hash.price(tick.Price) != d.price:
		a.wrong(topic, d.alert, "the tick at %d/%d has another price or event time", d.partition, d.tick)
	case !a.holes(d) || d.found && d.time >= d.tickTime:
		// A newer one that is left beats it whatever else there was; of the same
		// event time, it is the one of the higher offset.
		a.wrong(topic, d.alert, "the ticks below joiner-market give the one at %d/%d, not at %d", d.partition, d.offset, d.tick)
	default:
		a.unverifiable(topic, d.alert, "its tick at %d/%d may have been the right one before earlier ticks were deleted", d.partition, d.tick)
	}
}
