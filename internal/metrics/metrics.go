// Package metrics holds every metric of joiner, on an injected registerer.
// Each room is handed a small struct of collectors whose labels are resolved,
// so that nothing on the hot path looks up a label.
//
// Closed label sets exist at 0 from the start; the series of a partition come
// with Partition and leave with its Close. Nothing here may ever carry a
// symbol, or anything else that grows with the data, in a label.
package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"

	"joiner/internal/record"
)

// Options says what the metrics are labelled with.
type Options struct {
	// Topics are the names of the two inputs, by side.
	Topics [record.Sides]string
	// Version, Commit, Go and Sarama label joiner_build_info.
	Version, Commit, Go, Sarama string
	// Now is the clock that lag is measured by at a scrape; nil is time.Now.
	Now func() time.Time
}

// Metrics is all of them. Its fields are safe for concurrent use, as
// Prometheus' collectors are.
type Metrics struct {
	Group       Group
	Delivery    Delivery
	Remote      Remote
	Checkpoints Checkpoints

	shared       Shared
	partitions   *partitions
	certificates *certificates
	ready        atomic.Pointer[func() bool]
	checkpointed atomic.Pointer[func() time.Time]
}

// Outcome says what became of a consumed record; each counts once.
type Outcome uint8

// The outcomes of joiner_records_total.
const (
	Accepted     Outcome = iota // merged or joined
	Late                        // a market update or tombstone out of order
	Tombstone                   // applied
	DeadLettered                // bad, or by configuration
	Skipped                     // bad or dropped, without a dead letter
	Outcomes
)

func (o Outcome) String() string {
	return [Outcomes]string{"accepted", "late", "tombstone", "dead_lettered", "skipped"}[o]
}

// DropReason says why a notification has no alert and no dead letter.
type DropReason uint8

// The reasons of joiner_alerts_dropped_total.
const (
	DropNoPrice           DropReason = iota // join.on_miss: drop
	DropUnavailable                         // join.on_unavailable: drop
	DropDeadLetterRefused                   // the broker refused the dead letter for good
	DropReasons
)

func (r DropReason) String() string {
	return [DropReasons]string{"no_price", "unavailable", "dead_letter_refused"}[r]
}

// LookupOutcome says how one attempt to look up one key in another pod ended.
type LookupOutcome uint8

// The outcomes of joiner_remote_lookups_total.
const (
	LookupHit       LookupOutcome = iota
	LookupMiss                    // the owner says that there is no price
	LookupMoved                   // the pod asked is not the owner, or not in the same generation
	LookupRestoring               // the owner has not read up to the end that it saw at its assignment
	LookupTimeout                 // no answer within join.remote_timeout
	LookupError                   // no answer that could be read
	LookupOverload                // the owner has too much to do
	LookupOutcomes
)

func (o LookupOutcome) String() string {
	return [LookupOutcomes]string{"hit", "miss", "moved", "restoring", "timeout", "error", "overload"}[o]
}

// Remote counts look-ups in other pods, one for each key and attempt.
type Remote struct {
	Lookups [LookupOutcomes]prometheus.Counter
}

func newRemote(f factory) Remote {
	var r Remote
	lookups := f.counters("joiner_remote_lookups_total", "Prices looked up in other pods for joins: one for each key and attempt.", "outcome")
	for o := range LookupOutcomes {
		r.Lookups[o] = lookups.WithLabelValues(o.String())
	}
	return r
}

// Shared is what all tasks of a pod count together.
type Shared struct {
	Joins        [record.Localities][record.Results]prometheus.Counter
	JoinDuration [record.Localities]prometheus.Observer // seconds
	AlertLatency prometheus.Observer                    // seconds, notification's record timestamp to output acknowledged
	PriceAge     prometheus.Observer                    // seconds, the alert's age_ms; may be negative

	Records      [record.Sides][Outcomes]prometheus.Counter
	Dropped      [DropReasons]prometheus.Counter
	Misplaced    [record.Sides]prometheus.Counter
	OutOfOrder   prometheus.Counter
	OffsetResets [record.Sides]prometheus.Counter

	RestoreDuration prometheus.Observer // seconds
	Restored        prometheus.Counter  // records of market-updates read by restores

	topics      [record.Sides]string
	deadLetters *prometheus.CounterVec
}

// CountDeadLetter counts a record of the side that was dead-lettered.
func (s *Shared) CountDeadLetter(side record.Side, kind record.Kind) {
	s.deadLetters.WithLabelValues(s.topics[side], string(kind)).Inc()
}

// JoinCounts returns what joiner_joins_total stands at.
func (m *Metrics) JoinCounts() (n [record.Localities][record.Results]uint64) {
	for l := range n {
		for r := range n[l] {
			var sample dto.Metric
			if err := m.shared.Joins[l][r].Write(&sample); err == nil { // a counter's never fails
				n[l][r] = uint64(sample.GetCounter().GetValue())
			}
		}
	}
	return n
}

// TransactionOutcome says how a transaction ended.
type TransactionOutcome uint8

// The outcomes of a transaction.
const (
	TransactionCommitted TransactionOutcome = iota
	TransactionAborted                      // undone, to be made again
	TransactionFenced                       // by the group, or by another producer
	TransactionUnknown                      // its end was not answered
	TransactionOutcomes                     // their number, for arrays
)

// Delivery is what the writer and the committer count.
type Delivery struct {
	CommitsOK     prometheus.Counter
	CommitsFailed prometheus.Counter
	Transactions  [TransactionOutcomes]prometheus.Counter

	produceErrors *prometheus.CounterVec
}

// ProduceError counts a failed attempt to produce to the topic. name is
// Kafka's name for the error, such as NOT_LEADER_OR_FOLLOWER, and must come
// from a bounded set: never an error's text.
func (d *Delivery) ProduceError(topic, name string) {
	d.produceErrors.WithLabelValues(topic, name).Inc()
}

// New registers every metric on reg. Like prometheus.MustRegister it panics
// where one of them is registered there already, which is a mistake in the
// program: one registry serves one pod.
func New(reg prometheus.Registerer, opts Options) *Metrics {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	f := factory{promauto.With(reg)}
	m := &Metrics{
		Group:        newGroup(f, opts.Topics),
		Delivery:     newDelivery(f),
		Remote:       newRemote(f),
		Checkpoints:  newCheckpoints(f),
		shared:       newShared(f, opts.Topics),
		partitions:   newPartitions(opts.Topics, opts.Now),
		certificates: newCertificates(),
	}
	reg.MustRegister(m.partitions, m.certificates)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "joiner_ready",
		Help: "1 while /readyz says ready, else 0.",
	}, m.readiness)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "joiner_checkpoint_last_success_timestamp_seconds",
		Help: "When the pod's partition whose last checkpoint is the oldest was written, or found to need no writing; 0 without any.",
	}, m.lastCheckpoint)
	f.gauges("joiner_build_info", "1, labelled with what was built.", "version", "commit", "go", "sarama").
		WithLabelValues(opts.Version, opts.Commit, opts.Go, opts.Sarama).Set(1)
	return m
}

// RegisterRuntime adds the Go and process collectors to reg.
func RegisterRuntime(reg prometheus.Registerer) {
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
}

// SetReady sets what joiner_ready asks at each scrape; before, it is 0. ready
// is called from any goroutine and must not block.
func (m *Metrics) SetReady(ready func() bool) { m.ready.Store(&ready) }

func (m *Metrics) readiness() float64 {
	ready := m.ready.Load()
	if ready == nil || !(*ready)() {
		return 0
	}
	return 1
}

// OffsetReset counts a position of the side's topic that was moved because it
// was not in the log any more.
func (m *Metrics) OffsetReset(side record.Side) { m.shared.OffsetResets[side].Inc() }

// SetRetention says how long the side's topic keeps records, for
// joiner_retention_headroom_seconds; zero or less is for ever, or unknown.
func (m *Metrics) SetRetention(side record.Side, retention time.Duration) {
	m.partitions.retention[side].Store(int64(max(0, retention)))
}

func newShared(f factory, topics [record.Sides]string) Shared {
	s := Shared{
		topics: topics,
		AlertLatency: f.NewHistogram(histogram("joiner_alert_latency_seconds",
			"Time from a notification's record timestamp to its output being acknowledged.", latencyBuckets)),
		PriceAge: f.NewHistogram(histogram("joiner_price_age_seconds",
			"How much older than its notification the joined price is: an alert's age_ms.", ageBuckets)),
		OutOfOrder: f.NewCounter(prometheus.CounterOpts{
			Name: "joiner_out_of_order_updates_total",
			Help: "Market updates and tombstones older than what the table held for their symbol.",
		}),
		RestoreDuration: f.NewHistogram(histogram("joiner_restore_duration_seconds",
			"Time a task took to restore its prices.", restoreBuckets)),
		Restored: f.NewCounter(prometheus.CounterOpts{
			Name: "joiner_restored_records_total",
			Help: "Market updates read to restore price tables: with a checkpoint, those since it was written.",
		}),
		deadLetters: f.counters("joiner_dead_letters_total",
			"Records written to the dead-letter topic, by the topic they came from.", "topic", "kind"),
	}
	s.resolve(f)
	return s
}

// resolve makes the children of the closed label sets, so that they exist.
func (s *Shared) resolve(f factory) {
	joins := f.counters("joiner_joins_total", "Notifications joined, by where the price lies and what was found.", "locality", "result")
	duration := f.NewHistogramVec(histogram("joiner_join_duration_seconds",
		"Time from the merge taking a notification to its alert being encoded.", joinBuckets), []string{"locality"})
	records := f.counters("joiner_records_total", "Consumed records, each counted once.", "topic", "outcome")
	dropped := f.counters("joiner_alerts_dropped_total", "Notifications that got neither an alert nor a dead letter.", "reason")
	misplaced := f.counters("joiner_misplaced_keys_total", "Records in another partition than their key belongs to; of market updates, their symbol.", "topic")
	resets := f.counters("joiner_offset_resets_total", "Positions moved because a committed offset was gone.", "topic")

	for l := range record.Localities {
		s.JoinDuration[l] = duration.WithLabelValues(l.String())
		for r := range record.Results {
			s.Joins[l][r] = joins.WithLabelValues(l.String(), r.String())
		}
	}
	for r := range DropReasons {
		s.Dropped[r] = dropped.WithLabelValues(r.String())
	}
	for side, topic := range s.topics {
		s.Misplaced[side] = misplaced.WithLabelValues(topic)
		s.OffsetResets[side] = resets.WithLabelValues(topic)
		for o := range Outcomes {
			s.Records[side][o] = records.WithLabelValues(topic, o.String())
		}
		for _, kind := range record.Kinds() {
			s.deadLetters.WithLabelValues(topic, string(kind))
		}
	}
}

func newDelivery(f factory) Delivery {
	commits := f.counters("joiner_commits_total", "Offset commits.", "outcome")
	return Delivery{
		CommitsOK:     commits.WithLabelValues("ok"),
		CommitsFailed: commits.WithLabelValues("failed"),
		Transactions:  newTransactions(f),
		produceErrors: f.counters("joiner_produce_errors_total", "Failed attempts to produce, by Kafka's name for the error.", "topic", "error"),
	}
}

func newTransactions(f factory) (all [TransactionOutcomes]prometheus.Counter) {
	transactions := f.counters("joiner_transactions_total", "Transactions under exactly_once, by how they ended.", "outcome")
	for o, name := range [TransactionOutcomes]string{"committed", "aborted", "fenced", "unknown"} {
		all[o] = transactions.WithLabelValues(name)
	}
	return all
}

// factory makes registered collectors.
type factory struct{ promauto.Factory }

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (f factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}
