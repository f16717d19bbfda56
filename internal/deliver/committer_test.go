package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"joiner/internal/record"
)

// fakeTask is a task whose cut a test sets.
type fakeTask struct {
	index int32

	mu        sync.Mutex
	cut       record.Offsets
	has       [2]bool
	committed []record.Offsets
}

func newTask(index int32, market, note int64) *fakeTask {
	return &fakeTask{index: index, cut: record.Offsets{market, note}, has: [2]bool{true, true}}
}

func (f *fakeTask) Index() int32 { return f.index }

func (f *fakeTask) Cut() (record.Offsets, [2]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut, f.has
}

func (f *fakeTask) Committed(o record.Offsets) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.committed = append(f.committed, o)
}

func (f *fakeTask) advance(market, note int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[record.Market] += market
	f.cut[record.Notification] += note
}

func (f *fakeTask) heard() []record.Offsets {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]record.Offsets(nil), f.committed...)
}

// fakeGroup is a coordinator.
type fakeGroup struct {
	mu       sync.Mutex
	member   Generation
	out      bool
	requests []string
	results  []bool
	offsets  map[string]int64
	answer   func() (map[string]map[int32]error, error)
	hold     chan struct{} // while not nil, requests wait for it
}

func (g *fakeGroup) options() CommitterOptions {
	return CommitterOptions{
		Interval: time.Second,
		Topics:   [2]string{"market", "notes"},
		Member: func() (Generation, bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.member, !g.out
		},
		Commit: g.commit,
		OnResult: func(ok bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.results = append(g.results, ok)
		},
	}
}

func (g *fakeGroup) commit(ctx context.Context, m Generation, offsets map[string]map[int32]int64) (map[string]map[int32]error, error) {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests = append(g.requests, fmt.Sprint(m.Generation, offsets))
	var errs map[string]map[int32]error
	if g.answer != nil {
		var err error
		if errs, err = g.answer(); err != nil {
			return nil, err
		}
	}
	if g.offsets == nil {
		g.offsets = map[string]int64{}
	}
	for topic, parts := range offsets {
		for p, o := range parts {
			if errs[topic][p] == nil {
				g.offsets[fmt.Sprintf("%s/%d", topic, p)] = o
			}
		}
	}
	return errs, nil
}

func (g *fakeGroup) set(change func(g *fakeGroup)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

func (g *fakeGroup) seen() (requests []string, results []bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.requests...), append([]bool(nil), g.results...)
}

func runCommitter(t *testing.T, o CommitterOptions) *Committer {
	t.Helper()
	c, err := NewCommitter(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestCommitsWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeGroup{member: Generation{Group: "g", MemberID: "m", Generation: 7}}
		c := runCommitter(t, g.options())
		a, b := newTask(0, 10, 1), newTask(3, 0, 0)
		b.has = [2]bool{true, false} // a market-only half
		c.Register(a)
		c.Register(b)
		c.Register(a) // twice is once
		time.Sleep(1100 * time.Millisecond)
		time.Sleep(time.Second) // nothing changed
		a.advance(5, 0)         // only ticks came
		time.Sleep(time.Second)
		a.advance(0, 2)
		b.advance(4, 9)
		c.Unregister(b)
		time.Sleep(time.Second)
		g.set(func(g *fakeGroup) { g.member.Generation = 8; g.out = true })
		a.advance(1, 1)
		time.Sleep(time.Second) // no member
		g.set(func(g *fakeGroup) { g.out = false })
		time.Sleep(time.Second)
		requests, results := g.seen()
		if diff := cmp.Diff([]string{
			"7 map[market:map[0:10 3:0] notes:map[0:1]]",
			"7 map[market:map[0:15]]",
			"7 map[notes:map[0:3]]",
			"8 map[market:map[0:16] notes:map[0:4]]",
		}, requests); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]bool{true, true, true, true}, results); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]record.Offsets{{10, 1}, {15, 1}, {15, 3}, {16, 4}}, a.heard()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]record.Offsets{{0, -1}}, b.heard()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestNeverBackwardsNorUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeGroup{}
		c := runCommitter(t, g.options())
		a := newTask(0, 10, -1)
		c.Register(a)
		time.Sleep(1100 * time.Millisecond)
		a.advance(-5, 0)
		time.Sleep(time.Second)
		a.advance(0, 3)
		time.Sleep(time.Second)
		requests, _ := g.seen()
		if diff := cmp.Diff([]string{"0 map[market:map[0:10]]", "0 map[notes:map[0:2]]"}, requests); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFailedCommitsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		g := &fakeGroup{member: Generation{Group: "g", MemberID: "m", Generation: 7}}
		o := g.options()
		o.Log = zap.New(core)
		c := runCommitter(t, o)
		a, b := newTask(0, 10, 1), newTask(1, 20, 2)
		c.Register(a)
		c.Register(b)
		g.set(func(g *fakeGroup) {
			g.answer = func() (map[string]map[int32]error, error) {
				return map[string]map[int32]error{"notes": {0: sarama.ErrIllegalGeneration}}, nil
			}
		})
		time.Sleep(5100 * time.Millisecond)
		if diff := cmp.Diff([]record.Offsets{{20, 2}}, b.heard()); diff != "" {
			t.Error(diff)
		}
		if n := len(a.heard()); n != 0 {
			t.Errorf("told %d times of half a pair", n)
		}
		g.set(func(g *fakeGroup) {
			g.answer = func() (map[string]map[int32]error, error) { return nil, errors.New("no coordinator") }
		})
		time.Sleep(time.Second)
		g.set(func(g *fakeGroup) { g.answer = nil })
		time.Sleep(time.Second)
		requests, results := g.seen()
		again := "7 map[notes:map[0:1]]"
		if diff := cmp.Diff([]string{
			"7 map[market:map[0:10 1:20] notes:map[0:1 1:2]]", again, again, again, again, again, again,
		}, requests); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]bool{false, false, false, false, false, false, true}, results); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]record.Offsets{{10, 1}}, a.heard()); diff != "" {
			t.Error(diff)
		}
		if n := logs.Len(); n != 2 { // one a cause
			t.Errorf("%d log lines", n)
		}
	})
}

func TestCommitNowWaitsItsTurnAndTakesTheNewestPair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		g := &fakeGroup{hold: hold}
		c := runCommitter(t, g.options())
		a := newTask(0, 10, 1)
		c.Register(a)
		time.Sleep(1100 * time.Millisecond) // the periodic commit is under way
		a.advance(5, 5)
		done := make(chan error, 1)
		go func() { done <- c.CommitNow(t.Context(), a) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("overtook the commit under way: %v", err)
		default:
		}
		a.advance(1, 1)
		g.set(func(g *fakeGroup) { g.hold = nil })
		close(hold)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		requests, _ := g.seen()
		if diff := cmp.Diff([]string{
			"0 map[market:map[0:10] notes:map[0:1]]",
			"0 map[market:map[0:16] notes:map[0:7]]",
		}, requests); diff != "" {
			t.Error(diff)
		}
		if err := c.CommitNow(t.Context(), a); err != nil {
			t.Error(err)
		}
		if requests, _ := g.seen(); len(requests) != 2 {
			t.Error("nothing changed, and yet a request")
		}
	})
}

func TestCommitNowErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeGroup{}
		c := runCommitter(t, g.options())
		a := newTask(4, 10, 1)

		g.out = true
		if err := c.CommitNow(t.Context(), a); !errors.Is(err, ErrNoMember) {
			t.Errorf("outside the group: %v", err)
		}
		g.out = false
		for _, final := range []error{sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId, sarama.ErrRebalanceInProgress} {
			g.answer = func() (map[string]map[int32]error, error) {
				return map[string]map[int32]error{"notes": {4: final}}, nil
			}
			before, _ := g.seen()
			err := c.CommitNow(t.Context(), a)
			if !errors.Is(err, final) || err.Error() != "commit of offset 1 of notes/4: "+final.Error() {
				t.Errorf("%v: %v", final, err)
			}
			if after, _ := g.seen(); len(after) != len(before)+1 {
				t.Errorf("%v: %d requests", final, len(after)-len(before))
			}
		}
		// What may pass is tried until it does.
		left := 3
		g.answer = func() (map[string]map[int32]error, error) {
			if left--; left > 0 {
				return nil, sarama.ErrNotCoordinatorForConsumer
			}
			return nil, nil
		}
		if err := c.CommitNow(t.Context(), a); err != nil {
			t.Error(err)
		}
		// Or until the context ends.
		g.answer = func() (map[string]map[int32]error, error) { return nil, sarama.ErrNotCoordinatorForConsumer }
		a.advance(1, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.CommitNow(ctx, a); !errors.Is(err, sarama.ErrNotCoordinatorForConsumer) {
			t.Errorf("at the end: %v", err)
		}
	})
}

func TestCommitterOptionsAreChecked(t *testing.T) {
	good := (&fakeGroup{}).options()
	for name, spoil := range map[string]func(*CommitterOptions){
		"interval": func(o *CommitterOptions) { o.Interval = 0 },
		"member":   func(o *CommitterOptions) { o.Member = nil },
		"commit":   func(o *CommitterOptions) { o.Commit = nil },
		"topics":   func(o *CommitterOptions) { o.Topics[1] = o.Topics[0] },
	} {
		o := good
		spoil(&o)
		if _, err := NewCommitter(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Whatever fails and whoever commits, the group's offsets never go back, and
// in the end they are the cuts.
func TestOffsetsNeverGoBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &fakeGroup{}
		fail := rapid.SliceOfN(rapid.IntRange(0, 3), 20, 20).Draw(t, "fail")
		last := map[string]int64{}
		n := 0
		o := g.options()
		o.Interval = time.Hour
		o.Commit = func(_ context.Context, _ Generation, offsets map[string]map[int32]int64) (map[string]map[int32]error, error) {
			n++
			errs := map[string]map[int32]error{}
			for topic, parts := range offsets {
				errs[topic] = map[int32]error{}
				for p, at := range parts {
					key := fmt.Sprintf("%s/%d", topic, p)
					if at < last[key] {
						t.Fatalf("%s went from %d back to %d", key, last[key], at)
					}
					switch fail[(n+int(p))%len(fail)] {
					case 0:
						errs[topic][p] = sarama.ErrIllegalGeneration
					default:
						last[key] = at
					}
				}
			}
			return errs, nil
		}
		c, err := NewCommitter(o)
		if err != nil {
			t.Fatal(err)
		}
		tasks := []*fakeTask{newTask(0, 0, 0), newTask(1, 0, 0), newTask(2, 0, 0)}
		for _, a := range tasks {
			c.Register(a)
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			a := rapid.SampledFrom(tasks).Draw(t, "task")
			switch rapid.IntRange(0, 2).Draw(t, "do") {
			case 0:
				a.advance(rapid.Int64Range(0, 5).Draw(t, "market"), rapid.Int64Range(0, 5).Draw(t, "note"))
			case 1:
				c.commitAll(context.Background())
			case 2:
				_ = c.CommitNow(context.Background(), a) // may fail: that is the point
			}
		}
		fail = []int{1}
		c.commitAll(context.Background())
		for _, a := range tasks {
			cut, _ := a.Cut()
			got := record.Offsets{last[fmt.Sprintf("market/%d", a.index)], last[fmt.Sprintf("notes/%d", a.index)]}
			if got != cut {
				t.Fatalf("task %d: committed %v, cut %v", a.index, got, cut)
			}
		}
	})
}
