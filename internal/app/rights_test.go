package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/config"
	"joiner/internal/kafka"
)

// guarded is a cluster on which the user joiner has the rights that it is given.
type guarded struct {
	t     *testing.T
	addrs []string
	admin sarama.ClusterAdmin
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	fake, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.GroupMinSessionTimeout(6*time.Second),
		kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "joiner", "joiner"),
		kfake.SeedTopics(2, "market-updates", "notifications", "enriched-alerts", "enriched-alerts-dlq"),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	conf, err := kafka.ToolConfig(kafka.ToolOptions{ClientID: "admin", Version: "auto", Security: kafka.Security{SASL: kafka.SASL{
		Mechanism: "PLAIN", Username: "admin", Password: func() (string, error) { return "admin", nil },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := sarama.NewClusterAdmin(fake.ListenAddrs(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	return &guarded{t: t, addrs: fake.ListenAddrs(), admin: admin}
}

// right is an ACL of the user joiner.
type right struct {
	operation sarama.AclOperation
	resource  sarama.AclResourceType
	name      string
}

func (r right) String() string {
	resource := "topic"
	if r.resource == sarama.AclResourceGroup {
		resource = "group"
	}
	return fmt.Sprintf("%s on %s %s", r.operation.String(), resource, r.name)
}

func (g *guarded) give(rights ...right) {
	g.t.Helper()
	for _, r := range rights {
		err := g.admin.CreateACLs([]*sarama.ResourceAcls{{
			Resource: sarama.Resource{ResourceType: r.resource, ResourceName: r.name, ResourcePatternType: sarama.AclPatternLiteral},
			Acls:     []*sarama.Acl{{Principal: "User:joiner", Host: "*", Operation: r.operation, PermissionType: sarama.AclPermissionAllow}},
		}})
		if err != nil {
			g.t.Fatal(err)
		}
	}
}

func (g *guarded) take(r right) {
	g.t.Helper()
	user := "User:joiner"
	gone, err := g.admin.DeleteACL(sarama.AclFilter{
		ResourceType: r.resource, ResourceName: &r.name, ResourcePatternTypeFilter: sarama.AclPatternLiteral,
		Principal: &user, Operation: r.operation, PermissionType: sarama.AclPermissionAllow,
	}, false)
	if err != nil || len(gone) != 1 {
		g.t.Fatalf("taking %s away: %d ACLs, %v", r, len(gone), err)
	}
}

func (g *guarded) start(log *zap.Logger, change func(*config.Config)) *pod {
	s := &stage{t: g.t, log: log, addrs: g.addrs}
	return s.start(func(c *config.Config) {
		c.Kafka.SASL.Mechanism, c.Kafka.SASL.Username, c.Kafka.SASL.Password = "PLAIN", "joiner", "joiner"
		if change != nil {
			change(c)
		}
	})
}

// awaitMissing waits until readiness names the right.
func (p *pod) awaitMissing(r right) {
	p.t.Helper()
	await(p.t, func() string {
		for _, reason := range p.Ready().Reasons {
			if strings.Contains(reason, "missing right: "+r.String()) {
				return ""
			}
		}
		return fmt.Sprintf("want a reason with %s, not %q", r, p.Ready().Reasons)
	})
}

var (
	readMarket = right{sarama.AclOperationRead, sarama.AclResourceTopic, "market-updates"}
	readNotes  = right{sarama.AclOperationRead, sarama.AclResourceTopic, "notifications"}
	writeAlert = right{sarama.AclOperationWrite, sarama.AclResourceTopic, "enriched-alerts"}
	writeDead  = right{sarama.AclOperationWrite, sarama.AclResourceTopic, "enriched-alerts-dlq"}
	readGroup  = right{sarama.AclOperationRead, sarama.AclResourceGroup, "joiner"}
)

func describeConfigs() (all []right) {
	for _, topic := range []string{"market-updates", "notifications", "enriched-alerts", "enriched-alerts-dlq"} {
		all = append(all, right{sarama.AclOperationDescribeConfigs, sarama.AclResourceTopic, topic})
	}
	return all
}

// TestMissingRightsAreNamedAndHeal takes each right away from a running joiner,
// and has one start without any.
func TestMissingRightsAreNamedAndHeal(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	core, logs := observer.New(zapcore.WarnLevel)
	all := []right{readMarket, readNotes, writeAlert, writeDead, readGroup}
	p := g.start(zap.New(core), nil)
	p.awaitMissing(readMarket)
	p.awaitMissing(readNotes)
	g.give(all...)
	p.awaitReady()
	for _, r := range all {
		g.take(r)
		p.awaitMissing(r)
		g.give(r)
		p.awaitReady()
	}
	// A topic that may be looked up, but not read.
	describe := right{sarama.AclOperationDescribe, sarama.AclResourceTopic, "notifications"}
	g.give(describe)
	g.take(readNotes)
	p.awaitMissing(readNotes)
	g.give(readNotes)
	p.awaitReady()

	for _, r := range describeConfigs() {
		if logs.FilterMessageSnippet("missing right: "+r.String()).Len() == 0 {
			t.Errorf("no warning about %s", r)
		}
	}
	if logs.FilterMessageSnippet("missing right: "+readNotes.String()).FilterLevelExact(zapcore.ErrorLevel).Len() == 0 {
		t.Errorf("no error about %s", readNotes)
	}
}

func TestEveryRightIsWaitedForAtTheStart(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	g.give(readMarket, readNotes)
	p := g.start(nil, func(c *config.Config) { c.Notification.Start = "latest" })
	p.awaitMissing(readGroup)
	p.awaitMissing(writeAlert)
	g.give(readGroup, writeAlert, writeDead)
	p.awaitReady()
}

func TestRightsToCreateAreNamed(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	g.give(readMarket, readNotes, writeDead, readGroup)
	const other = "other-alerts"
	write := right{sarama.AclOperationWrite, sarama.AclResourceTopic, other}
	create := right{sarama.AclOperationCreate, sarama.AclResourceTopic, other}
	alter := right{sarama.AclOperationAlter, sarama.AclResourceTopic, "enriched-alerts-dlq"}
	if err := g.admin.CreatePartitions("market-updates", 3, nil, false); err != nil {
		t.Fatal(err)
	}
	g.give(write)
	p := g.start(nil, func(c *config.Config) {
		c.Topics.Create, c.Topics.EnrichedAlerts = true, other
	})
	p.awaitMissing(create)
	p.awaitMissing(alter)
	g.give(create, alter)
	if err := g.admin.CreatePartitions("notifications", 3, nil, false); err != nil {
		t.Fatal(err)
	}
	p.awaitReady()
}
