package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/IBM/sarama"

	"joiner/internal/deliver"
	"joiner/internal/task"
)

// leftovers collects what a stop that is cut short leaves behind: records that
// this pod has taken and whose outcome the group does not have.
type leftovers struct {
	mu      sync.Mutex
	byIndex map[int32]leftover
}

// leftover is a task that ended, by what it says of itself, and why it was noted.
type leftover struct {
	status func() task.Status
	why    string
}

// ended notes how a task ended during a stop; commit is what became of its
// last commit.
func (l *leftovers) ended(t *task.Task, commit error) {
	switch n := t.Abandoned(); {
	case errors.Is(commit, deliver.ErrDropped):
	case n > 0:
		l.add(t.Status, fmt.Sprintf("%d outputs unacknowledged", n))
	case commit != nil && !movedOn(commit):
		l.add(t.Status, commit.Error())
	}
}

// movedOn reports whether the group has given the partition to somebody else
// by now, who begins at the commit before: the stop was not too short then.
func movedOn(err error) bool {
	for _, e := range []error{
		deliver.ErrNoMember, deliver.ErrDropped, sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId,
		sarama.ErrRebalanceInProgress, sarama.ErrFencedInstancedId,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (l *leftovers) add(status func() task.Status, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byIndex == nil {
		l.byIndex = make(map[int32]leftover)
	}
	l.byIndex[status().Index] = leftover{status, why}
}

// err says what was left, nil where that is nothing. It is asked once the stop is
// over: a transaction whose end had no answer may have turned out committed since
// its tasks were noted.
func (l *leftovers) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	texts := make([]string, 0, len(l.byIndex))
	for _, index := range slices.Sorted(maps.Keys(l.byIndex)) {
		s := l.byIndex[index].status()
		if whole(s) {
			continue
		}
		texts = append(texts, fmt.Sprintf("partition %d: position %s; committed %s; %s", index, s.Position, s.Committed, l.byIndex[index].why))
	}
	if len(texts) == 0 {
		return nil
	}
	return fmt.Errorf("uncommitted: %s", strings.Join(texts, "\n  "))
}

// whole tells whether the group has all of a task's work.
func whole(s task.Status) bool { return s.Position == s.Committed && s.Unsettled == 0 }
