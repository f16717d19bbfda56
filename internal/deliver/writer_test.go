package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"joiner/internal/record"
)

func TestOutputsArriveAsTheyWere(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "alerts"))
			client := newClient(t, c.ListenAddrs(), producerConfig())
			w := runWriter(t, Options{Client: client, Compression: codec})
			l := newLedger()
			base := record.MillisOf(time.Now())
			w.Send([]*record.Output{
				{Topic: "alerts", Partition: 1, Timestamp: base, Key: []byte("BBCA"), Value: []byte(`{"a":1}`), Owner: l,
					Headers: []record.Header{{Key: []byte("h"), Value: []byte("v")}, {Key: []byte("null"), Value: nil}, {Key: []byte(""), Value: []byte("")}}},
				{Topic: "alerts", Partition: 1, Timestamp: base - 5000, Key: nil, Value: nil, Owner: l},
				{Topic: "alerts", Partition: 1, Timestamp: 0, Key: []byte{}, Value: []byte{}, Owner: l},
				{Topic: "alerts", Partition: 1, Timestamp: base + 7, Key: []byte("k"), Value: []byte("last"), Owner: l},
			})
			for _, f := range l.wait(t, 4) {
				if f.err != nil {
					t.Errorf("settled with %v", f.err)
				}
			}
			got := readAll(t, client, "alerts", 1)
			if len(got) != 4 {
				t.Fatalf("%d records", len(got))
			}
			wantTimes := []record.Millis{base, base - 5000, 0, base + 7}
			for i, m := range got {
				if at := record.MillisOf(m.Timestamp); at != wantTimes[i] {
					t.Errorf("record %d: timestamp %d, want %d", i, at, wantTimes[i])
				}
			}
			if m := got[0]; string(m.Key) != "BBCA" || string(m.Value) != `{"a":1}` || len(m.Headers) != 3 ||
				string(m.Headers[0].Key) != "h" || string(m.Headers[0].Value) != "v" || m.Headers[1].Value != nil || m.Headers[2].Value == nil {
				t.Errorf("first record: %+v", m)
			}
			if got[1].Key != nil || got[1].Value != nil {
				t.Errorf("null became %q %q", got[1].Key, got[1].Value)
			}
			if got[2].Key == nil || got[2].Value == nil {
				t.Error("empty became null")
			}
		})
	}
}

// sizes of batches as the broker counts them are what sizeOf promises.
func TestSizeIsWhatTheBrokerCounts(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	var mu sync.Mutex
	var sizes []int
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, len(r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records))
		return nil, nil, false
	})
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig())})
	l := newLedger()
	var want []int
	for i, n := range []int{0, 1, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 8100, 8150, 8191, 8192, 100_000} {
		o := &record.Output{Topic: "alerts", Timestamp: 1, Key: []byte("k"), Value: make([]byte, n), Owner: l,
			Headers: []record.Header{{Key: []byte("a"), Value: make([]byte, i)}}}
		want = append(want, batchOverhead+sizeOf(o))
		w.Send([]*record.Output{o})
		l.wait(t, i+1)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, sizes); diff != "" {
		t.Error(diff)
	}
}

func TestLeaderMovesUnderLoad(t *testing.T) {
	const partitions, total = 6, 50_000
	c := newCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(partitions, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	w := runWriter(t, Options{Client: client})

	stop := make(chan struct{})
	var movers sync.WaitGroup
	movers.Add(1)
	go func() {
		defer movers.Done()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
			c.ShufflePartitionLeaders()
			if err := c.MoveTopicPartition("alerts", int32(i%partitions), int32(i%3)); err != nil {
				t.Error(err)
				return
			}
		}
	}()

	ledgers := make([]*ledger, partitions)
	var senders sync.WaitGroup
	for p := range ledgers {
		ledgers[p] = newLedger()
		senders.Add(1)
		go func() {
			defer senders.Done()
			each := total / partitions
			for from := 0; from < each; from += 100 {
				w.Send(outputs(ledgers[p], "alerts", int32(p), from, min(from+100, each)))
				// Keeps a bounded number under way, so that the run is long
				// enough to meet many moves.
				ledgers[p].wait(t, max(0, from-2000))
			}
		}()
	}
	senders.Wait()
	for p, l := range ledgers {
		told := l.wait(t, total/partitions)
		if len(told) != total/partitions {
			t.Errorf("partition %d: %d settled", p, len(told))
		}
		for i, f := range told {
			if f.err != nil || f.seq() != int64(i) {
				t.Fatalf("partition %d: %dth settled is %d, %v", p, i, f.seq(), f.err)
			}
		}
	}
	close(stop)
	movers.Wait()
	eventually(t, "metadata without moves", func() bool { return client.RefreshMetadata("alerts") == nil })
	for p := range ledgers {
		if diff := cmp.Diff(numbers(0, total/partitions), values(readAll(t, client, "alerts", int32(p)))); diff != "" {
			t.Errorf("partition %d: %s", p, diff)
		}
	}
}

// Every error that may pass, and every way to lose an answer, ends in the same
// bytes once.
func TestPassingFailures(t *testing.T) {
	for _, e := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition,
		kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut,
		kerr.KafkaStorageError, kerr.UnknownServerError, kerr.CorruptMessage,
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
		kerr.TopicAuthorizationFailed, kerr.PolicyViolation,
	} {
		t.Run(e.Message, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(2, "alerts"))
			client := newClient(t, c.ListenAddrs(), producerConfig())
			var mu sync.Mutex
			counts := map[string]int{}
			w := runWriter(t, Options{Client: client, Metrics: Metrics{ProduceError: func(topic, name string) {
				mu.Lock()
				defer mu.Unlock()
				counts[topic+" "+name]++
			}}})
			l := newLedger()
			w.Send(outputs(l, "alerts", 0, 0, 10))
			l.wait(t, 10)
			h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Partitions: []int32{0}, Err: e, Count: 2})
			defer h.Remove()
			other := newLedger()
			w.Send(outputs(l, "alerts", 0, 10, 20))
			w.Send(outputs(other, "alerts", 1, 0, 10))
			other.wait(t, 10)
			l.wait(t, 20)
			w.Send(outputs(l, "alerts", 0, 20, 30))
			for i, f := range l.wait(t, 30) {
				if f.err != nil || f.seq() != int64(i) {
					t.Errorf("%dth settled is %d, %v", i, f.seq(), f.err)
				}
			}
			if diff := cmp.Diff(numbers(0, 30), values(readAll(t, client, "alerts", 0))); diff != "" {
				t.Error(diff)
			}
			if faults := w.Faults(); len(faults) != 0 {
				t.Errorf("faults remain: %v", faults)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(map[string]int{"alerts " + kafkaName(e): 2}, counts); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// kafkaName is the name in Kafka 4.
func kafkaName(e *kerr.Error) string {
	if e == kerr.NotLeaderForPartition {
		return "NOT_LEADER_OR_FOLLOWER"
	}
	return e.Message
}

// A connection that breaks after the broker wrote leaves us without an answer.
func TestLostAnswers(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	proxy := newProxy(t)
	conf := producerConfig()
	conf.Net.Proxy.Enable = true
	conf.Net.Proxy.Dialer = proxy
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), conf)})
	l := newLedger()
	for i := 0; i < 20; i++ {
		if i%2 == 1 {
			proxy.cutAnswers(1)
		}
		w.Send(outputs(l, "alerts", 0, i*10, i*10+10))
		l.wait(t, i*10+10)
	}
	if proxy.cuts() == 0 {
		t.Fatal("no answer was cut off")
	}
	if diff := cmp.Diff(numbers(0, 200), values(readAll(t, client, "alerts", 0))); diff != "" {
		t.Error(diff)
	}
}

// With an answer lost and the sequence lost as well, nothing is lost and the
// order is kept, at the price of copies.
func TestRestartAfterAnUnknownOutcome(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	w := runWriter(t, Options{Client: client})
	l := newLedger()
	// Both are answered as errors; the first is appended all the same.
	c.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.RequestTimedOut},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.OutOfOrderSequenceNumber},
	)
	w.Send(outputs(l, "alerts", 0, 0, 5))
	l.wait(t, 5)
	w.Send(outputs(l, "alerts", 0, 5, 10))
	l.wait(t, 10)
	want := append(numbers(0, 5), numbers(0, 10)...)
	if diff := cmp.Diff(want, values(readAll(t, client, "alerts", 0))); diff != "" {
		t.Error(diff)
	}
}

// refuser makes a cluster refuse the batches that hold a record whose value
// contains "bad", before they touch the sequence, as Apache Kafka does. With
// tell, the answer names the records (KIP-467).
func refuser(c *kfake.Cluster, e *kerr.Error, tell bool) {
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		request := r.(*kmsg.ProduceRequest)
		if len(request.Topics) != 1 || len(request.Topics[0].Partitions) != 1 {
			return nil, nil, false
		}
		bad := badIn(request.Topics[0].Partitions[0].Records)
		if len(bad) == 0 {
			return nil, nil, false
		}
		if !tell {
			bad = nil
		}
		return refusalOf(request, e, bad...), nil, true
	})
}

// refusalOf answers a request of one partition with an error, for the records
// that bad names.
func refusalOf(request *kmsg.ProduceRequest, e *kerr.Error, bad ...int) kmsg.Response {
	answer := request.ResponseKind().(*kmsg.ProduceResponse)
	p := kmsg.NewProduceResponseTopicPartition()
	p.Partition = request.Topics[0].Partitions[0].Partition
	p.ErrorCode = e.Code
	for _, i := range bad {
		re := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		re.RelativeOffset = int32(i)
		p.ErrorRecords = append(p.ErrorRecords, re)
	}
	topic := kmsg.NewProduceResponseTopic()
	topic.Topic = request.Topics[0].Topic
	topic.Partitions = append(topic.Partitions, p)
	answer.Topics = append(answer.Topics, topic)
	return answer
}

// badIn lists the indices of an uncompressed batch's bad records.
func badIn(batch []byte) []int {
	var b kmsg.RecordBatch
	if err := b.ReadFrom(batch); err != nil {
		return nil
	}
	var bad []int
	rest := b.Records
	for i := 0; len(rest) > 0; i++ {
		var r kmsg.Record
		n, size := varint(rest)
		if err := r.ReadFrom(rest[:size+n]); err != nil {
			return nil
		}
		if strings.Contains(string(r.Value), "bad") {
			bad = append(bad, i)
		}
		rest = rest[size+n:]
	}
	return bad
}

func varint(b []byte) (value, size int) {
	var u uint64
	for i, c := range b {
		u |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int(u>>1) ^ -int(u&1), i + 1
		}
	}
	return 0, 0
}

func TestRefusedRecordsDoNotFailTheOthers(t *testing.T) {
	kinds := map[*kerr.Error]record.Kind{
		kerr.MessageTooLarge:    record.TooLarge,
		kerr.RecordListTooLarge: record.TooLarge,
		kerr.InvalidRecord:      record.Rejected,
		kerr.InvalidTimestamp:   record.InvalidTimestamp,
	}
	for e, kind := range kinds {
		for _, tell := range []bool{true, false} {
			for _, where := range [][]int{{0}, {49}, {99}, {0, 1, 2}, {3, 50, 51, 98}} {
				t.Run(fmt.Sprintf("%s/told=%v/%v", e.Message, tell, where), func(t *testing.T) {
					t.Parallel()
					c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
					client := newClient(t, c.ListenAddrs(), producerConfig())
					refuser(c, e, tell)
					w := runWriter(t, Options{Client: client})
					l := newLedger()
					send := outputs(l, "alerts", 0, 0, 100)
					var want []string
					for i, o := range send {
						if slices.Contains(where, i) {
							o.Value = []byte("bad")
						} else {
							want = append(want, string(o.Value))
						}
					}
					w.Send(send)
					l.wait(t, 100)
					w.Send(outputs(l, "alerts", 0, 100, 110))
					want = append(want, numbers(100, 110)...)
					var refusals []int
					for _, f := range l.wait(t, 110) {
						if f.err == nil {
							continue
						}
						var r *record.Refused
						if !errors.As(f.err, &r) || r.Kind != kind {
							t.Errorf("output %d: %v", f.seq(), f.err)
						}
						refusals = append(refusals, int(f.seq()))
					}
					if diff := cmp.Diff(where, refusals); diff != "" {
						t.Error(diff)
					}
					if diff := cmp.Diff(want, values(readAll(t, client, "alerts", 0))); diff != "" {
						t.Error(diff)
					}
				})
			}
		}
	}
}

// A batch that may be in the log and is then refused must not lend its
// sequence to others: the broker would take them for it.
func TestRefusedAfterAnUnknownOutcome(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	w := runWriter(t, Options{Client: client})
	l := newLedger()
	// The first attempt is appended and answered with a timeout; the second is
	// refused for its first record, which leaves as many as there were.
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.RequestTimedOut})
	attempts := 0
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		attempts++
		if attempts != 2 {
			return nil, nil, false
		}
		return refusalOf(r.(*kmsg.ProduceRequest), kerr.InvalidTimestamp, 0), nil, true
	})
	w.Send(outputs(l, "alerts", 0, 0, 4))
	if err := h.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	w.Send(outputs(l, "alerts", 0, 4, 5))
	l.wait(t, 5)
	got := values(readAll(t, client, "alerts", 0))
	for _, want := range numbers(1, 5) {
		if !slices.Contains(got, want) {
			t.Errorf("%s is lost: %v", want, got)
		}
	}
}

// A sequence that the broker has lost begins anew under another producer id,
// and only for that partition.
func TestRestartTakesANewProducerID(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch} {
		t.Run(e.Message, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "alerts"))
			var mu sync.Mutex
			type stamp struct {
				Producer int64
				Sequence int32
			}
			seen := map[int32][]stamp{}
			c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				mu.Lock()
				defer mu.Unlock()
				for _, p := range r.(*kmsg.ProduceRequest).Topics[0].Partitions {
					var b kmsg.RecordBatch
					if err := b.ReadFrom(p.Records); err != nil {
						t.Error(err)
					}
					seen[p.Partition] = append(seen[p.Partition], stamp{b.ProducerID, b.FirstSequence})
				}
				return nil, nil, false
			})
			w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig())})
			l := newLedger()
			w.Send(append(outputs(l, "alerts", 0, 0, 5), outputs(l, "alerts", 1, 0, 5)...))
			l.wait(t, 10)
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Partitions: []int32{0}, Err: e})
			w.Send(outputs(l, "alerts", 0, 5, 10))
			l.wait(t, 15)
			w.Send(append(outputs(l, "alerts", 0, 10, 12), outputs(l, "alerts", 1, 5, 7)...))
			l.wait(t, 19)
			mu.Lock()
			defer mu.Unlock()
			old, fresh := seen[0][0].Producer, seen[0][2].Producer
			if old == fresh {
				t.Errorf("producer id %d stays", old)
			}
			if diff := cmp.Diff(map[int32][]stamp{
				0: {{old, 0}, {old, 5}, {fresh, 0}, {fresh, 5}},
				1: {{old, 0}, {old, 5}},
			}, seen); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestChecksBeforeSending(t *testing.T) {
	now := time.Date(2026, 1, 5, 3, 0, 0, 0, time.UTC)
	at := record.MillisOf(now)
	limits := Limits{MaxMessageBytes: 1000, TimestampAfter: time.Hour, TimestampBefore: 24 * time.Hour}
	fits := 1000 - 61 - 9 // a batch's overhead and that of a record whose lengths take two bytes
	for _, tc := range []struct {
		name   string
		limits Limits
		max    int
		ts     record.Millis
		value  int
		part   int32
		want   record.Kind
	}{
		{name: "good", limits: limits, ts: at, value: 10},
		{name: "just fits", limits: limits, ts: at, value: fits},
		{name: "one byte too many", limits: limits, ts: at, value: fits + 1, want: record.TooLarge},
		{name: "our own limit is smaller", limits: limits, max: 500, ts: at, value: 500, want: record.TooLarge},
		{name: "the topic's limit is smaller", limits: limits, max: 5000, ts: at, value: 1000, want: record.TooLarge},
		{name: "limits not known", ts: at + 1e10, value: 2000},
		{name: "no timestamp", limits: limits, ts: record.NoTimestamp, want: record.InvalidTimestamp},
		{name: "before 1970", limits: Limits{}, ts: -5, want: record.InvalidTimestamp},
		{name: "1970", limits: Limits{}, ts: 0},
		{name: "beyond what can be encoded", limits: Limits{}, ts: maxTimestamp + 1, want: record.InvalidTimestamp},
		{name: "as far ahead as allowed", limits: limits, ts: at + 3_600_000},
		{name: "too far ahead", limits: limits, ts: at + 3_600_001, want: record.InvalidTimestamp},
		{name: "as old as allowed", limits: limits, ts: at - 86_400_000},
		{name: "too old", limits: limits, ts: at - 86_400_001, want: record.InvalidTimestamp},
		{name: "the broker sets the time", limits: Limits{LogAppendTime: true, TimestampAfter: time.Hour}, ts: at + 9e9},
		{name: "no such partition", limits: limits, ts: at, part: -1, want: record.Rejected},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
			w := runWriter(t, Options{
				Client: newClient(t, c.ListenAddrs(), producerConfig()), MaxMessageBytes: tc.max,
				Limits: func(string) Limits { return tc.limits }, Now: func() time.Time { return now },
			})
			l := newLedger()
			w.Send([]*record.Output{{Topic: "alerts", Partition: tc.part, Timestamp: tc.ts, Value: make([]byte, tc.value), Owner: l}})
			var kind record.Kind
			var r *record.Refused
			if err := l.wait(t, 1)[0].err; errors.As(err, &r) {
				kind = r.Kind
			} else if err != nil {
				t.Fatal(err)
			}
			if kind != tc.want {
				t.Errorf("refused as %q, want %q", kind, tc.want)
			}
		})
	}
}

func TestMissingTopicAndPartitionWait(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(2, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	w := runWriter(t, Options{Client: client})
	l, good := newLedger(), newLedger()
	w.Send(outputs(l, "dlq", 0, 0, 3))
	w.Send(outputs(l, "alerts", 5, 3, 6))
	w.Send(outputs(good, "alerts", 0, 0, 10))
	good.wait(t, 10)
	eventually(t, "two faults", func() bool { return len(w.Faults()) == 2 })
	faults := w.Faults()
	slices.SortFunc(faults, func(a, b Fault) int { return strings.Compare(a.Topic, b.Topic) })
	if diff := cmp.Diff([]Fault{
		{"alerts", 5, "the topic has 2 partitions only"},
		{"dlq", 0, "the topic does not exist"},
	}, faults); diff != "" {
		t.Error(diff)
	}
	if n := len(l.told()); n != 0 {
		t.Fatalf("%d settled", n)
	}
	if err := c.CreateTopic("dlq", 1, nil); err != nil {
		t.Fatal(err)
	}
	admin, err := sarama.NewClusterAdminFromClient(newClient(t, c.ListenAddrs(), producerConfig()))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreatePartitions("alerts", 6, nil, false); err != nil {
		t.Fatal(err)
	}
	for _, f := range l.wait(t, 6) {
		if f.err != nil {
			t.Errorf("output %d: %v", f.seq(), f.err)
		}
	}
	if faults := w.Faults(); len(faults) != 0 {
		t.Errorf("faults remain: %v", faults)
	}
}

func TestMissingRightsWait(t *testing.T) {
	for _, tc := range []struct {
		key   kmsg.Key
		topic string
		err   *kerr.Error
	}{
		{kmsg.Produce, "alerts", kerr.TopicAuthorizationFailed},
		{kmsg.Produce, "alerts", kerr.ClusterAuthorizationFailed},
		{kmsg.Metadata, "alerts", kerr.TopicAuthorizationFailed},
		{kmsg.InitProducerID, "", kerr.ClusterAuthorizationFailed},
	} {
		t.Run(fmt.Sprint(tc.key, tc.err.Message), func(t *testing.T) {
			c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
			client := newClient(t, c.ListenAddrs(), producerConfig())
			w := runWriter(t, Options{Client: client})
			h := c.Fault(kfake.Fault{Keys: []kmsg.Key{tc.key}, Topic: tc.topic, TopLevel: tc.topic == "", Err: tc.err, Count: -1})
			l := newLedger()
			w.Send(outputs(l, "alerts", 0, 0, 5))
			eventually(t, "a fault that names the error", func() bool {
				f := w.Faults()
				return len(f) == 1 && f[0].Topic == "alerts" && strings.Contains(f[0].Reason, tc.err.Message)
			})
			if n := len(l.told()); n != 0 {
				t.Fatalf("%d settled", n)
			}
			h.Remove()
			for _, f := range l.wait(t, 5) {
				if f.err != nil {
					t.Error(f.err)
				}
			}
			if faults := w.Faults(); len(faults) != 0 {
				t.Errorf("faults remain: %v", faults)
			}
			if diff := cmp.Diff(numbers(0, 5), values(readAll(t, client, "alerts", 0))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDropForgetsWhatWaits(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	w := runWriter(t, Options{Client: client})
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.NotEnoughReplicas, Count: -1})
	gone, stays := newLedger(), newLedger()
	w.Send(outputs(gone, "alerts", 0, 0, 5))
	w.Send(outputs(stays, "alerts", 0, 5, 10))
	if err := h.Wait(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	w.Send(outputs(gone, "alerts", 0, 10, 15))
	if n := w.Drop(gone); n != 10 {
		t.Errorf("dropped %d, want 10", n)
	}
	if n := w.Drop(gone); n != 0 {
		t.Errorf("dropped %d twice", n)
	}
	if n := w.Pending(); n != 5 {
		t.Errorf("%d pending, want 5", n)
	}
	h.Remove()
	stays.wait(t, 5)
	w.Send(outputs(stays, "alerts", 0, 15, 16))
	stays.wait(t, 6)
	if n := len(gone.told()); n != 0 {
		t.Errorf("the dropped owner was told of %d", n)
	}
	// The broker surely did not have the batch, so the dropped are not in it.
	if diff := cmp.Diff(append(numbers(5, 10), numbers(15, 16)...), values(readAll(t, client, "alerts", 0))); diff != "" {
		t.Error(diff)
	}
}

// A dropped batch that the broker may have must not lend its sequence to what
// comes after it.
func TestDropOfAnUnknownOutcomeLosesNothingAfterIt(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	w := runWriter(t, Options{Client: client})
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.RequestTimedOut, Count: -1})
	gone, stays := newLedger(), newLedger()
	w.Send(outputs(gone, "alerts", 0, 0, 5))
	if err := h.Wait(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if n := w.Drop(gone); n != 5 {
		t.Errorf("dropped %d, want 5", n)
	}
	h.Remove()
	w.Send(outputs(stays, "alerts", 0, 5, 10)) // as many as the broker has under the sequence
	stays.wait(t, 5)
	if diff := cmp.Diff(numbers(0, 10), values(readAll(t, client, "alerts", 0))); diff != "" {
		t.Error(diff)
	}
	if n := len(gone.told()); n != 0 {
		t.Errorf("the dropped owner was told of %d", n)
	}
}

// Owners come and go under load and under moves: those that stay hear of each
// of their outputs once, in order.
func TestDropUnderLoad(t *testing.T) {
	const partitions = 3
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(partitions, "alerts"))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	w := runWriter(t, Options{Client: client})
	stays := newLedger()
	sent := 0
	for i := 0; i < 200; i++ {
		gone := newLedger()
		for p := int32(0); p < partitions; p++ {
			w.Send(outputs(gone, "alerts", p, 1_000_000, 1_000_010))
			w.Send(outputs(stays, "alerts", p, i*10, i*10+10))
			sent += 10
		}
		if i%20 == 0 {
			c.ShufflePartitionLeaders()
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.RequestTimedOut})
		}
		w.Drop(gone)
	}
	next := map[int32]int64{}
	for _, f := range stays.wait(t, sent) {
		if f.err != nil || f.seq() != next[f.out.Partition] {
			t.Fatalf("partition %d: settled %d, want %d (%v)", f.out.Partition, f.seq(), next[f.out.Partition], f.err)
		}
		next[f.out.Partition]++
	}
	for p := int32(0); p < partitions; p++ {
		var got []string
		for _, v := range values(readAll(t, client, "alerts", p)) {
			if !strings.HasPrefix(v, `{"n":1000`) || len(v) < 13 {
				got = append(got, v)
			}
		}
		// Copies are allowed where a batch with an unknown outcome was given
		// up; each output's first copy comes in order and none is missing.
		if diff := cmp.Diff(numbers(0, 2000), firsts(got)); diff != "" {
			t.Errorf("partition %d: %s", p, diff)
		}
	}
}

func firsts(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, v := range list {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

func TestSequenceWraps(t *testing.T) {
	for _, tc := range []struct {
		seq  int32
		n    int
		want int32
	}{{0, 1, 1}, {2147483646, 1, 2147483647}, {2147483647, 1, 0}, {2147483640, 10, 2}} {
		if got := nextSequence(tc.seq, tc.n); got != tc.want {
			t.Errorf("nextSequence(%d, %d) = %d, want %d", tc.seq, tc.n, got, tc.want)
		}
	}
}

func TestLingerGathers(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Observe: true, Count: -1})
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig()), Linger: time.Hour})
	l := newLedger()
	for i := 0; i < 10; i++ {
		w.Send(outputs(l, "alerts", 0, i, i+1))
	}
	// Enough for a batch ends the wait.
	big := outputs(l, "alerts", 0, 10, 12)
	for _, o := range big {
		o.Value = make([]byte, 600_000)
	}
	w.Send(big)
	l.wait(t, 11)
	if n := h.Hits(); n == 0 || n > 2 {
		t.Errorf("%d requests", n)
	}
}

func TestCloseWaitsForWhatIsUnderWay(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig()), Linger: time.Hour})
	l := newLedger()
	w.Send(outputs(l, "alerts", 0, 0, 100))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if n := w.Close(ctx); n != 0 {
		t.Errorf("%d never acknowledged", n)
	}
	if n := len(l.told()); n != 100 {
		t.Errorf("%d settled", n)
	}
	w.Send(outputs(l, "alerts", 0, 100, 101))
	if n := w.Pending(); n != 0 {
		t.Errorf("%d taken after the end", n)
	}
}

func TestCloseGivesUpInTime(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "alerts"))
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig())})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) { return nil, nil, true }) // never answered
	l := newLedger()
	w.Send(outputs(l, "alerts", 0, 0, 3))
	w.Send(outputs(l, "missing", 0, 0, 4))
	eventually(t, "a fault", func() bool { return len(w.Faults()) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if n := w.Close(ctx); n != 7 {
		t.Errorf("%d never acknowledged, want 7", n)
	}
	if n := len(l.told()); n != 0 {
		t.Errorf("%d settled", n)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "alerts"))
	w, err := NewWriter(Options{Client: newClient(t, c.ListenAddrs(), producerConfig())})
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger()
	w.Send(outputs(l, "missing", 0, 0, 3)) // before it runs
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	eventually(t, "a fault", func() bool { return len(w.Faults()) == 1 })
	if err := w.Run(ctx); err == nil {
		t.Error("it ran twice")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := w.Close(t.Context()); n != 3 {
		t.Errorf("%d never acknowledged, want 3", n)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1))
	client := newClient(t, c.ListenAddrs(), producerConfig())
	for name, o := range map[string]Options{
		"compression": {Client: client, Compression: "brotli"},
		"client":      {},
		"linger":      {Client: client, Linger: -1},
		"max":         {Client: client, MaxMessageBytes: -1},
	} {
		if _, err := NewWriter(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Who is looked for is found with the writer's own topics: a cluster may have
// thousands of others, some of which have no leader at any time.
func TestOnlyOwnTopicsAreAskedFor(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "alerts", "foreign"))
	var foreign, asked atomic.Int64
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		asked.Add(1)
		if req.Topics == nil {
			foreign.Add(1) // all topics
		}
		for _, topic := range req.Topics {
			if topic.Topic == nil || *topic.Topic != "alerts" {
				foreign.Add(1)
			}
		}
		return nil, nil, false
	})
	conf := producerConfig()
	conf.Metadata.Full = false
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), conf)})
	l := newLedger()
	w.Send(outputs(l, "alerts", 0, 0, 1)) // the client knows no broker by its id yet
	l.wait(t, 1)
	for w.refreshing.Load() {
		time.Sleep(time.Millisecond)
	}
	if asked.Load() == 0 || foreign.Load() > 0 {
		t.Errorf("%d questions, %d of them about topics of others", asked.Load(), foreign.Load())
	}
}
