package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"joiner/internal/assign"
	"joiner/internal/record"
)

func TestForeignOwners(t *testing.T) {
	topics := [record.Sides]string{record.Market: "ticks", record.Notification: "notes"}
	member := func(id string, foreign bool) assign.Member {
		return assign.Member{MemberID: id, Identity: assign.Identity{ID: id}, Foreign: foreign}
	}
	d := &assign.Directory{
		Members: []assign.Member{member("a", false), member("idle", true), member("rdkafka-1", true), member("rdkafka-2", true)},
		Owners: map[string][]string{
			"ticks": {"a", "a", "rdkafka-2", ""}, "notes": {"a", "rdkafka-1", "rdkafka-2", "rdkafka-1"}, "other": {"idle"},
		},
	}
	want := []string{
		"member rdkafka-1 is no joiner and owns partitions 1, 3 of notes: their notifications get no alert",
		"member rdkafka-2 is no joiner and owns partitions 2 of notes and partitions 2 of ticks: their notifications get no alert, and their prices cannot be looked up",
	}
	if got := ForeignOwners(d, topics); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := problem(d, topics), strings.Join(want, "; "); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	d.Problem = "unequal"
	if got := problem(d, topics); !strings.HasPrefix(got, "unequal; member rdkafka-1 ") {
		t.Errorf("%q", got)
	}
	if got := ForeignOwners(nil, topics); got != nil || problem(nil, topics) != "" {
		t.Errorf("%q", got)
	}
	d.Members, d.Owners["notes"] = nil, nil
	for i := range mostForeign + 2 {
		id := fmt.Sprintf("f%d", i)
		d.Members, d.Owners["notes"] = append(d.Members, member(id, true)), append(d.Owners["notes"], id)
	}
	if got := ForeignOwners(d, topics); len(got) != mostForeign+1 || got[mostForeign] != "2 more members are no joiners and own partitions" {
		t.Errorf("%q", got)
	}
}
