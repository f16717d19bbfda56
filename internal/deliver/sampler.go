package deliver

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// sampleEvery is how often the same fault is logged while it lasts.
const sampleEvery = 10 * time.Second

// sampler logs a repeated fault at once, then once every sampleEvery with the
// number of times that were not logged: a broker that is away for an hour must
// not fill a disk, and must not go unseen either.
type sampler struct {
	log *zap.Logger
	now func() time.Time

	mu   sync.Mutex
	seen map[string]*sample
}

type sample struct {
	logged     time.Time
	suppressed int64
}

func newSampler(log *zap.Logger, now func() time.Time) *sampler {
	return &sampler{log: log, now: now, seen: make(map[string]*sample)}
}

// warn logs message unless the same key was logged shortly before. Keys come
// from small sets (an error's name, a topic): they are kept for ever.
func (s *sampler) warn(key, message string, fields ...zap.Field) {
	suppressed, ok := s.take(key)
	if !ok {
		return
	}
	if suppressed > 0 {
		fields = append(fields, zap.Int64("suppressed", suppressed))
	}
	s.log.Log(zapcore.WarnLevel, message, fields...)
}

func (s *sampler) take(key string) (suppressed int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.seen[key]
	if e == nil {
		s.seen[key] = &sample{logged: now}
		return 0, true
	}
	if now.Sub(e.logged) < sampleEvery {
		e.suppressed++
		return 0, false
	}
	suppressed, e.suppressed, e.logged = e.suppressed, 0, now
	return suppressed, true
}
