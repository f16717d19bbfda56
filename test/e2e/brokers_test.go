package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// Brokers go and come back under load, the group's coordinator first: stopped
// in order and killed. With replication 3 nothing is lost, and while the
// session timeout has not passed no claim ends.
func TestKafkaBrokerRestart(t *testing.T) {
	t.Parallel() // with others that have a cluster of their own: it waits more than it works
	const partitions = 6
	// A killed broker's leaders move once it is thought dead: after 9 s by
	// default, which is most of a session timeout.
	c := cluster.Start(t, cluster.Options{Private: true, Settings: []string{
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500",
	}})
	w := NewWorldOn(t, c, partitions, nil)
	symbols := SymbolsOf(w, "S", partitions, 10)
	w.Seed(symbols)
	pods := w.Pods(2, Settings{"group.session_timeout": "30s", "group.stall_timeout": "3s"})
	owners := pods.AwaitBalanced(partitions)
	tail := w.Tail()
	load := w.Steady(500, 100, symbols)
	watch := w.watcher()
	watch.awaitMore(100)

	for _, how := range []string{"stopped", "killed"} {
		ended := pods.ClaimsEnded()
		victim := watch.coordinator()
		from := time.Now()
		if how == "stopped" {
			c.StopBroker(t, victim)
		} else {
			c.KillBroker(t, victim)
		}
		gone := time.Now()
		watch.awaitMore(200)
		passes := watch.neverPassed()
		alive(t, pods)
		c.StartBroker(t, victim)
		watch.awaitInSync(w.Market, w.Notes, w.Alerts, "__consumer_offsets")
		watch.awaitMore(200)
		if passes += watch.neverPassed(); passes == 0 {
			t.Error("nobody told which offsets were committed")
		}
		alive(t, pods)
		t.Logf("broker %d, the coordinator's, %s: longest gap between alerts %s; %v from the stop to all in sync again", victim, how,
			spread(only(tail.Gaps(from, time.Now()), func(int32) bool { return true })), time.Since(gone).Round(time.Millisecond))
		if n := pods.ClaimsEnded() - ended; n > 0 {
			t.Errorf("broker %d %s: %d claims ended", victim, how, n)
		}
	}

	load.Stop()
	w.admin = nil // it may be on a connection that has gone
	t.Logf("records written at worst %v apart", load.slowest.Round(time.Millisecond))
	w.AwaitNoLag()
	after := pods.AwaitBalanced(partitions)
	if indices := moved(owners, after); len(indices) > 0 {
		t.Errorf("%v moved", indices)
	}
	sampledWarnings(t, pods)
	pods.Stop()
	proof := w.Prove()
	t.Logf("%d notifications, %d alerts, %d doubled, %d revised", proof.Notes, proof.Alerts, proof.Doubled(), proof.Revised)
	if proof.Hits != proof.Notes {
		t.Errorf("of %d notifications %d are hits", proof.Notes, proof.Hits)
	}
	if proof.Doubled() > 0 {
		t.Errorf("%d alerts are doubled, though no task moved: %v", proof.Doubled(), proof.Copies)
	}
}

// watcher looks at the cluster while brokers go and come. An administrator
// would stay with a controller that has gone.
type watcher struct {
	*World
	client sarama.Client
}

func (w *World) watcher() *watcher {
	w.t.Helper()
	client, err := sarama.NewClient(w.Brokers, w.Config())
	if err != nil {
		w.t.Fatalf("client: %v", err)
	}
	w.t.Cleanup(func() { _ = client.Close() })
	return &watcher{w, client}
}

// coordinator is the number of the broker that coordinates the group.
func (w *watcher) coordinator() (id int) {
	w.t.Helper()
	await(w.t, "the coordinator of "+w.Group, func() error {
		if err := w.client.RefreshCoordinator(w.Group); err != nil {
			return err
		}
		broker, err := w.client.Coordinator(w.Group)
		if err == nil {
			id = int(broker.ID())
		}
		return err
	})
	return id
}

func (w *watcher) alerts() (n int64, err error) {
	for partition := range w.Partitions {
		end, err := w.client.GetOffset(w.Alerts, partition, sarama.OffsetNewest)
		if err != nil {
			return 0, err
		}
		n += end
	}
	return n, nil
}

// awaitMore waits until that many alerts more have come out.
func (w *watcher) awaitMore(more int64) {
	w.t.Helper()
	from := int64(-1)
	await(w.t, fmt.Sprintf("%d alerts more", more), func() error {
		n, err := w.alerts()
		if err != nil {
			return err
		}
		if from < 0 {
			from = n
		}
		if n < from+more {
			return fmt.Errorf("%d have come", n-from)
		}
		return nil
	})
}

// awaitInSync waits until every replica of these topics is in sync.
func (w *watcher) awaitInSync(topics ...string) {
	w.t.Helper()
	await(w.t, "all replicas to be in sync", func() error {
		for _, address := range w.Brokers {
			if err := inSync(address, topics); err != nil {
				return err
			}
		}
		return nil
	})
}

// inSync asks one broker.
func inSync(address string, topics []string) error {
	broker := sarama.NewBroker(address)
	if err := broker.Open(cluster.Config()); err != nil {
		return err
	}
	defer func() { _ = broker.Close() }()
	answer, err := broker.GetMetadata(sarama.NewMetadataRequest(sarama.V2_8_0_0, topics))
	if err != nil {
		return err
	}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if p.Err != sarama.ErrNoError || len(p.Isr) < len(p.Replicas) {
				return fmt.Errorf("%s/%d: %d of %d replicas, %w", topic.Name, p.ID, len(p.Isr), len(p.Replicas), p.Err)
			}
		}
	}
	return nil
}

// sampledWarnings looks that the outages have left a trace in the logs, and not
// one line for every failure.
func sampledWarnings(t *testing.T, pods Pods) {
	t.Helper()
	const many = 200
	warnings, suppressed := make(map[string]int), int64(0)
	total := 0
	for _, p := range pods {
		for _, l := range p.Logs() {
			if l.Text("level") != "warn" {
				continue
			}
			total++
			warnings[l.Msg()]++
			suppressed += max(l.Number("suppressed"), 0)
		}
	}
	if total == 0 {
		t.Error("no warning tells of the brokers that were away")
	}
	if total > many {
		t.Errorf("%d warnings: %v", total, warnings)
	}
	names := make([]string, 0, len(warnings))
	for name, n := range warnings {
		names = append(names, fmt.Sprintf("%d × %s", n, name))
	}
	slices.Sort(names)
	t.Logf("%d warnings, %d suppressed: %q", total, suppressed, names)
}
