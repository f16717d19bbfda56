// Package load is the `joiner load` command: it produces realistic ticks and
// notifications at a given rate, reads the enriched alerts back and reports
// how many came and how fast.
//
// It is a user of Kafka like any other. It must never be imported by the
// service, join a consumer group, commit an offset or create a topic, and what
// it sends must depend on its options alone, so that one run can be compared
// with the next.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/IBM/sarama"
)

// Placer says where a key belongs; placement.Placer is one. It answers false
// where that is not known.
type Placer interface {
	Partition(key []byte, partitions int32) (partition int32, known bool)
}

// Options says what to produce and where.
type Options struct {
	Brokers []string // host:port, at least one
	// Config returns a new configuration for one of the clients, with the
	// protocol version, credentials and isolation level; load sets what
	// producing and reading need. Nil is sarama's own with Kafka 3.6.0 and
	// read committed.
	Config func() (*sarama.Config, error)

	MarketTopic, NotificationTopic, AlertTopic string
	MarketPlacer, NotificationPlacer           Placer

	Rate                 float64       // notifications a second; 0 is as fast as it goes
	TicksPerNotification int           // at least 0
	Symbols              int           // at least 1
	Skew                 Skew          // how both spread over the symbols
	Duration             time.Duration // of producing; 0 is no limit
	Count                int64         // notifications; 0 is no limit
	ValueBytes           int           // of each value where its content is shorter, at least 0
	Seed                 uint64

	// Wait is how long to wait for missing alerts, counted anew from each
	// alert that comes.
	Wait time.Duration
	// Grace is Wait's bound once the run was interrupted while it produced.
	Grace time.Duration

	// Progress gets lines about how it goes, nil for none. On a Terminal it
	// is one line, written again and again.
	Progress io.Writer
	Terminal bool
}

// DefaultOptions returns what the command does when asked for nothing else;
// brokers, topics and placers are still to be set. Without Duration and Count
// it would go on until it is interrupted, so Duration is 30 seconds.
func DefaultOptions() Options {
	return Options{
		Rate:                 100,
		TicksPerNotification: 10,
		Symbols:              1000,
		Duration:             30 * time.Second,
		ValueBytes:           200,
		Seed:                 1,
		Wait:                 30 * time.Second,
		Grace:                afterInterrupt,
	}
}

const (
	maxSymbols    = 10_000_000
	maxValueBytes = 64 << 20
	maxRate       = 10_000_000
)

// Validate reports every fault at once, each under the name of its flag.
func (o Options) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(len(o.Brokers) == 0, "brokers: none given")
	fault(o.MarketTopic == "" || o.NotificationTopic == "" || o.AlertTopic == "", "topics: a name is empty")
	fault(o.MarketTopic == o.NotificationTopic, "topics: market updates and notifications are both %q", o.MarketTopic)
	fault(o.MarketPlacer == nil || o.NotificationPlacer == nil, "--partitioner: none given")
	fault(!(o.Rate >= 0 && o.Rate <= maxRate), "--rate: %v, use 0 (as fast as it goes) to %d notifications a second", o.Rate, maxRate)
	fault(o.TicksPerNotification < 0, "--ticks-per-notification: %d, use 0 or more", o.TicksPerNotification)
	fault(o.Symbols < 1 || o.Symbols > maxSymbols, "--symbols: %d, use 1 to %d", o.Symbols, maxSymbols)
	fault(o.Duration < 0, "--duration: %s, use 0s (no limit) or more", o.Duration)
	fault(o.Count < 0, "--count: %d, use 0 (no limit) or more", o.Count)
	fault(o.ValueBytes < 0 || o.ValueBytes > maxValueBytes, "--value-bytes: %d, use 0 to %d", o.ValueBytes, maxValueBytes)
	fault(o.Wait < 0, "--wait: %s, use 0s or more", o.Wait)
	fault(o.Grace < 0, "grace: %s, use 0s or more", o.Grace)
	return errors.Join(errs...)
}

// ErrOptions is what Run's error is where its options are out of range.
var ErrOptions = errors.New("load options")

// Report is what came of a run, as the command prints it.
type Report struct {
	Ticks         int64 `json:"ticks"`         // acknowledged
	Notifications int64 `json:"notifications"` // acknowledged
	Alerts        int64 `json:"alerts"`        // notifications with at least one alert
	Missing       int64 `json:"missing"`       // notifications without
	Duplicates    int64 `json:"duplicates"`    // further alerts of the same notification

	Seconds    float64 `json:"seconds"`     // from the first record to the last acknowledgement
	Rate       float64 `json:"rate"`        // notifications a second in that time
	AlertsRate float64 `json:"alerts_rate"` // alerts a second from the first record to the last alert

	// Latency is from handing a notification to the producer until its first
	// alert is read back; all zero without alerts.
	Latency Latency `json:"latency_ms"`
}

// Latency is a distribution in milliseconds. Percentiles are exact to one part
// in 64; Max is exact.
type Latency struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Text writes the report for people.
func (r Report) Text(w io.Writer) error {
	_, err := fmt.Fprintf(w, `ticks          %d
notifications  %d in %.1f s, %.1f a second
alerts         %d, %.1f a second, %d more than once
missing        %d
latency        p50 %.1f ms, p95 %.1f ms, p99 %.1f ms, max %.1f ms
`, r.Ticks, r.Notifications, r.Seconds, r.Rate, r.Alerts, r.AlertsRate, r.Duplicates, r.Missing,
		r.Latency.P50, r.Latency.P95, r.Latency.P99, r.Latency.Max)
	return err
}

// afterInterrupt is how long an interrupted run still waits for what is on its
// way: who interrupts wants the report, not an hour of patience.
const afterInterrupt = 3 * time.Second

// Run produces until the duration, the count or ctx ends, waits for the alerts
// that are missing and reports. The end of ctx is no error once it produces: the
// report counts what was sent until then, and the wait is short. Errors are
// ctx's cause where it ends before that, options out of range (ErrOptions), brokers out of reach, a missing topic and a record that
// the broker refuses, each named; the report is good for what was sent before.
func Run(ctx context.Context, opts Options) (Report, error) {
	if err := opts.Validate(); err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	r, err := prepare(ctx, opts)
	if err != nil {
		return Report{}, err
	}
	defer r.closeClients()
	defer r.reader.stop()
	return r.run(ctx)
}

// prepare connects and begins to read. sarama's calls know of no context, and a
// broker that takes connections and says nothing holds them for minutes: where
// ctx ends first they are left to end by themselves, and close what they made.
func prepare(ctx context.Context, opts Options) (*run, error) {
	type outcome struct {
		run *run
		err error
	}
	done := make(chan outcome)
	go func() {
		r, err := connected(opts)
		select {
		case done <- outcome{r, err}:
		case <-ctx.Done():
			if err == nil {
				r.producer.close(ctx)
				r.reader.stop()
				r.closeClients()
			}
		}
	}()
	select {
	case o := <-done:
		return o.run, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connecting to %v: %w", opts.Brokers, context.Cause(ctx))
	}
}

// connected is a run that can begin to produce.
func connected(opts Options) (*run, error) {
	r, err := newRun(opts)
	if err != nil {
		return nil, err
	}
	if err := r.startReading(); err != nil {
		r.closeClients()
		return nil, err
	}
	if r.producer, err = newProducer(r); err != nil {
		r.reader.stop()
		r.closeClients()
		return nil, err
	}
	return r, nil
}

// run is one run under way.
type run struct {
	opts     Options
	gen      *generator
	tracker  *tracker
	producer *producer
	reader   *reader

	producing, reading sarama.Client
	ticksTo, notesTo   int32 // partitions of the inputs
	started, finished  time.Time
	failed             chan error // the first fault of producing or reading
}

// fail keeps the first fault; those that follow are its echo.
func (r *run) fail(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

func (r *run) run(ctx context.Context) (Report, error) {
	r.started = time.Now()
	progress := r.startProgress()
	defer progress.stop()

	err := r.produce(ctx)
	if err == nil {
		err = r.producer.flush(ctx)
	}
	r.producer.close(ctx)
	if err == nil {
		err = r.fault() // of the last records
	}
	r.finished = time.Now()
	if err == nil {
		err = r.awaitAlerts(ctx)
	}
	return r.report(), err
}

// awaitAlerts returns once no alert is missing, or none has come for Wait.
func (r *run) awaitAlerts(ctx context.Context) error {
	patience := r.opts.Wait
	interrupted := ctx.Done()
	if ctx.Err() != nil { // while producing: that was the end, not an escape
		patience, interrupted = min(patience, r.opts.Grace), nil
	}
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		missing, last := r.tracker.waiting()
		if missing == 0 || time.Since(later(last, r.finished)) >= patience {
			return nil
		}
		select {
		case <-poll.C:
		case <-interrupted:
			return nil
		case err := <-r.failed:
			return err
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *run) report() Report {
	c := r.tracker.counts()
	rep := Report{
		Ticks:         r.producer.ticks.Load(),
		Notifications: c.sent,
		Alerts:        c.answered,
		Missing:       c.sent - c.answered,
		Duplicates:    c.duplicates,
		Seconds:       r.finished.Sub(r.started).Seconds(),
		Latency:       c.latency,
	}
	rep.Rate = perSecond(c.sent, rep.Seconds)
	if c.answered > 0 {
		rep.AlertsRate = perSecond(c.answered, c.lastAlert.Sub(r.started).Seconds())
	}
	return rep
}

func perSecond(n int64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(n) / seconds
}
