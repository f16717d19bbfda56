package app

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kversion"

	"joiner/internal/config"
	"joiner/internal/embedded"
)

// TestOlderBrokers: the oldest brokers that are supported, and those without
// the requests that others than Apache Kafka lack, have joins done. check must
// not fail on these (needs of internal/check).
func TestOlderBrokers(t *testing.T) {
	for name, c := range map[string]struct {
		knows  func() *kversion.Versions
		change func(*config.Config)
	}{
		"2.5":               {kversion.V2_5_0, func(*config.Config) {}},
		"2.5, exactly once": {kversion.V2_5_0, func(c *config.Config) { c.Delivery.Guarantee = config.ExactlyOnce }},
		"few requests": {
			func() *kversion.Versions {
				v := kversion.V3_6_0()
				for key, version := range map[int16]int16{
					1: 10, 3: 9, 11: 4, 13: 1, 32: 0, 37: -1, 60: -1, // Fetch, Metadata, JoinGroup, LeaveGroup, DescribeConfigs, CreatePartitions, DescribeCluster
				} {
					v.SetMaxKeyVersion(key, version)
				}
				return v
			},
			func(c *config.Config) { c.Topics.Create, c.Kafka.Rack = true, "r1" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, err := embedded.Start(embedded.Options{Brokers: 3, Topics: allTopics(), Knows: c.knows()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			s := stageOn(t, cluster)
			s.start(c.change).awaitReady()
			at := time.Now().Add(-time.Minute)
			s.send("market-updates", home("A"), "A", `{"price":1}`, at)
			s.send("notifications", home("A"), "A", `{}`, at.Add(time.Second))
			s.alerts("enriched-alerts", 1)
		})
	}
}
