package checkpoint

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/state"
)

// hangingFS holds whoever asks it while it hangs, as a volume does whose machine
// does not answer.
type hangingFS struct {
	vfs.FS
	mu      sync.Mutex
	gate    chan struct{} // nil: nothing hangs
	held    atomic.Int64  // that were held
	removed atomic.Int64  // directories
}

func newHangingFS() *hangingFS { return &hangingFS{FS: vfs.Default} }

func (fs *hangingFS) hang() (heal func()) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	gate := make(chan struct{})
	fs.gate = gate
	return sync.OnceFunc(func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		fs.gate = nil
		close(gate)
	})
}

func (fs *hangingFS) pass() {
	fs.mu.Lock()
	gate := fs.gate
	fs.mu.Unlock()
	if gate != nil {
		fs.held.Add(1)
		<-gate
	}
}

func (fs *hangingFS) MkdirAll(dir string, perm os.FileMode) error {
	fs.pass()
	return fs.FS.MkdirAll(dir, perm)
}

func (fs *hangingFS) Rename(old, name string) error {
	fs.pass()
	return fs.FS.Rename(old, name)
}

func (fs *hangingFS) RemoveAll(name string) error {
	fs.pass()
	fs.removed.Add(1)
	return fs.FS.RemoveAll(name)
}

func (fs *hangingFS) Stat(name string) (vfs.FileInfo, error) {
	fs.pass()
	return fs.FS.Stat(name)
}

func (fs *hangingFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	fs.pass()
	f, err := fs.FS.Open(name, o...)
	if err != nil {
		return nil, err
	}
	return &hangingFile{f, fs}, nil
}

type hangingFile struct {
	vfs.File
	fs *hangingFS
}

func (f *hangingFile) Read(p []byte) (int, error) {
	f.fs.pass()
	return f.File.Read(p)
}

func (f *hangingFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.pass()
	return f.File.ReadAt(p, off)
}

// answers fails where f does not come back.
func (w *world) answers(what string, f func()) {
	w.t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		w.t.Fatalf("%s waits for the disk; logs: %v", what, w.logs.All())
	}
}

func saysThatItHangs(d *Dir) bool {
	return strings.Contains(strings.Join(d.Notes(), ";"), "does not answer")
}

// While the directory cannot be taken, because the disk hangs, probes and tasks
// go on without, and checkpoints are written once it answers.
func TestDiskHangsFromTheStart(t *testing.T) {
	w := newWorld(t)
	fs := newHangingFS()
	w.fs, w.patience = fs, 50*time.Millisecond
	heal := fs.hang()
	defer heal()
	var d *Dir
	var first *task
	w.answers("the start", func() { d = w.open() })
	w.answers("a task", func() { first = w.begin(d, 0).follow() })
	w.verdict(Absent)
	w.answers("a probe", func() {
		if !saysThatItHangs(d) || !d.LastSuccess().IsZero() || w.failures.Load() == 0 {
			t.Errorf("notes %v, last success %s, %d failures", d.Notes(), d.LastSuccess(), w.failures.Load())
		}
	})
	w.answers("the end of a task", func() {
		second := w.begin(d, 0).follow()
		second.s.End()
	})
	first.merge("A", "1", 1)
	first.commit()
	heal()
	first.written()
	w.eventually("the end of the note", func() bool { return len(d.Notes()) == 0 })
	first.s.End()
	w.close(d)
	w.patience = time.Minute
	w.comesBackWhole()
}

// Nobody waits for the answer to a question that an earlier task has not got.
func TestDiskHangsForAll(t *testing.T) {
	w := newWorld(t)
	fs := newHangingFS()
	w.fs, w.patience = fs, time.Millisecond
	heal := fs.hang()
	defer heal()
	var d *Dir
	w.answers("the start", func() { d = w.open() })
	d.o.Patience = time.Hour
	w.answers("a task", func() { w.begin(d, 0).s.End() })
	w.close(d)
	heal()
	w.eventually("the answer", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.attempt == nil
	})
	if d.lock != nil {
		t.Error("a directory that was closed is taken")
	}
	o := w.open() // by another process
	w.close(o)
}

// A disk that hangs while a checkpoint is read holds up nobody for long: a task
// that is taken away goes at once, another reads the log, and what the disk says
// later changes nothing. The checkpoint stays, and is gone on with.
func TestDiskHangsWhileACheckpointIsRead(t *testing.T) {
	w := newWorld(t)
	fs := newHangingFS()
	w.fs, w.patience = fs, time.Hour
	seed(w)
	end := int64(len(w.log))
	d := w.open()
	d.slotWait = time.Millisecond
	heal := fs.hang()
	defer heal()

	ctx, cancel := context.WithCancel(t.Context())
	taken := d.Session(3, func(context.Context) (Facts, error) { return w.facts, nil })
	table := state.New(3, time.Second)
	from := make(chan int64)
	go func() { from <- taken.Load(ctx, table, Range{Committed: end, End: end}) }()
	w.eventually("a question to the disk", func() bool { return fs.held.Load() > 0 })
	cancel()
	w.answers("a task that was taken away", func() {
		if from := <-from; from != 0 || table.Symbols() != 0 {
			t.Errorf("from %d, %d symbols", from, table.Symbols())
		}
	})
	taken.End()

	var next *task
	w.answers("the next task", func() { next = w.begin(d, end) })
	w.verdict(Absent)
	removed := fs.removed.Load()
	next.progress.Committed = -1 // nothing is written over the checkpoint
	next.follow()
	heal()
	w.eventually("the store", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return next.s.guard != nil
	})
	if h, err := w.head(); err != nil || h.From != end {
		t.Errorf("%+v %v: the checkpoint is gone, and there is no other", h, err)
	}
	next.isWhole(end)
	next.merge("A", "1", 1)
	next.commit()
	next.written()
	next.s.End()
	w.close(d)
	if aside := w.aside(); len(aside) != 0 || fs.removed.Load() != removed || table.Symbols() != 0 {
		t.Errorf("set aside %v, %d removed, %d symbols", aside, fs.removed.Load()-removed, table.Symbols())
	}
	w.comesBackWhole()
}

// The disk hangs in the middle of the entries, and is left: not a single one comes
// into the table afterwards, and the store is given back then.
func TestDiskHangsAmongEntries(t *testing.T) {
	w := newWorld(t)
	seed(w)
	end := int64(len(w.log))
	d := w.open()
	defer w.close(d)
	d.slotWait = time.Minute
	in, err := openReader(w.fs, d.path(3), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	table, s := state.New(3, time.Second), d.Session(3, nil)
	s.acquire(nil, nil)
	gate, left := make(chan struct{}), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	if s.apart(ctx, table, func(e *errand) {
		_ = e.fill(func(t *state.Table) error { t.Apply(&w.log[0], 0); return nil })
		cancel()
		<-gate
		left <- fill(context.Background(), e, in, end)
	}) || s.owns || table.Symbols() != 1 {
		t.Fatalf("owns %t, %d symbols", s.owns, table.Symbols())
	}
	close(gate)
	if err := <-left; !errors.Is(err, errLeft) || table.Symbols() != 1 {
		t.Errorf("%v, %d symbols", err, table.Symbols())
	}
	s.End()
	if err := in.close(); err != nil {
		t.Error(err)
	}
	w.begin(d, end).s.End() // it has the store, which was given back
	w.verdict(Used)
}

// A slow disk does not hang: something comes.
func TestSlowDiskIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Session{d: &Dir{o: Options{Patience: 10 * time.Second}}, slot: make(chan struct{}, 1), owns: true}
		s.slot <- struct{}{}
		if !s.apart(t.Context(), state.New(3, time.Second), func(e *errand) {
			for range 10 {
				time.Sleep(9 * time.Second)
				_ = e.fill(func(*state.Table) error { return nil })
			}
		}) {
			t.Error("left behind")
		}
		if s.apart(t.Context(), nil, func(*errand) { time.Sleep(time.Hour) }) || s.owns || len(s.slot) != 1 {
			t.Errorf("waited for, owns %t, taken %d", s.owns, len(s.slot))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(s.slot) != 0 {
			t.Error("the store was not given back")
		}
	})
}

// What is in the store when a task begins that cannot look, because the task
// before has the store, is judged once it can.
func TestJudgedOnceTheStoreIsFree(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*Facts)
		aside string
	}{
		"good":    {spoil: func(*Facts) {}},
		"foreign": {spoil: func(f *Facts) { f.Scope.Group = "x" }, aside: Foreign.String()},
		"changed": {spoil: func(f *Facts) { f.Scope.Rules = "x" }, aside: Changed.String()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			fs := newHangingFS()
			w.fs = fs
			seed(w)
			end := int64(len(w.log))
			d := w.open()
			d.slotWait = time.Millisecond
			first := w.begin(d, end).follow()
			w.verdict(Used)
			test.spoil(&w.facts)
			second := w.begin(d, end)
			w.verdict(Absent)
			second.progress.Committed = -1
			second.follow()
			first.s.End()
			w.eventually("the store", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return second.s.guard != nil
			})
			if test.aside == "" {
				if h, err := w.head(); err != nil || h.From != end {
					t.Errorf("%+v %v: a good checkpoint is gone, and there is no other", h, err)
				}
			} else {
				w.warned(test.aside)
			}
			// All of the table is written, whatever the store had.
			second.merge("SYM1", "7", record.Millis(30_000))
			second.commit()
			second.written()
			second.s.End()
			w.close(d)
			w.comesBackWhole()
		})
	}
}
