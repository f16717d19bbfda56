package app

import (
	"errors"
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

// Of two names that a StatefulSet may have given nobody knows which is the pod's.
func TestPodName(t *testing.T) {
	for _, c := range []struct {
		instance, host, pod string
		fails               bool
	}{
		{instance: "joiner-3", host: "joiner-3", pod: "joiner-3"},
		{instance: "joiner-3", host: "vm", pod: "joiner-3"},
		{instance: "joiner-3", pod: "joiner-3"},
		{instance: "prices", host: "joiner-3", pod: "joiner-3"},
		{instance: "joiner-prod-3", host: "joiner-3", fails: true},
		{instance: "joiner-2", host: "joiner-3", fails: true},
	} {
		pod, err := PodName(c.instance, c.host)
		if pod != c.pod || errors.Is(err, errWhichPod) != c.fails {
			t.Errorf("instance %q on host %q: %q %v", c.instance, c.host, pod, err)
		}
	}
}
