package app

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/record"
	"joiner/internal/resume"
	"joiner/internal/sampled"
)

// Where both topics are made anew no commit is left to tell of it: the process
// that read them does.
func TestBothTopicsMadeAnew(t *testing.T) {
	none := resume.Commit{Offset: resume.None, Label: resume.ParseLabel("")}
	for _, side := range []record.Side{record.Market, record.Notification} {
		for name, test := range map[string]struct {
			read, is string // topic ids, "" is none
			other    resume.Commit
			want     resume.Start
		}{
			"made anew":         {"old", "new", none, resume.Start{Offset: 5, Why: resume.Recreated, From: 42}},
			"the same":          {"old", "old", none, resume.Start{Offset: resume.None, From: resume.None}},
			"never read":        {"", "new", none, resume.Start{Offset: resume.None, From: resume.None}},
			"without ids":       {"old", "", none, resume.Start{Offset: resume.None, From: resume.None}},
			"the label goes on": {"old", "new", labelled("older", 50), resume.Start{Offset: 5, Why: resume.Recreated, From: 50}},
		} {
			t.Run(side.String()+" "+name, func(t *testing.T) {
				core, logs := observer.New(zap.WarnLevel)
				log := zap.New(core)
				r := newResumer([record.Sides]string{"market-updates", "notifications"}, log, sampled.New(log, nil))
				counted := [record.Sides]int{}
				r.count = func(side record.Side) { counted[side]++ }
				if test.read != "" {
					r.take(side, 3, test.read, resume.Start{Offset: 40})
					r.labels(map[string]map[int32]int64{r.topics[side]: {3: 42}})
				}
				now := resume.Log{TopicID: test.is, Start: 5, End: 9, High: 9}
				got := resume.At(side, none, r.remembered(side, 3, test.other), now)
				if got != test.want {
					t.Errorf("%+v, want %+v", got, test.want)
				}
				r.tell(side, 3, none, now, got, r.take(side, 3, test.is, got))
				told := 0
				if test.want.Why != resume.Kept {
					told = 1
				}
				if counted[side] != told || logs.FilterMessageSnippet("made anew").Len() != told {
					t.Errorf("counted %v, logs %v", counted, logs.All())
				}
			})
		}
	}
}

func labelled(otherID string, otherOffset int64) resume.Commit {
	return resume.Commit{Offset: 7, Label: resume.Label{TopicID: "x", OtherID: otherID, OtherOffset: otherOffset}}
}
