//go:build !linux

package proc

import "syscall"

// DieWithTest does nothing where the kernel cannot do it.
func DieWithTest() *syscall.SysProcAttr { return nil }
