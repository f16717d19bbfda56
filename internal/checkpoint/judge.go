package checkpoint

import (
	"fmt"
	"time"

	"joiner/internal/record"
	"joiner/internal/state"
)

// Facts are what is known of the partition of a task that begins.
type Facts struct {
	Scope state.Scope
	// Compacted tells whether the topic may forget tombstones, DeleteRetention
	// after how long it does at the earliest.
	Compacted       bool
	DeleteRetention time.Duration
}

// Range is where the log and the group stand.
type Range struct {
	Start     int64 // the log's first offset
	Committed int64 // where the claim goes on; 0 or less: from the log's start
	End       int64 // of the log, for this isolation level
}

// Verdict says what becomes of the checkpoint of a task that begins.
type Verdict uint8

// The verdicts. All but Used and Absent set the checkpoint aside.
const (
	Used     Verdict = iota
	Absent           // there was none, or none that could be reached
	Damaged          // it cannot be read, or contradicts itself
	Foreign          // of another cluster, topic, group or partition
	TooNew           // in a format of the future
	Future           // above what the group has committed, or above the log's end
	Stale            // the topic may have forgotten what came since
	Changed          // made under rules that are not ours any more
	Verdicts         // their number, for arrays
)

func (v Verdict) String() string {
	return [Verdicts]string{"used", "absent", "damaged", "foreign", "too_new", "future", "stale", "changed"}[v]
}

// retentionShare is the part of delete.retention.ms for which a checkpoint is
// trusted to have missed no tombstone; the rest is for clocks that differ.
const retentionShare = 0.9

// judge says whether a table may be filled from a snapshot, and why not.
func judge(h *state.Head, f *Facts, r Range, now record.Millis) (Verdict, string) {
	s := f.Scope
	for _, id := range []struct{ what, theirs, ours string }{
		{"cluster", h.Cluster, s.Cluster},
		{"group", h.Group, s.Group},
		{"topic", h.Topic, s.Topic},
		{"topic id", h.TopicID, s.TopicID},
		{"partition", fmt.Sprint(h.Partition), fmt.Sprint(s.Partition)},
	} {
		if id.theirs != id.ours {
			return Foreign, fmt.Sprintf("it is of %s %q, not %q", id.what, id.theirs, id.ours)
		}
	}
	switch {
	case h.Rules != s.Rules:
		return Changed, fmt.Sprintf("its prices were made by other rules: %s, not %s", h.Rules, s.Rules)
	case h.History < s.History:
		return Changed, fmt.Sprintf("it holds a history of %d ms, join.history is %d ms", h.History, s.History)
	case h.From < r.Start:
		return Stale, goneSince(h.From, r.Start)
	case h.UpTo > 0 && r.Committed < 0:
		return Future, fmt.Sprintf("it stands at offset %d, and the group has committed nothing, or nothing that the log still has", h.UpTo)
	case h.UpTo > max(r.Committed, 0):
		return Future, fmt.Sprintf("it stands at offset %d, above the committed one, %d", h.UpTo, r.Committed)
	case r.Committed > r.End:
		return Future, fmt.Sprintf("the log ends at %d, below the committed offset, %d: it is not the log that it was", r.End, r.Committed)
	case h.UpTo > r.End:
		return Future, fmt.Sprintf("it stands at offset %d, above the log's end, %d", h.UpTo, r.End)
	case h.From >= r.End:
		return Used, "" // nothing has come since: its age is all the same
	}
	age := time.Duration(now-h.Since) * time.Millisecond
	if limit := time.Duration(retentionShare * float64(f.DeleteRetention)); f.Compacted && (age > limit || h.Written > now+clockSlack) {
		return Stale, fmt.Sprintf("it is %s old, and the topic forgets tombstones after %s: it may have missed one",
			age.Round(time.Second), f.DeleteRetention)
	}
	return Used, ""
}

func goneSince(from, start int64) string {
	return fmt.Sprintf("records from offset %d, where it stands, to %d, where the log begins, are gone", from, start)
}

// clockSlack is how many ms a checkpoint may be dated ahead of our clock.
const clockSlack = 60_000
