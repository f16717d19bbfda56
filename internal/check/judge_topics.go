package check

import (
	"fmt"
	"slices"
	"strings"

	"joiner/internal/kafka"
	"joiner/internal/record"
)

func judgeInputTopics(j *judgement) []Finding {
	var findings []Finding
	for _, topic := range j.inputs() {
		l, hidden := j.layout(topic)
		switch {
		case hidden != nil && j.known(topic):
			findings = append(findings, fail(topic, "create it, with as many partitions as the other input, or correct its name in the configuration", "does not exist"))
		case hidden != nil:
			findings = append(findings, *hidden)
		default:
			findings = append(findings, judgeLeaders(topic, l))
		}
	}
	return findings
}

// known tells whether it was found out whether the topic exists.
func (j *judgement) known(topic string) bool {
	f := j.facts
	return f.Connected == nil && f.LayoutsErr == nil && f.Layouts[topic].Err == nil
}

// judgeLeaders finds partitions that nobody serves.
func judgeLeaders(topic string, l kafka.Layout) Finding {
	var without []int32
	for _, p := range l.Partitions {
		if p.Leader < 0 {
			without = append(without, p.ID)
		}
	}
	if len(without) > 0 {
		return fail(topic, "start the brokers that hold them: see replication", "%s without a leader: nothing can be read from or written to there", numbered("partition", without))
	}
	return ok(topic, "%s", count(len(l.Partitions), "partition"))
}

func judgePartitionCounts(j *judgement) []Finding {
	subject := strings.Join(j.inputs(), ", ")
	var counts [record.Sides]int32
	for side, topic := range j.inputs() {
		l, hidden := j.layout(topic)
		if hidden != nil {
			hidden.Subject = subject
			hidden.Message = topic + ": " + hidden.Message
			return []Finding{*hidden}
		}
		counts[side] = l.Topic.Partitions
	}
	m, n := counts[record.Market], counts[record.Notification]
	if m == n {
		return []Finding{ok(subject, "%d and %d partitions", m, n)}
	}
	smaller := j.inputs()[record.Market]
	if n < m {
		smaller = j.inputs()[record.Notification]
	}
	return []Finding{fail(subject, fmt.Sprintf("grow %s to %d partitions", smaller, max(m, n)),
		"%d and %d partitions: a symbol's ticks and notifications are not in partitions of the same number, and a new group gets nothing", m, n)}
}

func judgeReserved(j *judgement) []Finding {
	if len(j.Reserved) == 0 {
		return []Finding{ok("topics.reserved", "no partition is reserved")}
	}
	var findings []Finding
	for _, topic := range j.inputs() {
		l, hidden := j.layout(topic)
		if hidden != nil {
			findings = append(findings, *hidden)
			continue
		}
		findings = append(findings, j.judgeReservedIn(topic, l.Topic.Partitions))
	}
	return findings
}

func (j *judgement) judgeReservedIn(topic string, partitions int32) Finding {
	var beyond []int32
	inside := make(map[int32]bool)
	for _, p := range j.Reserved {
		if p >= partitions {
			beyond = append(beyond, p)
			continue
		}
		inside[p] = true
	}
	const remedy = "correct topics.reserved, or grow both inputs"
	switch {
	case len(beyond) > 0:
		return fail(topic, remedy, "topics.reserved names %s, and there are partitions 0 to %d", numbered("partition", beyond), partitions-1)
	case len(inside) >= int(partitions):
		return fail(topic, remedy, "all %d partitions are reserved: no other symbol has a place", partitions)
	}
	return ok(topic, "%d of %d partitions reserved", len(inside), partitions)
}

func judgeOutputTopics(j *judgement) []Finding {
	want := mostPartitions(j.Options, j.facts)
	var findings []Finding
	for _, topic := range j.outputs() {
		findings = append(findings, j.judgeOutput(topic, want))
	}
	if j.DeadLetters == "" {
		findings = append(findings, ok("topics.dead_letters", "off: bad records are counted and skipped"))
	}
	return findings
}

func (j *judgement) judgeOutput(topic string, want int32) Finding {
	l, hidden := j.layout(topic)
	if hidden != nil {
		if j.known(topic) {
			return j.judgeMissingOutput(topic, want)
		}
		return *hidden
	}
	if f := judgeLeaders(topic, l); f.Status != OK {
		return f
	}
	has := l.Topic.Partitions
	if hidden := j.unseenInput(topic); hidden != nil && want > 0 && has >= want {
		return *hidden
	}
	switch {
	case want == 0:
		return warn(topic, missingRemedy, "could not be compared with the inputs: none was seen")
	case has == want:
		return ok(topic, "%s, as the inputs have", count(int(has), "partition"))
	case has < want && j.Create:
		return ok(topic, "%d partitions; topics.create will grow it to %d", has, want)
	case topic == j.DeadLetters && has < want:
		return warn(topic, fmt.Sprintf("grow it to %d partitions", want),
			"%d partitions, the inputs have %d: a dead letter goes to its record's partition number modulo %d", has, want, has)
	case has < want:
		return fail(topic, fmt.Sprintf("grow it to %d partitions, or set topics.create: true", want),
			"%d partitions, the inputs have %d: tasks from %d on wait and are not ready", has, want, has)
	}
	return warn(topic, fmt.Sprintf("make it anew with %d partitions, or grow the inputs to %d", want, has),
		"%d partitions, the inputs have %d: those from %d on stay empty", has, want, want)
}

// unseenInput is the finding about an output that cannot be compared with both
// inputs; nil where it can.
func (j *judgement) unseenInput(output string) *Finding {
	for _, input := range j.inputs() {
		_, hidden := j.layout(input)
		if hidden != nil {
			hidden.Subject, hidden.Message = output, input+": "+hidden.Message
			return hidden
		}
	}
	return nil
}

func (j *judgement) judgeMissingOutput(topic string, want int32) Finding {
	if !j.Create {
		partitions := "as many partitions as the inputs have"
		if want > 0 {
			partitions = count(int(want), "partition")
		}
		return fail(topic, fmt.Sprintf("create it with %s, or set topics.create: true", partitions), "does not exist: outputs to it wait, and no pod gets ready")
	}
	err, tried := j.facts.Creatable[topic]
	switch {
	case !tried:
		return warn(topic, missingRemedy, "does not exist; topics.create will make it once the inputs exist")
	case denied(err):
		return fail(topic, grant("Create", topicNamed(topic)), "does not exist, and joiner may not create it (topics.create)")
	case err != nil:
		return fail(topic, "correct topics.replication_factor, or ask whoever sets the brokers' policies; else create the topic by hand",
			"does not exist, and the brokers refuse to create it with %s: %v", count(int(want), "partition"), err)
	}
	return ok(topic, "does not exist; topics.create will make it with %s", count(int(want), "partition"))
}

func judgeReplication(j *judgement) []Finding {
	var findings []Finding
	for _, topic := range j.topics() {
		l, hidden := j.layout(topic)
		if hidden != nil {
			findings = append(findings, *hidden)
			continue
		}
		findings = append(findings, judgeReplicationOf(topic, l))
	}
	return findings
}

func judgeReplicationOf(topic string, l kafka.Layout) Finding {
	least, _ := copies(l)
	var under, behind []int32
	for _, p := range l.Partitions {
		if len(p.InSync) < len(p.Replicas) {
			under = append(under, p.ID)
		}
		for _, id := range p.Replicas {
			if !slices.Contains(p.InSync, id) && !slices.Contains(behind, id) {
				behind = append(behind, id)
			}
		}
	}
	switch {
	case len(under) > 0:
		return warn(topic, "start the brokers that are away, or wait until they have caught up", "%s under-replicated now: %s not in sync", numbered("partition", under), numbered("broker", behind))
	case least < 2:
		return warn(topic, "give it a replication factor of 3", "has one replica: the loss of one broker stops it, and may lose what it holds")
	}
	return ok(topic, "%d replicas, all in sync", least)
}

// copies are the least number of replicas, and of those in sync, that any
// partition has.
func copies(l kafka.Layout) (replicas, inSync int) {
	for i, p := range l.Partitions {
		if i == 0 || len(p.Replicas) < replicas {
			replicas = len(p.Replicas)
		}
		if i == 0 || len(p.InSync) < inSync {
			inSync = len(p.InSync)
		}
	}
	return replicas, inSync
}

func judgeMinInSync(j *judgement) []Finding {
	return j.eachTopic(j.topics(), []string{minInSync}, func(topic string, l kafka.Layout, s settings) Finding {
		return judgeMinInSyncOf(topic, l, s, slices.Contains(j.outputs(), topic))
	})
}

func judgeMinInSyncOf(topic string, l kafka.Layout, s settings, output bool) Finding {
	n, _ := s.number(minInSync)
	replicas, inSync := copies(l)
	refuse, who := warn, "its producers'"
	if output {
		refuse, who = fail, "joiner's"
	}
	switch least := int(n); {
	case least > replicas:
		return refuse(topic, fmt.Sprintf("lower min.insync.replicas to %d, or raise the replication factor to %d", max(1, replicas-1), least+1),
			"min.insync.replicas is %d and there are %s: %s writes with acks=all are refused", least, count(replicas, "replica"), who)
	case least > inSync:
		return refuse(topic, "start the brokers that are away", "min.insync.replicas is %d and only %d in sync now: %s writes with acks=all are refused", least, inSync, who)
	case replicas > 1 && least == replicas:
		return warn(topic, fmt.Sprintf("lower min.insync.replicas to %d, or raise the replication factor to %d", replicas-1, replicas+1),
			"min.insync.replicas is %d of %d replicas: one broker that is away stops every write", least, replicas)
	case replicas > 1 && least < 2:
		return warn(topic, "set min.insync.replicas to 2", "min.insync.replicas is 1: what one broker alone has acknowledged is lost with it")
	}
	return ok(topic, "%d of %s", n, count(replicas, "replica"))
}

func judgeUnclean(j *judgement) []Finding {
	return j.eachTopic(j.topics(), []string{uncleanElect}, func(topic string, _ kafka.Layout, s settings) Finding {
		if s[uncleanElect] == "true" {
			return warn(topic, "set unclean.leader.election.enable to false", "a replica that is behind may become leader: acknowledged records are then lost and offsets taken back")
		}
		return ok(topic, "off")
	})
}
