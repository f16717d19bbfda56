package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestInspect(t *testing.T) {
	w := newWorld(t)
	if at, err := Inspect(w.path); err != nil || !at.Missing || at.Held {
		t.Errorf("missing: %+v %v", at, err)
	}
	if at, err := Inspect(filepath.Join(w.path, "a", "b")); err != nil || !at.Missing {
		t.Errorf("all of it missing: %+v %v", at, err)
	}
	if _, err := os.Stat(w.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
	d := w.open()
	if at, err := Inspect(w.path); err != nil || at.Missing || !at.Held {
		t.Errorf("held: %+v %v", at, err)
	}
	w.close(d)
	for range 2 { // nobody has it, this test included
		if at, err := Inspect(w.path); err != nil || at.Missing || at.Held {
			t.Errorf("free: %+v %v", at, err)
		}
	}
	w.close(w.open())

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below"), filepath.Join(file, "far", "below")} {
		if at, err := Inspect(path); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %+v %v", path, at, err)
		}
	}
}

// Who must not write is told so, for a directory that is there and for one that
// would have to be made.
func TestInspectWithoutRights(t *testing.T) {
	dir := t.TempDir()
	want := syscall.EACCES
	if os.Geteuid() == 0 {
		want = syscall.EROFS // root may do all that the file system does
		if err := mountReadOnly(dir); err != nil {
			t.Skip("needs a file system of its own:", err)
		}
		t.Cleanup(func() { _ = unmount(dir) })
	} else if err := os.Chmod(dir, 0o555); err != nil { //nolint:gosec // as somebody might have made it
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "a", "b")} {
		if at, err := Inspect(path); !errors.Is(err, want) {
			t.Errorf("%s: %+v %v, want %v", path, at, err, want)
		}
	}
}
