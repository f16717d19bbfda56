package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"joiner/test/cluster"
)

// checkpointSymbols is how many symbols the checkpoint of TestKafkaCheckpoint
// has, unless JOINER_CHECKPOINT_SYMBOLS says another number: the figures in
// docs/design.md are of a million.
const checkpointSymbols = 100_000

// A pod that was killed reads only what its checkpoint lacks, and what must not
// be used is set aside: prices are right all the same.
func TestKafkaCheckpoint(t *testing.T) {
	symbols := checkpointSymbols
	if text := os.Getenv("JOINER_CHECKPOINT_SYMBOLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		symbols = n
	}
	missed := symbols / 100
	c := cluster.Start(t, cluster.Options{})
	w := &kept{World: NewWorldOn(t, c, 1, nil), dir: filepath.Join(t.TempDir(), "state"), symbols: symbols}
	w.ticks(0, symbols, "1")

	began := time.Now()
	pod := w.run(w.Settings)
	t.Logf("%d symbols merged by a group without commits in %v", symbols, time.Since(began).Round(time.Millisecond))
	w.checkpointed(pod)
	pod.Kill()

	// Somebody without checkpoints goes on: it reads all of it.
	without := w.run(Settings{"state.dir": ""})
	w.restored(without, symbols)
	w.ticks(symbols/2, missed, "2")
	w.AwaitNoLag()
	w.right(without)
	without.Stop()

	with := w.run(nil)
	w.restored(with, missed)
	w.verdict(with, "used")
	w.right(with)
	w.checkpointed(with)
	if code := with.Stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}

	w.damage()
	pod = w.run(nil)
	w.restored(pod, symbols+missed)
	w.verdict(pod, "damaged")
	w.right(pod)
	w.checkpointed(pod)
	pod.Stop()

	// The group's offsets are reset to a point before the checkpoint.
	back := symbols / 10
	w.resetTo(back)
	pod = w.run(nil)
	w.restored(pod, back)
	w.verdict(pod, "future")
	w.AwaitNoLag()
	w.right(pod)
	w.checkpointed(pod)
	pod.Stop()

	other := w.Beside()
	pod = w.run(Settings{"group.id": other.Group, "topics.enriched_alerts": other.Alerts, "topics.dead_letters": other.Dead})
	w.verdict(pod, "foreign")
	w.right(pod)
	if code := w.Start(Settings{"state.dir": w.dir, "shutdown.timeout": "1s"}).Wait(); code != 1 {
		t.Errorf("a second process on the directory ended with %d", code)
	}
	pod.Stop()
}

// kept is a world whose pods keep checkpoints.
type kept struct {
	*World
	dir     string
	symbols int
	price   map[int]string // of the symbols that do not have the first one
}

func symbolOf(i int) string { return fmt.Sprintf("SYM%07d", i) }

// ticks writes a price for n symbols from the given one on.
func (w *kept) ticks(from, n int, price string) {
	w.t.Helper()
	records := make([]Record, n)
	if w.price == nil {
		w.price = map[int]string{}
	}
	for i := range records {
		records[i] = Record{Key: symbolOf(from + i), Value: fmt.Sprintf(`{"price": %s.%d}`, price, from+i)}
		w.price[from+i] = fmt.Sprintf("%s.%d", price, from+i)
	}
	w.Send(w.Market, records...)
}

// run starts a pod, and returns it once it is ready and has nothing left to do.
func (w *kept) run(more Settings) *Proc {
	w.t.Helper()
	settings := Settings{"state.dir": w.dir, "state.checkpoint_interval": "200ms", "group.session_timeout": "6s"}
	for key, value := range more {
		settings[key] = value
	}
	p := w.Start(settings)
	p.WaitReady()
	return p
}

// checkpointed waits for a checkpoint of all that is committed. The first one to
// end may have been begun before that was so, the second one was not.
func (w *kept) checkpointed(p *Proc) {
	w.t.Helper()
	w.AwaitNoLag()
	since := float64(time.Now().UnixMilli()) / 1000
	for range 2 {
		await(w.t, "a checkpoint", func() error {
			last := p.Metrics().Sum("joiner_checkpoint_last_success_timestamp_seconds")
			if last <= since {
				return fmt.Errorf("the last one is of %f, it is %f", last, since)
			}
			since = last
			return nil
		})
	}
}

// restored checks how many records the restore has read.
func (w *kept) restored(p *Proc, want int) {
	w.t.Helper()
	m := p.Metrics()
	n, took := int(m.Sum("joiner_restored_records_total")), m.Sum("joiner_restore_duration_seconds_sum")
	w.t.Logf("%s: %d records read to restore %.0f symbols, in %.2f s", p.Name, n, m.Sum("joiner_state_symbols"), took)
	if n != want {
		w.t.Errorf("%s: %d records read to restore, want %d", p.Name, n, want)
	}
}

func (w *kept) verdict(p *Proc, want string) {
	w.t.Helper()
	for _, s := range p.Metrics().Find("joiner_checkpoint_restores_total") {
		if s.Value != 0 != (s.Labels["outcome"] == want) {
			w.t.Errorf("%s: %v restores with outcome %q, want one of %q", p.Name, s.Value, s.Labels["outcome"], want)
		}
	}
	if lines := p.Logged("checkpoint set aside, the table is restored from the topic"); (want == "used") != (len(lines) == 0) ||
		len(lines) > 0 && lines[0].Text("reason") != want {
		w.t.Errorf("%s: set aside: %v", p.Name, lines)
	}
}

// right compares prices with what was written: of symbols of either kind.
func (w *kept) right(p *Proc) {
	w.t.Helper()
	var asked []int
	for i := 0; i < w.symbols; i += max(1, w.symbols/200) {
		asked = append(asked, i)
	}
	asked = append(asked, w.symbols/2, w.symbols/2+w.symbols/100-1, w.symbols-1)
	query := url.Values{}
	for _, i := range asked {
		query.Add("symbol", symbolOf(i))
	}
	status, body, err := p.Get("/v1/prices?" + query.Encode())
	if err != nil || status != 200 {
		w.t.Fatalf("%s: %d %s %v", p.Name, status, body, err)
	}
	var answer struct {
		Prices []struct {
			Symbol string
			Price  json.Number
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Prices) != len(asked) {
		w.t.Fatalf("%s: %d of %d prices: %v", p.Name, len(answer.Prices), len(asked), err)
	}
	for i, got := range answer.Prices {
		if want := w.price[asked[i]]; got.Price.String() != want {
			w.t.Errorf("%s: %s has %s, want %s", p.Name, got.Symbol, got.Price, want)
		}
	}
	if n := int(p.Metrics().Sum("joiner_state_symbols")); n != w.symbols {
		w.t.Errorf("%s: %d symbols, want %d", p.Name, n, w.symbols)
	}
}

// damage flips bytes in every table file of the checkpoint.
func (w *kept) damage() {
	w.t.Helper()
	n := 0
	err := filepath.WalkDir(filepath.Join(w.dir, "partition-0"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".sst" {
			return err
		}
		n++
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := 0; i < len(data); i += 1000 {
			data[i] ^= 0x55
		}
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil || n == 0 {
		w.t.Fatalf("%d files damaged: %v", n, err)
	}
}

// resetTo sets the group's offset of market-updates, as an administrator does.
func (w *kept) resetTo(offset int) {
	w.t.Helper()
	await(w.t, "the group to be empty", func() error {
		out := w.Tool(w.t, nil, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", strings.Join(w.Brokers, ","), "--group", w.Group,
			"--topic", w.Market, "--reset-offsets", "--to-offset", strconv.Itoa(offset), "--execute")
		if strings.Contains(out, "Error") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}
