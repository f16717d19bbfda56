package app

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// The first word on a stop that lasts, and those after it.
const (
	tellWaitsAfter = time.Second
	tellWaitsEvery = 5 * time.Second
)

// tellWaits says what a stop waits for while it lasts: brokers that are away may
// come back within shutdown.timeout, so it is waited for in full, but not in
// silence.
func (a *App) tellWaits(ctx context.Context) {
	timer := time.NewTimer(tellWaitsAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(tellWaitsEvery)
		left := a.uncommitted()
		if len(left) == 0 {
			continue
		}
		limit, _ := ctx.Deadline()
		a.log.Warn("still stopping: waiting for brokers to take what was joined, and the offsets with it",
			zap.Strings("uncommitted", left), zap.Duration("gives_up_in", time.Until(limit).Round(time.Millisecond)))
	}
}

// uncommitted says what the group does not have of this pod's work.
func (a *App) uncommitted() (left []string) {
	if !a.connected.Load() {
		return nil
	}
	tasks, _ := a.member.Tasks()
	for _, t := range tasks {
		s := t.Status()
		if !whole(s) {
			left = append(left, fmt.Sprintf("partition %d: position %s; committed %s; %d notifications unsettled",
				s.Index, s.Position, s.Committed, s.Unsettled))
		}
	}
	return left
}
