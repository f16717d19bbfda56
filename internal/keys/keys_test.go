package keys

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/internal/sampled"
)

// stage is a Watch with a clock of the test's own and a log that is kept.
type stage struct {
	*Watch
	t          *testing.T
	now        time.Time
	logs       *observer.ObservedLogs
	placer     *placement.Placer
	partitions int32
}

func newStage(t *testing.T, partitions int32, opts placement.Options) *stage {
	t.Helper()
	if opts.Partitioner == "" {
		opts.Partitioner = "murmur2"
	}
	p, err := placement.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	s := &stage{t: t, now: time.Unix(1_000_000, 0), logs: logs, placer: p, partitions: partitions}
	clock := func() time.Time { return s.now }
	s.Watch = New(Options{
		Topics:       [record.Sides]string{"market-updates", "notifications"},
		Partitioners: [record.Sides]string{opts.Partitioner, opts.Partitioner},
		Settings:     [record.Sides]string{"topics.market_updates_partitioner", "topics.notifications_partitioner"},
		Places:       s, Faults: sampled.New(zap.New(core), clock), Now: clock,
	})
	return s
}

// Expected, Partitions and Detective implement Places.
func (s *stage) Expected(_ record.Side, key []byte) (int32, bool) {
	return s.placer.Partition(key, s.partitions)
}
func (s *stage) Partitions(record.Side) int32 { return s.partitions }
func (s *stage) Detective(record.Side) *placement.Detective {
	return s.placer.Detective(s.partitions)
}

// take is what a task does with the records of a run.
func (s *stage) take(p *Partition, side record.Side, keys ...[]byte) {
	misplaced := 0
	for _, key := range keys {
		if !s.placer.WellPlaced(key, p.index, s.partitions, nil) {
			p.Misplaced(side, key, misplaced)
			misplaced++
		}
		p.Took(side, key, key)
	}
	p.Judged(side, len(keys), misplaced)
}

func (s *stage) hottest(n int) []Hot {
	h, _ := s.Hottest(n)
	return h
}

func symbol(i int) []byte { return fmt.Appendf(nil, "SYM%04d.JK", i) }

func TestSharesOfAQuietPartitionAreExact(t *testing.T) {
	s := newStage(t, 1, placement.Options{})
	p := s.Partition(0)
	if _, ok := p.Share(record.Notification); ok || len(s.hottest(9)) != 0 {
		t.Error("a share of nothing")
	}
	for i := range enough {
		if _, ok := p.Share(record.Notification); ok {
			t.Fatalf("a share after %d records", i)
		}
		s.take(p, record.Notification, symbol(min(i%4, 2))) // half of them the third
		s.take(p, record.Market, symbol(9))
	}
	if share, ok := p.Share(record.Notification); !ok || share != 0.5 {
		t.Errorf("the share is %v, %t", share, ok)
	}
	if share, ok := p.Share(record.Market); !ok || share != 1 {
		t.Errorf("the share of the only symbol is %v, %t", share, ok)
	}
	want := []Hot{{"SYM0009.JK", 100, 0.5}, {"SYM0002.JK", 50, 0.25}, {"SYM0000.JK", 25, 0.125}, {"SYM0001.JK", 25, 0.125}}
	got, total := s.Hottest(9)
	if fmt.Sprint(got) != fmt.Sprint(want) || total != 200 {
		t.Errorf("%v of %d, want %v", got, total, want)
	}
	if got := s.hottest(1); fmt.Sprint(got) != fmt.Sprint(want[:1]) {
		t.Errorf("%v, want %v", got, want[:1])
	}
	if got := s.hottest(-1); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// A busy partition's shares come from a sample, and producers that send their
// symbols in turn do not fall in with it.
func TestSharesOfABusyPartition(t *testing.T) {
	const records = 150_000
	for name, next := range map[string]func(i int, rnd *rand.Rand) int{
		"at random": func(_ int, rnd *rand.Rand) int {
			if rnd.IntN(5) == 0 {
				return 0
			}
			return 1 + rnd.IntN(5000)
		},
		"in turns of 5":  func(i int, _ *rand.Rand) int { return i % 5 },
		"in turns of 64": func(i int, _ *rand.Rand) int { return max(i%64-12, 0) }, // 13 of 64
	} {
		s := newStage(t, 1, placement.Options{})
		p, rnd := s.Partition(0), rand.New(rand.NewPCG(3, 4))
		for i := range records {
			key := symbol(next(i, rnd))
			p.Took(record.Market, key, key)
		}
		if share, ok := p.Share(record.Market); !ok || math.Abs(share-0.2) > 0.03 {
			t.Errorf("%s: the share is %v, want about 0.2", name, share)
		}
		if got := p.sides[record.Market].recent.Total(); got > records || got < records-2*every {
			t.Errorf("%s: %d records are stood for, want %d", name, got, records)
		}
	}
}

// Uniform traffic has no hot key, however many symbols there are.
func TestNoHotKey(t *testing.T) {
	s := newStage(t, 1, placement.Options{})
	p, rnd := s.Partition(0), rand.New(rand.NewPCG(5, 6))
	for range 150_000 {
		key := symbol(rnd.IntN(10_000))
		p.Took(record.Market, key, key)
	}
	if share, _ := p.Share(record.Market); share > 0.004 {
		t.Errorf("the hottest of ten thousand alike has %v", share)
	}
}

// What was hot is forgotten once other things come, and after a while of
// nothing at all.
func TestSharesForget(t *testing.T) {
	s := newStage(t, 1, placement.Options{})
	p := s.Partition(0)
	fill := func(i int) {
		for range exactly + 1 {
			s.take(p, record.Market, symbol(i))
		}
	}
	fill(0)
	s.now = s.now.Add(span)
	for range 2 * every {
		s.take(p, record.Market, symbol(0)) // a look comes, and the window has had its time
	}
	fill(1)
	if got := s.hottest(9); len(got) != 2 {
		t.Errorf("the window before is gone at once: %v", got)
	}
	s.now = s.now.Add(span)
	for range 2 * every {
		s.take(p, record.Market, symbol(1))
	}
	fill(2)
	for _, h := range s.hottest(9) {
		if h.Symbol == string(symbol(0)) && h.Share > 0.1 {
			t.Errorf("what was hot two windows ago still is: %v", h)
		}
	}
	s.now = s.now.Add(stale + time.Second)
	if got := s.hottest(9); len(got) != 0 {
		t.Errorf("after ten minutes of nothing: %v", got)
	}
	if _, ok := p.Share(record.Market); ok {
		t.Error("after ten minutes of nothing there is a share")
	}
}

func TestHottestOverPartitionsThatComeAndGo(t *testing.T) {
	s := newStage(t, 1, placement.Options{})
	old, other := s.Partition(3), s.Partition(4)
	s.take(old, record.Market, symbol(0), symbol(0))
	s.take(other, record.Notification, symbol(0), symbol(1))
	if got := s.hottest(1); fmt.Sprint(got) != "[{SYM0000.JK 3 0.75}]" {
		t.Errorf("%v", got)
	}
	fresh := s.Partition(3) // comes back before the old one has gone
	s.take(fresh, record.Market, symbol(2), symbol(2))
	old.Close()
	if got := s.hottest(1); fmt.Sprint(got) != "[{SYM0002.JK 2 0.5}]" {
		t.Errorf("%v", got)
	}
	fresh.Close()
	fresh.Close()
	other.Close()
	if got := s.hottest(1); len(got) != 0 {
		t.Errorf("nobody is left, but %v", got)
	}
}

func TestLongSymbolsAreCut(t *testing.T) {
	s := newStage(t, 1, placement.Options{})
	s.take(s.Partition(0), record.Market, []byte(strings.Repeat("x", 1<<20)))
	if got := s.hottest(1); len(got) != 1 || got[0].Symbol != strings.Repeat("x", maxSymbol) {
		t.Errorf("%d symbols, the first of %d bytes", len(got), len(got[0].Symbol))
	}
}

// scatter takes a record for each of n symbols, in the partition that the
// producers of its number place it in.
func (s *stage) scatter(n int, producer func(i int) *placement.Placer) {
	open := make(map[int32]*Partition)
	for i := range n {
		at, ok := producer(i).Partition(symbol(i), s.partitions)
		if !ok {
			s.t.Fatalf("%q has no place", symbol(i))
		}
		if open[at] == nil {
			open[at] = s.Partition(at)
		}
		s.take(open[at], record.Notification, symbol(i))
	}
}

func (s *stage) producer(opts placement.Options) *placement.Placer {
	p, err := placement.New(opts)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// explanations are the lines of the log, each once.
func (s *stage) explanations() (lines []string) {
	for _, e := range s.logs.All() {
		lines = append(lines, e.Message)
	}
	return lines
}

func TestMisplacedKeysAreExplained(t *testing.T) {
	reserved := []placement.Reserved{{Partition: 2, Symbols: [][]byte{symbol(1), symbol(2)}}}
	rnd := rand.New(rand.NewPCG(7, 8))
	for _, test := range []struct {
		name     string
		reserved []placement.Reserved
		producer func(s *stage, i int) *placement.Placer
		explains string
	}{
		{
			"another partitioner", nil,
			func(s *stage, _ int) *placement.Placer {
				return s.producer(placement.Options{Partitioner: "crc32"})
			},
			"keys of notifications lie as crc32 (librdkafka's default) would place them: " +
				"set topics.notifications_partitioner: crc32, or their producer's partitioner to murmur2",
		},
		{
			"one producer of ten", nil,
			func(s *stage, i int) *placement.Placer {
				name := "murmur2"
				if i%10 == 0 {
					name = "fnv1a"
				}
				return s.producer(placement.Options{Partitioner: name})
			},
			"some keys of notifications lie as fnv1a (sarama's default) would place them, others do not: " +
				"set the partitioner of their producer to murmur2",
		},
		{
			"a producer that has not heard of the premium tier", reserved,
			func(s *stage, _ int) *placement.Placer {
				return s.producer(placement.Options{Partitioner: "murmur2"})
			},
			"keys of notifications lie as murmur2 would place them if topics.reserved set no partition aside: " +
				"tell their producer, or take it out of the configuration",
		},
		{
			"two symbols of the premium tier that lie elsewhere", reserved,
			func(s *stage, i int) *placement.Placer {
				if i == 1 || i == 2 {
					return s.producer(placement.Options{Reserved: []placement.Reserved{{Partition: 4, Symbols: [][]byte{symbol(1), symbol(2)}}}, Partitioner: "murmur2"})
				}
				return s.producer(placement.Options{Reserved: reserved, Partitioner: "murmur2"})
			},
			"keys of notifications that topics.reserved names lie in other partitions than the one it gives them: " +
				"tell their producer, or take them out of the configuration",
		},
		{
			"a producer that spreads its keys", nil,
			func(s *stage, _ int) *placement.Placer {
				return s.producer(placement.Options{Partitioner: []string{"murmur2", "crc32", "fnv1a"}[rnd.IntN(3)]})
			},
			"keys of notifications lie in other partitions than murmur2 would place them in, " +
				"and no other known partitioner explains it yet",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, 6, placement.Options{Reserved: test.reserved})
			if notes := s.Notes(); notes != nil {
				t.Errorf("notes of nothing: %q", notes)
			}
			s.scatter(300, func(i int) *placement.Placer { return test.producer(s, i) })
			// The first line came before there was evidence.
			s.now = s.now.Add(sampled.Every)
			s.scatter(300, func(i int) *placement.Placer { return test.producer(s, i) })
			lines := s.explanations()
			if last := lines[len(lines)-1]; last != test.explains {
				t.Errorf("logged %q, want %q", last, test.explains)
			}
			notes := s.Notes()
			if len(notes) != 1 || !strings.HasSuffix(notes[0], " are misplaced: "+test.explains) {
				t.Errorf("notes %q, want %q", notes, test.explains)
			}
		})
	}
}

// Where symbols are judged the words say so, and what to do where the records'
// keys are something else.
func TestMisplacedSymbolsAreExplained(t *testing.T) {
	for _, test := range []struct{ name, by, explains, likely string }{
		{
			"placed by another key", "",
			"symbols of notifications, which are not the records' keys, lie in other partitions than murmur2 would place them in, " +
				"where their prices are looked for: set topics.notifications_partitioner: custom, and every owner is asked, " +
				"or have the producer place records by their symbol",
			"",
		},
		{
			"placed by their symbol in another way", "crc32",
			"symbols of notifications lie as crc32 (librdkafka's default) would place them: " +
				"set topics.notifications_partitioner: crc32, or their producer's partitioner to murmur2",
			"crc32",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, 6, placement.Options{})
			s.o.BySymbol[record.Notification] = true
			misplaced := 0
			for i := range 300 {
				at, _ := s.producer(placement.Options{Partitioner: "murmur2"}).Partition(fmt.Appendf(nil, "NASDAQ:%s", symbol(i)), 6)
				if test.by != "" {
					at, _ = s.producer(placement.Options{Partitioner: test.by}).Partition(symbol(i), 6)
				}
				if home, _ := s.Expected(record.Notification, symbol(i)); home != at {
					misplaced++
				}
				s.take(s.Partition(at), record.Notification, symbol(i))
				if i == 150 { // the first line came before there was evidence
					s.now = s.now.Add(sampled.Every)
				}
			}
			all := s.logs.All()
			last := all[len(all)-1]
			c := last.ContextMap()
			if last.Message != test.explains || c["likely_partitioner"] != test.likely || c["symbol"] == nil || c["key"] != nil {
				t.Errorf("logged %q %v", last.Message, c)
			}
			want := fmt.Sprintf("%d of the latest 300 records of notifications (%.3g %%) are misplaced: %s", misplaced, float64(misplaced)/3, test.explains)
			if notes := s.Notes(); len(notes) != 1 || notes[0] != want {
				t.Errorf("notes %q, want %q", notes, want)
			}
		})
	}
}

func TestTheLineNamesTheKey(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	s.scatter(60, func(int) *placement.Placer { return s.producer(placement.Options{Partitioner: "crc32"}) })
	all := s.logs.All()
	if len(all) != 2 {
		t.Fatalf("%d lines, want the first key and then what explains them: %q", len(all), s.explanations())
	}
	for i, e := range all {
		c := e.ContextMap()
		key, partition, expected := c["key"].(string), c["partition"].(int32), c["expected_partition"].(int32)
		want, _ := s.placer.Partition([]byte(key), 6)
		lies, _ := s.producer(placement.Options{Partitioner: "crc32"}).Partition([]byte(key), 6)
		if expected != want || partition != lies || c["topic"] != "notifications" {
			t.Errorf("line %d: %v", i, c)
		}
		if c["likely_partitioner"] != []string{"", "crc32"}[i] {
			t.Errorf("line %d: %v", i, c)
		}
	}
	for i, want := range []uint64{1, 8} { // eight keys prove it with six partitions
		if n := all[i].ContextMap()["misplaced"]; n != want {
			t.Errorf("line %d counts %v, want %d", i, n, want)
		}
	}
}

// Notes give the share of the latest records, and a stray is not held against
// a topic for ever.
func TestNotesForget(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	key := symbol(0)
	right, _ := s.placer.Partition(key, 6)
	home, stray := s.Partition(right), s.Partition((right+1)%6)
	s.take(stray, record.Market, key)
	s.take(home, record.Market, key, key, key)
	want := "1 of the latest 4 records of market-updates (25 %) are misplaced: "
	if notes := s.Notes(); len(notes) != 1 || !strings.HasPrefix(notes[0], want) {
		t.Errorf("%q, want %q", notes, want)
	}
	if !s.Misplaced(record.Market) || s.Misplaced(record.Notification) {
		t.Error("not the market's keys alone are said to be misplaced")
	}
	s.now = s.now.Add(lately)
	s.take(home, record.Market, key)
	want = "1 of the latest 5 records of market-updates (20 %) are misplaced: "
	if notes := s.Notes(); len(notes) != 1 || !strings.HasPrefix(notes[0], want) {
		t.Errorf("%q, want %q", notes, want)
	}
	s.now = s.now.Add(lately)
	s.take(home, record.Market, key)
	if notes := s.Notes(); notes != nil {
		t.Errorf("after two windows: %q", notes)
	}
	if s.Misplaced(record.Market) {
		t.Error("still misplaced after two windows")
	}
	if s.topics[record.Market].suspicious.Load() {
		t.Error("the topic is still suspected")
	}
	s.take(stray, record.Market, key)
	s.now = s.now.Add(3 * lately)
	if notes := s.Notes(); notes != nil {
		t.Errorf("after a long time without a record: %q", notes)
	}
}

// A topic that grows is judged by its new count from then on.
func TestGrowthBeginsTheInvestigationAnew(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	crc32 := func(int) *placement.Placer { return s.producer(placement.Options{Partitioner: "crc32"}) }
	s.scatter(60, crc32)
	s.partitions = 12
	s.scatter(60, crc32)
	v := s.topics[record.Notification].verdict()
	if v.name != "crc32" || v.mixed {
		t.Errorf("%+v", v)
	}
	if n := s.topics[record.Notification].now.strays.Partitions(); n != 12 {
		t.Errorf("judged by %d partitions", n)
	}
	s.partitions = 0 // nobody tells any more
	s.Partition(1).Misplaced(record.Notification, symbol(1), 0)
	if v := s.topics[record.Notification].verdict(); v.name != "crc32" {
		t.Errorf("a verdict is forgotten because nobody tells the count: %+v", v)
	}
}

// A young window has too little evidence of its own.
func TestVerdictOfTheWindowBefore(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	crc32 := func(int) *placement.Placer { return s.producer(placement.Options{Partitioner: "crc32"}) }
	s.scatter(60, crc32)
	s.now = s.now.Add(lately)
	s.scatter(3, crc32)
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "lie as crc32") {
		t.Errorf("%q", notes)
	}
	s.now = s.now.Add(lately)
	s.scatter(3, crc32)
	if notes := s.Notes(); len(notes) != 1 || strings.Contains(notes[0], "lie as crc32") {
		t.Errorf("what is long past explains: %q", notes)
	}
}

func TestNothingIsSuspectedOfASoundTopic(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	s.scatter(300, func(int) *placement.Placer { return s.placer })
	if s.logs.Len() != 0 || s.Notes() != nil || s.topics[record.Notification].now.all != nil {
		t.Errorf("%q, %q", s.explanations(), s.Notes())
	}
}

// Where every record of a long run is misplaced, the first are enough.
func TestALongRunIsLookedAtOnlyAtFirst(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	at, _ := s.placer.Partition(symbol(0), 6)
	p := s.Partition((at + 1) % 6)
	for i := range 512 {
		p.Misplaced(record.Market, symbol(i), i)
	}
	if _, _, seen := s.topics[record.Market].now.strays.Likely(); seen != atOnce {
		t.Errorf("%d were looked at", seen)
	}
}

func TestPrintable(t *testing.T) {
	for key, want := range map[string]string{
		"":                          "",
		"BRK.B":                     "BRK.B",
		"日経225":                     "日経225",
		"a\"b\\\n\x00":              `a\"b\\\n\x00`,
		"\xff\xfe":                  `\xff\xfe`,
		strings.Repeat("k", maxKey): strings.Repeat("k", maxKey),
		strings.Repeat("k", 1<<20):  strings.Repeat("k", maxKey) + "…",
	} {
		if got := printable([]byte(key)); got != want {
			t.Errorf("%.80q is printed as %q, want %q", key, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		got := printable(rapid.SliceOf(rapid.Byte()).Draw(t, "key"))
		if len(got) > 10*maxKey || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b") {
			t.Fatalf("printed as %q", got)
		}
	})
}

// Tasks, scrapes and probes at once.
func TestConcurrentUse(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	crc32 := s.producer(placement.Options{Partitioner: "crc32"})
	var wg sync.WaitGroup
	for index := range int32(6) {
		wg.Go(func() {
			p := s.Partition(index)
			defer p.Close()
			for i := range 5000 {
				if at, _ := crc32.Partition(symbol(i%700), 6); at == index {
					s.take(p, record.Notification, symbol(i%700))
				}
			}
		})
		wg.Go(func() {
			for range 50 {
				s.Hottest(5)
				s.Notes()
				for _, p := range s.Watch.partitions() {
					p.Share(record.Notification)
				}
			}
		})
	}
	wg.Wait()
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "crc32") {
		t.Errorf("%q", notes)
	}
}

func TestTookDoesNotAllocate(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	p, key := s.Partition(0), []byte("BBCA")
	p.Took(record.Market, key, key)
	if n := testing.AllocsPerRun(1000, func() { p.Took(record.Market, key, key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkTook is what watching costs for each record, at the rate of a
// catch-up: the worst case is one in which nearly every look brings another
// symbol.
func BenchmarkTook(b *testing.B) {
	for _, symbols := range []int{16, 1 << 13} {
		b.Run(fmt.Sprintf("%d symbols", symbols), func(b *testing.B) {
			w := New(Options{})
			p, keys := w.Partition(0), make([][]byte, 1<<13)
			rnd := rand.New(rand.NewPCG(1, 2))
			for i := range keys {
				keys[i] = symbol(rnd.IntN(symbols))
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				key := keys[i&(len(keys)-1)]
				p.Took(record.Market, key, key)
				i++
			}
		})
	}
}

// A handful of records does not show that others are placed in another way.
func TestFewKeysAreNoMixture(t *testing.T) {
	s := newStage(t, 6, placement.Options{})
	crc32 := s.producer(placement.Options{Partitioner: "crc32"})
	for i := range 30 {
		if at, _ := crc32.Partition(symbol(i), 6); !s.placer.WellPlaced(symbol(i), at, 6, nil) {
			s.Partition(at).Misplaced(record.Market, symbol(i), 0)
		}
	}
	topic := &s.topics[record.Market]
	for i := range several {
		if v := topic.verdict(); v != (verdict{name: "crc32"}) {
			t.Errorf("%+v after %d sampled keys", v, i)
		}
		at, _ := s.placer.Partition(symbol(i), 6)
		topic.sampled(symbol(i), at)
	}
	if v := topic.verdict(); v != (verdict{name: "crc32", mixed: true}) {
		t.Errorf("%+v", v)
	}
}
