package member

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"pgregory.net/rapid"

	"joiner/internal/assign"
	"joiner/internal/metrics"
	"joiner/internal/record"
)

const inOrder = 20 * time.Second // how long a handover may take

// vacancies is a member of a group in which indices are handed over, and when it
// has asked for a rebalance.
type vacancies struct {
	*Member
	began time.Time
	asked []time.Duration
	gen   int32
}

func watching(t zaptest.TestingT, id, instance string) *vacancies {
	v := &vacancies{began: time.Now()}
	all := metrics.New(prometheus.NewRegistry(), metrics.Options{Topics: [record.Sides]string{marketTopic, noteTopic}})
	v.Member = New(Options{
		Topics: [record.Sides]string{marketTopic, noteTopic}, ID: id, InstanceID: instance,
		Handover: inOrder, Enforce: func() { v.asked = append(v.asked, time.Since(v.began)) },
		Interrupt: func() {}, Metrics: &all.Group, Logger: zaptest.NewLogger(t),
	})
	return v
}

// moving is a directory of the members a, b and c in which these indices are on
// their way to b.
func (v *vacancies) moving(indices ...int32) *assign.Directory {
	v.gen++
	d := &assign.Directory{Generation: v.gen, Moving: map[string][]int32{marketTopic: indices, noteTopic: indices}}
	for _, id := range []string{"a", "b", "c"} {
		d.Members = append(d.Members, assign.Member{MemberID: id + "-1", Identity: assign.Identity{ID: id}})
	}
	if len(indices) > 0 {
		d.MovingTo = make(map[int32]string)
	}
	for _, index := range indices {
		d.MovingTo[index] = "b"
	}
	return d
}

func (v *vacancies) take(d *assign.Directory, claims ...int32) {
	v.OnAssigned(assign.Assignment{Generation: v.gen, Directory: d, Claims: map[string][]int32{marketTopic: claims, noteTopic: claims}})
}

func (v *vacancies) enter(t *testing.T, memberID string) {
	t.Helper()
	if err := v.Setup(&named{id: memberID, generation: v.gen}); err != nil {
		t.Fatal(err)
	}
}

// named is a session of that member id.
type named struct {
	fakeSession
	id         string
	generation int32
}

func (s *named) MemberID() string    { return s.id }
func (s *named) GenerationID() int32 { return s.generation }

// when returns the moments at which it has asked.
func (v *vacancies) when() []time.Duration {
	synctest.Wait()
	return v.asked
}

func (v *vacancies) wantAsked(t *testing.T, what string, want ...time.Duration) {
	t.Helper()
	if got := v.when(); !slices.Equal(got, want) {
		t.Errorf("%s: asked at %v, want %v", what, got, want)
	}
}

// A handover in order is not disturbed, nor is a group in which nothing is to be
// handed over, however long it lasts.
func TestHandoverInOrderIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := watching(t, "b", "")
		v.take(v.moving(4))
		v.enter(t, "b-1")
		time.Sleep(inOrder - time.Second)
		v.take(v.moving(), 4)
		time.Sleep(24 * time.Hour)
		v.wantAsked(t, "handed over, and then at rest")
	})
}

// The one whom it is for asks first, and asks again, ever more seldom, for as long
// as it stands. The next in rank comes in between where the first is gone.
func TestVacantIndexIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := watching(t, "b", "")
		v.take(v.moving(4))
		v.enter(t, "b-1")
		time.Sleep(8 * inOrder)
		v.wantAsked(t, "nobody hears", inOrder, 3*inOrder, 7*inOrder)
		v.take(v.moving(), 4)
		time.Sleep(24 * time.Hour)
		v.wantAsked(t, "handed over", inOrder, 3*inOrder, 7*inOrder)
	})
	for id, rank := range map[string]int{"a": 1, "b": 0, "c": 2} {
		synctest.Test(t, func(t *testing.T) {
			v := watching(t, id, "")
			v.take(v.moving(4))
			v.enter(t, id+"-1")
			time.Sleep(3*inOrder - time.Second)
			asked := v.when()
			if len(asked) != 1 {
				t.Fatalf("%s asked at %v", id, asked)
			}
			from := inOrder + time.Duration(rank)*inOrder/2
			if at := asked[0]; at < from || at > from+inOrder/4 {
				t.Errorf("%s, of rank %d, asked after %v", id, rank, at)
			}
			v.sessionEnded(nil)
		})
	}
}

// Generations that each leave the index vacant for too long come ever more seldom,
// and the first one after it was handed over begins anew.
func TestGenerationsThatDoNotHelp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := watching(t, "b", "")
		var want []time.Duration
		at := time.Duration(0)
		for i := range 3 {
			v.take(v.moving(4))
			v.enter(t, "b-1")
			at += inOrder << i
			want = append(want, at)
			time.Sleep(inOrder << i)
			synctest.Wait()
		}
		v.wantAsked(t, "three generations", want...)
		v.take(v.moving(), 4)
		v.take(v.moving(5), 4)
		time.Sleep(inOrder)
		v.wantAsked(t, "another index", append(want, at+inOrder)...)
		v.sessionEnded(nil)
	})
}

// While a rebalance is under way, outside a session and while it stops, a member
// asks for none.
func TestNobodyAsksInARebalance(t *testing.T) {
	for what, begin := range map[string]func(*vacancies){
		"rebalance": func(v *vacancies) { v.Joining() },
		"no session": func(v *vacancies) {
			v.sessionEnded(nil)
		},
		"stop": func(v *vacancies) { v.stop() },
	} {
		synctest.Test(t, func(t *testing.T) {
			v := watching(t, "b", "")
			v.take(v.moving(4))
			v.enter(t, "b-1")
			begin(v)
			time.Sleep(10 * inOrder)
			v.wantAsked(t, what)
			v.sessionEnded(nil)
		})
	}
}

// A static member that comes back in a generation of before asks at once where
// indices are vacant, once; one that the directory was made for does not, nor does
// a dynamic one, whose start is a rebalance.
func TestStaticMemberComesBack(t *testing.T) {
	for _, c := range []struct {
		what, instance, memberID string
		moving                   []int32
		want                     bool
	}{
		{"back", "b", "b-2", []int32{4}, true},
		{"back, and nothing is vacant", "b", "b-2", nil, false},
		{"new", "b", "b-1", []int32{4}, false},
		{"dynamic", "", "b-2", []int32{4}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := watching(t, "b", c.instance)
			v.take(v.moving(c.moving...))
			v.enter(t, c.memberID)
			time.Sleep(inOrder / 2)
			asked := v.when()
			if got := len(asked) == 1; got != c.want {
				t.Errorf("%s: asked at %v", c.what, asked)
			}
			if asks := v.Asks(); asks != uint64(len(asked)) {
				t.Errorf("%s: it says that it has asked %d times", c.what, asks)
			}
			v.sessionEnded(nil)
		})
	}
}

// Only a member that owns nothing waits for what is coming.
func TestComing(t *testing.T) {
	for what, c := range map[string]struct {
		id     string
		claims []int32
		want   []int32
	}{
		"owns nothing": {"b", nil, []int32{4, 7}},
		"owns some":    {"b", []int32{1}, nil},
		"spare":        {"c", nil, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := watching(t, c.id, "")
			v.take(v.moving(7, 4), c.claims...)
			v.enter(t, c.id+"-1")
			if got := v.Status().Coming; !slices.Equal(got, c.want) {
				t.Errorf("%s: %v is coming, want %v", what, got, c.want)
			}
			v.sessionEnded(nil)
			if got := v.Status().Coming; got != nil {
				t.Errorf("%s: %v is coming outside a session", what, got)
			}
		})
	}
}

// What has been vacant for longer than a handover takes is told, with the moment
// since when, over generations that do not help.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := watching(t, "c", "")
		v.take(v.moving(4))
		v.enter(t, "c-1")
		time.Sleep(inOrder - time.Second)
		if got := v.Status(); got.Vacant != nil || !got.VacantSince.IsZero() {
			t.Errorf("in order: %v since %v", got.Vacant, got.VacantSince)
		}
		v.take(v.moving(4, 7))
		time.Sleep(time.Second)
		if got := v.Status(); !slices.Equal(got.Vacant, []int32{4}) || !got.VacantSince.Equal(v.began) {
			t.Errorf("overdue: %v since %v", got.Vacant, got.VacantSince)
		}
		v.take(v.moving(), 4)
		if got := v.Status(); got.Vacant != nil {
			t.Errorf("handed over: %v since %v", got.Vacant, got.VacantSince)
		}
	})
}

// Every member has a rank of its own, and those that an index is for come first.
func TestRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &assign.Directory{MovingTo: make(map[int32]string)}
		n := rapid.IntRange(1, 12).Draw(t, "members")
		for i := range n {
			d.Members = append(d.Members, assign.Member{Identity: assign.Identity{ID: fmt.Sprintf("m%02d", i)}})
		}
		heirs := make(map[string]bool)
		for index, to := range rapid.SliceOfN(rapid.IntRange(0, n-1), 0, 8).Draw(t, "for") {
			d.MovingTo[int32(index)] = d.Members[to].ID
			heirs[d.Members[to].ID] = true
		}
		seen := make([]bool, n)
		for _, m := range d.Members {
			rank := rankOf(d, m.ID)
			if rank < 0 || rank >= n || seen[rank] {
				t.Fatalf("%s has rank %d of %d, twice: %v", m.ID, rank, n, seen)
			}
			seen[rank] = true
			if heirs[m.ID] != (rank < len(heirs)) {
				t.Fatalf("%s has rank %d; for whom they are: %v", m.ID, rank, heirs)
			}
		}
	})
}

// No wait is shorter than a handover in order, and none is out of bounds.
func TestPatience(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := vacant{
			rank: rapid.IntRange(0, 500).Draw(t, "rank"), lasts: rapid.IntRange(0, 500).Draw(t, "lasts"), asked: rapid.IntRange(0, 500).Draw(t, "asked"),
		}
		handover := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "handover"))
		wait := v.patience(handover)
		if longest := max(longestVacancy, 2*handover) + 2*handover; wait < handover || wait > longest {
			t.Fatalf("%v is not within %v and %v", wait, handover, longest)
		}
	})
}
