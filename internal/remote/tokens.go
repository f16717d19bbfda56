package remote

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// previousCounts is for how long the token of before is taken, and shown
	// where the new one is refused, once a change has been seen. A mounted
	// secret changes in each pod at another time: a kubelet looks once a minute,
	// and what it looks at may be a minute old.
	previousCounts = 5 * time.Minute
	// watchEvery is how often somebody looks whether the token has changed, who
	// else may ask for it once a day.
	watchEvery = 10 * time.Second
)

// Tokens is the bearer token as it is now, and for a while the one that was
// before it, so that pods that see a new one at different times understand each
// other in between: who asks shows the token of before where the new one is
// refused, who answers takes both. It remembers nothing beyond the process: a
// pod that starts knows the token that it finds. Any goroutine may use it.
type Tokens struct {
	read func() (string, error)
	now  func() time.Time

	mu      sync.Mutex
	current string
	before  string
	changed time.Time // when current took before's place
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
		_, _, _ = t.both() // whoever makes a request hears of the error
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// both returns the token as it is now, and the one of before while it counts, ""
// then.
func (t *Tokens) both() (now, before string, err error) {
	t.mu.Lock() // while it reads as well: an older answer must not come later
	defer t.mu.Unlock()
	token, err := t.read()
	if err != nil {
		return "", "", fmt.Errorf("reading peer.token: %w", err)
	}
	at := t.now()
	if token != t.current {
		t.current, t.before, t.changed = token, t.current, at
	}
	if at.Sub(t.changed) >= previousCounts {
		t.before = ""
	}
	return t.current, t.before, nil
}
