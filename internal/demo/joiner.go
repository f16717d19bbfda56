package demo

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"joiner/internal/app"
	"joiner/internal/config"
	"joiner/internal/record"
)

// Joiners returns a factory of real joiners in this process, each with its own
// registry and free ports of loopback, through which they ask each other. A nil logger is none.
func Joiners(build app.Build, log *zap.Logger) PodFactory {
	if log == nil {
		log = zap.NewNop()
	}
	return func(_ context.Context, o PodOptions) (Pod, error) { return startJoiner(build, log, o) }
}

// LiveJoiners is Joiners for the live demo.
func LiveJoiners(build app.Build, log *zap.Logger) func(context.Context, PodOptions) (LivePod, error) {
	if log == nil {
		log = zap.NewNop()
	}
	return func(_ context.Context, o PodOptions) (LivePod, error) { return startJoiner(build, log, o) }
}

// Page implements LivePod.
func (j *joiner) Page() string {
	addr := j.app.Addr()
	if addr == nil {
		return ""
	}
	return "http://" + addr.String() + "/"
}

// joiner is an app that runs.
type joiner struct {
	app    *app.App
	reg    *prometheus.Registry
	topics Topics
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

func startJoiner(build app.Build, log *zap.Logger, o PodOptions) (*joiner, error) {
	reg := prometheus.NewRegistry()
	a, err := app.New(app.Options{
		Config: joinerConfig(o), Registry: reg, Logger: log.Named(o.Name), Build: build, Identity: o.Name,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &joiner{app: a, reg: reg, topics: o.Topics, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(j.done)
		j.err = a.Run(ctx)
	}()
	return j, nil
}

// joinerConfig is the default configuration but for where things are, and for
// a demo's impatience: members notice a rebalance at their next heartbeat. All of
// them share one machine, with a broker: an owner that is slow to answer is not
// a dead one.
func joinerConfig(o PodOptions) config.Config {
	c := config.Default()
	c.Kafka.Brokers = o.Brokers
	c.Kafka.ClientID = o.Name
	c.Kafka.MetadataRefresh = time.Second
	c.Topics.MarketUpdates = o.Topics.MarketUpdates
	c.Topics.Notifications = o.Topics.Notifications
	c.Topics.EnrichedAlerts = o.Topics.EnrichedAlerts
	c.Topics.DeadLetters = o.Topics.DeadLetters
	c.Group.ID = o.Group
	c.Group.Strategy = o.Strategy
	c.Group.HeartbeatInterval = 100 * time.Millisecond
	c.Join.RemoteTimeout = 2 * time.Second
	c.Peer.Listen = "127.0.0.1:0"
	c.HTTP.Listen = cmp.Or(o.HTTPListen, "127.0.0.1:0")
	return c
}

// Status implements Pod.
func (j *joiner) Status() Status {
	select {
	case <-j.done:
		return Status{Ended: true, Reasons: []string{fmt.Sprintf("it has ended: %v", j.err)}}
	default:
	}
	ready, member := j.app.Ready(), j.app.Member().Status()
	return Status{
		Ready:   ready.Ready,
		Reasons: ready.Reasons,
		Owned: map[string][]int32{
			j.topics.MarketUpdates: member.Owned[record.Market],
			j.topics.Notifications: member.Owned[record.Notification],
		},
	}
}

// Stop implements Pod.
func (j *joiner) Stop(ctx context.Context) error {
	j.cancel()
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// joinDuration is the metric that JoinTimes reads back.
const joinDuration = "joiner_join_duration_seconds"

// JoinTimes implements Pod. The times come from the native buckets of the
// metric that a dashboard would show, so they are true to 5 %.
func (j *joiner) JoinTimes() []time.Duration {
	families, err := j.reg.Gather()
	if err != nil {
		return nil // the demo then shows zeros; the joins themselves are not in doubt
	}
	var times []time.Duration
	for _, f := range families {
		if f.GetName() != joinDuration {
			continue
		}
		for _, m := range f.GetMetric() {
			h := m.GetHistogram()
			index, at, n := int32(0), 0, int64(0)
			for _, span := range h.GetPositiveSpan() {
				index += span.GetOffset()
				for range span.GetLength() {
					n += h.GetPositiveDelta()[at] // counts are told as differences
					times = appendTimes(times, bucketMiddle(index, h.GetSchema()), n)
					index, at = index+1, at+1
				}
			}
		}
	}
	return times
}

// bucketMiddle returns the geometric middle of a native bucket, whose upper
// bound is 2^(index/2^schema).
func bucketMiddle(index, schema int32) time.Duration {
	seconds := math.Exp2((float64(index) - 0.5) * math.Exp2(-float64(schema)))
	return time.Duration(seconds * float64(time.Second))
}

func appendTimes(times []time.Duration, d time.Duration, n int64) []time.Duration {
	for range n {
		times = append(times, d)
	}
	return times
}
