package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"joiner/internal/embedded"
	"joiner/internal/enrich"
	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/test/cluster"
)

// embeddedStage is a stage on an embedded broker, which tells less of its
// settings than a real one.
func embeddedStage(t *testing.T, knows *kversion.Versions) *stage {
	t.Helper()
	fake, err := embedded.Start(embedded.Options{Brokers: 3, Knows: knows})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return newStage(t, &cluster.Cluster{Brokers: fake.Addrs()})
}

// TestSampled looks at what comes from records and the group, on an embedded
// broker: a cheap version of TestKafkaCheck. Brokers that lack what the service
// does without are looked at all the same.
func TestSampled(t *testing.T) {
	t.Run("newest", func(t *testing.T) { testSampled(t, nil, "") })
	t.Run("without DescribeCluster", func(t *testing.T) { testSampled(t, withoutDescribeCluster(), "") })
	t.Run("2.5", func(t *testing.T) { testSampled(t, kversion.V2_5_0(), "topics have no ids") })
}

func withoutDescribeCluster() *kversion.Versions {
	v := kversion.V3_6_0()
	v.SetMaxKeyVersion(60, -1)
	return v
}

func testSampled(t *testing.T, knows *kversion.Versions, lacks string) {
	s := embeddedStage(t, knows)
	names := topics{s.market(6, nil), s.notes(6, nil), s.output("alerts", 6, nil), s.output("dead", 6, nil)}
	s.write(batch{topic: names.market, partitioner: "fnv1a", n: 6, records: 600, symbols: 60, value: func(i int) string {
		if i%100 == 0 {
			return `{"price": "about 9150"}`
		}
		return `{"price": 9150.25}`
	}, at: func(i int) time.Time { return time.Now().Add(-time.Duration(i) * time.Second) }})
	s.write(batch{
		topic: names.notes, partitioner: "crc32", n: 6, records: 600, symbols: 60, hot: 3,
		at: func(int) time.Time { return time.Now().Add(time.Minute) },
	})
	o := s.options(names)
	s.joins(o.Kafka.GroupID, future{sarama.NewBalanceStrategyRange()}, names.market, names.notes)
	who := "member " + member(s.members(o, 1)[0])
	report, err := Run(s.ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	assertShape(t, report.Findings)
	judged := []string{
		"bootstrap", "brokers", "broker_apis", "rights", "input_topics", "output_topics", "partition_counts", "market_order", "committed_offsets",
		"records", "key_placement", "hot_keys", "clock_skew", "group_protocol", "group_members", "group_release", "replicas",
	}
	want := []wantFinding{
		{"market_order", Warning, names.market, "534 of 600 sampled ticks are older", "in the order"},
		{"records", Warning, names.market, "6 of 600 sampled records cannot be joined: invalid_price", "market.price"},
		{"key_placement", Warning, names.market, "fnv1a explains 100% of the keys", "topics.market_updates_partitioner: fnv1a"},
		{"key_placement", Warning, names.notes, "crc32 explains 100% of the keys", "topics.notifications_partitioner: crc32"},
		{"hot_keys", Warning, names.notes, `key "GOTO" is about 3`, "topics.reserved"},
		{"clock_skew", Warning, names.notes, "ahead of this machine's clock", "NTP"},
		{"group_release", Warning, who, "it writes format 9", "finish the upgrade"},
	}
	if lacks != "" {
		for _, v := range s.visits(o) {
			want = append(want, wantFinding{"broker_apis", Warning, broker(v), lacks, "2.8 or newer"})
		}
	}
	assertExactly(t, slices.DeleteFunc(report.Findings, func(f Finding) bool { return !slices.Contains(judged, f.ID) }), want)
	if report.Failed > 0 {
		t.Errorf("%d failures", report.Failed)
	}
}

// Nobody's producers are to blame for keys of before a growth, in a group that
// has not seen it.
func TestGrownTopic(t *testing.T) {
	s := embeddedStage(t, nil)
	names := topics{s.market(6, nil), s.notes(6, nil), s.output("alerts", 6, nil), s.output("dead", 6, nil)}
	s.write(batch{topic: names.market, partitioner: "murmur2", n: 5, records: 600, symbols: 60})
	report, err := Run(s.ctx, s.options(names))
	if err != nil {
		t.Fatal(err)
	}
	assertExactly(t, slices.DeleteFunc(report.Findings, func(f Finding) bool { return f.ID != "key_placement" }), []wantFinding{
		{"key_placement", Warning, names.market, "murmur2 over 5 partitions explains 100% of those", "lies right from its next record"},
	})
}

// Prices are looked for where their symbols belong: ticks that lie by another key
// are found out, though every key is where murmur2 puts it.
func TestSymbolsThatAreNotKeys(t *testing.T) {
	s := embeddedStage(t, nil)
	names := topics{s.market(6, nil), s.notes(6, nil), s.output("alerts", 6, nil), s.output("dead", 6, nil)}
	s.write(batch{topic: names.market, partitioner: "murmur2", n: 6, records: 600, symbols: 60, value: func(i int) string {
		if i%100 == 0 {
			return `{"sym": "S", "price": "about 9150"}` // of which no price is looked for
		}
		return fmt.Sprintf(`{"sym": "S%d", "price": 9150.25}`, i%60)
	}})
	s.write(batch{topic: names.notes, partitioner: "murmur2", n: 6, records: 600, symbols: 60})
	o := s.options(names)
	market, err := enrich.NewMarketDecoder(enrich.MarketOptions{Symbol: "sym", Price: "price", EventTime: "record"})
	if err != nil {
		t.Fatal(err)
	}
	o.Inputs[record.Market].BySymbol = !market.ByKey()
	o.Inputs[record.Market].Decode = func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) {
		tick, bad := market.Decode(r)
		return tick.Symbol, tick.EventTime, bad
	}
	placed := func(o Options) []Finding {
		report, err := Run(s.ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		assertShape(t, report.Findings)
		return slices.DeleteFunc(report.Findings, func(f Finding) bool { return f.ID != "key_placement" })
	}
	assertExactly(t, placed(o), []wantFinding{
		{"key_placement", Warning, names.market, "of 594 sampled records lie where murmur2 would not put their symbols", "topics.market_updates_partitioner: custom"},
	})
	o.Inputs[record.Market].Partitioner = placement.Custom
	if o.Inputs[record.Market].Placer, err = placement.New(placement.Options{Topic: names.market, Partitioner: placement.Custom}); err != nil {
		t.Fatal(err)
	}
	assertExactly(t, placed(o), nil)
}

// A tail is sampled within its bounds, at its newest end.
func TestSampleIsBounded(t *testing.T) {
	s := embeddedStage(t, nil)
	names := topics{s.market(1, nil), s.notes(1, nil), s.output("alerts", 1, nil), s.output("dead", 1, nil)}
	const written = sampleRecords + 2000
	s.write(batch{topic: names.notes, partitioner: "murmur2", n: 1, records: written, symbols: 300})
	o := s.options(names).withDefaults()
	f, err := gather(s.ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	p := f.Inputs[1].Partitions[0]
	if p.Err != nil || p.End != written || p.Sample.Records != sampleRecords {
		t.Errorf("%d records sampled of %d, err %v", p.Sample.Records, p.End, p.Err)
	}
}

// Of many partitions little is asked for at once, and of a record's timestamp a
// batch.
func TestManyPartitionsAreSampledInSmallFetches(t *testing.T) {
	const n = 60
	fake, err := embedded.Start(embedded.Options{Brokers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	var mu sync.Mutex
	asked := make(map[int32]int)
	fake.Fake().ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		fake.Fake().KeepControl()
		mu.Lock()
		defer mu.Unlock()
		for _, topic := range r.(*kmsg.FetchRequest).Topics {
			for _, p := range topic.Partitions {
				asked[p.PartitionMaxBytes]++
			}
		}
		return nil, nil, false
	})
	s := newStage(t, &cluster.Cluster{Brokers: fake.Addrs()})
	names := topics{s.market(n, nil), s.notes(n, nil), s.output("alerts", n, nil), s.output("dead", n, nil)}
	s.write(batch{topic: names.notes, partitioner: "murmur2", n: n, records: 300 * n, symbols: 40 * n})
	o := s.options(names).withDefaults()
	f, err := gather(s.ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	sampled := 0
	for _, p := range f.Inputs[record.Notification].Partitions {
		if p.Err != nil {
			t.Error(p.Err)
		}
		sampled += p.Sample.Records
	}
	if sampled != 300*n {
		t.Errorf("%d records sampled", sampled)
	}
	mu.Lock()
	defer mu.Unlock()
	share := budgetOf(2*n) / 4
	if len(asked) != 2 || asked[leastFetch] == 0 || asked[int32(share)] == 0 || share >= mostFetch {
		t.Errorf("asked for %v, want %d and %d", asked, leastFetch, share)
	}
}

// A server that takes connections and says nothing must not hold the check up:
// the test ends, and says that nothing could be looked at.
func TestSilentServer(t *testing.T) {
	s := &stage{Cluster: &cluster.Cluster{Brokers: []string{listener(t)}}, t: t}
	o := s.options(topics{"m", "n", "a", "d"})
	o.Timeout = time.Second
	report, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	assertShape(t, report.Findings)
	if report.Failed != 1 || report.Findings[1].ID != "bootstrap" || report.Findings[1].Status != Failure {
		t.Errorf("got %+v", report.Findings[:3])
	}
}

func TestInterrupted(t *testing.T) {
	s := &stage{Cluster: &cluster.Cluster{Brokers: []string{"127.0.0.1:1"}}, t: t}
	o := s.options(topics{"m", "n", "a", "d"})
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("somebody has lost patience")
	cancel(why)
	if _, err := Run(ctx, o); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestRefuses(t *testing.T) {
	s := &stage{Cluster: &cluster.Cluster{Brokers: []string{"127.0.0.1:1"}}, t: t}
	for name, change := range map[string]func(*Options){
		"no time":           func(o *Options) { o.Timeout = time.Millisecond },
		"negative replicas": func(o *Options) { o.Replicas = -1 },
		"no brokers":        func(o *Options) { o.Kafka.Brokers = nil },
	} {
		o := s.options(topics{"m", "n", "a", "d"})
		change(&o)
		if _, err := Run(context.Background(), o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// listener takes connections and says nothing.
func listener(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// A group of the newer protocol looks to the older request as if it were not
// there.
func TestNewerGroup(t *testing.T) {
	s := embeddedStage(t, nil)
	names := topics{s.market(2, nil), s.notes(2, nil), s.output("alerts", 2, nil), s.output("dead", 2, nil)}
	o := s.options(names)
	s.joinsNewer(o.Kafka.GroupID, names.market, names.notes)
	report, err := Run(s.ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	assertExactly(t, slices.DeleteFunc(report.Findings, func(f Finding) bool { return f.ID != "group_protocol" && f.ID != "group_members" }), []wantFinding{
		{"group_protocol", Failure, "group " + o.Kafka.GroupID, "KIP-848", "group.id"},
		{"group_members", Warning, "group " + o.Kafka.GroupID, "1 member of these topics, none of them a joiner", "group_protocol"},
	})
}
