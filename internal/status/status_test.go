package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"joiner/internal/assign"
	"joiner/internal/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	market = "market-updates"
	notes  = "notifications"
)

func ptr[T any](v T) *T { return &v }

func id(i int) string { return fmt.Sprintf("m%d", i) }

// directory gives partition p's market half to markets[p] and its notifications
// to owners[p]; 0 is nobody.
func directory(generation int32, members int, markets, owners []int) *assign.Directory {
	d := &assign.Directory{Generation: generation, Owners: map[string][]string{}, Moving: map[string][]int32{}}
	for i := 1; i <= members; i++ {
		d.Members = append(d.Members, assign.Member{Identity: assign.Identity{ID: id(i), Address: id(i) + ":8081"}})
	}
	for topic, list := range map[string][]int{market: markets, notes: owners} {
		for p, owner := range list {
			name := ""
			if owner > 0 {
				name = id(owner)
			} else {
				d.Moving[topic] = append(d.Moving[topic], int32(p))
			}
			d.Owners[topic] = append(d.Owners[topic], name)
		}
	}
	return d
}

// task is one that its pod runs: position and committed below an end of 100.
func task(partition int32, state State, topics ...string) Task {
	t := Task{Partition: partition, State: state, CaughtUp: ptr(true), Remaining: ptr(int64(0)), Symbols: ptr(int64(5)), Topics: map[string]Half{}}
	for _, topic := range topics {
		t.Topics[topic] = Half{Position: ptr(int64(99)), Committed: ptr(int64(90)), HighWatermark: ptr(int64(100)), Leader: ptr(int32(2))}
	}
	return t
}

func part(i int, generation int32, tasks ...Task) Part {
	p := Part{Format: Format, Group: "g", Generation: generation, ID: id(i), Address: id(i) + ":8081", Ready: true, Tasks: tasks, Joins: NewJoins()}
	p.Joins["local"]["hit"] = 10 * uint64(i)
	p.Hot = Hot{Total: 100, Keys: []HotCount{{Symbol: []byte("BBCA"), Count: 30}, {Symbol: []byte(id(i)), Count: uint64(i)}}}
	return p
}

func local(p Part, d *assign.Directory) Local {
	return Local{Part: p, Strategy: "copartition", Topics: [record.Sides]string{market, notes}, Directory: d}
}

// row is what a task comes down to.
func row(t Task) string {
	lag := "-"
	if h := t.Topics[notes]; h.Lag != nil {
		lag = fmt.Sprint(*h.Lag)
	}
	return fmt.Sprintf("%d owner=%s market=%s colocated=%v %s lag=%s", t.Partition, t.Owner, t.Topics[market].Owner, t.Colocated, t.State, lag)
}

func rows(v View) (list []string) {
	for _, t := range v.Tasks {
		list = append(list, row(t))
	}
	return list
}

func TestMerge(t *testing.T) {
	for _, c := range []struct {
		name    string
		local   Local
		answers map[string]answer
		want    []string
	}{
		{
			"this pod alone", local(part(1, 7, task(0, StateRunning, market, notes)), directory(7, 2, []int{1, 2}, []int{1, 2})), nil,
			[]string{"0 owner=m1 market=m1 colocated=true running lag=10", "1 owner=m2 market=m2 colocated=true unknown lag=-"},
		},
		{
			"everybody answers", local(part(1, 7, task(0, StateRunning, market, notes)), directory(7, 2, []int{1, 2}, []int{1, 2})),
			map[string]answer{"m2": {part: part(2, 7, task(1, StateRestoring, market, notes))}},
			[]string{"0 owner=m1 market=m1 colocated=true running lag=10", "1 owner=m2 market=m2 colocated=true restoring lag=10"},
		},
		{
			"one is silent", local(part(1, 7, task(0, StateRunning, market, notes)), directory(7, 2, []int{1, 2}, []int{1, 2})),
			map[string]answer{"m2": {err: errSilent}},
			[]string{"0 owner=m1 market=m1 colocated=true running lag=10", "1 owner=m2 market=m2 colocated=true unknown lag=-"},
		},
		{
			"halves apart: who joins says the state", local(part(1, 7, task(0, StateRestoring, market)), directory(7, 2, []int{1}, []int{2})),
			map[string]answer{"m2": {part: part(2, 7, task(0, StateRunning, notes))}},
			[]string{"0 owner=m2 market=m1 colocated=false running lag=10"},
		},
		{
			"halves apart, the other way round", local(part(1, 7, task(0, StateRunning, notes)), directory(7, 2, []int{2}, []int{1})),
			map[string]answer{"m2": {part: part(2, 7, task(0, StateRestoring, market))}},
			[]string{"0 owner=m1 market=m2 colocated=false running lag=10"},
		},
		{
			"halves apart, who joins is silent", local(part(1, 7), directory(7, 3, []int{2}, []int{3})),
			map[string]answer{"m2": {part: part(2, 7, task(0, StateRunning, market))}, "m3": {err: errSilent}},
			[]string{"0 owner=m3 market=m2 colocated=false unknown lag=-"},
		},
		{
			"nobody joins, prices are kept", local(part(1, 7, task(0, StateRunning, market)), directory(7, 1, []int{1}, nil)), nil,
			[]string{"0 owner=m1 market=m1 colocated=false running lag=-"},
		},
		{
			"the latest of two later generations", local(part(1, 7), directory(7, 3, []int{1}, []int{1})),
			map[string]answer{"m2": {part: part(2, 9, task(0, StateRunning, market, notes))}, "m3": {part: part(3, 8, task(0, StateFrozen, market, notes))}},
			[]string{"0 owner=m2 market=m2 colocated=true running lag=10"},
		},
		{
			"withheld while the old owner lets go", local(part(1, 7, task(0, StateFrozen, market, notes)), directory(7, 2, []int{0}, []int{0})),
			map[string]answer{"m2": {part: part(2, 7)}},
			[]string{"0 owner= market= colocated=false frozen lag=10"},
		},
		{
			"withheld and let go", local(part(1, 7), directory(7, 2, []int{0}, []int{0})), nil,
			[]string{"0 owner= market= colocated=false moving lag=-"},
		},
		{
			"the old owner's word against the new one's", local(part(1, 7, task(0, StateFrozen, market, notes)), directory(7, 2, []int{2}, []int{2})),
			map[string]answer{"m2": {part: part(2, 7, task(0, StateRestoring, market, notes))}},
			[]string{"0 owner=m2 market=m2 colocated=true restoring lag=10"},
		},
		{
			"a pod of a later generation knows better", local(part(1, 7, task(0, StateFrozen, market, notes)), directory(7, 2, []int{1}, []int{1})),
			map[string]answer{"m2": {part: part(2, 8, task(0, StateRunning, market, notes))}},
			[]string{"0 owner=m2 market=m2 colocated=true running lag=10"},
		},
		{
			"a foreign leader: no directory", local(part(1, 7, task(4, StateRunning, market, notes)), nil), nil,
			[]string{"4 owner=m1 market=m1 colocated=true running lag=10"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := merge(ScopeGroup, c.local, c.answers, time.UnixMilli(1767582000123))
			if d := cmp.Diff(c.want, rows(v)); d != "" {
				t.Error(d)
			}
		})
	}
}

// The price table is its owner's, whoever joins.
func TestHalvesTellOfWhatTheyHold(t *testing.T) {
	prices, joins := task(0, StateRunning, market), task(0, StateRunning, notes)
	prices.Symbols, prices.Unsettled, prices.Remaining, prices.CaughtUp = ptr(int64(154)), ptr(int64(0)), ptr(int64(8)), ptr(false)
	joins.Symbols, joins.Unsettled, joins.Remaining, joins.CaughtUp = ptr(int64(0)), ptr(int64(7)), ptr(int64(0)), ptr(true)
	for name, parts := range map[string][2]Part{
		"prices first": {part(1, 7, prices), part(2, 7, joins)},
		"joins first":  {part(1, 7, joins), part(2, 7, prices)},
	} {
		d := directory(7, 2, []int{1}, []int{2})
		if name == "joins first" {
			d = directory(7, 2, []int{2}, []int{1})
		}
		got := merge(ScopeGroup, local(parts[0], d), map[string]answer{"m2": {part: parts[1]}}, time.Now()).Tasks[0]
		if *got.Symbols != 154 || *got.Unsettled != 7 || *got.Remaining != 8 || *got.CaughtUp {
			t.Errorf("%s: %d symbols, %d unsettled, %d remaining, caught up %v", name, *got.Symbols, *got.Unsettled, *got.Remaining, *got.CaughtUp)
		}
	}
}

func TestUnownedIsNamed(t *testing.T) {
	d := directory(7, 1, []int{1, 1}, []int{1})
	d.Unowned = map[string][]int32{market: {2}}
	d.Problem = "unequal"
	v := merge(ScopePod, local(part(1, 7), d), nil, time.Now())
	want := []string{
		"0 owner=m1 market=m1 colocated=true unknown lag=-",
		"1 owner=m1 market=m1 colocated=false unknown lag=-",
		"2 owner= market= colocated=false unowned lag=-",
	}
	if diff := cmp.Diff(want, rows(v)); diff != "" || v.Problem != "unequal" {
		t.Error(diff, v.Problem)
	}
}

// The whole object, as /v1/status prints it.
func TestViewJSON(t *testing.T) {
	own := part(1, 7, task(0, StateRunning, market, notes))
	own.Hot.Keys = append(own.Hot.Keys, HotCount{Symbol: []byte("\xff"), Count: 2})
	l := local(own, directory(7, 3, []int{1, 2, 3}, []int{1, 2, 3}))
	second := part(2, 7, task(1, StateRunning, market, notes))
	second.Ready, second.Reasons, second.Notes = false, []string{"restoring"}, []string{"keys lie elsewhere"}
	v := merge(ScopeGroup, l, map[string]answer{"m2": {part: second}, "m3": {err: errSilent}}, time.UnixMilli(1767582000123))
	v.Tasks = v.Tasks[:1]
	got, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
 "group": "g",
 "generation": 7,
 "strategy": "copartition",
 "scope": "group",
 "pod": "m1",
 "at": "2026-01-05T03:00:00.123Z",
 "problem": "",
 "inputs": {
  "market_updates": "market-updates",
  "notifications": "notifications"
 },
 "members": [
  {
   "id": "m1",
   "instance": "",
   "address": "m1:8081",
   "tasks": [
    0
   ],
   "reachable": true,
   "ready": true,
   "joins": {
    "local": {
     "hit": 10,
     "miss": 0,
     "unavailable": 0
    },
    "remote": {
     "hit": 0,
     "miss": 0,
     "unavailable": 0
    }
   }
  },
  {
   "id": "m2",
   "instance": "",
   "address": "m2:8081",
   "tasks": [
    1
   ],
   "reachable": true,
   "ready": false,
   "reasons": [
    "restoring"
   ],
   "joins": {
    "local": {
     "hit": 20,
     "miss": 0,
     "unavailable": 0
    },
    "remote": {
     "hit": 0,
     "miss": 0,
     "unavailable": 0
    }
   },
   "notes": [
    "keys lie elsewhere"
   ]
  },
  {
   "id": "m3",
   "instance": "",
   "address": "m3:8081",
   "tasks": [
    2
   ],
   "reachable": false,
   "error": "it has not answered in time",
   "ready": null,
   "joins": null
  }
 ],
 "tasks": [
  {
   "partition": 0,
   "owner": "m1",
   "colocated": true,
   "state": "running",
   "caught_up": true,
   "remaining": 0,
   "symbols": 5,
   "unsettled": null,
   "topics": {
    "market-updates": {
     "owner": "m1",
     "position": 99,
     "committed": 90,
     "high_watermark": 100,
     "lag": 10,
     "leader": 2
    },
    "notifications": {
     "owner": "m1",
     "position": 99,
     "committed": 90,
     "high_watermark": 100,
     "lag": 10,
     "leader": 2
    }
   }
  }
 ],
 "joins": {
  "local": {
   "hit": 30,
   "miss": 0,
   "unavailable": 0
  },
  "remote": {
   "hit": 0,
   "miss": 0,
   "unavailable": 0
  }
 },
 "hottest": [
  {
   "symbol": "BBCA",
   "share": 0.3
  },
  {
   "symbol": "m2",
   "share": 0.01
  },
  {
   "symbol_base64": "/w==",
   "share": 0.01
  },
  {
   "symbol": "m1",
   "share": 0.005
  }
 ]
}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Error(d)
	}
}

// peersFunc answers with what the test wants.
type peersFunc func(ctx context.Context, address string) ([]byte, error)

func (f peersFunc) Status(ctx context.Context, address string, w io.Writer) error {
	b, err := f(ctx, address)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, bytes.NewReader(b))
	return err
}

func bytesOf(t *testing.T, p Part) []byte {
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// away is a group in which those for whom silent says so never answer, and the
// others do after a while. most is how many that have been asked for less than
// slowAfter there were at a time.
type away struct {
	t      *testing.T
	silent func(i int) bool
	takes  time.Duration

	mu    sync.Mutex
	fresh int
	most  int
}

func (a *away) ask(ctx context.Context, address string) ([]byte, error) {
	a.count(1)
	left := sync.OnceFunc(func() { a.count(-1) })
	defer left()
	defer time.AfterFunc(slowAfter-time.Nanosecond, left).Stop()
	var i int
	if _, err := fmt.Sscanf(address, "m%d:8081", &i); err != nil {
		a.t.Error(err)
	}
	if a.silent(i) {
		<-ctx.Done()
		return nil, fmt.Errorf("%s: %w", address, ctx.Err())
	}
	select {
	case <-time.After(a.takes):
		return bytesOf(a.t, part(i, 7, task(int32(i-1), StateRunning, market, notes))), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *away) count(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fresh += n
	a.most = max(a.most, a.fresh)
}

// view asks a group of that many members, each with a task, and checks how long
// that takes and how many are asked at a time.
func (a *away) view(members int) View {
	a.t.Helper()
	owners := make([]int, members)
	for i := range owners {
		owners[i] = i + 1
	}
	s := NewSource(func() Local { return local(part(1, 7), directory(7, members, owners, owners)) }, peersFunc(a.ask))
	began := time.Now()
	v, err := s.Group(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	if took := time.Since(began); took > askWithin {
		a.t.Errorf("it took %s", took)
	}
	if a.most != min(askAtOnce, members-1) {
		a.t.Errorf("%d at once", a.most)
	}
	return v
}

func number(m Member) (i int) {
	_, _ = fmt.Sscanf(m.ID, "m%d", &i)
	return i
}

// A zone fails: however many members are silent, those that are well are shown
// as such, with what they say, even where they are slow.
func TestSilentPeersHideNobody(t *testing.T) {
	for _, c := range []struct {
		members int
		takes   time.Duration
	}{{60, time.Millisecond}, {120, time.Millisecond}, {300, 5 * time.Millisecond}, {300, time.Second}} {
		t.Run(fmt.Sprint(c.members, c.takes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// The first ones of all, and a third of the others.
				silent := func(i int) bool { return i > 1 && (i < 30 || i%3 == 0) }
				a := &away{t: t, silent: silent, takes: c.takes}
				v := a.view(c.members)
				for i, m := range v.Members {
					n := number(m)
					if m.Reachable == nil || *m.Reachable == silent(n) || (m.Error == errSilent.Error()) != silent(n) || len(m.Tasks) != 1 {
						t.Errorf("%+v", v.Members[i])
					}
				}
				for _, task := range v.Tasks[1:] {
					if want := silent(int(task.Partition) + 1); (task.State == StateUnknown) != want {
						t.Errorf("%+v", task)
					}
				}
			})
		})
	}
}

// Of a group that is silent as a whole and larger than can be asked, nothing is
// said of those that were not asked: they may be well.
func TestSilentPeersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const members = 2000
		a := &away{t: t, silent: func(i int) bool { return i > 1 }}
		v := a.view(members)
		asked := 0
		for _, m := range v.Members {
			switch {
			case number(m) == 1:
				if !*m.Reachable {
					t.Errorf("%+v", m)
				}
			case m.Reachable == nil:
				if m.Error != errNotAsked.Error() {
					t.Errorf("%+v", m)
				}
			default:
				asked++
				if *m.Reachable || m.Error != errSilent.Error() {
					t.Errorf("%+v", m)
				}
			}
		}
		if want := askAtOnce * int(askWithin/slowAfter); asked < want || asked > want+askAtOnce {
			t.Errorf("%d were asked, want %d", asked, want)
		}
	})
}

// However many ask at the same moment, the group is asked once; a moment later
// it is asked again.
func TestAskingIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		s := NewSource(
			func() Local { return local(part(1, 7), directory(7, 2, []int{1, 2}, []int{1, 2})) },
			peersFunc(func(context.Context, string) ([]byte, error) {
				asked.Add(1)
				time.Sleep(100 * time.Millisecond)
				return bytesOf(t, part(2, 7, task(1, StateRunning, market, notes))), nil
			}))
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				v, err := s.Group(t.Context())
				if err != nil || v.Tasks[1].State != StateRunning {
					t.Error(err, v.Tasks)
				}
			})
		}
		all.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		time.Sleep(fresh)
		if _, err := s.Group(t.Context()); err != nil || asked.Load() != 2 {
			t.Error(err, asked.Load())
		}
	})
}

// A client that goes away neither keeps the others waiting nor leaves them an
// answer that was cut short.
func TestClientThatGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSource(
			func() Local { return local(part(1, 7), directory(7, 2, []int{1, 2}, []int{1, 2})) },
			peersFunc(func(ctx context.Context, _ string) ([]byte, error) {
				select {
				case <-time.After(time.Second):
					return bytesOf(t, part(2, 7)), nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(500 * time.Millisecond); cancel() }()
		if _, err := s.Group(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		v, err := s.Group(t.Context())
		if err != nil || !*v.Members[1].Reachable {
			t.Errorf("%v %+v", err, v.Members)
		}
	})
}

func TestWhoCannotBeAsked(t *testing.T) {
	d := directory(7, 6, []int{1}, []int{1})
	d.Members[1].Address = ""
	answers := map[string][]byte{
		"m3:8081": bytesOf(t, part(4, 7)),
		"m4:8081": []byte("<html>"),
	}
	foreign := part(5, 7)
	foreign.Group = "other"
	answers["m5:8081"] = bytesOf(t, foreign)
	s := NewSource(func() Local { return local(part(1, 7), d) },
		peersFunc(func(_ context.Context, address string) ([]byte, error) {
			if address == "m6:8081" {
				return nil, &url.Error{Op: "Get", URL: "http://m6:8081/v1/status", Err: errors.New("connection refused")}
			}
			return answers[address], nil
		}))
	v, err := s.Group(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "no address", "another pod", "cannot be read", `group "other"`, "connection refused"} {
		if m := v.Members[i]; strings.Contains(m.Error, "http:") || !strings.Contains(m.Error, want) || *m.Reachable != (want == "") {
			t.Errorf("%+v, want %q", m, want)
		}
	}
	if v.Joins["local"]["hit"] != 10 {
		t.Errorf("strangers' joins were counted: %v", v.Joins)
	}
	if v, err = NewSource(func() Local { return local(part(1, 7), d) }, nil).Group(t.Context()); err != nil || v.Members[4].Error != errNoPeers.Error() {
		t.Errorf("%v %+v", err, v.Members)
	}
}

func TestPartSurvivesTheWay(t *testing.T) {
	want := part(2, 7, task(1, StateRestoring, market))
	s := NewSource(func() Local { return local(want, nil) }, nil)
	b, err := s.Part()
	if err != nil {
		t.Fatal(err)
	}
	got, err := parsePart(b, "g", "m2")
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(err, d)
	}
}

// The largest part that a pod may tell of fits into what others read, and is
// read whole.
func TestLargestPartFits(t *testing.T) {
	long := func(i int, n int) string { return fmt.Sprintf("%0*d", n, i) }
	p := part(2, 7)
	p.Instance = long(1, 249)
	huge := ptr(int64(1) << 62)
	for i := range maxPartTasks + 10 {
		half := Half{Owner: p.ID, Position: huge, Committed: huge, HighWatermark: huge, Lag: huge, Leader: ptr(int32(1 << 30))}
		p.Tasks = append(p.Tasks, Task{
			Partition: int32(i), Owner: p.ID, State: StateRestoring, CaughtUp: ptr(false), Remaining: huge, Symbols: huge, Unsettled: huge,
			Topics: map[string]Half{long(1, 249): half, long(2, 249): half},
		})
	}
	for i := range maxReasons + 10 {
		p.Reasons = append(p.Reasons, long(i, 10)+strings.Repeat("\x01", maxTextBytes))
		p.Notes = append(p.Notes, fmt.Sprint("note ", i))
	}
	p.Hot.Keys = append(p.Hot.Keys, HotCount{Symbol: make([]byte, maxKeyBytes+1), Count: 1}, HotCount{Symbol: make([]byte, maxKeyBytes), Count: 1})
	b, err := NewSource(func() Local { return local(p, nil) }, nil).Part()
	if err != nil || len(b) > MaxPartBytes {
		t.Fatalf("%d bytes, %v, may be %d", len(b), err, MaxPartBytes)
	}
	got, err := parsePart(b, "g", "m2")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Tasks) != maxPartTasks || len(got.Reasons) != maxReasons || len(got.Notes) != maxReasons || len(got.Hot.Keys) != 3 {
		t.Errorf("%d tasks, %d reasons, %d notes, %d keys", len(got.Tasks), len(got.Reasons), len(got.Notes), len(got.Hot.Keys))
	}
	if d := cmp.Diff(p.Tasks[maxPartTasks-1], got.Tasks[maxPartTasks-1]); d != "" {
		t.Error(d)
	}
	if n := got.Notes[maxReasons-1]; n != "… and 11 more" || got.Notes[maxReasons-2] != "note 98" {
		t.Errorf("the notes end with %q, %q", got.Notes[maxReasons-2], n)
	}
	if r := got.Reasons[0]; len(r) > maxTextBytes || !strings.HasSuffix(r, "…") {
		t.Errorf("a reason of %d bytes", len(r))
	}
}

// A hostile part takes a small multiple of its size in memory, however little
// of it makes an entry.
func TestHostilePartsAreBounded(t *testing.T) {
	const size = 2 << 20
	fill := func(entry string) string {
		return strings.TrimSuffix(strings.Repeat(entry+",", size/(len(entry)+1)), ",")
	}
	for name, hostile := range map[string]string{
		"tasks":   `"tasks":[` + fill("{}") + `]`,
		"topics":  `"tasks":[{"topics":{` + fill(`"":{}`) + `}}]`,
		"reasons": `"reasons":[` + fill(`""`) + `]`,
		"notes":   `"notes":[` + fill(`"a note"`) + `]`,
		"keys":    `"hot":{"keys":[` + fill("{}") + `]}`,
		"joins":   `"joins":{` + fill(`"":{}`) + `}`,
		"unknown": `"later":[` + fill("{}") + `]`,
	} {
		b := []byte(`{"format":1,"group":"g","id":"m2",` + hostile + `}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := parsePart(b, "g", "m2")
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 8*size {
			t.Errorf("%s: reading %d bytes took %d", name, len(b), took)
		}
		if len(p.Tasks) > maxPartTasks || len(p.Reasons) > maxReasons || len(p.Notes) > maxReasons || len(p.Hot.Keys) > maxHotKeys {
			t.Errorf("%s: %d tasks, %d reasons, %d notes, %d keys, %v", name, len(p.Tasks), len(p.Reasons), len(p.Notes), len(p.Hot.Keys), err)
		}
		if refused := name == "topics" || name == "joins"; (err != nil) != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// However many pods send as much as they may, it is bounded what is taken of all
// of them; one that sends more is told from one that is silent.
func TestAnswersAreBoundedTogether(t *testing.T) {
	const members, size = 20, 2 << 20
	owners := make([]int, members)
	for i := range owners {
		owners[i] = i + 1
	}
	var (
		taken int64
		turn  sync.Mutex // one after the other: it is known then who fits
	)
	one := int64(size + len(bytesOf(t, part(20, 7))))
	padding := strings.Repeat(" ", size)
	s := NewSource(func() Local { return local(part(1, 7), directory(7, members, owners, owners)) },
		writers(func(i int, w io.Writer) error {
			turn.Lock()
			defer turn.Unlock()
			n, err := io.Copy(w, strings.NewReader((string(bytesOf(t, part(i, 7))) + padding)[:one-5]))
			if err == nil {
				taken += n
			}
			return err
		}))
	v, err := s.Group(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reached := int64(0)
	for _, m := range v.Members[1:] {
		if *m.Reachable {
			reached++
		} else if m.Error != errTooMuch.Error() {
			t.Errorf("%+v", m)
		}
	}
	if want := maxViewBytes / one; reached != want || taken > maxViewBytes {
		t.Errorf("%d answers of %d bytes in all were read, there is room for %d", reached, taken, want)
	}
	long := &intake{left: new(atomic.Int64)}
	long.left.Store(maxViewBytes)
	if _, err := long.Write(make([]byte, MaxPartBytes+1)); !errors.Is(err, errTooLong) {
		t.Error(err)
	}
}

// writers has member i write.
type writers func(i int, w io.Writer) error

func (f writers) Status(_ context.Context, address string, w io.Writer) error {
	var i int
	if _, err := fmt.Sscanf(address, "m%d:8081", &i); err != nil {
		return err
	}
	return f(i, w)
}

// Whatever a peer sends, the view can be put together and printed.
func FuzzPart(f *testing.F) {
	for _, p := range []Part{part(2, 7, task(1, StateRunning, market, notes)), part(2, 9, task(0, StateFrozen, notes)), {}} {
		b, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"format":1,"group":"g","id":"m2","joins":{"x":null},"tasks":[{"partition":-1}]}`))
	f.Add([]byte(`{"format":1,"group":"g","id":"m2","joins":{"local":null},"tasks":[{"partition":1,"topics":null}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePart(b, "g", "m2")
		v := merge(ScopeGroup, local(part(1, 7), directory(7, 2, []int{1, 2}, []int{1, 0})), map[string]answer{"m2": {p, err}}, time.Unix(0, 0))
		if _, err := json.Marshal(v); err != nil {
			t.Fatal(err)
		}
		for i, task := range v.Tasks {
			if i > 0 && v.Tasks[i-1].Partition >= task.Partition {
				t.Fatalf("partition %d after %d", task.Partition, v.Tasks[i-1].Partition)
			}
			if task.State == "" && err != nil {
				t.Fatalf("partition %d has no state", task.Partition)
			}
		}
	})
}
