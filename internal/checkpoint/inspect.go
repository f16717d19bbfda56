package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Place is what becomes of a directory that a process would have its checkpoints
// in, as far as can be told without changing anything.
type Place struct {
	Missing bool // it is not there, and can be made
	Held    bool // another process has it now
}

// Inspect looks at a directory as Open would, and changes nothing: it takes no
// lock for longer than it takes to see that nobody has it. The error says why no
// checkpoint could be written there. It waits for the disk.
func Inspect(path string) (Place, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Place{Missing: true}, mayMake(path)
	case err != nil:
		return Place{}, err
	}
	if err := mayWrite(path, info); err != nil {
		return Place{}, err
	}
	held, err := isHeld(filepath.Join(path, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return Place{Held: held}, err
}

// mayMake looks at the nearest directory above that is there.
func mayMake(path string) error {
	for {
		above := filepath.Dir(path)
		info, err := os.Stat(above)
		switch {
		case err == nil:
			return mayWrite(above, info)
		case !errors.Is(err, fs.ErrNotExist) || above == path:
			return err
		}
		path = above
	}
}

func mayWrite(path string, info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
	}
	if err := writable(path); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
