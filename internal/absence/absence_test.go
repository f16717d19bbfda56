package absence

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRoll(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	r := NewRoll[string](func() time.Time { return now })
	fault := errors.New("connection refused")
	check := func(want ...string) {
		t.Helper()
		got := r.Tell(func(who string, err error) string {
			if !errors.Is(err, fault) {
				t.Errorf("%s is away for %v", who, err)
			}
			if who == "nobody" {
				return ""
			}
			return who + " is away"
		}, "are")
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check()
	r.Missed("b", errors.New("another one at first"))
	r.Missed("nobody", fault)
	now = now.Add(silentFor - 1)
	r.Missed("b", fault)
	check()
	now = now.Add(1)
	check("b is away since 2026-01-01T12:00:00Z: connection refused")
	r.Reached("b")
	check()
	r.Missed("b", fault)
	now = now.Add(Counts + 1)
	check() // nobody has tried any more
	r.Missed("b", fault)
	check() // nor knows what was in between
	for i := range most + 3 {
		r.Missed(fmt.Sprintf("a%d", i), fault)
	}
	now = now.Add(silentFor)
	got := r.Tell(func(who string, _ error) string { return who }, "are")
	if len(got) != most+1 || got[most] != "4 more are" || !strings.HasPrefix(got[0], "a0 since ") {
		t.Error(got)
	}
	now = now.Add(Counts + 1)
	r.Missed("c", fault)
	if len(r.away) != 1 {
		t.Errorf("those of before are kept: %d", len(r.away))
	}
}
