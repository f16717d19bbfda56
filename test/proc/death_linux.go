package proc

import "syscall"

// dieWithTest has a child killed when the test binary dies, even by a panic or
// a timeout, which run no cleanup.
func dieWithTest() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
