package remote

import (
	"context"
	"fmt"
	"runtime"
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

// BenchmarkEveryOwner asks every owner of so many partitions while half of them
// cannot answer, as under topics.partitioner: custom. "asker" is what it costs the
// task that asks, with the lock of its table held.
func BenchmarkEveryOwner(b *testing.B) {
	for _, parts := range []int{6, 100, 1000} {
		b.Run(fmt.Sprintf("partitions=%d", parts), func(b *testing.B) {
			p := newPair(b, nil, nil)
			p.asker.parts = int32(parts)
			owners := make([]string, parts)
			for i := range owners {
				if i%2 == 0 {
					owners[i] = "b"
					p.owner.table[int32(i)] = tableOf(int32(i), nil)
				}
			}
			p.asker.dir = directory(5, map[string]string{"b": p.server.Addr().String()}, owners...)
			p.owner.dir = p.asker.dir
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			before := heapBytes()
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				p.client.Ask(ctx, task.Query{Symbol: fmt.Sprint("symbol-", i), Partition: task.AnyPartition, Except: 0, At: 1500}, Everywhere, func(task.Answer) {})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "asker-ns/op")
			b.StopTimer()
			b.ReportMetric(float64(heapBytes()-before)/float64(b.N), "held-B/op")
		})
	}
}

func heapBytes() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
