package remote

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"joiner/internal/task"
)

// BenchmarkLookups asks an owner on loopback for prices, so many at a time, and
// reports look-ups a second and how long one takes.
func BenchmarkLookups(b *testing.B) {
	for _, atATime := range []int{1, 64, 1000, 10_000} {
		b.Run(fmt.Sprintf("open=%d", atATime), func(b *testing.B) {
			p := newPair(b, nil, nil)
			for i := range 1000 {
				p.table.prices[fmt.Sprint("symbol-", i)] = "9150.25"
			}
			took := make([]time.Duration, b.N)
			room := make(chan struct{}, atATime)
			var open sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				room <- struct{}{}
				open.Add(1)
				began := time.Now()
				p.client.Ask(context.Background(), task.Query{Symbol: fmt.Sprint("symbol-", i%1000), Partition: 1, At: 1500}, Everywhere, func(a task.Answer) {
					if a.Outcome != task.Found {
						b.Errorf("%+v", a)
					}
					took[i] = time.Since(began)
					<-room
					open.Done()
				})
			}
			open.Wait()
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lookups/s")
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
