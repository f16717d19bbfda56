package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	staticPartitions = int32(6)
	// staticSession is so long that no session ends by itself while a test
	// waits: whatever moves does so because somebody has left.
	staticSession = "20m"
)

// staticGroup is a group of static members under steady load.
type staticGroup struct {
	*scaled
	base Settings
	at   map[string]string // peer addresses by instance id
}

// startStatic starts so many pods, the first before the others: it leads.
func startStatic(t *testing.T, n int, base Settings) *staticGroup {
	t.Helper()
	w := NewWorld(t, staticPartitions, nil)
	g := &staticGroup{scaled: &scaled{World: w}, at: make(map[string]string), base: Settings{
		"group.session_timeout": staticSession, "kafka.metadata_refresh": "2s", "topics.create": "true",
	}}
	maps.Copy(g.base, base)
	symbols := SymbolsOf(w, "S", staticPartitions, 20)
	w.Seed(symbols)
	for i := range n {
		g.pods = append(g.pods, g.static(fmt.Sprintf("joiner-%d", i), nil))
		g.pods[0].WaitReady()
	}
	g.all = slices.Clone(g.pods)
	g.owners = g.pods.AwaitBalanced(staticPartitions)
	g.load = w.Steady(300, 60, symbols)
	w.AwaitCount(w.Alerts, 60, g.pods)
	return g
}

// static starts a pod of this instance id, at the same address as the last one.
func (g *staticGroup) static(id string, more Settings) *Proc {
	g.t.Helper()
	if g.at[id] == "" {
		g.at[id] = freeAddress(g.t)
	}
	settings := maps.Clone(g.base)
	maps.Copy(settings, Settings{"group.instance_id": id, "peer.listen": g.at[id]})
	maps.Copy(settings, more)
	p := g.Start(settings)
	p.Name = fmt.Sprintf("%s-%s", p.Name, id)
	return p
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// generations are the generations that the pods are in.
func (g *staticGroup) generations() (all []int64) {
	g.t.Helper()
	for _, p := range g.pods {
		all = append(all, p.generation())
	}
	return all
}

// restart ends pod i by end and starts it again. Nobody may notice.
func (g *staticGroup) restart(what string, i int, end func(*Proc)) *Proc {
	g.t.Helper()
	others := slices.Delete(slices.Clone(g.pods), i, i+1)
	generation := g.pods[i].generation()
	began := time.Now()
	end(g.pods[i])
	g.standsStill(what+", while the pod is away", others, generation)
	ended := others.ClaimsEnded()
	g.replace(i, g.static(fmt.Sprintf("joiner-%d", i), nil))
	g.owners = g.renamed(g.owners, g.pods.AwaitBalanced(staticPartitions))
	g.t.Logf("%s: away and back, and ready, in %v", what, time.Since(began).Round(time.Millisecond))
	if n := others.ClaimsEnded() - ended; n > 0 {
		g.t.Errorf("%s: %d claims of other pods ended", what, n)
	}
	if all := g.generations(); slices.Max(all) != generation || slices.Min(all) != generation {
		g.t.Errorf("%s: generations %v, before it was %d", what, all, generation)
	}
	return g.pods[i]
}

// standsStill asserts that the others have heard of nothing.
func (g *staticGroup) standsStill(what string, others Pods, generation int64) {
	g.t.Helper()
	for _, p := range others {
		if now := p.generation(); now != generation {
			g.t.Errorf("%s: %s is in generation %d, before it was %d", what, p.Name, now, generation)
		}
	}
}

// replace puts a new process in a pod's place.
func (g *staticGroup) replace(i int, p *Proc) {
	g.pods = slices.Clone(g.pods)
	g.pods[i] = p
	g.all = append(g.all, p)
}

// renamed fails the test where an index has gone to another pod, by instance.
func (g *staticGroup) renamed(before, after map[int32]string) map[int32]string {
	g.t.Helper()
	instance := func(name string) string { _, id, _ := strings.Cut(name, "-"); return id }
	for p, owner := range after {
		if instance(owner) != instance(before[p]) {
			g.t.Errorf("partition %d went from %s to %s", p, before[p], owner)
		}
	}
	return after
}

// goOn waits until every partition has been committed further, under load.
func (g *staticGroup) goOn(what string) {
	g.t.Helper()
	before := g.both()
	await(g.t, what+": all partitions to go on", func() error {
		if still := g.standing(before, func(int32) bool { return false }); len(still) > 0 {
			return fmt.Errorf("commits stand still: %v", still)
		}
		return nil
	})
}

// twin starts a second process of a pod's instance id, and stops it again.
func (g *staticGroup) twin(i int) {
	g.t.Helper()
	first := g.pods[i]
	id := fmt.Sprintf("joiner-%d", i)
	others := slices.Delete(slices.Clone(g.pods), i, i+1)
	ended := others.ClaimsEnded()
	second := g.static(id, Settings{"peer.listen": freeAddress(g.t), "group.leave": "always"})
	g.all = append(g.all, second)
	second.WaitReady()
	await(g.t, first.Name+" to say that it is fenced", func() error {
		if r := first.Readiness(); r.Ready || !strings.Contains(strings.Join(r.Reasons, "; "), "group.instance_id "+id) {
			return fmt.Errorf("it is ready: %t; %s", r.Ready, strings.Join(r.Reasons, "; "))
		}
		return nil
	})
	time.Sleep(settleFor)
	refused := first.Metrics().Sum("joiner_group_fenced_total")
	taken := second.Metrics().Sum("joiner_group_fenced_total")
	g.t.Logf("two pods of one id: the first was refused %v times, the second %v times", refused, taken)
	if taken > 0 {
		g.t.Errorf("the second was refused %v times: they take the id from each other", taken)
	}
	// 100 ms, doubled each time and halved at most by the jitter, until 30 s:
	// 20 refusals would take minutes.
	if refused < 1 || refused > 20 {
		g.t.Errorf("the first was refused %v times", refused)
	}
	said := slices.DeleteFunc(first.Logs(), func(l Line) bool { return l.Text("level") != "error" || l.Text("instance_id") != id })
	if len(said) == 0 {
		g.t.Errorf("%s has no error in its log that names %s", first.Name, id)
	}
	for _, p := range others {
		if len(p.Logged("session ended, joining the group again")) > 0 {
			g.t.Errorf("%s had to join again", p.Name)
		}
	}
	if code := second.Stop(); code != 0 {
		g.t.Errorf("%s ended with %d", second.Name, code)
	}
	g.owners = g.pods.AwaitBalanced(staticPartitions) // the first has it back
	if n := others.ClaimsEnded() - ended; n > 0 {
		g.t.Logf("two pods of one id: %d claims of other pods ended", n)
	}
	g.goOn("one pod of the id again")
}

// leaves stops a pod that is to leave the group. The session timeout is longer
// than any wait of the tests: what the others get, they get because it has left.
func (g *staticGroup) leaves(what string, p *Proc) {
	g.t.Helper()
	p.WaitReady()
	g.pods.AwaitBalanced(staticPartitions)
	rest := slices.DeleteFunc(slices.Clone(g.pods), func(x *Proc) bool { return x == p })
	stopping := time.Now()
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 0 {
		g.t.Errorf("%s ended with %d", p.Name, code)
	}
	exited := time.Now()
	g.pods = rest
	g.owners = g.pods.AwaitBalanced(staticPartitions)
	last := time.Time{}
	for _, pod := range rest {
		if lines := pod.Logged("assigned"); len(lines) > 0 && lines[len(lines)-1].Time().After(last) {
			last = lines[len(lines)-1].Time()
		}
	}
	g.t.Logf("%s: the peers own everything %v after SIGTERM, %v after the exit (target: two heartbeats, 1 s); ready %v after it",
		what, last.Sub(stopping).Round(time.Millisecond), last.Sub(exited).Round(time.Millisecond), time.Since(exited).Round(time.Millisecond))
}

// grows grows the inputs of a group whose leader was started again, which sarama
// does not know (KIP-814).
func (g *staticGroup) grows(to int32) {
	g.t.Helper()
	for _, topic := range []string{g.Market, g.Notes} {
		if err := g.Admin().CreatePartitions(topic, to, nil, false); err != nil {
			g.t.Fatal(err)
		}
	}
	g.pods.AwaitBalanced(to)
}

// awaitMembers waits until the group has these members, by instance id.
func (w *World) awaitMembers(want ...string) {
	w.t.Helper()
	await(w.t, fmt.Sprintf("the group to have the members %q", want), func() error {
		groups, err := w.Admin().DescribeConsumerGroups([]string{w.Group})
		if err != nil || len(groups) != 1 {
			return errors.Join(errors.New("the group cannot be described"), err)
		}
		var have []string
		for _, m := range groups[0].Members {
			if m.GroupInstanceId == nil {
				return fmt.Errorf("it has the dynamic member %s", m.MemberId)
			}
			have = append(have, *m.GroupInstanceId)
		}
		if slices.Sort(have); !slices.Equal(have, want) {
			return fmt.Errorf("it has %q", have)
		}
		return nil
	})
}

// A static member that is started again, in order or after a kill, leader or
// not, has its tasks back and nobody has noticed; where its address has changed
// the others are told. Two of one id settle who it is. One that goes for good
// leaves, and so does a dynamic one. A leader that was started again notices a
// topic that grows. Nothing is lost.
func TestKafkaStatic(t *testing.T) {
	began := time.Now()
	g := startStatic(t, 3, nil)
	if p := g.restart("SIGTERM of a follower", 1, func(p *Proc) { p.Stop() }); len(p.Logged(inheritedLine)) > 0 {
		t.Error("a follower takes itself for the leader")
	}
	g.goOn("after a SIGTERM")
	if p := g.restart("kill of the leader", 0, (*Proc).Kill); len(p.Logged(inheritedLine)) == 0 {
		t.Error("the leader does not know that it leads")
	}
	g.goOn("after a kill")
	g.twin(1)
	g.moves(2)

	dynamic := g.Start(g.base)
	g.pods, g.all = append(g.pods, dynamic), append(g.all, dynamic)
	g.leaves("SIGTERM of a dynamic member", dynamic)
	always := g.static("joiner-3", Settings{"group.leave": "always"})
	g.pods, g.all = append(g.pods, always), append(g.all, always)
	g.leaves("SIGTERM of a static member with group.leave: always", always)
	g.awaitMembers("joiner-0", "joiner-1", "joiner-2")

	g.load.Stop()
	g.AwaitNoLag()
	proof := g.Prove()
	t.Logf("%d notifications, %d alerts, %d doubled", proof.Notes, proof.Alerts, proof.Doubled())
	g.restart("SIGTERM of the leader", 0, func(p *Proc) { p.Stop() })
	g.grows(staticPartitions + 2)
	g.pods.Stop()
	g.awaitMembers("joiner-0", "joiner-1", "joiner-2") // group.leave: auto, outside Kubernetes
	t.Logf("took %v", time.Since(began).Round(time.Second))
}

// The same under exactly_once: a transaction that a killed pod left open is ended
// by the one that follows it, and two of one id do not end each other's for ever.
func TestKafkaStaticExactlyOnce(t *testing.T) {
	began := time.Now()
	g := startStatic(t, 2, Settings{"delivery.guarantee": "exactly_once"})
	g.restart("kill of the leader", 0, (*Proc).Kill)
	g.goOn("after a kill")
	g.twin(1)
	g.load.Stop()
	g.AwaitNoLag()
	outcomes := g.transactions()
	g.pods.Stop()
	proof := g.ProveCommitted()
	t.Logf("%d notifications, %d alerts, %d doubled; transactions of the pods that are left: %v", proof.Notes, proof.Alerts, proof.Doubled(), outcomes)
	if proof.Doubled() > 0 {
		t.Errorf("doubled: %v", proof.Copies)
	}
	// A few are in order: at the start of the second, and when the first comes back.
	// Many would mean that two pods end each other's transactions again and again.
	if n := outcomes["fenced"]; n > 20 {
		t.Errorf("the pods that are left were fenced %d times", n)
	}
	t.Logf("took %v", time.Since(began).Round(time.Second))
}

// inheritedLine is what a leader says that was started again.
const inheritedLine = "this member leads the group as it did before it was started again: it looks for new partitions itself"

// moves starts a pod again at another address, of which the others must hear: by
// a rebalance, in which no claim of theirs ends.
func (g *staticGroup) moves(i int) {
	g.t.Helper()
	id := fmt.Sprintf("joiner-%d", i)
	others := slices.Delete(slices.Clone(g.pods), i, i+1)
	ended := others.ClaimsEnded()
	g.pods[i].Kill()
	g.at[id] = freeAddress(g.t)
	g.replace(i, g.static(id, nil))
	await(g.t, "the others to hear of the pod's new address", func() error {
		for _, p := range others {
			_, body, err := p.Get("/v1/status")
			if err != nil {
				return err
			}
			if !strings.Contains(string(body), g.at[id]) {
				return fmt.Errorf("%s does not know %s", p.Name, g.at[id])
			}
		}
		return nil
	})
	g.owners = g.renamed(g.owners, g.pods.AwaitBalanced(staticPartitions))
	if n := others.ClaimsEnded() - ended; n > 0 {
		g.t.Errorf("another address: %d claims of other pods ended", n)
	}
	g.goOn("another address")
}
