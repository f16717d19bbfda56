package check

import (
	"fmt"
	"time"

	"joiner/internal/kafka"
	"joiner/internal/record"
)

func judgeMarketCleanup(j *judgement) []Finding {
	return j.eachTopic([]string{j.market()}, []string{cleanupPolicy}, func(topic string, _ kafka.Layout, s settings) Finding {
		const remedy = "set cleanup.policy=compact and min.compaction.lag.ms"
		keeps, timed := s.millis(retentionMs)
		bytes, sized := s.number(retentionBytes)
		bounded := sized && bytes >= 0
		switch {
		case s.compacts() && !s.deletes():
			return ok(topic, "compacted: the newest price of every symbol is kept")
		case !s.compacts() && timed && keeps == unlimited && sized && !bounded:
			return warn(topic, remedy, "not compacted, and nothing is ever deleted: each restore reads the whole log, which takes longer every day")
		}
		forgets := span(keeps)
		if !timed {
			forgets = "its " + retentionMs + " (which the broker does not tell)"
		}
		if bounded {
			forgets += fmt.Sprintf(", or sooner where a partition exceeds %d bytes,", bytes)
		}
		if s.compacts() {
			return warn(topic, "set cleanup.policy=compact alone, unless symbols are to be forgotten",
				"compacted and deleted: a symbol without a tick for %s has no price any more after the next restore", forgets)
		}
		return warn(topic, remedy, "not compacted: after a restart or a move, symbols without a tick for %s have no price, and each restore reads all that is retained", forgets)
	})
}

// lag is how far behind the group is in one partition.
type lag struct {
	partition int32
	records   int64
	time      time.Duration // age of the next record; 0 where it has no timestamp
	bytes     int64         // about, by the size of sampled records, uncompressed
}

// lags are those of partitions in which the group has a commit and records to
// come, which have not been deleted yet.
func (j *judgement) lags(parts []PartitionFacts) []lag {
	var list []lag
	for i := range parts {
		p := &parts[i]
		if p.Committed < p.Start || p.Committed >= p.End || p.Committed < 0 {
			continue
		}
		l := lag{partition: p.ID, records: p.End - p.Committed}
		if p.Next != record.NoTimestamp {
			l.time = max(0, j.facts.Now.Sub(p.Next.Time()))
		}
		if p.Sample.Records > 0 {
			l.bytes = l.records * p.Sample.Bytes / int64(p.Sample.Records)
		}
		list = append(list, l)
	}
	return list
}

func longest(lags []lag) (worst lag) {
	for _, l := range lags {
		if l.time > worst.time {
			worst = l
		}
	}
	return worst
}

// judgeCompactionLag: what is compacted away before the group has read it is a
// price that no notification can get any more; a tombstone that is removed
// before it was read leaves a price standing.
func judgeCompactionLag(j *judgement) []Finding {
	topic := j.market()
	s, hidden := j.settings(topic)
	if hidden != nil {
		return []Finding{*hidden}
	}
	if lacks := s.lacking(cleanupPolicy); lacks != nil {
		return []Finding{untold(topic, lacks...)}
	}
	if !s.compacts() {
		return []Finding{ok(topic, "not compacted")}
	}
	parts, findings := j.partitions(record.Market)
	if lacks := s.lacking(minCompactionLag, deleteRetention); lacks != nil {
		findings = append(findings, untold(topic, lacks...))
	}
	if err := j.facts.CommittedErr; err != nil {
		findings = append(findings, unseen(topic, "Describe", "group "+j.Kafka.GroupID, err))
	}
	lags := j.lags(parts)
	if len(lags) > 0 {
		findings = append(findings, undated(topic, parts)...)
	}
	worst := longest(lags)
	findings = append(findings, j.judgeMinCompactionLag(topic, s, worst)...)
	return append(findings, j.judgeTombstones(topic, s, worst)...)
}

const (
	minCompactionLag = "min.compaction.lag.ms"
	deleteRetention  = "delete.retention.ms"
)

// outage is how long the work of a pod that dies may lie still: its session
// must end, the group must come together again, and what was done since the
// last commit is done again.
func (j *judgement) outage() time.Duration {
	return j.Kafka.SessionTimeout + j.Kafka.RebalanceTimeout + j.CommitInterval
}

func (j *judgement) judgeMinCompactionLag(topic string, s settings, worst lag) []Finding {
	keeps, known := s.millis(minCompactionLag)
	if !known {
		return nil
	}
	want := max(j.outage(), 2*worst.time, j.History)
	set := fmt.Sprintf("set min.compaction.lag.ms to %d or more", max(time.Hour, 2*want).Milliseconds())
	switch {
	case worst.time > 0 && keeps < worst.time && worst.time > j.outage():
		return []Finding{fail(topic, set+", and find out why the group is behind", "ticks may be compacted after %s, and the group is %s behind in partition %d: prices vanish before it has read them",
			span(keeps), span(worst.time), worst.partition)}
	case keeps < j.History:
		return []Finding{warn(topic, set, "ticks may be compacted after %s, join.history is %s: after a restore older prices are missing", span(keeps), span(j.History))}
	case keeps < want:
		return []Finding{warn(topic, set, "ticks may be compacted after %s: a group that is behind for longer (a dead pod alone costs up to %s) misses prices", span(keeps), span(want))}
	}
	return []Finding{ok(topic, "ticks stay for %s before they are compacted; the group is %s behind", span(keeps), span(worst.time))}
}

func (j *judgement) judgeTombstones(topic string, s settings, worst lag) []Finding {
	keeps, known := s.millis(deleteRetention)
	want := max(j.outage(), 2*worst.time)
	if !known || keeps >= want {
		return nil
	}
	return []Finding{warn(topic, fmt.Sprintf("set delete.retention.ms to %d or more", max(24*time.Hour, 2*want).Milliseconds()),
		"tombstones may be removed after %s (delete.retention.ms): a group that is behind for longer keeps prices that were withdrawn", span(keeps))}
}

// judgeMarketOrder: compaction keeps the highest offset, the table the newest
// event time.
func judgeMarketOrder(j *judgement) []Finding {
	topic := j.market()
	parts, records, findings := j.sampled(record.Market)
	late, symbol := 0, ""
	for i := range parts {
		late += parts[i].Sample.OutOfOrder
		if symbol == "" {
			symbol = parts[i].Sample.Disordered
		}
	}
	_, bad, _ := badOf(parts)
	switch {
	case records == 0 && len(findings) > 0:
		return findings
	case records == 0:
		return []Finding{ok(topic, "no record to judge by yet")}
	case bad == records:
		return append(findings, notSeen(topic, "see records", "could not be looked at: none of %d sampled ticks has a symbol and an event time to judge by", records))
	case late == 0:
		return append(findings, ok(topic, "%s sampled, none out of order", count(records-bad, "tick")))
	}
	s, hidden := j.settings(topic)
	if hidden == nil && s.lacking(cleanupPolicy) != nil {
		lacks := untold(topic, cleanupPolicy)
		hidden = &lacks
	}
	switch {
	case hidden != nil:
		hidden.Message = fmt.Sprintf("%d of %d sampled ticks are older than one before them of the same symbol (%s first), and whether the topic is compacted %s",
			late, records, symbol, hidden.Message)
		return append(findings, *hidden)
	case s.compacts():
		return append(findings, warn(topic, "have producers send a symbol's ticks in the order of their event times; else set min.compaction.lag.ms well above their delay",
			"%d of %d sampled ticks are older than one before them of the same symbol (%s first): compaction keeps the last one sent, so a restored table may be older than the live one", late, records, symbol))
	}
	return append(findings, ok(topic, "%d of %d sampled ticks are out of order; nothing is compacted, so no restore loses by it", late, records))
}

func judgeNotificationsCleanup(j *judgement) []Finding {
	return j.eachTopic([]string{j.notifications()}, []string{cleanupPolicy}, func(topic string, _ kafka.Layout, s settings) Finding {
		if s.compacts() {
			return fail(topic, "set cleanup.policy=delete", "compacted: of several notifications of a symbol only the last survives, so those that were not read yet are lost")
		}
		return ok(topic, "not compacted")
	})
}

func judgeOutputCleanup(j *judgement) []Finding {
	return j.eachTopic(j.outputs(), []string{cleanupPolicy}, func(topic string, _ kafka.Layout, s settings) Finding {
		if s.compacts() {
			return warn(topic, "set cleanup.policy=delete, unless only the last of each symbol is wanted",
				"compacted: of several records of a symbol only the last survives, and those without a key are refused")
		}
		return ok(topic, "not compacted")
	})
}

func judgeCommitted(j *judgement) []Finding {
	var findings []Finding
	for side := range record.Sides {
		findings = append(findings, j.judgeCommittedIn(side)...)
	}
	return findings
}

func (j *judgement) judgeCommittedIn(side record.Side) []Finding {
	topic := j.Inputs[side].Topic
	if err := j.facts.CommittedErr; err != nil && j.facts.Connected == nil {
		return []Finding{unseen(topic, "Describe", "group "+j.Kafka.GroupID, err)}
	}
	parts, findings := j.partitions(side)
	var above []int32
	commits, deleted := 0, int64(0)
	for _, p := range parts {
		switch {
		case p.Committed < 0:
			continue
		case p.Committed < p.Start:
			deleted += p.Start - p.Committed
		case p.Committed > p.End:
			above = append(above, p.ID)
		}
		commits++
	}
	const unread = "have the group keep up, or raise the topic's retention; what is gone stays gone"
	if deleted > 0 && side == record.Notification {
		findings = append(findings, fail(topic, unread, "%s deleted before the group had read them", count(int(deleted), "offset")))
	}
	if deleted > 0 && side == record.Market {
		findings = append(findings, warn(topic, unread, "%s deleted before the group had read them: notifications of that time are joined with older prices", count(int(deleted), "offset")))
	}
	if len(above) > 0 {
		findings = append(findings, fail(topic, "if the topic was made anew on purpose, go on: the group begins at its start; else find out what was truncated",
			"the group's offsets in %s are above the end of the log: it was truncated or made anew", numbered("partition", above)))
	}
	if len(findings) > 0 {
		return findings
	}
	if commits == 0 {
		return []Finding{ok(topic, "the group has no commits yet: it begins at the %s", j.beginning(side))}
	}
	return []Finding{ok(topic, "the group's offsets lie within the log")}
}

func (j *judgement) beginning(side record.Side) string {
	if side == record.Notification && j.StartLatest {
		return "end"
	}
	return "start"
}

// close is the part of a retention from which on a lag is near it.
const (
	near     = 0.5
	imminent = 0.9
)

func judgeRetention(j *judgement) []Finding {
	var findings []Finding
	for side := range record.Sides {
		findings = append(findings, j.judgeRetentionOf(side)...)
	}
	return findings
}

func (j *judgement) judgeRetentionOf(side record.Side) []Finding {
	topic := j.Inputs[side].Topic
	s, hidden := j.settings(topic)
	if hidden != nil {
		return []Finding{*hidden}
	}
	if lacks := s.lacking(cleanupPolicy); lacks != nil {
		return []Finding{untold(topic, lacks...)}
	}
	if !s.deletes() {
		return []Finding{ok(topic, "nothing is deleted for its age")}
	}
	if err := j.facts.CommittedErr; err != nil {
		return []Finding{unseen(topic, "Describe", "group "+j.Kafka.GroupID, err)}
	}
	parts, findings := j.partitions(side)
	if lacks := s.lacking(retentionMs, retentionBytes); lacks != nil {
		findings = append(findings, untold(topic, lacks...))
	}
	lags := j.lags(parts)
	keeps, timed := s.millis(retentionMs)
	if timed && len(lags) > 0 && keeps != unlimited {
		findings = append(findings, undated(topic, parts)...)
	}
	if timed {
		findings = append(findings, nearRetention(topic, longest(lags), keeps)...)
	}
	if bytes, known := s.number(retentionBytes); known && bytes >= 0 {
		findings = append(findings, nearSize(topic, lags, bytes)...)
	}
	if len(findings) > 0 {
		return findings
	}
	return []Finding{ok(topic, "records are kept for %s; the group is %s behind", span(keeps), span(longest(lags).time))}
}

func nearRetention(topic string, worst lag, keeps time.Duration) []Finding {
	const remedy = "raise " + retentionMs + " now, and have the group catch up: more pods, or find what holds it up"
	what := fmt.Sprintf("it is %s behind, and records are deleted after %s", span(worst.time), span(keeps))
	switch used := float64(worst.time) / float64(keeps); {
	case used >= imminent:
		return []Finding{fail(topic, remedy, "the group is about to lose records of partition %d: %s", worst.partition, what)}
	case used >= near:
		return []Finding{warn(topic, remedy, "the group is near the retention in partition %d: %s", worst.partition, what)}
	}
	return nil
}

// nearSize goes by what records take uncompressed, which may be several times
// what the broker keeps: no failure comes of it.
func nearSize(topic string, lags []lag, keeps int64) []Finding {
	var worst lag
	for _, l := range lags {
		if l.bytes > worst.bytes {
			worst = l
		}
	}
	if float64(worst.bytes) < near*float64(max(keeps, 1)) {
		return nil
	}
	return []Finding{warn(topic, "see what those take as stored (kafka-log-dirs.sh); where that is near it, too, raise "+retentionBytes+" and have the group catch up",
		"the group may be near the retention in partition %d: it has about %d bytes to read, uncompressed, and a partition keeps %d as stored", worst.partition, worst.bytes, keeps)}
}
