package enrich

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"joiner/internal/record"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var allStates = []SideState{NotStarted, HasHead, MoreToCome, AtEnd, Unknown, NotMine}

// TestDecideTable goes through every pair of states, heads good and bad.
func TestDecideTable(t *testing.T) {
	// What happens where one side has a head, by the state of the other.
	alone := map[SideState]string{NotStarted: "wait", MoreToCome: "wait", Unknown: "wait", AtEnd: "take", NotMine: "take"}
	for _, m := range allStates {
		for _, n := range allStates {
			want := "wait"
			switch {
			case m == HasHead && n == HasHead:
				continue // below
			case m == HasHead && alone[n] == "take":
				want = "take market"
			case n == HasHead && alone[m] == "take":
				want = "take notification"
			}
			got, until := Decide(Input{State: m, Head: 10}, Input{State: n, Head: 10}, 1000, 0)
			if got.String() != want || until != 0 {
				t.Errorf("market %s, notification %s: %s %d, want %s", m, n, got, until, want)
			}
			// A bad head waits for nobody.
			got, until = Decide(Input{State: m, HeadBad: true}, Input{State: n, HeadBad: true}, 1000, time.Hour)
			want = map[bool]string{m == HasHead: "take market", n == HasHead: "take notification"}[true]
			if want == "" {
				want = "wait"
			}
			if got.String() != want || until != 0 {
				t.Errorf("market %s, notification %s, bad heads: %s %d, want %s", m, n, got, until, want)
			}
		}
	}
}

func TestDecideTwoHeads(t *testing.T) {
	for _, c := range []struct {
		market, note       record.Millis
		marketBad, noteBad bool
		want               Action
	}{
		{market: 1, note: 2, want: TakeMarket},
		{market: 2, note: 1, want: TakeNotification},
		{market: 2, note: 2, want: TakeMarket},
		{market: -2, note: -1, want: TakeMarket},
		{market: maxEventTime, note: minEventTime, want: TakeNotification},
		{market: 9, marketBad: true, note: 1, want: TakeMarket},
		{market: 1, note: 9, noteBad: true, want: TakeNotification},
		{market: 1, note: 0, marketBad: true, noteBad: true, want: TakeMarket},
	} {
		got, until := Decide(
			Input{State: HasHead, Head: c.market, HeadBad: c.marketBad},
			Input{State: HasHead, Head: c.note, HeadBad: c.noteBad}, 0, time.Hour)
		if got != c.want || until != 0 {
			t.Errorf("%+v: %s %d", c, got, until)
		}
	}
}

func TestDecideMaxIdle(t *testing.T) {
	for _, c := range []struct {
		since, now record.Millis
		idle       time.Duration
		take       bool
		until      record.Millis
	}{
		{since: 1000, now: 1000, idle: 0, take: true},
		{since: 1000, now: 0, idle: 0, take: true}, // a clock that was set back
		{since: 1000, now: 0, idle: -time.Second, take: true},
		{since: 1000, now: 1000, idle: 500 * time.Millisecond, until: 1500},
		{since: 1000, now: 1499, idle: 500 * time.Millisecond, until: 1500},
		{since: 1000, now: 1500, idle: 500 * time.Millisecond, take: true},
		{since: 1000, now: 9999, idle: 500 * time.Millisecond, take: true},
		{since: 1000, now: 1000, idle: time.Nanosecond, until: 1001},
		{since: 1000, now: 1000, idle: 1500 * time.Microsecond, until: 1002},
		{since: 1_767_582_000_000, now: 1_767_582_000_000, idle: 1<<63 - 1, until: 1_767_582_000_000 + 9_223_372_036_855},
	} {
		head, end := Input{State: HasHead}, Input{State: AtEnd, AtEndSince: c.since}
		wantMarket, wantNote := WaitUntil, WaitUntil
		if c.take {
			wantMarket, wantNote = TakeMarket, TakeNotification
		}
		if got, until := Decide(head, end, c.now, c.idle); got != wantMarket || until != c.until {
			t.Errorf("%+v, a tick: %s %d", c, got, until)
		}
		if got, until := Decide(end, head, c.now, c.idle); got != wantNote || until != c.until {
			t.Errorf("%+v, a notification: %s %d", c, got, until)
		}
	}
	// Patience is for the end of a log only.
	for _, s := range []SideState{NotStarted, MoreToCome, Unknown} {
		if got, _ := Decide(Input{State: s, AtEndSince: 0}, Input{State: HasHead}, 1<<40, time.Millisecond); got != Wait {
			t.Errorf("market %s for ages: %s", s, got)
		}
	}
	if got, _ := Decide(Input{State: NotMine}, Input{State: HasHead}, 0, time.Hour); got != TakeNotification {
		t.Errorf("a half alone waits for max_idle: %s", got)
	}
}

// entry is a record of a simulated log.
type entry struct {
	side   record.Side
	offset int
	at     record.Millis
	bad    bool
}

func (e entry) String() string {
	return fmt.Sprintf("%s/%d@%d bad=%v", e.side, e.offset, e.at, e.bad)
}

func drawLog(t *rapid.T, side record.Side, most int) []entry {
	times := rapid.SliceOfN(rapid.Int64Range(-5, 20), 0, most).Draw(t, side.String())
	if rapid.Bool().Draw(t, side.String()+" sorted") {
		slices.Sort(times)
	}
	log := make([]entry, len(times))
	for i, at := range times {
		log[i] = entry{side: side, offset: i, at: record.Millis(at), bad: rapid.IntRange(0, 9).Draw(t, "bad") == 0}
	}
	return log
}

// sortedMerge is what the merge must come to: every good record, sorted by
// event time (that of the newest before it on its side, where that is newer),
// market first, then by offset.
func sortedMerge(market, note []entry) []entry {
	type keyed struct {
		entry
		key record.Millis
	}
	var all []keyed
	for _, log := range [][]entry{market, note} {
		newest := record.Millis(-1 << 62)
		for _, e := range log {
			if e.bad {
				continue
			}
			newest = max(newest, e.at)
			all = append(all, keyed{e, newest})
		}
	}
	slices.SortStableFunc(all, func(a, b keyed) int { // market came first, offsets ascend
		if a.key < b.key {
			return -1
		} else if a.key > b.key {
			return 1
		}
		return 0
	})
	var merged []entry
	for _, k := range all {
		merged = append(merged, k.entry)
	}
	return merged
}

// source is one side of a simulated task: a log, what has arrived of it, and
// what has been taken of that.
type source struct {
	log        []entry
	started    bool
	received   []int // by offset: at which event of the simulation
	taken      int
	end        int // as last answered
	asked      int // at which event
	atEndSince record.Millis
}

func (s *source) hasHead() bool { return s.taken < len(s.received) }

// input is the state of s beside other, whose head an end must be younger
// than.
func (s *source) input(other *source) Input {
	switch {
	case s.hasHead():
		return Input{State: HasHead, Head: s.log[s.taken].at, HeadBad: s.log[s.taken].bad}
	case !s.started:
		return Input{State: NotStarted}
	case other.hasHead() && other.received[other.taken] >= s.asked:
		return Input{State: Unknown}
	case s.taken < s.end:
		return Input{State: MoreToCome}
	}
	return Input{State: AtEnd, AtEndSince: s.atEndSince}
}

// simulation is a task whose records arrive, and whose ends are answered, in
// an order that rapid draws.
type simulation struct {
	t       *rapid.T
	sides   [record.Sides]*source
	events  int
	now     record.Millis
	maxIdle time.Duration
	merged  []entry
	took    func(e entry)
}

// inputs are both sides as they stand.
func (s *simulation) inputs() (market, note Input) {
	m, n := s.sides[record.Market], s.sides[record.Notification]
	return m.input(n), n.input(m)
}

// settle takes what can be taken.
func (s *simulation) settle() {
	for {
		market, note := s.inputs()
		action, until := Decide(market, note, s.now, s.maxIdle)
		switch action {
		case TakeMarket:
			s.take(record.Market)
		case TakeNotification:
			s.take(record.Notification)
		case WaitUntil:
			if until <= s.now {
				s.t.Fatalf("told to wait until %d at %d", until, s.now)
			}
			return
		default:
			return
		}
	}
}

func (s *simulation) take(side record.Side) {
	from := s.sides[side]
	if !from.hasHead() {
		s.t.Fatalf("told to take a record of the %s side, which has none here", side)
	}
	e := from.log[from.taken]
	from.taken++
	if s.took != nil {
		s.took(e)
	}
	if !e.bad {
		s.merged = append(s.merged, e)
	}
}

// arrive receives n more records.
func (s *simulation) arrive(side record.Side, n int) {
	s.events++
	from := s.sides[side]
	from.started = true
	for ; n > 0 && len(from.received) < len(from.log); n-- {
		from.received = append(from.received, s.events)
	}
}

// answer tells a side its end, asked for just now.
func (s *simulation) answer(side record.Side) {
	s.events++
	from := s.sides[side]
	from.started = true
	from.end, from.asked, from.atEndSince = len(from.log), s.events, s.now
}

// step does one thing that can happen to a task.
func (s *simulation) step() {
	side := record.Side(rapid.IntRange(0, 1).Draw(s.t, "side"))
	switch rapid.IntRange(0, 3).Draw(s.t, "step") {
	case 0, 1:
		s.arrive(side, rapid.IntRange(1, 4).Draw(s.t, "records"))
	case 2:
		s.answer(side)
	case 3:
		s.now += record.Millis(rapid.IntRange(1, 50).Draw(s.t, "ms"))
	}
	s.settle()
}

// finish lets everything arrive and all patience end.
func (s *simulation) finish() {
	for side := range record.Sides {
		s.arrive(side, len(s.sides[side].log))
	}
	s.settle()
	s.answer(record.Market)
	s.answer(record.Notification)
	s.now += record.Millis(s.maxIdle / time.Millisecond)
	s.settle()
}

func newSimulation(t *rapid.T, market, note []entry) *simulation {
	idle := time.Duration(rapid.SampledFrom([]int{0, 0, 1, 30}).Draw(t, "max_idle")) * time.Millisecond
	return &simulation{t: t, sides: [record.Sides]*source{{log: market}, {log: note}}, maxIdle: idle}
}

// TestMergeDoesNotDependOnArrival merges two logs that stand still, whatever
// arrives when.
func TestMergeDoesNotDependOnArrival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		market, note := drawLog(t, record.Market, 20), drawLog(t, record.Notification, 8)
		s := newSimulation(t, market, note)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			s.step()
		}
		s.finish()
		if diff := cmp.Diff(sortedMerge(market, note), s.merged, cmp.AllowUnexported(entry{})); diff != "" {
			t.Fatalf("merged otherwise (-sorted +merged):\n%s", diff)
		}
		if got := s.sides[0].taken + s.sides[1].taken; got != len(market)+len(note) {
			t.Fatalf("took %d records of %d", got, len(market)+len(note))
		}
	})
}

// TestMergeOfGrowingLogs lets both logs grow meanwhile: a notification must
// see every tick of its time or before that could be read when it was
// received, as far as no earlier tick stands in front with a later time.
func TestMergeOfGrowingLogs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		market, note := drawLog(t, record.Market, 20), drawLog(t, record.Notification, 8)
		s := newSimulation(t, nil, nil)
		readable := make([]int, len(note)) // ticks in the log when a notification was received
		received := 0
		s.took = func(e entry) {
			if e.side == record.Market || e.bad {
				return
			}
			for _, tick := range market[:readable[e.offset]] {
				if tick.bad {
					continue
				}
				if tick.at > e.at {
					break
				}
				if tick.offset >= s.sides[record.Market].taken {
					t.Fatalf("%s was taken before %s, which could be read", e, tick)
				}
			}
		}
		notice := func() {
			for ; received < len(s.sides[record.Notification].received); received++ {
				readable[received] = len(s.sides[record.Market].log)
			}
		}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			side := record.Side(rapid.IntRange(0, 1).Draw(t, "grows"))
			full := [record.Sides][]entry{market, note}[side]
			from := s.sides[side]
			from.log = full[:min(len(full), len(from.log)+rapid.IntRange(0, 3).Draw(t, "by"))]

			other := record.Side(rapid.IntRange(0, 1).Draw(t, "side"))
			if rapid.Bool().Draw(t, "arrives") {
				s.arrive(other, rapid.IntRange(1, 3).Draw(t, "records"))
				notice()
			} else {
				s.answer(other)
			}
			s.settle()
		}
		s.sides[record.Market].log, s.sides[record.Notification].log = market, note
		s.arrive(record.Notification, len(note))
		notice()
		s.finish()
		if got := s.sides[0].taken + s.sides[1].taken; got != len(market)+len(note) {
			t.Fatalf("took %d records of %d", got, len(market)+len(note))
		}
	})
}

// TestHalvesGoOnAlone checks that a half whose other half is elsewhere takes
// all it has, in offset order.
func TestHalvesGoOnAlone(t *testing.T) {
	for side, take := range map[record.Side]Action{record.Market: TakeMarket, record.Notification: TakeNotification} {
		for _, bad := range []bool{false, true} {
			in := [record.Sides]Input{{State: NotMine}, {State: NotMine}}
			in[side] = Input{State: HasHead, Head: 5, HeadBad: bad}
			if got, _ := Decide(in[0], in[1], 0, time.Hour); got != take {
				t.Errorf("a %s half alone, bad %v: %s", side, bad, got)
			}
		}
	}
}

func TestMergeNames(t *testing.T) {
	for _, s := range allStates {
		if s.String() == "invalid" {
			t.Errorf("state %d has no name", s)
		}
	}
	if (SideState(99)).String() != "invalid" || Action(99).String() != "invalid" {
		t.Error("what is no state or action has a name")
	}
}
