package app

import (
	"context"
	"errors"

	"joiner/internal/record"
	"joiner/internal/remote"
	"joiner/internal/server"
)

// quotes is the pod as /v1/prices sees it.
type quotes struct{ a *App }

var (
	errNoPrice      = errors.New("the symbol has no price")
	errNoPriceThere = errors.New("the symbol has no price in the partition where its ticks belong, but ticks are misplaced here: see the notes of /readyz")
)

// noPrice does not call a price missing for certain where ticks lie in other
// partitions than the one that was asked.
func noPrice(misplaced bool) error {
	if misplaced {
		return errNoPriceThere
	}
	return errNoPrice
}

// PriceNow implements server.Prices.
func (q quotes) PriceNow(ctx context.Context, symbol []byte) (server.Price, error) {
	now, err := q.a.PriceNow(ctx, symbol)
	var unknown *NoPriceError
	switch {
	case errors.As(err, &unknown):
		return server.Price{}, &server.NoPrice{Reason: reasonOf(unknown.Reason), Owner: unknown.Owner, Err: err}
	case err != nil:
		return server.Price{}, err
	case !now.Found:
		return server.Price{}, &server.NoPrice{Reason: server.ReasonNoPrice, Owner: now.Owner, Err: noPrice(q.a.keys.Misplaced(record.Market))}
	}
	return server.Price{Price: now.Price, Owner: now.Owner}, nil
}

// reasonOf translates why a look-up failed.
func reasonOf(failure string) string {
	switch failure {
	case remote.NoDirectory, remote.NoOwner:
		return server.ReasonNoOwner
	case remote.Moving:
		return server.ReasonMoving
	case remote.NoCoordinator:
		return server.ReasonNoCoordinator
	case remote.Restoring:
		return server.ReasonRestoring
	case remote.TimedOut:
		return server.ReasonTimeout
	case remote.Overloaded:
		return server.ReasonOverload
	case remote.Unreachable:
		return server.ReasonUnreachable
	}
	return server.ReasonFailed
}
