package check

import (
	"fmt"
	"strings"

	"github.com/IBM/sarama"

	"joiner/internal/kafka"
)

// wanted is an operation that is needed on a resource, or merely useful.
type wanted struct {
	op       sarama.AclOperation
	optional string // what goes without it; empty: it is needed
}

func judgeRights(j *judgement) []Finding {
	if err := j.facts.Connected; err != nil {
		return []Finding{unseen("rights", "", "", err)}
	}
	limits := wanted{sarama.AclOperationDescribeConfigs, "the topic's limits are not known: what it refuses is found out by trying"}
	var findings []Finding
	for _, topic := range j.inputs() {
		findings = append(findings, j.rightsOn(topic, wanted{op: sarama.AclOperationRead},
			wanted{sarama.AclOperationDescribeConfigs, "its retention is not known: joiner_retention_headroom_seconds is absent"})...)
	}
	for _, topic := range j.outputs() {
		list := []wanted{{op: sarama.AclOperationWrite}, limits}
		if j.Create {
			list = append(list, wanted{sarama.AclOperationAlter, "topics.create cannot grow it when the inputs grow"})
		}
		findings = append(findings, j.rightsOn(topic, list...)...)
	}
	findings = append(findings, j.groupRights())
	if j.ExactlyOnce {
		findings = append(findings, j.transactionRights())
	}
	return findings
}

// rightsOn judges the operations on one topic.
func (j *judgement) rightsOn(topic string, list ...wanted) []Finding {
	l := j.facts.Layouts[topic]
	on := topicNamed(topic)
	switch {
	case j.facts.LayoutsErr != nil:
		return []Finding{unseen(on, "Describe", on, j.facts.LayoutsErr)}
	case denied(l.Err):
		// Describe comes with Read and with Write.
		return []Finding{fail(on, grant(operation(list[0].op), on), "%s is missing: the topic cannot even be described", operation(list[0].op))}
	case l.Err != nil:
		return []Finding{unseen(on, "Describe", on, l.Err)}
	case !l.Exists():
		return []Finding{j.rightToCreate(topic)}
	}
	return judgeOperations(on, l.Rights, list)
}

func judgeOperations(on string, rights kafka.Rights, list []wanted) []Finding {
	if !rights.Known {
		return []Finding{warn(on, "brokers from 2.3 on say what is allowed; see that the operations of docs/operations.md are granted",
			"could not be looked at: the broker does not say what is allowed")}
	}
	var findings []Finding
	var granted []string
	for _, w := range list {
		name := operation(w.op)
		switch {
		case rights.Allow(w.op):
			granted = append(granted, name)
		case w.optional == "":
			findings = append(findings, fail(on, grant(name, on), "%s is missing", name))
		default:
			findings = append(findings, warn(on, grant(name, on), "%s is missing: %s", name, w.optional))
		}
	}
	if len(findings) == 0 {
		return []Finding{ok(on, "%s granted", strings.Join(granted, ", "))}
	}
	return findings
}

func operation(op sarama.AclOperation) string { return op.String() }

// rightToCreate judges a topic that is missing: there is nothing yet that
// rights could be asked about.
func (j *judgement) rightToCreate(topic string) Finding {
	on := topicNamed(topic)
	err, tried := j.facts.Creatable[topic]
	switch {
	case !tried:
		return follows(on, topic)
	case denied(err):
		return fail(on, grant("Create", on), "Create is missing, and topics.create is to make this topic")
	case err != nil:
		return warn(on, "see output_topics", "could not be looked at: %v", err)
	}
	return ok(on, "Create granted; the others show once it exists")
}

func (j *judgement) groupRights() Finding {
	on := "group " + j.Kafka.GroupID
	g, err := j.facts.Group, j.facts.GroupErr
	switch {
	case denied(err):
		return fail(on, grant("Read", on), "Read is missing: the group can neither be joined nor described")
	case err != nil:
		return unseen(on, "Describe", on, err)
	}
	return judgeOperations(on, g.Rights, []wanted{{op: sarama.AclOperationRead}})[0]
}

func (j *judgement) transactionRights() Finding {
	on := fmt.Sprintf("transactional id %s*", j.TransactionalID)
	err := j.facts.Transaction
	switch {
	case denied(err):
		return fail(on, grant("Write", on+" (prefixed)")+", which brings Describe", "Describe or Write is missing: delivery.guarantee: exactly_once needs both")
	case err != nil:
		return unseen(on, "Describe and Write", on, err)
	}
	return ok(on, "Describe, Write granted")
}
