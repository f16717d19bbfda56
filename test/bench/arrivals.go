package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// arrivals are the outputs that a consumer sees who reads what is committed,
// and when.
type arrivals struct {
	consumer sarama.Consumer
	claims   []sarama.PartitionConsumer
	reading  sync.WaitGroup

	mu  sync.Mutex
	all []arrival
	err error
}

type arrival struct{ sent, seen time.Time }

// watch reads a topic from now on.
func (t *topics) watch(name string) (*arrivals, error) {
	conf := cluster.Config()
	conf.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer(t.cluster.Brokers, conf)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", name, err)
	}
	a := &arrivals{consumer: consumer}
	partitions, err := consumer.Partitions(name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching %s: %w", name, err), a.close())
	}
	for _, p := range partitions {
		claim, err := consumer.ConsumePartition(name, p, sarama.OffsetOldest)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watching %s/%d: %w", name, p, err), a.close())
		}
		a.claims = append(a.claims, claim)
		a.reading.Go(func() {
			for m := range claim.Messages() {
				a.note(m.Value, time.Now())
			}
		})
	}
	return a, nil
}

func (a *arrivals) note(value []byte, seen time.Time) {
	sent, err := sentAt(value)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = errors.Join(a.err, err)
	a.all = append(a.all, arrival{sent, seen})
}

// count is the number of outputs that have come.
func (a *arrivals) count() (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(len(a.all)), a.err
}

// since returns the delays, in ms, of notifications sent since counted.
func (a *arrivals) since(counted time.Time) (delays []float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.all {
		if !one.sent.Before(counted) {
			delays = append(delays, float64(one.seen.Sub(one.sent).Microseconds())/1000)
		}
	}
	return delays
}

func (a *arrivals) close() error {
	for _, claim := range a.claims {
		claim.AsyncClose()
	}
	a.reading.Wait()
	return a.consumer.Close()
}
