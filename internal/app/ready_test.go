package app

import (
	"errors"
	"slices"
	"testing"
	"time"

	"joiner/internal/assign"
	"joiner/internal/member"
	"joiner/internal/record"
	"joiner/internal/server"
	"joiner/internal/task"
)

func TestJudge(t *testing.T) {
	a := &App{topics: [record.Sides]string{"market-updates", "notifications"}}
	tests := []struct {
		name   string
		status task.Status
		want   server.Readiness
		reason string
	}{
		{
			name:   "caught up",
			status: task.Status{State: task.Running, CaughtUp: true},
			want:   server.Readiness{CaughtUp: true},
		},
		{
			name:   "restoring",
			status: task.Status{State: task.Restoring, RestoreRemaining: 7},
			want:   server.Readiness{Restoring: true},
			reason: "partition 3 of market-updates is being restored: 7 records left",
		},
		{
			name:   "the first catch-up",
			status: task.Status{State: task.Running, FirstCatchUp: true, RestoreRemaining: 7},
			want:   server.Readiness{Restoring: true},
			reason: "partition 3 of market-updates is not caught up: 7 records left",
		},
		{
			name:   "moved in the middle of it, with a commit",
			status: task.Status{State: task.Running, RestoreRemaining: 7},
			reason: "partition 3 of market-updates is not caught up: 7 records left",
		},
		{
			name:   "frozen",
			status: task.Status{State: task.Frozen, CaughtUp: true},
			reason: "partition 3 is being handed over",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := server.Readiness{CaughtUp: true}
			test.status.Index = 3
			a.judge(test.status, &got)
			if got.Restoring != test.want.Restoring || got.CaughtUp != test.want.CaughtUp {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			reason := ""
			if len(got.Reasons) == 1 {
				reason = got.Reasons[0]
			}
			if reason != test.reason || len(got.Reasons) > 1 {
				t.Errorf("reasons %q, want %q", got.Reasons, test.reason)
			}
		})
	}
}

func TestDirectoryNotes(t *testing.T) {
	for name, c := range map[string]struct {
		s     member.Status
		notes int
	}{
		"no assignment":       {member.Status{}, 0},
		"a directory":         {member.Status{Assigned: true, Directory: &assign.Directory{}}, 0},
		"a foreign leader":    {member.Status{Assigned: true}, 1},
		"a directory too far": {member.Status{Assigned: true, Directory: &assign.Directory{Truncated: true}}, 1},
	} {
		if got := directoryNotes(c.s); len(got) != c.notes {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestReasonsAreSaidOnce(t *testing.T) {
	if got := once([]string{"a", "b", "a", "c", "b"}); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("%q", got)
	}
}

func TestReasonsAreOneLineEach(t *testing.T) {
	got := oneLine([]string{errors.Join(errors.New("a"), errors.New("b")).Error(), "c"})
	if !slices.Equal(got, []string{"a; b", "c"}) {
		t.Errorf("%q", got)
	}
}

// A pod that owns nothing and is about to get something is not ready until it has
// it, or a rolling update would go on to the one that has it still.
func TestReadyOnceHandedOver(t *testing.T) {
	a := &App{topics: [record.Sides]string{"market-updates", "notifications"}}
	d := &assign.Directory{}
	for what, c := range map[string]struct {
		s    member.Status
		want []string
	}{
		"a spare":    {member.Status{Assigned: true, Directory: d}, nil},
		"to get two": {member.Status{Assigned: true, Directory: d, Coming: []int32{4, 7}}, []string{"partitions 4, 7 are being handed over to this pod, which has none yet"}},
	} {
		if got := a.groupReasons(c.s); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

func TestVacantNotes(t *testing.T) {
	if got := vacantNotes(member.Status{}); got != nil {
		t.Errorf("nothing is vacant: %q", got)
	}
	got := vacantNotes(member.Status{Vacant: []int32{2, 5}, VacantSince: time.Unix(0, 0)})
	want := "partitions 2, 5 have had no owner since 1970-01-01T00:00:00Z: their old one has not let them go, and another rebalance is asked for"
	if len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
}
