package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/embedded"
	"joiner/internal/placement"
)

const (
	marketTopic = "market-updates"
	noteTopic   = "notifications"
	alertTopic  = "enriched-alerts"
)

func start(t *testing.T, topics ...string) *embedded.Cluster {
	t.Helper()
	opts := embedded.Options{Brokers: 2}
	for _, topic := range topics {
		opts.Topics = append(opts.Topics, embedded.Topic{Name: topic, Partitions: 3})
	}
	c, err := embedded.Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func options(t *testing.T, c *embedded.Cluster) Options {
	t.Helper()
	placer, err := placement.New(placement.Options{Topic: marketTopic, Partitioner: "murmur2"})
	if err != nil {
		t.Fatal(err)
	}
	opts := DefaultOptions()
	opts.Brokers = c.Addrs()
	opts.MarketTopic, opts.NotificationTopic, opts.AlertTopic = marketTopic, noteTopic, alertTopic
	opts.MarketPlacer, opts.NotificationPlacer = placer, placer
	opts.Rate, opts.Duration, opts.Count = 0, 0, 300
	opts.TicksPerNotification, opts.Symbols = 3, 20
	return opts
}

// copier stands in for joiner: it copies every notification to the alert topic
// under the same partition number with the header joiner adds.
type copier struct {
	t        *testing.T
	producer sarama.SyncProducer
	copies   func(n int64) int // of the nth notification
	n        atomic.Int64
	running  sync.WaitGroup
	claims   []sarama.PartitionConsumer
}

func startCopier(t *testing.T, c *embedded.Cluster, copies func(int64) int) *copier {
	t.Helper()
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	cp := &copier{t: t, copies: copies}
	var err error
	if cp.producer, err = sarama.NewSyncProducer(c.Addrs(), config); err != nil {
		t.Fatal(err)
	}
	// A client of its own: on a shared one each acknowledgement would wait for
	// a fetch that waits for records.
	consumer, err := sarama.NewConsumer(c.Addrs(), config)
	if err != nil {
		t.Fatal(err)
	}
	for p := range int32(3) {
		pc, err := consumer.ConsumePartition(noteTopic, p, sarama.OffsetOldest)
		if err != nil {
			t.Fatal(err)
		}
		cp.claims = append(cp.claims, pc)
		cp.running.Go(func() { cp.copy(pc) })
	}
	t.Cleanup(func() {
		for _, pc := range cp.claims {
			pc.AsyncClose()
		}
		cp.running.Wait()
		_ = consumer.Close()
		_ = cp.producer.Close()
	})
	return cp
}

func (cp *copier) copy(pc sarama.PartitionConsumer) {
	for m := range pc.Messages() {
		for range cp.copies(cp.n.Add(1)) {
			cp.send(m.Partition, m.Value, fmt.Sprintf("%s/%d/%d", m.Topic, m.Partition, m.Offset))
		}
	}
}

func (cp *copier) send(partition int32, value []byte, source string) {
	_, _, err := cp.producer.SendMessage(&sarama.ProducerMessage{
		Topic: alertTopic, Partition: partition, Value: sarama.ByteEncoder(value),
		Headers: []sarama.RecordHeader{{Key: []byte(sourceHeader), Value: []byte(source)}},
	})
	if err != nil {
		cp.t.Error(err)
	}
}

func once(int64) int { return 1 }

func TestEveryAlertIsMatched(t *testing.T) {
	c := start(t, marketTopic, noteTopic, alertTopic)
	cp := startCopier(t, c, once)
	cp.send(0, []byte("of an earlier run"), noteTopic+"/0/0")
	opts := options(t, c)
	report, err := Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if report.Ticks != 900 || report.Notifications != 300 || report.Alerts != 300 || report.Missing != 0 || report.Duplicates != 0 {
		t.Fatalf("%+v", report)
	}
	if report.Seconds <= 0 || report.Rate <= 0 || report.AlertsRate <= 0 || report.Latency.Max < report.Latency.P50 || report.Latency.P50 <= 0 {
		t.Fatalf("%+v", report)
	}
	placed(t, c, opts)
}

// placed checks that both inputs hold each key where its placer wants it.
func placed(t *testing.T, c *embedded.Cluster, opts Options) {
	t.Helper()
	consumer, err := sarama.NewConsumer(c.Addrs(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = consumer.Close() }()
	seen := 0
	for p := range int32(3) {
		pc, err := consumer.ConsumePartition(marketTopic, p, sarama.OffsetOldest)
		if err != nil {
			t.Fatal(err)
		}
		for end := int64(1); end > 0; {
			m := <-pc.Messages()
			seen++
			if want, ok := opts.MarketPlacer.Partition(m.Key, 3); !ok || want != p {
				t.Errorf("%s lies in %d, want %d", m.Key, p, want)
			}
			end = pc.HighWaterMarkOffset() - m.Offset - 1
		}
		_ = pc.Close()
	}
	if seen != 900 {
		t.Errorf("%d ticks read back, want 900", seen)
	}
}

func TestMissingAndDoubledAlertsAreCounted(t *testing.T) {
	// A machine that stands still for longer than the wait makes alerts that are
	// on their way missing ones.
	for wait := 5 * time.Second; ; wait *= 2 {
		report := runWithFaults(t, wait)
		if report.Missing > 30 && wait < time.Minute {
			t.Logf("a wait of %v was too short: %+v", wait, report)
			continue
		}
		if report.Notifications != 300 || report.Alerts != 270 || report.Missing != 30 || report.Duplicates != 30 {
			t.Fatalf("%+v", report)
		}
		return
	}
}

// runWithFaults has one alert of ten lost, and one doubled.
func runWithFaults(t *testing.T, wait time.Duration) Report {
	t.Helper()
	c := start(t, marketTopic, noteTopic, alertTopic)
	startCopier(t, c, func(n int64) int {
		switch n % 10 {
		case 0:
			return 0
		case 1:
			return 2
		default:
			return 1
		}
	})
	opts := options(t, c)
	opts.Wait = wait
	report, err := Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestPacedRunEndsByItsDuration(t *testing.T) {
	c := start(t, marketTopic, noteTopic, alertTopic)
	startCopier(t, c, once)
	opts := options(t, c)
	opts.Rate, opts.Count, opts.Duration = 50, 0, time.Second
	var progress bytes.Buffer
	opts.Progress, opts.Terminal = &progress, true
	report, err := Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	// A busy machine may cut a run short, never lengthen it.
	if report.Notifications < 1 || report.Notifications > 50 || report.Missing != 0 {
		t.Fatalf("%+v", report)
	}
	if got := progress.String(); !strings.HasSuffix(got, "\n") || !strings.Contains(got, fmt.Sprintf("%d notifications", report.Notifications)) {
		t.Fatalf("progress %q", got)
	}
}

func TestInterruptedRunReports(t *testing.T) {
	c := start(t, marketTopic, noteTopic, alertTopic)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	startCopier(t, c, func(n int64) int {
		if n == 50 {
			interrupt()
		}
		return 1
	})
	opts := options(t, c)
	opts.Rate, opts.Count = 200, 0
	report, err := Run(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	if report.Notifications < 50 || report.Alerts+report.Missing != report.Notifications {
		t.Fatalf("%+v", report)
	}
}

func TestMissingTopicIsNamed(t *testing.T) {
	topics := []string{marketTopic, noteTopic, alertTopic}
	for i, missing := range topics {
		t.Run(missing, func(t *testing.T) {
			rest := append(append([]string{}, topics[:i]...), topics[i+1:]...)
			_, err := Run(t.Context(), options(t, start(t, rest...)))
			if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) || !strings.Contains(err.Error(), "topic "+missing) {
				t.Fatalf("%v", err)
			}
		})
	}
}

func TestRefusedRecordStopsTheRun(t *testing.T) {
	c := start(t, marketTopic, noteTopic, alertTopic)
	opts := options(t, c)
	opts.ValueBytes = 3 << 20 // above the topic's max.message.bytes
	_, err := Run(t.Context(), opts)
	if !errors.Is(err, sarama.ErrMessageSizeTooLarge) {
		t.Fatalf("%v", err)
	}
	// Ticks and notifications leave side by side: either topic's broker may be
	// the first to refuse.
	if s := err.Error(); !strings.Contains(s, "produce to "+marketTopic) && !strings.Contains(s, "produce to "+noteTopic) {
		t.Fatalf("%v", err)
	}
}

func TestBrokersOutOfReach(t *testing.T) {
	c := start(t)
	opts := options(t, c)
	c.Close()
	_, err := Run(t.Context(), opts)
	if !errors.Is(err, sarama.ErrOutOfBrokers) || !strings.Contains(err.Error(), opts.Brokers[0]) {
		t.Fatalf("%v", err)
	}
}

func TestUnknownPlacementIsRefused(t *testing.T) {
	c := start(t, marketTopic, noteTopic, alertTopic)
	opts := options(t, c)
	custom, err := placement.New(placement.Options{Topic: noteTopic, Partitioner: placement.Custom})
	if err != nil {
		t.Fatal(err)
	}
	opts.NotificationPlacer = custom
	opts.Wait = 0
	if _, err = Run(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "--partitioner") || !strings.Contains(err.Error(), noteTopic) {
		t.Fatalf("%v", err)
	}
}

func TestLeadersMayMove(t *testing.T) {
	c := start(t, marketTopic, noteTopic, alertTopic)
	startCopier(t, c, once)
	opts := options(t, c)
	opts.Rate, opts.Count = 200, 200
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for i := range int32(6) {
			time.Sleep(100 * time.Millisecond)
			for _, topic := range []string{marketTopic, noteTopic, alertTopic} {
				if err := c.Fake().MoveTopicPartition(topic, i%3, (i+1)%2); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	report, err := Run(t.Context(), opts)
	<-moved
	if err != nil {
		t.Fatal(err)
	}
	if report.Ticks != 600 || report.Notifications != 200 || report.Alerts != 200 {
		t.Fatalf("%+v", report)
	}
}
