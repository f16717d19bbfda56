package remote

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// previousCounts is for how long a token of before is taken, and shown
	// where the new one is refused, once a change has been seen. A mounted
	// secret changes in each pod at another time: a kubelet looks once a minute,
	// and what it looks at may be a minute old.
	previousCounts = 5 * time.Minute
	// mostPrevious bounds the tokens of before: a file that is written in place may
	// be read half, which counts as a token, and one may rotate again before all
	// pods have seen the last.
	mostPrevious = 4
	// watchEvery is how often somebody looks whether the token has changed, who
	// else may ask for it once a day.
	watchEvery = 10 * time.Second
)

// Tokens is the bearer token as it is now, and for a while those that were
// before it, so that pods that see a new one at different times understand each
// other in between: who asks shows a token of before where the new one is
// refused, who answers takes them all. It remembers nothing beyond the process: a
// pod that starts knows the token that it finds. Any goroutine may use it.
type Tokens struct {
	read func() (string, error)
	now  func() time.Time

	mu      sync.Mutex
	current string
	since   time.Time // when current was first read
	before  []former  // the latest first, at most mostPrevious
}

// former is a token that was replaced.
type former struct {
	token string
	until time.Time     // from then on it does not count
	stood time.Duration // for how long it was the current one
}

// NewTokens returns the tokens that read tells. It is called for each request,
// so that a file that rotates is seen; its error refuses the request, and the
// empty token is none.
func NewTokens(read func() (string, error)) *Tokens { return &Tokens{read: read, now: time.Now} }

// Watch looks for a new token now and then, until ctx ends: where no request
// comes by, the change would be noticed by the first one that meets it, and the
// token of before not be known by then.
func (t *Tokens) Watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		_, _, _ = t.all() // whoever makes a request hears of the error
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// all returns the token as it is now, and those of before that count, the latest
// first.
func (t *Tokens) all() (now string, before []string, err error) {
	t.mu.Lock() // while it reads as well: an older answer must not come later
	defer t.mu.Unlock()
	token, err := t.read()
	if err != nil {
		return "", nil, fmt.Errorf("reading peer.token: %w", err)
	}
	at := t.now()
	if token != t.current {
		t.replace(token, at)
	}
	t.before = slices.DeleteFunc(t.before, func(f former) bool { return !at.Before(f.until) })
	for _, f := range t.before {
		before = append(before, f.token)
	}
	return t.current, before, nil
}

// replace takes a new token. Where there are too many of before, the one that
// stood for the shortest goes: what was read half stood for no time, and what
// other pods still have for long.
func (t *Tokens) replace(token string, at time.Time) {
	was := former{t.current, at.Add(previousCounts), at.Sub(t.since)}
	t.current, t.since = token, at
	t.before = slices.DeleteFunc(t.before, func(f former) bool { return f.token == token || !at.Before(f.until) })
	if was.token == "" {
		return
	}
	t.before = slices.Insert(t.before, 0, was)
	if len(t.before) > mostPrevious {
		least := 0
		for i := range t.before {
			if t.before[i].stood < t.before[least].stood {
				least = i
			}
		}
		t.before = slices.Delete(t.before, least, least+1)
	}
}
