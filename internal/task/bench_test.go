package task

import (
	"fmt"
	"testing"

	"go.uber.org/zap"

	"joiner/internal/record"
)

// BenchmarkMergeTick is what one market update costs the merge: decoding,
// judging its place, the table, the hottest symbols.
func BenchmarkMergeTick(b *testing.B) {
	for _, symbols := range []int{16, 4096} {
		b.Run(fmt.Sprintf("%d symbols", symbols), func(b *testing.B) { benchmarkTicks(b, symbols) })
	}
}

func benchmarkTicks(b *testing.B, symbols int) {
	w := newWorld(b, func(o *Options) { o.Logger = zap.NewNop() })
	t := build(w.opts)
	recs := make([]record.Record, 1<<12)
	for i := range recs {
		recs[i] = record.Record{
			Offset: int64(i), Timestamp: record.Millis(1 + i),
			Key:   fmt.Appendf(nil, "SYM%05d", i*2654435761>>7%symbols),
			Value: fmt.Appendf(nil, `{"price":%d.25,"venue":"XIDX","conditions":["regular","auction"],"volume":%d}`, 9000+i, 100*i),
		}
	}
	cur := &t.merge.cur[record.Market]
	cur.recs = recs
	b.ReportAllocs()
	for b.Loop() {
		if cur.empty() {
			cur.i = 0
		}
		t.decodeTick(cur)
		if !t.takeTick(cur) {
			b.Fatal("the merge waits")
		}
	}
	b.StopTimer()
	t.o.Metrics.Close()
}
