package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"joiner/internal/assign"
)

// Peers asks other pods. Status writes a pod's Part as the pod sends it. It must
// return when ctx ends, and with w's error where w takes no more.
type Peers interface {
	Status(ctx context.Context, address string, w io.Writer) error
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
	// maxViewBytes bounds what all members together may send: the tasks of a
	// group with tens of thousands of partitions, however many pods share them.
	maxViewBytes = 32 << 20
)

// Source answers with views. Its methods may be called from any goroutine.
type Source struct {
	local func() Local
	peers Peers
	now   func() time.Time

	reading sync.Mutex    // one part is read at a time: while it is, it takes more memory than afterwards
	turn    chan struct{} // holds one token: who has it asks the group
	last    View
	at      time.Time // when last was asked for
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
	b, err := json.Marshal(s.local().Part.bounded())
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
	errTooLong   = fmt.Errorf("its answer has more than %d bytes", MaxPartBytes)
	errTooMuch   = errors.New("its answer is not read: those of all members are too long together")
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
		left    atomic.Int64
	)
	left.Store(maxViewBytes)
	// In another order each time: should time run out, it is not always the
	// same ones that are not asked.
	for _, i := range rand.Perm(len(l.Directory.Members)) {
		m := l.Directory.Members[i]
		if m.ID == l.Part.ID {
			continue
		}
		asking.Go(func() {
			a := s.askOne(ctx, room, &left, l.Part.Group, m)
			mu.Lock()
			answers[m.ID] = a
			mu.Unlock()
		})
	}
	asking.Wait()
	return answers
}

// intake takes what a member sends, no more than it may, and no more than all
// members may together.
type intake struct {
	buf   bytes.Buffer  // a field: its ReadFrom would take everything
	left  *atomic.Int64 // of all
	taken int64         // from left
}

func (i *intake) Write(b []byte) (int, error) {
	if i.buf.Len()+len(b) > MaxPartBytes {
		return 0, errTooLong
	}
	i.taken += int64(len(b))
	if i.left.Add(-int64(len(b))) < 0 {
		return 0, errTooMuch
	}
	return i.buf.Write(b)
}

func (s *Source) askOne(ctx context.Context, room chan struct{}, left *atomic.Int64, group string, m assign.Member) answer {
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
	in := &intake{left: left}
	err := s.peers.Status(ctx, m.Address, in)
	if err != nil {
		left.Add(in.taken) // others may have room for theirs
	}
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
	s.reading.Lock()
	defer s.reading.Unlock()
	p, err := parsePart(in.buf.Bytes(), group, m.ID)
	return answer{part: p, err: err}
}
