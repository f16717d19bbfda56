package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"joiner/internal/assign"
)

// Peers asks other pods. Status returns a pod's Part as it sent it, at most a
// few MiB; it must return when ctx ends.
type Peers interface {
	Status(ctx context.Context, address string) ([]byte, error)
}

const (
	// askWithin bounds the asking of all members: a page that is refreshed
	// every two seconds must not wait longer for one that is silent.
	askWithin = 1500 * time.Millisecond
	// askAtOnce is how many members are asked at a time, apart from those that
	// are slow to answer.
	askAtOnce = 64
	// slowAfter is how long a member that does not answer keeps others waiting
	// for its place. Its own asking goes on: a pod may be busy, and when a zone
	// fails, hundreds that are silent must not use up the time of those that
	// are well. Within askWithin some 900 silent ones are got past.
	slowAfter = 100 * time.Millisecond
	// fresh is how long a group's view is handed out again: however many pages
	// are open, the group is asked as if there were one.
	fresh = 500 * time.Millisecond
)

// Source answers with views. Its methods may be called from any goroutine.
type Source struct {
	local func() Local
	peers Peers
	now   func() time.Time

	turn chan struct{} // holds one token: who has it asks the group
	last View
	at   time.Time // when last was asked for
}

// NewSource returns a source. local must not block; peers may be nil, and all
// others are then out of reach.
func NewSource(local func() Local, peers Peers) *Source {
	s := &Source{local: local, peers: peers, now: time.Now, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// Part is this pod's answer to another pod.
func (s *Source) Part() ([]byte, error) {
	b, err := json.Marshal(s.local().Part)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return b, nil
}

// Pod is what this pod knows.
func (s *Source) Pod() View { return merge(ScopePod, s.local(), nil, s.now()) }

// Group asks every member of the directory, within a second and a half. A
// member that does not answer, or that could not be asked in that time, is shown
// as such, with the partitions that the directory gives it. An error is the end
// of ctx.
func (s *Source) Group(ctx context.Context) (View, error) {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return View{}, ctx.Err()
	}
	defer func() { s.turn <- struct{}{} }()
	if now := s.now(); !s.at.IsZero() && now.Sub(s.at) < fresh {
		return s.last, nil
	}
	began := s.now()
	l := s.local()
	answers := s.ask(ctx, l)
	if err := ctx.Err(); err != nil {
		return View{}, err // whoever asks next asks anew
	}
	s.last, s.at = merge(ScopeGroup, l, answers, began), s.now()
	return s.last, nil
}

var (
	errNoPeers   = errors.New("this pod cannot ask others")
	errNoAddress = errors.New("it advertises no address")
	errSilent    = errors.New("it has not answered in time")
	errNotAsked  = errors.New("it was not asked in time: too many others do not answer")
)

// ask asks all members but this one.
func (s *Source) ask(ctx context.Context, l Local) map[string]answer {
	if l.Directory == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var (
		mu      sync.Mutex
		answers = make(map[string]answer, len(l.Directory.Members))
		asking  sync.WaitGroup
		room    = make(chan struct{}, askAtOnce)
	)
	// In another order each time: should time run out, it is not always the
	// same ones that are not asked.
	for _, i := range rand.Perm(len(l.Directory.Members)) {
		m := l.Directory.Members[i]
		if m.ID == l.Part.ID {
			continue
		}
		asking.Go(func() {
			a := s.askOne(ctx, room, l.Part.Group, m)
			mu.Lock()
			answers[m.ID] = a
			mu.Unlock()
		})
	}
	asking.Wait()
	return answers
}

func (s *Source) askOne(ctx context.Context, room chan struct{}, group string, m assign.Member) answer {
	switch {
	case s.peers == nil:
		return answer{err: errNoPeers}
	case m.Address == "":
		return answer{err: errNoAddress}
	}
	select {
	case room <- struct{}{}:
		leave := sync.OnceFunc(func() { <-room })
		defer leave()
		defer time.AfterFunc(slowAfter, leave).Stop()
	case <-ctx.Done():
		return answer{err: errNotAsked}
	}
	b, err := s.peers.Status(ctx, m.Address)
	var request *url.Error // what was asked is known; why it failed is not
	if errors.As(err, &request) {
		err = request.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return answer{err: errSilent}
	case err != nil:
		return answer{err: err}
	}
	p, err := parsePart(b, group, m.ID)
	return answer{part: p, err: err}
}
