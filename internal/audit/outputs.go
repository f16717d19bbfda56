package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

// flaw is what is wrong with an output whatever its source was.
type flaw uint8

const (
	flawNone flaw = iota
	flawHeaders
	flawValue
	flawPartition
	flawCitation
	flawUncited
	flawCitedElsewhere
	flawCitedBelow
	flawKind
	flawBytes
)

func (f flaw) String() string {
	return [...]string{
		"", "its last headers are not those that joiner adds", "its value is no enriched alert",
		"it is in another partition than its notification", "its joiner-market cannot be read",
		"a price without joiner-market", "joiner-market names another partition than market does",
		"the tick that it names is not below joiner-market", "its joiner-error-kind is none", "its joiner-value-bytes cannot be read",
	}[f]
}

// readOutputs makes a row of every alert and dead letter.
func (a *auditor) readOutputs(ctx context.Context) error {
	for p, x := range a.alerts {
		err := a.read(ctx, a.topics.Alerts.Name, int32(p), x.from, x.end, func(r *record.Record) error {
			return a.takeOutput(r, output{at: place{int32(p), r.Offset}})
		})
		if err != nil {
			return err
		}
	}
	for p, x := range a.dead {
		err := a.read(ctx, a.topics.DeadLetters.Name, int32(p), x.from, x.end, func(r *record.Record) error {
			return a.takeOutput(r, output{at: place{int32(p), r.Offset}, dead: true})
		})
		if err != nil {
			return err
		}
	}
	// What was deleted meanwhile has not been read either.
	return errors.Join(a.refreshStarts(ctx, a.topics.Alerts, a.alerts), a.refreshStarts(ctx, a.topics.DeadLetters, a.dead))
}

func (a *auditor) refreshStarts(ctx context.Context, t Topic, all []extent) error {
	for p := range all {
		start, _, err := a.log.Bounds(ctx, t.Name, int32(p))
		if err != nil {
			return err
		}
		all[p].start = max(all[p].start, start)
	}
	return nil
}

// takeOutput puts one output among the rows, unless it has no source that could
// be known or one outside the window.
func (a *auditor) takeOutput(r *record.Record, o output) error {
	i := lastHeader(r.Headers, enrich.HeaderSource)
	if i < 0 {
		a.foreignIn(r, &o, "no %s", enrich.HeaderSource)
		return nil
	}
	source, err := enrich.ParseSource(r.Headers[i].Value)
	if err != nil {
		a.foreignIn(r, &o, "%v", err)
		return nil
	}
	o.source = place{source.Partition, source.Offset}
	var known []extent
	switch {
	case source.Topic == a.topics.Notifications.Name:
		o.side, known = noteSide, a.notes
	case source.Topic == a.topics.Market.Name && o.dead:
		o.side, known = marketSide, a.market
	default:
		a.foreignIn(r, &o, "of topic %q", source.Topic)
		return nil
	}
	switch {
	case int(source.Partition) >= len(known) || source.Offset >= a.ends(o.side)[source.Partition]:
		a.foreignIn(r, &o, "%s is above what there is", r.Headers[i].Value)
		return nil
	case source.Offset >= known[source.Partition].end:
		return nil // written since the audit began
	}
	o.when = int64(r.Timestamp)
	o.meta = a.hash.meta(r.Key, r.Headers[:i])
	if o.dead {
		a.describeDead(&o, r, r.Headers[i+1:])
	} else {
		a.describeAlert(&o, r, r.Headers[i+1:])
	}
	return a.outputs.add(&o)
}

// ends returns above which offset nothing has a source.
func (a *auditor) ends(side uint8) []int64 {
	if side == noteSide {
		return a.noteEnds
	}
	ends := make([]int64, len(a.market))
	for p, x := range a.market {
		ends[p] = x.end
	}
	return ends
}

// foreignIn counts an output without a source, if its own timestamp, which is
// its notification's, lies in the window.
func (a *auditor) foreignIn(r *record.Record, o *output, format string, args ...any) {
	if !a.inWindow(int64(r.Timestamp)) {
		return
	}
	a.countAlert(o)
	a.foreign(a.topicOf(o), o.at, format, args...)
}

func (a *auditor) countAlert(o *output) {
	if !o.dead {
		a.report.Alerts++
	}
}

func lastHeader(headers []record.Header, name string) int {
	for i, h := range slices.Backward(headers) {
		if string(h.Key) == name {
			return i
		}
	}
	return -1
}

// describeAlert fills the row of an alert, added being the headers behind
// joiner-source.
func (a *auditor) describeAlert(o *output, r *record.Record, added []record.Header) {
	o.flaw = a.describeJoin(o, r.Value, added)
	if o.flaw == flawNone && o.at.partition != o.source.partition {
		o.flaw = flawPartition
	}
}

func (a *auditor) describeJoin(o *output, value []byte, added []record.Header) flaw {
	alert, err := enrich.ParseAlert(value)
	if err != nil {
		return flawValue
	}
	note := embedded(value, alert.Notification)
	o.value, o.bytes = a.hash.bytes(note), int64(len(note))
	m := &o.claim
	m.result, m.remote, m.notAsOf = uint8(alert.Result), alert.Locality == record.Remote, alert.NotAsOf
	switch {
	case len(added) > 1 || len(added) == 1 && string(added[0].Key) != enrich.HeaderMarket:
		return flawHeaders
	case len(added) == 1:
		c, err := enrich.ParseCitation(added[0].Value)
		if err != nil {
			return flawCitation
		}
		m.cited, m.citation = true, place{c.Partition, c.Next}
	}
	if alert.Market == nil {
		return flawNone
	}
	m.priced = true
	m.symbol = a.hash.symbol(alert.Market.Symbol)
	m.price = a.hash.price([]byte(alert.Market.Price))
	m.time, m.age = int64(alert.Market.EventTime), alert.Market.AgeMS
	m.tick = place{alert.Market.Partition, alert.Market.Offset}
	switch {
	case !m.cited:
		return flawUncited
	case m.citation.partition != m.tick.partition:
		return flawCitedElsewhere
	case m.tick.offset < 0 || m.tick.offset >= m.citation.offset:
		return flawCitedBelow
	}
	return flawNone
}

// describeDead fills the row of a dead letter.
func (a *auditor) describeDead(o *output, r *record.Record, added []record.Header) {
	o.value, o.bytes = a.hash.bytes(r.Value), int64(len(r.Value))
	if len(added) < 2 || len(added) > 3 || string(added[0].Key) != enrich.HeaderErrorKind || string(added[1].Key) != enrich.HeaderError {
		o.flaw = flawHeaders
		return
	}
	kind := slices.IndexFunc(record.Kinds(), func(k record.Kind) bool { return string(k) == string(added[0].Value) })
	if kind < 0 {
		o.flaw = flawKind
		return
	}
	o.kind = uint8(kind)
	if len(added) == 2 {
		return
	}
	bytesText := string(added[2].Value)
	n, err := strconv.ParseInt(bytesText, 10, 64)
	if string(added[2].Key) != enrich.HeaderValueBytes || err != nil || len(r.Value) > 0 || bytes.HasPrefix(added[2].Value, []byte("+")) {
		o.flaw = flawBytes
		return
	}
	o.shrunk, o.bytes = true, n
}

func (o *output) kindName() record.Kind { return record.Kinds()[o.kind] }

// source names what an output came from.
func (a *auditor) sourceName(o *output) string {
	topic := a.topics.Notifications.Name
	if o.side == marketSide {
		topic = a.topics.Market.Name
	}
	return fmt.Sprintf("%s/%d/%d", topic, o.source.partition, o.source.offset)
}
