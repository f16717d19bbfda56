//go:build !unix

package checkpoint

import (
	"errors"
	"os"
)

// lockFile fails: without a lock two processes might write one directory.
func lockFile(string) (f *os.File, held bool, err error) {
	return nil, false, errors.New("checkpoints need a system with flock(2)")
}
