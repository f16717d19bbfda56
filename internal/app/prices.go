package app

import (
	"context"

	"joiner/internal/remote"
	"joiner/internal/task"
)

// prices implements task.Prices: a partition of this pod is asked in memory,
// another one over the network, unless join.remote_lookup is off.
type prices struct {
	owner  owner
	remote *remote.Client
	scope  remote.Scope
}

// owner is what prices needs of the member.
type owner interface{ Owns(partition int32) bool }

// Owns implements task.Prices.
func (p prices) Owns(partition int32) bool { return p.owner.Owns(partition) }

// Ask implements task.Prices.
func (p prices) Ask(ctx context.Context, q task.Query, done func(task.Answer)) {
	p.remote.Ask(ctx, q, p.scope, done)
}
