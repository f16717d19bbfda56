package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"joiner/internal/record"
	"joiner/test/cluster"
)

// Records of clients that are not ours: Kafka's console producer (Java's
// placement), and kcat (librdkafka) told to place as Java does and not told
// anything.
func TestKafkaForeignClients(t *testing.T) {
	tests := []struct {
		name                string
		produceTicks, notes func(w *World, topic string, records []cluster.KeyValue)
		rounds              int // a pod looks at few misplaced keys of what comes at once
		notePartitioner     string
	}{
		{"console producer", console, console, 1, "murmur2"},
		{"kcat, murmur2_random", kcat("partitioner=murmur2_random"), kcat("partitioner=murmur2_random"), 1, "murmur2"},
		{"kcat, its default for notifications", kcat("partitioner=murmur2_random"), kcat(), 6, "crc32"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			foreign(t, test.produceTicks, test.notes, test.rounds, test.notePartitioner)
		})
	}
}

func console(w *World, topic string, records []cluster.KeyValue) {
	w.t.Helper()
	w.ConsoleProduce(w.t, topic, records)
}

func kcat(settings ...string) func(*World, string, []cluster.KeyValue) {
	return func(w *World, topic string, records []cluster.KeyValue) {
		w.t.Helper()
		w.KcatProduce(w.t, topic, records, settings...)
	}
}

const (
	foreignPods       = 4
	foreignPartitions = 6
	foreignSymbols    = 60 // enough for every pod to see how they are placed
	notesPerSymbol    = 3
)

func foreign(t *testing.T, produceTicks, produceNotes func(*World, string, []cluster.KeyValue), rounds int, notePartitioner string) {
	w := NewWorld(t, foreignPartitions, nil)
	pods := w.Pods(foreignPods, nil)
	owners := pods.AwaitBalanced(foreignPartitions)
	pods.WaitReady()

	symbols := []string{"BBCA", "BRK.B", "MSFT", "AAPL", "BTC-USD", "M&M.NS", "日経225", "a/b", "..", "IBM"}
	for i := len(symbols); i < foreignSymbols; i++ {
		symbols = append(symbols, fmt.Sprintf("SYM%d", i))
	}
	prices := make(map[string]string)
	var ticks, notes []cluster.KeyValue
	for i, symbol := range symbols {
		old, last := fmt.Sprintf("%d.5", 100+i), fmt.Sprintf("%d.250", 9000+i)
		prices[symbol] = last
		ticks = append(ticks,
			cluster.KeyValue{Key: symbol, Value: fmt.Sprintf(`{"price": %s}`, old)},
			cluster.KeyValue{Key: symbol, Value: fmt.Sprintf(`{"price": "%s"}`, last)})
		for n := range notesPerSymbol {
			notes = append(notes, cluster.KeyValue{Key: symbol, Value: fmt.Sprintf(`{"symbol": %q, "n": %d}`, symbol, n)})
		}
	}
	// The time of a record is that of its sending: ticks first.
	produceTicks(w, w.Market, ticks)
	for part := range slices.Chunk(notes, (len(notes)+rounds-1)/rounds) {
		produceNotes(w, w.Notes, part)
	}
	w.AwaitCount(w.Alerts, int64(len(notes)), pods)
	w.AwaitNoLag()
	metrics := pods.Metrics()
	noted, findings := notesOf(pods), w.Check()
	pods.Stop()

	misplaced, remote := 0, 0
	seen := make(map[string]int)
	for _, a := range w.ReadAlerts() {
		symbol := string(a.Key)
		seen[symbol+" "+string(a.Notification)]++
		if want := Place(t, notePartitioner, symbol, w.Partitions); a.Partition != want {
			t.Errorf("%s: the alert lies in partition %d, %s places it in %d", symbol, a.Partition, notePartitioner, want)
		}
		home := w.Home(symbol)
		if a.Partition != home {
			misplaced++
		}
		// Local is who owns the symbol's ticks, wherever its notification lies:
		// they may be in another partition of the same pod.
		locality := record.Local
		if owners[home] != owners[a.Partition] {
			locality = record.Remote
			remote++
		}
		if a.Result != record.Hit || a.Locality != locality || a.NotAsOf {
			t.Errorf("%s: notification in %d of %s, ticks in %d of %s: %s", symbol, a.Partition, owners[a.Partition], home, owners[home], a.Value)
			continue
		}
		if a.Market.Price != prices[symbol] || string(a.Market.Symbol) != symbol || a.Market.Partition != home {
			t.Errorf("%s: price %s of %s in %d, want %s", symbol, a.Market.Price, a.Market.Symbol, a.Market.Partition, prices[symbol])
		}
	}
	for _, n := range notes {
		key := n.Key + " " + n.Value
		if seen[key] != 1 {
			t.Errorf("%d alerts for notification %s", seen[key], key)
		}
		delete(seen, key)
	}
	if len(seen) > 0 {
		t.Errorf("alerts without a notification: %v", seen)
	}
	foreignMetrics(t, w, metrics, notes, notePartitioner, remote)
	foreignNoted(t, noted, notePartitioner)
	foreignChecked(w, findings, notePartitioner)
	t.Logf("%d alerts, %d of them remote; %d misplaced notifications; look-ups: %s", len(notes), remote, misplaced, lookupsOf(metrics))
}

// notesOf returns what the pods note in readiness, in one text.
func notesOf(pods Pods) string {
	var notes []string
	for _, p := range pods {
		p.t.Helper()
		notes = append(notes, p.Readiness().Notes...)
	}
	return strings.Join(notes, "; ")
}

// foreignNoted looks that the pods name the partitioner that explains what they
// have seen, where it is not the configured one.
func foreignNoted(t *testing.T, noted, partitioner string) {
	t.Helper()
	if partitioner == "murmur2" {
		if noted != "" {
			t.Errorf("well-placed keys are noted: %s", noted)
		}
		return
	}
	if !strings.Contains(noted, partitioner) {
		t.Errorf("no pod names %s: %s", partitioner, noted)
	}
}

// foreignChecked looks at what `joiner check` finds: it names the likely
// partitioner of the notifications' producer where it is not the configured one.
func foreignChecked(w *World, findings []finding, partitioner string) {
	w.t.Helper()
	want := map[string]string{w.Market: "ok", w.Notes: "ok"}
	if partitioner != "murmur2" {
		want[w.Notes] = "warning"
	}
	for topic, status := range want {
		found, ok := findingOf(findings, "key_placement", topic)
		if !ok || found.Status != status {
			w.t.Errorf("check finds %+v about the keys of %s, want %s; all it finds: %+v", found, topic, status, findings)
			continue
		}
		if status == "warning" && !strings.Contains(found.Message, partitioner) {
			w.t.Errorf("check does not name %s: %s", partitioner, found.Message)
		}
		w.t.Logf("check: %s", found.Message)
	}
}

// foreignMetrics compares what the pods have counted with what the hash
// vectors say and with the alerts.
func foreignMetrics(t *testing.T, w *World, m Metrics, notes []cluster.KeyValue, partitioner string, remote int) {
	t.Helper()
	misplaced := 0
	for _, n := range notes {
		if Place(t, partitioner, n.Key, w.Partitions) != w.Home(n.Key) {
			misplaced++
		}
	}
	if partitioner != "murmur2" && (misplaced == 0 || misplaced == len(notes)) {
		t.Errorf("%d of %d keys are placed differently: the test should show both", misplaced, len(notes))
	}
	expect(t, m, misplaced, "joiner_misplaced_keys_total", "topic", w.Notes)
	expect(t, m, 0, "joiner_misplaced_keys_total", "topic", w.Market)
	expect(t, m, len(notes)-remote, "joiner_joins_total", "locality", "local", "result", "hit")
	expect(t, m, remote, "joiner_joins_total", "locality", "remote", "result", "hit")
	expect(t, m, len(notes), "joiner_joins_total")
	expect(t, m, len(notes), "joiner_records_total", "topic", w.Notes, "outcome", "accepted")
}
