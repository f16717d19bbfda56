package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"joiner/internal/record"
	"joiner/internal/state"
)

// brokenLog is the market log of a world whose readings are interrupted.
type brokenLog struct {
	*world
	mu    sync.Mutex
	batch int   // records handed over at a time
	after []int // each reading but the last ends with an error after so many records
	gone  bool  // the last one ends with ErrGone
	reads int
}

var errInterrupted = errors.New("interrupted")

func (l *brokenLog) Read(_ context.Context, topic string, _ int32, from, to int64, each func([]record.Record) error, progress func(int64)) error {
	l.mu.Lock()
	left, interrupted := 0, l.reads < len(l.after)
	if interrupted {
		left = l.after[l.reads]
	}
	l.reads++
	l.mu.Unlock()
	l.world.mu.Lock()
	log := l.logs[sideOf(topic)]
	l.world.mu.Unlock()
	recs := slices.DeleteFunc(slices.Clone(log.recs), func(r record.Record) bool { return r.Offset < from || r.Offset >= to })
	for part := range slices.Chunk(recs, l.batch) {
		if interrupted && left < len(part) {
			// A reading may end within what it has handed over.
			if err := each(part[:left]); err != nil {
				return err
			}
			return errInterrupted
		}
		left -= len(part)
		if err := each(part); err != nil {
			return err
		}
		progress(part[len(part)-1].Offset + 1)
	}
	switch {
	case l.gone:
		return fmt.Errorf("%w: for a test", ErrGone)
	case interrupted:
		return errInterrupted
	}
	progress(to)
	return nil
}

// contents are all entries of a table, as they are saved.
func contents(t *state.Table) map[string]string {
	all := make(map[string]string)
	t.TakeAll()
	for {
		left, _ := t.Take(1000, func(symbol string, data []byte) { all[symbol] = string(data) })
		if left == 0 {
			return all
		}
	}
}

// Whatever interrupts a restore, and however often, the table is in the end the
// one that a task had which merged the same records without any interruption:
// tombstones, bad and late records, aborted ones and control records at the end
// included, with and without a history.
func TestRestoreInterruptedAnywhere(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			history := rapid.SampledFrom([]record.Millis{0, 5}).Draw(r, "history")
			tracked := func(o *Options) {
				o.History = history.Time().Sub(record.Millis(0).Time())
				o.Logger = zap.NewNop()
			}
			live := newWorld(t, tracked)
			n := rapid.IntRange(0, 40).Draw(r, "records")
			for i := range n {
				symbol := fmt.Sprint("S", rapid.IntRange(0, 3).Draw(r, "symbol"))
				at := record.Millis(rapid.IntRange(1, 20).Draw(r, "at"))
				switch rapid.IntRange(0, 9).Draw(r, "kind") {
				case 0:
					live.control(record.Market) // or aborted: nobody sees it
				case 1:
					live.put(record.Market, symbol, "", at)
				case 2:
					live.put(record.Market, symbol, "no JSON", at)
				default:
					live.put(record.Market, symbol, fmt.Sprintf(`{"price":%d}`, i), at)
				}
			}
			end := live.endOf(record.Market)

			// One task merges all that there is.
			merged := New(live.opts)
			merged.table.TrackChanges()
			live.task = merged
			merged.Start(record.Market, -1)
			merged.Start(record.Notification, -1)
			for _, rec := range live.logs[record.Market].recs {
				live.offer(record.Market, rec)
			}
			live.fetch(record.Market)
			live.fetch(record.Notification)
			synctest.Wait()
			live.stop()

			// Another one restores it, interrupted.
			log := &brokenLog{world: live, batch: rapid.IntRange(1, 7).Draw(r, "batch")}
			for range rapid.IntRange(0, 4).Draw(r, "interruptions") {
				log.after = append(log.after, rapid.IntRange(0, n).Draw(r, "after"))
			}
			again := newWorld(t, tracked)
			again.logs = live.logs
			again.opts.Log = log
			again.task = New(again.opts)
			again.task.table.TrackChanges()
			again.task.Start(record.Market, end)
			again.task.Start(record.Notification, 0)
			select {
			case <-again.task.Ready():
			case <-again.task.Done():
				r.Fatal("the restore gave up")
			}
			want, got := contents(merged.table), contents(again.task.table)
			again.stop()
			if !maps.Equal(want, got) {
				r.Fatalf("restored %q, merged %q", got, want)
			}
		})
	})
}

// A restore whose records are gone tells so once and does nothing more: nobody
// joins with what it has.
func TestRestoreOfWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone []string
		w := newWorld(t, func(o *Options) {
			o.Gone = func(x *Task, side record.Side, at int64) {
				gone = append(gone, fmt.Sprint(side, " ", at))
				x.Freeze()
			}
		})
		w.put(record.Market, "A", `{"price":1}`, 1)
		w.put(record.Market, "A", `{"price":2}`, 2)
		w.opts.Log = &brokenLog{world: w, batch: 1, after: []int{1}, gone: true}
		x := w.start(2, 0)
		<-x.Done()
		if !slices.Equal(gone, []string{"market 2"}) {
			t.Errorf("told of %q", gone)
		}
		select {
		case <-x.Ready():
			t.Error("it was ready")
		default:
		}
		for _, c := range w.commits {
			if c != (record.Offsets{2, 0}) {
				t.Errorf("committed %v, it began at 2 and 0", c)
			}
		}
	})
}

// A checkpoint must not be taken for as new as its writing where the log is known
// to have more.
func TestProgressKnowsOfMoreThanWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		x := w.start(0, 0)
		defer w.stop()
		rec := w.put(record.Market, "A", `{"price":1}`, 1)
		x.Deliver(record.Market, x.Batch(record.Market), 0, 1, 1) // there is one, it has not come
		w.fetch(record.Notification)
		if p := x.progress(); !p.Behind || p.Next != record.NoTimestamp {
			t.Errorf("%+v: the record was not fetched", p)
		}
		w.offer(record.Market, rec)
		w.fetch(record.Notification)
		if p := x.progress(); p.Behind || p.Position != 1 {
			t.Errorf("%+v: all was merged", p)
		}
	})
}
