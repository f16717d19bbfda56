package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// Tail notes when alerts arrive at a consumer. An output's own timestamp is its
// notification's, so it says nothing of when it was written.
type Tail struct {
	mu       sync.Mutex
	arrivals map[int32][]time.Time
}

// Tail begins at the ends of the alerts' partitions, and ends with the test.
func (w *World) Tail() *Tail {
	w.t.Helper()
	config := w.Config()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.MaxWaitTime = 50 * time.Millisecond
	consumer, err := sarama.NewConsumer(w.Brokers, config)
	if err != nil {
		w.t.Fatalf("consumer: %v", err)
	}
	tail := &Tail{arrivals: make(map[int32][]time.Time)}
	var reading sync.WaitGroup
	var claims []sarama.PartitionConsumer
	for partition := range w.Partitions {
		claim, err := consumer.ConsumePartition(w.Alerts, partition, sarama.OffsetNewest)
		if err != nil {
			w.t.Fatalf("reading %s/%d: %v", w.Alerts, partition, err)
		}
		claims = append(claims, claim)
		reading.Go(func() {
			for range claim.Messages() {
				tail.note(partition)
			}
		})
	}
	w.t.Cleanup(func() {
		for _, claim := range claims {
			claim.AsyncClose()
		}
		reading.Wait()
		_ = consumer.Close()
	})
	return tail
}

func (t *Tail) note(partition int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.arrivals[partition] = append(t.arrivals[partition], time.Now())
}

// Gaps returns each partition's longest time without an alert, among the gaps
// that reach into the span.
func (t *Tail) Gaps(from, to time.Time) map[int32]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	gaps := make(map[int32]time.Duration)
	for partition, arrivals := range t.arrivals {
		for i := 1; i < len(arrivals); i++ {
			if arrivals[i].After(from) && arrivals[i-1].Before(to) {
				gaps[partition] = max(gaps[partition], arrivals[i].Sub(arrivals[i-1]))
			}
		}
	}
	return gaps
}

// GapsWithin is Gaps for those that begin and end in the span.
func (t *Tail) GapsWithin(from, to time.Time) map[int32]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	gaps := make(map[int32]time.Duration)
	for partition, arrivals := range t.arrivals {
		for i := 1; i < len(arrivals); i++ {
			if arrivals[i-1].After(from) && arrivals[i].Before(to) {
				gaps[partition] = max(gaps[partition], arrivals[i].Sub(arrivals[i-1]))
			}
		}
	}
	return gaps
}

// Arrived counts each partition's alerts within the span.
func (t *Tail) Arrived(from, to time.Time) map[int32]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := make(map[int32]int)
	for partition, arrivals := range t.arrivals {
		for _, at := range arrivals {
			if at.After(from) && at.Before(to) {
				counts[partition]++
			}
		}
	}
	return counts
}

// only keeps the partitions for which keep says so.
func only(gaps map[int32]time.Duration, keep func(int32) bool) []time.Duration {
	var kept []time.Duration
	for partition, gap := range gaps {
		if keep(partition) {
			kept = append(kept, gap)
		}
	}
	return kept
}

// spread describes durations for people.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.SortFunc(all, cmp.Compare[time.Duration])
	ms := func(d time.Duration) string { return fmt.Sprintf("%d", d.Milliseconds()) }
	if len(all) <= 4 {
		texts := make([]string, len(all))
		for i, d := range all {
			texts[i] = ms(d)
		}
		return strings.Join(texts, ", ") + " ms"
	}
	return fmt.Sprintf("min %s, median %s, max %s ms (%d)", ms(all[0]), ms(all[len(all)/2]), ms(all[len(all)-1]), len(all))
}
