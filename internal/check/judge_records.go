package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"joiner/internal/placement"
	"joiner/internal/record"
)

// judgeRecords: what the service would make of the records.
func judgeRecords(j *judgement) []Finding {
	return j.eachSide(func(side record.Side, parts []PartitionFacts, records int) []Finding {
		topic := j.Inputs[side].Topic
		bad, total, detail := badOf(parts)
		if total == 0 {
			return []Finding{ok(topic, "%s sampled, all can be read", count(records, "record"))}
		}
		kinds := slices.SortedFunc(maps.Keys(bad), func(a, b record.Kind) int {
			return cmp.Or(cmp.Compare(bad[b], bad[a]), cmp.Compare(a, b))
		})
		var list []string
		for _, k := range kinds {
			list = append(list, fmt.Sprintf("%s (%s)", k, detail[k]))
		}
		say := warn
		if total == records {
			say = fail
		}
		return []Finding{say(topic, badRemedy(side, kinds[0]), "%d of %d sampled records cannot be joined: %s", total, records, strings.Join(list, ", "))}
	})
}

func badOf(parts []PartitionFacts) (kinds map[record.Kind]int, total int, detail map[record.Kind]string) {
	kinds, detail = make(map[record.Kind]int), make(map[record.Kind]string)
	for i := range parts {
		for k, n := range parts[i].Sample.Bad {
			kinds[k] += n
			total += n
			detail[k] = parts[i].Sample.BadDetail[k]
		}
	}
	return kinds, total, detail
}

func badRemedy(side record.Side, worst record.Kind) string {
	section := "market"
	if side == record.Notification {
		section = "notification"
	}
	switch worst {
	case record.InvalidPrice:
		return "correct market.price, or the producers"
	case record.InvalidEventTime:
		return fmt.Sprintf("correct %s.event_time and its unit, or the producers", section)
	case record.MissingSymbol:
		return fmt.Sprintf("correct %s.symbol, or the producers", section)
	}
	return "correct the producers: values are to be JSON objects"
}

// eachSide judges the samples of both inputs, and what could not be sampled as
// such.
func (j *judgement) eachSide(judge func(record.Side, []PartitionFacts, int) []Finding) []Finding {
	var findings []Finding
	for side := range record.Sides {
		parts, records, hidden := j.sampled(side)
		findings = append(findings, hidden...)
		switch {
		case records > 0:
			findings = append(findings, judge(side, parts, records)...)
		case len(hidden) == 0:
			findings = append(findings, ok(j.Inputs[side].Topic, "no record to judge by yet"))
		}
	}
	return findings
}

func judgePlacement(j *judgement) []Finding {
	return j.eachSide(func(side record.Side, parts []PartitionFacts, records int) []Finding {
		input, facts := j.Inputs[side], j.facts.Inputs[side]
		misplaced, keyless := 0, 0
		for i := range parts {
			misplaced += parts[i].Sample.Misplaced
			keyless += parts[i].Sample.Keyless
		}
		keyed, what := records-keyless, input.placed()
		switch {
		case input.Partitioner == placement.Custom && facts.Keys.Name != "":
			return []Finding{ok(input.Topic, "not judged (custom); %s would explain %s of %d sampled %ss", facts.Keys.Name, percent(facts.Keys.Share), facts.Keys.Seen, what)}
		case input.Partitioner == placement.Custom:
			return []Finding{ok(input.Topic, "not judged (custom)")}
		case keyed == 0:
			return []Finding{j.nothingPlaced(side, records)}
		case misplaced == 0:
			return []Finding{ok(input.Topic, "%s sampled, all where %s puts them", count(keyed, what), input.Partitioner)}
		}
		say, price := warn, "their prices are asked for in other pods"
		if side == record.Market {
			price = "a price is looked for where its symbol belongs and where its notification lies, and not found elsewhere"
		}
		if !j.RemoteLookup {
			price = "their prices lie in other pods and are counted as misses (join.remote_lookup: false)"
			if !j.grown(side) {
				say = fail
			}
		}
		likely, remedy := j.likely(side)
		return []Finding{say(input.Topic, remedy, "%d of %d sampled records lie where %s would not put their %ss: %s; %s", misplaced, keyed, input.Partitioner, what, price, likely)}
	})
}

// nothingPlaced is the finding where no sampled record has what its place, or its
// part of the work, is judged by.
func (j *judgement) nothingPlaced(side record.Side, records int) Finding {
	input := j.Inputs[side]
	remedy := "see records"
	if !input.BySymbol {
		remedy = fmt.Sprintf("have the producers give records their symbol as key; see records, too; where they are placed by something else, set %s: custom", partitionerKey(side))
	}
	return notSeen(input.Topic, remedy, "could not be looked at: none of %d sampled records has a %s to judge by", records, input.placed())
}

func partitionerKey(side record.Side) string {
	if side == record.Notification {
		return "topics.notifications_partitioner"
	}
	return "topics.market_updates_partitioner"
}

// grown tells whether a growth of the topic is what explains where keys lie, and
// not a partitioner.
func (j *judgement) grown(side record.Side) bool {
	f := j.facts.Inputs[side]
	return f.Growth.From > 0 && f.Misplaced.Name == "" && (f.Keys.Name == "" || f.Keys.Name == j.Inputs[side].Partitioner)
}

// placed names what a record's place is judged by.
func (i Input) placed() string {
	if i.BySymbol {
		return "symbol"
	}
	return "key"
}

// likely says who places keys otherwise, and what to do.
func (j *judgement) likely(side record.Side) (who, remedy string) {
	facts, key := j.facts.Inputs[side], partitionerKey(side)
	all, some := facts.Keys, facts.Misplaced
	what, by := j.Inputs[side].placed(), j.Inputs[side].Partitioner
	switch {
	case strings.HasSuffix(all.Name, placement.OverAll):
		return fmt.Sprintf("%s explains %s of the %ss", all.Name, percent(all.Share), what),
			"have the producers leave the partitions of topics.reserved to their symbols, or take them out of topics.reserved"
	case all.Name != "" && all.Name != by:
		return fmt.Sprintf("%s explains %s of the %ss", all.Name, percent(all.Share), what),
			fmt.Sprintf("set %s: %s, or have the producers use %s", key, all.Name, by)
	case some.Astray > 0 || strings.HasSuffix(some.Name, placement.OverAll):
		return j.reserved(what, some)
	case some.Name != "":
		return fmt.Sprintf("%s explains %s of those", some.Name, percent(some.Share)),
			fmt.Sprintf("find the producer that places %ss by %s, and have it use %s", what, some.Name, by)
	case j.grown(side):
		return fmt.Sprintf("%s over %d partitions explains %s of those: they are older than the topic's growth", by, facts.Growth.From, percent(facts.Growth.Share)),
			fmt.Sprintf("wait, before it grows again: a %s lies right from its next record on, and until then a group that saw the growth looks for its price where it was", what)
	case j.Inputs[side].BySymbol:
		return "no known partitioner explains them: the records' keys are something else than their symbols, or they are older than the topic's last growth",
			fmt.Sprintf("set %s: custom, and every owner is asked, or have the producers place records by their symbol", key)
	}
	return "no known partitioner explains them; they may be older than the topic's last growth",
		fmt.Sprintf("find the producers that do not use %s; where nobody can tell, set %s: custom", by, key)
}

// reserved says what those do who do not know of topics.reserved.
func (j *judgement) reserved(what string, some Suspect) (who, remedy string) {
	if some.Astray > 0 {
		return fmt.Sprintf("%s of those %ss are symbols that topics.reserved names, outside of the partition that it gives them", percent(some.Astray), what),
			"have their producers send them to their partition, or take them out of topics.reserved"
	}
	return fmt.Sprintf("%s explains %s of those", some.Name, percent(some.Share)),
		"find the producer that does not leave the partitions of topics.reserved to their symbols, or take them out of topics.reserved"
}

const (
	hotShare   = 0.05 // of a topic's records
	hotRecords = 100  // fewer say nothing about shares
)

func judgeHotKeys(j *judgement) []Finding {
	return j.eachSide(func(side record.Side, parts []PartitionFacts, records int) []Finding {
		input := j.Inputs[side]
		topic, what := input.Topic, input.placed()
		if records < hotRecords {
			return []Finding{ok(topic, "%s: too few for a share", count(records, "record"))}
		}
		key, share, partition := hottest(parts)
		switch {
		case key == "" && input.Partitioner == placement.Custom && !input.BySymbol:
			return []Finding{ok(topic, "none of %d sampled records has a key, which would bind it to a partition", records)}
		case key == "":
			return []Finding{j.nothingPlaced(side, records)}
		case share <= hotShare:
			return []Finding{ok(topic, "the hottest %s is %s of the records", what, percent(share))}
		}
		return []Finding{warn(topic, "expect one pod to carry it whole: size pods for that partition, split it at its producer, or give it a partition of its own (topics.reserved)",
			"%s %.64q is about %s of the records, all in partition %d", what, key, percent(share), partition)}
	})
}

// hottest is the key with the largest part of the topic's records. Samples are
// of bounded size, so partitions count by their rate and not by their records.
func hottest(parts []PartitionFacts) (key string, share float64, partition int32) {
	total := 0.0
	rates := make([]float64, len(parts))
	for i := range parts {
		rates[i] = rate(&parts[i].Sample)
		total += rates[i]
	}
	if total == 0 {
		return "", 0, 0
	}
	for i := range parts {
		s := &parts[i].Sample
		for _, k := range s.Keys {
			if of := rates[i] / total * float64(k.Count-k.Error) / float64(s.Records); of > share {
				key, share, partition = k.Name, of, parts[i].ID
			}
		}
	}
	return key, share, partition
}

// rate is the records a second that the sample stands for, by its age.
func rate(s *Sample) float64 {
	if s.Records == 0 {
		return 0
	}
	over := time.Second
	if s.Oldest != record.NoTimestamp {
		over = max(over, s.At.Sub(s.Oldest.Time()))
	}
	return float64(s.Records) / over.Seconds()
}

// skewed is how far ahead a timestamp may be: clocks that are kept by NTP are
// within a fraction of it.
const skewed = 5 * time.Second

// later takes a partition's newest time in, with where it lies, if it is further
// ahead than what there was.
func later(most time.Duration, where string, at record.Millis, p *PartitionFacts) (time.Duration, string) {
	d := at.Time().Sub(p.Sample.At)
	if d <= most {
		return most, where
	}
	return d, fmt.Sprintf("%s in partition %d", at.Time().UTC().Format(time.RFC3339), p.ID)
}

// ahead is a span that may be longer than a duration can say.
func ahead(d time.Duration) string {
	if d == math.MaxInt64 {
		return "292 years or more"
	}
	return span(d)
}

func judgeClockSkew(j *judgement) []Finding {
	return j.eachSide(func(side record.Side, parts []PartitionFacts, records int) []Finding {
		topic := j.Inputs[side].Topic
		var own, event time.Duration
		var owns, events string // where those lie
		early, dated := false, false
		for i := range parts {
			s := &parts[i].Sample
			if s.Newest != record.NoTimestamp {
				own, owns = later(own, owns, s.Newest, &parts[i])
			}
			if s.Event != record.NoTimestamp {
				dated = true
				event, events = later(event, events, s.Event, &parts[i])
				early = early || s.EventOldest.Time().Year() < 1990 && s.Newest.Time().Year() >= 2000
			}
		}
		const clocks = "set the producers' clocks, and this machine's, by NTP"
		switch {
		case own > skewed:
			return []Finding{warn(topic, clocks, "the newest record's timestamp is %s ahead of this machine's clock: %s", ahead(own), owns)}
		case event > skewed:
			return []Finding{warn(topic, clocks+"; or correct the event_time_unit", "the newest event time is %s ahead of this machine's clock: %s; prices seem newer than notifications that come later", ahead(event), events)}
		case early:
			return []Finding{warn(topic, "correct the event_time_unit, or the producers", "there are event times before 1990 in records of today: their unit is probably another one")}
		}
		findings := undated(topic, parts)
		if !dated {
			findings = append(findings, notSeen(topic, "see records", "could not be looked at: none of %d sampled records has an event time to judge by", records))
		}
		if len(findings) > 0 {
			return findings
		}
		return []Finding{ok(topic, "no timestamp is ahead of this machine's clock by more than %s", span(skewed))}
	})
}

// undated is the finding where records were sampled and none has a timestamp.
func undated(topic string, parts []PartitionFacts) []Finding {
	records := 0
	for i := range parts {
		if parts[i].Sample.Newest != record.NoTimestamp {
			return nil
		}
		records += parts[i].Sample.Records
	}
	if records == 0 {
		return nil
	}
	return []Finding{notSeen(topic, "have the producers write timestamps, as all do since Kafka 0.10", "could not be looked at: none of %d sampled records has a timestamp to judge by", records)}
}
