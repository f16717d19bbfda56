// Package sampled logs faults that repeat: the first of a kind at once, those
// that follow one every ten seconds, with the number left out. A broker that is
// away for an hour must not fill a disk, and must not go unseen either.
//
// It must never see a payload or a secret: its callers say what a fault is.
package sampled

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Every is how often a fault that repeats is logged.
const Every = 10 * time.Second

// Log is a log for faults. Any goroutine may use it.
type Log struct {
	log *zap.Logger
	now func() time.Time

	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	logged     time.Time
	suppressed int64
}

// New makes a Log that writes to log. now is the clock, nil for time.Now.
func New(log *zap.Logger, now func() time.Time) *Log {
	if now == nil {
		now = time.Now
	}
	return &Log{log: log, now: now, kinds: make(map[string]*kind)}
}

// Warn logs message unless one of its kind was logged shortly before. Kinds
// come from small sets (an error's name, a topic): they are kept for ever.
func (l *Log) Warn(kind, message string, fields ...zap.Field) {
	l.WarnFunc(kind, func() (string, []zap.Field) { return message, fields })
}

// Error is Warn for faults that somebody has to mend.
func (l *Log) Error(kind, message string, fields ...zap.Field) {
	l.write(zap.ErrorLevel, kind, func() (string, []zap.Field) { return message, fields })
}

// WarnFunc is Warn for a line that costs something to make: line is called only
// where it is logged.
func (l *Log) WarnFunc(kind string, line func() (message string, fields []zap.Field)) {
	l.write(zap.WarnLevel, kind, line)
}

func (l *Log) write(level zapcore.Level, kind string, line func() (string, []zap.Field)) {
	suppressed, ok := l.admit(kind)
	if !ok {
		return
	}
	message, fields := line()
	if suppressed > 0 {
		fields = append(fields, zap.Int64("suppressed", suppressed))
	}
	l.log.Log(level, message, fields...)
}

func (l *Log) admit(name string) (suppressed int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	k := l.kinds[name]
	if k == nil {
		l.kinds[name] = &kind{logged: now}
		return 0, true
	}
	if now.Sub(k.logged) < Every {
		k.suppressed++
		return 0, false
	}
	suppressed = k.suppressed
	*k = kind{logged: now}
	return suppressed, true
}
