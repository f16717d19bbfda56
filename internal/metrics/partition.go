package metrics

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"joiner/internal/record"
)

// Table tells how large a price table is; both methods may be called from any
// goroutine and must not block.
type Table interface {
	Symbols() int
	Bytes() int64
}

// Task is what one task reports: what it counts together with the others, and
// the series of its partition, which are computed at a scrape from what was
// last set. All methods are cheap and may be called from any goroutine.
type Task struct {
	Shared

	owner *partitions
	index int32
	label string

	table            atomic.Pointer[Table]
	hottest          atomic.Pointer[func(record.Side) (float64, bool)]
	unsettled        atomic.Pointer[func(record.Side) record.Millis]
	restoreRemaining atomic.Int64
	sides            [record.Sides]side
}

type side struct {
	mine      atomic.Bool
	records   atomic.Int64
	committed atomic.Int64 // unknown
	highWater atomic.Int64 // unknown
	next      atomic.Int64 // timestamp of the next unprocessed record, none or unseen
}

const (
	unknown = int64(-1)
	none    = int64(math.MinInt64)
	unseen  = none + 1 // nobody has said yet
)

// Partition makes the series of a partition number appear, for those of the
// two topics whose half this pod owns, until Close. A task that is made while
// an older one of the same number is still open takes its place: the older
// one's Close then does nothing, and its partition is no longer shown.
func (m *Metrics) Partition(index int32, halves [record.Sides]bool) *Task {
	t := &Task{Shared: m.shared, owner: m.partitions, index: index, label: strconv.Itoa(int(index))}
	for i := range t.sides {
		s := &t.sides[i]
		s.committed.Store(unknown)
		s.highWater.Store(unknown)
		s.next.Store(unseen)
	}
	t.SetHalves(halves)
	m.partitions.add(t)
	return t
}

// Close takes the partition's series away. It may be called again.
func (t *Task) Close() { t.owner.remove(t) }

// SetHalves says which halves this pod owns, where that changes.
func (t *Task) SetHalves(halves [record.Sides]bool) {
	for i, mine := range halves {
		t.sides[i].mine.Store(mine)
	}
}

// CountRecords adds n consumed records of the side.
func (t *Task) CountRecords(s record.Side, n int) { t.sides[s].records.Add(int64(n)) }

// SetCommitted notes the committed offset: the next record to read. There is
// no series before, nor for a negative one (none committed).
func (t *Task) SetCommitted(s record.Side, offset int64) { t.sides[s].committed.Store(offset) }

// SetHighWatermark notes where the partition ends.
func (t *Task) SetHighWatermark(s record.Side, offset int64) { t.sides[s].highWater.Store(offset) }

// SetNext notes the timestamp of the side's next unprocessed record, from
// which a scrape computes joiner_lag_seconds and
// joiner_retention_headroom_seconds. A record without a timestamp is as good
// as none. Before the first SetNext or ClearNext there is no series of either
// where the offsets say that something waits.
func (t *Task) SetNext(s record.Side, timestamp record.Millis) {
	if timestamp == record.NoTimestamp {
		t.ClearNext(s)
		return
	}
	t.sides[s].next.Store(int64(timestamp))
}

// ClearNext notes that the side has no unprocessed record.
func (t *Task) ClearNext(s record.Side) { t.sides[s].next.Store(none) }

// SetTable says whose size to show.
func (t *Task) SetTable(table Table) { t.table.Store(&table) }

// SetHottest says how to ask for the share, 0 to 1, that the hottest key has of
// the side's records; false where that is not known, and then there is no
// series. share is called from any goroutine and must not block.
func (t *Task) SetHottest(share func(s record.Side) (float64, bool)) { t.hottest.Store(&share) }

// SetUnsettled says how to ask for the timestamp of the side's oldest record that
// was taken and whose output is not acknowledged, NoTimestamp where there is none:
// one that waits for its price is unprocessed however far the reading is. oldest
// is called from any goroutine and must not block.
func (t *Task) SetUnsettled(oldest func(s record.Side) record.Millis) { t.unsettled.Store(&oldest) }

// SetRestoreRemaining notes how many records are to be read before the task
// may join; below 0 counts as 0.
func (t *Task) SetRestoreRemaining(records int64) { t.restoreRemaining.Store(max(0, records)) }

func (t *Task) size() (symbols int, bytes int64) {
	table := t.table.Load()
	if table == nil {
		return 0, 0
	}
	return (*table).Symbols(), (*table).Bytes()
}

// partitions collects the series of all open tasks.
type partitions struct {
	topics    [record.Sides]string
	now       func() time.Time
	retention [record.Sides]atomic.Int64 // nanoseconds, 0 unlimited

	symbols, bytes, restoreRemaining *prometheus.Desc
	records, committed, highWater    *prometheus.Desc
	lagRecords, lagSeconds, headroom *prometheus.Desc
	hottest                          *prometheus.Desc

	mu    sync.Mutex
	tasks map[int32]*Task
}

func newPartitions(topics [record.Sides]string, now func() time.Time) *partitions {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &partitions{
		topics:           topics,
		now:              now,
		tasks:            map[int32]*Task{},
		bytes:            desc("joiner_state_bytes", "Memory that the price tables of this pod take, about."),
		symbols:          desc("joiner_state_symbols", "Symbols that have a price.", "partition"),
		restoreRemaining: desc("joiner_restore_remaining_records", "Records still to be read before the partition's notifications are joined.", "partition"),
		records:          desc("joiner_partition_records_total", "Consumed records.", "topic", "partition"),
		committed:        desc("joiner_committed_offset", "Offset that the group has committed: the next record to read.", "topic", "partition"),
		highWater:        desc("joiner_high_watermark_offset", "Offset at which the partition ends.", "topic", "partition"),
		lagRecords:       desc("joiner_lag_records", "High watermark minus committed offset.", "topic", "partition"),
		lagSeconds:       desc("joiner_lag_seconds", "Now minus the timestamp of the next unprocessed record, 0 when there is none.", "topic", "partition"),
		headroom: desc("joiner_retention_headroom_seconds",
			"Time until retention may delete the next unprocessed record; absent where retention is unlimited.", "topic", "partition"),
		hottest: desc("joiner_hottest_key_share_ratio",
			"Share of the hottest key among the partition's latest records; absent where these are too few or too old.", "topic", "partition"),
	}
}

func (p *partitions) add(t *Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks[t.index] = t
}

func (p *partitions) remove(t *Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tasks[t.index] == t {
		delete(p.tasks, t.index)
	}
}

func (p *partitions) open() []*Task {
	p.mu.Lock()
	defer p.mu.Unlock()
	tasks := make([]*Task, 0, len(p.tasks))
	for _, t := range p.tasks {
		tasks = append(tasks, t)
	}
	return tasks
}

// Describe implements prometheus.Collector.
func (p *partitions) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		p.symbols, p.bytes, p.restoreRemaining, p.records, p.committed,
		p.highWater, p.lagRecords, p.lagSeconds, p.headroom, p.hottest,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *partitions) Collect(ch chan<- prometheus.Metric) {
	c := collection{partitions: p, ch: ch, now: p.now()}
	var bytes int64
	for _, t := range p.open() {
		bytes += c.task(t)
	}
	c.gauge(p.bytes, float64(bytes))
}

// collection is one scrape.
type collection struct {
	*partitions
	ch  chan<- prometheus.Metric
	now time.Time
}

func (c *collection) gauge(d *prometheus.Desc, value float64, labels ...string) {
	c.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// task collects one task's series and returns the size of its table.
func (c *collection) task(t *Task) int64 {
	symbols, bytes := t.size()
	if t.sides[record.Market].mine.Load() {
		c.gauge(c.symbols, float64(symbols), t.label)
		c.gauge(c.restoreRemaining, float64(t.restoreRemaining.Load()), t.label)
	}
	for i := range t.sides {
		if t.sides[i].mine.Load() {
			c.side(t, record.Side(i))
			c.hottestKey(t, record.Side(i))
		}
	}
	return bytes
}

func (c *collection) side(t *Task, which record.Side) {
	s, topic, label := &t.sides[which], c.topics[which], t.label
	c.ch <- prometheus.MustNewConstMetric(c.records, prometheus.CounterValue, float64(s.records.Load()), topic, label)

	// The end is read last: records that arrive between the two reads then
	// show as lag, and never as less than none.
	committed, end := s.committed.Load(), s.highWater.Load()
	if committed >= 0 {
		c.gauge(c.committed, float64(committed), topic, label)
	}
	if end >= 0 {
		c.gauge(c.highWater, float64(end), topic, label)
	}
	if committed >= 0 && end >= 0 {
		c.gauge(c.lagRecords, float64(max(0, end-committed)), topic, label)
	}

	if s.next.Load() == unseen && committed >= 0 && committed < end {
		return // something waits, and since when will be known with it
	}
	waiting := c.waiting(t, which)
	c.gauge(c.lagSeconds, max(0, waiting.Seconds()), topic, label)
	if retention := time.Duration(c.retention[which].Load()); retention > 0 {
		c.gauge(c.headroom, (retention - waiting).Seconds(), topic, label)
	}
}

func (c *collection) hottestKey(t *Task, which record.Side) {
	share := t.hottest.Load()
	if share == nil {
		return
	}
	if ratio, ok := (*share)(which); ok {
		c.gauge(c.hottest, ratio, c.topics[which], t.label)
	}
}

// waiting is now minus the timestamp of the next unprocessed record; where
// there is none, the next one would be written now.
func (c *collection) waiting(t *Task, which record.Side) time.Duration {
	var waiting time.Duration
	if next := t.sides[which].next.Load(); next != none && next != unseen {
		waiting = c.now.Sub(time.UnixMilli(next))
	}
	if oldest := t.unsettled.Load(); oldest != nil {
		if at := (*oldest)(which); at != record.NoTimestamp {
			waiting = max(waiting, c.now.Sub(at.Time()))
		}
	}
	return waiting
}
