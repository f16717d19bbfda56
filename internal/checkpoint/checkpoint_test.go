package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/sampled"
	"joiner/internal/state"
)

// seed writes a checkpoint of a table with everything that a table can hold.
func seed(w *world) {
	w.t.Helper()
	d := w.open()
	task := w.begin(d, 0).follow()
	w.verdict(Absent)
	for i := range 3000 {
		task.merge(fmt.Sprintf("SYM%d", i), fmt.Sprint(i), record.Millis(10_000+i))
	}
	for _, symbol := range []string{"", "\xff\xfe", "gone", "history"} {
		task.merge(symbol, "-1.50e3", 10_000)
		task.merge(symbol, strings.Repeat("9", 700), 10_100)
	}
	task.merge("gone", "", 10_200)
	task.merge("late", "5", 20_000)
	task.merge("late", "4", 19_500)
	task.commit()
	task.s.End()
	w.close(d)
	if h, err := w.head(); err != nil || h.From != int64(len(w.log)) {
		w.t.Fatalf("no checkpoint was written: %+v %v; %v", h, err, w.logs.All())
	}
}

func TestRestartReadsOnlyWhatItMissed(t *testing.T) {
	w := newWorld(t)
	seed(w)
	missed := int64(len(w.log))
	d := w.open()
	task := w.begin(d, missed).follow()
	w.verdict(Used)
	task.isWhole(missed)
	if task.read != 0 {
		t.Errorf("%d records read, none was missed", task.read)
	}
	task.merge("SYM1", "77", 30_000)
	task.merge("gone", "1", 10_150) // older than the tombstone
	task.merge("new", "1", 1)
	task.commit()
	// The process dies here: what the log has beyond the checkpoint is read.
	task.written()
	task.merge("SYM2", "78", 30_000)
	task.merge("SYM1", "", 30_001)
	w.close(d)
	task.s.End()

	end := int64(len(w.log))
	d = w.open()
	defer w.close(d)
	task = w.begin(d, end)
	w.verdict(Used)
	task.isWhole(end)
	if task.read != 2 {
		t.Errorf("%d records read, 2 were missed", task.read)
	}
	if _, found, _ := task.table.Price([]byte("gone"), 1<<40); found {
		t.Error("a tick older than its tombstone has revived a symbol")
	}
	task.s.End()
	if w.failures.Load() != 0 || len(w.aside()) != 0 {
		t.Errorf("%d failures, set aside: %v", w.failures.Load(), w.aside())
	}
}

// What the group has not committed is not in a checkpoint, whenever it is taken.
func TestNothingUncommittedIsWritten(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	task := w.begin(d, 0).follow()
	task.merge("A", "1", 1)
	task.commit()
	task.written()
	task.merge("A", "2", 2)
	time.Sleep(20 * w.interval) // for a checkpoint that must not come
	if h, err := w.head(); err != nil || h.UpTo != 1 {
		t.Errorf("%+v %v: only the first tick is committed", h, err)
	}
	task.commit()
	task.written()
	task.merge("A", "3", 3)
	task.s.End() // without a commit
	w.close(d)
	d = w.open()
	defer w.close(d)
	task = w.begin(d, 2)
	w.verdict(Used)
	task.isWhole(2)
	task.s.End()
}

func TestWhatIsSetAside(t *testing.T) {
	const end = 3011
	for name, test := range map[string]struct {
		change  func(*world)
		in      Range
		verdict Verdict
	}{
		"same":               {verdict: Used},
		"another cluster":    {func(w *world) { w.facts.Scope.Cluster = "x" }, Range{}, Foreign},
		"another group":      {func(w *world) { w.facts.Scope.Group = "x" }, Range{}, Foreign},
		"another topic":      {func(w *world) { w.facts.Scope.Topic = "x" }, Range{}, Foreign},
		"made anew":          {func(w *world) { w.facts.Scope.TopicID = "x" }, Range{}, Foreign},
		"another partition":  {func(w *world) { w.facts.Scope.Partition = 4 }, Range{}, Foreign},
		"other rules":        {func(w *world) { w.facts.Scope.Rules = "x" }, Range{}, Changed},
		"a longer history":   {func(w *world) { w.facts.Scope.History++ }, Range{}, Changed},
		"a shorter history":  {func(w *world) { w.facts.Scope.History = 0 }, Range{}, Used},
		"no commit":          {nil, Range{Committed: -1, End: end}, Future},
		"reset back":         {nil, Range{Committed: end - 1, End: end}, Future},
		"truncated":          {nil, Range{Committed: end, End: end - 1}, Future},
		"more was committed": {nil, Range{Committed: end + 5, End: end + 9}, Used},
		"a gap":              {nil, Range{Start: end + 1, Committed: end + 5, End: end + 9}, Stale},
		"all deleted, and the committed offset with it": {nil, Range{Start: end + 1, Committed: -1, End: end + 1}, Stale},
		"all deleted": {nil, Range{Start: end, Committed: end, End: end}, Used},
		"old, nothing missed": {func(w *world) {
			w.now = func() time.Time { return time.Now().Add(100 * time.Hour) }
		}, Range{}, Used},
		"old": {func(w *world) {
			w.now = func() time.Time { return time.Now().Add(22 * time.Hour) }
		}, Range{Committed: end + 1, End: end + 1}, Stale},
		"old, and a tombstone after the commit may be gone": {func(w *world) {
			w.now = func() time.Time { return time.Now().Add(22 * time.Hour) }
		}, Range{Committed: end, End: end + 1}, Stale},
		"not so old": {func(w *world) {
			w.now = func() time.Time { return time.Now().Add(20 * time.Hour) }
		}, Range{Committed: end + 1, End: end + 1}, Used},
		"from tomorrow": {func(w *world) {
			w.now = func() time.Time { return time.Now().Add(-20 * time.Hour) }
		}, Range{Committed: end + 1, End: end + 1}, Stale},
		"old, not compacted": {func(w *world) {
			w.facts.Compacted = false
			w.now = func() time.Time { return time.Now().Add(100 * time.Hour) }
		}, Range{Committed: end + 1, End: end + 1}, Used},
		"format of the future": {func(w *world) {
			w.rewrite(func(s *pebble.DB) error {
				return s.Set([]byte(headKey), []byte{2, 'j', 's', 1, 1, 'x'}, pebble.Sync)
			})
		}, Range{}, TooNew},
		"no head at all": {func(w *world) {
			w.rewrite(func(s *pebble.DB) error { return s.Delete([]byte(headKey), pebble.Sync) })
		}, Range{}, Absent},
		"a head that is none": {func(w *world) {
			w.rewrite(func(s *pebble.DB) error { return s.Set([]byte(headKey), []byte("x"), pebble.Sync) })
		}, Range{}, Damaged},
		"an entry that is none": {func(w *world) {
			w.rewrite(func(s *pebble.DB) error { return s.Set([]byte("eSYM5"), []byte("x"), pebble.Sync) })
		}, Range{}, Damaged},
		"a file is missing": {func(w *world) { w.damage(func(string, []byte) []byte { return nil }) }, Range{}, Damaged},
		"files are empty":   {func(w *world) { w.damage(func(string, []byte) []byte { return []byte{} }) }, Range{}, Damaged},
		"bytes are flipped": {func(w *world) {
			w.damage(func(_ string, data []byte) []byte {
				for i := 0; i < len(data); i += 100 {
					data[i] ^= 0x55
				}
				return data
			})
		}, Range{}, Damaged},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			seed(w)
			if len(w.log) != end {
				t.Fatalf("the log has %d records", len(w.log))
			}
			if test.change != nil {
				test.change(w)
			}
			if test.in == (Range{}) {
				test.in = Range{Committed: end, End: end}
			}
			d := w.open()
			defer w.close(d)
			table := state.New(3, time.Duration(w.facts.Scope.History)*time.Millisecond)
			s := d.Session(3, func(context.Context) (Facts, error) { return w.facts, nil })
			from := s.Load(t.Context(), table, test.in)
			s.End()
			w.verdict(test.verdict)
			if test.verdict == Used {
				if from != end || table.Symbols() != 3004 || len(w.aside()) != 0 {
					t.Errorf("from %d, %d symbols, set aside %v", from, table.Symbols(), w.aside())
				}
				return
			}
			if from != test.in.Start || table.Symbols() != 0 || table.Next() != 0 || table.Bytes() != 0 {
				t.Errorf("from %d, %d symbols, next %d: nothing of it may be used", from, table.Symbols(), table.Next())
			}
			if test.verdict == Absent {
				return
			}
			w.warned(test.verdict.String())
			if len(w.aside()) != 1 {
				t.Errorf("set aside: %v", w.names())
			}
		})
	}
}

// rewrite changes what is in the store.
func (w *world) rewrite(change func(*pebble.DB) error) {
	w.t.Helper()
	db, err := pebble.Open(filepath.Join(w.path, "partition-3"), storeOptions(lockless{vfs.Default}, zap.NewNop()))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := errors.Join(change(db), db.Close()); err != nil {
		w.t.Fatal(err)
	}
}

// damage rewrites every file of the store; nil removes it.
func (w *world) damage(change func(name string, data []byte) []byte) {
	w.t.Helper()
	// Only logs hold what is younger than the last flush.
	w.rewrite(func(db *pebble.DB) error { return db.Flush() })
	err := filepath.WalkDir(filepath.Join(w.path, "partition-3"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".sst" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if data = change(path, data); data == nil {
			return os.Remove(path)
		}
		return os.WriteFile(path, data, 0o644)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// One byte flipped anywhere in any file: the table is what the log gives, be the
// checkpoint used or not.
func TestAnyByteFlipped(t *testing.T) {
	w := newWorld(t)
	seed(w)
	w.rewrite(func(db *pebble.DB) error { return db.Flush() })
	origin := w.path
	var files []string
	sizes := map[string]int{}
	err := filepath.WalkDir(origin, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() != lockName {
			rel, _ := filepath.Rel(origin, path)
			data, _ := os.ReadFile(path)
			files = append(files, rel)
			sizes[rel] = len(data)
		}
		return err
	})
	if err != nil || len(files) < 4 {
		t.Fatalf("files %v, %v", files, err)
	}
	end := int64(len(w.log))
	for i, name := range files {
		for step := range 6 {
			if sizes[name] == 0 {
				continue
			}
			at := (sizes[name]*step/6 + 7*i) % sizes[name]
			w.path = filepath.Join(t.TempDir(), "state")
			if err := os.CopyFS(w.path, os.DirFS(origin)); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(w.path, name))
			if err != nil {
				t.Fatal(err)
			}
			data[at] ^= 0xff
			if err := os.WriteFile(filepath.Join(w.path, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
			d := w.open()
			task := w.begin(d, end)
			task.isWhole(end)
			if t.Failed() {
				t.Fatalf("byte %d of %s; verdicts %v", at, name, w.verdicts)
			}
			task.s.End()
			w.close(d)
		}
	}
}

// One that was set aside takes the place of the one before it, and a new one is
// written.
func TestNothingPilesUp(t *testing.T) {
	w := newWorld(t)
	seed(w)
	for i := range 3 {
		w.facts.Scope.Cluster = fmt.Sprint(i)
		d := w.open()
		task := w.begin(d, int64(len(w.log)))
		w.verdict(Foreign)
		task.isWhole(int64(len(w.log))) // it takes what the session would
		task.follow().written()
		task.s.End()
		w.close(d)
		if n := len(w.aside()); n != 1 {
			t.Fatalf("%d set aside: %v", n, w.names())
		}
	}
}

func TestDirectoryIsOneProcess(t *testing.T) {
	w := newWorld(t)
	first := w.open()
	log := zap.NewNop()
	o := w.options(log)
	_, err := Open(t.Context(), o)
	var held *Held
	if !errors.As(err, &held) || !strings.Contains(err.Error(), w.path) {
		t.Fatalf("%v, want it to name the directory", err)
	}
	o.LockWait, o.Faults = time.Minute, sampled.New(log, nil)
	opened := make(chan error, 1)
	go func() {
		d, err := Open(t.Context(), o) // waits for the predecessor
		if err == nil {
			d.Close(t.Context())
		}
		opened <- err
	}()
	w.close(first)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

func TestWithoutIDsNothingIsWritten(t *testing.T) {
	w := newWorld(t)
	w.facts.Scope.TopicID = ""
	d := w.open()
	task := w.begin(d, 0).follow()
	task.merge("A", "1", 1)
	task.commit()
	if notes := d.Notes(); len(notes) != 1 || w.failures.Load() == 0 {
		t.Errorf("notes %v, %d failures", notes, w.failures.Load())
	}
	task.s.End()
	w.close(d)
	if names := w.names(); len(names) != 1 {
		t.Errorf("written: %v", names)
	}
}

// A task that comes back while its predecessor's last checkpoint is still being
// written waits for it, and begins with it.
func TestTaskComesBackAtOnce(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	d.slotWait = time.Minute
	defer w.close(d)
	for range 20 {
		end := int64(len(w.log))
		task := w.begin(d, end).follow()
		task.isWhole(end)
		if task.read != 0 {
			t.Fatalf("%d records read at %d", task.read, end)
		}
		task.merge("A", fmt.Sprint(end), record.Millis(end))
		task.merge(fmt.Sprint(end), "1", 1)
		task.commit()
		task.s.End()
	}
}

// Pieces of a large checkpoint are written one after the other, while the table
// goes on changing, and make a whole, whenever the process dies.
func TestPieces(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	task := w.begin(d, 0)
	task.s.progress = task.stands // this test is what follows the table
	price := strings.Repeat("1", 2000)
	for i := range 6000 {
		task.merge(fmt.Sprintf("SYM%d", i), price, record.Millis(i))
	}
	task.commit()
	out, err := task.s.open()
	if err != nil {
		t.Fatal(err)
	}
	done, err := task.s.piece(out, pieceSize/4)
	if err != nil || done {
		t.Fatalf("%v %v: the first piece is not all", done, err)
	}
	task.merge("SYM0", "7", 1<<20)
	task.merge("new", "8", 1)
	task.commit()
	if done, err = task.s.piece(out, pieceSize/4); err != nil || done {
		t.Fatalf("%v %v: the second piece is not all", done, err)
	}
	if err := out.close(); err != nil {
		t.Fatal(err)
	}
	task.s.End()
	w.close(d)
	h, err := w.head()
	if err != nil || h.From != 0 || h.UpTo != 6002 {
		t.Fatalf("%+v %v", h, err)
	}
	end := int64(len(w.log))
	w.facts.Compacted = false // or a head without an age is not trusted
	d = w.open()
	defer w.close(d)
	again := w.begin(d, end)
	w.verdict(Used)
	if again.read != end {
		t.Errorf("%d records read, want all %d", again.read, end)
	}
	again.isWhole(end)
	again.s.End()
}

func TestLastSuccess(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	if last := d.LastSuccess(); !last.IsZero() {
		t.Errorf("%v before the first", last)
	}
	began := time.Now()
	task := w.begin(d, 0).follow()
	task.merge("A", "1", 1)
	task.commit()
	task.written()
	w.eventually("a success", func() bool { return d.LastSuccess().After(began) })
	idle := d.LastSuccess()
	w.eventually("a success without a write", func() bool { return d.LastSuccess().After(idle) })
	task.s.End()
	w.close(d)
	if d.LastSuccess().Before(began) {
		t.Errorf("%v after the last task", d.LastSuccess())
	}
}

func TestEntriesAreKeyedByTheSymbolsBytes(t *testing.T) {
	w := newWorld(t)
	seed(w)
	r, err := openReader(vfs.Default, filepath.Join(w.path, "partition-3"), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.close() }()
	var before []byte
	n := 0
	err = r.entries(func(symbol, _ []byte) error {
		if n > 0 && bytes.Compare(before, symbol) >= 0 {
			t.Errorf("%q after %q", symbol, before)
		}
		before = bytes.Clone(symbol)
		n++
		return nil
	})
	if err != nil || n != 3005 {
		t.Errorf("%d entries, %v", n, err)
	}
}
