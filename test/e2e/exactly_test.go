package e2e

import (
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// exactly is the configuration under test, over Settings that are given.
func exactly(more Settings) Settings {
	all := Settings{"delivery.guarantee": "exactly_once", "group.session_timeout": "6s"}
	maps.Copy(all, more)
	return all
}

// Exactly once, whatever happens: under steady load the group grows and
// shrinks, a pod is killed between the offsets' commit and the end of its
// transaction, the coordinator's broker is killed. Each notification then has
// one alert that can be seen. That groups of any size give the same ones is for
// test/faults to show.
func TestKafkaExactlyOnce(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Private: true, Settings: []string{
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500",
	}})
	s := startScaledOn(NewWorldOn(t, c, scalePartitions, nil), 4, exactly(nil), 400, 80)

	s.step("4 to 5", 2, func() {
		p := s.Start(exactly(nil))
		s.pods, s.all = append(s.pods, p), append(s.all, p)
	})
	leaving := s.pods[0]
	indices, _, err := leaving.Owned()
	if err != nil {
		t.Fatal(err)
	}
	s.step("5 to 4", len(indices), func() {
		s.leave(leaving)
		if code := leaving.Stop(); code != 0 {
			t.Errorf("%s ended with %d after SIGTERM", leaving.Name, code)
		}
	})
	s.killInTransaction()
	s.killCoordinator(c)

	s.load.Stop()
	s.admin = nil // it may be on a connection that has gone
	s.AwaitNoLag()
	outcomes := s.transactions()
	s.pods.Stop()
	proof := s.ProveCommitted()
	t.Logf("%d notifications, %d alerts, %d doubled; transactions of the pods that are left: %v", proof.Notes, proof.Alerts, proof.Doubled(), outcomes)
	cut := outcomes["aborted"] + outcomes["fenced"] + s.movedOn()
	if outcomes["committed"] == 0 || cut == 0 {
		t.Errorf("%d transactions were committed, %d aborted or fenced: this run shows little", outcomes["committed"], cut)
	}
	if proof.Doubled() > 0 {
		t.Errorf("doubled: %v", proof.Copies)
	}
	if proof.Hits != proof.Notes || proof.Remote > 0 || proof.Revised > 0 {
		t.Errorf("of %d notifications %d are hits, %d of them remote; %d lack a tick that could be read before they were written",
			proof.Notes, proof.Hits, proof.Remote, proof.Revised)
	}
}

// killInTransaction kills a pod whose offsets are pending in a transaction.
func (s *scaled) killInTransaction() {
	s.t.Helper()
	victim := s.pods[0]
	indices, _, err := victim.Owned()
	if err != nil {
		s.t.Fatal(err)
	}
	ended := s.all.ClaimsEnded()
	pending := s.stopInTransaction(victim, indices)
	killed := time.Now()
	victim.Kill()
	s.leave(victim)
	owners := s.pods.AwaitBalanced(scalePartitions)
	s.t.Logf("killed with pending offsets of %v: its tasks run %v later, target: session timeout 6 s and two heartbeats, 7 s",
		pending, time.Since(killed).Round(time.Millisecond))
	if got := moved(s.owners, owners); !slices.Equal(got, indices) {
		s.t.Errorf("%v moved, the victim had %v", got, indices)
	}
	if n := s.all.ClaimsEnded() - ended; n > 0 {
		s.t.Errorf("%d claims ended in pods that stayed", n)
	}
	fenced := 0
	for _, p := range s.pods {
		fenced += len(p.Logged("the transactional producer of a member that has left is fenced"))
	}
	if fenced == 0 {
		s.t.Error("nobody has fenced the pod that died")
	}
	s.owners = owners
	time.Sleep(time.Second)
	gaps := s.tail.Gaps(killed, time.Now())
	isMoved := func(p int32) bool { return slices.Contains(indices, p) }
	s.t.Logf("longest gap between alerts: taken over %s; retained %s",
		spread(only(gaps, isMoved)), spread(only(gaps, func(p int32) bool { return !isMoved(p) })))
}

// stopInTransaction stops the process at a moment when offsets of these
// partitions are pending, and leaves it so.
func (s *scaled) stopInTransaction(p *Proc, indices []int32) (pending []int32) {
	s.t.Helper()
	client, err := sarama.NewClient(s.Brokers, s.Config())
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	await(s.t, p.Name+" to be in the middle of a transaction", func() error {
		p.Signal(syscall.SIGSTOP)
		first, err := s.pending(client, indices)
		if err == nil && len(first) > 0 {
			// What was on its way to the brokers has come by then.
			time.Sleep(200 * time.Millisecond)
			pending, err = s.pending(client, indices)
		}
		if len(pending) > 0 {
			return nil
		}
		p.Signal(syscall.SIGCONT)
		time.Sleep(30 * time.Millisecond)
		return fmt.Errorf("nothing is pending: %w", err)
	})
	return pending
}

// pending lists the partitions whose committed offset waits for a transaction.
func (s *scaled) pending(client sarama.Client, indices []int32) (pending []int32, err error) {
	coordinator, err := client.Coordinator(s.Group)
	if err != nil {
		return nil, err
	}
	request := sarama.NewOffsetFetchRequest(sarama.V2_8_0_0, s.Group, map[string][]int32{s.Notes: indices})
	request.RequireStable = true
	answer, err := coordinator.FetchOffset(request)
	if err != nil {
		return nil, err
	}
	for _, p := range indices {
		if block := answer.GetBlock(s.Notes, p); block != nil && block.Err == sarama.ErrUnstableOffsetCommit {
			pending = append(pending, p)
		}
	}
	return pending, nil
}

// killCoordinator kills the broker that coordinates the group, and starts it
// again.
func (s *scaled) killCoordinator(c *cluster.Cluster) {
	s.t.Helper()
	watch := s.watcher()
	ended := s.pods.ClaimsEnded()
	victim := watch.coordinator()
	from := time.Now()
	c.KillBroker(s.t, victim)
	watch.awaitMore(300)
	c.StartBroker(s.t, victim)
	watch.awaitInSync(s.Market, s.Notes, s.Alerts, "__consumer_offsets", "__transaction_state")
	watch.awaitMore(300)
	s.t.Logf("broker %d, the coordinator's, killed and started: longest gap between alerts %s", victim,
		spread(only(s.tail.Gaps(from, time.Now()), func(int32) bool { return true })))
	if n := s.pods.ClaimsEnded() - ended; n > 0 {
		s.t.Errorf("%d claims ended", n)
	}
}

// transactions counts the pods' transactions by outcome.
func (s *scaled) transactions() map[string]int {
	counts := make(map[string]int)
	for _, m := range s.pods.Metrics().Find("joiner_transactions_total") {
		counts[m.Labels["outcome"]] += int(m.Value)
	}
	return counts
}

// movedOn counts the transactions that the end of a generation has aborted, in
// all pods that there ever were.
func (s *scaled) movedOn() (n int) {
	for _, p := range s.all {
		n += len(p.Logged("the group has moved on, a transaction goes out again in its next generation"))
	}
	return n
}
