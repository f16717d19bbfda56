package stall

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Pod in a Key: the part belongs to no partition.
const Pod int32 = -1

// Key names a part that is watched.
type Key struct {
	Partition int32 // index of the task, or Pod
	Part      string
}

// Sample is what a part showed at one moment; see record.Pulse for what Work
// and Done mean.
type Sample struct {
	Key
	Work string
	Done uint64
}

// Stall is a part that has had work for the whole timeout and has done none.
type Stall struct {
	Key
	Work  string    // what it had to do when it was last looked at
	Since time.Time // when it was first seen so
}

func (s Stall) String() string {
	where := fmt.Sprintf("partition %d", s.Partition)
	if s.Partition == Pod {
		where = "the pod"
	}
	return fmt.Sprintf("%s has stalled since %s (%s): %s", where, s.Since.UTC().Format(time.RFC3339), s.Part, s.Work)
}

// judge decides by samples alone. It counts looks and not time: a process that
// was suspended, or a clock that was set, adds one look, however long it was.
type judge struct {
	looks int // that a part may show the same work undone before it has stalled
	parts map[Key]*track
}

// track is how long a part has shown the same.
type track struct {
	done    uint64
	same    int // looks since the first at which nothing had changed
	stalled bool
	stall   Stall
}

func newJudge(looks int) *judge { return &judge{looks: looks, parts: make(map[Key]*track)} }

// look takes the samples of one moment and returns the stalls that began and
// those that ended with it. A part that is not among the samples is gone.
func (j *judge) look(now time.Time, samples []Sample) (began, ended []Stall) {
	seen := make(map[Key]bool, len(samples))
	for _, s := range samples {
		if s.Work == "" {
			continue // as one that is gone: what it waits for is not its fault
		}
		seen[s.Key] = true
		t := j.parts[s.Key]
		if t != nil && t.done != s.Done {
			ended = t.end(ended)
			t = nil
		}
		if t == nil {
			j.parts[s.Key] = &track{done: s.Done, stall: Stall{Key: s.Key, Work: s.Work, Since: now}}
			continue
		}
		t.same++
		t.stall.Work = s.Work
		if !t.stalled && t.same >= j.looks {
			t.stalled = true
			began = append(began, t.stall)
		}
	}
	for key, t := range j.parts {
		if !seen[key] {
			ended = t.end(ended)
			delete(j.parts, key)
		}
	}
	return began, ended
}

func (t *track) end(ended []Stall) []Stall {
	if t.stalled {
		ended = append(ended, t.stall)
	}
	return ended
}

// stalls lists the parts that have stalled, those of the pod first.
func (j *judge) stalls() (all []Stall) {
	for _, t := range j.parts {
		if t.stalled {
			all = append(all, t.stall)
		}
	}
	slices.SortFunc(all, func(a, b Stall) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Part, b.Part))
	})
	return all
}
