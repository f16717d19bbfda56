package check

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/kafka"
	"joiner/internal/record"
)

// check is one question and how its answer is judged.
type check struct {
	id    string
	judge func(*judgement) []Finding
}

// checks are all of them, in the order of the report. docs/check.md has the same
// list; a test compares the two.
func checks() []check {
	return []check{
		{"config", judgeConfig},
		{"bootstrap", judgeBootstrap},
		{"brokers", judgeBrokers},
		{"broker_apis", judgeAPIs},
		{"broker_settings", judgeBrokerSettings},
		{"certificates", judgeCertificates},
		{"rights", judgeRights},
		{"input_topics", judgeInputTopics},
		{"partition_counts", judgePartitionCounts},
		{"reserved", judgeReserved},
		{"output_topics", judgeOutputTopics},
		{"replication", judgeReplication},
		{"min_insync_replicas", judgeMinInSync},
		{"unclean_leader_election", judgeUnclean},
		{"market_cleanup", judgeMarketCleanup},
		{"market_compaction_lag", judgeCompactionLag},
		{"market_order", judgeMarketOrder},
		{"notifications_cleanup", judgeNotificationsCleanup},
		{"output_cleanup", judgeOutputCleanup},
		{"committed_offsets", judgeCommitted},
		{"retention", judgeRetention},
		{"output_retention", judgeOutputRetention},
		{"input_timestamps", judgeInputTimestamps},
		{"output_timestamps", judgeOutputTimestamps},
		{"output_timestamp_limits", judgeTimestampLimits},
		{"message_size", judgeMessageSize},
		{"records", judgeRecords},
		{"key_placement", judgePlacement},
		{"hot_keys", judgeHotKeys},
		{"clock_skew", judgeClockSkew},
		{"group_protocol", judgeGroupProtocol},
		{"group_members", judgeGroupMembers},
		{"group_release", judgeGroupRelease},
		{"static_membership", judgeStatic},
		{"state_dir", judgeStateDir},
		{"replicas", judgeReplicas},
		{"peer_advertise", judgeAdvertise},
	}
}

// IDs lists the ids that findings may have, in the order of the report.
func IDs() []string {
	ids := make([]string, 0, len(checks()))
	for _, c := range checks() {
		ids = append(ids, c.id)
	}
	return ids
}

// judgement is what checks judge by.
type judgement struct {
	*Options
	facts *Facts
}

// judge turns facts into findings, at least one of each id.
func judge(o *Options, f *Facts) []Finding {
	var findings []Finding
	j := &judgement{Options: o, facts: f}
	for _, c := range checks() {
		for _, finding := range c.answer(j) {
			finding.ID = c.id
			findings = append(findings, finding.tidy())
		}
	}
	return findings
}

// answer judges. A mistake in one check must not cost the findings of the
// others.
func (c check) answer(j *judgement) (findings []Finding) {
	defer func() { findings = looked(findings) }()
	defer func() {
		if broken := recover(); broken != nil {
			findings = []Finding{warn("joiner", "report it with this line: the other findings hold", "this check is broken and could not be made: %v", broken)}
		}
	}()
	return c.judge(j)
}

// looked drops what is ok of a subject of which something else could not be
// looked at: half an answer is none.
func looked(findings []Finding) []Finding {
	hidden := make(map[string]bool) // by subject
	for _, f := range findings {
		if f.blind {
			hidden[f.Subject] = true
		}
	}
	return slices.DeleteFunc(findings, func(f Finding) bool { return f.Status == OK && hidden[f.Subject] })
}

// notSeen is a finding that something could not be looked at.
func notSeen(subject, remedy, format string, args ...any) Finding {
	f := warn(subject, remedy, format, args...)
	f.blind = true
	return f
}

// unseen is the finding where something could not be looked at. right is what
// looking needs on resource.
func unseen(subject, right, resource string, err error) Finding {
	if right != "" && denied(err) {
		return notSeen(subject, grant(right, resource), "could not be looked at: %s on %s is missing", right, resource)
	}
	f := notSeen(subject, "see what bootstrap and brokers say; else give it more time (--timeout)", "could not be looked at: %v", err)
	if errors.Is(err, errNobody) {
		f.since = nobody
	}
	return f
}

// untold is the finding where a broker does not tell settings, as some that are
// not Apache Kafka, and proxies.
func untold(subject string, names ...string) Finding {
	return notSeen(subject, "look at it by the means of whoever runs the brokers: joiner goes on without",
		"could not be looked at: the broker does not tell %s", strings.Join(names, ", "))
}

func grant(right, resource string) string {
	return fmt.Sprintf("grant %s on %s to joiner's principal", right, resource)
}

// denied tells whether a right is missing.
func denied(err error) bool {
	for _, e := range []error{
		sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed,
		sarama.ErrClusterAuthorizationFailed, sarama.ErrTransactionalIDAuthorizationFailed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func topicNamed(name string) string { return "topic " + name }

// follows is the finding where nothing can be looked at since the topic does not
// exist, which is a finding of its own elsewhere.
func follows(subject, topic string) Finding {
	f := notSeen(subject, missingRemedy, "could not be looked at: the topic does not exist")
	f.since = topic
	return f
}

const missingRemedy = "see input_topics and output_topics"

// layout returns the topic's layout, or the finding that it cannot be had.
func (j *judgement) layout(topic string) (kafka.Layout, *Finding) {
	f := j.facts
	l := f.Layouts[topic]
	var hidden Finding
	switch {
	case f.Connected != nil:
		hidden = unseen(topic, "", "", f.Connected)
	case f.LayoutsErr != nil:
		hidden = unseen(topic, "", "", f.LayoutsErr)
	case l.Err != nil:
		hidden = unseen(topic, "Describe", topicNamed(topic), l.Err)
	case !l.Exists():
		hidden = follows(topic, topic)
	default:
		return l, nil
	}
	return l, &hidden
}

// settings returns the topic's settings, or the finding that they cannot be had.
func (j *judgement) settings(topic string) (settings, *Finding) {
	if _, hidden := j.layout(topic); hidden != nil {
		return nil, hidden
	}
	f := j.facts
	s := f.Settings[topic]
	var hidden Finding
	switch {
	case f.SettingsErr != nil:
		hidden = unseen(topic, "", "", f.SettingsErr)
	case s.Err != nil:
		hidden = unseen(topic, "DescribeConfigs", topicNamed(topic), s.Err)
	default:
		return s.Values, nil
	}
	return nil, &hidden
}

// partitions returns the partitions of an input that could be looked into, and
// a finding for those that could not.
func (j *judgement) partitions(side record.Side) ([]PartitionFacts, []Finding) {
	topic := j.Inputs[side].Topic
	if _, hidden := j.layout(topic); hidden != nil {
		return nil, []Finding{*hidden}
	}
	if err := j.facts.PartitionsErr; err != nil {
		return nil, []Finding{unseen(topic, "Read", topicNamed(topic), err)}
	}
	var seen []PartitionFacts
	var blind []int32
	var why error
	for _, p := range j.facts.Inputs[side].Partitions {
		if p.Err == nil {
			seen = append(seen, p)
			continue
		}
		blind, why = append(blind, p.ID), p.Err
	}
	if why == nil {
		return seen, nil
	}
	hidden := unseen(topic, "Read", topicNamed(topic), why)
	if !denied(why) {
		hidden.Message = fmt.Sprintf("%s could not be read: %v", numbered("partition", blind), why)
	}
	return seen, []Finding{hidden}
}

// sampled is partitions, with all samples of the topic added up.
func (j *judgement) sampled(side record.Side) (parts []PartitionFacts, records int, hidden []Finding) {
	parts, hidden = j.partitions(side)
	for i := range parts {
		records += parts[i].Sample.Records
	}
	return parts, records, hidden
}

// eachTopic judges topics by these of their settings; those that cannot be had
// as such.
func (j *judgement) eachTopic(topics, by []string, judge func(topic string, l kafka.Layout, s settings) Finding) []Finding {
	var findings []Finding
	for _, topic := range topics {
		l, hidden := j.layout(topic)
		if hidden != nil {
			findings = append(findings, *hidden)
			continue
		}
		s, hidden := j.settings(topic)
		if hidden != nil {
			findings = append(findings, *hidden)
			continue
		}
		if lacks := s.lacking(by...); lacks != nil {
			findings = append(findings, untold(topic, lacks...))
			continue
		}
		findings = append(findings, judge(topic, l, s))
	}
	return findings
}

// The settings that several checks judge by.
const (
	cleanupPolicy  = "cleanup.policy"
	retentionMs    = "retention.ms"
	retentionBytes = "retention.bytes"
	timestampType  = "message.timestamp.type"
	minInSync      = "min.insync.replicas"
	uncleanElect   = "unclean.leader.election.enable"
)

// settings are a topic's or a broker's. What is asked of one that is not told
// means nothing: see lacking.
type settings map[string]string

// lacking are those of the names that the broker does not tell.
func (s settings) lacking(names ...string) (lacks []string) {
	for _, name := range names {
		if _, told := s[name]; !told {
			lacks = append(lacks, name)
		}
	}
	return lacks
}

// number returns a setting; known is false where the broker does not have it.
func (s settings) number(name string) (n int64, known bool) {
	n, err := strconv.ParseInt(s[name], 10, 64)
	return n, err == nil
}

// millis is number as a duration; unlimited where it is negative or does not
// fit one.
func (s settings) millis(name string) (d time.Duration, known bool) {
	n, known := s.number(name)
	if n < 0 || n > int64(unlimited/time.Millisecond) {
		return unlimited, known
	}
	return time.Duration(n) * time.Millisecond, known
}

const unlimited = time.Duration(1<<63 - 1)

func (s settings) compacts() bool { return strings.Contains(s[cleanupPolicy], "compact") }
func (s settings) deletes() bool  { return strings.Contains(s[cleanupPolicy], "delete") }

// logAppendTime tells whether the broker replaces timestamps.
func (s settings) logAppendTime() bool { return s[timestampType] == "LogAppendTime" }

// numbered names partitions or brokers, the first few of many.
func numbered(what string, ids []int32) string {
	const most = 8
	slices.Sort(ids)
	words := make([]string, 0, most)
	for _, id := range ids[:min(most, len(ids))] {
		words = append(words, strconv.Itoa(int(id)))
	}
	list := strings.Join(words, ", ")
	switch {
	case len(ids) > most:
		return fmt.Sprintf("%ss %s and %d more", what, list, len(ids)-most)
	case len(ids) == 1:
		return what + " " + list
	}
	return what + "s " + list
}

// span writes a duration for people, two digits or so.
func span(d time.Duration) string {
	switch {
	case d == unlimited:
		return "unlimited"
	case d < 0:
		return "-" + span(-d)
	case d >= 48*time.Hour:
		return trim(d.Hours()/24) + "d"
	case d >= time.Hour:
		return trim(d.Hours()) + "h"
	case d >= time.Minute:
		return trim(d.Minutes()) + "m"
	case d >= time.Second:
		return trim(d.Seconds()) + "s"
	}
	return d.Round(time.Millisecond).String()
}

// trim writes one fraction digit unless it is 0.
func trim(n float64) string { return strings.TrimSuffix(strconv.FormatFloat(n, 'f', 1, 64), ".0") }

func percent(share float64) string { return trim(100*share) + "%" }
