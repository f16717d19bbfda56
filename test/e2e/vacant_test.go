package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What a pod says that asks for a rebalance by itself.
const (
	comesBackLine = "this member comes back to a group in which partitions wait for their old owner, which may have been itself: it joins again"
	vacantLine    = "partitions have had no owner for longer than it takes to hand them over: this member asks for a rebalance, which gives them one"
)

// handing is a group in which a handover lasts: no output is acknowledged
// meanwhile, and a task that is to go waits for what it has sent.
type handing struct {
	*World
	t       *testing.T
	symbols []string
}

// refuseOutputs leaves outputs without a topic to go to.
func (h *handing) refuseOutputs() {
	h.t.Helper()
	if err := h.Admin().DeleteTopic(h.Alerts); err != nil {
		h.t.Fatal(err)
	}
}

// takeOutputs lets outputs be written again.
func (h *handing) takeOutputs() {
	h.t.Helper()
	if err := h.CreateTopic(h.Alerts, h.Partitions, nil); err != nil {
		h.t.Fatal(err)
	}
}

// hold lets every task send an output that is not acknowledged.
func (h *handing) hold(pods Pods) {
	h.t.Helper()
	h.refuseOutputs()
	await(h.t, "every task to wait for an acknowledgement", func() error {
		notes := make([]Record, len(h.symbols))
		for i, symbol := range h.symbols {
			notes[i] = Record{Key: symbol, Value: `{}`}
		}
		h.Send(h.Notes, notes...)
		time.Sleep(time.Second)
		waiting := make(map[int32]bool)
		for _, p := range pods {
			for index := range p.unsettled() {
				waiting[index] = true
			}
		}
		if len(waiting) < int(h.Partitions) {
			return fmt.Errorf("only the partitions %v do", slices.Sorted(maps.Keys(waiting)))
		}
		return nil
	})
}

// unsettled counts, by partition, the notifications whose outputs are not
// acknowledged.
func (p *Proc) unsettled() map[int32]int {
	p.t.Helper()
	_, body, err := p.Get("/v1/status")
	var v struct {
		Tasks []struct {
			Partition int32 `json:"partition"`
			Unsettled int   `json:"unsettled"`
		} `json:"tasks"`
	}
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil {
		p.t.Fatalf("%s: /v1/status: %s %v", p.Name, body, err)
	}
	waiting := make(map[int32]int)
	for _, task := range v.Tasks {
		if task.Unsettled > 0 {
			waiting[task.Partition] = task.Unsettled
		}
	}
	return waiting
}

// between starts a pod, and returns when it has its first assignment, with
// nothing in it: those that it is for are being handed over. It is not ready.
func (h *handing) between(start func() *Proc, owners Pods) *Proc {
	h.t.Helper()
	ended := owners.ClaimsEnded()
	p := start()
	await(h.t, p.Name+" to be told what it will have", func() error {
		if len(p.Logged("assigned")) == 0 {
			return errors.New("it has no assignment")
		}
		r := p.Readiness()
		if r.Ready {
			h.t.Fatalf("%s is ready, and owns nothing yet", p.Name)
		}
		if !strings.Contains(strings.Join(r.Reasons, "; "), "are being handed over to this pod") {
			return errors.New(strings.Join(r.Reasons, "; "))
		}
		return nil
	})
	if n := owners.ClaimsEnded() - ended; n > 0 {
		h.t.Fatalf("%d claims have ended: this run shows nothing", n)
	}
	return p
}

func said(pods Pods, line string) (n int) {
	for _, p := range pods {
		n += len(p.Logged(line))
	}
	return n
}

// Whoever is to hand a partition over is gone before it has done so: a static
// member that is killed and started again, which gets what it had without it and
// nobody hears of it, and one that stands still. The partition gets an owner all
// the same, long before any session ends.
func TestKafkaVacant(t *testing.T) {
	const partitions = 6
	began := time.Now()
	w := NewWorld(t, partitions, nil)
	symbols := SymbolsOf(w, "S", partitions, 1)
	w.Seed(symbols)
	settings := Settings{"group.session_timeout": staticSession, "kafka.metadata_refresh": "2s"}

	h := &handing{World: w, t: t, symbols: symbols}
	g := &staticGroup{scaled: &scaled{World: w}, at: make(map[string]string), base: settings}
	g.pods = Pods{g.static("joiner-0", nil), g.static("joiner-1", nil)}
	g.pods.AwaitBalanced(partitions)
	h.hold(g.pods)
	third := h.between(func() *Proc { return g.static("joiner-2", nil) }, g.pods)
	for i := range 2 {
		g.pods[i].Kill()
	}
	killed := time.Now()
	for i := range 2 {
		g.replace(i, g.static(fmt.Sprintf("joiner-%d", i), nil))
	}
	h.takeOutputs()
	withheld := third.generation()
	g.pods = append(g.pods, third)
	g.pods.AwaitBalanced(partitions)
	t.Logf("static members killed in a handover: all is owned, and ready, after %v; generation %d became %d",
		time.Since(killed).Round(time.Millisecond), withheld, third.generation())
	if said(g.pods, comesBackLine) == 0 {
		t.Error("no member that came back has asked for a rebalance")
	}
	w.AwaitNoLag()
	g.pods.Stop()
	proof := w.Prove()
	t.Logf("%d notifications, %d alerts", proof.Notes, proof.Alerts)

	h = &handing{World: NewWorldOn(t, w.Cluster, partitions, nil), t: t, symbols: symbols}
	h.Seed(symbols)
	settings["group.rebalance_timeout"] = "15s" // a third of it for the outputs, and for the commit; then the others ask
	owner := h.Start(settings)
	owner.WaitReady()
	h.hold(Pods{owner})
	next := h.between(func() *Proc { return h.Start(settings) }, Pods{owner})
	owner.Signal(syscall.SIGSTOP)
	h.takeOutputs()
	stopped := time.Now()
	Pods{next}.AwaitBalanced(partitions)
	t.Logf("a member that stands still in a handover: all is owned, and ready, after %v; the session timeout is %s",
		time.Since(stopped).Round(time.Millisecond), staticSession)
	if n := said(Pods{next}, vacantLine); n != 1 {
		t.Errorf("%s has asked for a rebalance %d times", next.Name, n)
	}
	owner.Signal(syscall.SIGCONT)
	Pods{owner, next}.AwaitBalanced(partitions)
	h.AwaitNoLag()
	Pods{owner, next}.Stop()
	proof = h.Prove()
	t.Logf("%d notifications, %d alerts, %d doubled", proof.Notes, proof.Alerts, proof.Doubled())
	t.Logf("took %v", time.Since(began).Round(time.Second))
}
