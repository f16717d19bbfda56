package task

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"joiner/internal/enrich"
	"joiner/internal/record"
)

// What the merge takes is watched: the symbols of good records, and where keys
// lie, of bad ones as well.
func TestKeysAreWatched(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.home = func(symbol string) (int32, bool) {
			if strings.HasPrefix(symbol, "stray") {
				return 4, true
			}
			return 3, true
		}
		w.prices = func(Query) Answer { return Answer{Outcome: NotAsked} }
		w.start(-1, -1)
		w.tick("BBCA", "9150", 1000)
		w.tick("BBCA", "9151", 1001)
		w.tick("stray tick", "1", 1002)
		w.tick("stray bad", `"none"`, 1003)
		w.note("BBCA", 2000)
		w.note("stray note", 2001)
		synctest.Wait()

		want := "[{BBCA 3 0.6} {stray note 1 0.2} {stray tick 1 0.2}]"
		if got, total := w.watch.Hottest(9); fmt.Sprint(got) != want || total != 5 {
			t.Errorf("hottest %v of %d, want %s", got, total, want)
		}
		notes := w.watch.Notes()
		if len(notes) != 2 ||
			!strings.HasPrefix(notes[0], "2 of the latest 4 records of market-updates (50 %) are misplaced") ||
			!strings.HasPrefix(notes[1], "1 of the latest 2 records of notifications (50 %) are misplaced") {
			t.Errorf("notes %q", notes)
		}
		w.stop()
		if got, total := w.watch.Hottest(9); len(got) != 0 || total != 0 {
			t.Errorf("the task has gone, its symbols have not: %v of %d", got, total)
		}
	})
}

// A price is looked for where its symbol belongs: where ticks have another key,
// that one's place says nothing. Notifications lie where their producer put them.
func TestTicksAreJudgedByTheirSymbol(t *testing.T) {
	market, err := enrich.NewMarketDecoder(enrich.MarketOptions{Symbol: "sym", Price: "price", EventTime: "record", EventTimeUnit: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(o *Options) { o.Market = market }, func(t *testing.T, w *world) {
		w.home = func(symbol string) (int32, bool) {
			if strings.HasPrefix(symbol, "stray") {
				return 4, true
			}
			return 3, true
		}
		w.prices = func(Query) Answer { return Answer{Outcome: NotAsked} }
		w.start(-1, -1)
		w.offer(record.Market, w.put(record.Market, "stray 1", `{"sym":"BBCA","price":1}`, 1000))
		w.offer(record.Market, w.put(record.Market, "BBCA", `{"sym":"stray 2","price":1}`, 1001))
		w.offer(record.Market, w.put(record.Market, "stray 3", `{"sym":"BBCA"}`, 1002))
		gone := w.put(record.Market, "stray 4", "", 1003)
		gone.Value = nil // a tombstone's symbol is its key
		w.offer(record.Market, gone)
		w.offer(record.Notification, w.put(record.Notification, "stray 5", `{}`, 1004))
		synctest.Wait()
		notes := w.watch.Notes()
		if len(notes) != 2 ||
			!strings.HasPrefix(notes[0], "2 of the latest 4 records of market-updates (50 %) are misplaced") ||
			!strings.HasPrefix(notes[1], "1 of the latest 1 records of notifications (100 %) are misplaced") {
			t.Errorf("notes %q", notes)
		}
	})
}
