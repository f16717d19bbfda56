package check

import (
	"fmt"
	"math"
	"slices"
	"time"

	"joiner/internal/kafka"
	"joiner/internal/record"
)

// age is how old the timestamps of an input's records are when their outputs
// are written: those that are yet to be read, and those that were older than
// one before them when they came.
type age struct {
	waiting time.Duration // of the oldest to be read
	late    time.Duration // that records came with, other than strays
	behind  time.Duration // that any record came with
	ahead   time.Duration // of the newest, of the clock here
}

func (a age) oldest() time.Duration { return max(a.waiting, a.behind) }

func (a age) why() string {
	if a.waiting >= a.behind {
		return fmt.Sprintf("the next records to read are %s old", span(a.waiting))
	}
	return fmt.Sprintf("records come with timestamps %s behind", span(a.behind))
}

func (j *judgement) ageOf(side record.Side) (a age, hidden []Finding) {
	parts, hidden := j.partitions(side)
	hidden = append(hidden, undated(j.Inputs[side].Topic, parts)...)
	for _, p := range parts {
		if p.Next != record.NoTimestamp {
			a.waiting = max(a.waiting, j.facts.Now.Sub(p.Next.Time()))
		}
		a.late, a.behind = max(a.late, p.Sample.Late), max(a.behind, p.Sample.Behind)
		if p.Sample.Newest != record.NoTimestamp {
			a.ahead = max(a.ahead, p.Sample.Newest.Time().Sub(p.Sample.At))
		}
	}
	return a, hidden
}

// usual is a without strays.
func (a age) usual() age {
	a.behind = a.late
	return a
}

// judgeOutputRetention: alerts carry their notifications' timestamps, and
// retention goes by those: by the newest of a segment, so that a stray among
// others is kept for as long as they are.
func judgeOutputRetention(j *judgement) []Finding {
	a, hidden := j.ageOf(record.Notification)
	aged := make(map[string]bool) // what is ok by that age
	findings := j.eachTopic(j.outputs(), []string{cleanupPolicy}, func(topic string, _ kafka.Layout, s settings) Finding {
		keeps, timed := s.millis(retentionMs)
		switch {
		case !s.deletes() || timed && keeps == unlimited:
			return ok(topic, "nothing is deleted for its age")
		case s.logAppendTime():
			return ok(topic, "kept from when they are written, and not from their input's timestamps")
		}
		if lacks := s.lacking(retentionMs, timestampType); lacks != nil {
			return untold(topic, lacks...)
		}
		usual := a.usual()
		remedy := func(a age) string {
			return fmt.Sprintf("raise retention.ms well above %s, or set retention.bytes instead", span(a.oldest()))
		}
		switch used := float64(usual.oldest()) / float64(keeps); {
		case used >= 1:
			return fail(topic, remedy(usual), "records have their input's timestamps and are deleted %s after those; %s: such outputs may be deleted as soon as they are written", span(keeps), usual.why())
		case used >= near:
			return warn(topic, remedy(usual), "records have their input's timestamps and are deleted %s after those; %s: little time is left to read such outputs", span(keeps), usual.why())
		case a.behind >= keeps:
			return warn(topic, remedy(a)+"; or correct the producers", "records have their input's timestamps and are deleted %s after those; a few come with timestamps %s behind: unless newer ones keep them, such outputs are deleted early",
				span(keeps), span(a.behind))
		}
		aged[topic] = true
		return ok(topic, "kept for %s from their input's timestamps, which are at most %s old", span(keeps), span(a.oldest()))
	})
	return append(hidden, unless(hidden, findings, aged)...)
}

// unless drops what is ok by something of which a part is hidden.
func unless(hidden, findings []Finding, by map[string]bool) []Finding {
	if len(hidden) == 0 {
		return findings
	}
	return slices.DeleteFunc(findings, func(f Finding) bool { return f.Status == OK && by[f.Subject] })
}

func judgeInputTimestamps(j *judgement) []Finding {
	var stamped [record.Sides]bool
	findings, blind := make([]Finding, 0, record.Sides), false
	for side := range record.Sides {
		topic := j.Inputs[side].Topic
		s, hidden := j.settings(topic)
		if hidden == nil && s.lacking(timestampType) != nil {
			lacks := untold(topic, timestampType)
			hidden = &lacks
		}
		if hidden != nil {
			findings, blind = append(findings, *hidden), true
			continue
		}
		stamped[side] = s.logAppendTime()
		if stamped[side] && j.Inputs[side].OwnTime {
			findings = append(findings, ok(topic, "the event time is when the broker took the record (LogAppendTime)"))
			continue
		}
		findings = append(findings, ok(topic, "event times are the producers'"))
	}
	m, n := record.Market, record.Notification
	if !blind && j.Inputs[m].OwnTime && j.Inputs[n].OwnTime && stamped[m] != stamped[n] {
		mixed := j.Inputs[m].Topic
		if stamped[n] {
			mixed = j.Inputs[n].Topic
		}
		return []Finding{warn(mixed, "set message.timestamp.type alike on both inputs, or take event times from the values",
			"event times of this input are the broker's (LogAppendTime), those of the other input the producers': the merge compares two clocks")}
	}
	return findings
}

func judgeOutputTimestamps(j *judgement) []Finding {
	return j.eachTopic(j.outputs(), []string{timestampType}, func(topic string, _ kafka.Layout, s settings) Finding {
		if s.logAppendTime() {
			return warn(topic, "set message.timestamp.type=CreateTime", "LogAppendTime: the broker replaces the notification's timestamp, which an alert is to carry, and latencies by it are lost")
		}
		return ok(topic, "CreateTime: records keep their input's timestamp")
	})
}

const (
	timestampEither = "message.timestamp.difference.max.ms" // until Kafka 4.0
	timestampBefore = "message.timestamp.before.max.ms"     // since Kafka 3.6
	timestampAfter  = "message.timestamp.after.max.ms"
)

// timestampLimits are how far a topic's timestamps may be from the broker's
// clock. lacks are the settings without which that cannot be told.
func timestampLimits(s settings) (before, after time.Duration, lacks []string) {
	before, after = unlimited, unlimited
	either, known := s.millis(timestampEither)
	if known {
		before, after = either, either
	} else {
		lacks = s.lacking(timestampBefore, timestampAfter)
	}
	if d, known := s.millis(timestampBefore); known {
		before = d
	}
	if d, known := s.millis(timestampAfter); known {
		after = d
	}
	return before, after, lacks
}

func judgeTimestampLimits(j *judgement) []Finding {
	note, hidden := j.ageOf(record.Notification)
	tick, more := j.ageOf(record.Market)
	inBefore, inAfter, unset := j.inputLimits()
	if unset != nil && len(hidden) == 0 {
		hidden = append(hidden, *unset)
	}
	compared := make(map[string]bool) // what is ok by the notifications
	findings := j.eachTopic(j.outputs(), []string{timestampType}, func(topic string, _ kafka.Layout, s settings) Finding {
		before, after, lacks := timestampLimits(s)
		switch {
		case s.logAppendTime():
			return ok(topic, "LogAppendTime: no timestamp is refused")
		case lacks != nil:
			return untold(topic, lacks...)
		case before == unlimited && after == unlimited:
			return ok(topic, "takes any timestamp")
		}
		compared[topic] = true
		a := note
		if topic == j.DeadLetters {
			a = age{
				waiting: max(note.waiting, tick.waiting), late: max(note.late, tick.late),
				behind: max(note.behind, tick.behind), ahead: max(note.ahead, tick.ahead),
			}
		}
		return judgeLimits(topic, before, after, a, inBefore, inAfter)
	})
	findings = unless(hidden, findings, compared)
	if len(more) > 0 && j.DeadLetters != "" {
		findings = unless(more, findings, map[string]bool{j.DeadLetters: compared[j.DeadLetters]})
		hidden = append(hidden, more...)
	}
	return append(hidden, findings...)
}

// inputLimits are how far notifications' timestamps may be from the broker's
// clock, or the finding that this cannot be told.
func (j *judgement) inputLimits() (before, after time.Duration, hidden *Finding) {
	topic := j.notifications()
	s, hidden := j.settings(topic)
	if hidden != nil {
		return 0, 0, hidden
	}
	if s.logAppendTime() {
		return 0, 0, nil // the broker's own clock
	}
	before, after, lacks := timestampLimits(s)
	if lacks = append(s.lacking(timestampType), lacks...); lacks != nil {
		unknown := untold(topic, lacks...)
		return 0, 0, &unknown
	}
	return before, after, nil
}

func judgeLimits(topic string, before, after time.Duration, a age, inBefore, inAfter time.Duration) Finding {
	const refused = "outputs of such records are refused and become dead letters (invalid_timestamp)"
	switch {
	case a.oldest() > before:
		return fail(topic, "raise message.timestamp.before.max.ms, or leave it unlimited", "takes no timestamps more than %s back, and %s: %s", span(before), a.why(), refused)
	case a.ahead > after:
		return fail(topic, "raise message.timestamp.after.max.ms, and correct the producers' clocks", "takes no timestamps more than %s ahead, and the newest are %s ahead: %s", span(after), span(a.ahead), refused)
	case before < inBefore:
		return warn(topic, "set message.timestamp.before.max.ms no lower than the input's; leave room for the group's lag", "takes timestamps up to %s back, the notifications may be older (%s): %s", span(before), span(inBefore), refused)
	case after < inAfter:
		return warn(topic, "set message.timestamp.after.max.ms no lower than the input's", "takes timestamps up to %s ahead, the notifications may be further (%s): %s", span(after), span(inAfter), refused)
	}
	return ok(topic, "takes timestamps %s back and %s ahead, as the notifications", span(before), span(after))
}

// wrapping is how much larger than its notification an alert may be: JSON
// around it, a price and headers; what topics.create leaves room for.
const wrapping = 64 << 10

const maxMessageBytes = "max.message.bytes"

// judgeMessageSize: an alert goes by its notification alone, a dead letter by
// the records of both inputs.
func judgeMessageSize(j *judgement) []Finding {
	into := map[string][]string{j.Alerts: {j.notifications()}}
	if j.DeadLetters != "" {
		into[j.DeadLetters] = []string{j.notifications(), j.market()}
	}
	takes := make(map[string]int64) // by input, those that are known
	var hidden []Finding
	for _, input := range []string{j.market(), j.notifications()} {
		n, unknown := j.takes(input)
		switch {
		case unknown == nil:
			takes[input] = n
		case input == j.notifications() || j.DeadLetters != "":
			hidden = append(hidden, *unknown)
		}
	}
	return append(hidden, j.judgeRooms(into, takes)...)
}

// judgeRooms judges each output by the inputs whose records go into it.
func (j *judgement) judgeRooms(into map[string][]string, takes map[string]int64) []Finding {
	var findings []Finding
	for _, topic := range j.outputs() {
		has, unknown := j.takes(topic)
		if unknown != nil {
			findings = append(findings, *unknown)
			continue
		}
		largest, known := "", 0
		for _, input := range into[topic] {
			n, told := takes[input]
			if !told {
				continue
			}
			known++
			if largest == "" || n > takes[largest] {
				largest = input
			}
		}
		if known == 0 {
			continue
		}
		// One input is enough to say that there is no room, and all of them that
		// there is.
		if f := j.judgeRoom(topic, has, takes[largest], largest); f.Status != OK || known == len(into[topic]) {
			findings = append(findings, f)
		}
	}
	return findings
}

// takes is the size of the largest record that a topic takes, or the finding
// that this cannot be told.
func (j *judgement) takes(topic string) (int64, *Finding) {
	s, hidden := j.settings(topic)
	if hidden != nil {
		return 0, hidden
	}
	n, known := s.number(maxMessageBytes)
	if !known {
		unknown := untold(topic, maxMessageBytes)
		return 0, &unknown
	}
	return n, nil
}

func (j *judgement) judgeRoom(topic string, has, largest int64, of string) Finding {
	want := min(largest+wrapping, math.MaxInt32)
	become := "an alert that exceeds it becomes a dead letter (too_large)"
	if topic == j.DeadLetters {
		become = "a dead letter that exceeds it loses its value"
	}
	limit := int64(j.MaxMessageBytes)
	switch {
	case has < want:
		return warn(topic, fmt.Sprintf("set max.message.bytes of %s to %d", topic, want),
			"takes records of %d bytes, and %s of %d: %s", has, of, largest, become)
	case limit > 0 && limit < want:
		return warn(topic, fmt.Sprintf("set delivery.max_message_bytes to %d, or to 0", want),
			"delivery.max_message_bytes is %d, and %s takes %d: %s", limit, of, largest, become)
	}
	return ok(topic, "takes records of %d bytes, %d more than %s", has, has-largest, of)
}
