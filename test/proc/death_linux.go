package proc

import "syscall"

// DieWithTest has a child killed when the test binary dies, even by a panic or
// a timeout, which run no cleanup.
func DieWithTest() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
