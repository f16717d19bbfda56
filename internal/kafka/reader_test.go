package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"joiner/internal/record"
)

// readAll returns the values that Read shows.
func readAll(t *testing.T, c *Clients, topic string, partition int32, from, to int64) []string {
	t.Helper()
	var values []string
	last := int64(-1)
	at := from
	err := c.Reader.Read(deadline(t), topic, partition, from, to, func(rs []record.Record) error {
		for _, r := range rs {
			if r.Offset <= last || r.Offset < from || r.Offset >= to {
				t.Errorf("offset %d after %d, asked for [%d, %d)", r.Offset, last, from, to)
			}
			last = r.Offset
			values = append(values, string(r.Value))
		}
		return nil
	}, func(position int64) {
		if position <= at || position > to {
			t.Errorf("progress %d after %d, up to %d", position, at, to)
		}
		at = position
	})
	if err != nil {
		t.Fatal(err)
	}
	if at != max(from, to) && from < to {
		t.Errorf("progress ended at %d, not at %d", at, to)
	}
	return values
}

func bounds(t *testing.T, c *Clients, topic string, partition int32) (start, end int64) {
	t.Helper()
	start, end, err := c.Reader.Bounds(deadline(t), topic, partition)
	if err != nil {
		t.Fatal(err)
	}
	return start, end
}

func TestReaderPassesOverTransactions(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	plain := k.producer(t)
	one := k.producer(t, kgo.TransactionalID(unique("one")))
	two := k.producer(t, kgo.TransactionalID(unique("two")))

	committed := k.connect(t, nil)
	uncommitted := k.connect(t, func(o *Options) { o.ReadCommitted = false })
	// Markers are written after a transaction's end is answered.
	settled := func(want int64) {
		eventually(t, "the marker", func() bool { return end(t, committed, topic, 0) == want })
	}

	send(t, plain, topic, 0, "a")                 // 0
	transaction(t, one, true, topic, 0, "b", "c") // 1, 2, marker 3
	settled(4)
	transaction(t, one, false, topic, 0, "no", "no") // 4, 5, marker 6
	settled(7)
	send(t, plain, topic, 0, "d")              // 7
	transaction(t, two, false, topic, 0, "no") // 8, marker 9
	settled(10)
	transaction(t, one, true, topic, 0, "e") // 10, marker 11
	settled(12)

	start, end := bounds(t, committed, topic, 0)
	if start != 0 || end != 12 {
		t.Fatalf("bounds [%d, %d), want [0, 12)", start, end)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "e"}, readAll(t, committed, topic, 0, 0, end)); diff != "" {
		t.Error("committed:", diff)
	}
	want := []string{"a", "b", "c", "no", "no", "d", "no", "e"}
	if diff := cmp.Diff(want, readAll(t, uncommitted, topic, 0, 0, end)); diff != "" {
		t.Error("uncommitted:", diff)
	}
	if diff := cmp.Diff([]string{"c", "d"}, readAll(t, committed, topic, 0, 2, 10)); diff != "" {
		t.Error("in the middle:", diff)
	}
	if got := readAll(t, committed, topic, 0, 4, 7); len(got) != 0 {
		t.Errorf("an aborted transaction shows %v", got)
	}
	if got := readAll(t, committed, topic, 0, 5, 5); len(got) != 0 {
		t.Errorf("an empty range shows %v", got)
	}
}

func TestReaderStopsAtAnOpenTransaction(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	plain := k.producer(t)
	open := k.producer(t, kgo.TransactionalID(unique("open")))
	c := k.connect(t, nil)

	send(t, plain, topic, 0, "a")
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	send(t, open, topic, 0, "b")
	send(t, plain, topic, 0, "c")

	if _, end := bounds(t, c, topic, 0); end != 1 {
		t.Errorf("end %d with a transaction open at 1", end)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err := c.Reader.Read(ctx, topic, 0, 1, 3, func(rs []record.Record) error {
		t.Errorf("shown: %v", rs)
		return nil
	}, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reading above the last stable offset: %v, want the context's end", err)
	}

	// The read waits for the transaction and then shows all of it.
	values := make(chan []string)
	go func() { values <- readAll(t, c, topic, 0, 0, 3) }()
	if err := open.EndTransaction(deadline(t), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, <-values); diff != "" {
		t.Error(diff)
	}
}

func TestReaderTakesLargeRecordsAndKeepsNullApart(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, map[string]string{"max.message.bytes": "4000000"})
	p := k.producer(t, kgo.ProducerBatchMaxBytes(4<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	large := strings.Repeat("x", 3<<20)
	at := time.UnixMilli(1767582000123)
	err := p.ProduceSync(deadline(t),
		&kgo.Record{Topic: topic, Timestamp: at, Key: []byte{}, Value: nil, Headers: []kgo.RecordHeader{{Key: "h", Value: nil}, {Key: "", Value: []byte{}}}},
		&kgo.Record{Topic: topic, Timestamp: at, Key: nil, Value: []byte{}},
		&kgo.Record{Topic: topic, Timestamp: at, Key: []byte("k"), Value: []byte(large)},
		&kgo.Record{Topic: topic, Timestamp: at, Key: []byte("k"), Value: []byte("after")},
	).FirstErr()
	if err != nil {
		t.Fatal(err)
	}
	c := k.connect(t, nil)
	var got []record.Record
	err = c.Reader.Read(deadline(t), topic, 0, 0, 4, func(rs []record.Record) error {
		got = append(got, slices.Clone(rs)...)
		return nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ms := record.Millis(at.UnixMilli())
	if len(got) != 4 || string(got[2].Value) != large {
		t.Fatalf("%d records, the large one lost or changed", len(got))
	}
	got[2].Value = nil // too large for a readable difference
	want := []record.Record{
		{Offset: 0, Timestamp: ms, Key: []byte{}, Headers: []record.Header{{Key: []byte("h")}, {Key: []byte{}, Value: []byte{}}}},
		{Offset: 1, Timestamp: ms, Value: []byte{}},
		{Offset: 2, Timestamp: ms, Key: []byte("k")},
		{Offset: 3, Timestamp: ms, Key: []byte("k"), Value: []byte("after")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReaderPassesOnTheErrorOfEach(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	send(t, k.producer(t), topic, 0, "a", "b")
	c := k.connect(t, nil)
	enough := errors.New("enough")
	err := c.Reader.Read(deadline(t), topic, 0, 0, 2, func([]record.Record) error { return enough }, nil)
	if !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}

// Whoever asks for little at once gets all there is, batch by batch.
func TestReaderReadsByFewBytes(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	large := strings.Repeat("l", 100_000)
	send(t, k.producer(t), topic, 0, "a", large, "b")
	var got []string
	err := k.connect(t, nil).Reader.ReadBy(deadline(t), topic, 0, 0, 3, 1, func(rs []record.Record) error {
		for _, r := range rs {
			got = append(got, string(r.Value))
		}
		return nil
	}, nil)
	if err != nil || !slices.Equal(got, []string{"a", large, "b"}) {
		t.Errorf("%d records, %v", len(got), err)
	}
}

func TestReaderFollowsTheLogsStart(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 1, nil)
	send(t, k.producer(t), topic, 0, "a", "b", "c", "d", "e")
	if err := k.admin.DeleteRecords(topic, map[int32]int64{0: 3}); err != nil {
		t.Fatal(err)
	}
	c := k.connect(t, nil)
	if start, end := bounds(t, c, topic, 0); start != 3 || end != 5 {
		t.Fatalf("bounds [%d, %d), want [3, 5)", start, end)
	}
	if diff := cmp.Diff([]string{"d", "e"}, readAll(t, c, topic, 0, 0, 5)); diff != "" {
		t.Error(diff)
	}
	var above *AboveEnd
	err := c.Reader.Read(deadline(t), topic, 0, 9, 12, func([]record.Record) error { return nil }, nil)
	if !errors.As(err, &above) || above.End != 5 || above.Offset != 9 {
		t.Errorf("reading above the end: %v", err)
	}
}

func TestReaderFollowsTheLeader(t *testing.T) {
	k := fakeCluster(t, 3)
	topic := k.topic(t, 1, nil)
	p := k.producer(t)
	c := k.connect(t, nil)
	var want []string
	for i := range int32(6) {
		v := fmt.Sprint(i)
		want = append(want, v)
		if err := k.fake.Fake().MoveTopicPartition(topic, 0, i%3); err != nil {
			t.Fatal(err)
		}
		send(t, p, topic, 0, v)
		if diff := cmp.Diff(want, readAll(t, c, topic, 0, 0, int64(len(want)))); diff != "" {
			t.Fatal(diff)
		}
		if _, end := bounds(t, c, topic, 0); end != int64(len(want)) {
			t.Fatalf("end %d, want %d", end, len(want))
		}
	}
}

func TestReaderOfAMissingTopicWaitsForIt(t *testing.T) {
	k := anyCluster(t)
	c := k.connect(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, _, err := c.Reader.Bounds(ctx, unique("missing"), 0)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
