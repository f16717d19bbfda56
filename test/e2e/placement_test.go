package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"joiner/internal/record"
)

const (
	placedPartitions = 6
	placedPods       = 3
	placedSymbols    = 40
)

// Keys whose place no hash of all partitions tells.
func TestKafkaPlacement(t *testing.T) {
	t.Run("a partition for some", premium)
	t.Run("at random", placedAtRandom)
}

// Some users have a partition of their own, the others hash over the rest:
// nothing is misplaced, and everything is local. One notification that a
// producer put where it would lie without the tier is counted, and right.
func premium(t *testing.T) {
	const tier = 2 // not the last one: the rest is not the partitions below a count
	w := NewWorld(t, placedPartitions, nil)
	var chosen, others []string
	for i := range placedSymbols {
		if i%4 == 0 {
			chosen = append(chosen, fmt.Sprintf("PREMIUM%d", i))
		} else {
			others = append(others, fmt.Sprintf("USER%d", i))
		}
	}
	rest := slices.DeleteFunc([]int32{0, 1, 2, 3, 4, 5}, func(p int32) bool { return p == tier })
	at := func(symbol string) int32 {
		if slices.Contains(chosen, symbol) {
			return tier
		}
		return rest[Place(t, "murmur2", symbol, int32(len(rest)))]
	}
	file := filepath.Join(t.TempDir(), "premium")
	if err := os.WriteFile(file, []byte(strings.Join(chosen, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pods := w.Pods(placedPods, Settings{"topics.reserved": fmt.Sprintf("%d=%s", tier, file)})
	owners := pods.AwaitBalanced(placedPartitions)

	p, symbols := w.Producer(), slices.Concat(chosen, others)
	var ticks, notes []Record
	for i, symbol := range symbols {
		ticks = append(ticks, Record{Key: symbol, Value: fmt.Sprintf(`{"price": %d}`, 100+i)}.At(at(symbol)))
		notes = append(notes, Record{Key: symbol, Value: `{"well": "placed"}`}.At(at(symbol)))
	}
	p.Send(w.Market, ticks...)
	p.Send(w.Notes, notes...)
	w.AwaitNoLag()
	m := pods.Metrics()
	expect(t, m, 0, "joiner_misplaced_keys_total")
	expect(t, m, len(symbols), "joiner_joins_total", "locality", "local", "result", "hit")
	expect(t, m, 0, "joiner_remote_lookups_total")

	stray := slices.IndexFunc(chosen, func(s string) bool { return w.Home(s) != tier && owners[w.Home(s)] != owners[tier] })
	if stray < 0 {
		t.Fatal("every symbol of the tier would lie in its owner's partitions anyway")
	}
	p.Send(w.Notes, Record{Key: chosen[stray], Value: `{"well": "no"}`}.At(w.Home(chosen[stray])))
	w.AwaitNoLag()
	m = pods.Metrics()
	expect(t, m, 1, "joiner_misplaced_keys_total", "topic", w.Notes)
	expect(t, m, 0, "joiner_misplaced_keys_total", "topic", w.Market)
	expect(t, m, 1, "joiner_joins_total", "locality", "remote", "result", "hit")
	pods.Stop()
	proof := w.Prove()
	if proof.Hits != len(symbols)+1 || proof.Remote != 1 {
		t.Errorf("of %d notifications %d are hits, %d of them remote", proof.Notes, proof.Hits, proof.Remote)
	}
	for place, a := range proof.Last {
		if i := slices.Index(symbols, string(a.Key)); a.Market == nil || a.Market.Price != fmt.Sprint(100+i) || a.Market.Partition != at(symbols[i]) {
			t.Errorf("notification %s of %s: %s", place, a.Key, a.Value)
		}
	}
}

// Ticks of a symbol lie in one partition, its notifications in several, and
// nobody can tell which: every owner is asked. A symbol without a price is a
// miss once all have said so.
func placedAtRandom(t *testing.T) {
	const notes = 3 // of each symbol
	w := NewWorld(t, placedPartitions, nil)
	pods := w.Pods(placedPods, Settings{"topics.partitioner": "custom"})
	owners := pods.AwaitBalanced(placedPartitions)
	r := rand.New(rand.NewPCG(5, 6))
	p := w.Producer()
	var ticks []Record
	price, at := make(map[string]string), make(map[string]int32)
	for i := range placedSymbols {
		symbol := fmt.Sprintf("USER%d", i)
		price[symbol], at[symbol] = fmt.Sprintf("%d.50", i), r.Int32N(placedPartitions)
		ticks = append(ticks, Record{Key: symbol, Value: fmt.Sprintf(`{"price": %d}`, 1000+i)}.At(at[symbol]),
			Record{Key: symbol, Value: fmt.Sprintf(`{"price": %s}`, price[symbol])}.At(at[symbol]))
	}
	p.Send(w.Market, ticks...)
	var records []Record
	for symbol := range at {
		for range notes {
			records = append(records, Record{Key: symbol, Value: `{}`}.At(r.Int32N(placedPartitions)))
		}
	}
	const unknown = 2
	for i := range unknown {
		records = append(records, Record{Key: fmt.Sprintf("NOBODY%d", i), Value: `{}`}.At(int32(i)))
	}
	p.Send(w.Notes, records...)
	w.AwaitNoLag()
	m := pods.Metrics()
	pods.Stop()

	proof, remote := w.Prove(), 0
	for place, a := range proof.Last {
		home, known := at[string(a.Key)]
		if !known {
			if a.Result != record.Miss || a.Locality != record.Local || a.Cited == nil || a.Cited.Partition != place.partition {
				t.Errorf("notification %s, whose symbol has no price: %s, citing %v", place, a.Value, a.Cited)
			}
			continue
		}
		locality := record.Local
		if owners[home] != owners[place.partition] {
			locality = record.Remote
			remote++
		}
		if a.Market == nil || a.Market.Price != price[string(a.Key)] || a.Market.Partition != home || a.Locality != locality {
			t.Errorf("notification %s, in %s, of %s, in %d of %s at %s: %s", place, owners[place.partition], a.Key, home, owners[home], price[string(a.Key)], a.Value)
		}
	}
	if remote == 0 || remote == len(at)*notes {
		t.Errorf("%d of %d prices are in another pod: the test should show both", remote, len(at)*notes)
	}
	expect(t, m, 0, "joiner_misplaced_keys_total")
	expect(t, m, remote, "joiner_joins_total", "locality", "remote", "result", "hit")
	expect(t, m, len(at)*notes-remote, "joiner_joins_total", "locality", "local", "result", "hit")
	expect(t, m, unknown, "joiner_joins_total", "result", "miss")
	t.Logf("%d notifications, %d prices in another pod; look-ups: %s; join times %s", proof.Notes, remote, lookupsOf(m), joinTimes(m))
}
