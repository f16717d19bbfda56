package audit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"joiner/internal/record"
)

// tb lends a rapid test the few things of testing.TB that a world needs.
type tb struct {
	testing.TB
	r *rapid.T
}

func (t tb) Fatal(args ...any)            { t.r.Fatal(args...) }
func (t tb) Fatalf(f string, args ...any) { t.r.Fatalf(f, args...) }

// randomWorld fills a world with records that are good, bad, late, misplaced
// and tombstones, joined in a random interleaving.
func randomWorld(t *testing.T, r *rapid.T) (w *world, bad int64) {
	partitions := rapid.IntRange(1, 3).Draw(r, "partitions")
	history := time.Duration(rapid.SampledFrom([]int{0, 0, 5, 30}).Draw(r, "history")) * time.Millisecond
	w = newWorld(tb{t, r}, partitions, rapid.IntRange(1, partitions).Draw(r, "dead partitions"), history)
	w.log.batch = rapid.IntRange(1, 9).Draw(r, "batch")
	symbols := make([]string, rapid.IntRange(1, 4).Draw(r, "symbols"))
	for i := range symbols {
		symbols[i] = fmt.Sprintf("S%d", i)
	}
	var pending []place
	clock := int64(0)
	for i := range rapid.IntRange(0, 90).Draw(r, "steps") {
		clock += int64(rapid.IntRange(0, 6).Draw(r, "clock"))
		at := clock + int64(rapid.IntRange(-12, 4).Draw(r, "off"))
		symbol := rapid.SampledFrom(symbols).Draw(r, "symbol")
		switch rapid.IntRange(0, 9).Draw(r, "step") {
		case 0:
			w.tick(symbol, at+int64(rapid.IntRange(0, 20).Draw(r, "ahead")), "")
		case 1:
			w.log.add(marketTopic, w.home(symbol), record.Record{Key: []byte(symbol), Value: []byte(`{"price":"x"}`), Timestamp: since1970})
		case 2, 3, 4:
			w.tick(symbol, at, rapid.SampledFrom([]string{fmt.Sprint(i), fmt.Sprintf("%d.50", i), fmt.Sprintf(`"%d"`, i), fmt.Sprintf("%de2", i)}).Draw(r, "price"))
		case 5, 6, 7:
			p := w.home(symbol)
			if rapid.IntRange(0, 4).Draw(r, "misplaced") == 0 {
				p = int32(rapid.IntRange(0, partitions-1).Draw(r, "partition"))
			}
			value := rapid.SampledFrom([]string{`{"n":1}`, ` {"a":"b"} `, "{\"notification\":{}}\n", `[`, `{}`}).Draw(r, "value")
			if strings.HasPrefix(value, "[") {
				bad++
			}
			pending = append(pending, w.note(p, symbol, at, value))
		default:
			w.merge(int32(rapid.IntRange(0, partitions-1).Draw(r, "merge")), rapid.IntRange(1, 4).Draw(r, "n"))
		}
		for len(pending) > 0 && rapid.IntRange(0, 1).Draw(r, "join") == 0 {
			w.join(pending[0])
			pending = pending[1:]
		}
	}
	for p := range w.log.parts[marketTopic] {
		w.merge(int32(p), 1000)
	}
	for _, at := range pending {
		w.join(at)
	}
	return w, bad
}

func (w *world) misses() (n int64) {
	for _, a := range w.alerts {
		if a.tick == nil {
			n++
		}
	}
	return n
}

// Whatever a joiner that keeps to the rules makes of its inputs, the audit
// finds nothing wrong with it.
func TestCleanJoinIsClean(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w, bad := randomWorld(t, r)
		report := w.audit()
		want := figures{DeadLettered: bad, Missed: w.misses(), Revised: w.revisedOf()}
		if got := figuresOf(report); got != want {
			r.Fatalf("got  %+v\nwant %+v%s", got, want, report.dump())
		}
		if report.Alerts != int64(len(w.alerts)) || report.Notifications != int64(len(w.alerts))+bad {
			r.Fatalf("%d notifications, %d alerts; want %d, %d", report.Notifications, report.Alerts, int64(len(w.alerts))+bad, len(w.alerts))
		}
	})
}

// Compaction takes ticks away, never the proof that an alert is wrong: the
// figure of wrong ones stays 0, and unverifiable are exactly those whose tick is
// gone or that the ticks that are left contradict.
func TestCompactionIsNeverWrong(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w, bad := randomWorld(t, r)
		left := make(map[int32][]modelTick)
		for p, part := range w.log.parts[marketTopic] {
			upTo := part.end
			if rapid.Bool().Draw(r, "in part") {
				upTo = int64(rapid.IntRange(0, int(part.end)).Draw(r, "cleaned up to"))
			}
			part.remove(compacted(part, upTo, rapid.Bool().Draw(r, "tombstones too")))
			for _, tick := range w.seen[int32(p)] {
				if _, there := part.find(tick.offset); there {
					left[int32(p)] = append(left[int32(p)], tick)
				}
			}
		}
		w.topics.Market.Compacted = true
		var want figures
		want.Missed, want.DeadLettered = w.misses(), bad
		for _, a := range w.alerts {
			var below []modelTick
			for _, tick := range left[a.market] {
				if tick.offset < a.next {
					below = append(below, tick)
				}
			}
			now := answerOf(below, a.symbol, a.time, w.o.History.Milliseconds())
			if (now == nil) != (a.tick == nil) || now != nil && now.offset != a.tick.offset {
				want.Unverifiable++
			}
		}
		report := w.audit()
		got := figuresOf(report)
		// Dead letters of compacted ticks have no source any more.
		for _, dead := range w.log.parts[deadTopic] {
			for i := range dead.records {
				want.Unverifiable += w.orphaned(&dead.records[i])
			}
		}
		got.Revised = 0 // depends on ticks that are gone
		if got != want {
			r.Fatalf("got  %+v\nwant %+v%s", got, want, report.dump())
		}
	})
}

// orphaned is 1 for a dead letter of a tick that is not there any more.
func (w *world) orphaned(dead *record.Record) int64 {
	var partition int32
	var offset int64
	source := string(dead.Headers[lastHeader(dead.Headers, "joiner-source")].Value)
	if n, _ := fmt.Sscanf(source, marketTopic+"/%d/%d", &partition, &offset); n != 2 {
		return 0
	}
	if _, there := w.log.parts[marketTopic][partition].find(offset); there {
		return 0
	}
	return 1
}

func (p *part) find(offset int64) (*record.Record, bool) {
	for i := range p.records {
		if p.records[i].Offset == offset {
			return &p.records[i], true
		}
	}
	return nil, false
}

// compacted tells what the cleaner takes below an offset: all but each key's
// last record, and that too where it is a tombstone old enough.
func compacted(p *part, upTo int64, tombstones bool) func(*record.Record) bool {
	last := make(map[string]int64)
	for i := range p.records {
		if r := &p.records[i]; r.Offset < upTo {
			last[string(r.Key)] = r.Offset
		}
	}
	return func(r *record.Record) bool {
		return r.Offset < upTo && (last[string(r.Key)] != r.Offset || tombstones && r.Value == nil)
	}
}
