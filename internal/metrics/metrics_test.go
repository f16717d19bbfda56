package metrics

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"joiner/internal/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	both = [record.Sides]bool{true, true}
	now  = time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)
)

func fresh(t *testing.T) (*Metrics, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	return New(reg, Options{
		Topics:  [record.Sides]string{"market-updates", "notifications"},
		Version: "v1", Commit: "c", Go: "go1", Sarama: "v1.61.1",
		Now: func() time.Time { return now },
	}), reg
}

func ago(d time.Duration) record.Millis { return record.MillisOf(now.Add(-d)) }

func compare(t *testing.T, reg prometheus.Gatherer, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func lint(t *testing.T, reg prometheus.Gatherer) {
	t.Helper()
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// series lists every line a scrape would have, as name{labels}.
func series(t *testing.T, reg prometheus.Gatherer) []string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for range lines(m) {
				out = append(out, fmt.Sprintf("%s{%s}", f.GetName(), labels(m)))
			}
		}
	}
	return out
}

func lines(m *dto.Metric) int {
	if h := m.GetHistogram(); h != nil {
		return len(h.GetBucket()) + 3 // +Inf, sum, count
	}
	if s := m.GetSummary(); s != nil {
		return len(s.GetQuantile()) + 2
	}
	return 1
}

func labels(m *dto.Metric) string {
	var out []string
	for _, l := range m.GetLabel() {
		out = append(out, l.GetName()+"="+l.GetValue())
	}
	return strings.Join(out, ",")
}

func containing(all []string, part string) (out []string) {
	for _, s := range all {
		if strings.Contains(s, part) {
			out = append(out, s)
		}
	}
	return out
}

func TestWithoutTasks(t *testing.T) {
	m, reg := fresh(t)
	RegisterRuntime(reg)
	m.Delivery.ProduceError("enriched-alerts", "NOT_LEADER_OR_FOLLOWER")
	m.Group.SetTopicPartitions("market-updates", 6)
	lint(t, reg)
	all := series(t, reg)
	if len(all) > 250 {
		t.Errorf("%d series", len(all))
	}
	if got := containing(all, "partition="); len(got) > 0 {
		t.Errorf("series of partitions that nobody owns: %v", got)
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if len(containing(all, name)) != 1 {
			t.Errorf("no %s", name)
		}
	}
}

func TestClosedLabelSetsExistAtZero(t *testing.T) {
	_, reg := fresh(t)
	all := series(t, reg)
	for name, want := range map[string]int{
		"joiner_joins_total": 6, "joiner_remote_lookups_total": 7, "joiner_records_total": 10, "joiner_dead_letters_total": 20,
		"joiner_alerts_dropped_total": 3, "joiner_misplaced_keys_total": 2,
		"joiner_out_of_order_updates_total": 1, "joiner_assigned_partitions": 2,
		"joiner_colocated_partitions": 1, "joiner_group_members": 1, "joiner_group_generation": 1,
		"joiner_rebalances_total": 1, "joiner_task_moves_total": 2, "joiner_tasks": 3,
		"joiner_state_bytes": 1, "joiner_offset_resets_total": 2, "joiner_commits_total": 2, "joiner_transactions_total": 4,
		"joiner_ready": 1, "joiner_build_info": 1,
	} {
		if got := containing(all, name+"{"); len(got) != want {
			t.Errorf("%s: %d series, want %d: %v", name, len(got), want, got)
		}
	}
	compare(t, reg, `
# HELP joiner_joins_total Notifications joined, by where the price lies and what was found.
# TYPE joiner_joins_total counter
joiner_joins_total{locality="local",result="hit"} 0
joiner_joins_total{locality="local",result="miss"} 0
joiner_joins_total{locality="local",result="unavailable"} 0
joiner_joins_total{locality="remote",result="hit"} 0
joiner_joins_total{locality="remote",result="miss"} 0
joiner_joins_total{locality="remote",result="unavailable"} 0
# HELP joiner_alerts_dropped_total Notifications that got neither an alert nor a dead letter.
# TYPE joiner_alerts_dropped_total counter
joiner_alerts_dropped_total{reason="dead_letter_refused"} 0
joiner_alerts_dropped_total{reason="no_price"} 0
joiner_alerts_dropped_total{reason="unavailable"} 0
# HELP joiner_build_info 1, labelled with what was built.
# TYPE joiner_build_info gauge
joiner_build_info{commit="c",go="go1",sarama="v1.61.1",version="v1"} 1
# HELP joiner_ready 1 while /readyz says ready, else 0.
# TYPE joiner_ready gauge
joiner_ready 0
`, "joiner_joins_total", "joiner_alerts_dropped_total", "joiner_build_info", "joiner_ready")
}

// Every resolved collector must be the one that its place in the struct says.
func TestTaskCountsUnderItsLabels(t *testing.T) {
	m, reg := fresh(t)
	task := m.Partition(3, both)
	task.Joins[record.Remote][record.NoInfo].Add(2)
	task.Records[record.Market][Late].Inc()
	task.Records[record.Notification][DeadLettered].Add(3)
	task.CountDeadLetter(record.Notification, record.TooLarge)
	task.Dropped[DropDeadLetterRefused].Inc()
	task.Misplaced[record.Notification].Inc()
	task.OutOfOrder.Inc()
	task.OffsetResets[record.Market].Inc()
	task.CountRecords(record.Market, 7)
	m.Group.TaskMoves[Lost].Inc()
	m.Group.Tasks[Stalled].Set(1)
	m.Group.Assigned[record.Notification].Set(4)
	m.Delivery.CommitsFailed.Inc()
	m.Delivery.ProduceError("enriched-alerts", "REQUEST_TIMED_OUT")
	ready := false
	m.SetReady(func() bool { return ready })
	ready = true

	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, mm := range f.GetMetric() {
			if v := mm.GetCounter().GetValue() + mm.GetGauge().GetValue(); v != 0 {
				got[fmt.Sprintf("%s{%s}", f.GetName(), labels(mm))] = v
			}
		}
	}
	want := map[string]float64{
		"joiner_joins_total{locality=remote,result=unavailable}":                     2,
		"joiner_records_total{outcome=late,topic=market-updates}":                    1,
		"joiner_records_total{outcome=dead_lettered,topic=notifications}":            3,
		"joiner_dead_letters_total{kind=too_large,topic=notifications}":              1,
		"joiner_alerts_dropped_total{reason=dead_letter_refused}":                    1,
		"joiner_misplaced_keys_total{topic=notifications}":                           1,
		"joiner_out_of_order_updates_total{}":                                        1,
		"joiner_offset_resets_total{topic=market-updates}":                           1,
		"joiner_partition_records_total{partition=3,topic=market-updates}":           7,
		"joiner_task_moves_total{direction=lost}":                                    1,
		"joiner_tasks{state=stalled}":                                                1,
		"joiner_assigned_partitions{topic=notifications}":                            4,
		"joiner_commits_total{outcome=failed}":                                       1,
		"joiner_produce_errors_total{error=REQUEST_TIMED_OUT,topic=enriched-alerts}": 1,
		"joiner_ready{}": 1,
		"joiner_build_info{commit=c,go=go1,sarama=v1.61.1,version=v1}": 1,
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("also counted: %v", got)
	}
}

func TestHistogramsAreClassicAndNative(t *testing.T) {
	m, reg := fresh(t)
	task := m.Partition(0, both)
	for l := range record.Localities {
		task.JoinDuration[l].Observe(2e-6)
	}
	for _, o := range []prometheus.Observer{
		task.AlertLatency, task.PriceAge, task.RestoreDuration, m.Group.RebalanceDuration, m.Group.TaskPause,
	} {
		o.Observe(0.42)
	}
	task.PriceAge.Observe(-5)

	ranges := map[string][2]float64{
		"joiner_join_duration_seconds":      {1e-6, 1},
		"joiner_alert_latency_seconds":      {1e-3, 300},
		"joiner_price_age_seconds":          {-10, 3600},
		"joiner_restore_duration_seconds":   {0.01, 600},
		"joiner_rebalance_duration_seconds": {0.01, 60},
		"joiner_task_pause_seconds":         {0.01, 60},
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		want, ok := ranges[f.GetName()]
		if !ok {
			t.Errorf("unknown histogram %s", f.GetName())
		}
		delete(ranges, f.GetName())
		for _, mm := range f.GetMetric() {
			h := mm.GetHistogram()
			b := h.GetBucket()
			if got := [2]float64{b[0].GetUpperBound(), b[len(b)-1].GetUpperBound()}; got != want {
				t.Errorf("%s: buckets from %v to %v", f.GetName(), got[0], got[1])
			}
			if len(h.GetPositiveSpan()) == 0 || h.GetSchema() < 2 {
				t.Errorf("%s{%s} is not native", f.GetName(), labels(mm))
			}
		}
	}
	if len(ranges) > 0 {
		t.Errorf("missing: %v", ranges)
	}
}

type table struct{ symbols, bytes int }

func (t table) Symbols() int { return t.symbols }
func (t table) Bytes() int64 { return int64(t.bytes) }

func TestPartitionSeriesLeaveWithIt(t *testing.T) {
	m, reg := fresh(t)
	m.SetRetention(record.Market, time.Hour)
	m.SetRetention(record.Notification, time.Hour)
	before := series(t, reg)
	task := m.Partition(11, both)
	for s := range record.Sides {
		task.SetCommitted(s, 5)
		task.SetHighWatermark(s, 9)
		task.SetNext(s, ago(time.Minute))
	}
	task.SetTable(table{10, 1000})
	task.SetHottest(func(record.Side) (float64, bool) { return 0.5, true })
	lint(t, reg)

	got := containing(series(t, reg), "partition=11")
	if len(got) == 0 || len(got) > 40 {
		t.Errorf("%d series of a partition", len(got))
	}
	for _, name := range []string{
		"joiner_state_symbols", "joiner_restore_remaining_records",
	} {
		if len(containing(got, name+"{")) != 1 {
			t.Errorf("no %s", name)
		}
	}
	for _, name := range []string{
		"joiner_partition_records_total", "joiner_committed_offset", "joiner_high_watermark_offset",
		"joiner_lag_records", "joiner_lag_seconds", "joiner_retention_headroom_seconds",
		"joiner_hottest_key_share_ratio",
	} {
		for _, topic := range []string{"market-updates", "notifications"} {
			if !slices.Contains(got, name+"{partition=11,topic="+topic+"}") {
				t.Errorf("no %s of %s", name, topic)
			}
		}
	}

	task.Close()
	task.Close()
	if after := series(t, reg); !slices.Equal(before, after) {
		t.Errorf("left behind: %v", containing(after, "partition="))
	}
}

// What is counted can be read back, each combination by itself.
func TestJoinCounts(t *testing.T) {
	m := New(prometheus.NewRegistry(), Options{Topics: [record.Sides]string{"m", "n"}})
	task := m.Partition(1, both)
	var want [record.Localities][record.Results]uint64
	for l := range want {
		for r := range want[l] {
			want[l][r] = uint64(10*l + r)
			task.Joins[l][r].Add(float64(want[l][r]))
		}
	}
	if got := m.JoinCounts(); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// The hottest key's share is shown where it is known, for the halves that the
// pod owns.
func TestHottestKeyShare(t *testing.T) {
	m, reg := fresh(t)
	m.Partition(0, both)
	m.Partition(1, both).SetHottest(func(s record.Side) (float64, bool) { return 0.25, s == record.Notification })
	m.Partition(2, [record.Sides]bool{record.Notification: true}).
		SetHottest(func(record.Side) (float64, bool) { return 1, true })
	compare(t, reg, `
# HELP joiner_hottest_key_share_ratio Share of the hottest key among the partition's latest records; absent where these are too few or too old.
# TYPE joiner_hottest_key_share_ratio gauge
joiner_hottest_key_share_ratio{partition="1",topic="notifications"} 0.25
joiner_hottest_key_share_ratio{partition="2",topic="notifications"} 1
`, "joiner_hottest_key_share_ratio")
}

// A task that comes back while its former self is still closing keeps its series.
func TestClosingTheFormerTaskLeavesTheNewOne(t *testing.T) {
	m, reg := fresh(t)
	former := m.Partition(2, both)
	former.CountRecords(record.Market, 5)
	m.Partition(2, both).CountRecords(record.Market, 1)
	former.Close()
	compare(t, reg, `
# HELP joiner_partition_records_total Consumed records.
# TYPE joiner_partition_records_total counter
joiner_partition_records_total{partition="2",topic="market-updates"} 1
joiner_partition_records_total{partition="2",topic="notifications"} 0
`, "joiner_partition_records_total")
}

func TestHalves(t *testing.T) {
	m, reg := fresh(t)
	task := m.Partition(0, [record.Sides]bool{record.Notification: true})
	all := series(t, reg)
	if len(containing(all, "joiner_state_symbols")) != 0 || len(containing(all, "joiner_lag_seconds{partition=0,topic=market")) != 0 {
		t.Errorf("series of a half that is not ours: %v", containing(all, "partition="))
	}
	if len(containing(all, "joiner_lag_seconds{partition=0,topic=notifications}")) != 1 {
		t.Error("no lag of our half")
	}
	task.SetHalves(both)
	if len(containing(series(t, reg), "joiner_state_symbols{partition=0}")) != 1 {
		t.Error("no series of the half that came")
	}
}

func TestProgress(t *testing.T) {
	m, reg := fresh(t)
	m.SetRetention(record.Market, time.Hour) // notifications: unlimited
	a, b := m.Partition(0, both), m.Partition(1, both)

	a.SetCommitted(record.Market, 90)
	a.SetHighWatermark(record.Market, 100)
	a.SetNext(record.Market, ago(90*time.Second))
	a.SetHighWatermark(record.Notification, 3) // nothing committed yet

	b.SetCommitted(record.Market, 101) // an end that is older than the commit
	b.SetHighWatermark(record.Market, 100)
	b.SetNext(record.Market, ago(-time.Minute)) // a clock ahead
	b.SetNext(record.Notification, ago(2*time.Hour))
	b.SetNext(record.Notification, record.NoTimestamp)
	b.SetUnsettled(func(s record.Side) record.Millis {
		if s == record.Market {
			return record.NoTimestamp
		}
		return ago(7 * time.Second)
	})

	a.SetTable(table{10, 1000})
	b.SetTable(table{5, 500})
	b.SetTable(table{6, 600})
	a.SetRestoreRemaining(42)
	b.SetRestoreRemaining(-1)

	compare(t, reg, `
# HELP joiner_committed_offset Offset that the group has committed: the next record to read.
# TYPE joiner_committed_offset gauge
joiner_committed_offset{partition="0",topic="market-updates"} 90
joiner_committed_offset{partition="1",topic="market-updates"} 101
# HELP joiner_high_watermark_offset Offset at which the partition ends.
# TYPE joiner_high_watermark_offset gauge
joiner_high_watermark_offset{partition="0",topic="market-updates"} 100
joiner_high_watermark_offset{partition="0",topic="notifications"} 3
joiner_high_watermark_offset{partition="1",topic="market-updates"} 100
# HELP joiner_lag_records High watermark minus committed offset.
# TYPE joiner_lag_records gauge
joiner_lag_records{partition="0",topic="market-updates"} 10
joiner_lag_records{partition="1",topic="market-updates"} 0
# HELP joiner_lag_seconds Now minus the timestamp of the next unprocessed record, 0 when there is none.
# TYPE joiner_lag_seconds gauge
joiner_lag_seconds{partition="0",topic="market-updates"} 90
joiner_lag_seconds{partition="0",topic="notifications"} 0
joiner_lag_seconds{partition="1",topic="market-updates"} 0
joiner_lag_seconds{partition="1",topic="notifications"} 7
# HELP joiner_retention_headroom_seconds Time until retention may delete the next unprocessed record; absent where retention is unlimited.
# TYPE joiner_retention_headroom_seconds gauge
joiner_retention_headroom_seconds{partition="0",topic="market-updates"} 3510
joiner_retention_headroom_seconds{partition="1",topic="market-updates"} 3660
# HELP joiner_restore_remaining_records Records still to be read before the partition's notifications are joined.
# TYPE joiner_restore_remaining_records gauge
joiner_restore_remaining_records{partition="0"} 42
joiner_restore_remaining_records{partition="1"} 0
# HELP joiner_state_symbols Symbols that have a price.
# TYPE joiner_state_symbols gauge
joiner_state_symbols{partition="0"} 10
joiner_state_symbols{partition="1"} 6
# HELP joiner_state_bytes Memory that the price tables of this pod take, about.
# TYPE joiner_state_bytes gauge
joiner_state_bytes 1600
`, "joiner_committed_offset", "joiner_high_watermark_offset", "joiner_lag_records", "joiner_lag_seconds",
		"joiner_retention_headroom_seconds", "joiner_restore_remaining_records", "joiner_state_symbols", "joiner_state_bytes")

	a.ClearNext(record.Market)
	a.Close()
	compare(t, reg, `
# HELP joiner_state_bytes Memory that the price tables of this pod take, about.
# TYPE joiner_state_bytes gauge
joiner_state_bytes 600
`, "joiner_state_bytes")
}

// The clock of a scrape goes on while the record waits; nobody sets anything.
func TestLagGrowsBetweenScrapes(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	clock := now
	m := New(reg, Options{Topics: [record.Sides]string{"m", "n"}, Now: func() time.Time { return clock }})
	m.SetRetention(record.Market, time.Minute)
	m.Partition(0, [record.Sides]bool{record.Market: true}).SetNext(record.Market, ago(0))
	clock = now.Add(90 * time.Second)
	compare(t, reg, `
# HELP joiner_lag_seconds Now minus the timestamp of the next unprocessed record, 0 when there is none.
# TYPE joiner_lag_seconds gauge
joiner_lag_seconds{partition="0",topic="m"} 90
# HELP joiner_retention_headroom_seconds Time until retention may delete the next unprocessed record; absent where retention is unlimited.
# TYPE joiner_retention_headroom_seconds gauge
joiner_retention_headroom_seconds{partition="0",topic="m"} -30
`, "joiner_lag_seconds", "joiner_retention_headroom_seconds")
}

func TestTwoPodsInOneProcess(t *testing.T) {
	fresh(t)
	_, reg := fresh(t)
	defer func() {
		if recover() == nil {
			t.Error("a second pod on the same registry was accepted")
		}
	}()
	New(reg, Options{Topics: [record.Sides]string{"market-updates", "notifications"}})
}

func TestConcurrentUse(t *testing.T) {
	m, reg := fresh(t)
	var wg sync.WaitGroup
	for i := range int32(4) {
		wg.Go(func() {
			for n := range int64(200) {
				task := m.Partition(i%2, both)
				task.SetCommitted(record.Market, n)
				task.SetHighWatermark(record.Market, n+1)
				task.SetNext(record.Market, ago(time.Second))
				task.SetTable(table{1, 1})
				task.CountDeadLetter(record.Market, record.InvalidJSON)
				task.Close()
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			if _, err := reg.Gather(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if got := containing(series(t, reg), "partition="); len(got) > 0 {
		t.Errorf("left behind: %v", got)
	}
}

func BenchmarkJoinCounted(b *testing.B) {
	m := New(prometheus.NewRegistry(), Options{Topics: [record.Sides]string{"m", "n"}})
	task := m.Partition(0, both)
	b.ReportAllocs()
	for b.Loop() {
		task.Joins[record.Local][record.Hit].Inc()
		task.Records[record.Notification][Accepted].Inc()
		task.JoinDuration[record.Local].Observe(3e-6)
		task.PriceAge.Observe(0.012)
		task.AlertLatency.Observe(0.006)
	}
}

func TestCertificatesHaveASeriesWhereThereIsOne(t *testing.T) {
	m, reg := fresh(t)
	const name = "joiner_tls_certificate_not_after_timestamp_seconds"
	compare(t, reg, "", name)
	expiry := now
	m.SetCertificates("kafka", func() time.Time { return expiry })
	m.SetCertificates("kafka_ca", func() time.Time { return time.Time{} })
	const help = "# HELP " + name + " Until when the certificate is valid; of authorities, the first to expire.\n# TYPE " + name + " gauge\n"
	compare(t, reg, help+name+`{use="kafka"} 1.7676072e+09`+"\n", name)
	expiry = now.Add(time.Hour)
	compare(t, reg, help+name+`{use="kafka"} 1.7676108e+09`+"\n", name)
	lint(t, reg)
}
