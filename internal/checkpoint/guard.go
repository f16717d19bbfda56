package checkpoint

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The store takes a failed write for the end of the process: it panics, or asks
// its logger to exit. A full disk must not do that to a pod that joins very well
// without one. So faults of writes never reach the store: the guard lets them
// wait, and try again until they succeed, which is what "checkpoints stop" means.
//
// A sync that failed is never tried again, since the kernel may have dropped
// what it could not write and will say that all is well the second time: the
// store is broken then, and whatever it still does is held for good, so that
// nothing more reaches a directory that may have another store by then.

// guard is what stands between one store and its files.
type guard struct {
	fault func(error) // hears of each failure
	clear func()      // and of the first success after them

	broken chan struct{} // closed once a sync has failed, or the data turned out to be damaged
	mu     sync.Mutex
	cause  error
	failed bool
}

func newGuard(fault func(error), clear func()) *guard {
	return &guard{fault: fault, clear: clear, broken: make(chan struct{})}
}

// The pace of attempts while a disk takes nothing.
const (
	retryFirst   = 100 * time.Millisecond
	retryLongest = 10 * time.Second
)

// giveUp ends the store's life.
func (g *guard) giveUp(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		g.cause = cause
		close(g.broken)
	}
}

// why is the cause of the end; nil before.
func (g *guard) why() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause
}

// park holds a goroutine of a store that was given up: nothing that it could be
// told would keep it from ending the process.
func park() { select {} }

// do tries f until it succeeds or fails for a reason that time does not heal.
func (g *guard) do(f func() error) error {
	for pause := retryFirst; ; pause = min(2*pause, retryLongest) {
		if g.why() != nil {
			park()
		}
		err := f()
		if err == nil {
			g.note(nil)
			return nil
		}
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) || errors.Is(err, os.ErrClosed) {
			return err
		}
		g.note(err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-g.broken:
			timer.Stop()
		}
	}
}

// note tells of a failure, and of the end of failures.
func (g *guard) note(err error) {
	g.mu.Lock()
	before := g.failed
	g.failed = err != nil
	g.mu.Unlock()
	switch {
	case err != nil:
		g.fault(err)
	case before:
		g.clear()
	}
}

// sync is for what must not be tried twice.
func (g *guard) sync(f func() error) error {
	if g.why() != nil {
		park()
	}
	err := f()
	if err == nil {
		return nil
	}
	g.note(err)
	g.giveUp(err)
	park()
	return err
}

// guardedFS is a file system behind a guard. What only reads passes.
type guardedFS struct {
	vfs.FS
	g *guard
}

// Create implements vfs.FS.
func (fs guardedFS) Create(name string, category vfs.DiskWriteCategory) (f vfs.File, err error) {
	err = fs.g.do(func() (err error) { f, err = fs.FS.Create(name, category); return err })
	return fs.guarded(f), err
}

// OpenReadWrite implements vfs.FS.
func (fs guardedFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (f vfs.File, err error) {
	err = fs.g.do(func() (err error) { f, err = fs.FS.OpenReadWrite(name, category, opts...); return err })
	return fs.guarded(f), err
}

// ReuseForWrite implements vfs.FS.
func (fs guardedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (f vfs.File, err error) {
	err = fs.g.do(func() (err error) { f, err = fs.FS.ReuseForWrite(oldname, newname, category); return err })
	return fs.guarded(f), err
}

// OpenDir implements vfs.FS.
func (fs guardedFS) OpenDir(name string) (f vfs.File, err error) {
	err = fs.g.do(func() (err error) { f, err = fs.FS.OpenDir(name); return err })
	return fs.guarded(f), err
}

// Link implements vfs.FS.
func (fs guardedFS) Link(oldname, newname string) error {
	return fs.g.do(func() error { return fs.FS.Link(oldname, newname) })
}

// Rename implements vfs.FS.
func (fs guardedFS) Rename(oldname, newname string) error {
	return fs.g.do(func() error { return fs.FS.Rename(oldname, newname) })
}

// MkdirAll implements vfs.FS.
func (fs guardedFS) MkdirAll(dir string, perm os.FileMode) error {
	return fs.g.do(func() error { return fs.FS.MkdirAll(dir, perm) })
}

// Lock implements vfs.FS: the directory above has a lock for all stores.
func (guardedFS) Lock(string) (io.Closer, error) { return unlocked{}, nil }

// Unwrap implements vfs.FS.
func (fs guardedFS) Unwrap() vfs.FS { return fs.FS }

type unlocked struct{}

// Close implements io.Closer.
func (unlocked) Close() error { return nil }

// lockless is a file system whose stores take no locks of their own.
type lockless struct{ vfs.FS }

// Lock implements vfs.FS.
func (lockless) Lock(string) (io.Closer, error) { return unlocked{}, nil }

func (fs guardedFS) guarded(f vfs.File) vfs.File {
	if f == nil {
		return nil
	}
	return &guardedFile{File: f, g: fs.g}
}

type guardedFile struct {
	vfs.File
	g *guard
}

// Write implements io.Writer. What is left after a part was written is written
// by the next attempt.
func (f *guardedFile) Write(p []byte) (n int, err error) {
	err = f.g.do(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements io.WriterAt.
func (f *guardedFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.g.do(func() error {
		m, err := f.File.WriteAt(p[n:], at+int64(n))
		n += m
		return err
	})
	return n, err
}

// Preallocate implements vfs.File: hundreds of partitions would set aside more
// than they ever write.
func (f *guardedFile) Preallocate(int64, int64) error { return nil }

// Sync implements vfs.File.
func (f *guardedFile) Sync() error { return f.g.sync(f.File.Sync) }

// SyncData implements vfs.File.
func (f *guardedFile) SyncData() error { return f.g.sync(f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *guardedFile) SyncTo(length int64) (full bool, err error) {
	err = f.g.sync(func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}
