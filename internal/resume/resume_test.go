package resume

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"joiner/internal/record"
)

func TestAt(t *testing.T) {
	const id, old = "new", "old"
	log := Log{TopicID: id, Start: 100, End: 190, High: 200}
	none := Commit{Offset: None, Label: ParseLabel("")}
	at := func(offset int64, topic string) Commit {
		return Commit{Offset: offset, Label: Label{TopicID: topic, OtherOffset: None}}
	}
	for name, test := range map[string]struct {
		own, other   Commit
		log          Log
		market, note Start
	}{
		"in range":              {own: at(150, id), market: Start{150, Kept, 150, 0}, note: Start{150, Kept, 150, 0}},
		"at the start":          {own: at(100, id), market: Start{100, Kept, 100, 0}, note: Start{100, Kept, 100, 0}},
		"below the start":       {own: at(99, id), market: Start{100, BelowStart, 99, 1}, note: Start{100, BelowStart, 99, 1}},
		"in a transaction":      {own: at(195, id), market: Start{195, Kept, 195, 0}, note: Start{195, Kept, 195, 0}},
		"at the high watermark": {own: at(200, id), market: Start{200, Kept, 200, 0}, note: Start{200, Kept, 200, 0}},
		"truncated":             {own: at(201, id), market: Start{100, Truncated, 201, 0}, note: Start{190, Truncated, 201, 0}},
		"no label, above":       {own: at(201, ""), market: Start{100, Truncated, 201, 0}, note: Start{190, Truncated, 201, 0}},
		"no label, in range":    {own: at(150, ""), market: Start{150, Kept, 150, 0}, note: Start{150, Kept, 150, 0}},
		"made anew, above":      {own: at(999, old), market: Start{100, Recreated, 999, 0}, note: Start{100, Recreated, 999, 0}},
		"made anew, in range":   {own: at(150, old), market: Start{100, Recreated, 150, 0}, note: Start{100, Recreated, 150, 0}},
		"made anew, below":      {own: at(1, old), market: Start{100, Recreated, 1, 0}, note: Start{100, Recreated, 1, 0}},
		"no id at the broker": {
			own: at(150, old), log: Log{Start: 100, End: 190, High: 200},
			market: Start{150, Kept, 150, 0}, note: Start{150, Kept, 150, 0},
		},
		"nothing committed": {own: none, other: at(7, "x"), market: Start{None, Kept, None, 0}, note: Start{None, Kept, None, 0}},
		"deleted with its topic": {
			own: none, other: Commit{Offset: 7, Label: Label{TopicID: "x", OtherID: old, OtherOffset: 42}},
			market: Start{100, Recreated, 42, 0}, note: Start{100, Recreated, 42, 0},
		},
		"never had any, the other knows the topic": {
			own: none, other: Commit{Offset: 7, Label: Label{TopicID: "x", OtherID: id, OtherOffset: 42}},
			market: Start{None, Kept, None, 0}, note: Start{None, Kept, None, 0},
		},
		"empty log": {
			own: at(5, id), log: Log{TopicID: id, Start: 0, End: 0, High: 0},
			market: Start{0, Truncated, 5, 0}, note: Start{0, Truncated, 5, 0},
		},
		"all deleted": {
			own: at(5, id), log: Log{TopicID: id, Start: 9, End: 9, High: 9},
			market: Start{9, BelowStart, 5, 4}, note: Start{9, BelowStart, 5, 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := test.log
			if l == (Log{}) {
				l = log
			}
			for side, want := range map[record.Side]Start{record.Market: test.market, record.Notification: test.note} {
				if diff := cmp.Diff(want, At(side, test.own, test.other, l)); diff != "" {
					t.Errorf("%s: %s", side, diff)
				}
			}
		})
	}
}

// Wherever a partition is read on, the log has it, and what is in the log and in
// range is never left out unseen.
func TestAtIsInTheLog(t *testing.T) {
	ids := []string{"", "a", "b"}
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Int64Range(0, 20).Draw(t, "start")
		end := start + rapid.Int64Range(0, 20).Draw(t, "end")
		log := Log{
			TopicID: rapid.SampledFrom(ids).Draw(t, "id"), Start: start, End: end,
			High: end + rapid.Int64Range(0, 5).Draw(t, "open"),
		}
		own := Commit{
			Offset: rapid.Int64Range(None, 60).Draw(t, "committed"),
			Label:  Label{TopicID: rapid.SampledFrom(ids).Draw(t, "label"), OtherOffset: None},
		}
		side := record.Side(rapid.IntRange(0, 1).Draw(t, "side"))
		got := At(side, own, Commit{Offset: None}, log)
		if got.Offset != None && (got.Offset < log.Start || got.Offset > log.High) {
			t.Fatalf("%+v is not in %+v", got, log)
		}
		if got.Offset == None && own.Offset >= 0 {
			t.Fatalf("%+v forgets %+v", got, own)
		}
		if (got.Why == Kept) != (got.Offset == own.Offset) && got.Why != Recreated {
			t.Fatalf("%+v after %+v", got, own)
		}
		if got.Skipped > 0 && got.Why != BelowStart {
			t.Fatalf("%+v skips what may be read", got)
		}
	})
}

func TestLabels(t *testing.T) {
	none := Label{OtherOffset: None}
	full := Label{TopicID: "VSk-x_1", OtherID: "b", OtherOffset: 12}
	for text, want := range map[string]Label{
		"":                         none,
		"anything":                 none,
		"joiner/2 topic_id=a":      none,
		"joiner/1":                 none,
		"joiner/1 topic_id=":       none,
		"joiner/1 topic_id=a":      {TopicID: "a", OtherOffset: None},
		"joiner/1 x=1 topic_id=a ": {TopicID: "a", OtherOffset: None},
		"joiner/1 topic_id=a other_id=b other_offset=12 later=field word": {TopicID: "a", OtherID: "b", OtherOffset: 12},
		"joiner/1 topic_id=a other_id=b other_offset=x":                   {TopicID: "a", OtherID: "b", OtherOffset: None},
		"joiner/1 topic_id=a other_offset=3":                              {TopicID: "a", OtherOffset: None},
		full.String():                                                     full,
	} {
		if diff := cmp.Diff(want, ParseLabel(text)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
	if got := (Label{OtherID: "b"}).String(); got != "" {
		t.Errorf("a label without a topic id: %q", got)
	}
}

func FuzzParseLabel(f *testing.F) {
	f.Add("joiner/1 topic_id=a other_id=b other_offset=12")
	f.Add("joiner/1 topic_id=a other_offset=-9")
	f.Add("joiner/1  topic_id==")
	f.Fuzz(func(t *testing.T, text string) {
		l := ParseLabel(text)
		if again := ParseLabel(l.String()); again != l {
			t.Fatalf("%q: %+v, and %+v after another turn", text, l, again)
		}
	})
}
