package audit

import (
	"cmp"
	"context"
	"math"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

type outputStream = stream[output, *output]

// ledger is what is known of one notification partition while its records and
// the outputs that name them go by, both in offset order.
type ledger struct {
	*auditor
	partition int32
	x         extent
	rows      *outputStream

	// last is where the newest output so far of each symbol lies, in the alerts
	// and among the dead letters.
	last [2]map[symbol]int64
	// seen tells of which topic there has been an output, and badSeen whether
	// of a record that cannot be joined: what retention has left of each begins
	// there.
	seen    [2]bool
	badSeen bool
	// asked is up to where the partition had been read when its start was last
	// asked for.
	asked int64
}

// account holds the notifications against the outputs that name them.
func (a *auditor) account(ctx context.Context, rows *outputStream) error {
	for p, x := range a.notes {
		l := &ledger{
			auditor: a, partition: int32(p), x: x, rows: rows, asked: -1,
			last: [2]map[symbol]int64{make(map[symbol]int64), make(map[symbol]int64)},
		}
		if err := l.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledger) run(ctx context.Context) error {
	topic := l.topics.Notifications.Name
	err := l.read(ctx, topic, l.partition, l.x.from, l.x.end, func(r *record.Record) error {
		if err := l.orphans(ctx, r.Offset); err != nil {
			return err
		}
		return l.note(r)
	})
	if err != nil {
		return err
	}
	return l.orphans(ctx, l.x.end)
}

// next returns the next row that names a source of this partition below offset.
func (l *ledger) next(offset int64) *output {
	o := l.rows.peek()
	if o == nil || o.side != noteSide || o.source.partition != l.partition || o.source.offset >= offset {
		return nil
	}
	return o
}

// orphans deals with the outputs whose source lies below offset and was not
// there.
func (l *ledger) orphans(ctx context.Context, offset int64) error {
	for o := l.next(offset); o != nil; o = l.next(offset) {
		if err := l.orphan(ctx, o, offset); err != nil {
			return err
		}
		if err := l.rows.advance(); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledger) orphan(ctx context.Context, o *output, readTo int64) error {
	if !l.inWindow(o.when) || l.since != math.MinInt64 && o.source.offset < l.x.from {
		return nil // outside the window
	}
	gone, err := l.gone(ctx, o.source.offset, readTo)
	if err != nil {
		return err
	}
	l.countAlert(o)
	l.seen[topicIndex(o)] = true
	if gone {
		l.unverifiable(l.topicOf(o), o.at, "%s was deleted", l.sourceName(o))
		return nil
	}
	l.foreign(l.topicOf(o), o.at, "there is no %s", l.sourceName(o))
	return nil
}

// gone tells whether the record at offset, which was not there when the
// partition was read up to readTo, may have been before.
func (l *ledger) gone(ctx context.Context, offset, readTo int64) (bool, error) {
	if l.topics.Notifications.Compacted || offset < l.x.start {
		return true, nil
	}
	if l.asked >= readTo {
		return false, nil
	}
	start, _, err := l.log.Bounds(ctx, l.topics.Notifications.Name, l.partition)
	if err != nil {
		return false, err
	}
	l.x.start, l.asked = max(l.x.start, start), readTo
	return offset < l.x.start, nil
}

func topicIndex(o *output) int {
	if o.dead {
		return 1
	}
	return 0
}

// original is a notification as its outputs must carry it.
type original struct {
	offset      int64
	note        record.Note
	bad         *enrich.Bad
	symbol      symbol
	meta, value uint64
	bytes       int64
	when        int64
	largest     int64 // bytes that its alert may have
}

// largest is about how large the alert of a notification can be: the symbol
// stands in it once more, each byte escaped at worst.
func largest(r *record.Record, note *record.Note) int64 {
	const escaped, frame = 6, 1 << 10
	n := len(r.Key) + len(r.Value) + escaped*len(note.Symbol) + frame
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 8
	}
	return int64(n)
}

// fits is how large an alert may be: what the broker takes by default where
// nobody could say.
func (l *ledger) fits() int64 {
	const standard = 1<<20 + 12
	most := cmp.Or(l.topics.Alerts.MaxBytes, standard)
	if l.o.MaxMessageBytes > 0 {
		most = min(most, l.o.MaxMessageBytes)
	}
	return most
}

// note holds a notification against its outputs.
func (l *ledger) note(r *record.Record) error {
	inside := l.inWindow(int64(r.Timestamp))
	n := original{offset: r.Offset}
	if inside {
		l.report.Notifications++
		n.note, n.bad = l.o.DecodeNote(r)
		n.symbol = l.hash.symbol(n.note.Symbol)
		n.meta, n.value, n.bytes = l.hash.meta(r.Key, r.Headers), l.hash.bytes(r.Value), int64(len(r.Value))
		n.when, n.largest = int64(r.Timestamp), largest(r, &n.note)
	}
	var copies copies
	for o := l.next(r.Offset + 1); o != nil; o = l.next(r.Offset + 1) {
		this := *o
		if err := l.rows.advance(); err != nil {
			return err
		}
		if !inside {
			continue
		}
		l.countAlert(&this)
		if err := l.take(&n, &this, &copies); err != nil {
			return err
		}
	}
	if !inside {
		return nil
	}
	if copies.of[0]+copies.of[1] == 0 {
		return l.missing(&n)
	}
	l.conclude(&n, &copies)
	return nil
}

// copies are the outputs of one notification.
type copies struct {
	of   [2]int64  // by topic
	last [2]output // of each
}

// take judges one output of the notification.
func (l *ledger) take(n *original, o *output, c *copies) error {
	i := topicIndex(o)
	if c.of[0]+c.of[1] > 0 {
		l.report.Doubled++
		l.say(kindDoubled, l.topicOf(o), o.at, "%s has another output", l.sourceName(o))
	}
	c.of[i]++
	c.last[i] = *o
	l.seen[i] = true
	if n.bad != nil && o.dead {
		l.badSeen = true
	}
	// The rows of one source come by topic and offset, so the last alert is
	// known when the next row is not one.
	peek := l.next(n.offset + 1)
	last := peek == nil || peek.dead != o.dead
	if o.dead {
		if why := l.judgeDead(n, o); why != "" {
			l.wrong(l.topicOf(o), o.at, "of %s: %s", l.sourceName(o), why)
		} else {
			l.report.Verified++
		}
		return nil
	}
	if why := l.judgeAlert(n, o); why != "" {
		l.wrong(l.topicOf(o), o.at, "of %s: %s", l.sourceName(o), why)
		return nil
	}
	return l.ask(n, o, last)
}

// judgeAlert says what is wrong with an alert, as far as its notification
// tells.
func (l *ledger) judgeAlert(n *original, o *output) string {
	m := &o.claim
	switch {
	case o.flaw != flawNone:
		return o.flaw.String()
	case n.bad != nil:
		return "the notification cannot be joined, it is " + string(n.bad.Kind)
	case o.meta != n.meta:
		return "its key or headers are not the notification's"
	case o.value != n.value:
		return "it does not carry the notification byte for byte"
	case o.when != n.when && !l.topics.Alerts.AppendTime:
		return "its timestamp is not the notification's"
	case m.priced && m.symbol != n.symbol:
		return "its market part is of another symbol"
	case m.priced && m.age != int64(n.note.EventTime)-m.time:
		return "its age_ms is not the notification's event time minus the tick's"
	case m.priced && m.remote && m.notAsOf != (m.age < 0):
		return "its as_of is not what the event times say"
	case m.notAsOf && (!m.priced || m.age >= 0):
		return "as_of is false, and the price is the one of the event time"
	case m.cited && (int(m.citation.partition) >= len(l.market) || m.citation.offset > l.market[m.citation.partition].end):
		return "joiner-market is above what there is"
	case !m.priced && m.cited && !l.mayAnswer(n.note.Symbol, m.citation.partition):
		return "the market partition in joiner-market never holds the symbol"
	case !m.priced && !m.cited && l.mustCite(n.note.Symbol, m):
		return "joiner-market is missing"
	}
	return ""
}

// mayAnswer tells whether a partition could be asked for the symbol's price:
// where its producers put it, now or when the topic had fewer partitions;
// under an unknown partitioner, where the notification lies.
func (l *ledger) mayAnswer(symbol []byte, partition int32) bool {
	count := l.topics.Market.Partitions
	home, known := l.o.Placer.Partition(symbol, count)
	if !known {
		return partition == l.partition
	}
	if partition == home {
		return true
	}
	for fewer := count - 1; fewer > partition; fewer-- {
		if former, ok := l.o.Placer.Former(symbol, fewer); ok && former == partition {
			return true
		}
	}
	return false
}

// mustCite tells whether somebody has answered a join without a price for sure:
// the pod that made it owned the symbol's partition, and did not wait.
func (l *ledger) mustCite(symbol []byte, m *claim) bool {
	home, known := l.o.Placer.Partition(symbol, l.topics.Market.Partitions)
	return l.o.LocalIsCertain && !m.remote && record.Result(m.result) == record.Miss && (!known || home == l.partition)
}

// judgeDead says what is wrong with a dead letter.
func (l *ledger) judgeDead(n *original, o *output) string {
	if o.flaw != flawNone {
		return o.flaw.String()
	}
	kind := o.kindName()
	switch kind {
	case record.NoPrice:
		if n.bad != nil || !l.o.DeadMisses {
			return "it is no_price, which the configuration does not dead-letter"
		}
	case record.Unavailable:
		if n.bad != nil || !l.o.DeadNoAnswer {
			return "it is unavailable, which the configuration does not dead-letter"
		}
	case record.TooLarge, record.InvalidTimestamp, record.Rejected:
		if n.bad != nil {
			return "it is " + string(kind) + ", and the notification is " + string(n.bad.Kind)
		}
	default:
		if n.bad == nil {
			return "it is " + string(kind) + ", and the notification is good"
		}
		if n.bad.Kind != kind {
			return "it is " + string(kind) + ", and the notification is " + string(n.bad.Kind)
		}
	}
	return l.judgeDeadCopy(n, o)
}

// judgeDeadCopy says in what a dead letter differs from the record that it is
// of.
func (a *auditor) judgeDeadCopy(n *original, o *output) string {
	t := &a.topics.DeadLetters
	switch {
	case !mayLie(o.at.partition, o.source.partition, t.Partitions):
		return "it is in another partition than its record"
	case o.meta != n.meta:
		return "its key or headers are not the record's"
	case o.bytes != n.bytes || !o.shrunk && o.value != n.value:
		return "its value is not the record's, byte for byte"
	case o.when != n.when && !t.AppendTime && !redated(t, n.when, o.when):
		return "its timestamp is not the record's"
	}
	return ""
}

// mayLie tells whether a dead letter of a record of partition source may lie in
// partition at: the same where the topic has it, or had it when the record was
// dead-lettered, else that number modulo the partitions that there were.
func mayLie(at, source, partitions int32) bool {
	for had := min(source, partitions); had > at; had-- {
		if source%had == at {
			return true
		}
	}
	return at == source%partitions
}

// redated tells whether a dead letter may bear the time of its making, at now:
// its topic would not have taken the record's own.
func redated(t *Topic, was, now int64) bool {
	if was < 0 {
		return true
	}
	// The broker's clock is not the joiner's.
	const skew = 60_000
	return t.After > 0 && was > now+t.After-skew || t.Before > 0 && was < now-t.Before+skew
}

// ask puts the question whether the alert's price is the right one.
func (l *ledger) ask(n *original, o *output, last bool) error {
	m := &o.claim
	q := question{
		partition: m.citation.partition, next: m.citation.offset, alert: o.at, kind: isNone, last: last,
		symbol: n.symbol, time: int64(n.note.EventTime),
	}
	if m.priced {
		q.kind, q.tick, q.tickTime, q.price = isHit, m.tick.offset, m.time, m.price
	}
	if !m.cited {
		return nil // nobody was asked or answered, and there is nothing to prove
	}
	return l.questions.add(&q)
}

// conclude counts a notification that has outputs.
func (l *ledger) conclude(n *original, c *copies) {
	if c.of[0] == 0 {
		l.report.DeadLettered++
	} else {
		switch record.Result(c.last[0].claim.result) {
		case record.Miss:
			l.report.Missed++
		case record.NoInfo:
			l.report.Unavailable++
		}
	}
	if n.bad != nil {
		return // it has no symbol whose order there could be
	}
	disordered := false
	for i := range c.of {
		if c.of[i] == 0 {
			continue
		}
		at := c.last[i].at.offset
		before, ok := l.last[i][n.symbol]
		if ok && at < before {
			disordered = true
		}
		l.last[i][n.symbol] = max(before, at)
	}
	if !disordered {
		return
	}
	o := &c.last[0]
	if c.of[0] == 0 {
		o = &c.last[1]
	}
	l.report.OutOfOrder++
	l.say(kindOutOfOrder, l.topicOf(o), o.at, "the output of %s lies before that of an older notification of its symbol", l.sourceName(o))
}

// missing deals with a notification that has no output: what became of it, as
// far as the topics and the configuration can tell.
func (l *ledger) missing(n *original) error {
	at := place{l.partition, n.offset}
	topic := l.topics.Notifications.Name
	switch {
	case n.bad != nil && l.topics.DeadLetters.Name == "":
		l.dropped(at, "it is %s, and there is no topic for dead letters", n.bad.Kind)
		return nil
	case n.bad == nil && l.topics.DeadLetters.Name == "" && n.largest > l.fits():
		l.dropped(at, "its alert may be larger than %s takes, and there is no topic for dead letters", l.topics.Alerts.Name)
		return nil
	case l.mayBeDeleted(n):
		l.unverifiable(topic, at, "its output may have been deleted")
		return nil
	case l.o.StartLatest && !l.seen[0] && !l.seen[1]:
		l.dropped(at, "it may be older than the group, which begins at the latest")
		return nil
	case n.bad == nil && l.o.DropNoAnswer:
		l.dropped(at, "join.on_unavailable is drop")
		return nil
	case n.bad == nil && l.o.DropMisses:
		return l.askDrop(n)
	}
	l.lost(at, n.bad)
	return nil
}

func (a *auditor) lost(at place, bad *enrich.Bad) {
	a.report.Lost++
	what := "no alert and no dead letter"
	if bad != nil {
		what = "it is " + string(bad.Kind) + ", and there is no dead letter"
	}
	a.say(kindLost, a.topics.Notifications.Name, at, "%s", what)
}

func (a *auditor) dropped(at place, format string, args ...any) {
	a.report.Dropped++
	a.say(kindDropped, a.topics.Notifications.Name, at, format, args...)
}

// mayBeDeleted tells whether the notification is older than one of the output
// logs reaches: its output would have lain before the first that is left.
// Outputs of one symbol lie in the order of their notifications, so one of an
// older notification proves that nothing of this one was deleted.
func (l *ledger) mayBeDeleted(n *original) bool {
	dead := &l.topics.DeadLetters
	if dead.Partitions > 0 {
		deleted := l.dead[l.partition%dead.Partitions].start > 0
		seen := l.seen[1]
		if n.bad != nil {
			seen = l.badSeen
		}
		if dead.Compacted || deleted && !seen {
			return true
		}
	}
	if n.bad != nil {
		return false
	}
	if l.topics.Alerts.Compacted {
		return true
	}
	if int(l.partition) >= len(l.alerts) || l.alerts[l.partition].start == 0 {
		return false
	}
	_, older := l.last[0][n.symbol]
	return !older
}

// askDrop asks whether there was no price, so that dropping was right.
func (l *ledger) askDrop(n *original) error {
	count := l.topics.Market.Partitions
	var partitions []int32
	if home, known := l.o.Placer.Partition(n.note.Symbol, count); known {
		partitions = append(partitions, home)
		if l.partition != home && l.partition < count {
			partitions = append(partitions, l.partition)
		}
	} else {
		for p := range count {
			partitions = append(partitions, p)
		}
	}
	for _, p := range partitions {
		err := l.questions.add(&question{
			partition: p, next: math.MinInt64, kind: isDrop, alert: place{l.partition, n.offset},
			symbol: n.symbol, time: int64(n.note.EventTime),
		})
		if err != nil {
			return err
		}
	}
	return nil
}
