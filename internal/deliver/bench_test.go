package deliver

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"joiner/internal/record"
)

// counter is an owner that only counts.
type counter struct {
	wg sync.WaitGroup
}

func (c *counter) Settled(*record.Output, error) { c.wg.Done() }

// BenchmarkWriter sends alerts of about 400 bytes in groups of 100 to six
// partitions. The broker answers without keeping anything, but in the same
// process: most of what is counted is its own reading and sarama's encoding.
func BenchmarkWriter(b *testing.B) {
	c := newCluster(b, kfake.NumBrokers(1), kfake.SeedTopics(6, "alerts"), kfake.BlackholeProduce())
	w := runWriter(b, Options{Client: newClient(b, c.ListenAddrs(), producerConfig())})
	l := &counter{}
	var all []*record.Output
	for i := range 600 {
		all = append(all, &record.Output{
			Topic: "alerts", Partition: int32(i / 100), Owner: l, Timestamp: record.MillisOf(time.Now()),
			Key: []byte("BBCA"), Value: make([]byte, 350),
			Headers: []record.Header{
				{Key: []byte("joiner-source"), Value: fmt.Appendf(nil, "notifications/3/%d", i)},
				{Key: []byte("joiner-market"), Value: []byte("3/10423")},
			},
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	for sent := 0; sent < b.N; {
		for from := 0; from < len(all) && sent < b.N; from += 100 {
			l.wg.Add(100)
			w.Send(all[from : from+100])
			sent += 100
		}
		l.wg.Wait()
	}
}

// BenchmarkBuild is what the writer itself does for each output: check it,
// queue it, put it into a batch, settle it.
func BenchmarkBuild(b *testing.B) {
	l := &counter{}
	var all []*record.Output
	for i := range 1000 {
		all = append(all, &record.Output{
			Topic: "alerts", Owner: l, Timestamp: record.Millis(1 + i), Key: []byte("BBCA"), Value: make([]byte, 350),
			Headers: []record.Header{{Key: []byte("joiner-source"), Value: []byte("notifications/3/991")}},
		})
	}
	c := newCluster(b, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	w, err := NewWriter(Options{Client: newClient(b, c.ListenAddrs(), producerConfig())})
	if err != nil {
		b.Fatal(err)
	}
	t := w.topic("alerts")
	p := t.partition(0)
	p.at, p.renew, p.leader = sending, false, &sender{w: w, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	var r report
	b.ReportAllocs()
	b.ResetTimer()
	for sent := 0; sent < b.N; sent += len(all) {
		p.at = sending
		w.Send(all)
		for !p.empty() {
			p.fill()
			w.request([]*partition{p})
			w.succeed(p, &r)
			w.settled(len(r.outcomes))
			r.outcomes = r.outcomes[:0]
			p.leader.ready = p.leader.ready[:0]
		}
	}
}
