package app

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"joiner/internal/assign"
	"joiner/internal/config"
	"joiner/internal/enrich"
	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/internal/remote"
)

// placed is a topic's traffic: a record for each symbol, where its producer
// puts it.
type placed struct {
	*stage
	symbols []string
	at      time.Time
}

func newPlaced(t *testing.T) (*placed, *observer.ObservedLogs) {
	t.Helper()
	s := newStage(t, allTopics()...)
	core, logs := observer.New(zap.WarnLevel)
	s.log = zap.New(core)
	p := &placed{stage: s, at: time.Now().Add(-time.Minute).Truncate(time.Millisecond)}
	for i := range 48 {
		p.symbols = append(p.symbols, fmt.Sprintf("SYM%02d.JK", i))
	}
	return p, logs
}

func producer(t *testing.T, opts placement.Options) *placement.Placer {
	t.Helper()
	p, err := placement.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ticks and notes send a record for each symbol.
func (p *placed) ticks(by *placement.Placer) {
	for i, symbol := range p.symbols {
		n, _ := by.Partition([]byte(symbol), partitions)
		p.send("market-updates", n, symbol, fmt.Sprintf(`{"price":%d.50}`, i), p.at)
	}
}

func (p *placed) notes(by *placement.Placer) {
	for _, symbol := range p.symbols {
		n, _ := by.Partition([]byte(symbol), partitions)
		p.send("notifications", n, symbol, `{"user":"u1"}`, p.at.Add(time.Second))
	}
}

// allRight checks that every symbol has an alert with its price.
func (p *placed) allRight() {
	p.t.Helper()
	for _, m := range p.alerts("enriched-alerts", len(p.symbols)) {
		a, err := enrich.ParseAlert(m.Value)
		if err != nil {
			p.t.Fatalf("%s: %v", m.Value, err)
		}
		i := slices.Index(p.symbols, string(m.Key))
		if a.Market == nil || a.Market.Price != fmt.Sprintf("%d.50", i) || a.Locality != record.Local {
			p.t.Errorf("symbol %q: %s", m.Key, m.Value)
		}
	}
}

// misplaced counts the symbols that two producers place differently.
func (p *placed) misplaced(a, b *placement.Placer) (n int) {
	for _, symbol := range p.symbols {
		x, _ := a.Partition([]byte(symbol), partitions)
		y, _ := b.Partition([]byte(symbol), partitions)
		if x != y {
			n++
		}
	}
	return n
}

// sum adds up a metric's series of a topic.
func sum(t *testing.T, reg prometheus.Gatherer, name, topic string) (total float64, series int) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "topic" && l.GetValue() == topic {
					total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
					series++
				}
			}
		}
	}
	return total, series
}

// judgedAll waits until the metrics have every record of the topic.
func (p *placed) judgedAll(pod *pod, topic string) {
	p.t.Helper()
	await(p.t, func() string {
		if n, _ := sum(p.t, pod.Registry(), "joiner_partition_records_total", topic); n != float64(len(p.symbols)) {
			return fmt.Sprintf("%v records of %s consumed, want %d", n, topic, len(p.symbols))
		}
		return ""
	})
}

// Notifications placed by crc32 over a market topic placed by murmur2: all are
// joined rightly, counted, explained in the log and noted in readiness, which
// they do not end.
func TestForeignPlacementIsExplained(t *testing.T) {
	p, logs := newPlaced(t)
	pod := p.start(nil)
	pod.awaitReady()
	murmur2, crc32 := producer(t, placement.Options{Partitioner: "murmur2"}), producer(t, placement.Options{Partitioner: "crc32"})
	p.ticks(murmur2)
	p.notes(crc32)
	p.allRight()
	p.judgedAll(pod, "notifications")

	want := p.misplaced(murmur2, crc32)
	if got, _ := sum(t, pod.Registry(), "joiner_misplaced_keys_total", "notifications"); got != float64(want) || want == 0 || want == len(p.symbols) {
		t.Errorf("%v misplaced, the vectors say %d of %d", got, want, len(p.symbols))
	}
	if got, _ := sum(t, pod.Registry(), "joiner_misplaced_keys_total", "market-updates"); got != 0 {
		t.Errorf("%v ticks misplaced", got)
	}
	const explains = "keys of notifications lie as crc32 (librdkafka's default) would place them: " +
		"set topics.notifications_partitioner: crc32, or their producer's partitioner to murmur2"
	if logs.FilterMessage(explains).Len() == 0 {
		t.Errorf("not in the log: %q", explains)
	}
	r := pod.Ready()
	note := fmt.Sprintf("%d of the latest %d records of notifications (%.3g %%) are misplaced: %s",
		want, len(p.symbols), 100*float64(want)/float64(len(p.symbols)), explains)
	if !r.Ready || !slices.Equal(r.Notes, []string{note}) {
		t.Errorf("readiness %+v, want the note %q", r, note)
	}
}

// The configuration that the log proposes makes nothing of it misplaced.
func TestNothingIsMisplacedOnceConfigured(t *testing.T) {
	for _, name := range []string{"crc32", "custom"} {
		t.Run(name, func(t *testing.T) {
			p, logs := newPlaced(t)
			pod := p.start(func(c *config.Config) { c.Topics.NotificationsPartitioner = name })
			pod.awaitReady()
			p.ticks(producer(t, placement.Options{Partitioner: "murmur2"}))
			p.notes(producer(t, placement.Options{Partitioner: "crc32"}))
			p.allRight()
			p.nothingMisplaced(pod, logs)
		})
	}
}

// Ticks whose symbol is not their key lie where their producer put the key, and
// most prices are looked for elsewhere: that is counted, explained and noted, with
// the configuration that makes all of it right.
func TestSymbolsThatAreNotTheKey(t *testing.T) {
	murmur2 := producer(t, placement.Options{Partitioner: "murmur2"})
	begin := func(t *testing.T, partitioner string) (*placed, *pod, *observer.ObservedLogs) {
		p, logs := newPlaced(t)
		pod := p.start(func(c *config.Config) {
			c.Market.Symbol, c.Topics.MarketUpdatesPartitioner = "sym", partitioner
		})
		pod.awaitReady()
		for i, symbol := range p.symbols {
			n, _ := murmur2.Partition([]byte("NASDAQ:"+symbol), partitions)
			p.send("market-updates", n, "NASDAQ:"+symbol, fmt.Sprintf(`{"sym":%q,"price":%d.50}`, symbol, i), p.at)
		}
		p.judgedAll(pod, "market-updates")
		return p, pod, logs
	}
	t.Run("murmur2", func(t *testing.T) {
		p, pod, logs := begin(t, "")
		want := 0
		for _, symbol := range p.symbols {
			home, _ := murmur2.Partition([]byte(symbol), partitions)
			if n, _ := murmur2.Partition([]byte("NASDAQ:"+symbol), partitions); n != home {
				want++
			}
		}
		if got, _ := sum(t, pod.Registry(), "joiner_misplaced_keys_total", "market-updates"); got != float64(want) || want == 0 || want == len(p.symbols) {
			t.Errorf("%v misplaced, the vectors say %d of %d", got, want, len(p.symbols))
		}
		const explains = "symbols of market-updates, which are not the records' keys, lie in other partitions than murmur2 would place them in, " +
			"where their prices are looked for: set topics.market_updates_partitioner: custom, and every owner is asked, " +
			"or have the producer place records by their symbol"
		if logs.FilterMessage(explains).Len() == 0 {
			t.Errorf("not in the log: %q", explains)
		}
		note := fmt.Sprintf("%d of the latest %d records of market-updates (%.3g %%) are misplaced: %s",
			want, len(p.symbols), 100*float64(want)/float64(len(p.symbols)), explains)
		if r := pod.Ready(); !r.Ready || !slices.Equal(r.Notes, []string{note}) {
			t.Errorf("readiness %+v, want the note %q", r, note)
		}
	})
	t.Run("custom", func(t *testing.T) {
		p, pod, logs := begin(t, "custom")
		p.notes(murmur2)
		p.allRight()
		p.nothingMisplaced(pod, logs)
	})
}

func (p *placed) nothingMisplaced(pod *pod, logs *observer.ObservedLogs) {
	p.t.Helper()
	for _, topic := range []string{"market-updates", "notifications"} {
		p.judgedAll(pod, topic)
		if n, series := sum(p.t, pod.Registry(), "joiner_misplaced_keys_total", topic); n != 0 || series != 1 {
			p.t.Errorf("%v of %s misplaced (%d series)", n, topic, series)
		}
	}
	if r := pod.Ready(); len(r.Notes) != 0 {
		p.t.Errorf("notes %q", r.Notes)
	}
	for _, e := range logs.All() {
		if strings.Contains(e.Message, " lie as ") || strings.Contains(e.Message, " lie in other partitions ") {
			p.t.Errorf("logged %q", e.Message)
		}
	}
}

// Under custom for both topics nothing is judged, and what lies together is
// joined.
func TestCustomIsNotJudged(t *testing.T) {
	p, logs := newPlaced(t)
	pod := p.start(func(c *config.Config) { c.Topics.Partitioner = "custom" })
	pod.awaitReady()
	fnv1a := producer(t, placement.Options{Partitioner: "fnv1a"})
	p.ticks(fnv1a)
	p.notes(fnv1a)
	p.allRight()
	p.nothingMisplaced(pod, logs)
}

// tier writes a symbols file.
func tier(t *testing.T, symbols ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "premium")
	if err := os.WriteFile(file, []byte(strings.Join(symbols, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func reservedFor(symbols []string, partition int32) []placement.Reserved {
	r := placement.Reserved{Partition: partition}
	for _, s := range symbols {
		r.Symbols = append(r.Symbols, []byte(s))
	}
	return []placement.Reserved{r}
}

// A premium partition for some symbols beside hashed others: none misplaced,
// all joined in their partition.
func TestReservedPartition(t *testing.T) {
	p, logs := newPlaced(t)
	premium := p.symbols[:5]
	pod := p.start(func(c *config.Config) {
		c.Topics.Reserved = []config.Reserved{{Partition: 2, SymbolsFile: tier(t, premium...)}}
	})
	pod.awaitReady()
	tiered := producer(t, placement.Options{Partitioner: "murmur2", Reserved: reservedFor(premium, 2)})
	p.ticks(tiered)
	p.notes(tiered)
	p.allRight()
	p.nothingMisplaced(pod, logs)
	if n := p.misplaced(tiered, producer(t, placement.Options{Partitioner: "murmur2"})); n < 10 {
		t.Errorf("the tier moves %d keys only: the test shows nothing", n)
	}
}

// A producer of notifications that has not heard of the tier: its records are
// joined with the tier's prices, and the log says what it has not heard of.
func TestProducerThatDoesNotKnowTheTier(t *testing.T) {
	p, logs := newPlaced(t)
	premium := p.symbols[:5]
	pod := p.start(func(c *config.Config) {
		c.Topics.Reserved = []config.Reserved{{Partition: 2, SymbolsFile: tier(t, premium...)}}
	})
	pod.awaitReady()
	tiered, plain := producer(t, placement.Options{Partitioner: "murmur2", Reserved: reservedFor(premium, 2)}), producer(t, placement.Options{Partitioner: "murmur2"})
	p.ticks(tiered)
	p.notes(plain)
	p.allRight()
	p.judgedAll(pod, "notifications")
	if got, _ := sum(t, pod.Registry(), "joiner_misplaced_keys_total", "notifications"); got != float64(p.misplaced(tiered, plain)) {
		t.Errorf("%v misplaced, the vectors say %d", got, p.misplaced(tiered, plain))
	}
	const explains = "keys of notifications lie as murmur2 would place them if topics.reserved set no partition aside: " +
		"tell their producer, or take it out of the configuration"
	if logs.FilterMessage(explains).Len() == 0 {
		t.Errorf("not in the log: %q", explains)
	}
}

// The hottest symbols are those of the pod's partitions, and the partition's
// own share is a metric that leaves with it.
func TestHottest(t *testing.T) {
	s := newStage(t, allTopics()...)
	first := s.start(nil)
	first.awaitReady()
	const n = 110 // above what a share needs
	for i := range n {
		symbol := "BBCA"
		if i%11 == 0 {
			symbol = "BRK.B"
		}
		s.send("notifications", home(symbol), symbol, `{}`, time.Now())
	}
	s.alerts("enriched-alerts", n)
	hot, total := first.Hottest(10)
	if total != n || len(hot) != 2 || hot[0].Symbol != "BBCA" || hot[0].Share != 100.0/n || hot[0].Records != 100 || hot[1].Symbol != "BRK.B" || hot[1].Share != 10.0/n {
		t.Errorf("hottest %v of %d", hot, total)
	}
	if h := first.standing().Part.Hot; h.Total != n || len(h.Keys) != 2 || string(h.Keys[0].Symbol) != "BBCA" || h.Keys[0].Count != 100 {
		t.Errorf("other pods are told of %+v", h)
	}
	const metric = "joiner_hottest_key_share_ratio"
	want := 1.0 // BBCA's partition; BRK.B's has too few records to say
	if home("BBCA") == home("BRK.B") {
		want = 100.0 / n
	}
	if share, series := sum(t, first.Registry(), metric, "notifications"); share != want || series != 1 {
		t.Errorf("%s: %v in %d series, want %v", metric, share, series, want)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	hot, total = first.Hottest(10)
	if _, series := sum(t, first.Registry(), metric, "notifications"); series != 0 || len(hot) != 0 || total != 0 {
		t.Errorf("%d series of a partition that has left, hottest %v of %d", series, hot, total)
	}
}

// A premium partition that comes with a growth: what was written before it lies
// where it was hashed to.
func TestPlacesOfATierThatIsNew(t *testing.T) {
	c := config.Default().Topics
	c.Reserved = []config.Reserved{{Partition: 6, SymbolsFile: tier(t, "AAPL")}}
	p, err := newPlaces(c)
	if err != nil {
		t.Fatal(err)
	}
	topics := map[string]int32{c.MarketUpdates: 7, c.Notifications: 7}
	p.learn(&assign.Directory{Partitions: topics, Former: map[string][]int32{c.MarketUpdates: {6}, c.Notifications: {6}}})
	if n, ok := p.Home([]byte("AAPL")); !ok || n != 6 {
		t.Errorf("it belongs to %d, %t", n, ok)
	}
	before, _ := producer(t, placement.Options{Partitioner: "murmur2"}).Partition([]byte("AAPL"), 6)
	if n := p.Former([]byte("AAPL")); !slices.Equal(n, []int32{before}) {
		t.Errorf("it belonged to %v, want %d", n, before)
	}
	for side := range record.Sides {
		if !p.At(before).WellPlaced(side, []byte("AAPL")) || !p.At(6).WellPlaced(side, []byte("AAPL")) {
			t.Errorf("%s: misplaced where it belongs", side)
		}
		if other := (before + 1) % 6; p.At(other).WellPlaced(side, []byte("AAPL")) {
			t.Errorf("%s: well placed in partition %d", side, other)
		}
	}
}

// However often the topic has grown, whatever a count of its put somewhere is
// well placed there and asked for there, the newest count first.
func TestPlacesOfEveryCount(t *testing.T) {
	c := config.Default().Topics
	p, err := newPlaces(c)
	if err != nil {
		t.Fatal(err)
	}
	a := &App{places: p}
	placed := producer(t, placement.Options{Partitioner: "murmur2"})
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOfNDistinct(rapid.Int32Range(1, 64), 1, assign.MaxFormer+1, rapid.ID[int32]).Draw(t, "counts")
		slices.Sort(counts)
		slices.Reverse(counts)
		symbol := rapid.SliceOfN(rapid.Byte(), 1, 8).Draw(t, "symbol")
		p.learn(&assign.Directory{
			Partitions: map[string]int32{c.MarketUpdates: counts[0]},
			Former:     map[string][]int32{c.MarketUpdates: counts[1:]},
		})
		var want []int32
		for _, n := range counts {
			if partition, _ := placed.Partition(symbol, n); !slices.Contains(want, partition) {
				want = append(want, partition)
			}
		}
		if got := a.homes(symbol); !slices.Equal(got, want) {
			t.Fatalf("of %v partitions: asked %v, want %v", counts, got, want)
		}
		for partition := range counts[0] {
			if got := p.At(partition).WellPlaced(record.Market, symbol); got != slices.Contains(want, partition) {
				t.Fatalf("of %v partitions: in %d well placed: %t, it was put into %v", counts, partition, got, want)
			}
		}
	})
}

// When the topics grow, whoever computes a symbol's new partition must find it
// in the directory: one that nobody is to read would be waited for in vain.
func TestCountsComeAfterTheDirectory(t *testing.T) {
	var a *App
	told := false
	core, _ := observer.New(zap.InfoLevel)
	log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if e.Message == "assigned" {
			told = true
			if n := a.places.Partitions(record.Market); n != 0 {
				t.Errorf("%d partitions are known before who owns them", n)
			}
		}
		return nil
	}))
	a, err := New(Options{Config: config.Default(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	client, err := remote.NewClient(remote.ClientOptions{Group: self{a}, Metrics: &a.metrics.Remote, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	a.remote.Store(client)

	topic := a.topics[record.Market]
	a.assigned(assign.Assignment{Generation: 1, Directory: &assign.Directory{
		Generation: 1, Partitions: map[string]int32{topic: 12}, Former: map[string][]int32{topic: {6}},
	}})
	if n := a.places.Partitions(record.Market); n != 12 || !told {
		t.Errorf("%d partitions; the member was told: %t", n, told)
	}
}
