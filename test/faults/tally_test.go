package faults

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/enrich"
	"joiner/test/cluster"
	"joiner/test/proc"
)

// visit shows every record of a topic that a reader of what is committed sees, a
// partition after the other. A record of its own, which it writes behind all
// others, tells it where that ends: whoever looks at the topic after it finds
// those.
func (w *world) visit(topic string, see func(*sarama.ConsumerMessage)) {
	w.t.Helper()
	const last = "the test's last record"
	ends, err := w.ends(topic)
	if err != nil {
		w.t.Fatal(err)
	}
	producer, err := sarama.NewSyncProducer(w.Brokers, producerConfig())
	if err != nil {
		w.t.Fatalf("producer: %v", err)
	}
	defer func() { _ = producer.Close() }()
	config := cluster.Config()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Fetch.Default = 4 << 20
	config.Consumer.MaxWaitTime = 50 * time.Millisecond
	consumer, err := sarama.NewConsumer(w.Brokers, config)
	if err != nil {
		w.t.Fatalf("consumer: %v", err)
	}
	defer func() { _ = consumer.Close() }()
	for p := range int32(len(ends)) {
		mark := &sarama.ProducerMessage{Topic: topic, Partition: p, Key: sarama.StringEncoder(last)}
		if _, _, err := producer.SendMessage(mark); err != nil {
			w.t.Fatalf("writing to %s/%d: %v", topic, p, err)
		}
		w.visitPartition(consumer, topic, p, func(m *sarama.ConsumerMessage) (more bool) {
			if string(m.Key) == last {
				return false
			}
			see(m)
			return true
		})
	}
}

func (w *world) visitPartition(consumer sarama.Consumer, topic string, p int32, see func(*sarama.ConsumerMessage) bool) {
	w.t.Helper()
	claim, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
	if err != nil {
		w.t.Fatalf("reading %s/%d: %v", topic, p, err)
	}
	defer func() { _ = claim.Close() }()
	for n := 0; ; n++ {
		select {
		case m := <-claim.Messages():
			if !see(m) {
				return
			}
		case <-time.After(proc.Patience):
			w.t.Fatalf("reading %s/%d: nothing has come behind %d records, and the end has not", topic, p, n)
		}
	}
}

// note is a notification as it lies in its topic.
type note struct {
	symbol string
	at     int64 // timestamp in milliseconds
	copies int   // alerts of it
}

// tally is a count of the alerts against the notifications that is not the
// audit's: of prices it knows nothing.
type tally struct {
	notes, alerts             int
	lost, doubled, outOfOrder int // out of order: by first copies
	byPartition               map[int32][]note
}

// tally reads both topics. Nobody may write any more.
func (w *world) tally() (t tally) {
	w.t.Helper()
	t.byPartition = make(map[int32][]note)
	symbols := make(map[string]string) // one string for each
	w.visit(w.notes, func(m *sarama.ConsumerMessage) {
		if _, ok := symbols[string(m.Key)]; !ok {
			symbols[string(m.Key)] = string(m.Key)
		}
		if m.Offset != int64(len(t.byPartition[m.Partition])) {
			w.t.Fatalf("notification %d/%d comes behind %d others", m.Partition, m.Offset, len(t.byPartition[m.Partition]))
		}
		t.byPartition[m.Partition] = append(t.byPartition[m.Partition], note{symbols[string(m.Key)], m.Timestamp.UnixMilli(), 0})
		t.notes++
	})
	type line struct {
		partition int32
		symbol    string
	}
	newest := make(map[line]int64)
	w.visit(w.alerts, func(m *sarama.ConsumerMessage) {
		t.alerts++
		n, at, err := t.sourceOf(m)
		if err != nil {
			w.t.Errorf("alert %d/%d: %v", m.Partition, m.Offset, err)
			return
		}
		if n.copies++; n.copies > 1 {
			t.doubled++
			return
		}
		l := line{m.Partition, n.symbol}
		if at < newest[l] {
			t.outOfOrder++
		}
		newest[l] = max(newest[l], at)
	})
	for _, list := range t.byPartition {
		for i := range list {
			if list[i].copies == 0 {
				t.lost++
			}
		}
	}
	return t
}

func (t *tally) sourceOf(m *sarama.ConsumerMessage) (*note, int64, error) {
	for _, h := range slices.Backward(m.Headers) {
		if string(h.Key) != enrich.HeaderSource {
			continue
		}
		source, err := enrich.ParseSource(h.Value)
		if err != nil {
			return nil, 0, err
		}
		list := t.byPartition[source.Partition]
		if source.Partition != m.Partition || source.Offset < 0 || source.Offset >= int64(len(list)) {
			return nil, 0, fmt.Errorf("of %s", h.Value)
		}
		return &list[source.Offset], source.Offset, nil
	}
	return nil, 0, fmt.Errorf("it has no %s", enrich.HeaderSource)
}

// claim is the time for which a process had a notification partition.
type claim struct {
	partition  int32
	offset     int64 // committed when it began
	begin, end int64 // in milliseconds; the end is not before its last record was taken
}

// claimsOf reads the logs of a place's processes. One that died without a word
// had its partitions until the next one was started at the latest.
func claimsOf(topic string, processes []*proc.Proc, now time.Time) (all []claim) {
	died := now
	for _, pod := range slices.Backward(processes) {
		open := make(map[int32]*claim)
		var own []*claim
		for _, l := range pod.Logs() {
			if l.Text("topic") != topic {
				continue
			}
			p := int32(l.Number("partition"))
			switch l.Msg() {
			case "claim begins":
				c := &claim{partition: p, offset: max(l.Number("offset"), 0), begin: l.Time().UnixMilli(), end: died.UnixMilli()}
				own, open[p] = append(own, c), c
			case "claim ends":
				if c := open[p]; c != nil {
					c.end = l.Time().UnixMilli()
					delete(open, p)
				}
			}
		}
		for _, c := range own {
			all = append(all, *c)
		}
		if lines := pod.Logs(); len(lines) > 0 {
			died = lines[0].Time()
		}
	}
	return all
}

// again is what a claim may join a second time: what was not committed when it
// began, and had been written by the time that all who had the partition before
// had let go of it.
type again struct {
	from  int64
	until int64 // timestamp in milliseconds
}

func (a again) covers(offset int64, n note) bool { return offset >= a.from && n.at <= a.until }

// mayRepeat lists for each partition what its claims may join again.
func mayRepeat(claims []claim) map[int32][]again {
	sorted := slices.SortedFunc(slices.Values(claims), func(a, b claim) int { return cmp.Compare(a.begin, b.begin) })
	held := make(map[int32]int64) // until when, by the claims so far
	all := make(map[int32][]again)
	for _, c := range sorted {
		if until, before := held[c.partition]; before {
			all[c.partition] = append(all[c.partition], again{c.offset, until})
		}
		held[c.partition] = max(held[c.partition], c.end)
	}
	return all
}

// bound returns how many copies too many the claims permit at most, and those
// that they do not permit.
func (t *tally) bound(claims []claim) (most int, unexplained []string) {
	for p, repeats := range mayRepeat(claims) {
		for offset, n := range t.byPartition[p] {
			for _, a := range repeats {
				if a.covers(int64(offset), n) {
					most++
				}
			}
		}
	}
	repeats := mayRepeat(claims)
	for p, list := range t.byPartition {
		for offset, n := range list {
			if n.copies < 2 {
				continue
			}
			times := 0
			for _, a := range repeats[p] {
				if a.covers(int64(offset), n) {
					times++
				}
			}
			if n.copies-1 > times {
				unexplained = append(unexplained, fmt.Sprintf("notification %d/%d has %d alerts, and %d claims may have repeated it", p, offset, n.copies, times))
			}
		}
	}
	slices.Sort(unexplained)
	return most, unexplained
}

// A copy is permitted where a claim began below it and an earlier one had the
// partition when it was written; nothing else is.
func TestBound(t *testing.T) {
	notes := make([]note, 100) // one every 10 ms
	for i := range notes {
		notes[i] = note{"S", int64(10 * i), 1}
	}
	claims := []claim{
		{0, 0, 0, 500},     // dies at 500 with 30 committed
		{0, 30, 700, 2000}, // its heir
		{1, 0, 0, 2000},    // nobody else ever had it
	}
	for name, one := range map[string]struct {
		partition   int32
		offset      int
		copies      int
		unexplained int
	}{
		"not committed when its owner died": {0, 40, 2, 0},
		"three times":                       {0, 40, 3, 1},
		"committed before":                  {0, 29, 2, 1},
		"written when its owner was dead":   {0, 51, 2, 1},
		"the last that it can have seen":    {0, 50, 2, 0},
		"of a partition that never moved":   {1, 40, 2, 1},
	} {
		all := tally{byPartition: map[int32][]note{0: slices.Clone(notes), 1: slices.Clone(notes)}}
		all.byPartition[one.partition][one.offset].copies = one.copies
		most, unexplained := all.bound(claims)
		if most != 21 || len(unexplained) != one.unexplained {
			t.Errorf("%s: at most %d, %q", name, most, unexplained)
		}
	}
}
