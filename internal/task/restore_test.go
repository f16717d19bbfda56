package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"joiner/internal/metrics"
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

// slowLog is the market log of a world: a reading of it waits for steps.
type slowLog struct {
	*world
	steps chan struct{}
}

func (l *slowLog) Read(ctx context.Context, topic string, index int32, from, to int64, each func([]record.Record) error, progress func(int64)) error {
	return l.world.Read(ctx, topic, index, from, to, each, func(position int64) {
		<-l.steps
		progress(position)
	})
}

// While a task restores, what waits for it is shown as it is: from the group's
// commits on, up to the ends, and since when, by which retention goes, too. Ends
// go on being shown when the queues have been full for long.
func TestWhatWaitsIsShownWhileRestoring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		log := &slowLog{steps: make(chan struct{})}
		w := newWorld(t, func(o *Options) {
			m := metrics.New(reg, metrics.Options{Topics: [record.Sides]string{marketTopic, noteTopic}})
			m.SetRetention(record.Market, 2*time.Hour)
			m.SetRetention(record.Notification, time.Hour)
			o.Metrics = m.Partition(3, [record.Sides]bool{true, true})
			o.Limits.QueueRecords = 1
			o.Log = log
		})
		log.world = w
		var notes, ticks []record.Record
		from := time.Now()
		for i := range 4 { // two of each are committed
			at := record.Millis(from.Add(time.Duration(i) * time.Second).UnixMilli())
			ticks = append(ticks, w.put(record.Market, "A", `{"price":1}`, at))
			notes = append(notes, w.put(record.Notification, "A", `{}`, at))
		}
		time.Sleep(30 * time.Minute)
		x := w.start(2, 2)
		defer w.stop()
		synctest.Wait()
		w.shows(reg, "the claims have begun", `
# TYPE joiner_committed_offset gauge
joiner_committed_offset{partition="3",topic="market-updates"} 2
joiner_committed_offset{partition="3",topic="notifications"} 2
# TYPE joiner_lag_records gauge
joiner_lag_records{partition="3",topic="market-updates"} 2
joiner_lag_records{partition="3",topic="notifications"} 2
# TYPE joiner_restore_remaining_records gauge
joiner_restore_remaining_records{partition="3"} 2
`)
		for _, i := range []int{2, 3} {
			w.offer(record.Notification, notes[i])
			w.offer(record.Market, ticks[i])
		}
		w.shows(reg, "records have come", `
# TYPE joiner_committed_offset gauge
joiner_committed_offset{partition="3",topic="market-updates"} 2
joiner_committed_offset{partition="3",topic="notifications"} 2
# TYPE joiner_lag_records gauge
joiner_lag_records{partition="3",topic="market-updates"} 2
joiner_lag_records{partition="3",topic="notifications"} 2
# TYPE joiner_lag_seconds gauge
joiner_lag_seconds{partition="3",topic="market-updates"} 1798
joiner_lag_seconds{partition="3",topic="notifications"} 1798
# TYPE joiner_restore_remaining_records gauge
joiner_restore_remaining_records{partition="3"} 2
# TYPE joiner_retention_headroom_seconds gauge
joiner_retention_headroom_seconds{partition="3",topic="market-updates"} 5402
joiner_retention_headroom_seconds{partition="3",topic="notifications"} 1802
`)
		time.Sleep(10 * time.Minute)
		w.put(record.Notification, "A", `{}`, record.Millis(time.Now().UnixMilli())) // the queue has no room for it
		log.steps <- struct{}{}
		synctest.Wait()
		w.shows(reg, "it restores, and records are there", `
# TYPE joiner_committed_offset gauge
joiner_committed_offset{partition="3",topic="market-updates"} 2
joiner_committed_offset{partition="3",topic="notifications"} 2
# TYPE joiner_lag_records gauge
joiner_lag_records{partition="3",topic="market-updates"} 2
joiner_lag_records{partition="3",topic="notifications"} 3
# TYPE joiner_lag_seconds gauge
joiner_lag_seconds{partition="3",topic="market-updates"} 2398
joiner_lag_seconds{partition="3",topic="notifications"} 2398
# TYPE joiner_restore_remaining_records gauge
joiner_restore_remaining_records{partition="3"} 1
# TYPE joiner_retention_headroom_seconds gauge
joiner_retention_headroom_seconds{partition="3",topic="market-updates"} 4802
joiner_retention_headroom_seconds{partition="3",topic="notifications"} 1202
`)
		if s := x.State(); s != Restoring {
			t.Fatalf("it is %v", s)
		}
		close(log.steps)
		<-x.Ready()
	})
}

// Where nothing waits but a control record, that is what is shown while it
// restores.
func TestNothingWaitsWhileRestoring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		log := &slowLog{steps: make(chan struct{})}
		w := newWorld(t, func(o *Options) {
			m := metrics.New(reg, metrics.Options{Topics: [record.Sides]string{marketTopic, noteTopic}})
			m.SetRetention(record.Notification, time.Hour)
			o.Metrics = m.Partition(3, [record.Sides]bool{true, true})
			o.Log = log
		})
		log.world = w
		w.put(record.Market, "A", `{"price":1}`, 1)
		w.control(record.Notification)
		x := w.start(1, 0)
		defer w.stop()
		synctest.Wait()
		w.fetch(record.Notification)
		time.Sleep(time.Hour)
		w.shows(reg, "it restores", `
# TYPE joiner_committed_offset gauge
joiner_committed_offset{partition="3",topic="market-updates"} 1
joiner_committed_offset{partition="3",topic="notifications"} 0
# TYPE joiner_lag_records gauge
joiner_lag_records{partition="3",topic="market-updates"} 0
joiner_lag_records{partition="3",topic="notifications"} 1
# TYPE joiner_lag_seconds gauge
joiner_lag_seconds{partition="3",topic="market-updates"} 0
joiner_lag_seconds{partition="3",topic="notifications"} 0
# TYPE joiner_restore_remaining_records gauge
joiner_restore_remaining_records{partition="3"} 1
# TYPE joiner_retention_headroom_seconds gauge
joiner_retention_headroom_seconds{partition="3",topic="notifications"} 3600
`)
		close(log.steps)
		<-x.Ready()
	})
}

// shows looks at all series of progress.
func (w *world) shows(reg *prometheus.Registry, when, want string) {
	w.t.Helper()
	families, err := reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	help := map[string]string{}
	for _, f := range families {
		help[f.GetName()] = "# HELP " + f.GetName() + " " + f.GetHelp() + "\n"
	}
	var text strings.Builder
	for line := range strings.Lines(want) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			text.WriteString(help[strings.Fields(name)[0]])
		}
		text.WriteString(line)
	}
	err = testutil.GatherAndCompare(reg, strings.NewReader(text.String()), "joiner_committed_offset", "joiner_lag_records",
		"joiner_lag_seconds", "joiner_retention_headroom_seconds", "joiner_restore_remaining_records")
	if err != nil {
		w.t.Errorf("%s: %v", when, err)
	}
}
