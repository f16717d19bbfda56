package e2e

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

const (
	remoteTicks = 500 // a second
	remoteNotes = 200 // a second
)

// roundRobin is a group under steady load in which every price is in another
// pod than its notification.
type roundRobin struct {
	*World
	settings Settings
	symbols  []string
	pods     Pods
	all      Pods // those that have ended too
	load     *Steady
	tail     *Tail
}

func startRoundRobin(t *testing.T, pods int, settings Settings) *roundRobin {
	t.Helper()
	g := &roundRobin{World: NewWorld(t, remotePartitions, nil), settings: settings}
	g.symbols = SymbolsOf(g.World, "S", remotePartitions, 10)
	g.Seed(g.symbols)
	g.pods = g.Pods(pods, settings)
	g.all = slices.Clone(g.pods)
	g.pods.AwaitShared(remotePartitions).alone(t)
	g.tail = g.Tail()
	g.load = g.Steady(remoteTicks, remoteNotes, g.symbols)
	g.AwaitCount(g.Alerts, remoteNotes, g.pods)
	return g
}

// join starts one more pod.
func (g *roundRobin) join() {
	g.t.Helper()
	p := g.Start(g.settings)
	g.pods, g.all = append(g.pods, p), append(g.all, p)
}

// leave takes a pod out of those that are waited for.
func (g *roundRobin) leave(p *Proc) {
	g.pods = slices.DeleteFunc(slices.Clone(g.pods), func(x *Proc) bool { return x == p })
}

// step runs one change of the group, waits for it to settle and for load after
// it, and returns how the look-ups ended meanwhile in the pods that stay.
func (g *roundRobin) step(what string, change func()) lookups {
	g.t.Helper()
	stay := slices.Clone(g.pods)
	from := time.Now()
	before := make(map[*Proc]lookups)
	for _, p := range stay {
		before[p] = lookupsOf(p.Metrics())
	}
	change()
	shared := g.pods.AwaitShared(remotePartitions)
	settled := time.Now()
	g.AwaitCount(g.Alerts, g.Count(g.Alerts)+remoteNotes, g.pods)
	time.Sleep(time.Second)
	all := make(lookups)
	for _, p := range stay {
		if !slices.Contains(g.pods, p) {
			continue // it has gone
		}
		for outcome, n := range lookupsOf(p.Metrics()).since(before[p]) {
			all[outcome] += n
		}
	}
	gaps := g.tail.Gaps(from, time.Now())
	g.t.Logf("%s: settled after %v, %d of %d indices co-located; look-ups: %s; longest gap between a partition's alerts: %s", what,
		settled.Sub(from).Round(time.Millisecond), shared.aligned(), remotePartitions, all, spread(only(gaps, func(int32) bool { return true })))
	return all
}

// finish stops the load and fails the test where anything was lost, has no
// price or another one than the ticks give.
func (g *roundRobin) finish(order orderBy) Proof {
	g.t.Helper()
	began := time.Now()
	ticks, notes := g.load.Stop()
	g.AwaitNoLag()
	g.t.Logf("%d ticks and %d notifications written, at worst %v apart; no lag %v after the last; join times %s",
		ticks, notes, g.load.slowest.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), joinTimes(g.pods.Metrics()))
	g.pods.Stop()
	proof := prove(g.t, g.Read(g.Notes), g.Read(g.Market), g.ReadAlerts(), order)
	if proof.Hits != proof.Notes {
		g.t.Errorf("of %d notifications %d have their price", proof.Notes, proof.Hits)
	}
	if proof.Revised > 0 {
		g.t.Errorf("%d alerts lack a tick that could be read before their notification was written", proof.Revised)
	}
	g.t.Logf("%d notifications, %d of them remote, %d alerts, %d doubled", proof.Notes, proof.Remote, proof.Alerts, proof.Doubled())
	return proof
}

// The owner of prices that others ask for is killed, and another one stands
// still for longer than the session timeout and goes on: look-ups fail, are
// counted, and then get the right price of the next owner. No wrong one comes
// from an owner that does not know yet that it is none.
func TestKafkaOwnerKilled(t *testing.T) {
	const session = 6 * time.Second
	g := startRoundRobin(t, remotePods+1, Settings{
		"group.strategy": "roundrobin", "group.session_timeout": session.String(), "delivery.commit_interval": "200ms",
	})

	g.statusAgrees()
	victim := g.pods[0]
	l := g.step("killed", func() {
		before := g.pods[1].GroupStatus()
		victim.Kill()
		g.leave(victim)
		g.killedIsSeen(before)
	})
	if l["timeout"]+l["error"] == 0 {
		t.Errorf("no look-up failed though an owner was killed: %s", l)
	}
	g.step("replaced", g.join)

	still := g.pods[1]
	l = g.step("stands still", func() {
		still.Signal(syscall.SIGSTOP)
		g.leave(still)
	})
	if l["timeout"] == 0 {
		t.Errorf("no look-up timed out though an owner stood still: %s", l)
	}
	g.step("goes on", func() {
		still.Signal(syscall.SIGCONT)
		g.pods = append(g.pods, still)
	})
	if proof := g.finish(firstCopy); proof.Remote < proof.Notes/2 {
		t.Errorf("%d of %d prices were looked up: the test shows little", proof.Remote, proof.Notes)
	}
}
