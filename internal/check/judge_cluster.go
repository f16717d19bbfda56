package check

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/kafka"
	"joiner/internal/placement"
	"joiner/internal/record"
)

func judgeConfig(j *judgement) []Finding {
	var findings []Finding
	for _, w := range j.Warnings {
		subject, _, _ := strings.Cut(w, " ")
		if strings.HasPrefix(w, "environment variable ") {
			subject = strings.Fields(w)[2]
		}
		findings = append(findings, warn(strings.TrimSuffix(subject, ":"), "take it out of the configuration, or set what gives it an effect", "%s", w))
	}
	if !j.RemoteLookup && j.Strategy != "copartition" {
		findings = append(findings, warn("group.strategy", "set join.remote_lookup: true, or group.strategy: copartition",
			"under %s a pod lacks prices that other pods hold, and join.remote_lookup is false: each is a counted miss", j.Strategy))
	}
	if f, found := j.judgePartitioners(); found {
		findings = append(findings, f)
	}
	if len(findings) == 0 {
		return []Finding{ok("configuration", "valid, nothing in it is without effect")}
	}
	return findings
}

// judgePartitioners finds two that differ: told truly they cost a look-up for
// each notification whose price lies in another partition.
func (j *judgement) judgePartitioners() (f Finding, found bool) {
	m, n := j.Inputs[record.Market].Partitioner, j.Inputs[record.Notification].Partitioner
	if m == n || m == placement.Custom || n == placement.Custom {
		return f, false
	}
	others := "the prices of all others are asked for in other pods"
	if !j.RemoteLookup {
		others = "all others are counted misses (join.remote_lookup: false)"
	}
	return warn("topics.partitioner", "have the producers of both topics use one partitioner",
		"ticks are placed by %s and notifications by %s: only keys that both put into the same partition are joined locally, and %s", m, n, others), true
}

func judgeBootstrap(j *judgement) []Finding {
	var findings []Finding
	any := slices.ContainsFunc(j.facts.Bootstrap, answers)
	for _, v := range j.facts.Bootstrap {
		switch {
		case v.Err == nil:
			findings = append(findings, ok(v.Address, "answers, cluster %s", v.ClusterID))
		case any && !refusedEntry(v.Err):
			findings = append(findings, warn(v.Address, reachRemedy(v.Err), "is away, another bootstrap server answers: %v", v.Err))
		default:
			findings = append(findings, fail(v.Address, reachRemedy(v.Err), "cannot be used: %v", v.Err))
		}
	}
	return append(findings, strangers(j.facts.Bootstrap)...)
}

// strangers finds bootstrap servers of another cluster.
func strangers(visits []kafka.Visit) []Finding {
	clusters := make(map[string]string) // one address of each
	for _, v := range visits {
		if v.Err == nil && v.ClusterID != "" {
			clusters[v.ClusterID] = v.Address
		}
	}
	if len(clusters) < 2 {
		return nil
	}
	var list []string
	for _, id := range slices.Sorted(maps.Keys(clusters)) {
		list = append(list, fmt.Sprintf("%s is of cluster %s", clusters[id], id))
	}
	return []Finding{fail("kafka.brokers", "list the servers of one cluster only",
		"the bootstrap servers belong to %d clusters: %s", len(clusters), strings.Join(list, ", "))}
}

// refusedEntry tells whether the broker is there and cannot be talked to.
func refusedEntry(err error) bool {
	var refused *kafka.Refused
	return errors.As(err, &refused)
}

// reachRemedy says what to do about a broker that cannot be reached.
func reachRemedy(err error) string {
	var dns *net.DNSError
	var refused *kafka.Refused
	text := err.Error()
	switch {
	case errors.As(err, &refused) && refused.As != "":
		return "correct kafka.sasl, or the user on the brokers"
	case errors.As(err, &refused):
		return "correct kafka.tls: ca_file must hold the authority that signed the broker's certificate, server_name the name in it, and cert_file a certificate that the broker takes; or use a listener that speaks TLS"
	case errors.As(err, &dns):
		return "correct the name, or the resolver of this machine"
	case strings.Contains(text, "connection refused"):
		return "start the broker, or correct host and port"
	case strings.Contains(text, "EOF") || strings.Contains(text, "connection reset") || errors.Is(err, sarama.ErrNotConnected):
		return "the listener hangs up: see whether it wants TLS or SASL (kafka.tls, kafka.sasl), or is no Kafka listener"
	default:
		return "see whether the broker runs, and whether a firewall or network policy lets this machine through"
	}
}

// noBrokers is the finding where nobody told of any broker.
func noBrokers() Finding { return unseen("brokers", "", "", errNobody) }

func broker(v kafka.Visit) string { return fmt.Sprintf("broker %d (%s)", v.ID, v.Address) }

func judgeBrokers(j *judgement) []Finding {
	if len(j.facts.Brokers) == 0 {
		return []Finding{noBrokers()}
	}
	var findings []Finding
	for _, v := range j.facts.Brokers {
		if v.Err == nil {
			findings = append(findings, ok(broker(v), "answers"))
			continue
		}
		findings = append(findings, fail(broker(v), "advertised.listeners must be reachable from here; "+reachRemedy(v.Err),
			"cannot be reached, so the partitions that it leads cannot be read or written: %v", v.Err))
	}
	return append(findings, j.absent()...)
}

// absent finds brokers that hold replicas and are not in the cluster now.
func (j *judgement) absent() []Finding {
	holds := make(map[int32][]string)
	for _, topic := range j.topics() {
		for _, p := range j.facts.Layouts[topic].Partitions {
			for _, id := range p.Replicas {
				if !slices.Contains(holds[id], topic) {
					holds[id] = append(holds[id], topic)
				}
			}
		}
	}
	for _, v := range j.facts.Brokers {
		delete(holds, v.ID)
	}
	var findings []Finding
	for _, id := range slices.Sorted(maps.Keys(holds)) {
		findings = append(findings, warn(fmt.Sprintf("broker %d", id), "start it", "is not in the cluster now, and holds replicas of %s", strings.Join(holds[id], ", ")))
	}
	return findings
}

// Kafka's numbers of the requests that are asked about.
const (
	apiProduce          = 0
	apiFetch            = 1
	apiListOffsets      = 2
	apiMetadata         = 3
	apiOffsetFetch      = 9
	apiJoinGroup        = 11
	apiLeaveGroup       = 13
	apiCreateTopics     = 19
	apiInitProducerID   = 22
	apiTxnOffsetCommit  = 28
	apiDescribeConfigs  = 32
	apiCreatePartitions = 37
)

// need is a request that the configuration needs in a version.
type need struct {
	api     int16
	version int16
	name    string
	why     string
	since   string // the Kafka release that brought it
	without string // what goes without it; empty: the service does not run
}

// needs are the requests that this configuration needs, and those without which
// something goes without. What TestOlderBrokers of internal/app runs on must not
// be a failure here.
func (j *judgement) needs() []need {
	list := []need{
		{api: apiMetadata, version: 10, name: "Metadata", since: "2.8",
			without: "topics have no ids: one that is made anew is known by its offsets alone, and no checkpoint is written (state.dir)"},
		{api: apiFetch, version: 4, name: "Fetch", why: "kafka.isolation_level", since: "0.11"},
		{api: apiListOffsets, version: 2, name: "ListOffsets", why: "kafka.isolation_level", since: "0.11"},
		{api: apiProduce, version: 3, name: "Produce", why: "alerts have headers", since: "0.11"},
		{api: apiInitProducerID, version: 0, name: "InitProducerId", why: "outputs are written idempotently", since: "0.11"},
		{api: apiOffsetFetch, version: 7, name: "OffsetFetch", why: "offsets in open transactions are waited for", since: "2.5"},
		{api: apiLeaveGroup, version: 3, name: "LeaveGroup", since: "2.4",
			without: "a pod that stops cannot leave the group: its tasks lie idle for group.session_timeout"},
		{api: apiDescribeConfigs, version: 0, name: "DescribeConfigs", why: "limits of topics", since: "0.11"},
	}
	if j.Kafka.InstanceID != "" {
		list = append(list, need{api: apiJoinGroup, version: 5, name: "JoinGroup", why: "group.instance_id", since: "2.3"})
	}
	if j.Kafka.Rack != "" {
		list = append(list, need{api: apiFetch, version: 11, name: "Fetch", since: "2.4", without: "kafka.rack has no effect: partitions are read from their leaders"})
	}
	if j.Compression == "zstd" {
		list = append(list, need{api: apiProduce, version: 7, name: "Produce", why: "delivery.compression: zstd", since: "2.1"})
	}
	if j.Create {
		list = append(list, j.creationNeeds()...)
	}
	if j.ExactlyOnce {
		list = append(list, need{api: apiTxnOffsetCommit, version: 3, name: "TxnOffsetCommit", why: "delivery.guarantee: exactly_once", since: "2.5"})
	}
	return append(list, j.versionNeeds()...)
}

func (j *judgement) creationNeeds() []need {
	create := need{api: apiCreateTopics, version: 0, name: "CreateTopics", why: "topics.create", since: "0.10.1"}
	if j.ReplicationFactor < 0 {
		create.version, create.why, create.since = 4, "topics.create with the broker's replication factor", "2.4"
	}
	return []need{create, {api: apiCreatePartitions, version: 0, name: "CreatePartitions", since: "1.0", without: "topics.create cannot grow outputs when the inputs grow"}}
}

// versionNeeds tells brokers that are older than kafka.version by requests that
// a release brought. There is no request for a broker's version.
func (j *judgement) versionNeeds() []need {
	version, err := sarama.ParseKafkaVersion(j.Kafka.Version)
	if err != nil {
		return nil // auto
	}
	var list []need
	for _, mark := range []struct {
		since sarama.KafkaVersion
		need
	}{
		{sarama.V3_0_0_0, need{api: apiListOffsets, version: 7, name: "ListOffsets", since: "3.0"}},
		{sarama.V3_1_0_0, need{api: apiFetch, version: 13, name: "Fetch", since: "3.1"}},
		{sarama.V3_2_0_0, need{api: apiJoinGroup, version: 8, name: "JoinGroup", since: "3.2"}},
		{sarama.V3_5_0_0, need{api: apiFetch, version: 15, name: "Fetch", since: "3.5"}},
		{sarama.V3_7_0_0, need{api: apiFetch, version: 16, name: "Fetch", since: "3.7"}},
		{sarama.V3_9_0_0, need{api: apiFetch, version: 17, name: "Fetch", since: "3.9"}},
		{sarama.V4_0_0_0, need{api: apiProduce, version: 12, name: "Produce", since: "4.0"}},
		{sarama.V4_1_0_0, need{api: apiFetch, version: 18, name: "Fetch", since: "4.1"}},
	} {
		if version.IsAtLeast(mark.since) {
			mark.why = "kafka.version: " + j.Kafka.Version
			list = append(list, mark.need)
		}
	}
	return list
}

func judgeAPIs(j *judgement) []Finding {
	visits := j.facts.Brokers
	if len(visits) == 0 {
		return []Finding{noBrokers()}
	}
	var findings []Finding
	for _, v := range visits {
		findings = append(findings, j.judgeAPIsOf(v)...)
	}
	return findings
}

func (j *judgement) judgeAPIsOf(v kafka.Visit) []Finding {
	if v.Err != nil {
		return []Finding{unseen(broker(v), "", "", v.Err)}
	}
	var findings []Finding
	for _, n := range j.needs() {
		has, known := v.APIs[n.api]
		if known && has >= n.version {
			continue
		}
		if n.without != "" {
			findings = append(findings, warn(broker(v), fmt.Sprintf("upgrade the broker to Kafka %s or newer, or go without", n.since),
				"does not know %s version %d: %s", n.name, n.version, n.without))
			continue
		}
		if strings.HasPrefix(n.why, "kafka.version") {
			findings = append(findings, warn(broker(v), "leave kafka.version at auto, or name a version that every broker has",
				"is older than %s: it lacks %s of Kafka %s", n.why, n.name, n.since))
			break // the oldest release that it lacks says it all
		}
		findings = append(findings, fail(broker(v), fmt.Sprintf("upgrade the broker to Kafka %s or newer, or do without %s", n.since, n.why),
			"does not know %s version %d, which is needed: %s", n.name, n.version, n.why))
	}
	if len(findings) == 0 {
		return []Finding{ok(broker(v), "knows what this configuration needs")}
	}
	return findings
}

// The settings of brokers that are judged by.
const (
	sessionLeast    = "group.min.session.timeout.ms"
	sessionMost     = "group.max.session.timeout.ms"
	offsetsKept     = "offsets.retention.minutes"
	transactionMost = "transaction.max.timeout.ms"
)

// transactionTimeout is what the service asks for under exactly_once.
const transactionTimeout = 10 * time.Second

func judgeBrokerSettings(j *judgement) []Finding {
	var findings []Finding
	var hidden error
	for _, v := range j.facts.Brokers {
		if v.Err == nil && denied(v.Settings.Err) {
			hidden = v.Settings.Err
			continue
		}
		findings = append(findings, j.judgeSettingsOf(v)...)
	}
	if hidden != nil { // the right is one on the whole cluster
		f := unseen("brokers", "DescribeConfigs", "the cluster", hidden)
		f.Remedy = "grant DescribeConfigs on the cluster to whoever runs joiner check; joiner run does without"
		findings = append(findings, f)
	}
	if len(findings) == 0 {
		return []Finding{noBrokers()}
	}
	return findings
}

func (j *judgement) judgeSettingsOf(v kafka.Visit) []Finding {
	if err := cmp.Or(v.Err, v.Settings.Err); err != nil {
		return []Finding{unseen(broker(v), "", "", err)}
	}
	s := settings(v.Settings.Values)
	var findings []Finding
	by := []string{sessionLeast, sessionMost, offsetsKept}
	if j.ExactlyOnce {
		by = append(by, transactionMost)
	}
	if lacks := s.lacking(by...); lacks != nil {
		findings = append(findings, untold(broker(v), lacks...))
	}
	session := j.Kafka.SessionTimeout
	if least, known := s.millis(sessionLeast); known && session < least {
		findings = append(findings, fail(broker(v), fmt.Sprintf("set group.session_timeout to %s or more, or lower the broker's group.min.session.timeout.ms", span(least)),
			"refuses group.session_timeout %s: its group.min.session.timeout.ms is %s", span(session), span(least)))
	}
	if most, known := s.millis(sessionMost); known && session > most {
		findings = append(findings, fail(broker(v), fmt.Sprintf("set group.session_timeout to %s or less", span(most)),
			"refuses group.session_timeout %s: its group.max.session.timeout.ms is %s", span(session), span(most)))
	}
	if most, known := s.millis(transactionMost); known && j.ExactlyOnce && most < transactionTimeout {
		findings = append(findings, fail(broker(v), "raise the broker's transaction.max.timeout.ms to 10000 or more",
			"refuses transactions of %s: its transaction.max.timeout.ms is %s", span(transactionTimeout), span(most)))
	}
	if minutes, known := s.number(offsetsKept); known && minutes < 24*60 {
		findings = append(findings, warn(broker(v), "raise the broker's offsets.retention.minutes to 10080 (7 days)",
			"forgets the offsets of a group that has been stopped for %s (offsets.retention.minutes): it then begins anew", span(time.Duration(minutes)*time.Minute)))
	}
	if len(findings) == 0 {
		return []Finding{ok(broker(v), "takes the group's times, keeps its offsets")}
	}
	return findings
}

// expiresSoon is how long before its end a certificate is worth a warning.
const expiresSoon = 14 * 24 * time.Hour

func judgeCertificates(j *judgement) []Finding {
	var findings []Finding
	now := j.facts.Now
	tell := func(subject, remedy string, end time.Time) {
		left := end.Sub(now)
		switch {
		case left <= 0:
			findings = append(findings, fail(subject, remedy, "expired at %s", stamp(end)))
		case left < expiresSoon:
			findings = append(findings, warn(subject, remedy, "expires in %s, at %s", span(left), stamp(end)))
		default:
			findings = append(findings, ok(subject, "valid until %s", stamp(end)))
		}
	}
	for _, use := range slices.Sorted(maps.Keys(j.Certificates)) {
		if end := j.Certificates[use]; !end.IsZero() {
			tell("certificate "+use, "renew it: the files are read again for the next connection", end)
		}
	}
	for _, v := range j.facts.Brokers {
		switch {
		case v.Err == nil && !v.CertificateEnds.IsZero():
			tell(broker(v), "renew the broker's certificate", v.CertificateEnds)
		case v.Err != nil && j.Kafka.Security.TLS.Enabled:
			findings = append(findings, unseen(broker(v), "", "", v.Err))
		}
	}
	switch {
	case len(j.facts.Brokers) == 0 && j.Kafka.Security.TLS.Enabled:
		return append(findings, noBrokers())
	case len(findings) == 0:
		return []Finding{ok("certificates", "none is in use")}
	}
	return findings
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
