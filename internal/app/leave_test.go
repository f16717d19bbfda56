package app

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/config"
	"joiner/internal/member"
)

// A pod that ends before its first session does not say that it has left.
func TestNobodyLeavesWithoutAMemberID(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	a := &App{o: Options{Config: config.Default()}, member: &member.Member{}, log: zap.New(core)}
	a.takeOut(t.Context())
	if logs.FilterMessage("the member has left the group").Len() > 0 || logs.Len() != 1 {
		t.Errorf("logged: %v", logs.All())
	}
}
