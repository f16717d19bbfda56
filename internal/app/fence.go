package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"joiner/internal/assign"
)

// fencer ends the transactions of members that have left the group: one that
// died leaves offsets pending, which whoever takes its partitions over would
// wait for until the transaction's timeout, and outputs that hide all that is
// written behind them.
//
// A member is gone when it was in a directory and is not in the next: only
// then, since fencing one that lives costs it its tasks. It is fenced by the new
// owners of its partitions, and by the first of those who saw it, since a new
// owner that has just come never heard of it.
type fencer struct {
	self string // our stable identity
	log  *zap.Logger
	// fence ends the transaction of a transactional id, while still says that
	// it is to be. Nil: nobody is fenced.
	fence func(ctx context.Context, id string, still func() bool) error

	running sync.WaitGroup
	ctx     context.Context // ends the requests
	cancel  context.CancelFunc

	mu   sync.Mutex
	last *assign.Directory // the newest that lists members
}

// fencePatience bounds an attempt: later the transaction has timed out.
const fencePatience = 2 * transactionTimeout

func newFencer(self string, log *zap.Logger) *fencer {
	f := &fencer{self: self, log: log}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// learn takes a new directory; it starts what is to be done and waits for
// nothing.
func (f *fencer) learn(now *assign.Directory) {
	if f.fence == nil || now == nil || now.Truncated {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.last
	f.last = now
	if before == nil || f.ctx.Err() != nil {
		return
	}
	for _, m := range before.Members {
		if m.Transactional != "" && !present(now, m) && f.mine(m, before, now) {
			f.running.Add(1)
			go f.end(m)
		}
	}
}

// present reports whether a member, or another with its transactional id, is in
// the directory.
func present(d *assign.Directory, m assign.Member) bool {
	return slices.ContainsFunc(d.Members, func(x assign.Member) bool {
		return x.ID == m.ID || x.Transactional == m.Transactional
	})
}

// mine tells whether it is for this member to fence the one that has gone.
func (f *fencer) mine(gone assign.Member, before, now *assign.Directory) bool {
	for _, m := range now.Members {
		if _, saw := before.Member(m.ID); !saw {
			continue
		}
		if m.ID == f.self {
			return true
		}
		break
	}
	for topic, owners := range before.Owners {
		for p, owner := range owners {
			if owner != gone.ID {
				continue
			}
			if heir, ok := now.Owner(topic, int32(p)); ok && heir.ID == f.self {
				return true
			}
		}
	}
	return false
}

// end ends the transaction of a member that has gone, unless it comes back.
func (f *fencer) end(gone assign.Member) {
	defer f.running.Done()
	ctx, cancel := context.WithTimeout(f.ctx, fencePatience)
	defer cancel()
	began := time.Now()
	err := f.fence(ctx, gone.Transactional, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !present(f.last, gone)
	})
	fields := []zap.Field{
		zap.String("member", gone.ID), zap.String("transactional_id", gone.Transactional),
		zap.Duration("took", time.Since(began)),
	}
	if err == nil {
		f.log.Info("the transactional producer of a member that has left is fenced", fields...)
		return
	}
	if f.ctx.Err() == nil {
		f.log.Warn("the transactional producer of a member that has left could not be fenced: what it left open ends with its timeout",
			append(fields, zap.Error(err))...)
	}
}

// stop ends what is under way and waits for it.
func (f *fencer) stop(ctx context.Context) error {
	f.cancel()
	return within(ctx, func() error { f.running.Wait(); return nil })
}
