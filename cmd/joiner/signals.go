package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// signalled is the cause of a context that a signal ended.
type signalled struct{ signal os.Signal }

func (s signalled) Error() string {
	if s.signal == os.Interrupt {
		return "interrupted (SIGINT)"
	}
	return "interrupted (SIGTERM)"
}

// What a first signal leaves the commands to end by themselves: to close
// connections, to stop the demo's members, to wait for alerts on their way.
const (
	healthGrace = time.Second
	planGrace   = time.Second
	checkGrace  = 3 * time.Second
	auditGrace  = 3 * time.Second
	demoGrace   = 10 * time.Second
	loadGrace   = 20 * time.Second
)

// interruptible runs a command's work under a context that the first signal
// ends. Work that has not ended by itself within grace thereafter is left
// behind, for the process is about to end: sarama has calls that know of no
// context, and whoever interrupts must not wait for them.
//
// The error of work that a signal ended is a signalled, with what else it says;
// work that ends well in spite of one has done what it was for.
func interruptible[T any](cmd *cobra.Command, p *process, grace time.Duration, work func(context.Context) (T, error)) (T, error) {
	ctx, stop := withSignals(cmd.Context(), p.exit, nil)
	defer stop()
	return within(ctx, grace, work)
}

func within[T any](ctx context.Context, grace time.Duration, work func(context.Context) (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := work(ctx)
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, interrupted(ctx, o.err)
	case <-ctx.Done():
	}
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case o := <-done:
		return o.value, interrupted(ctx, o.err)
	case <-patience.C:
		var none T
		return none, context.Cause(ctx)
	}
}

// interrupted makes the error of work that a signal ended say so: "context
// canceled" says nothing to whoever sent it.
func interrupted(ctx context.Context, err error) error {
	var signal signalled
	if err == nil || !errors.As(context.Cause(ctx), &signal) {
		return err
	}
	if errors.Is(err, signal) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return signal
	}
	return fmt.Errorf("%w: %w", signal, err)
}

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
