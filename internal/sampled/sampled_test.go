package sampled

import (
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestLogCountsWhatItSuppresses(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	now := time.Unix(0, 0)
	l := New(zap.New(core), func() time.Time { return now })
	for range 5 {
		l.Warn("a", "fault a")
	}
	l.Warn("b", "fault b")
	now = now.Add(Every - time.Second)
	l.Warn("a", "fault a")
	now = now.Add(time.Second)
	l.Warn("a", "fault a")
	now = now.Add(Every)
	l.Warn("a", "fault a")
	var got []any
	for _, e := range logs.All() {
		got = append(got, e.Message, e.ContextMap()["suppressed"])
	}
	want := []any{"fault a", nil, "fault b", nil, "fault a", int64(5), "fault a", nil}
	if !slices.Equal(got, want) {
		t.Errorf("logged %v, want %v", got, want)
	}
}

func TestWarnFuncMakesOnlyWhatIsLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	l, made := New(zap.New(core), nil), 0
	for range 3 {
		l.WarnFunc("a", func() (string, []zap.Field) { made++; return "fault a", []zap.Field{zap.Int("n", made)} })
	}
	if made != 1 || logs.Len() != 1 || logs.All()[0].ContextMap()["n"] != int64(1) {
		t.Errorf("made %d lines, logged %v", made, logs.All())
	}
}
