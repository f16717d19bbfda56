//go:build !linux

package proc

import "syscall"

func dieWithTest() *syscall.SysProcAttr { return nil }
