//go:build !linux

package e2e

import "syscall"

func dieWithTest() *syscall.SysProcAttr { return nil }
