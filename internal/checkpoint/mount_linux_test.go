package checkpoint

import "syscall"

func mountTiny(at string) error { return syscall.Mount("tmpfs", at, "tmpfs", 0, "size=4m") }

func unmount(at string) error { return syscall.Unmount(at, syscall.MNT_DETACH) }

func mountReadOnly(at string) error {
	return syscall.Mount("tmpfs", at, "tmpfs", syscall.MS_RDONLY, "")
}
