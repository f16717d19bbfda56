package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEvents(t *testing.T) {
	for _, tc := range []struct {
		start int
		text  string
		want  []Event
	}{
		{0, "4,5,4,-m2", []Event{{"4", []int{1, 2, 3, 4}, nil}, {"5", []int{5}, nil}, {"4", nil, []int{5}}, {"-m2", nil, []int{2}}}},
		// A name that was used is not used again, unless it is asked for.
		{0, "3,2,3", []Event{{"3", []int{1, 2, 3}, nil}, {"2", nil, []int{3}}, {"3", []int{4}, nil}}},
		{0, "2,-m2,+m2", []Event{{"2", []int{1, 2}, nil}, {"-m2", nil, []int{2}}, {"+m2", []int{2}, nil}}},
		// Names that were skipped are the next unused ones.
		{0, "+m3, 4", []Event{{"+m3", []int{3}, nil}, {"4", []int{1, 2, 4}, nil}}},
		{2, "", []Event{{"2", []int{1, 2}, nil}}},
		{2, "2", []Event{{"2", []int{1, 2}, nil}, {"2", nil, nil}}},
		{0, "", []Event{}},
	} {
		got, err := ParseEvents(tc.start, tc.text)
		if err != nil {
			t.Errorf("%d, %q: %v", tc.start, tc.text, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%d, %q (-want +got):\n%s", tc.start, tc.text, diff)
		}
	}
}

func TestParseEventsRefuses(t *testing.T) {
	for _, tc := range []struct {
		start    int
		text     string
		position int
		wrong    string
	}{
		{0, "4,x", 2, "x"},
		{0, "0", 1, "0"},
		{0, "4,-m9", 2, "-m9"},
		{4, "-m9", 1, "-m9"},
		{0, "-m1", 1, "-m1"},
		{0, "4,+m2", 2, "+m2"},
		{0, "2,-m1,-m2", 3, "-m2"},
		{0, "4,,5", 2, ""},
		{0, "4,", 2, ""},
		{0, " ", 1, ""},
		{0, "4,m2", 2, "m2"},
		{0, "4,-2", 2, "-2"},
		{0, "4,+m02", 2, "+m02"},
		{0, "04", 1, "04"},
		{0, "10001", 1, "10001"},
		{0, "+m10001", 1, "+m10001"},
		{0, "10000,1,2", 3, "2"}, // all names are used up
		{0, "99999999999999999999", 1, "99999999999999999999"},
		{-1, "", 0, "-1"},
		{10001, "4", 0, "10001"},
		{0, strings.Repeat("4,", maxEvents) + "4", maxEvents + 1, "4"},
	} {
		_, err := ParseEvents(tc.start, tc.text)
		var wrong *EventError
		if !errors.As(err, &wrong) {
			t.Errorf("%d, %.20q: %v", tc.start, tc.text, err)
			continue
		}
		if wrong.Position != tc.position || wrong.Text != tc.wrong || wrong.Reason == "" {
			t.Errorf("%d, %.20q: %+v", tc.start, tc.text, wrong)
		}
	}
}

func TestNames(t *testing.T) {
	for want, members := range map[string][]int{
		"nobody": nil, "m7": {7}, "m1, m2": {1, 2}, "m1–m3, m5, m8–m10": {1, 2, 3, 5, 8, 9, 10},
	} {
		if got := Names(members); got != want {
			t.Errorf("%v: %q, want %q", members, got, want)
		}
	}
}

func FuzzParseEvents(f *testing.F) {
	for _, text := range []string{"4,5,4,-m2", "+m3, 4", "2,-m2,+m2,2", "0", "m2", ""} {
		f.Add(0, text)
	}
	f.Add(4, "-m4")
	f.Fuzz(func(t *testing.T, start int, text string) {
		events, err := ParseEvents(start, text)
		if err != nil {
			var wrong *EventError
			if !errors.As(err, &wrong) {
				t.Fatalf("an error without its event: %v", err)
			}
			return
		}
		var present []int
		var words []string
		for _, e := range events {
			words = append(words, e.Text)
			for _, n := range e.Leave {
				i := slices.Index(present, n)
				if i < 0 {
					t.Fatalf("%q: %s leaves a group of %s", e.Text, Name(n), Names(present))
				}
				present = slices.Delete(present, i, i+1)
			}
			for _, n := range e.Join {
				if n < 1 || n > MaxMembers || slices.Contains(present, n) {
					t.Fatalf("%q: %s joins a group of %s", e.Text, Name(n), Names(present))
				}
				present = append(present, n)
			}
			if len(present) == 0 || len(e.Join) > 0 && len(e.Leave) > 0 {
				t.Fatalf("%q: %v join, %v leave, %d are left", e.Text, e.Join, e.Leave, len(present))
			}
		}
		again, err := ParseEvents(0, strings.Join(words, ","))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(events) {
			t.Fatalf("%q reads as %v, and as %v (%v) when read again", text, events, again, err)
		}
	})
}
