package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// What only a broker of one's own shows: a log that is shorter than before, and
// restores of a million records.
func TestKafkaOffsetsOnABrokerOfOnesOwn(t *testing.T) {
	t.Parallel() // with others that have a cluster of their own: they wait more than they work
	c := cluster.Start(t, cluster.Options{Private: true, Brokers: 1})
	t.Run("truncated", func(t *testing.T) { truncated(t, c) })
	t.Run("killed while restoring", func(t *testing.T) { killedWhileRestoring(t, c) })
}

// A broker comes back with older logs of both inputs, as after an unclean
// election: one group has a pod that runs meanwhile, the other's is down.
func truncated(t *testing.T, c *cluster.Cluster) {
	g := newGone(NewWorldOn(t, c, gonePartitions, nil))
	g.ticks("A", 30, 100)
	g.notify("A", 30)
	g.start()
	g.caughtUp(30)

	g.step("a copy of the logs is made")
	c.StopBroker(t, 1)
	copies := t.TempDir()
	g.copyLogs(filepath.Join(c.Dir, "1"), copies)
	c.StartBroker(t, 1)
	g.admin = nil // on a connection that has gone
	g.ticks("A", 10, 200)
	g.ticks("Z", 10, 300)
	g.notify("Z", 20)
	g.caughtUp(20)
	g.price("Z", "300")

	g.step("the logs are what they were")
	down := g.groups[1]
	if code := down.pod.Stop(); code != 0 {
		t.Errorf("%s ended with %d", down.pod.Name, code)
	}
	c.StopBroker(t, 1)
	g.copyLogs(copies, filepath.Join(c.Dir, "1"))
	c.StartBroker(t, 1)
	g.admin = nil
	down.pod = down.Start(down.more)
	g.resets(gonePartitions, gonePartitions, because("truncated"))
	g.price("A", "100")
	g.price("Z", "") // the table was emptied
	g.notify("A", 5)
	g.caughtUp(5) // none that is left is joined again
	g.step("done")
	g.stop()
}

// copyLogs puts the directories of the inputs' partitions that lie below from
// below to, in the place of what is there.
func (g *gone) copyLogs(from, to string) {
	g.t.Helper()
	for _, topic := range []string{g.Market, g.Notes} {
		found := 0
		err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if ok, _ := filepath.Match(topic+"-[0-9]", d.Name()); !ok {
				return nil
			}
			found++
			relative, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			target := filepath.Join(to, relative)
			if err := os.RemoveAll(target); err != nil {
				return err
			}
			return os.CopyFS(target, os.DirFS(path))
		})
		if err != nil || found != gonePartitions {
			g.t.Fatalf("%d logs of %s copied: %v", found, topic, err)
		}
	}
}

const (
	restoredSymbols = 1_000
	restoresKilled  = 3
	// restoredTicks take some tenths of a second to restore on a quiet machine.
	restoredTicks = 1_000_000
)

// A pod is killed again and again while it restores a million records, among
// them tombstones and aborted ones, in partitions of which one begins above 0,
// one was never written and one has had all of its records deleted: the prices
// after it are those before.
func killedWhileRestoring(t *testing.T, c *cluster.Cluster) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := NewWorldOn(t, c, 4, nil)
	const never, deleted = 2, 3
	symbols := make([]string, 0, restoredSymbols)
	for i := 0; len(symbols) < restoredSymbols; i++ {
		if s := fmt.Sprint("SYM", i); w.Home(s) < never {
			symbols = append(symbols, s)
		}
	}
	began := time.Now()
	base := began.Add(-time.Hour)
	ticks := make([]*sarama.ProducerMessage, restoredTicks)
	for i := range ticks {
		s := symbols[random.IntN(len(symbols))]
		r := Record{Key: s, Value: fmt.Sprintf(`{"price":%d}`, i), Time: base.UnixMilli() + int64(i) - random.Int64N(50)}
		r.Null = random.IntN(1000) == 0
		ticks[i] = w.message(w.Market, r)
	}
	abort := func() {
		p := w.TxnProducer(time.Minute)
		p.Begin()
		for _, s := range symbols[:50] {
			p.Send(w.Market, Record{Key: s, Value: `{"price":-1}`, Time: time.Now().UnixMilli()})
		}
		p.Abort()
	}
	w.SendBulk(ticks[:len(ticks)/2])
	abort()
	w.SendBulk(ticks[len(ticks)/2:])
	abort()
	w.Send(w.Market, Record{Key: "gone", Value: `{"price":1}`}.At(deleted))
	if err := w.Admin().DeleteRecords(w.Market, map[int32]int64{0: 1000, deleted: 1}); err != nil {
		t.Fatal(err)
	}
	w.Send(w.Notes, Record{Key: symbols[0], Value: "{}"})
	pod := w.Start(nil)
	pod.WaitReady()
	w.AwaitNoLag()
	want := w.prices(pod, symbols)
	t.Logf("written and merged after %v, %d of %d symbols have a price", time.Since(began).Round(time.Millisecond), len(want), len(symbols))
	began = time.Now()
	pod.Kill()
	for interrupted, tries := 0, 0; interrupted < restoresKilled; tries++ {
		if tries == 20 {
			t.Fatalf("%d restores of %d were interrupted", interrupted, tries)
		}
		pod = w.Start(nil)
		w.awaitRestore(pod)
		time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		left := pod.Metrics().Sum("joiner_restore_remaining_records")
		pod.Kill()
		t.Logf("killed with %.0f records left to restore", left)
		if left > 0 {
			interrupted++
		}
	}
	pod = w.Start(nil)
	pod.WaitReady()
	got := w.prices(pod, symbols)
	t.Logf("killed %d times and restored after %v", restoresKilled+1, time.Since(began).Round(time.Millisecond))
	if !maps.Equal(want, got) {
		n := 0
		for s, p := range want {
			if got[s] != p && n < 5 {
				n++
				t.Errorf("%s: %+v after the restore, %+v before", s, got[s], p)
			}
		}
		t.Errorf("%d prices after the restore, %d before", len(got), len(want))
	}
	if n := pod.Metrics().Sum("joiner_offset_resets_total"); n != 0 {
		t.Errorf("%.0f offsets were gone", n)
	}
	pod.Kill()

	// The topic is made anew under a restore.
	pod = w.Start(nil)
	w.awaitRestore(pod)
	pod.Signal(syscall.SIGSTOP)
	(&gone{World: w}).remakeWith(w.Market, 4)
	w.Send(w.Market, Record{Key: symbols[0], Value: `{"price":7}`})
	pod.Signal(syscall.SIGCONT)
	await(t, "the new topic's prices", func() error {
		if got := w.prices(pod, symbols); len(got) != 1 || got[symbols[0]].Price != "7" {
			return fmt.Errorf("%d prices, %s has %+v", len(got), symbols[0], got[symbols[0]])
		}
		return nil
	})
	pod.WaitReady()
	if n := pod.Metrics().Sum("joiner_offset_resets_total", "topic", w.Market); n < 2 {
		t.Errorf("%.0f partitions of the topic made anew are counted", n)
	}
	if code := pod.Stop(); code != 0 {
		t.Errorf("%s ended with %d", pod.Name, code)
	}
}

// awaitRestore waits until the pod is restoring, or is ready already.
func (w *World) awaitRestore(pod *Proc) {
	w.t.Helper()
	await(w.t, "a restore to begin", func() error {
		if pod.Metrics().Sum("joiner_restore_remaining_records") > 0 || len(pod.Logged("restored")) > 0 {
			return nil
		}
		return errors.New("it has not")
	})
}

// quoted is a price as a pod tells it, without what depends on the clock or the
// pod.
type quoted struct {
	Price     json.Number `json:"price"`
	EventTime string      `json:"event_time"`
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
}

// prices asks for all of these symbols; those without a price are left out. It
// is nil where the pod cannot tell.
func (w *World) prices(pod *Proc, symbols []string) map[string]quoted {
	w.t.Helper()
	all := make(map[string]quoted)
	for part := range slices.Chunk(symbols, 100) {
		_, body, err := pod.Get("/v1/prices?" + url.Values{"symbol": part}.Encode())
		if err != nil {
			w.t.Fatal(err)
		}
		var answer struct {
			Prices []struct {
				Symbol string `json:"symbol"`
				Reason string `json:"reason"`
				quoted
			} `json:"prices"`
		}
		if err := json.Unmarshal(body, &answer); err != nil || len(answer.Prices) != len(part) {
			w.t.Fatalf("prices: %v: %s", err, body)
		}
		for i, p := range answer.Prices {
			switch {
			case p.Reason == "":
				all[part[i]] = p.quoted
			case p.Reason != "no_price": // it is not known yet
				return nil
			}
		}
	}
	return all
}
