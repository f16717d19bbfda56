package task

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"joiner/internal/enrich"
	"joiner/internal/metrics"
	"joiner/internal/record"
)

// joinState is where a notification's join stands.
type joinState struct {
	begun    time.Time            // when this attempt began, which may ask several partitions
	home     int32                // the market partition of the symbol; AnyPartition unknown
	ask      [MaxFormer + 2]int32 // partitions that may hold the price, in the order of asking
	asks     int
	placed   int // how many of them are where the partitioner puts the symbol, or put it once
	at       int // the one being asked
	asking   bool
	again    record.Millis // when to ask again; 0: not
	deadline record.Millis // when the wait for a first price ends; 0: it has not begun
	waiting  bool          // holds one of the pod's places for waiting ones
	final    bool          // match will not change

	match enrich.Match
	next  int64 // one above the owner's last market record
	known bool  // next and match.Partition are the owner's word
}

// line holds the places of one symbol that are not sent, in source order, as
// long as the first of them is open.
type line struct{ places []*place }

// waitList holds waiting places in the order of their deadlines: all wait
// equally long.
type waitList struct{ places []*place }

// join finds the notification's price or leaves its place open.
func (t *Task) join(p *place) {
	p.join.begun = p.taken
	t.plan(p)
	t.resolve(p)
	m := &t.merge
	var behind *line
	if len(m.lines) > 0 {
		behind = m.lines[string(p.note.Symbol)]
	}
	if behind == nil && p.join.final {
		p.plain = true
		if t.ledger.crowded {
			// Outputs are not settling: the record would hold its whole fetch
			// response in memory until they do.
			p.keep()
		}
		t.dispatch(p)
		return
	}
	p.keep()
	if behind == nil {
		behind = &line{}
		m.lines[string(p.note.Symbol)] = behind
	}
	behind.places = append(behind.places, p)
}

// keep copies what the place needs of the fetch response that it came in.
func (p *place) keep() {
	p.rec.Key = bytes.Clone(p.rec.Key)
	p.rec.Value = bytes.Clone(p.rec.Value)
	p.rec.Headers = append([]record.Header(nil), p.rec.Headers...)
	for i := range p.rec.Headers {
		h := &p.rec.Headers[i]
		h.Key, h.Value = bytes.Clone(h.Key), bytes.Clone(h.Value)
	}
	p.note.Symbol = bytes.Clone(p.note.Symbol)
	p.join.own(p.note.Symbol)
	p.size = p.rec.Size()
}

// own gives a match that is not encoded at once its own bytes: the table uses
// a price's again with the symbol's next tick, and the symbol is the record's.
func (j *joinState) own(symbol []byte) {
	j.match.Symbol = symbol
	j.match.Price = bytes.Clone(j.match.Price)
}

// plan lists the partitions that may hold the symbol's price: where the
// market's partitioner puts it, where it put it before the topic grew, newest
// first, and where the notification itself lies, whoever owns these: what is found must not
// depend on which pod has which partition.
func (t *Task) plan(p *place) {
	j := &p.join
	home, known := t.o.Placement.Home(p.note.Symbol)
	if !known {
		// The notification's own number first, then all others.
		j.home = AnyPartition
		j.add(t.o.Index)
		j.add(AnyPartition)
		return
	}
	j.home = home
	j.add(home)
	if home == t.o.Index && t.o.Mine[record.Market] && t.table.Holds(p.note.Symbol) {
		return // the usual case: the table has an answer, be it a tombstone
	}
	former := t.o.Placement.Former(p.note.Symbol)
	for _, partition := range former[:min(len(former), MaxFormer)] {
		j.add(partition)
	}
	j.placed = j.asks
	j.add(t.o.Index)
}

func (j *joinState) add(partition int32) {
	for _, known := range j.ask[:j.asks] {
		if known == partition {
			return
		}
	}
	j.ask[j.asks] = partition
	j.asks++
}

// removed ends the search behind the partition being asked where that has a
// tombstone of the symbol: it is newer than what lies under earlier counts, or
// where the partitioner never put the symbol.
func (j *joinState) removed() {
	if j.at < j.placed {
		j.at = j.asks - 1
	}
}

// resolve goes through the partitions that are left until one has the price,
// one must be waited for, or none is left.
func (t *Task) resolve(p *place) {
	j := &p.join
	for ; j.at < j.asks; j.at++ {
		q := j.ask[j.at]
		if q == t.o.Index && t.o.Mine[record.Market] {
			if t.lookHere(p) {
				return
			}
			if t.table.Holds(p.note.Symbol) {
				j.removed()
			}
			continue
		}
		j.asking = true
		t.ask(p, q)
		return
	}
	t.missed(p)
}

// lookHere answers from this task's own table.
func (t *Task) lookHere(p *place) bool {
	j := &p.join
	v, found, asOf := t.table.Price(p.note.Symbol, p.note.EventTime)
	if !found {
		if j.home == t.o.Index || j.home == AnyPartition {
			t.says(p, t.o.Index, t.table.Next())
		}
		return false
	}
	j.match = enrich.Match{
		Result: record.Hit, Locality: record.Local, Symbol: p.note.Symbol,
		Price: v.Text, PriceTime: v.EventTime, Partition: t.o.Index, Offset: v.Offset,
	}
	if t.o.Index != j.home && j.home != AnyPartition {
		j.match.NotAsOf = !asOf
	}
	t.says(p, t.o.Index, t.table.Next())
	t.settle(p)
	return true
}

// says notes whose word the outcome rests on.
func (t *Task) says(p *place, partition int32, next int64) {
	p.join.match.Partition, p.join.next, p.join.known = partition, next, true
}

// ask looks a price up elsewhere. The answer comes through the inbox.
func (t *Task) ask(p *place, partition int32) {
	q := Query{Symbol: string(p.note.Symbol), Partition: partition, Except: t.o.Index, At: p.note.EventTime, Since: p.taken, Begun: p.join.begun}
	t.o.Prices.Ask(t.ctx, q, func(a Answer) {
		t.mu.Lock()
		t.inbox.answers = append(t.inbox.answers, placeAnswer{p, a})
		t.mu.Unlock()
		t.poke()
	})
}

type placeAnswer struct {
	p *place
	a Answer
}

// answered goes on with a place that asked.
func (t *Task) answered(r placeAnswer) {
	p, a := r.p, r.a
	j := &p.join
	if !j.asking || j.final {
		return // its wait ended meanwhile
	}
	j.asking = false
	asked := j.ask[j.at]
	if a.Known && (a.Outcome == Found || asked == j.home || asked == t.o.Index && j.home == AnyPartition) {
		t.says(p, a.Partition, a.Next)
	}
	switch a.Outcome {
	case Found:
		j.match = enrich.Match{
			Result: record.Hit, Locality: t.localityOf(a.Partition), Symbol: p.note.Symbol,
			Price: []byte(a.Price.Text), PriceTime: a.Price.EventTime, Partition: a.Price.Partition, Offset: a.Price.Offset,
			NotAsOf: !a.AsOf,
		}
		t.settle(p)
	case NoPrice:
		if a.Held {
			j.removed()
		}
		j.at++
		t.resolve(p)
		j.own(p.note.Symbol)
	case NotAsked:
		t.outcome(p, record.Miss)
	default:
		t.outcome(p, record.NoInfo)
	}
	t.advanceLine(p)
}

func (t *Task) localityOf(partition int32) record.Locality {
	if partition == t.o.Index && t.o.Mine[record.Market] {
		return record.Local
	}
	if t.o.Prices.Owns(partition) {
		return record.Local
	}
	return record.Remote
}

// missed ends an attempt that found no price: the notification waits for a
// first one where it may, else it is a miss.
func (t *Task) missed(p *place) {
	j := &p.join
	if !t.mayWait(p) {
		t.outcome(p, record.Miss)
		return
	}
	if t.o.Mine[record.Market] && (j.home == t.o.Index || j.home == AnyPartition) && t.lookHere(p) {
		j.own(p.note.Symbol) // its tick came while somebody else was asked
		return
	}
	if j.home != t.o.Index || !t.o.Mine[record.Market] {
		j.again = t.clock() + record.Millis(askAgain.Milliseconds())
		t.merge.asks = append(t.merge.asks, p)
		t.wakeBy(j.again)
	}
}

// mayWait starts the notification's clock, once, and reports whether it is
// still running.
func (t *Task) mayWait(p *place) bool {
	j := &p.join
	if t.o.Wait <= 0 {
		return false
	}
	now := t.clock()
	if j.waiting {
		return now < j.deadline
	}
	if j.deadline != 0 || !t.o.Waiting.take() {
		return false
	}
	j.waiting = true
	j.deadline = now + record.Millis(t.o.Wait.Milliseconds())
	t.merge.waiting.places = append(t.merge.waiting.places, p)
	t.wakeBy(j.deadline)
	return true
}

// priceCame ends the waits for a symbol that has just got a price.
func (t *Task) priceCame(symbol []byte) {
	l := t.merge.lines[string(symbol)]
	if l == nil {
		return
	}
	for _, p := range l.places {
		j := &p.join
		if j.final || j.asking || j.home != t.o.Index && j.home != AnyPartition {
			continue
		}
		j.begun = time.Now()
		if t.lookHere(p) {
			j.own(p.note.Symbol) // it may have to wait for those before it
		}
	}
	t.advanceSymbol(string(symbol), l)
}

// expireWaits turns waits whose time is up into misses, traffic or not.
func (t *Task) expireWaits() {
	w := &t.merge.waiting
	if len(w.places) == 0 {
		return
	}
	now := t.clock()
	for len(w.places) > 0 {
		p := w.places[0]
		if !p.join.final {
			if p.join.deadline > now {
				t.wakeBy(p.join.deadline)
				return
			}
			p.join.asking = false
			t.outcome(p, record.Miss)
			t.advanceLine(p)
		}
		w.places[0] = nil
		w.places = w.places[1:]
	}
	w.places = nil
}

// repeatAsks repeats the questions of waiting notifications whose owner had no
// price yet.
func (t *Task) repeatAsks() {
	m := &t.merge
	if len(m.asks) == 0 {
		return
	}
	now := t.clock()
	due := m.asks
	m.asks = nil
	for _, p := range due {
		switch {
		case p.join.final:
		case p.join.again > now:
			m.asks = append(m.asks, p)
			t.wakeBy(p.join.again)
		default:
			p.join.at = 0
			p.join.begun = time.Now()
			t.resolve(p)
			p.join.own(p.note.Symbol)
			t.advanceLine(p)
		}
	}
}

// outcome ends a join without a price.
func (t *Task) outcome(p *place, r record.Result) {
	j := &p.join
	m := enrich.Match{Result: r, Symbol: p.note.Symbol, Partition: j.match.Partition}
	home := j.home
	if home == AnyPartition {
		home = t.o.Index // nobody knows better than the notification's own number
		m.Partition = home
	}
	m.Locality = t.localityOf(home)
	j.match = m
	t.settle(p)
}

// settle makes the match final.
func (t *Task) settle(p *place) {
	p.join.final = true
	t.stopWaiting(p)
}

// stopWaiting gives the place's share of the pod's allowance back.
func (t *Task) stopWaiting(p *place) {
	if p.join.waiting {
		p.join.waiting = false
		t.o.Waiting.give()
	}
}

// advanceLine sends what has become ready at the head of a place's line.
func (t *Task) advanceLine(p *place) {
	symbol := string(p.note.Symbol)
	if l := t.merge.lines[symbol]; l != nil {
		t.advanceSymbol(symbol, l)
	}
}

func (t *Task) advanceSymbol(symbol string, l *line) {
	for len(l.places) > 0 && l.places[0].join.final {
		p := l.places[0]
		l.places[0] = nil
		l.places = l.places[1:]
		t.dispatch(p)
	}
	if len(l.places) == 0 {
		delete(t.merge.lines, symbol)
	}
}

// forgetWaits gives up the places that the next owner will fill.
func (t *Task) forgetWaits() {
	for _, l := range t.merge.lines {
		for _, p := range l.places {
			t.stopWaiting(p)
		}
	}
	t.merge.lines = nil
}

// dispatch turns a finished join into its output.
func (t *Task) dispatch(p *place) {
	t.countJoin(p)
	policy, kind, detail := Emit, record.NoPrice, "no price for the symbol at the notification's event time"
	switch p.join.match.Result {
	case record.Miss:
		policy = t.o.OnMiss
	case record.NoInfo:
		policy, kind, detail = t.o.OnUnavailable, record.Unavailable, "no owner of the symbol's price answered in time"
	}
	switch policy {
	case ToDeadLetter:
		t.deadLetter(p, kind, detail)
	case DropIt:
		t.drop(p, kind)
	default:
		t.alert(p)
	}
}

// alert encodes the enriched alert and sends it to the partition of the
// notification's own number.
func (t *Task) alert(p *place) {
	var cited *enrich.Citation
	if p.join.known {
		cited = &enrich.Citation{Partition: p.join.match.Partition, Next: p.join.next}
	}
	t.send(p, enrich.NewAlert(t.o.Alerts, t.source(p), &p.rec, p.note.EventTime, &p.join.match, cited))
}

// source names the place's record in headers.
func (t *Task) source(p *place) enrich.Source {
	return enrich.Source{Topic: t.o.Topics[p.side], Partition: t.o.Index, Offset: p.rec.Offset}
}

// deadLetter sends the place's record to the dead-letter topic, or counts it
// where there is none.
func (t *Task) deadLetter(p *place, kind record.Kind, detail string) {
	t.logBad(p, kind, detail)
	if t.o.DeadLetters == "" {
		t.drop(p, kind)
		return
	}
	p.kind = kind
	t.send(p, enrich.DeadLetter(t.o.DeadLetters, t.o.DeadLetterPartition(), t.source(p), &p.rec, kind, detail))
}

// drop leaves a record without an alert and without a dead letter. Bad records
// are counted as skipped alone, joins without a price by their reason as well.
func (t *Task) drop(p *place, kind record.Kind) {
	switch kind {
	case record.NoPrice:
		t.o.Metrics.Dropped[metrics.DropNoPrice].Inc()
	case record.Unavailable:
		t.o.Metrics.Dropped[metrics.DropUnavailable].Inc()
	}
	t.skipped(p)
}

// logBad names a record that becomes no alert. The detail quotes nothing of it.
func (t *Task) logBad(p *place, kind record.Kind, detail string) {
	topic, becomes := t.o.Topics[p.side], "a record becomes a dead letter"
	if t.o.DeadLetters == "" {
		becomes = "a record is skipped, since dead letters are turned off"
	}
	t.o.Faults.Warn("record "+topic+" "+string(kind), becomes,
		zap.String("topic", topic), zap.Int32("partition", t.o.Index), zap.Int64("offset", p.rec.Offset),
		zap.String("kind", string(kind)), zap.String("detail", detail))
}

// shrink sends a dead letter again without its value, which its topic did not
// take.
func (t *Task) shrink(p *place) {
	p.shrunk = true
	t.send(p, enrich.WithoutValue(p.out))
}

// date sends a dead letter again with the time of now: its topic did not take
// the record's own. No other time is sure to be within a topic's limits and not
// to be deleted at once.
func (t *Task) date(p *place) {
	p.dated = true
	o := *p.out
	o.Timestamp = nowMillis()
	t.send(p, &o)
}

// send puts the place's output into this run's share.
func (t *Task) send(p *place, o *record.Output) {
	o.Owner, o.Tag = t, p
	p.out = o
	t.merge.outs = append(t.merge.outs, o)
}

// placeOverhead is about what a place takes beside its output, in bytes.
const placeOverhead = 600

// kindOf names the kind of dead letter that a refusal becomes.
func kindOf(err error) record.Kind {
	var r *record.Refused
	if errors.As(err, &r) {
		return r.Kind
	}
	return record.Rejected
}

// where names a record in an error.
func (t *Task) where(side record.Side, offset int64) string {
	return fmt.Sprintf("%s/%d offset %d", t.o.Topics[side], t.o.Index, offset)
}
