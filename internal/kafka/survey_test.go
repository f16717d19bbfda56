package kafka

import (
	"errors"
	"math"
	"net"
	"slices"
	"testing"

	"github.com/IBM/sarama"
	"go.uber.org/zap/zaptest"
)

func (c *cluster) survey(t *testing.T, change func(*Options)) *Survey {
	t.Helper()
	o := Options{Brokers: c.addrs, GroupID: unique("group"), Log: zaptest.NewLogger(t)}
	if change != nil {
		change(&o)
	}
	s, err := NewSurvey(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestVisit(t *testing.T) {
	c := anyCluster(t)
	s := c.survey(t, nil)
	v := s.Visit(deadline(t), -1, c.addrs[0])
	if v.Err != nil || v.ClusterID == "" || len(v.Brokers) != 3 || !v.CertificateEnds.IsZero() {
		t.Fatalf("got %+v", v)
	}
	if v.APIs[0] == 0 { // Produce
		t.Errorf("no requests known: %v", v.APIs)
	}
	for _, b := range v.Brokers {
		own := s.Visit(deadline(t), b.ID, b.Address)
		if own.Err != nil || own.ClusterID != v.ClusterID || own.Settings.Err != nil {
			t.Errorf("broker %d: %+v", b.ID, own)
		}
	}
}

func TestVisitNobody(t *testing.T) {
	c := anyCluster(t)
	v := c.survey(t, nil).Visit(deadline(t), 7, "127.0.0.1:1")
	var op *net.OpError
	if !errors.As(v.Err, &op) || v.ID != 7 || v.Address != "127.0.0.1:1" {
		t.Errorf("got %+v", v)
	}
	if _, err := NewSurvey(Options{}); err == nil {
		t.Error("options without brokers are taken")
	}
}

func TestLayouts(t *testing.T) {
	c := anyCluster(t)
	topic := c.topic(t, 3, map[string]string{"retention.ms": "12345"})
	clients := c.connect(t, nil)
	missing := unique("missing")
	layouts, err := clients.Facts.Layouts(deadline(t), topic, missing)
	if err != nil {
		t.Fatal(err)
	}
	if layouts[missing].Exists() || layouts[missing].Err != nil {
		t.Errorf("missing topic: %+v", layouts[missing])
	}
	l := layouts[topic]
	if len(l.Partitions) != 3 || l.Topic.Partitions != 3 || !l.Rights.Allow(sarama.AclOperationWrite) {
		t.Fatalf("got %+v", l)
	}
	for i, p := range l.Partitions {
		if p.ID != int32(i) || p.Leader < 0 || len(p.Replicas) == 0 || !slices.Contains(p.Replicas, p.Leader) || len(p.InSync) == 0 {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
	settings, err := clients.Facts.TopicSettings(deadline(t), topic, missing)
	if err != nil {
		t.Fatal(err)
	}
	if got := settings[topic].Values["retention.ms"]; got != "12345" {
		t.Errorf("retention.ms is %q", got)
	}
	if settings[missing].Err == nil {
		t.Error("a missing topic has settings")
	}
}

// Nothing is made by asking.
func TestTryCreate(t *testing.T) {
	c := anyCluster(t)
	clients := c.connect(t, nil)
	name := unique("tried")
	if err := clients.Facts.TryCreate(deadline(t), name, 3, -1); err != nil {
		t.Fatal(err)
	}
	topics, err := clients.Facts.Topics(deadline(t), name)
	if err != nil || topics[name].Exists() {
		t.Errorf("the topic exists: %+v, %v", topics[name], err)
	}
	if err := clients.Facts.TryCreate(deadline(t), name, 3, 99); err == nil {
		t.Error("99 replicas are taken")
	}
	if err := clients.Facts.TryCreate(deadline(t), c.topic(t, 1, nil), 3, -1); err != nil {
		t.Errorf("a topic that exists: %v", err)
	}
}

func TestGroupThatNobodyUses(t *testing.T) {
	c := anyCluster(t)
	group := unique("group")
	clients := c.connect(t, func(o *Options) { o.GroupID = group })
	g, err := clients.DescribeGroup(deadline(t))
	if err != nil || g.Type != "" || len(g.Members) != 0 {
		t.Errorf("got %+v, %v", g, err)
	}
	at, err := clients.GroupCoordinator(deadline(t))
	if err != nil || !slices.Contains(c.addrs, at) {
		t.Fatalf("coordinator %q, %v", at, err)
	}
	s := c.survey(t, func(o *Options) { o.GroupID = group })
	newer, err := s.NewerGroup(deadline(t), s.Visit(deadline(t), -1, at), at)
	if err != nil || newer.Type != "" {
		t.Errorf("got %+v, %v", newer, err)
	}
	old, err := s.NewerGroup(deadline(t), Visit{}, "127.0.0.1:1")
	if err != nil || old.Type != "" {
		t.Errorf("a broker that does not know of such groups was asked: %+v, %v", old, err)
	}
}

func TestTryTransaction(t *testing.T) {
	c := anyCluster(t)
	if err := c.connect(t, nil).TryTransaction(deadline(t), unique("id")); err != nil {
		t.Error(err)
	}
}

func TestRights(t *testing.T) {
	if r := rightsOf(math.MinInt32); r.Known || r.Allow(sarama.AclOperationRead) {
		t.Errorf("unknown rights allow: %+v", r)
	}
	r := rightsOf(1<<sarama.AclOperationRead | 1<<sarama.AclOperationDescribe)
	if !r.Allow(sarama.AclOperationRead) || !r.Allow(sarama.AclOperationDescribe) || r.Allow(sarama.AclOperationWrite) {
		t.Errorf("got %+v", r)
	}
	if r := AllRights().Without(sarama.AclOperationRead); r.Allow(sarama.AclOperationRead) || !r.Allow(sarama.AclOperationIdempotentWrite) {
		t.Errorf("got %+v", r)
	}
}
