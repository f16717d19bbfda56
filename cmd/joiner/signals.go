package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// signalled is the cause of a context that a signal ended.
type signalled struct{ signal os.Signal }

func (s signalled) Error() string { return fmt.Sprintf("received %s", s.signal) }

// withSignals returns a context that the first SIGINT or SIGTERM ends, for a
// graceful stop; its cause is signalled. A second one calls exit at once with
// 128 and its number: whoever sends it has lost patience with the first.
//
// first, where not nil, is called with the first signal, before the context
// ends. The function returned ends the watch, gives signals their default
// effect again, and returns only when neither first nor exit can be called any
// more.
func withSignals(parent context.Context, exit func(code int), first func(os.Signal)) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2) // both, should they come at once
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch(signals, stop, exit, func(s os.Signal) {
			if first != nil {
				first(s)
			}
			cancel(signalled{s})
		})
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stop)
		<-done
		cancel(context.Canceled)
	}
}

func watch(signals <-chan os.Signal, stop <-chan struct{}, exit func(code int), first func(os.Signal)) {
	select {
	case s := <-signals:
		first(s)
	case <-stop:
		return
	}
	select {
	case s := <-signals:
		exit(exitCode(s))
	case <-stop:
	}
}

// exitCode is the shell's convention for a process that a signal ended.
func exitCode(s os.Signal) int {
	if number, ok := s.(syscall.Signal); ok {
		return 128 + int(number)
	}
	return exitFailure
}
