package enrich

import (
	"testing"

	"joiner/internal/record"
)

func BenchmarkDecodeTick(b *testing.B) {
	for name, o := range map[string]MarketOptions{
		"key":  marketDefaults,
		"path": {Symbol: "exchange", Price: "price", EventTime: "sequence", EventTimeUnit: "s"},
	} {
		b.Run(name, func(b *testing.B) {
			d := marketDecoder(b, o)
			r := record.Record{Key: []byte("BBCA"), Value: []byte(tick200), Timestamp: 1}
			b.SetBytes(int64(len(r.Value)))
			b.ReportAllocs()
			for b.Loop() {
				if _, bad := d.Decode(&r); bad != nil {
					b.Fatal(bad)
				}
			}
		})
	}
}

func BenchmarkDecodeNotification(b *testing.B) {
	d := noteDecoder(b, noteDefaults)
	r := record.Record{Key: []byte("BBCA"), Value: []byte(note200), Timestamp: 1}
	b.SetBytes(int64(len(r.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if _, bad := d.Decode(&r); bad != nil {
			b.Fatal(bad)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	market, note := Input{State: HasHead, Head: 1}, Input{State: HasHead, Head: 2}
	end := Input{State: AtEnd, AtEndSince: 1}
	b.ReportAllocs()
	for b.Loop() {
		if a, _ := Decide(market, note, 0, 0); a != TakeMarket {
			b.Fatal(a)
		}
		if a, _ := Decide(end, note, 0, 0); a != TakeNotification {
			b.Fatal(a)
		}
	}
}

func BenchmarkEncodeAlert(b *testing.B) {
	m := hit()
	r := record.Record{Key: []byte("BBCA"), Value: []byte(note200), Headers: headersOf("trace", "7f1c2a9e")}
	cited := &Citation{Partition: 3, Next: 10423}
	b.Run("value", func(b *testing.B) {
		var buf []byte
		b.ReportAllocs()
		for b.Loop() {
			buf = AppendAlert(buf[:0], r.Value, noteTime, m)
		}
	})
	b.Run("output", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if out := NewAlert("enriched-alerts", bbca, &r, noteTime, m, cited); len(out.Value) == 0 {
				b.Fatal("no value")
			}
		}
	})
}

func BenchmarkDeadLetter(b *testing.B) {
	r := record.Record{Key: []byte("BBCA"), Value: []byte(tick200)}
	b.ReportAllocs()
	for b.Loop() {
		if out := DeadLetter("dlq", 3, bbca, &r, record.InvalidPrice, "detail"); len(out.Headers) == 0 {
			b.Fatal("no headers")
		}
	}
}

// note200 is a notification of 200 bytes.
const note200 = `{"id":"0b0f2f9c-7f0e-4a57-9d1e-6a9c1f5d2a11","user":"u-1029384","rule":"price_above","threshold":9000,"channel":["push","mail"],"locale":"id-ID","title":"BBCA is above 9,000","created":17675820001234}`
