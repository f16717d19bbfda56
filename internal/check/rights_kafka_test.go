package check

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"joiner/internal/kafka"
	"joiner/test/cluster"
	"joiner/test/pki"
)

// TestKafkaCheckRights takes away one right after the other on a cluster that
// grants by ACL, over TLS and SASL, and wants each named.
func TestKafkaCheckRights(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Brokers: 1, Secure: true})
	s := newStage(t, c, kgo.SASL(plain.Auth{User: "admin", Pass: secret(t, c, "admin.password")}.AsMechanism()))
	names := topics{s.market(2, nil), s.notes(2, nil), s.output("alerts", 2, nil), s.output("dead", 2, nil)}
	s.write(batch{topic: names.market, partitioner: "murmur2", n: 2, records: 90, symbols: 60})
	s.write(batch{topic: names.notes, partitioner: "murmur2", n: 2, records: 90, symbols: 60})

	o := s.options(names)
	o.Kafka.Brokers = c.Secure.Listeners[cluster.ListenerSCRAM512]
	o.Kafka.Security = kafka.Security{
		TLS: kafka.TLS{Enabled: true, CAFile: c.Secure.File("ca.pem")},
		SASL: kafka.SASL{
			Mechanism: "SCRAM-SHA-512", Username: cluster.SecureUser,
			Password: func() (string, error) { return secret(t, c, "password"), nil },
		},
	}
	o.ExactlyOnce, o.TransactionalID = true, s.Name("id")

	acl := func(kind sarama.AclResourceType, name string, op sarama.AclOperation) cluster.ACL {
		return cluster.ACL{Principal: "User:" + cluster.SecureUser, Type: kind, Name: name, Operation: op}
	}
	topic := func(name string, op sarama.AclOperation) cluster.ACL { return acl(sarama.AclResourceTopic, name, op) }
	onCluster := acl(sarama.AclResourceCluster, "kafka-cluster", sarama.AclOperationDescribeConfigs)
	group := acl(sarama.AclResourceGroup, o.Kafka.GroupID, sarama.AclOperationRead)
	marketRead, notesConfigs := topic(names.market, sarama.AclOperationRead), topic(names.notes, sarama.AclOperationDescribeConfigs)
	alertsWrite, deadWrite := topic(names.alerts, sarama.AclOperationWrite), topic(names.dead, sarama.AclOperationWrite)
	// The transactional id that is tried is of the configured prefix: nobody but
	// a prefixed ACL allows it.
	s.allowPrefixed(o.TransactionalID)
	granted := []cluster.ACL{
		marketRead, topic(names.market, sarama.AclOperationDescribeConfigs),
		topic(names.notes, sarama.AclOperationRead), notesConfigs,
		alertsWrite, topic(names.alerts, sarama.AclOperationDescribeConfigs),
		deadWrite, topic(names.dead, sarama.AclOperationDescribeConfigs),
		group, onCluster,
	}
	c.Allow(t, granted...)

	// There is one broker, so nothing is replicated, whatever else is right.
	alone := append(blind("one replica", []string{"replication"}, names.market, names.notes, names.alerts, names.dead),
		wantFinding{"certificates", Warning, broker(s.visits(o)[0]), "expires in", "renew the broker's certificate"}) // made for a day
	t.Run("all granted", func(t *testing.T) { s.with(t).finds(o, alone...) })

	t.Run("some missing", func(t *testing.T) {
		s := s.with(t)
		describe := []cluster.ACL{topic(names.market, sarama.AclOperationDescribe), topic(names.alerts, sarama.AclOperationDescribe)}
		gone := []cluster.ACL{marketRead, notesConfigs, alertsWrite, onCluster}
		c.Revoke(t, gone...)
		c.Allow(t, describe...)
		defer func() { c.Revoke(t, describe...); c.Allow(t, gone...) }()
		want := slices.Concat(alone,
			blind("Read on topic "+names.market+" is missing", []string{
				"market_compaction_lag", "market_order", "committed_offsets", "output_timestamp_limits", "records", "key_placement", "hot_keys", "clock_skew",
			}, names.market),
			blind("DescribeConfigs on topic "+names.notes+" is missing", []string{
				"min_insync_replicas", "unclean_leader_election", "notifications_cleanup", "retention", "input_timestamps", "message_size", "output_timestamp_limits",
			}, names.notes),
			[]wantFinding{
				{"rights", Failure, "topic " + names.market, "Read is missing", "grant Read on topic " + names.market},
				{"rights", Warning, "topic " + names.notes, "DescribeConfigs is missing", "grant DescribeConfigs on topic " + names.notes},
				{"rights", Failure, "topic " + names.alerts, "Write is missing", "grant Write on topic " + names.alerts},
				{"broker_settings", Warning, "brokers", "DescribeConfigs on the cluster is missing", "grant DescribeConfigs on the cluster"},
			})
		s.finds(o, want...)
	})

	t.Run("what cannot even be described", func(t *testing.T) {
		s := s.with(t)
		c.Revoke(t, deadWrite, group)
		defer c.Allow(t, deadWrite, group)
		dead := o.DeadLetters
		on := "group " + o.Kafka.GroupID
		o := o
		o.TransactionalID = "of-somebody-else-"
		s.finds(o, slices.Concat(without(alone, alone[3]),
			blind("Describe on topic "+dead+" is missing", append(outputChecks(), "output_topics"), dead),
			blind("Describe on "+on+" is missing", []string{"group_protocol", "group_members", "group_release", "replicas", "peer_advertise"}, on),
			blind("Describe on "+on+" is missing", []string{"market_compaction_lag", "committed_offsets"}, names.market),
			blind("Describe on "+on+" is missing", []string{"committed_offsets", "retention"}, names.notes),
			[]wantFinding{
				{"rights", Failure, "topic " + dead, "Write is missing", "grant Write"},
				{"rights", Failure, on, "Read is missing", "grant Read on " + on},
				{"rights", Failure, "transactional id of-somebody-else-*", "Describe or Write is missing", "(prefixed)"},
			})...)
	})

	t.Run("who may not enter", func(t *testing.T) {
		s := s.with(t)
		wrong := o
		wrong.Kafka.Security.SASL.Password = func() (string, error) { return "not the password", nil }
		s.refused(wrong, "SCRAM-SHA-512", "kafka.sasl")
		unknown := o
		unknown.Kafka.Security.TLS.CAFile = s.otherAuthority()
		s.refused(unknown, "certificate", "kafka.tls")
	})
}

// refused wants the one bootstrap server to be a failure, with these words, and
// nothing else looked at.
func (s *stage) refused(o Options, message, remedy string) {
	s.t.Helper()
	report, err := Run(s.ctx, o)
	if err != nil {
		s.t.Fatal(err)
	}
	assertShape(s.t, report.Findings)
	f := report.Findings[1]
	if report.Failed != 1 || !(wantFinding{"bootstrap", Failure, o.Kafka.Brokers[0], message, remedy}).is(f) {
		s.t.Errorf("%d failures, first %+v", report.Failed, f)
	}
	if strings.Contains(f.Message, "not the password") {
		s.t.Error("the password is shown")
	}
}

// allowPrefixed grants what a transactional producer needs.
func (s *stage) allowPrefixed(id string) {
	s.t.Helper()
	var acls []*sarama.Acl
	for _, op := range []sarama.AclOperation{sarama.AclOperationDescribe, sarama.AclOperationWrite} {
		acls = append(acls, &sarama.Acl{Principal: "User:" + cluster.SecureUser, Host: "*", Operation: op, PermissionType: sarama.AclPermissionAllow})
	}
	err := s.admin.CreateACLs([]*sarama.ResourceAcls{{
		Resource: sarama.Resource{ResourceType: sarama.AclResourceTransactionalID, ResourceName: id, ResourcePatternType: sarama.AclPatternPrefixed},
		Acls:     acls,
	}})
	if err != nil {
		s.t.Fatal(err)
	}
}

func secret(t testing.TB, c *cluster.Cluster, name string) string {
	t.Helper()
	b, err := os.ReadFile(c.Secure.File(name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// otherAuthority writes the certificate of an authority that signed nothing
// here.
func (s *stage) otherAuthority() (file string) {
	s.t.Helper()
	other, err := pki.NewAuthority("somebody else")
	if err != nil {
		s.t.Fatal(err)
	}
	file = filepath.Join(s.t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, other.PEM(), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}
