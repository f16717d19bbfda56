package e2e

import (
	"fmt"
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
		notePartitioner     string
	}{
		{"console producer", console, console, "murmur2"},
		{"kcat, murmur2_random", kcat("partitioner=murmur2_random"), kcat("partitioner=murmur2_random"), "murmur2"},
		{"kcat, its default for notifications", kcat("partitioner=murmur2_random"), kcat(), "crc32"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			foreign(t, test.produceTicks, test.notes, test.notePartitioner)
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
	notesPerSymbol    = 3
)

func foreign(t *testing.T, produceTicks, produceNotes func(*World, string, []cluster.KeyValue), notePartitioner string) {
	w := NewWorld(t, foreignPartitions, nil)
	pods := w.Pods(foreignPods, nil)
	pods.AwaitBalanced(foreignPartitions)
	pods.WaitReady()

	symbols := []string{"BBCA", "BRK.B", "MSFT", "AAPL", "BTC-USD", "M&M.NS", "日経225", "a/b", "..", "IBM"}
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
	produceNotes(w, w.Notes, notes)
	w.AwaitCount(w.Alerts, int64(len(notes)), pods)
	w.AwaitNoLag()
	metrics := pods.Metrics()
	pods.Stop()

	misplaced, hits, misses := 0, 0, 0
	seen := make(map[string]int)
	for _, a := range w.ReadAlerts() {
		symbol := string(a.Key)
		seen[symbol+" "+string(a.Notification)]++
		if want := Place(t, notePartitioner, symbol, w.Partitions); a.Partition != want {
			t.Errorf("%s: the alert lies in partition %d, %s places it in %d", symbol, a.Partition, notePartitioner, want)
		}
		if a.Partition != w.Home(symbol) {
			misplaced++
		}
		// Local is who owns the symbol's ticks, wherever its notification lies;
		// without look-ups between pods, local is a hit and remote a miss.
		if a.Partition == w.Home(symbol) && a.Locality != record.Local {
			t.Errorf("%s: %s although its ticks lie in the same partition", symbol, a.Locality)
		}
		if a.Result != record.Hit {
			misses++
			if a.Locality == record.Local || a.Result != record.Miss {
				t.Errorf("%s: %s %s", symbol, a.Locality, a.Result)
			}
			continue
		}
		hits++
		if a.Locality != record.Local {
			t.Errorf("%s: %s hit", symbol, a.Locality)
		}
		if a.Market.Price != prices[symbol] || string(a.Market.Symbol) != symbol {
			t.Errorf("%s: price %s of %s, want %s", symbol, a.Market.Price, a.Market.Symbol, prices[symbol])
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
	if notePartitioner == "murmur2" && hits != len(notes) {
		t.Errorf("%d of %d notifications have a price", hits, len(notes))
	}
	foreignMetrics(t, w, metrics, notes, notePartitioner, misses)
	t.Logf("%d alerts: %d hits, %d misses; %d misplaced notifications", len(notes), hits, misses, misplaced)
}

// foreignMetrics compares what the pods have counted with what the hash
// vectors say and with the alerts.
func foreignMetrics(t *testing.T, w *World, m Metrics, notes []cluster.KeyValue, partitioner string, misses int) {
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
	want := []struct {
		value  int
		name   string
		labels []string
	}{
		{misplaced, "joiner_misplaced_keys_total", []string{"topic", w.Notes}},
		{0, "joiner_misplaced_keys_total", []string{"topic", w.Market}},
		{len(notes) - misses, "joiner_joins_total", []string{"locality", "local", "result", "hit"}},
		{misses, "joiner_joins_total", []string{"locality", "remote", "result", "miss"}},
		{len(notes), "joiner_joins_total", nil},
		{len(notes), "joiner_records_total", []string{"topic", w.Notes, "outcome", "accepted"}},
	}
	for _, x := range want {
		if got := m.Sum(x.name, x.labels...); got != float64(x.value) {
			t.Errorf("%s%v is %v, want %d", x.name, x.labels, got, x.value)
		}
	}
}
