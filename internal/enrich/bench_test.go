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

// note200 is a notification of 200 bytes.
const note200 = `{"id":"0b0f2f9c-7f0e-4a57-9d1e-6a9c1f5d2a11","user":"u-1029384","rule":"price_above","threshold":9000,"channel":["push","mail"],"locale":"id-ID","title":"BBCA is above 9,000","created":17675820001234}`
