package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"joiner/internal/record"
)

const (
	growthFirst   = int32(4)
	growthBefore  = int32(6)
	growthAfter   = int32(12)
	growthRefresh = 2 * time.Second
	unequalFor    = 8 * time.Second
)

// Topics have grown from 4 to 6 partitions when both inputs grow to 12 under
// load, one well before the other. Meanwhile the old indices go on, nobody is ready and says why, and the
// group does not spin; a notification whose symbol's ticks go to a partition that
// nobody reads yet waits for it, and gets no old price. Afterwards it heals by itself, and no
// record of a new partition is skipped, not even one written before the group
// knew of it.
func TestKafkaGrowth(t *testing.T) {
	w := NewWorld(t, growthFirst, nil)
	settings := Settings{"kafka.metadata_refresh": growthRefresh.String(), "topics.create": "true"}
	pods := w.Pods(2, settings)
	pods.AwaitBalanced(growthFirst)
	oldest := w.newHomes("FIRST", 20)
	first := w.Producer()
	for _, symbol := range oldest {
		first.Send(w.Market, Record{Key: symbol, Value: `{"price": 7}`})
	}
	for _, topic := range []string{w.Market, w.Notes} {
		w.grow(topic, growthBefore)
	}
	w.Partitions = growthBefore
	pods.AwaitBalanced(growthBefore)
	symbols := SymbolsOf(w, "S", growthAfter, 10)
	early := SymbolsOf(w, "EARLY", growthAfter, 1)[growthBefore:] // one for each new partition
	w.Seed(symbols)
	old := w.newHomes("OLD", 20)
	for _, symbol := range old {
		w.Producer().Send(w.Market, Record{Key: symbol, Value: `{"price": 7}`})
	}
	load := w.Steady(500, 100, symbols)
	w.AwaitCount(w.Alerts, 100, pods)

	// The market topic grows.
	began := time.Now()
	w.grow(w.Market, growthAfter)
	load.Grown(w.Market, growthAfter)
	p := w.Producer()
	for i, symbol := range early {
		p.Send(w.Market, Record{Key: symbol, Value: fmt.Sprintf(`{"price": %d}`, 100+i)}.At(growthBefore+int32(i)))
	}
	await(t, "the pods to name topics and counts", func() error {
		for _, pod := range pods {
			said := strings.Join(pod.Readiness().Reasons, "; ")
			if !strings.Contains(said, w.Market+" has 12") || !strings.Contains(said, w.Notes+" has 6") {
				return fmt.Errorf("%s says %q", pod.Name, said)
			}
		}
		return nil
	})
	t.Logf("unequal counts noticed after %v (target: kafka.metadata_refresh, %v): %s",
		time.Since(began).Round(time.Millisecond), growthRefresh, strings.Join(pods[0].Readiness().Reasons, "; "))

	ended, out, generation := pods.ClaimsEnded(), w.Count(w.Alerts), pods[0].generation()
	time.Sleep(unequalFor)
	if n := pods[0].generation() - generation; n > 2 {
		t.Errorf("%d generations in %v of unequal counts: a hot loop", n, unequalFor)
	} else {
		t.Logf("%d generations in %v of unequal counts", n, unequalFor)
	}
	if now := w.Count(w.Alerts); now <= out {
		t.Errorf("no alert came out in %v of unequal counts", unequalFor)
	}

	// And the other one.
	began = time.Now()
	w.grow(w.Notes, growthAfter)
	load.Grown(w.Notes, growthAfter)
	after := w.Ends(w.Notes) // from here on notifications are placed as ticks are
	p = w.Producer()         // one that has seen the topic grow
	for i, symbol := range early {
		p.Send(w.Notes, Record{Key: symbol, Value: fmt.Sprintf(`{"early": %d}`, i)}.At(growthBefore+int32(i)))
	}
	w.Partitions = growthAfter
	pods.AwaitBalanced(growthAfter)
	t.Logf("healed and ready %v after both had grown (target: kafka.metadata_refresh, %v)", time.Since(began).Round(time.Millisecond), growthRefresh)
	if n := pods.ClaimsEnded() - ended; n > 0 {
		t.Errorf("%d claims ended though only new partitions came", n)
	}
	time.Sleep(settleFor)
	load.Stop()
	w.AwaitNoLag()
	for _, topic := range []string{w.Alerts, w.Dead} {
		if n := len(w.Ends(topic)); n != int(growthAfter) {
			t.Errorf("output %s has %d partitions", topic, n)
		}
	}

	// A price that only lies where a former count put it is found there, be it
	// in this pod or in another one: two pods may own each pair of a new
	// partition and a former one together, with a third some are parted.
	var owners []map[int32]string
	for {
		owners = append(owners, pods.AwaitBalanced(growthAfter))
		for _, symbol := range slices.Concat(old, oldest) {
			p.Send(w.Notes, Record{Key: symbol, Value: fmt.Sprintf(`{"old": %d}`, len(owners)-1)}.At(Place(t, "murmur2", symbol, growthAfter)))
		}
		w.AwaitNoLag()
		if len(owners) == 2 {
			break
		}
		pods = append(pods, w.Start(settings))
	}
	t.Logf("look-ups: %s", lookupsOf(pods.Metrics()))
	pods.Stop()

	proof := w.Prove()
	t.Logf("%d notifications, %d alerts, %d hits, %d misses, %d doubled", proof.Notes, proof.Alerts, proof.Hits, proof.Misses, proof.Doubled())
	if proof.Doubled() > 0 {
		t.Errorf("%d alerts are doubled", proof.Doubled())
	}
	for at, a := range proof.Last {
		if a.Result != record.Hit && at.offset >= after[at.partition] {
			t.Errorf("notification %s of %s, written when both had grown: %s", at, a.Key, a.Result)
		}
	}
	w.judgeGrowth(proof, owners, early, slices.Concat(old, oldest))
}

// judgeGrowth looks at the notifications that growth could have harmed.
func (w *World) judgeGrowth(proof Proof, owners []map[int32]string, early, old []string) {
	w.t.Helper()
	firsts, olds, remote := 0, 0, 0
	for at, a := range proof.Last {
		value := string(a.Notification)
		switch {
		case strings.HasPrefix(value, `{"early"`):
			firsts++
			if a.Result != record.Hit || a.Market.Partition != at.partition || at.partition < growthBefore {
				w.t.Errorf("notification %s of %s, whose tick was the first of its new partition: %s, %+v", at, a.Key, a.Result, a.Market)
			}
		case strings.HasPrefix(value, `{"old"`):
			olds++
			count := growthBefore
			if strings.HasPrefix(string(a.Key), "FIRST") {
				count = growthFirst
			}
			former := Place(w.t, "murmur2", string(a.Key), count)
			owners := owners[value[len(`{"old": `)]-'0']
			locality := record.Local
			if owners[former] != owners[at.partition] {
				locality = record.Remote
				remote++
			}
			if a.Market == nil || a.Market.Partition != former || a.Market.Price != "7" || a.Locality != locality || a.NotAsOf {
				w.t.Errorf("notification %s, in %s, of %s, whose tick lies in %d of %s: %s", at, owners[at.partition], a.Key, former, owners[former], a.Value)
			}
		}
	}
	if firsts != len(early) || olds != len(owners)*len(old) {
		w.t.Errorf("%d and %d of the chosen notifications have alerts, want %d and %d", firsts, olds, len(early), len(owners)*len(old))
	}
	w.t.Logf("%d of %d prices under former counts were in another pod", remote, olds)
	if remote == 0 {
		w.t.Error("no old price was in another pod: the test should show that one is asked for")
	}
}

// newHomes returns n symbols that belong into new partitions once the topic has
// grown.
func (w *World) newHomes(prefix string, n int) []string {
	w.t.Helper()
	var symbols []string
	for i := 0; len(symbols) < n; i++ {
		symbol := fmt.Sprintf("%s%d", prefix, i)
		if Place(w.t, "murmur2", symbol, growthAfter) >= growthBefore {
			symbols = append(symbols, symbol)
		}
	}
	return symbols
}

func (w *World) grow(topic string, to int32) {
	w.t.Helper()
	if err := w.Admin().CreatePartitions(topic, to, nil, false); err != nil {
		w.t.Fatalf("growing %s: %v", topic, err)
	}
	await(w.t, fmt.Sprintf("%s to have %d partitions", topic, to), func() error {
		ends, err := w.ends(topic)
		if err == nil && len(ends) != int(to) {
			err = fmt.Errorf("it has %d", len(ends))
		}
		return err
	})
}

// generation is that of the process's last assignment.
func (p *Proc) generation() int64 {
	p.t.Helper()
	_, generation, err := p.Owned()
	if err != nil {
		p.t.Fatal(err)
	}
	return generation
}
