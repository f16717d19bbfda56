package audit

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

// steady is a world of two partitions in which n notifications of eight symbols
// are joined in order, each with a tick of its own before it.
func steady(t testing.TB, n int) *world {
	w := newWorld(t, 2, 1, 0)
	for i := range n {
		symbol := fmt.Sprintf("S%d", i%8)
		w.tick(symbol, int64(10*i), fmt.Sprint(i))
		w.merge(w.home(symbol), 1)
		w.join(w.note(w.home(symbol), symbol, int64(10*i+5), fmt.Sprintf(`{"n":%d}`, i)))
	}
	return w
}

// alert returns the record of an alert.
func (w *world) alert(a *modelAlert) *record.Record {
	return &w.log.parts[alertTopic][a.at.partition].records[a.at.offset]
}

// rewrite replaces a part of an alert's value.
func (w *world) rewrite(a *modelAlert, old, with string) {
	w.t.Helper()
	r := w.alert(a)
	if !bytes.Contains(r.Value, []byte(old)) {
		w.t.Fatalf("%s is not in %s", old, r.Value)
	}
	r.Value = bytes.Replace(r.Value, []byte(old), []byte(with), 1)
}

// setHeader replaces the value of an alert's header.
func (w *world) setHeader(a *modelAlert, name, value string) {
	r := w.alert(a)
	r.Headers = slices.Clone(r.Headers)
	r.Headers[lastHeader(r.Headers, name)].Value = []byte(value)
}

// Each fault of one output is found, counted once, and shown with the key and
// place of the record that it is about.
func TestPlantedFaults(t *testing.T) {
	const n = 40
	for _, one := range []struct {
		name   string
		plant  func(w *world, a *modelAlert)
		want   figures
		detail string
	}{
		{"price", func(w *world, a *modelAlert) { w.rewrite(a, `"price":24`, `"price":24.0001`) }, figures{Wrong: 1}, "another price"},
		{"price of an older tick", func(w *world, a *modelAlert) {
			w.rewrite(a, `"price":24`, `"price":16`)
			w.rewrite(a, w.tickOf(a), w.tickOf(w.alerts[16]))
			w.rewrite(a, `"age_ms":5`, `"age_ms":85`)
		}, figures{Wrong: 1}, "the ticks below joiner-market give"},
		{"price of another symbol", func(w *world, a *modelAlert) {
			w.rewrite(a, `"symbol":"S0"`, `"symbol":"S1"`)
		}, figures{Wrong: 1}, "another symbol"},
		{"tick of another symbol", func(w *world, a *modelAlert) {
			w.rewrite(a, fmt.Sprintf(`"offset":%d}`, a.tick.offset), fmt.Sprintf(`"offset":%d}`, a.tick.offset-1))
		}, figures{Wrong: 1}, "no price of its symbol"},
		{"tick above the citation", func(w *world, a *modelAlert) {
			w.setHeader(a, enrich.HeaderMarket, fmt.Sprintf("%d/%d", a.market, a.tick.offset))
		}, figures{Wrong: 1}, "not below joiner-market"},
		{"citation of another partition", func(w *world, a *modelAlert) {
			w.setHeader(a, enrich.HeaderMarket, fmt.Sprintf("%d/%d", 1-a.market, a.next))
		}, figures{Wrong: 1}, "another partition than market"},
		{"citation above the end", func(w *world, a *modelAlert) {
			w.setHeader(a, enrich.HeaderMarket, fmt.Sprintf("%d/9999", a.market))
		}, figures{Wrong: 1}, "above what there is"},
		{"citation too high", func(w *world, a *modelAlert) {
			w.setHeader(a, enrich.HeaderMarket, fmt.Sprintf("%d/%d", a.market, w.merged[a.market]))
		}, figures{Wrong: 1}, "the ticks below joiner-market give"},
		{"citation unreadable", func(w *world, a *modelAlert) { w.setHeader(a, enrich.HeaderMarket, "1/07") }, figures{Wrong: 1}, "cannot be read"},
		{"no citation", func(w *world, a *modelAlert) {
			r := w.alert(a)
			r.Headers = r.Headers[:len(r.Headers)-1]
		}, figures{Wrong: 1}, "without joiner-market"},
		{"one header more", func(w *world, a *modelAlert) {
			r := w.alert(a)
			r.Headers = append(slices.Clone(r.Headers), record.Header{Key: []byte("x")})
		}, figures{Wrong: 1}, "last headers"},
		{"a header changed", func(w *world, a *modelAlert) { w.setHeader(a, "trace", "?") }, figures{Wrong: 1}, "key or headers"},
		{"null header empty", func(w *world, a *modelAlert) { w.setHeader(a, "null", "") }, figures{Wrong: 1}, "key or headers"},
		{"key changed", func(w *world, a *modelAlert) { w.alert(a).Key = []byte("S00") }, figures{Wrong: 1}, "key or headers"},
		{"timestamp changed", func(w *world, a *modelAlert) { w.alert(a).Timestamp++ }, figures{Wrong: 1}, "timestamp"},
		{"a space more", func(w *world, a *modelAlert) { w.rewrite(a, `{"n":24}`, `{"n":24} `) }, figures{Wrong: 1}, "byte for byte"},
		{"a space inside", func(w *world, a *modelAlert) { w.rewrite(a, `{"n":24}`, `{"n": 24}`) }, figures{Wrong: 1}, "byte for byte"},
		{"event time", func(w *world, a *modelAlert) {
			w.rewrite(a, `.240Z"`, `.241Z"`)
			w.rewrite(a, `"age_ms":5`, `"age_ms":4`)
		}, figures{Wrong: 1}, "another price or event time"},
		{"age", func(w *world, a *modelAlert) { w.rewrite(a, `"age_ms":5`, `"age_ms":6`) }, figures{Wrong: 1}, "age_ms"},
		{"as_of", func(w *world, a *modelAlert) {
			w.rewrite(a, `"result":"hit"`, `"result":"hit","as_of":false`)
		}, figures{Wrong: 1}, "as_of"},
		{"a miss instead", func(w *world, a *modelAlert) {
			v := w.alert(a).Value
			at := bytes.Index(v, []byte(`,"market":`))
			w.alert(a).Value = []byte(string(v[:at]) + `,"market":null,"join":{"locality":"local","result":"miss"}}`)
		}, figures{Wrong: 1, Missed: 1}, "it has no price, and the ticks"},
		{"no JSON", func(w *world, a *modelAlert) { w.alert(a).Value = []byte("x") }, figures{Wrong: 1}, "no enriched alert"},
		{"other members", func(w *world, a *modelAlert) { // the same alert, written otherwise
			w.rewrite(a, `{"notification":`, `{"more":[1], "notification":`)
		}, figures{}, ""},
		{"no source", func(w *world, a *modelAlert) { w.setHeader(a, enrich.HeaderSource, "notes/0") }, figures{Foreign: 1, Lost: 1}, "no alert and no dead letter"},
		{"source of another topic", func(w *world, a *modelAlert) { w.setHeader(a, enrich.HeaderSource, "other/0/1") }, figures{Foreign: 1, Lost: 1}, "other"},
		{"source above the end", func(w *world, a *modelAlert) { w.setHeader(a, enrich.HeaderSource, "notes/0/999") }, figures{Foreign: 1, Lost: 1}, "above"},
		{"source in no partition", func(w *world, a *modelAlert) { w.setHeader(a, enrich.HeaderSource, "notes/2/0") }, figures{Foreign: 1, Lost: 1}, "above"},
	} {
		t.Run(one.name, func(t *testing.T) {
			w := steady(t, n)
			a := w.alerts[24]
			one.plant(w, a)
			r := w.audit()
			if got := figuresOf(r); got != one.want {
				t.Errorf("got  %+v\nwant %+v%s", got, one.want, r.dump())
			}
			if !strings.Contains(r.dump(), one.detail) {
				t.Errorf("no example says %q:%s", one.detail, r.dump())
			}
			if one.want.Wrong == 0 {
				return
			}
			e := r.Examples[0]
			if e.Topic != alertTopic || (place{e.Partition, e.Offset}) != a.at || e.Key != string(w.alert(a).Key) {
				t.Errorf("the example is about %+v, not %v of key S0", e, a.at)
			}
			if failure := r.Failure(); failure != "1 wrong" {
				t.Errorf("failure %q", failure)
			}
		})
	}
}

// tickOf is what an alert's market part says of its tick.
func (w *world) tickOf(a *modelAlert) string {
	v := string(w.alert(a).Value)
	from := strings.Index(v, `"event_time"`)
	to := strings.Index(v, `,"age_ms"`)
	return v[from:to] + v[to:strings.Index(v, `,"partition"`)] + v[strings.Index(v, `,"partition"`):strings.Index(v, `},"join"`)]
}

// Any number of outputs removed, copied, swapped, altered and made up is
// counted exactly.
func TestPlantedFaultsAreCountedExactly(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := steady(tb{t, r}, 60)
		var want figures
		alerts := rapid.Permutation(w.alerts).Draw(r, "order")
		touched := make(map[*modelAlert]bool)
		take := func() *modelAlert {
			a := alerts[0]
			alerts = alerts[1:]
			touched[a] = true
			return a
		}
		gone := make(map[place]bool)
		for range rapid.IntRange(0, 8).Draw(r, "lost") {
			gone[take().at] = true
			want.Lost++
		}
		for range rapid.IntRange(0, 5).Draw(r, "wrong") {
			a := take()
			w.rewrite(a, `"price":`, `"price":1`)
			want.Wrong++
		}
		for range rapid.IntRange(0, 5).Draw(r, "altered") {
			w.rewrite(take(), `{"n":`, `{"m":`)
			want.Wrong++
		}
		for i := range rapid.IntRange(0, 5).Draw(r, "foreign") {
			made := *w.alert(w.alerts[i])
			made.Headers = slices.Clone(made.Headers)
			made.Headers[2].Value = []byte("strangers/0/0")
			w.log.add(alertTopic, 0, made)
			want.Foreign++
		}
		if rapid.Bool().Draw(r, "swap") {
			// Two neighbours of one symbol that are left.
			for i, a := range w.alerts[:52] {
				b := w.alerts[i+8]
				if gone[a.at] || gone[b.at] {
					continue
				}
				x, y := w.alert(a), w.alert(b)
				*x, *y = *y, *x
				x.Offset, y.Offset = y.Offset, x.Offset
				a.at, b.at = b.at, a.at
				want.OutOfOrder++
				break
			}
		}
		// The last of a symbol come again, which changes no order.
		for _, a := range w.alerts[52:] {
			if !touched[a] && want.OutOfOrder == 0 && rapid.Bool().Draw(r, "double") {
				w.log.add(alertTopic, a.at.partition, *w.alert(a))
				want.Doubled++
			}
		}
		for p, part := range w.log.parts[alertTopic] {
			part.remove(func(r *record.Record) bool { return gone[place{int32(p), r.Offset}] })
		}
		report := w.audit()
		if got := figuresOf(report); got != want {
			r.Fatalf("got  %+v\nwant %+v%s", got, want, report.dump())
		}
		if failed := report.Failure() != ""; failed != (want != figures{}) {
			r.Fatalf("failure %q", report.Failure())
		}
	})
}

// A copy that comes later than a younger output of its symbol puts that one out
// of order: the last copy is what a reader is left with.
func TestOrderIsThatOfTheLastCopies(t *testing.T) {
	w := steady(t, 40)
	w.log.add(alertTopic, w.alerts[8].at.partition, *w.alert(w.alerts[8]))
	r := w.audit()
	// Of symbol S0 there are 0, 8, 16, 24, 32; 8 lies last.
	if want := (figures{Doubled: 1, OutOfOrder: 3}); figuresOf(r) != want {
		t.Errorf("got %+v, want %+v%s", figuresOf(r), want, r.dump())
	}
}

// What a tombstone, a late tick or retention has to do with an alert that the
// ticks left do not bear out.
func TestWhatIsGone(t *testing.T) {
	t.Run("tombstone compacted", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.tick("A", 10, "1")
		w.tick("A", 20, "") // newer than
		w.tick("A", 15, "2")
		w.merge(0, 3)
		w.join(w.note(0, "A", 30, `{}`))
		if r := w.audit(); figuresOf(r) != (figures{Missed: 1}) {
			t.Fatal(figuresOf(r), r.dump())
		}
		w.log.parts[marketTopic][0].remove(func(r *record.Record) bool { return r.Offset < 2 })
		if r := w.audit(); figuresOf(r) != (figures{Missed: 1, Wrong: 1}) {
			t.Error("not a compacted topic:", figuresOf(r), r.dump())
		}
		w.topics.Market.Compacted = true
		if r := w.audit(); figuresOf(r) != (figures{Missed: 1, Unverifiable: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("dense log of a compacted topic", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.topics.Market.Compacted = true
		w.tick("A", 10, "1")
		w.join(w.note(0, "A", 30, `{}`))
		w.merge(0, 1)
		w.setHeader(w.alerts[0], enrich.HeaderMarket, "0/1")
		if r := w.audit(); figuresOf(r) != (figures{Missed: 1, Wrong: 1}) {
			t.Error("nothing is gone, so the miss is wrong:", figuresOf(r), r.dump())
		}
	})
	t.Run("gap above the citation", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.topics.Market.Compacted = true
		w.tick("A", 10, "1")
		w.tick("B", 10, "1")
		w.tick("B", 11, "1")
		w.join(w.note(0, "A", 30, `{}`))
		w.setHeader(w.alerts[0], enrich.HeaderMarket, "0/1")
		w.log.parts[marketTopic][0].remove(func(r *record.Record) bool { return r.Offset == 1 })
		if r := w.audit(); figuresOf(r) != (figures{Missed: 1, Wrong: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("gap right below the citation", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.topics.Market.Compacted = true
		w.tick("A", 10, "1")
		w.tick("A", 20, "")
		w.merge(0, 2)
		w.join(w.note(0, "A", 30, `{}`))
		w.tick("B", 40, "1")
		w.log.parts[marketTopic][0].remove(func(r *record.Record) bool { return r.Offset == 1 })
		if r := w.audit(); figuresOf(r) != (figures{Missed: 1, Unverifiable: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("an output deleted that had overtaken one that is left", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		waits, goes := w.note(0, "B", 1, `{}`), w.note(0, "A", 1, `{}`)
		w.join(goes)
		w.join(waits)
		w.log.parts[alertTopic][0].truncate(1)
		if r := w.audit(); figuresOf(r) != (figures{Missed: 1, Unverifiable: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("a dead letter deleted that had overtaken one that is left", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		good, bad := w.note(0, "B", 1, `{}`), w.note(0, "A", 1, `[`)
		w.join(bad)
		w.deadLetter(enrich.Source{Topic: noteTopic, Offset: good.offset}, &w.log.parts[noteTopic][0].records[0], &enrich.Bad{Kind: record.TooLarge})
		w.log.parts[deadTopic][0].truncate(1)
		if r := w.audit(); figuresOf(r) != (figures{DeadLettered: 1, Unverifiable: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("older late tick is left, the cited one is not", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.topics.Market.Compacted = true
		w.tick("A", 20, "1")
		w.tick("A", 10, "2") // late
		w.merge(0, 2)
		w.join(w.note(0, "A", 30, `{}`))
		w.log.parts[marketTopic][0].remove(func(r *record.Record) bool { return r.Offset == 0 })
		if r := w.audit(); figuresOf(r) != (figures{Unverifiable: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("a newer one is left", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.topics.Market.Compacted = true
		w.tick("B", 1, "1")
		w.tick("A", 10, "2")
		w.merge(0, 2)
		w.join(w.note(0, "A", 30, `{}`))
		w.tick("A", 20, "3")
		w.setHeader(w.alerts[0], enrich.HeaderMarket, "0/3")
		w.log.parts[marketTopic][0].remove(func(r *record.Record) bool { return r.Offset == 0 })
		if r := w.audit(); figuresOf(r) != (figures{Wrong: 1}) {
			t.Error("whatever is gone, the tick at 2 beats the one at 1:", figuresOf(r), r.dump())
		}
	})
	t.Run("market log begins later", func(t *testing.T) {
		w := steady(t, 40)
		part := w.log.parts[marketTopic][w.alerts[0].market]
		part.truncate(6)
		want := figures{}
		for _, a := range w.alerts {
			if a.market == w.alerts[0].market && a.tick.offset < 6 {
				want.Unverifiable++
			}
		}
		if r := w.audit(); figuresOf(r) != want || want.Unverifiable == 0 || r.Failure() != "" {
			t.Error(figuresOf(r), want, r.dump())
		}
	})
	t.Run("miss older than the market log", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.join(w.note(0, "A", 30, `{}`)) // cites 0/0
		w.tick("A", 40, "1")
		w.tick("A", 50, "1")
		w.log.parts[marketTopic][0].truncate(1)
		r := w.audit()
		if figuresOf(r) != (figures{Missed: 1, Unverifiable: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
		if r.Failure() != "nothing could be verified" {
			t.Error(r.Failure())
		}
	})
	t.Run("notifications begin later", func(t *testing.T) {
		w := steady(t, 40)
		p := w.alerts[0].at.partition
		w.log.parts[noteTopic][p].truncate(3)
		if r := w.audit(); figuresOf(r) != (figures{Unverifiable: 3}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("notification compacted", func(t *testing.T) {
		w := steady(t, 40)
		w.log.parts[noteTopic][0].remove(func(r *record.Record) bool { return r.Offset == 3 })
		if r := w.audit(); figuresOf(r) != (figures{Foreign: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
		w.topics.Notifications.Compacted = true
		if r := w.audit(); figuresOf(r) != (figures{Unverifiable: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("alerts begin later", func(t *testing.T) {
		w := steady(t, 40)
		part := w.log.parts[alertTopic][0]
		n := part.end
		part.truncate(5)
		r := w.audit()
		if figuresOf(r) != (figures{Unverifiable: 5}) {
			t.Error(figuresOf(r), r.dump())
		}
		// One in the middle, of a symbol that has an older one, is lost.
		part.remove(func(r *record.Record) bool { return r.Offset == n-1 })
		if r := w.audit(); figuresOf(r) != (figures{Unverifiable: 5, Lost: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("dead letters begin later", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		for i := range 6 {
			w.join(w.note(0, "A", int64(i), `[`))
		}
		part := w.log.parts[deadTopic][0]
		part.truncate(2)
		if r := w.audit(); figuresOf(r) != (figures{DeadLettered: 4, Unverifiable: 2}) {
			t.Error(figuresOf(r), r.dump())
		}
		part.remove(func(r *record.Record) bool { return r.Offset == 4 })
		if r := w.audit(); figuresOf(r) != (figures{DeadLettered: 3, Unverifiable: 2, Lost: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
}

// Dead letters are held against what their record really is.
func TestDeadLetters(t *testing.T) {
	build := func(t *testing.T) *world {
		w := newWorld(t, 2, 1, 0)
		w.log.add(marketTopic, w.home("A"), record.Record{Key: []byte("X"), Value: []byte(`{"price":true}`), Timestamp: since1970})
		w.tick("A", 10, "1")
		w.merge(0, 9)
		w.merge(1, 9)
		w.join(w.note(1, "A", 12, `[`))
		w.join(w.note(1, "", 12, `{}`))
		w.join(w.note(w.home("A"), "A", 12, `{}`))
		return w
	}
	dead := func(w *world, i int) *record.Record { return &w.log.parts[deadTopic][0].records[i] }
	set := func(w *world, i int, name, value string) {
		r := dead(w, i)
		r.Headers = slices.Clone(r.Headers)
		r.Headers[lastHeader(r.Headers, name)].Value = []byte(value)
	}
	clean := figures{DeadLettered: 2}
	for _, one := range []struct {
		name  string
		plant func(w *world)
		want  figures
	}{
		{"clean", func(*world) {}, clean},
		{"wrong kind", func(w *world) { set(w, 1, enrich.HeaderErrorKind, "null_value") }, figures{DeadLettered: 2, Wrong: 1}},
		{"wrong kind of a tick", func(w *world) { set(w, 0, enrich.HeaderErrorKind, "invalid_json") }, figures{DeadLettered: 2, Wrong: 1}},
		{"no kind", func(w *world) { set(w, 1, enrich.HeaderErrorKind, "bad") }, figures{DeadLettered: 2, Wrong: 1}},
		{"a good one as bad", func(w *world) {
			set(w, 1, enrich.HeaderSource, fmt.Sprintf("notes/%d/%d", w.alerts[0].source.partition, w.alerts[0].source.offset))
		}, figures{DeadLettered: 1, Wrong: 1, Doubled: 1, Lost: 1}},
		{"no_price, which is not dead-lettered", func(w *world) { set(w, 1, enrich.HeaderErrorKind, "no_price") }, figures{DeadLettered: 2, Wrong: 1}},
		{"value changed", func(w *world) { dead(w, 1).Value = []byte("]") }, figures{DeadLettered: 2, Wrong: 1}},
		{"value emptied, unsaid", func(w *world) { dead(w, 1).Value = []byte{} }, figures{DeadLettered: 2, Wrong: 1}},
		{"value emptied, said", func(w *world) {
			r := dead(w, 1)
			r.Value = []byte{}
			r.Headers = append(slices.Clone(r.Headers), record.Header{Key: []byte(enrich.HeaderValueBytes), Value: []byte("1")})
		}, clean},
		{"value emptied, another length said", func(w *world) {
			r := dead(w, 1)
			r.Value = []byte{}
			r.Headers = append(slices.Clone(r.Headers), record.Header{Key: []byte(enrich.HeaderValueBytes), Value: []byte("2")})
		}, figures{DeadLettered: 2, Wrong: 1}},
		{"timestamp changed", func(w *world) { dead(w, 0).Timestamp += 1000 }, figures{DeadLettered: 2, Wrong: 1}},
		{"dated anew, too old for the topic", func(w *world) {
			w.topics.DeadLetters.Before = time.Hour.Milliseconds()
			dead(w, 0).Timestamp += record.Millis(2 * time.Hour.Milliseconds())
		}, clean},
		{"a tick's is lost", func(w *world) { w.log.parts[deadTopic][0].remove(func(r *record.Record) bool { return r.Offset == 0 }) },
			figures{DeadLettered: 2, TicksLost: 1}},
		{"a notification's is lost", func(w *world) { w.log.parts[deadTopic][0].remove(func(r *record.Record) bool { return r.Offset == 1 }) },
			figures{DeadLettered: 1, Lost: 1}},
		{"a tick's is doubled", func(w *world) { w.log.add(deadTopic, 0, *dead(w, 0)) }, figures{DeadLettered: 2, Doubled: 1}},
		{"of no tick", func(w *world) { set(w, 0, enrich.HeaderSource, "market/1/77") }, figures{DeadLettered: 2, Foreign: 1, TicksLost: 1}},
		{"of a good tick", func(w *world) {
			set(w, 0, enrich.HeaderSource, fmt.Sprintf("market/%d/%d", w.alerts[0].market, w.alerts[0].tick.offset))
		}, figures{DeadLettered: 2, Wrong: 1, TicksLost: 1}},
	} {
		t.Run(one.name, func(t *testing.T) {
			w := build(t)
			one.plant(w)
			if r := w.audit(); figuresOf(r) != one.want {
				t.Errorf("got  %+v\nwant %+v%s", figuresOf(r), one.want, r.dump())
			}
		})
	}
}

// What the configuration lets fall is dropped, not lost.
func TestDropped(t *testing.T) {
	t.Run("bad, no dead letters", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.note(0, "A", 1, `[`)
		w.topics.DeadLetters, w.o.DeadLetters = Topic{}, ""
		r := w.audit()
		if figuresOf(r) != (figures{Dropped: 1}) || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "could not be told from lost") {
			t.Error(figuresOf(r), r.Notes)
		}
	})
	t.Run("too large, no dead letters", func(t *testing.T) {
		for _, c := range []struct {
			topic, configured int64
			want              figures
		}{
			{0, 0, figures{Lost: 1}}, // the broker's default has room
			{1 << 20, 0, figures{Lost: 1}},
			{3000, 0, figures{Dropped: 1}},
			{1 << 20, 3000, figures{Dropped: 1}},
		} {
			w := newWorld(t, 1, 1, 0)
			w.note(0, strings.Repeat("A", 1000), 1, `{}`)
			w.topics.DeadLetters, w.o.DeadLetters = Topic{}, ""
			w.topics.Alerts.MaxBytes, w.o.MaxMessageBytes = c.topic, c.configured
			if r := w.audit(); figuresOf(r) != c.want {
				t.Errorf("limits %d and %d: %+v, want %+v", c.topic, c.configured, figuresOf(r), c.want)
			}
		}
	})
	misses := func(t *testing.T) *world {
		w := newWorld(t, 2, 1, 0)
		w.o.DropMisses = true
		w.tick("A", 10, "1")
		w.tick("A", 20, "")
		w.tick("B", 30, "1")
		for _, at := range []int64{9, 10, 19, 20, 40} { // none, 1, 1, none, none
			w.note(w.home("A"), "A", at, `{}`)
		}
		w.note(w.home("B"), "B", 29, `{}`)
		w.note(w.home("B"), "B", 30, `{}`)
		w.note(1-w.home("C"), "C", 30, `{}`) // misplaced: two partitions are asked
		return w
	}
	t.Run("misses", func(t *testing.T) {
		w := misses(t)
		if r := w.audit(); figuresOf(r) != (figures{Dropped: 5, Lost: 3}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("no answers", func(t *testing.T) {
		w := misses(t)
		w.o.DropMisses, w.o.DropNoAnswer = false, true
		if r := w.audit(); figuresOf(r) != (figures{Dropped: 8}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
	t.Run("before the group", func(t *testing.T) {
		w := newWorld(t, 1, 1, 0)
		w.o.StartLatest = true
		for range 3 {
			w.note(0, "A", 1, `{}`)
		}
		w.join(w.note(0, "A", 1, `{}`))
		w.note(0, "A", 1, `{}`)
		if r := w.audit(); figuresOf(r) != (figures{Dropped: 3, Lost: 1, Missed: 1}) {
			t.Error(figuresOf(r), r.dump())
		}
	})
}

// The window is that of the notifications' timestamps; what lies outside is
// neither counted nor judged.
func TestWindow(t *testing.T) {
	w := steady(t, 40) // notifications at 5, 15, … 395
	w.rewrite(w.alerts[3], `"price":3`, `"price":33`)
	w.rewrite(w.alerts[20], `"price":20`, `"price":21`)
	w.o.Since, w.o.Until = time.UnixMilli(since1970+100), time.UnixMilli(since1970+300)
	r := w.audit()
	if figuresOf(r) != (figures{Wrong: 1}) || r.Notifications != 20 || r.Alerts != 20 || r.Verified != 19 {
		t.Errorf("%+v, %d notifications, %d alerts, %d verified%s", figuresOf(r), r.Notifications, r.Alerts, r.Verified, r.dump())
	}
	if r.Window.Since.UnixMilli() != since1970+100 || len(r.Window.Partitions) != 7 {
		t.Errorf("window %+v", r.Window)
	}
	w.o.Until = w.o.Since
	if _, err := Audit(t.Context(), w.o, w.log, w.topics); err == nil {
		t.Error("an empty window is no error")
	}
}

// Records that came after the audit began are not judged.
func TestRecordsThatComeMeanwhile(t *testing.T) {
	w := steady(t, 40)
	grow := &growing{memory: w.log, w: w}
	r, err := Audit(t.Context(), w.o, grow, w.topics)
	if err != nil {
		t.Fatal(err)
	}
	if figuresOf(r) != (figures{}) || r.Notifications != 40 || grow.added == 0 {
		t.Errorf("%+v, %d notifications, %d came meanwhile%s", figuresOf(r), r.Notifications, grow.added, r.dump())
	}
}

// growing is a log in which a notification is joined whenever an end is asked
// for.
type growing struct {
	*memory
	w     *world
	added int
}

func (g *growing) Bounds(ctx context.Context, topic string, partition int32) (int64, int64, error) {
	start, end, err := g.memory.Bounds(ctx, topic, partition)
	g.w.tick("S0", int64(1000+g.added), "1")
	g.w.merge(g.w.home("S0"), 1)
	g.w.join(g.w.note(g.w.home("S0"), "S0", int64(1000+g.added), `{}`))
	g.added++
	return start, end, err
}

// Retention that goes on while the audit reads makes nothing lost, wrong or
// foreign.
func TestRetentionMeanwhile(t *testing.T) {
	for topic, want := range map[string]figures{
		noteTopic:   {Unverifiable: 5}, // outputs without their source
		alertTopic:  {Unverifiable: 5}, // notifications without their output
		marketTopic: {Unverifiable: 5}, // alerts without their tick
	} {
		t.Run(topic, func(t *testing.T) {
			w := steady(t, 40)
			log := &shrinking{memory: w.log, topic: topic}
			r, err := Audit(t.Context(), w.o, log, w.topics)
			if err != nil {
				t.Fatal(err)
			}
			if figuresOf(r) != want || !log.done {
				t.Errorf("got %+v, want %+v%s", figuresOf(r), want, r.dump())
			}
		})
	}
}

// shrinking is a log whose retention takes the first five records of a topic's
// first partition just before it is read.
type shrinking struct {
	*memory
	topic string
	done  bool
}

func (s *shrinking) Read(ctx context.Context, topic string, partition int32, from, to int64, each func([]record.Record) error, progress func(int64)) error {
	if topic == s.topic && !s.done {
		s.parts[topic][0].truncate(5)
		s.done = true
	}
	return s.memory.Read(ctx, topic, partition, from, to, each, progress)
}

// late answers as if it knew all ticks, whatever their order.
func TestLateKnowsWhatMatters(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var all []version
		var l late
		at := int64(0)
		for range rapid.IntRange(0, 30).Draw(r, "ticks") {
			at += int64(rapid.IntRange(0, 2).Draw(r, "later"))
			v := version{time: at, offset: int64(rapid.IntRange(0, 50).Draw(r, "offset"))}
			all, l = append(all, v), l.with(v)
			from, offset := int64(rapid.IntRange(-1, int(at)+1).Draw(r, "from")), int64(rapid.IntRange(0, 51).Draw(r, "at least"))
			want := slices.ContainsFunc(all, func(v version) bool { return v.time >= from && v.offset >= offset })
			if got := l.any(from, offset); got != want {
				r.Fatalf("a tick from %d on of at least %d: %v, want %v, of %+v", from, offset, got, want, all)
			}
		}
	})
}

// Nothing at all is no proof.
func TestNothingToVerify(t *testing.T) {
	w := newWorld(t, 2, 1, 0)
	if failure := w.audit().Failure(); failure != "nothing could be verified" {
		t.Error(failure)
	}
	w.topics.Alerts.Partitions = 0
	if _, err := Audit(t.Context(), w.o, w.log, w.topics); err == nil || !strings.Contains(err.Error(), "alerts does not exist") {
		t.Error(err)
	}
}

func TestLongKeysAreCut(t *testing.T) {
	for key, want := range map[string]string{
		"BBCA":                     "BBCA",
		strings.Repeat("A", 64):    strings.Repeat("A", 64),
		strings.Repeat("A", 900e3): `"` + strings.Repeat("A", 64) + `"… (900000 bytes)`,
	} {
		if got := printable([]byte(key)); got != want {
			t.Errorf("%.70s: %.100s", key, got)
		}
	}
}

func TestUnequalInputsAreNoted(t *testing.T) {
	for _, c := range []struct {
		market, notes int32
		want          string
	}{
		{6, 6, ""},
		{8, 6, "topic ticks has 8 partitions and notes 6"},
		{6, 8, "topic ticks has 6 partitions and notes 8"},
	} {
		a := &auditor{topics: Topics{Market: Topic{Name: "ticks", Partitions: c.market}, Notifications: Topic{Name: "notes", Partitions: c.notes}}}
		a.explain()
		if got := strings.Join(a.report.Notes, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%d and %d partitions: notes %q, want %q", c.market, c.notes, got, c.want)
		}
	}
}
