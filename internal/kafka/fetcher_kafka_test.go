package kafka

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	realkafka "joiner/test/cluster"
)

// Real brokers elect leaders, replicate, and end connections as they like: one
// is killed and comes back, one is silent for a while and comes back, and every
// record comes once, in order.
func TestKafkaFetcherOutlastsBrokers(t *testing.T) {
	// A broker is thought dead after 9 s by default, which is most of the test.
	real := realkafka.Start(t, realkafka.Options{Private: true, Settings: []string{
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500",
	}})
	topic := real.Name("ticks")
	const partitions = 6
	if err := real.CreateTopic(topic, partitions, nil); err != nil {
		t.Fatal(err)
	}
	k := &cluster{addrs: real.Brokers}
	c := k.connect(t, func(o *Options) { o.MetadataRefresh = 2 * time.Second })
	f := c.NewFetcher(FetcherOptions{})
	var sinks [partitions]*fetched
	for id := range sinks {
		sinks[id] = newFetched(t, 0)
		sinks[id].batch = 256
		f.Add(topic, int32(id), -1, sinks[id])
	}

	p := k.producer(t)
	stop, produced := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ; wait(stop, time.Millisecond); n++ {
			for id := range int32(partitions) {
				p.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: id, Value: []byte(fmt.Sprint(n))}, func(_ *kgo.Record, err error) {
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		produced <- n
	}()
	// flows returns when every partition has brought records anew.
	flows := func(when string) {
		t.Helper()
		for id, s := range sinks {
			before := len(s.got())
			eventually(t, fmt.Sprintf("records of partition %d %s", id, when), func() bool { return len(s.got()) > before+20 })
		}
	}
	flows("at first")
	real.KillBroker(t, 2)
	flows("after a kill")
	real.StartBroker(t, 2)
	flows("after its return")
	real.PauseBroker(t, 3)
	flows("while a broker is silent")
	real.ResumeBroker(t, 3)
	flows("after its return")

	close(stop)
	n := <-produced
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	want := numbers(0, n)
	for id, s := range sinks {
		if got := s.wait(n); !slices.Equal(want, got) {
			t.Errorf("partition %d: %d records for %d: lost, doubled or out of order", id, len(got), n)
		}
	}
	t.Logf("%d records a partition", n)
}
