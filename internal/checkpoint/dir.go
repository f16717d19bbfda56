package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/sampled"
)

// Options says where a pod's checkpoints lie. Every field without a remark is
// required.
type Options struct {
	Path     string
	Interval time.Duration // between two checkpoints of a partition
	// LockWait is how long Open waits for the process that has the directory.
	LockWait time.Duration
	Log      *zap.Logger
	Faults   *sampled.Log
	// OnFailure hears of each failed attempt to write, OnRestore of what became
	// of the checkpoint of each task that began. Either may be nil.
	OnFailure func()
	OnRestore func(Verdict)
	// Patience is how long a disk may do nothing while a task that begins waits
	// for it; 0: 20 s.
	Patience time.Duration
	FS       vfs.FS           // nil: the disk
	Now      func() time.Time // nil: time.Now
}

// Held reports a directory that another process has.
type Held struct{ Path string }

func (h *Held) Error() string {
	return fmt.Sprintf("another process has its checkpoints in %s: give each pod a directory of its own", h.Path)
}

// Dir is a pod's directory of checkpoints. Any goroutine may use it.
type Dir struct {
	o Options
	// large bounds how many large pieces there are in memory at a time.
	large   chan struct{}
	waiting atomic.Int64 // tasks that wait for a place there
	// slotWait is how long a task that begins waits for its predecessor's last
	// checkpoint to be written, rather than read the log.
	slotWait time.Duration
	wg       sync.WaitGroup

	// mu is never held while the disk is asked: probes and tasks wait for it.
	mu       sync.Mutex
	attempt  *attempt // to take the lock; nil: none is under way
	lock     *os.File
	locked   os.FileInfo // of lock
	closed   bool
	slots    map[int32]chan struct{} // of capacity 1: who has the partition's store
	sessions map[*Session]bool       // that write
	problems map[int32]string        // why a partition's checkpoints are not written
	lastEnd  time.Time               // the newest success of sessions that have ended
	givenUp  int                     // stores
	told     bool                    // that some are not written
	over     error                   // why this process writes no checkpoints any more
}

const (
	lockName  = "LOCK"
	asideMark = ".set-aside-"

	// storesGivenUp is how many stores a process gives up before it writes no more
	// checkpoints: each keeps its goroutines, its table in memory and its open
	// files for as long as the process lives.
	storesGivenUp = 16

	// largePieces is how many pieces above largePiece may be in memory at once.
	largePieces = 4
)

// Open takes the directory for this process. It fails with *Held where another
// process keeps it for longer than LockWait, and with ctx's error. Where the
// directory cannot be used for another reason it says so in the log and in
// Notes, and tries again with each task that begins and each checkpoint: joins
// do not wait for a disk.
func Open(ctx context.Context, o Options) (*Dir, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Patience <= 0 {
		o.Patience = diskPatience
	}
	if o.OnFailure == nil {
		o.OnFailure = func() {}
	}
	if o.OnRestore == nil {
		o.OnRestore = func(Verdict) {}
	}
	d := &Dir{
		o: o, large: make(chan struct{}, largePieces), slotWait: slotWait,
		slots: map[int32]chan struct{}{}, sessions: map[*Session]bool{}, problems: map[int32]string{},
	}
	return d, d.awaitLock(ctx)
}

func (d *Dir) awaitLock(ctx context.Context) error {
	deadline := d.o.Now().Add(d.o.LockWait)
	for {
		err := d.take(ctx.Done())
		var held *Held
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errStopping):
			return ctx.Err()
		case !errors.As(err, &held):
			return nil // take has told of it
		case !d.o.Now().Before(deadline):
			return err
		}
		d.o.Faults.Warn("checkpoint lock", "waiting for the process that has the directory of the checkpoints", zap.String("dir", d.o.Path))
		select {
		case <-time.After(lockAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const lockAgain = 200 * time.Millisecond

// dirProblem is the key under which problems has the directory's own.
const dirProblem = int32(-1)

// holding returns the lock that this process has; nil where it has none.
func (d *Dir) holding() os.FileInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock == nil {
		return nil
	}
	return d.locked
}

// stands checks that the directory is the one in which a store was opened under
// that lock. Files that are open outlive a directory that is deleted, and take
// whatever is written: nothing else would tell, and another process may have
// the path by now. The lock is given back then, for the next take.
func (d *Dir) stands(lock os.FileInfo) error {
	found, err := os.Stat(filepath.Join(d.o.Path, lockName))
	gone := errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(found, lock)
	d.mu.Lock()
	if d.lock == nil || !os.SameFile(d.locked, lock) {
		d.mu.Unlock()
		return errDirGone // another session has found it
	}
	if !gone {
		d.mu.Unlock()
		return nil
	}
	old := d.lock
	d.lock = nil
	d.mu.Unlock()
	_ = old.Close()
	return errDirGone
}

// Close waits for the last checkpoints of tasks that have ended, while ctx lasts,
// and gives the directory back. What is not written by then is left out: the
// checkpoint before it stands.
func (d *Dir) Close(ctx context.Context) {
	ended := make(chan struct{})
	d.mu.Lock()
	d.closed = true
	for s := range d.sessions {
		s.closing()
	}
	d.mu.Unlock()
	go func() { d.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		d.o.Log.Warn("the last checkpoints were not written in time, those before them stand", zap.String("dir", d.o.Path))
	}
	d.mu.Lock()
	for s := range d.sessions {
		s.abort()
		if s.guard != nil {
			s.guard.giveUp(errStopping)
		}
	}
	lock := d.lock
	d.lock = nil
	d.mu.Unlock()
	if lock != nil {
		_ = lock.Close()
	}
}

// Notes says which checkpoints are not written, and why.
func (d *Dir) Notes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over != nil {
		return []string{fmt.Sprintf("no checkpoints in %s until a restart: %d stores were given up, the last for: %s; joins go on",
			d.o.Path, d.givenUp, causeOf(d.over))}
	}
	by := map[string]int{}
	for _, why := range d.problems {
		by[why]++
	}
	var notes []string
	for why, n := range by {
		notes = append(notes, fmt.Sprintf("no checkpoints in %s (partitions: %d): %s; joins go on", d.o.Path, n, why))
	}
	slices.Sort(notes)
	return notes
}

// LastSuccess is when the partition whose last checkpoint is the oldest was
// written, by whichever process, or was found to need no writing. A partition
// that has none is left out. Zero: there is none at all.
func (d *Dir) LastSuccess() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := time.Time{}
	for s := range d.sessions {
		if last := s.last; !last.IsZero() && (oldest.IsZero() || last.Before(oldest)) {
			oldest = last
		}
	}
	if oldest.IsZero() {
		return d.lastEnd
	}
	return oldest
}

// failed counts and tells of a failed attempt.
func (d *Dir) failed(partition int32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failedLocked(partition, err)
}

func (d *Dir) failedLocked(partition int32, err error) {
	why := causeOf(err)
	d.problems[partition] = why
	d.told = true
	d.o.OnFailure()
	fields := []zap.Field{zap.String("dir", d.o.Path), textOf("error", err)}
	if partition >= 0 {
		fields = append(fields, zap.Int32("partition", partition))
	}
	d.o.Faults.Warn("checkpoint "+why, "a checkpoint cannot be written, joins go on", fields...)
}

// textOf is an error's text without the traces that errors of the store print
// where a logger lets them.
func textOf(key string, err error) zap.Field {
	if err == nil {
		return zap.Skip()
	}
	return zap.String(key, err.Error())
}

// causeOf names an error in few words, of which there are few.
func causeOf(err error) string {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number.Error()
	}
	var held *Held
	switch {
	case errors.As(err, &held):
		return "another process has the directory"
	case errors.Is(err, errNoIDs), errors.Is(err, errDirGone), errors.Is(err, errHangs):
		return err.Error()
	}
	return "the store is damaged"
}

// gaveUp counts a store that stays with the process. From the bound on nothing
// more is written: the disk is not going to get better, and what the stores keep
// would be missing elsewhere, files first.
func (d *Dir) gaveUp(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.givenUp++
	if d.over != nil || d.givenUp < storesGivenUp {
		return
	}
	d.over = cause
	d.o.Log.Error("no more checkpoints are written until a restart, joins go on: too many stores were given up, each of which keeps memory and open files",
		zap.String("dir", d.o.Path), zap.Int("stores", d.givenUp), zap.String("error", cause.Error()))
}

// isOver is why no more checkpoints are written; nil while they are.
func (d *Dir) isOver() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

// wanted reports whether a place among the large pieces, had since then, should
// go to somebody who waits for one.
func (d *Dir) wanted(since time.Time) bool {
	return d.waiting.Load() > 0 && d.o.Now().Sub(since) >= d.o.Interval
}

func (d *Dir) healed(partition int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.problems, partition)
}

func (d *Dir) slot(partition int32) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.slots[partition] == nil {
		d.slots[partition] = make(chan struct{}, 1)
	}
	return d.slots[partition]
}

func (d *Dir) path(partition int32) string {
	return filepath.Join(d.o.Path, fmt.Sprintf("partition-%d", partition))
}

// setAside moves a partition's checkpoint out of the way, in the place of the
// one that was set aside before it: one a partition is kept for whoever wants to
// know, and nothing piles up. It fails where the disk takes no change.
func (d *Dir) setAside(partition int32, why string) (string, error) {
	path := d.path(partition)
	if there, err := exists(d.o.FS, path); err != nil || !there {
		return "", err
	}
	if err := d.dropAside(filepath.Base(path) + asideMark); err != nil {
		return "", err
	}
	aside := path + asideMark + record.MillisOf(d.o.Now()).Time().Format("20060102T150405.000Z") + "-" + why
	return aside, d.o.FS.Rename(path, aside)
}

// dropAside removes what was set aside under names that begin so.
func (d *Dir) dropAside(prefix string) error {
	names, err := d.o.FS.List(d.o.Path)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			errs = append(errs, d.o.FS.RemoveAll(filepath.Join(d.o.Path, name)))
		}
	}
	return errors.Join(errs...)
}

// makeRoom gives the disk back what is kept for curiosity alone.
func (d *Dir) makeRoom() {
	names, err := d.o.FS.List(d.o.Path)
	if err != nil {
		return
	}
	for _, name := range names {
		if strings.Contains(name, asideMark) {
			_ = d.o.FS.RemoveAll(filepath.Join(d.o.Path, name))
		}
	}
}
