package deliver

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"

	"joiner/internal/record"
	"joiner/test/cluster"
)

// What a refusal leaves behind is Apache Kafka's own doing, so it is looked at
// there: the sequence stays, the others go in, in order.
func TestKafkaRefusals(t *testing.T) {
	k := cluster.Start(t, cluster.Options{})
	for _, tc := range []struct {
		name    string
		configs map[string]string
		spoil   func(*record.Output)
		want    record.Kind
	}{
		{
			name:  "timestamp two hours ahead",
			spoil: func(o *record.Output) { o.Timestamp += record.Millis(2 * time.Hour / time.Millisecond) },
			want:  record.InvalidTimestamp,
		},
		{
			name:    "too large",
			configs: map[string]string{"max.message.bytes": "2000"},
			spoil:   func(o *record.Output) { o.Value = make([]byte, 3000) },
			want:    record.TooLarge,
		},
		{
			name:    "no key for a compacted topic",
			configs: map[string]string{"cleanup.policy": "compact"},
			spoil:   func(o *record.Output) { o.Key = nil },
			want:    record.Rejected,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			topic := k.Name("alerts")
			k.Topic(t, topic, 1, tc.configs)
			conf := producerConfig()
			client := newClient(t, k.Brokers, conf)
			w := runWriter(t, Options{Client: client})
			l := newLedger()
			where := []int{0, 17, 18, 63}
			var want []string
			const each = 64
			for round := range 3 {
				send := outputs(l, topic, 0, round*each, round*each+each)
				for i, o := range send {
					if slices.Contains(where, i) {
						tc.spoil(o)
						continue
					}
					want = append(want, string(o.Value))
				}
				w.Send(send)
				l.wait(t, (round+1)*each)
			}
			n := 0
			for _, f := range l.told() {
				if f.err == nil {
					continue
				}
				n++
				var r *record.Refused
				if !errors.As(f.err, &r) || r.Kind != tc.want || !slices.Contains(where, int(f.seq())%each) {
					t.Errorf("output %d: %v", f.seq(), f.err)
				}
			}
			if n != 3*len(where) {
				t.Errorf("%d refused, want %d", n, 3*len(where))
			}
			if diff := cmp.Diff(want, values(readAll(t, client, topic, 0))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Brokers that die, that stop answering and that come back cost time and
// nothing else.
func TestKafkaBrokersComeAndGo(t *testing.T) {
	k := cluster.Start(t, cluster.Options{Private: true})
	const partitions, each = 6, 8_000
	topic := k.Name("alerts")
	k.Topic(t, topic, partitions, map[string]string{"min.insync.replicas": "2"})
	conf := producerConfig()
	conf.Producer.Timeout = 2 * time.Second
	conf.Net.ReadTimeout = 4 * time.Second
	conf.Net.DialTimeout = 2 * time.Second
	w := runWriter(t, Options{Client: newClient(t, k.Brokers, conf)})

	ledgers := make([]*ledger, partitions)
	for p := range ledgers {
		ledgers[p] = newLedger()
	}
	sent := 0
	send := func(upTo int) {
		for ; sent < upTo; sent += 100 {
			for p, l := range ledgers {
				w.Send(outputs(l, topic, int32(p), sent, sent+100))
			}
		}
	}
	part := func(from, to int, fault func()) {
		send((from + to) / 2)
		fault()
		send(to)
	}
	part(0, 2000, func() { k.KillBroker(t, 1) })
	part(2000, 4000, func() { k.StartBroker(t, 1) })
	part(4000, 6000, func() { k.PauseBroker(t, 2); time.Sleep(5 * time.Second); k.ResumeBroker(t, 2) })
	part(6000, each, func() { k.StopBroker(t, 3); k.StartBroker(t, 3) })

	for p, l := range ledgers {
		told := l.wait(t, each)
		for i, f := range told {
			if f.err != nil || f.seq() != int64(i) {
				t.Fatalf("partition %d: %dth settled is %d, %v", p, i, f.seq(), f.err)
			}
		}
	}
	reader := sarama.NewConfig()
	reader.Version = sarama.V3_6_0_0
	client := newClient(t, k.Brokers, reader)
	for p := range ledgers {
		if diff := cmp.Diff(numbers(0, each), values(readAll(t, client, topic, int32(p)))); diff != "" {
			t.Errorf("partition %d: %s", p, diff)
		}
	}
}
