package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// stage is one strategy at work.
type stage struct {
	o        Options
	strategy string
	topics   Topics
	brokers  []string
	pods     []Pod
}

func (st *stage) say(format string, args ...any) {
	if st.o.Progress != nil {
		_, _ = fmt.Fprintf(st.o.Progress, "%s: %s\n", st.strategy, fmt.Sprintf(format, args...))
	}
}

// play joins the notifications with four members, then lets a fifth one in.
func (st *stage) play(ctx context.Context) (Strategy, error) {
	st.say("%d members join the group", members)
	for range members {
		if err := st.addPod(ctx); err != nil {
			return Strategy{}, err
		}
	}
	before, err := st.settle(ctx)
	if err != nil {
		return Strategy{}, err
	}
	s, err := st.join(ctx)
	if err != nil {
		return Strategy{}, err
	}
	st.say("a fifth member joins")
	if err := st.addPod(ctx); err != nil {
		return Strategy{}, err
	}
	after, err := st.settle(ctx)
	if err != nil {
		return Strategy{}, err
	}
	s.Moved = moved(before, after)
	s.MovedMinimum = movedMinimum(before, len(st.pods))
	return s, nil
}

func (st *stage) addPod(ctx context.Context) error {
	name := fmt.Sprintf("m%d", len(st.pods)+1)
	pod, err := st.o.NewPod(ctx, PodOptions{
		Name: name, Brokers: st.brokers, Group: "joiner-demo", Strategy: st.strategy,
		Topics: st.topics,
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	st.pods = append(st.pods, pod)
	return nil
}

// stopWithin bounds the pods' way out; its own shutdown.timeout is shorter.
const stopWithin = 30 * time.Second

// stop ends all pods at once: one after the other, each would hand its
// partitions to those that are about to go.
func (st *stage) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	errs := make([]error, len(st.pods))
	var stopping sync.WaitGroup
	for i, pod := range st.pods {
		stopping.Go(func() {
			if err := pod.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("stop m%d: %w", i+1, err)
			}
		})
	}
	stopping.Wait()
	return errors.Join(errs...)
}

// join produces ticks and notifications and reads the alerts.
func (st *stage) join(ctx context.Context) (Strategy, error) {
	data := newData(time.Now().Add(-time.Minute))
	ctx, cancel := context.WithTimeout(ctx, st.o.Patience)
	defer cancel()
	st.say("%d ticks, then %d notifications", len(data.ticks), len(data.notes))
	log, err := openLog(st.brokers)
	if err != nil {
		return Strategy{}, err
	}
	defer log.close()
	if err := log.send(st.topics.MarketUpdates, data.ticks); err != nil {
		return Strategy{}, err
	}
	if err := log.send(st.topics.Notifications, data.notes); err != nil {
		return Strategy{}, err
	}
	alerts, err := log.alerts(ctx, st.topics, len(data.notes))
	if err != nil {
		return Strategy{}, err
	}
	s, err := count(alerts, data.last)
	if err != nil {
		return Strategy{}, err
	}
	s.Name = st.strategy
	s.JoinP50, s.JoinP99 = st.joinTimes()
	return s, nil
}

// joinTimes returns the median and the 99th percentile over all pods, in
// microseconds.
func (st *stage) joinTimes() (p50, p99 float64) {
	var all []time.Duration
	for _, pod := range st.pods {
		all = append(all, pod.JoinTimes()...)
	}
	slices.Sort(all)
	return micros(quantile(all, 50)), micros(quantile(all, 99))
}

// quantile returns the smallest of the sorted durations that percent of them
// do not exceed, 0 where there are none.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// settle waits until every partition has one owner, every member owns something
// and all are ready, and returns who owns what. Looking once would do were it
// not for members that report the assignment before last; such a state has
// holes or two owners of one partition.
func (st *stage) settle(ctx context.Context) ([]ownership, error) {
	ctx, cancel := context.WithTimeout(ctx, st.o.Patience)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	var last []ownership
	for {
		owners, complaints := st.look()
		if complaints == "" && slices.EqualFunc(owners, last, ownership.equal) {
			return owners, nil
		}
		last = nil
		if complaints == "" {
			last = owners
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the group has not settled (%s): %w", complaints, ctx.Err())
		}
	}
}

func (st *stage) look() (owners []ownership, complaints string) {
	var missing []string
	for i, pod := range st.pods {
		s := pod.Status()
		own := ownershipOf(s.Owned)
		owners = append(owners, own)
		if !s.Ready {
			missing = append(missing, fmt.Sprintf("m%d: %s", i+1, strings.Join(s.Reasons, ", ")))
		} else if len(own) == 0 {
			missing = append(missing, fmt.Sprintf("m%d owns nothing", i+1))
		}
	}
	missing = append(missing, st.holes(owners)...)
	return owners, strings.Join(missing, "; ")
}

// holes names partitions without an owner and with more than one.
func (st *stage) holes(owners []ownership) (holes []string) {
	for _, topic := range []string{st.topics.MarketUpdates, st.topics.Notifications} {
		for p := range int32(partitions) {
			n := 0
			for _, own := range owners {
				if own[topicPartition{topic, p}] {
					n++
				}
			}
			if n != 1 {
				holes = append(holes, fmt.Sprintf("%s/%d has %d owners", topic, p, n))
			}
		}
	}
	return holes
}
