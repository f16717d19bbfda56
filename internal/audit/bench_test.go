package audit

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

// endless is a log that is made as it is read, so that whatever memory an audit
// takes is the audit's: one partition, ticks of each symbol in turn, and for
// every tenth a notification of its symbol, with its alert.
type endless struct {
	w              *world
	notes, symbols int64
}

const ticksPerNote = 10

func (e *endless) Bounds(_ context.Context, topic string, _ int32) (start, end int64, err error) {
	switch topic {
	case marketTopic:
		return 0, e.notes * ticksPerNote, nil
	case deadTopic:
		return 0, 0, nil
	}
	return 0, e.notes, nil
}

func (e *endless) Since(context.Context, string, int32, record.Millis) (int64, error) { return 0, nil }

func (e *endless) Read(ctx context.Context, topic string, _ int32, from, to int64, each func([]record.Record) error, _ func(int64)) error {
	batch := make([]record.Record, 0, 512)
	for at := from; at < to; {
		batch = batch[:0]
		for ; at < to && len(batch) < cap(batch); at++ {
			batch = append(batch, e.record(topic, at))
		}
		if err := each(batch); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (e *endless) symbol(tick int64) []byte { return fmt.Appendf(nil, "SYM%d", tick%e.symbols) }

func (e *endless) record(topic string, offset int64) record.Record {
	switch topic {
	case marketTopic:
		return record.Record{
			Offset: offset, Timestamp: record.Millis(since1970 + offset), Key: e.symbol(offset),
			Value: fmt.Appendf(nil, `{"price":%d.25,"venue":"XIDX","text":"a tick has about a hundred bytes of its own"}`, offset),
		}
	case noteTopic:
		return e.note(offset)
	}
	n := e.note(offset)
	tick := offset * ticksPerNote
	m := enrich.Match{
		Symbol: n.Key, Price: fmt.Appendf(nil, "%d.25", tick), PriceTime: record.Millis(since1970 + tick), Offset: tick,
	}
	o := enrich.NewAlert(alertTopic, enrich.Source{Topic: noteTopic, Offset: offset}, &n, n.Timestamp, &m,
		&enrich.Citation{Next: tick + 1})
	return record.Record{Offset: offset, Timestamp: o.Timestamp, Key: o.Key, Value: o.Value, Headers: o.Headers}
}

func (e *endless) note(offset int64) record.Record {
	tick := offset * ticksPerNote
	return record.Record{
		Offset: offset, Timestamp: record.Millis(since1970 + tick), Key: e.symbol(tick),
		Value: fmt.Appendf(nil, `{"n":%d,"text":"a notification has about a hundred bytes of its own, too, and some"}`, offset),
	}
}

// peak watches the heap until it is stopped.
func peak() (stop func() uint64) {
	quit, done := make(chan struct{}), make(chan struct{})
	var most atomic.Uint64
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse))
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	return func() uint64 {
		close(quit)
		<-done
		return most.Load()
	}
}

// auditedEndless runs an audit of so many notifications and ten times as many ticks,
// with the least memory that it takes, and returns the most heap in use.
func auditedEndless(t testing.TB, notes int64) (r *Report, heap uint64) {
	w := newWorld(t, 1, 1, 0)
	e := &endless{w: w, notes: notes, symbols: 1000}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(64 << 20))
	stop := peak()
	r, err := Audit(t.Context(), w.o, e, w.topics)
	heap = stop()
	if err != nil {
		t.Fatal(err)
	}
	if failure := r.Failure(); failure != "" || r.Verified != notes {
		t.Fatalf("%s, %d of %d verified%s", failure, r.Verified, notes, r.dump())
	}
	return r, heap
}

// BenchmarkAudit prints records a second and the most heap in use, which does
// not grow with the topics.
func BenchmarkAudit(b *testing.B) {
	for _, notes := range []int64{30_000, 300_000} {
		b.Run(fmt.Sprintf("ticks=%d", notes*ticksPerNote), func(b *testing.B) {
			for range b.N {
				_, heap := auditedEndless(b, notes)
				b.ReportMetric(float64(heap)/(1<<20), "MiB-heap")
				b.ReportMetric(float64(notes)*(ticksPerNote+2)/b.Elapsed().Seconds()*float64(b.N), "records/s")
			}
		})
	}
}

// An audit takes no more memory for ten times the records: what it keeps are the
// sorters' buffers and the symbols.
func TestMemoryIsBounded(t *testing.T) {
	notes := int64(40_000)
	if testing.Short() {
		t.Skip("half a million records: not under -short")
	}
	r, heap := auditedEndless(t, notes)
	rows := int64(sizeOf(&output{})+sizeOf(&question{})+sizeOf(&span{})) * notes
	t.Logf("%d ticks and %d notifications, %d MiB of rows: at most %d MiB of heap in use, with %d MiB for sorting",
		r.Ticks, r.Notifications, rows>>20, heap>>20, leastMemory>>20)
	if limit := uint64(32 << 20); heap > limit {
		t.Errorf("%d MiB of heap in use, more than %d MiB", heap>>20, limit>>20)
	}
}
