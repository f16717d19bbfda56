package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// stack stops what was started, the last first.
type stack struct{ stops []stopper }

type stopper struct {
	name string
	stop func(context.Context) error
}

func (s *stack) push(name string, stop func(context.Context) error) {
	s.stops = append(s.stops, stopper{name, stop})
}

// goRun starts a part that runs until its context ends and pushes its end.
func (s *stack) goRun(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	s.push(name, func(limit context.Context) error {
		cancel()
		select {
		case err := <-done:
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		case <-limit.Done():
			return limit.Err()
		}
	})
}

// unwind stops everything within ctx and reports every part that did not stop
// cleanly.
func (s *stack) unwind(ctx context.Context, log *zap.Logger) error {
	var errs []error
	for len(s.stops) > 0 {
		last := s.stops[len(s.stops)-1]
		s.stops = s.stops[:len(s.stops)-1]
		began := time.Now()
		if err := last.stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", last.name, err))
		}
		log.Debug("part stopped", zap.String("part", last.name), zap.Duration("took", time.Since(began)))
	}
	return errors.Join(errs...)
}

// abandon stops what a panic would leave running.
func (s *stack) abandon() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for len(s.stops) > 0 {
		last := s.stops[len(s.stops)-1]
		s.stops = s.stops[:len(s.stops)-1]
		_ = last.stop(ctx) // the panic is what is reported
	}
}

// within runs f, which nothing interrupts, and gives up waiting when ctx ends.
func within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
