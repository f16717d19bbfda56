package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/IBM/sarama"
	"pgregory.net/rapid"
)

func placer(t testing.TB, opts Options) *Placer {
	t.Helper()
	p, err := New(opts)
	if err != nil {
		t.Fatalf("New(%+v): %v", opts, err)
	}
	return p
}

func TestVectorsTwelvePartitions(t *testing.T) {
	for _, tc := range []struct {
		key                   string
		fnv1a, crc32, murmur2 int32
	}{
		{"BRK.B", 2, 0, 3},
		{"MSFT", 9, 7, 6},
		{"AAPL", 7, 0, 9},
		{"BTC-USD", 5, 8, 9},
	} {
		want := map[string]int32{"fnv1a": tc.fnv1a, "crc32": tc.crc32, "murmur2": tc.murmur2}
		for name, partition := range want {
			got, ok := placer(t, Options{Partitioner: name}).Partition([]byte(tc.key), 12)
			if !ok || got != partition {
				t.Errorf("%s of %q = %d, %t; want %d", name, tc.key, got, ok, partition)
			}
		}
	}
}

// The vectors of Kafka's own UtilsTest.testMurmur2.
func TestMurmur2AgreesWithJava(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2Sum([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

// saramas are sarama's partitioners by our names.
func saramas() map[string]sarama.Partitioner {
	return map[string]sarama.Partitioner{
		"murmur2": sarama.NewMurmur2Partitioner("t"),
		"crc32":   sarama.NewConsistentCRCHashPartitioner("t"),
		"fnv1a":   sarama.NewHashPartitioner("t"),
	}
}

func agreesWithSarama(t interface {
	Fatalf(string, ...any)
}, theirs map[string]sarama.Partitioner, key []byte, partitions int32) {
	for name, p := range theirs {
		want, err := p.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, partitions)
		if err != nil {
			t.Fatalf("sarama's %s: %v", name, err)
		}
		ours, err := ByName(name)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if got := ours.Partition(key, partitions); got != want {
			t.Fatalf("%s of %q over %d = %d, sarama says %d", name, key, partitions, got, want)
		}
	}
}

func TestAgreesWithSarama(t *testing.T) {
	theirs := saramas()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		agreesWithSarama(t, theirs, key, rapid.Int32Range(1, 1<<31-1).Draw(t, "partitions"))
	})
}

func FuzzPartition(f *testing.F) {
	for _, key := range []string{"", "BRK.B", "M&M.NS", "日経225", "a/b", "..", "\xff\xfe"} {
		f.Add([]byte(key), int32(12), int32(3))
	}
	theirs := saramas()
	f.Fuzz(func(t *testing.T, key []byte, partitions, reserved int32) {
		if partitions <= 0 {
			if _, ok := placer(t, Options{Partitioner: "murmur2"}).Partition(key, partitions); ok {
				t.Fatalf("placed %q among %d partitions", key, partitions)
			}
			return
		}
		agreesWithSarama(t, theirs, key, partitions)
		if reserved < 0 {
			return
		}
		p := placer(t, Options{Partitioner: "fnv1a", Reserved: []Reserved{{Partition: reserved}}})
		got, ok := p.Partition(key, partitions)
		if ok && (got < 0 || got >= partitions || got == reserved) {
			t.Fatalf("%q over %d with %d reserved = %d", key, partitions, reserved, got)
		}
	})
}

func TestReservedProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(Names()).Draw(t, "partitioner")
		partitions := rapid.Int32Range(1, 20).Draw(t, "partitions")
		taken := rapid.SliceOfDistinct(rapid.Int32Range(0, 24), rapid.ID[int32]).Draw(t, "reserved")
		opts := Options{Partitioner: name}
		for _, r := range taken {
			opts.Reserved = append(opts.Reserved, Reserved{Partition: r, Symbols: [][]byte{fmt.Appendf(nil, "own-%d", r)}})
		}
		p, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range taken {
			got, ok := p.Partition(fmt.Appendf(nil, "own-%d", r), partitions)
			if ok != (r < partitions) || ok && got != r {
				t.Fatalf("reserved key of partition %d among %d: %d, %t", r, partitions, got, ok)
			}
		}
		// The rule in its plainest form: the list of the others, indexed by
		// hash modulo its length.
		var rest []int32
		for i := range partitions {
			if !slices.Contains(taken, i) {
				rest = append(rest, i)
			}
		}
		key := rapid.SliceOfN(rapid.Byte(), 1, 12).Draw(t, "key")
		if _, ok := p.symbols[string(key)]; ok {
			return
		}
		got, ok := p.Partition(key, partitions)
		if len(rest) == 0 {
			if ok {
				t.Fatalf("%q placed in %d although all are reserved", key, got)
			}
			return
		}
		hash, err := ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		want := rest[hash.Partition(key, int32(len(rest)))]
		if !ok || got != want {
			t.Fatalf("%q among %d without %v = %d, %t; want %d", key, partitions, taken, got, ok, want)
		}
	})
}

func TestCustomIsNeverJudged(t *testing.T) {
	p := placer(t, Options{Partitioner: Custom, Reserved: []Reserved{{Partition: 1, Symbols: [][]byte{[]byte("AAPL")}}}})
	if _, ok := p.Partition([]byte("AAPL"), 12); ok {
		t.Error("a custom placement was claimed to be known")
	}
	if !p.WellPlaced([]byte("AAPL"), 7, 12, nil) {
		t.Error("a custom placement was judged")
	}
}

func TestWellPlaced(t *testing.T) {
	p := placer(t, Options{Partitioner: "murmur2"})
	now, _ := p.Partition([]byte("AAPL"), 12)
	before, _ := p.Partition([]byte("AAPL"), 5)
	first, _ := p.Partition([]byte("AAPL"), 3)
	if now == before || now == first || before == first {
		t.Fatal("the example shows nothing: counts agree")
	}
	for _, tc := range []struct {
		name      string
		key       []byte
		partition int32
		former    []int32
		want      bool
	}{
		{"where it belongs", []byte("AAPL"), now, nil, true},
		{"elsewhere", []byte("AAPL"), before, nil, false},
		{"where it belonged before the growth", []byte("AAPL"), before, []int32{5}, true},
		{"where it belonged before the growth before", []byte("AAPL"), first, []int32{5, 3}, true},
		{"likewise, and nobody remembers", []byte("AAPL"), first, []int32{5}, false},
		{"neither", []byte("AAPL"), 11, []int32{5, 3}, false},
		{"null key", nil, 11, nil, true},
		{"empty key", []byte{}, 11, nil, true},
	} {
		if got := p.WellPlaced(tc.key, tc.partition, 12, tc.former); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// A premium partition that came with a growth: what was written before lies
// where it was hashed to then.
func TestReservedPartitionThatIsNew(t *testing.T) {
	premium := []byte("AAPL")
	p := placer(t, Options{Partitioner: "murmur2", Reserved: []Reserved{{Partition: 6, Symbols: [][]byte{premium}}}})
	plain := placer(t, Options{Partitioner: "murmur2"})
	before, _ := plain.Partition(premium, 6)
	if got, ok := p.Former(premium, 6); !ok || got != before {
		t.Errorf("before the growth it was in %d, %t, want %d", got, ok, before)
	}
	for partition := range int32(7) {
		want := partition == before || partition == 6
		if got := p.WellPlaced(premium, partition, 7, []int32{6}); got != want {
			t.Errorf("in partition %d: %t, want %t", partition, got, want)
		}
	}
	// One that was there before, and the others.
	p = placer(t, Options{Partitioner: "murmur2", Reserved: []Reserved{{Partition: 2, Symbols: [][]byte{premium}}}})
	if got, ok := p.Former(premium, 6); !ok || got != 2 {
		t.Errorf("it was in %d, %t", got, ok)
	}
	other := []byte("MSFT")
	want, _ := p.Partition(other, 6)
	if got, ok := p.Former(other, 6); !ok || got != want {
		t.Errorf("%q was in %d, %t, want %d", other, got, ok, want)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, opts := range map[string]Options{
		"unknown partitioner": {Partitioner: "md5"},
		"no partitioner":      {},
		"negative partition":  {Partitioner: "crc32", Reserved: []Reserved{{Partition: -1}}},
		"empty symbol":        {Partitioner: "crc32", Reserved: []Reserved{{Symbols: [][]byte{{}}}}},
		"symbol twice": {Partitioner: "crc32", Reserved: []Reserved{
			{Partition: 0, Symbols: [][]byte{[]byte("a")}}, {Partition: 1, Symbols: [][]byte{[]byte("a")}},
		}},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPartitionDoesNotAllocate(t *testing.T) {
	key, former := []byte("BBCA"), []int32{6, 5}
	for _, name := range Names() {
		p := placer(t, Options{Partitioner: name, Reserved: []Reserved{{Partition: 2, Symbols: [][]byte{[]byte("AAPL")}}}})
		if n := testing.AllocsPerRun(100, func() { p.WellPlaced(key, 0, 12, former) }); n != 0 {
			t.Errorf("%s: %v allocations a record", name, n)
		}
	}
}

func BenchmarkPartition(b *testing.B) {
	key := []byte("BBCA")
	for _, name := range Names() {
		p := placer(b, Options{Partitioner: name, Reserved: []Reserved{{Partition: 2, Symbols: [][]byte{[]byte("AAPL")}}}})
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Partition(key, 12)
			}
		})
	}
}
