package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"joiner/test/proc"
)

// promisedMetrics are the names that people's dashboards hang on, each with
// its labels. Histograms are marked; they are one family of several series.
var promisedMetrics = []struct {
	name      string
	labels    string
	histogram bool
}{
	{"joiner_joins_total", "locality,result", false},
	{"joiner_join_duration_seconds", "locality", true},
	{"joiner_alert_latency_seconds", "", true},
	{"joiner_price_age_seconds", "", true},
	{"joiner_remote_lookups_total", "outcome", false},
	{"joiner_records_total", "outcome,topic", false},
	{"joiner_partition_records_total", "partition,topic", false},
	{"joiner_dead_letters_total", "kind,topic", false},
	{"joiner_alerts_dropped_total", "reason", false},
	{"joiner_misplaced_keys_total", "topic", false},
	{"joiner_hottest_key_share_ratio", "partition,topic", false},
	{"joiner_out_of_order_updates_total", "", false},
	{"joiner_assigned_partitions", "topic", false},
	{"joiner_colocated_partitions", "", false},
	{"joiner_topic_partitions", "topic", false},
	{"joiner_group_members", "", false},
	{"joiner_group_generation", "", false},
	{"joiner_rebalances_total", "", false},
	{"joiner_rebalance_duration_seconds", "", true},
	{"joiner_task_moves_total", "direction", false},
	{"joiner_task_pause_seconds", "", true},
	{"joiner_tasks", "state", false},
	{"joiner_state_symbols", "partition", false},
	{"joiner_state_bytes", "", false},
	{"joiner_restore_remaining_records", "partition", false},
	{"joiner_restore_duration_seconds", "", true},
	{"joiner_checkpoint_failures_total", "", false},
	{"joiner_checkpoint_last_success_timestamp_seconds", "", false},
	{"joiner_committed_offset", "partition,topic", false},
	{"joiner_high_watermark_offset", "partition,topic", false},
	{"joiner_lag_records", "partition,topic", false},
	{"joiner_lag_seconds", "partition,topic", false},
	{"joiner_commits_total", "outcome", false},
	{"joiner_transactions_total", "outcome", false},
	{"joiner_ready", "", false},
	{"joiner_build_info", "commit,go,sarama,version", false},
	{"go_goroutines", "", false},
	{"process_cpu_seconds_total", "", false},
}

// closedLabels are the label sets that exist from the start.
var closedLabels = []struct {
	name, label string
	values      []string
}{
	{"joiner_joins_total", "locality", []string{"local", "remote"}},
	{"joiner_joins_total", "result", []string{"hit", "miss", "unavailable"}},
	{"joiner_remote_lookups_total", "outcome", []string{"error", "hit", "miss", "moved", "overload", "restoring", "timeout"}},
	{"joiner_records_total", "outcome", []string{"accepted", "dead_lettered", "late", "skipped", "tombstone"}},
	{"joiner_alerts_dropped_total", "reason", []string{"dead_letter_refused", "no_price", "unavailable"}},
	{"joiner_task_moves_total", "direction", []string{"gained", "lost"}},
	{"joiner_tasks", "state", []string{"restoring", "running", "stalled"}},
	{"joiner_commits_total", "outcome", []string{"failed", "ok"}},
	{"joiner_transactions_total", "outcome", []string{"aborted", "committed", "fenced", "unknown"}},
	{"joiner_dead_letters_total", "kind", []string{
		"invalid_event_time", "invalid_json", "invalid_price", "invalid_timestamp", "missing_symbol",
		"no_price", "null_value", "rejected", "too_large", "unavailable",
	}},
}

const (
	metricsPartitions  = 6
	seriesOfAPod       = 250 // about: a series costs the server that scrapes it
	seriesOfAPartition = 40
)

// A live scrape: clean, with the names and labels that are promised, within its
// bounds, and without a partition that has gone.
func TestKafkaMetrics(t *testing.T) {
	w := NewWorld(t, metricsPartitions, nil)
	first := w.Start(nil)
	first.WaitReady()

	symbols := SymbolsOf(w, "UNMISTAKABLE", metricsPartitions, 10)
	w.Seed(symbols)
	p := w.Producer()
	for i, symbol := range append(slices.Clone(symbols), "UNKNOWN1", "UNKNOWN2") {
		p.Send(w.Notes, Record{Key: symbol, Value: fmt.Sprintf(`{"n": %d}`, i)})
	}
	p.Send(w.Notes, Record{Key: symbols[0], Value: `{`})
	hot := make([]Record, 200) // a share needs some records
	for i := range hot {
		hot[i] = Record{Key: symbols[0], Value: `{"hot": true}`}
	}
	p.Send(w.Notes, hot...)
	w.AwaitNoLag()

	text := scrape(t, first)
	checkWithPromtool(t, text)
	if bytes.Contains(text, []byte("UNMISTAKABLE")) {
		t.Error("a symbol is in the metrics")
	}
	families := familiesOf(t, text)
	checkContract(t, families)
	checkHistograms(t, first, families)

	series := seriesIn(text)
	if series > seriesOfAPod+metricsPartitions*seriesOfAPartition {
		t.Errorf("%d series, more than %d and %d for each of %d partitions", series, seriesOfAPod, seriesOfAPartition, metricsPartitions)
	}
	perPartition := seriesIn(linesWith(text, `partition="3"`))
	if perPartition > seriesOfAPartition {
		t.Errorf("%d series of one partition, more than %d", perPartition, seriesOfAPartition)
	}
	t.Logf("%d series, %d of each partition (bounds: about %d, and %d a partition)", series, perPartition, seriesOfAPod, seriesOfAPartition)

	// What goes to another pod goes out of this one's series.
	pods := Pods{first, w.Start(nil)}
	owners := pods.AwaitBalanced(metricsPartitions)
	for partition := range int32(metricsPartitions) {
		for _, pod := range pods {
			shown := len(pod.Metrics().Find("joiner_state_symbols", "partition", fmt.Sprint(partition)))
			want := 0
			if owners[partition] == pod.Name {
				want = 1
			}
			if shown != want {
				t.Errorf("%s has %d series of partition %d's symbols, which %s owns", pod.Name, shown, partition, owners[partition])
			}
		}
	}
	pods.Stop()
}

func scrape(t *testing.T, p *Proc) []byte {
	t.Helper()
	status, text, err := p.Get("/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatalf("/metrics answers %d, %v", status, err)
	}
	return text
}

func checkWithPromtool(t *testing.T, text []byte) {
	t.Helper()
	cmd := exec.Command(promtool(t), "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// promtool finds the tool, or installs it where test/install puts it.
func promtool(t *testing.T) string {
	t.Helper()
	const name = "promtool"
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if out, err := exec.Command(filepath.Join("..", "install"), name).CombinedOutput(); err != nil {
		t.Fatalf("test/install %s: %v\n%s", name, err, out)
	}
	cache := os.Getenv("JOINER_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache", "joiner")
	}
	return filepath.Join(cache, "bin", name)
}

func familiesOf(t *testing.T, text []byte) map[string]Metrics {
	t.Helper()
	all, err := proc.ParseMetrics(text)
	if err != nil {
		t.Fatal(err)
	}
	families := make(map[string]Metrics)
	for _, s := range all {
		families[s.Name] = append(families[s.Name], s)
	}
	return families
}

func checkContract(t *testing.T, families map[string]Metrics) {
	t.Helper()
	for _, m := range promisedMetrics {
		name := m.name
		if m.histogram {
			name += "_count"
		}
		samples := families[name]
		if len(samples) == 0 {
			t.Errorf("%s is not there", m.name)
			continue
		}
		labels := strings.Join(slices.Sorted(maps.Keys(samples[0].Labels)), ",")
		if labels != m.labels {
			t.Errorf("%s has the labels %s, want %s", m.name, labels, m.labels)
		}
	}
	for _, c := range closedLabels {
		values := make(map[string]bool)
		for _, s := range families[c.name] {
			values[s.Labels[c.label]] = true
		}
		if got := slices.Sorted(maps.Keys(values)); !slices.Equal(got, c.values) {
			t.Errorf("%s has %s %v, want %v", c.name, c.label, got, c.values)
		}
	}
	known := make(map[string]bool)
	for _, m := range promisedMetrics {
		known[m.name] = true
	}
	for name := range families {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if strings.HasPrefix(name, "joiner_") && !known[name] && !known[base] {
			t.Logf("more than is promised: %s", name)
		}
	}
}

// checkHistograms asks for the binary format, which alone carries native
// histograms, and looks that each histogram is both.
func checkHistograms(t *testing.T, p *Proc, families map[string]Metrics) {
	t.Helper()
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Address()+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", string(format))
	answer, err := p.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if got := expfmt.ResponseFormat(answer.Header); got.FormatType() != expfmt.TypeProtoDelim {
		t.Fatalf("the pod answers in %q", got)
	}
	decoder := expfmt.NewDecoder(answer.Body, format)
	histograms := make(map[string]*dto.Histogram)
	for {
		var family dto.MetricFamily
		if decoder.Decode(&family) != nil {
			break
		}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			histograms[family.GetName()] = family.GetMetric()[0].GetHistogram()
		}
	}
	for _, m := range promisedMetrics {
		if !m.histogram {
			continue
		}
		if len(families[m.name+"_bucket"]) == 0 {
			t.Errorf("%s has no classic buckets", m.name)
		}
		h := histograms[m.name]
		if h == nil || h.Schema == nil {
			t.Errorf("%s is not native", m.name)
		}
	}
	if h := histograms["joiner_alert_latency_seconds"]; len(h.GetPositiveSpan()) == 0 {
		t.Error("joiner_alert_latency_seconds has no native bucket, though alerts went out")
	}
}

// seriesIn counts the series of a scrape in the text format.
func seriesIn(text []byte) (n int) {
	for line := range bytes.Lines(text) {
		if len(bytes.TrimSpace(line)) > 0 && line[0] != '#' {
			n++
		}
	}
	return n
}

func linesWith(text []byte, what string) []byte {
	var kept []byte
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte(what)) {
			kept = append(kept, line...)
		}
	}
	return kept
}
