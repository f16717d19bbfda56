package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/sampled"
)

// ErrClosed is what a request gets that was under way, or made, when the
// clients were closed.
var ErrClosed = errors.New("kafka clients are closed")

// lasting tells whether trying again is useless until somebody changes
// something: rights, names, versions.
func lasting(err error) bool {
	for _, e := range []error{
		ErrClosed, sarama.ErrClosedClient,
		sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed, sarama.ErrClusterAuthorizationFailed,
		sarama.ErrTransactionalIDAuthorizationFailed,
		sarama.ErrInvalidTopic, sarama.ErrInvalidGroupId,
		sarama.ErrUnsupportedVersion, sarama.ErrPolicyViolation, sarama.ErrInvalidConfig,
		sarama.ErrInvalidReplicationFactor, sarama.ErrInvalidRequest, sarama.ErrUnsupportedForMessageFormat,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var config sarama.ConfigurationError
	var encoding sarama.PacketEncodingError
	var above *AboveEnd
	return errors.As(err, &config) || errors.As(err, &encoding) || errors.As(err, &above)
}

// answered tells whether err came from a broker, whose connection is then fine.
func answered(err error) bool {
	var code sarama.KError
	return errors.As(err, &code)
}

// within calls f, which cannot be interrupted, and stops waiting for it when
// ctx ends. What f returns later is dropped; sarama's read timeout, or closing
// the clients, ends it.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	if err := ctx.Err(); err != nil {
		var zero T
		return zero, err
	}
	result := make(chan outcome, 1)
	go func() {
		v, err := f()
		result <- outcome{v, err}
	}()
	select {
	case r := <-result:
		return r.value, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// again calls f until it succeeds, fails for good, or ctx ends, 100ms apart.
// The error tells what was tried, and where time ran out also the last fault.
func (s *sampler) again(ctx context.Context, what string, f func(context.Context) error, fields ...zap.Field) error {
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return expired(ctx, what, err, last)
		}
		if lasting(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		last = err
		s.Warn(what, "trying again", append(fields, zap.String("request", what), zap.Error(err))...)
		if !pause(ctx, backoff) {
			return expired(ctx, what, nil, last)
		}
	}
}

func expired(ctx context.Context, what string, now, last error) error {
	if now != nil && !errors.Is(now, ctx.Err()) {
		last = now
	}
	if last == nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	return fmt.Errorf("%s: %w (last fault: %w)", what, ctx.Err(), last)
}

// pause waits for d and tells whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sampler logs faults sparingly, and tries again what they are about.
type sampler struct{ *sampled.Log }

func newSampler(log *zap.Logger) *sampler { return &sampler{sampled.New(log, nil)} }
