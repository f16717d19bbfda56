package faults

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// kind is a kind of fault.
type kind string

const (
	podKilled     kind = "pod killed"
	podStopped    kind = "pod stopped and continued" // for longer than its session lasts
	podTerminated kind = "pod terminated"
	brokerKilled  kind = "broker killed"
	cut           kind = "connections cut"
	cutShort      kind = "connections cut within an answer"
	delayed       kind = "connections delayed"
	narrowed      kind = "connections narrowed"
	halfOpen      kind = "connections half-open"
	grown         kind = "topics grown"
	fenced        kind = "producer fenced"
)

// kindsUnder lists the kinds of faults that there are under a guarantee.
func kindsUnder(guarantee string) []kind {
	kinds := []kind{podKilled, podStopped, podTerminated, brokerKilled, cut, cutShort, delayed, narrowed, halfOpen, grown}
	if guarantee == exactlyOnce {
		kinds = append(kinds, fenced)
	}
	return kinds
}

const (
	atLeastOnce = "at_least_once"
	exactlyOnce = "exactly_once"
)

// The broker that a round kills.
const (
	theCoordinator = "the group's coordinator"
	aLeader        = "the leader of most notification partitions"
)

const (
	pods           = 4
	brokers        = 3
	sessionTimeout = 4 * time.Second
)

// planned is a fault as the seed wants it.
type planned struct {
	kind
	at     time.Duration // from the round's beginning
	lasts  time.Duration
	pod    int    // 0 to pods-1; -1: none
	broker int    // 0 to brokers-1, behind the pod's proxy; -1: none, or by role
	role   string // of the broker that is killed
	amount int64  // of bytes, where the kind has some
}

func (p planned) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6.2fs %s", p.at.Seconds(), p.kind)
	if p.pod >= 0 {
		fmt.Fprintf(&b, ", pod %d", p.pod+1)
	}
	if p.broker >= 0 {
		fmt.Fprintf(&b, ", broker %d", p.broker+1)
	}
	if p.role != "" {
		fmt.Fprintf(&b, ", %s", p.role)
	}
	if p.amount > 0 {
		fmt.Fprintf(&b, ", %d bytes", p.amount)
	}
	if p.lasts > 0 {
		fmt.Fprintf(&b, ", for %.2fs", p.lasts.Seconds())
	}
	return b.String()
}

// plan is a round, in order of time. It depends on its arguments alone.
func plan(seed uint64, round int, guarantee string, length time.Duration) []planned {
	r := rand.New(rand.NewPCG(seed, uint64(round)))
	between := func(low, high time.Duration) time.Duration { return low + time.Duration(r.Int64N(int64(high-low))) }
	var all []planned
	// Each of these has a pod to itself, or one would hide the other.
	own := r.Perm(pods)
	for _, k := range kindsUnder(guarantee) {
		p := planned{kind: k, at: between(0, length), pod: -1, broker: -1}
		switch k {
		case podKilled:
			p.pod, p.lasts = own[0], between(0, 2*time.Second) // until it is started anew
		case podStopped:
			p.pod, p.lasts = own[1], sessionTimeout+between(time.Second, 4*time.Second)
		case podTerminated:
			p.pod, p.lasts = own[2], between(0, 2*time.Second)
		case fenced:
			p.pod = own[3]
		case brokerKilled:
			p.lasts = between(time.Second, 5*time.Second)
			p.role = theCoordinator
			if round%2 == 0 {
				p.role = aLeader
			}
		case cut:
			p.pod, p.broker, p.lasts = r.IntN(pods), r.IntN(brokers), between(100*time.Millisecond, 2*time.Second)
		case cutShort:
			p.pod, p.broker, p.lasts = r.IntN(pods), r.IntN(brokers), between(time.Second, 3*time.Second)
			p.amount = 1 + r.Int64N(4000)
		case delayed:
			p.pod, p.broker, p.lasts = r.IntN(pods), r.IntN(brokers), between(2*time.Second, 6*time.Second)
			p.amount = 50 + r.Int64N(400) // milliseconds
		case narrowed:
			p.pod, p.broker, p.lasts = r.IntN(pods), r.IntN(brokers), between(2*time.Second, 6*time.Second)
			p.amount = 8 + r.Int64N(40) // KiB a second
		case halfOpen:
			// To one broker only: a pod that reaches none is a stopped one.
			p.pod, p.broker, p.lasts = r.IntN(pods), r.IntN(brokers), between(2*time.Second, 8*time.Second)
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b planned) int { return cmp.Compare(a.at, b.at) })
	return all
}

// A seed gives the same rounds again, others for others, and every kind in each.
func TestPlan(t *testing.T) {
	for _, guarantee := range []string{atLeastOnce, exactlyOnce} {
		seen := make(map[string]bool)
		for round := 1; round <= 20; round++ {
			one, again := plan(7, round, guarantee, time.Minute), plan(7, round, guarantee, time.Minute)
			if !slices.Equal(one, again) {
				t.Fatalf("round %d of one seed is %v and %v", round, one, again)
			}
			if text := fmt.Sprint(one); seen[text] {
				t.Fatalf("round %d has been there before: %s", round, text)
			} else {
				seen[text] = true
			}
			victims := make(map[int]kind)
			for _, k := range kindsUnder(guarantee) {
				i := slices.IndexFunc(one, func(p planned) bool { return p.kind == k })
				if i < 0 {
					t.Fatalf("round %d has no %s", round, k)
				}
				if k == podKilled || k == podStopped || k == podTerminated || k == fenced {
					if other := victims[one[i].pod]; other != "" {
						t.Errorf("round %d: pod %d is %s and %s", round, one[i].pod, other, k)
					}
					victims[one[i].pod] = k
				}
				if k == podStopped && one[i].lasts <= sessionTimeout {
					t.Errorf("round %d: stopped for %v, which is no session's end", round, one[i].lasts)
				}
			}
		}
	}
	if slices.Equal(plan(7, 1, exactlyOnce, time.Minute), plan(8, 1, exactlyOnce, time.Minute)) {
		t.Error("two seeds give the same round")
	}
}
