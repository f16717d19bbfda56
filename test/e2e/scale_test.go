package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

const (
	scalePartitions = 12
	scaleTicks      = 2000 // a second
	scaleNotes      = 200  // a second
	unchangedFor    = 6 * time.Second
	settleFor       = 3 * time.Second
	usualFor        = 15 * time.Second // before a change, to know the machine by
)

// scaled is a group under steady load.
type scaled struct {
	*World
	pods   Pods
	all    Pods // those that have ended too
	load   *Steady
	tail   *Tail
	owners map[int32]string
}

func startScaled(t *testing.T, n int, settings Settings) *scaled {
	t.Helper()
	return startScaledOn(NewWorld(t, scalePartitions, nil), n, settings, scaleTicks, scaleNotes)
}

// startScaledOn begins with so many ticks and notifications a second.
func startScaledOn(w *World, n int, settings Settings, ticks, notes int) *scaled {
	w.t.Helper()
	s := &scaled{World: w}
	symbols := SymbolsOf(s.World, "S", scalePartitions, 20)
	s.Seed(symbols)
	s.pods = s.Pods(n, settings)
	s.all = slices.Clone(s.pods)
	s.owners = s.pods.AwaitBalanced(scalePartitions)
	s.tail = s.Tail()
	s.load = s.Steady(ticks, notes, symbols)
	s.AwaitCount(s.Alerts, int64(notes), s.pods)
	return s
}

// step runs one change of the group and waits for it to settle. It asserts
// that exactly the indices that balance needs have moved, that their claims and
// no others have ended in the pods that stay, and that the others' offsets went
// on meanwhile.
func (s *scaled) step(what string, moves int, change func()) {
	s.t.Helper()
	ended, committed, paused := s.all.ClaimsEnded(), s.both(), s.pauses()
	from := time.Now()
	change()
	owners := s.pods.AwaitBalanced(scalePartitions)
	settled := time.Now()
	indices := moved(s.owners, owners)
	if len(indices) != moves {
		s.t.Errorf("%s: %v moved, balance needs %d moves: %v became %v", what, indices, moves, s.owners, owners)
	}
	isMoved := func(p int32) bool { return slices.Contains(indices, p) }
	still := s.standing(committed, isMoved)
	s.goesOn(what, from, settled, isMoved)
	if n := s.all.ClaimsEnded() - ended; n != 2*len(indices) {
		s.t.Errorf("%s: %d claims ended, %v moved", what, n, indices)
	}
	await(s.t, what+": retained partitions to go on", func() error {
		if left := s.standing(committed, isMoved); len(left) > 0 {
			return fmt.Errorf("their commits stand where they stood before: %v", left)
		}
		return nil
	})
	time.Sleep(settleFor)
	gaps := s.tail.Gaps(from, time.Now())
	s.t.Logf("%s: settled after %v; %v moved; %d of %d retained offsets had not advanced by then", what,
		settled.Sub(from).Round(time.Millisecond), indices, len(still), 2*(scalePartitions-len(indices)))
	s.t.Logf("%s: longest gap between alerts: moved %s; retained %s", what,
		spread(only(gaps, isMoved)), spread(only(gaps, func(p int32) bool { return !isMoved(p) })))
	now := s.pauses()
	if n := now.count - paused.count; n > 0 {
		s.t.Logf("%s: joiner_task_pause_seconds: %d, mean %.2f s", what, int(n), (now.sum-paused.sum)/n)
	}
	for _, line := range s.restores(from) {
		s.t.Logf("%s: %s", what, line)
	}
	s.owners = owners
}

// goesOn asserts that retained partitions had alerts while the group was
// changing: a rebalance that stops everybody would leave all of them without
// one until it has settled. Half of them must, since a starved pod of a busy
// machine may stand still as long by itself; and where most of them stood still
// as long as that without any change, the machine tells nothing.
func (s *scaled) goesOn(what string, from, settled time.Time, isMoved func(int32) bool) {
	s.t.Helper()
	arrived := s.tail.Arrived(from, settled)
	usual := s.tail.GapsWithin(from.Add(-usualFor), from)
	retained, going, slow := 0, 0, 0
	for p := range s.Partitions {
		if isMoved(p) {
			continue
		}
		retained++
		if arrived[p] > 0 {
			going++
		}
		if usual[p] >= settled.Sub(from) {
			slow++
		}
	}
	s.t.Logf("%s: %d of %d retained partitions had alerts before the group had settled", what, going, retained)
	if 2*slow > retained {
		s.t.Logf("%s: %d of %d had none for as long before it: this run shows little", what, slow, retained)
		return
	}
	if 2*going < retained {
		s.t.Errorf("%s: only %d of %d retained partitions had alerts before the group had settled", what, going, retained)
	}
}

type topicPartition struct {
	topic     string
	partition int32
}

// both returns what is committed of both inputs.
func (s *scaled) both() map[topicPartition]int64 {
	s.t.Helper()
	all := make(map[topicPartition]int64)
	for _, topic := range []string{s.Market, s.Notes} {
		for partition, offset := range s.Committed(topic) {
			all[topicPartition{topic, partition}] = offset
		}
	}
	return all
}

// standing lists the partitions outside moved that are committed no further
// than before.
func (s *scaled) standing(before map[topicPartition]int64, isMoved func(int32) bool) (still []topicPartition) {
	s.t.Helper()
	for at, offset := range s.both() {
		if !isMoved(at.partition) && offset <= before[at] {
			still = append(still, at)
		}
	}
	return still
}

type pauses struct{ count, sum float64 }

func (s *scaled) pauses() (p pauses) {
	s.t.Helper()
	m := s.pods.Metrics()
	return pauses{m.Sum("joiner_task_pause_seconds_count"), m.Sum("joiner_task_pause_seconds_sum")}
}

// restores tells how long restores since then took.
func (s *scaled) restores(since time.Time) (lines []string) {
	for _, p := range s.all {
		for _, l := range p.Logged("restored") {
			if l.Time().After(since.Truncate(time.Millisecond)) {
				lines = append(lines, fmt.Sprintf("%s restored partition %d, offsets %d to %d, in %s",
					p.Name, l.Number("partition"), l.Number("from"), l.Number("to"), l.Text("took")))
			}
		}
	}
	return lines
}

// leave takes the pod out of those that run.
func (s *scaled) leave(p *Proc) {
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(x *Proc) bool { return x == p })
}

// finish stops the load and returns what the topics prove once all is out.
func (s *scaled) finish() Proof {
	s.t.Helper()
	began := time.Now()
	ticks, notes := s.load.Stop()
	s.AwaitNoLag()
	s.t.Logf("%d ticks and %d notifications written, at worst %v apart; no lag %v after the last",
		ticks, notes, s.load.slowest.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	s.pods.Stop()
	proof := s.Prove()
	if proof.Hits != proof.Notes || proof.Remote > 0 {
		s.t.Errorf("of %d notifications %d are hits, %d of them remote: a partition that moves must bring its prices", proof.Notes, proof.Hits, proof.Remote)
	}
	if proof.Revised > 0 {
		s.t.Errorf("%d alerts lack a tick that could be read before their notification was written", proof.Revised)
	}
	s.t.Logf("%d notifications, %d alerts, %d of them doubled", proof.Notes, proof.Alerts, proof.Doubled())
	return proof
}

const pauseTarget = "target of a moved task: two heartbeats + 0.3 s = 1.3 s, and its restore"

// 4 pods, 5, 4 again: what stays does not stop, what moves brings its prices,
// nothing is lost.
func TestKafkaScale(t *testing.T) {
	s := startScaled(t, 4, Settings{"delivery.commit_interval": "200ms"})
	from := time.Now()
	time.Sleep(unchangedFor)
	t.Logf("unchanged for %v: longest gap between alerts: %s", unchangedFor,
		spread(only(s.tail.Gaps(from, time.Now()), func(int32) bool { return true })))
	t.Log(pauseTarget)

	lost := s.pods.Metrics().Sum("joiner_task_moves_total", "direction", "lost")
	s.step("4 to 5", 2, func() {
		p := s.Start(Settings{"delivery.commit_interval": "200ms"})
		s.pods, s.all = append(s.pods, p), append(s.all, p)
	})
	if n := s.pods.Metrics().Sum("joiner_task_moves_total", "direction", "lost") - lost; n != 2 {
		t.Errorf("the pods counted %v tasks lost, want 2", n)
	}

	// Not the newest: its share is that of the others.
	leaving := s.pods[0]
	indices, _, err := leaving.Owned()
	if err != nil {
		t.Fatal(err)
	}
	s.step("5 to 4", len(indices), func() {
		s.leave(leaving)
		began := time.Now()
		if code := leaving.Stop(); code != 0 {
			t.Errorf("%s ended with %d after SIGTERM", leaving.Name, code)
		}
		t.Logf("5 to 4: SIGTERM to exit: %v, target: inside shutdown.timeout, 25 s", time.Since(began).Round(time.Millisecond))
	})
	if n := said(s.all, vacantLine) + said(s.all, comesBackLine); n > 0 {
		t.Errorf("pods asked %d times for a rebalance more", n)
	}
	if proof := s.finish(); proof.Doubled() > 0 {
		// An orderly move waits for what is in flight and commits it.
		t.Errorf("%d alerts are doubled by moves in order: %v", proof.Doubled(), proof.Copies)
	}
}

// A pod is killed: the others take its tasks over after the session timeout.
func TestKafkaScaleKill(t *testing.T) {
	s := startScaled(t, 4, Settings{"group.session_timeout": "6s"})
	victim := s.pods[0]
	indices, _, err := victim.Owned()
	if err != nil {
		t.Fatal(err)
	}
	committed := s.Committed(s.Notes)
	// The victim's own claims do not end: it is gone.
	ended := s.all.ClaimsEnded()
	killed := time.Now()
	victim.Kill()
	s.leave(victim)
	owners := s.pods.AwaitBalanced(scalePartitions)
	t.Logf("taken over and ready %v after the kill; the session timeout is 6 s", time.Since(killed).Round(time.Millisecond))
	if got := moved(s.owners, owners); !slices.Equal(got, indices) {
		t.Errorf("%v moved, the victim had %v", got, indices)
	}
	if n := s.all.ClaimsEnded() - ended; n > 0 {
		t.Errorf("%d claims ended in pods that stayed", n)
	}
	time.Sleep(settleFor)
	gaps := s.tail.Gaps(killed, time.Now())
	isMoved := func(p int32) bool { return slices.Contains(indices, p) }
	t.Logf("longest gap between alerts: taken over %s; retained %s",
		spread(only(gaps, isMoved)), spread(only(gaps, func(p int32) bool { return !isMoved(p) })))
	proof := s.finish()
	for at := range maps.Keys(proof.Copies) {
		if at.offset < committed[at.partition] || !isMoved(at.partition) {
			t.Errorf("notification %s is doubled, but offset %d of its partition was committed before the kill; taken over: %v", at, committed[at.partition], indices)
		}
	}
}
