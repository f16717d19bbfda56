package faults

import (
	"errors"
	"fmt"
	"maps"
	"syscall"
	"testing"
	"time"

	"joiner/test/proc"
)

func trials() []trial {
	lost := func(a audited) bool { return a.Lost > 0 }
	doubled := func(a audited) bool { return a.Doubled > 0 }
	return []trial{
		{"commit_before_acknowledgement", 0, playUnwritten(atLeastOnce), lost},
		{"transaction_before_acknowledgement", 1, playUnwritten(exactlyOnce), lost},
		{"sequence_not_kept", 2, playUnanswered, doubled},
		{"restore_skipped", -1, playRestart, func(a audited) bool { return a.Wrong > 0 }},
		{"generation_fence_ignored", -1, playZombie, doubled},
		{"producer_fence_ignored", -1, playFenced, lost},
	}
}

// apart has the alerts led by the second broker, and nothing else that a pod
// needs.
func (st *stage) apart(t testing.TB, guarantee string) *world {
	t.Helper()
	others := []int32{1, 3}
	w := st.world(t, trialPartitions, guarantee, map[string][]int32{
		"market": others, "notes": others, "dead": others, "alerts": {2, 3},
	})
	for w.coordinator() == alertsLeader+1 {
		w.group = st.Name("group")
		w.settings["group.id"] = w.group
	}
	return w
}

const (
	alertsLeader    = 1 // from 0
	trialPartitions = 2
	trialSymbols    = 20
)

// keys are n keys in turn.
func keys(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = symbol(i % trialSymbols)
	}
	return all
}

func price(i int) string  { return fmt.Sprintf(`{"price": %d.5}`, i) }
func notice(i int) string { return fmt.Sprintf(`{"n": %d}`, i) }

// single starts a pod on a way of its own, -1: straight to the brokers, and has
// it join something.
func (w *world) single(t testing.TB, way int, binary string, settings map[string]string) *slot {
	t.Helper()
	s := w.place(t, way, binary, settings)
	w.send(t, w.market, keys(trialSymbols), price)
	w.send(t, w.notes, keys(trialSymbols), notice)
	s.start()
	w.awaitNoLag(s.alive)
	return s
}

// place is a slot whose pods may go straight to the brokers.
func (w *world) place(t testing.TB, way int, binary string, settings map[string]string) *slot {
	all := map[string]string{}
	maps.Copy(all, settings)
	if way < 0 {
		all["kafka.brokers"] = w.bootstrap()
		way = 0
	}
	return w.slot(t, way, binary, all)
}

// stopped stops a pod in order and audits what it and others have done.
func (w *world) stopped(t testing.TB, slots ...*slot) audited {
	t.Helper()
	for _, s := range slots {
		// One that has only just begun does not listen to signals yet.
		proc.Await(t, "the pod to be ready", s.ready)
	}
	for _, s := range slots {
		s.process().Signal(syscall.SIGTERM)
	}
	for _, s := range slots {
		if code := s.process().Wait(); code != 0 {
			t.Errorf("%s ended with %d after SIGTERM", s.process().Name, code)
		}
	}
	return w.audit(t)
}

func all(n int32) (partitions []int32) {
	for p := range n {
		partitions = append(partitions, p)
	}
	return partitions
}

// playUnwritten kills a pod whose alerts could not be written for a while.
func playUnwritten(guarantee string) func(*testing.T, *stage, int, string) audited {
	return func(t *testing.T, st *stage, way int, binary string) audited {
		w := st.apart(t, guarantee)
		s := w.single(t, way, binary, map[string]string{"delivery.commit_interval": "100ms"})
		id := ""
		for guarantee == exactlyOnce {
			id = s.transactionalID(t)
			if err := w.client.RefreshTransactionCoordinator(id); err != nil {
				t.Fatal(err)
			}
			broker, err := w.client.TransactionCoordinator(id)
			if err != nil {
				t.Fatal(err)
			}
			if broker.ID() != alertsLeader+1 {
				break
			}
			s.process().Kill()
			s.start() // under another id
			proc.Await(t, "the pod to be ready", s.ready)
		}
		if err := w.ways.toxic(way, alertsLeader, "timeout", `"timeout": 0`); err != nil {
			t.Fatal(err)
		}
		w.send(t, w.notes, keys(100), notice)
		s.awaitJoined(t, all(trialPartitions))
		// The joiner will never get there; who does is to be found out.
		err := pollFor(2*time.Second, func() error {
			open, err := w.uncommitted(all(trialPartitions))
			if err == nil && open {
				err = errors.New("not all is committed")
			}
			return err
		})
		t.Logf("the alerts could not be written, and their notifications' offsets: %v", err)
		s.process().Kill()
		w.ways.heal(way, alertsLeader)
		if id != "" { // or its heir waits until its transaction has timed out
			proc.Await(t, "the dead pod's transaction to end", func() error { return w.initProducer(id) })
		}
		s.start()
		w.awaitNoLag(s.alive)
		return w.stopped(t, s)
	}
}

// transactionalID is the process's.
func (s *slot) transactionalID(t testing.TB) (id string) {
	t.Helper()
	proc.Await(t, "the transactional id", func() error {
		lines := s.process().Logged("writing in transactions")
		if len(lines) == 0 {
			return errors.New("the pod has not told it")
		}
		id = lines[0].Text("transactional_id")
		return nil
	})
	return id
}

// playUnanswered loses the broker's word that alerts were written.
func playUnanswered(t *testing.T, st *stage, way int, binary string) audited {
	w := st.apart(t, atLeastOnce)
	s := w.single(t, way, binary, map[string]string{"delivery.commit_interval": "100ms", "delivery.linger": "200ms"})
	proc.Await(t, "alerts to be written whose answer is lost", func() error { return w.loseAnswer(t, way) })
	w.awaitNoLag(s.alive)
	return w.stopped(t, s)
}

// loseAnswer has the pod on this way write alerts, and keeps the answer from it.
// It is an error where none are written: a question about the topics may have
// been under way on that connection, on whose answer the next request waits, and
// each connection in its place would hang as well.
func (w *world) loseAnswer(t testing.TB, way int) error {
	t.Helper()
	if err := w.ways.toxic(way, alertsLeader, "timeout", `"timeout": 0`, "downstream"); err != nil {
		t.Fatal(err)
	}
	defer w.ways.heal(way, alertsLeader) // which ends the connection
	before, err := w.ends(w.alerts)
	if err != nil {
		return err
	}
	w.send(t, w.notes, keys(100), notice)
	// One request: the next one waits for its answer.
	return pollFor(5*time.Second, func() error {
		ends, err := w.ends(w.alerts)
		if err == nil && total(ends) <= total(before) {
			err = errors.New("there are none")
		}
		return err
	})
}

// playRestart kills a pod and asks its heir for prices from before.
func playRestart(t *testing.T, st *stage, way int, binary string) audited {
	w := st.world(t, trialPartitions, atLeastOnce, nil)
	s := w.single(t, way, binary, map[string]string{"delivery.commit_interval": "100ms"})
	s.process().Kill()
	s.start()
	proc.Await(t, "the pod to be ready", s.ready)
	// The citation of an alert passes these, and so the ticks from before.
	w.send(t, w.market, []string{"OTHER1", "OTHER2", "OTHER3", "OTHER4", "OTHER5", "OTHER6"}, price)
	w.awaitNoLag(s.alive)
	w.send(t, w.notes, keys(trialSymbols), notice)
	w.awaitNoLag(s.alive)
	return w.stopped(t, s)
}

// playZombie stops a pod whose alerts are ready but not committed, until another
// one has done its work, and then has it go on.
func playZombie(t *testing.T, st *stage, way int, binary string) audited {
	w := st.world(t, 2*trialPartitions, exactlyOnce, nil)
	w.send(t, w.market, keys(trialSymbols), price)
	settings := map[string]string{"delivery.commit_interval": "3s"}
	zombie, heir := w.place(t, way, binary, settings), w.place(t, way, binary, settings)
	for _, s := range []*slot{zombie, heir} {
		s.start()
	}
	var owned []int32
	proc.Await(t, "two pods to share the partitions", func() error {
		owned = zombie.owned()
		if len(owned) != trialPartitions || len(heir.owned()) != trialPartitions {
			return fmt.Errorf("they have %v and %v", owned, heir.owned())
		}
		return errors.Join(zombie.ready(), heir.ready())
	})
	w.send(t, w.notes, keys(trialSymbols), notice)
	w.awaitNoLag(zombie.alive)
	proc.Await(t, "a pod to have alerts that are not committed", func() error {
		w.send(t, w.notes, keys(100), notice)
		zombie.awaitJoined(t, owned)
		zombie.process().Signal(syscall.SIGSTOP)
		if open, err := w.uncommitted(owned); err == nil && open {
			return nil // what is pending in a transaction would be an error
		}
		zombie.process().Signal(syscall.SIGCONT)
		return errCommitted
	})
	w.awaitNoLag(heir.alive)
	before := len(zombie.process().Logged("assigned"))
	zombie.process().Signal(syscall.SIGCONT)
	proc.Await(t, "the pod that stood still to be back", func() error {
		if len(zombie.process().Logged("assigned")) == before {
			return errors.New("it is not in the group")
		}
		return errors.Join(zombie.ready(), heir.ready())
	})
	w.awaitNoLag(zombie.alive)
	return w.stopped(t, zombie, heir)
}

// playFenced takes a pod's producer away while it has alerts that are not
// committed.
func playFenced(t *testing.T, st *stage, way int, binary string) audited {
	w := st.world(t, trialPartitions, exactlyOnce, nil)
	s := w.single(t, way, binary, map[string]string{"delivery.commit_interval": "2s"})
	id := s.transactionalID(t)
	proc.Await(t, "a producer with alerts that are not committed to be taken away", func() error {
		w.send(t, w.notes, keys(50), notice)
		s.awaitJoined(t, all(trialPartitions))
		if err := poll("the producer to be taken away", func() error { return w.initProducer(id) }); err != nil {
			return err
		}
		if open, err := w.uncommitted(all(trialPartitions)); err != nil || !open {
			return errors.Join(errCommitted, err)
		}
		return nil
	})
	time.Sleep(3 * time.Second) // a transaction of theirs, and then others
	w.send(t, w.notes, keys(50), notice)
	w.awaitNoLag(s.alive)
	return w.stopped(t, s)
}
