package app

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"joiner/internal/assign"
)

func directory(owners string, ids ...string) *assign.Directory {
	d := &assign.Directory{Owners: map[string][]string{"notifications": {}}}
	for _, id := range ids {
		d.Members = append(d.Members, assign.Member{MemberID: "m-" + id, Identity: assign.Identity{ID: id, Transactional: "txn-" + id}})
	}
	for _, o := range owners {
		d.Owners["notifications"] = append(d.Owners["notifications"], string(o))
	}
	return d
}

// Who has left is fenced by its heirs and by the first who saw it; nobody who is
// there is.
func TestFencer(t *testing.T) {
	truncated := directory("", "a")
	truncated.Truncated = true
	plain := directory("aabb", "a", "b")
	plain.Members[1].Transactional = ""
	again := directory("aacc", "a", "c")
	again.Members[1].Transactional = "txn-b"
	cases := map[string]struct {
		self  string
		known []*assign.Directory
		want  []string
	}{
		"nobody left":                 {"a", []*assign.Directory{directory("aabb", "a", "b"), directory("abab", "a", "b")}, nil},
		"an heir":                     {"c", []*assign.Directory{directory("aabbcc", "a", "b", "c"), directory("aaaccc", "a", "c")}, []string{"txn-b"}},
		"the first, no heir":          {"a", []*assign.Directory{directory("aabbcc", "a", "b", "c"), directory("aacccc", "a", "c")}, []string{"txn-b"}},
		"neither":                     {"d", []*assign.Directory{directory("abcd", "a", "b", "c", "d"), directory("aacd", "a", "c", "d")}, nil},
		"the heir is new":             {"a", []*assign.Directory{directory("aabb", "a", "b"), directory("aaZZ", "Z", "a")}, []string{"txn-b"}},
		"two left":                    {"a", []*assign.Directory{directory("abc", "a", "b", "c"), directory("aaa", "a")}, []string{"txn-b", "txn-c"}},
		"it moves nothing":            {"a", []*assign.Directory{directory("aa", "a", "b"), directory("aa", "a")}, []string{"txn-b"}},
		"a foreign leader in between": {"a", []*assign.Directory{directory("ab", "a", "b"), nil, directory("aa", "a")}, []string{"txn-b"}},
		"too large to tell":           {"a", []*assign.Directory{directory("ab", "a", "b"), truncated}, nil},
		"no transactions":             {"a", []*assign.Directory{plain, directory("aaaa", "a")}, nil},
		"its id lives on":             {"a", []*assign.Directory{directory("aabb", "a", "b"), again}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFencer(c.self, zap.NewNop())
			var mu sync.Mutex
			var got []string
			f.fence = func(_ context.Context, id string, still func() bool) error {
				mu.Lock()
				defer mu.Unlock()
				if still() {
					got = append(got, id)
				}
				return nil
			}
			for _, d := range c.known {
				f.learn(d)
			}
			f.running.Wait()
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("fenced %v, want %v", got, c.want)
			}
		})
	}
}

// A member that comes back while it is being fenced is left alone, and a stop
// ends what is under way.
func TestFencerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFencer("a", zap.NewNop())
		var still func() bool
		f.fence = func(ctx context.Context, _ string, s func() bool) error {
			still = s
			<-ctx.Done()
			return ctx.Err()
		}
		f.learn(directory("ab", "a", "b"))
		f.learn(directory("aa", "a"))
		synctest.Wait()
		if !still() {
			t.Error("it is gone")
		}
		f.learn(directory("ab", "a", "b"))
		if still() {
			t.Error("it has come back")
		}
		if err := f.stop(context.Background()); err != nil {
			t.Error(err)
		}
		f.learn(directory("aa", "a")) // starts nothing any more
		if err := f.stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFencer("a", zap.NewNop())
		f.fence = func(ctx context.Context, _ string, _ func() bool) error { <-ctx.Done(); return errors.New("away") }
		f.learn(directory("ab", "a", "b"))
		began := time.Now()
		f.learn(directory("aa", "a"))
		f.running.Wait()
		if took := time.Since(began); took != fencePatience {
			t.Errorf("gave up after %v", took)
		}
		_ = f.stop(context.Background())
	})
}
