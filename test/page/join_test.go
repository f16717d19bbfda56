package page

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"joiner/internal/app"
	"joiner/internal/config"
	"joiner/internal/embedded"
	"joiner/test/chromium"
)

const partitions = 6

// memberJoins watches a real group on the embedded broker: the grid before and
// after a second member joins, and after it has left again.
func memberJoins(t *testing.T, b *chromium.Browser) {
	var topics []embedded.Topic
	for _, name := range []string{market, notes, "enriched-alerts", "enriched-alerts-dlq"} {
		topics = append(topics, embedded.Topic{Name: name, Partitions: partitions})
	}
	cluster, err := embedded.Start(embedded.Options{Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)

	first, _ := join(t, cluster, "m1")
	tab := b.Open(t, "http://"+first.Addr().String()+"/", 1280, 1000)
	tab.Await(t, owns("m1", 6))
	picture(t, tab, "join-before")
	_, leave := join(t, cluster, "m2")
	tab.Await(t, owns("m1", 3)+" && "+owns("m2", 3))
	equal(t, tab, "new Set([...document.querySelectorAll('#members .chip')].map((c) => c.dataset.partition)).size", float64(partitions))
	picture(t, tab, "join-after")
	leave()
	tab.Await(t, owns("m1", 6)+" && !document.querySelector('tr[data-member=m2]')")
	faultless(t, tab, "")
}

// owns is true once the member's row has so many partitions of both topics.
func owns(member string, n int) string {
	return fmt.Sprintf("document.querySelectorAll('#members tr[data-member=\"%s\"] .chip.both:not(.busy)').length === %d", member, n)
}

// join starts a joiner and returns it once it listens, and how to stop it.
func join(t *testing.T, cluster *embedded.Cluster, name string) (*app.App, func()) {
	t.Helper()
	c := config.Default()
	c.Kafka.Brokers = cluster.Addrs()
	c.HTTP.Listen, c.Peer.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Group.HeartbeatInterval = 100 * time.Millisecond
	a, err := app.New(app.Options{Config: c, Identity: name, Logger: zaptest.NewLogger(t, zaptest.Level(zapcore.WarnLevel))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Cleanup(stop)
	for deadline := time.Now().Add(chromium.Patience); a.Addr() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen", name)
		}
	}
	return a, stop
}
