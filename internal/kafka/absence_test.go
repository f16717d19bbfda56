package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"joiner/internal/absence"
)

func TestUnreachableBrokersAreNamed(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	a, err := NewAccess(Security{}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return now }
	fault := errors.New("connection refused")
	check := func(want ...string) {
		t.Helper()
		if got := strings.Join(a.Unreachable(), "\n"); got != strings.Join(want, "\n") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check()
	a.missed("b:9092", fault)
	check() // for a moment
	now = now.Add(10 * time.Second)
	a.missed("b:9092", fault)
	check("broker b:9092 cannot be reached since 2026-01-01T12:00:00Z: connection refused")
	a.reached("b:9092")
	check()
	a.missed("b:9092", fault)
	now = now.Add(absence.Counts + time.Second)
	check() // nobody has tried any more
	a.missed("b:9092", fault)
	check() // nor knows what was in between
}

// A coordinator whose broker takes no connection is told of, and so is the broker,
// until it is there again.
func TestAbsentCoordinatorIsNamed(t *testing.T) {
	k := fakeCluster(t, 1)
	topic := k.topic(t, 1, nil)
	access, err := NewAccess(Security{}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := k.connect(t, func(o *Options) { groupOptions(o); o.Access = access })
	g := newGate()
	c.joins.dial = g.Dial
	c.joins.interrupt()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, _, _ := consume(ctx, t, c, topic)
	eventually(t, "the claim", func() bool { return h.started.Load() == 1 })
	if away := c.CoordinatorAway(); away != "" {
		t.Error(away)
	}
	g.close()
	eventually(t, "the coordinator being missed", func() bool {
		return strings.HasPrefix(c.CoordinatorAway(), "the group's coordinator has been away since 2")
	})
	eventually(t, "the broker being missed", func() bool { return len(access.Unreachable()) == 1 })
	g.open()
	eventually(t, "the coordinator", func() bool { return c.CoordinatorAway() == "" && len(access.Unreachable()) == 0 })
}
