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
	byIndex map[int32]string
}

// ended notes how a task ended during a stop; commit is what became of its
// last commit.
func (l *leftovers) ended(t *task.Task, commit error) {
	switch n := t.Abandoned(); {
	case errors.Is(commit, deliver.ErrDropped):
	case n > 0:
		l.add(t.Status(), fmt.Sprintf("%d outputs unacknowledged", n))
	case commit != nil && !movedOn(commit):
		l.add(t.Status(), commit.Error())
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

func (l *leftovers) add(s task.Status, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byIndex == nil {
		l.byIndex = make(map[int32]string)
	}
	l.byIndex[s.Index] = fmt.Sprintf("partition %d: position %s; committed %s; %s", s.Index, s.Position, s.Committed, why)
}

// err says what was left, nil where that is nothing.
func (l *leftovers) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.byIndex) == 0 {
		return nil
	}
	texts := make([]string, 0, len(l.byIndex))
	for _, index := range slices.Sorted(maps.Keys(l.byIndex)) {
		texts = append(texts, l.byIndex[index])
	}
	return fmt.Errorf("uncommitted: %s", strings.Join(texts, "\n  "))
}
