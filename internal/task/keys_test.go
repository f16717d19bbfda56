package task

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
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
