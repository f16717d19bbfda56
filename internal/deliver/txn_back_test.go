package deliver

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A task whose topic was made anew begins below what the group has committed. Where
// its first transaction ends without an answer, what was committed before does not
// show that it was.
func TestUnknownEndAfterPositionsWentBack(t *testing.T) {
	for _, done := range []bool{false, true} {
		x := newTransacting(t)
		for _, j := range x.tasks {
			j.join(60, never)
		}
		x.round(context.Background())
		for p, old := range x.tasks {
			x.Unregister(old)
			x.tasks[p] = newJoined(t, old.index, 0)
			x.tasks[p].join(20, never)
			x.Register(x.tasks[p])
		}
		x.coord.next(onEnd, trouble{err: context.DeadlineExceeded, lost: true, done: done})
		x.round(context.Background())
		if diff := cmp.Diff(map[Outcome]int{Committed: 1, Unknown: 1}, x.is()); diff != "" {
			t.Fatal(diff)
		}
		x.finish(20)
		for p := range int32(txnTasks) {
			if n := len(x.visible("alerts", p)); n != 80 {
				t.Errorf("partition %d, committed %t: %d outputs, want 80", p, done, n)
			}
		}
	}
}
