package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/state"
)

// faultyFS fails what changes the disk while it has a fault.
type faultyFS struct {
	vfs.FS
	writes, syncs atomic.Pointer[error]
}

func newFaultyFS() *faultyFS { return &faultyFS{FS: vfs.Default} }

func (fs *faultyFS) fail(err error)      { fs.writes.Store(&err) }
func (fs *faultyFS) failSyncs(err error) { fs.syncs.Store(&err) }

func faultOf(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

func (fs *faultyFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := faultOf(&fs.writes); err != nil {
		return nil, err
	}
	f, err := fs.FS.Create(name, c)
	return &faultyFile{f, fs}, err
}

func (fs *faultyFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if err := faultOf(&fs.writes); err != nil {
		return nil, err
	}
	f, err := fs.FS.OpenReadWrite(name, c, o...)
	return &faultyFile{f, fs}, err
}

func (fs *faultyFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := faultOf(&fs.writes); err != nil {
		return nil, err
	}
	f, err := fs.FS.ReuseForWrite(old, name, c)
	return &faultyFile{f, fs}, err
}

func (fs *faultyFS) MkdirAll(dir string, perm os.FileMode) error {
	if err := faultOf(&fs.writes); err != nil {
		return err
	}
	return fs.FS.MkdirAll(dir, perm)
}

func (fs *faultyFS) Rename(old, name string) error {
	if err := faultOf(&fs.writes); err != nil {
		return err
	}
	return fs.FS.Rename(old, name)
}

type faultyFile struct {
	vfs.File
	fs *faultyFS
}

// Write writes half of what it is given before it fails.
func (f *faultyFile) Write(p []byte) (int, error) {
	if err := faultOf(&f.fs.writes); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

func (f *faultyFile) Sync() error {
	if err := faultOf(&f.fs.syncs); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultyFile) SyncData() error {
	if err := faultOf(&f.fs.syncs); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *faultyFile) SyncTo(n int64) (bool, error) {
	if err := faultOf(&f.fs.syncs); err != nil {
		return false, err
	}
	return f.File.SyncTo(n)
}

// many merges ticks of many symbols, some of them new.
func (t *task) many(from, n int) {
	for i := range n {
		t.merge(fmt.Sprintf("SYM%d", (from+i)%5000), fmt.Sprint(1+from+i), record.Millis(from+i))
	}
	t.commit()
}

// noted reports whether the pod says that its checkpoints fail for that reason.
func noted(d *Dir, err error) bool {
	notes := strings.Join(d.Notes(), "; ")
	return strings.Contains(notes, err.Error()) && strings.Contains(notes, "joins go on")
}

// While the disk takes nothing checkpoints wait, are counted and noted, and go
// on by themselves; the table changes meanwhile as if nothing was.
func TestFullDisk(t *testing.T) {
	for _, cause := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EIO} {
		t.Run(cause.Error(), func(t *testing.T) {
			w := newWorld(t)
			fs := newFaultyFS()
			w.fs = fs
			d := w.open()
			task := w.begin(d, 0).follow()
			task.many(0, 3000)
			task.written()
			if n := len(d.Notes()); n != 0 || w.failures.Load() != 0 {
				t.Fatalf("%d failures, notes %v", w.failures.Load(), d.Notes())
			}
			before := d.LastSuccess()
			fs.fail(&os.PathError{Op: "write", Path: "x", Err: cause})
			w.eventually("a failure", func() bool {
				task.many(len(w.log), 100)
				return w.failures.Load() > 2 && noted(d, cause)
			})
			if w.logs.FilterMessageSnippet("cannot be written, joins go on").Len() == 0 {
				t.Errorf("no warning: %v", w.logs.All())
			}
			fs.fail(nil)
			task.written()
			w.eventually("the end of the note", func() bool { return len(d.Notes()) == 0 && d.LastSuccess().After(before) })
			w.eventually("a line that says so", func() bool { return w.logs.FilterMessageSnippet("written again").Len() > 0 })
			task.s.End()
			w.close(d)
			w.comesBackWhole()
		})
	}
}

// A disk that was full from the start stops no task either.
func TestFullDiskAtTheStart(t *testing.T) {
	w := newWorld(t)
	fs := newFaultyFS()
	w.fs = fs
	fs.fail(syscall.ENOSPC)
	d := w.open()
	task := w.begin(d, 0).follow()
	w.verdict(Absent)
	task.many(0, 100)
	w.eventually("a note", func() bool { return noted(d, syscall.ENOSPC) })
	fs.fail(nil)
	task.written()
	w.eventually("the end of the note", func() bool { return len(d.Notes()) == 0 })
	task.s.End()
	w.close(d)
}

// A checkpoint that must not be used and cannot be moved away is not used, and
// is not written over before it is gone.
func TestWhatCannotBeMovedAway(t *testing.T) {
	w := newWorld(t)
	fs := newFaultyFS()
	w.fs = fs
	seed(w)
	end := int64(len(w.log))
	d := w.open()
	fs.fail(syscall.EROFS)
	w.facts.Scope.Group = "x"
	task := w.begin(d, end).follow()
	w.verdict(Foreign)
	task.isWhole(end)
	w.eventually("a note", func() bool { return noted(d, syscall.EROFS) })
	if h, err := w.head(); err != nil || h.Group != "g" {
		t.Errorf("%+v %v", h, err)
	}
	fs.fail(nil)
	w.eventually("a checkpoint of ours", func() bool {
		h, err := w.head()
		return err == nil && h.Group == "x" && len(w.aside()) == 1
	})
	task.s.End()
	w.close(d)
}

// After a sync that failed nothing of the store is trusted: a new one is made.
func TestFailedSync(t *testing.T) {
	w := newWorld(t)
	fs := newFaultyFS()
	w.fs = fs
	d := w.open()
	task := w.begin(d, 0).follow()
	task.many(0, 3000)
	task.written()
	fs.failSyncs(syscall.EIO)
	w.eventually("a failure", func() bool {
		task.many(len(w.log), 10)
		return w.failures.Load() > 0
	})
	fs.failSyncs(nil)
	task.written()
	if len(w.aside()) != 1 {
		t.Errorf("set aside: %v", w.names())
	}
	task.s.End()
	w.close(d)
	w.comesBackWhole()
}

// A stop does not wait for a disk that takes nothing, and leaves the checkpoint
// before it.
func TestStopWithFullDisk(t *testing.T) {
	w := newWorld(t)
	fs := newFaultyFS()
	w.fs = fs
	d := w.open()
	task := w.begin(d, 0).follow()
	task.many(0, 1000)
	task.written()
	written := int64(len(w.log))
	fs.fail(syscall.ENOSPC)
	task.many(2000, 1000)
	w.eventually("a failure", func() bool { return w.failures.Load() > 0 })
	task.s.End()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	d.Close(ctx)
	fs.fail(nil)
	end := int64(len(w.log))
	d = w.open()
	defer w.close(d)
	task = w.begin(d, end)
	w.verdict(Used)
	task.isWhole(end)
	if task.read > end-written {
		t.Errorf("%d records read, %d were missed", task.read, end-written)
	}
	task.s.End()
}

// What was set aside is the first to go where there is no room.
func TestRoomIsMade(t *testing.T) {
	w := newWorld(t)
	fs := newFaultyFS()
	w.fs = fs
	seed(w)
	w.facts.Scope.Group = "x"
	d := w.open()
	task := w.begin(d, int64(len(w.log))).follow()
	w.verdict(Foreign)
	task.written()
	if len(w.aside()) != 1 {
		t.Fatalf("set aside: %v", w.names())
	}
	fs.fail(syscall.ENOSPC)
	w.eventually("room", func() bool {
		task.many(0, 10)
		return len(w.aside()) == 0
	})
	fs.fail(nil)
	task.s.End()
	w.close(d)
}

// TestTinyDisk is TestFullDisk on a real file system that is full.
func TestTinyDisk(t *testing.T) {
	w := newWorld(t)
	mount := t.TempDir()
	if err := mountTiny(mount); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount(mount); err != nil {
			t.Error(err)
		}
	})
	w.path = filepath.Join(mount, "state")
	d := w.open()
	task := w.begin(d, 0).follow()
	task.many(0, 1000)
	task.written()
	ballast := filepath.Join(mount, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	_ = f.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	w.eventually("a full disk", func() bool {
		task.many(len(w.log), 1000)
		return noted(d, syscall.ENOSPC)
	})
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	task.written()
	task.s.End()
	w.close(d)
	w.comesBackWhole()
}

// A store whose sync failed stays in memory with its open files. A disk that
// goes on so does not take the process' memory and files: nothing more is
// written, and the pod says so and counts on.
func TestStoresGivenUpAreBounded(t *testing.T) {
	w := newWorld(t)
	fs := newFaultyFS()
	w.fs = fs
	fs.failSyncs(syscall.EIO)
	d := w.open()
	for range storesGivenUp + 3 {
		// A task that ends does not wait before it makes a store anew.
		task := w.begin(d, int64(len(w.log))).follow()
		before := w.failures.Load()
		w.eventually("a failure", func() bool {
			task.many(len(w.log), 10)
			return w.failures.Load() > before
		})
		task.s.End()
		w.eventually("its end", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.sessions) == 0
		})
	}
	if d.givenUp != storesGivenUp {
		t.Errorf("%d stores given up, the bound is %d", d.givenUp, storesGivenUp)
	}
	if n := w.logs.FilterMessageSnippet("until a restart").FilterLevelExact(zap.ErrorLevel).Len(); n != 1 {
		t.Errorf("%d lines: %v", n, w.logs.All())
	}
	if notes := d.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "until a restart") || !noted(d, syscall.EIO) {
		t.Errorf("notes %q", notes)
	}
	fs.failSyncs(nil)
	before := w.failures.Load()
	task := w.begin(d, int64(len(w.log))).follow()
	w.eventually("a count of what is not written", func() bool { return w.failures.Load() > before+2 })
	task.s.End()
	w.close(d)
}

// A store in order is closed, and may be read, when another one's failure is
// one too many.
func TestStoreInOrderWhenThereAreTooManyGivenUp(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	task := w.begin(d, 0).follow()
	task.many(0, 100)
	task.written()
	for range storesGivenUp {
		d.gaveUp(syscall.EIO)
	}
	w.eventually("a failure", func() bool { return w.failures.Load() > 1 })
	task.s.End()
	w.close(d)
	d = w.open()
	defer w.close(d)
	task = w.begin(d, 100)
	w.verdict(Used)
	task.isWhole(100)
	task.s.End()
}

// A large piece of what the group does not commit gives its place up to whoever
// waits for one, and is taken again.
func TestLargePiecesTakeTurns(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	d.large = make(chan struct{}, 1)
	task := w.begin(d, 0)
	for i := range 3000 {
		task.merge(fmt.Sprint("SYM", i), strings.Repeat("9", 700), 1)
	}
	task.follow()
	w.eventually("a large piece that waits for its commit", func() bool { return len(d.large) == 1 })
	second, table := d.Session(4, func(context.Context) (Facts, error) { return w.facts, nil }), state.New(4, time.Second)
	second.Load(t.Context(), table, Range{})
	table.Lock()
	for i := range w.log {
		table.Apply(&w.log[i], int64(i))
	}
	table.Unlock()
	second.Begin(func() Progress { return Progress{Position: 3000, Committed: 3000, Next: record.NoTimestamp} })
	w.eventually("the other task's checkpoint", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return !second.last.IsZero()
	})
	second.End()
	task.commit()
	task.written()
	task.s.End()
	w.close(d)
	d = w.open()
	defer w.close(d)
	task = w.begin(d, 3000)
	w.verdict(Used)
	task.isWhole(3000)
	task.s.End()
}

// One failed request when a task begins does not cost it all its checkpoints.
func TestFactsAreAskedForAgain(t *testing.T) {
	w := newWorld(t)
	seed(w)
	end := int64(len(w.log))
	d := w.open()
	var failing atomic.Bool
	failing.Store(true)
	table := state.New(3, time.Second)
	s := d.Session(3, func(context.Context) (Facts, error) {
		if failing.Load() {
			return Facts{}, syscall.ECONNREFUSED
		}
		return w.facts, nil
	})
	in := Range{Committed: end, End: end}
	if from := s.Load(t.Context(), table, in); from != 0 {
		t.Fatalf("from %d", from)
	}
	first := &task{w: w, s: s, table: table, progress: Progress{Position: end, Committed: end, Next: record.NoTimestamp}}
	for offset := range end {
		first.apply(offset)
	}
	first.follow()
	w.eventually("more failures", func() bool { return w.failures.Load() > 2 && noted(d, syscall.ECONNREFUSED) })
	failing.Store(false)
	first.merge("A", "1", 1)
	first.commit()
	first.written()
	w.eventually("the end of the note", func() bool { return len(d.Notes()) == 0 })
	first.s.End()
	w.close(d)
	d = w.open()
	defer w.close(d)
	again := w.begin(d, end+1)
	w.verdict(Used)
	again.isWhole(end + 1)
	again.s.End()
}

// A stop does not wait for facts that nobody can tell.
func TestStopWithoutFacts(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	asked := make(chan struct{}, 100)
	s := d.Session(3, func(ctx context.Context) (Facts, error) {
		if len(asked) > 0 {
			<-ctx.Done() // a request that nobody answers
		}
		asked <- struct{}{}
		return Facts{}, syscall.ECONNREFUSED
	})
	s.Load(t.Context(), state.New(3, time.Second), Range{})
	s.Begin(func() Progress { return Progress{} })
	<-time.After(2 * w.interval)
	w.close(d)
	if len(d.sessions) != 0 {
		t.Error("the session goes on")
	}
	s.End()
}

// Where nothing was ever written the time of the last success is none, and after
// a start on a disk that takes nothing it is that of what was written before.
func TestLastSuccessIsOfWhatWasWritten(t *testing.T) {
	w := newWorld(t)
	fs := newFaultyFS()
	w.fs = fs
	fs.fail(syscall.EROFS)
	d := w.open()
	first := w.begin(d, 0).follow()
	first.many(0, 10)
	w.eventually("a failure", func() bool { return w.failures.Load() > 1 })
	if last := d.LastSuccess(); !last.IsZero() {
		t.Errorf("%v, nothing was written", last)
	}
	fs.fail(nil)
	first.written()
	first.s.End()
	w.close(d)
	h, err := w.head()
	if err != nil {
		t.Fatal(err)
	}
	w.now = func() time.Time { return time.Now().Add(time.Hour) }
	d = w.open()
	fs.fail(syscall.EROFS)
	again := w.begin(d, 10).follow()
	w.verdict(Used)
	if last := d.LastSuccess(); !last.Equal(h.Written.Time()) {
		t.Errorf("%v, the last was written at %v", last, h.Written.Time())
	}
	fs.fail(nil)
	again.s.End()
	w.close(d)
}

// A directory that is deleted under the process is noticed though files that are
// open take whatever is written, and is made anew unless another process has it.
func TestDirectoryDeletedUnderTheProcess(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	task := w.begin(d, 0).follow()
	task.many(0, 100)
	task.written()
	aside := w.path + "-deleted"
	if err := os.Rename(w.path, aside); err != nil {
		t.Fatal(err)
	}
	w.eventually("a failure", func() bool { return w.failures.Load() > 0 })
	task.written() // all of it: in the new directory there is nothing else
	w.eventually("the end of the note", func() bool { return len(d.Notes()) == 0 })
	if w.logs.FilterMessageSnippet("set aside").Len() != 0 || w.logs.FilterMessageSnippet("joins go on").Len() == 0 {
		t.Errorf("logs %v", w.logs.All())
	}
	if d.givenUp != 0 {
		t.Errorf("%d stores stay with the process", d.givenUp)
	}
	if _, held, err := lockFile(filepath.Join(w.path, lockName)); !held {
		t.Errorf("the new directory is not locked: %v", err)
	}
	task.s.End()
	w.close(d)
	d = w.open()
	defer w.close(d)
	task = w.begin(d, 100)
	w.verdict(Used)
	task.isWhole(100)
	task.s.End()
}

// What another process has at the path by then is left alone.
func TestDirectoryTakenByAnother(t *testing.T) {
	w := newWorld(t)
	d := w.open()
	task := w.begin(d, 0).follow()
	task.many(0, 100)
	task.written()
	other := t.TempDir()
	theirs := filepath.Join(other, "partition-3")
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, _, err := lockFile(filepath.Join(other, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := errors.Join(os.Rename(w.path, w.path+"-deleted"), os.Rename(other, w.path)); err != nil {
		t.Fatal(err)
	}
	w.eventually("a note", func() bool {
		return strings.Contains(strings.Join(d.Notes(), ""), "another process has the directory")
	})
	if names := w.names(); len(names) != 2 {
		t.Errorf("the other's directory was changed: %v", names)
	}
	task.s.End()
	w.close(d)
}

// Errors of the store print their traces where a logger lets them.
func TestNoTracesInTheLog(t *testing.T) {
	w := newWorld(t)
	seed(w)
	w.damage(func(string, []byte) []byte { return nil })
	d := w.open()
	task := w.begin(d, int64(len(w.log)))
	w.warned("damaged")
	d.failed(3, traced{errors.New("with a trace")})
	task.s.End()
	w.close(d)
	for _, e := range w.logs.All() {
		for key := range e.ContextMap() {
			if strings.HasSuffix(key, "Verbose") {
				t.Errorf("%s: %s", e.Message, key)
			}
		}
	}
}

// traced is an error that a logger prints with more than its text.
type traced struct{ error }

func (traced) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, "at line 1 of a file") }
