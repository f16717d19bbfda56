//go:build !unix

package checkpoint

import (
	"errors"
	"os"
)

var errNoLocks = errors.New("checkpoints need a system with flock(2)")

// lockFile fails: without a lock two processes might write one directory.
func lockFile(string) (f *os.File, held bool, err error) { return nil, false, errNoLocks }

// isHeld reports whether a process has the lock.
func isHeld(string) (bool, error) { return false, errNoLocks }

// writable asks whether entries of a directory may be made.
func writable(string) error { return errNoLocks }
