package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"joiner/internal/state"
)

// A disk may fail, and it may hang: a volume that was detached, or that is mounted
// from a machine which does not answer, holds whoever asks it, for hours. So no
// task and no probe asks it: goroutines of their own do, which are left behind
// where they do not come back.

// diskPatience is how long a disk may do nothing of what a task that begins waits
// for, before it begins without.
const diskPatience = 20 * time.Second

var errHangs = errors.New("the disk does not answer")

// attempt is one attempt to take the directory.
type attempt struct {
	late time.Time     // from when on nobody waits for it
	done chan struct{} // closed once err says what came of it
	err  error
}

// take takes the lock where this process does not have it yet. It waits for the
// disk within the patience, all callers for the same attempt, and not beyond over.
func (d *Dir) take(over <-chan struct{}) error {
	a, err := d.taking()
	if a == nil {
		return err
	}
	timer := time.NewTimer(time.Until(a.late))
	defer timer.Stop()
	select {
	case <-a.done:
		return a.err
	case <-over:
		return errStopping
	case <-timer.C:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	default:
	}
	d.failedLocked(dirProblem, errHangs)
	return fmt.Errorf("checkpoints in %s: %w", d.o.Path, errHangs)
}

// taking returns the attempt that is under way, or a new one; nil where the lock
// is had, or will never be.
func (d *Dir) taking() (*attempt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.lock != nil:
		return nil, nil
	case d.closed:
		return nil, os.ErrClosed
	case d.attempt == nil:
		d.attempt = &attempt{late: time.Now().Add(d.o.Patience), done: make(chan struct{})}
		go d.try(d.attempt)
	}
	return d.attempt, nil
}

// try asks the disk for the lock. d.mu is had for what comes of it alone.
func (d *Dir) try(a *attempt) {
	var lock *os.File
	var locked os.FileInfo
	held := false
	err := d.o.FS.MkdirAll(d.o.Path, 0o755)
	if err == nil {
		lock, held, err = lockFile(filepath.Join(d.o.Path, lockName))
	}
	if err == nil {
		locked, err = lock.Stat()
	}
	d.mu.Lock()
	if err == nil && d.closed {
		err = os.ErrClosed
	}
	d.attempt = nil
	switch {
	case err == nil:
		d.lock, d.locked, lock = lock, locked, nil
		delete(d.problems, dirProblem)
	case held:
		a.err = &Held{d.o.Path}
	case !d.closed:
		d.failedLocked(dirProblem, err)
		fallthrough
	default:
		a.err = fmt.Errorf("checkpoints in %s: %w", d.o.Path, err)
	}
	close(a.done)
	d.mu.Unlock()
	if lock != nil {
		_ = lock.Close()
	}
}

// errand is what a goroutine does on the disk for a session that may leave it
// behind.
type errand struct {
	turns atomic.Int64 // counts what the disk has done

	mu    sync.Mutex
	ended bool
	left  bool
	table *state.Table // to be filled; nil once it was left behind
}

var errLeft = errors.New("nobody waits for it any more")

// fill gives f the table, locked, and counts a turn. It fails with errLeft.
func (e *errand) fill(f func(*state.Table) error) error {
	e.turns.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left {
		return errLeft
	}
	e.table.Lock()
	defer e.table.Unlock()
	return f(e.table)
}

// apart has do run on the disk, with the partition's store as its own, and waits
// for it: while ctx lasts, and while the disk does something. It reports false
// where do was left behind; the store stays its own then until it ends, so that
// nobody writes what it may be reading or moving. do must not hold the session.
func (s *Session) apart(ctx context.Context, table *state.Table, do func(*errand)) bool {
	e, ended, slot := &errand{table: table}, make(chan struct{}), s.slot
	go func() {
		do(e)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ended = true
		close(ended)
		if e.left {
			<-slot
		}
	}()
	timer := time.NewTimer(s.d.o.Patience)
	defer timer.Stop()
	for seen := int64(0); ; {
		select {
		case <-ended:
			return true
		case <-ctx.Done():
			return s.leaves(e)
		case <-timer.C:
		}
		turns := e.turns.Load()
		if turns == seen {
			return s.leaves(e)
		}
		seen = turns
		timer.Reset(s.d.o.Patience)
	}
}

// leaves leaves the errand behind, with the store, unless it has just ended.
func (s *Session) leaves(e *errand) (ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return true
	}
	e.left, e.table, s.owns = true, nil, false
	return false
}
