package checkpoint

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/state"
)

// The first pieces of a store that takes the place of a broken one hold a few
// symbols only, whatever the table began with: all of the log is read with them.
func TestPartOfAStoreMadeAnewStandsForItsEntriesAlone(t *testing.T) {
	w := newWorld(t)
	w.facts.Compacted = false // or a head without an age is not trusted
	seed(w)
	end := int64(len(w.log))
	d := w.open()
	task := w.begin(d, end)
	w.verdict(Used)
	task.s.progress = task.stands // this test is what follows the table
	task.s.lost(errors.New("a sync has failed"))
	out, err := task.s.open()
	if err != nil {
		t.Fatal(err)
	}
	if done, err := task.s.piece(out, 1<<10); err != nil || done {
		t.Fatalf("%v %v: the first piece is not all", done, err)
	}
	if err := out.close(); err != nil {
		t.Fatal(err)
	}
	task.s.End()
	w.close(d)

	d = w.open()
	defer w.close(d)
	again := w.begin(d, end)
	w.verdict(Used)
	again.isWhole(end)
	again.s.End()
}

// A task that is taken away while its checkpoint is read goes at once, and
// leaves the checkpoint as it is.
func TestLoadEndsWithItsTask(t *testing.T) {
	w := newWorld(t)
	seed(w)
	end := int64(len(w.log))
	d := w.open()
	defer w.close(d)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		table := state.New(3, time.Second)
		s := d.Session(3, func(context.Context) (Facts, error) {
			cancel()
			return w.facts, nil
		})
		if from := s.Load(ctx, table, Range{Committed: end, End: end}); from != 0 || table.Symbols() != 0 {
			t.Fatalf("from %d, %d symbols", from, table.Symbols())
		}
		s.End()
	}
	if aside := w.aside(); len(aside) != 0 {
		t.Errorf("set aside: %v", aside)
	}
	w.begin(d, end).s.End()
	w.verdict(Used)

	in, err := openReader(w.fs, d.path(3), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := &errand{table: state.New(3, time.Second)}
	if err := fill(ctx, e, in, 0); !errors.Is(err, context.Canceled) || e.table.Symbols() == 3004 {
		t.Errorf("%v, %d symbols: the rest was read, too", err, e.table.Symbols())
	}
}

// A restore that failed is begun again: by then the log may have lost what comes
// after the checkpoint.
func TestLoadedAgainAfterTheLogHasMovedOn(t *testing.T) {
	w := newWorld(t)
	seed(w)
	end := int64(len(w.log))
	d := w.open()
	defer w.close(d)
	table := state.New(3, time.Second)
	s := d.Session(3, func(context.Context) (Facts, error) { return w.facts, nil })
	defer s.End()
	in := Range{Committed: end + 5, End: end + 9}
	for range 2 {
		if from := s.Load(t.Context(), table, in); from != end || table.Symbols() != 3004 {
			t.Fatalf("from %d, %d symbols", from, table.Symbols())
		}
	}
	in.Start = end + 2
	if from := s.Load(t.Context(), table, in); from != in.Start || table.Symbols() != 0 {
		t.Errorf("from %d, %d symbols: what changed them may be gone", from, table.Symbols())
	}
	w.warned("stale")
	if len(w.aside()) != 1 {
		t.Errorf("set aside: %v", w.names())
	}
}

// A task that has ended does not wait for the store of another, with its table
// in memory.
func TestEndedWhileAnotherHasTheStore(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	d.slotWait = time.Millisecond
	defer w.close(d)
	first := w.begin(d, 0).follow()
	defer first.s.End()
	second := w.begin(d, 0).follow()
	second.s.End()
	w.eventually("the end of the second session", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.sessions) == 1 && second.s.table == nil
	})
}

// A checkpoint is as old as what the task has not read, if that is known, and
// gets no older by a record that says it is.
func TestAgeOfACheckpoint(t *testing.T) {
	w := newWorld(t)
	w.now = func() time.Time { return time.UnixMilli(9000) }
	d := w.open()
	defer w.close(d)
	for name, test := range map[string]struct {
		before Progress
		since  record.Millis
	}{
		"all is read":              {Progress{Next: record.NoTimestamp}, 9000},
		"a record waits":           {Progress{Next: 8000}, 8000},
		"from the future":          {Progress{Next: 9999}, 9000},
		"older than was known":     {Progress{Next: 10}, 5000},
		"more is to be fetched":    {Progress{Next: record.NoTimestamp, Behind: true}, 5000},
		"more, and a record waits": {Progress{Next: 8000, Behind: true}, 8000},
	} {
		s := d.Session(3, nil)
		s.head.Since = 5000
		if h := s.next(true, 7, test.before); h.Since != test.since {
			t.Errorf("%s: since %d, want %d", name, h.Since, test.since)
		}
	}
}
