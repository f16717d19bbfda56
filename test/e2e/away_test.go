package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// awayFor is how long brokers stay away: short in CI, and as long as
// JOINER_TEST_AWAY says elsewhere (60s in make test-faults).
func awayFor(t *testing.T) (away time.Duration, long bool) {
	t.Helper()
	text := os.Getenv("JOINER_TEST_AWAY")
	if text == "" {
		return 10 * time.Second, false
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("JOINER_TEST_AWAY: %v", err)
	}
	return d, true
}

// Under load one broker is killed, then all of them stand still, each for
// several times group.stall_timeout: nobody's liveness fails, nothing is
// restarted, no offset passes an output that is not written, and once the brokers
// are back everything is joined, in order.
func TestKafkaBrokersAway(t *testing.T) {
	t.Parallel() // with others that have a cluster of their own: it waits more than it works
	const partitions = 3
	away, long := awayFor(t)
	c := cluster.Start(t, cluster.Options{Private: true, Settings: []string{
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500",
	}})
	w := NewWorldOn(t, c, partitions, nil)
	symbols := SymbolsOf(w, "S", partitions, 10)
	w.Seed(symbols)
	pods := w.Pods(2, Settings{"group.stall_timeout": "3s"})
	pods.AwaitBalanced(partitions)
	load := w.Steady(300, 60, symbols)
	watch := w.watcher()
	watch.awaitMore(60)

	cases := []struct {
		name      string
		gone      []int
		goes      func(testing.TB, int)
		comesBack func(testing.TB, int)
	}{
		{"the coordinator's broker is killed", []int{watch.coordinator()}, c.KillBroker, c.StartBroker},
		{"all brokers stand still", []int{1, 2, 3}, c.PauseBroker, c.ResumeBroker},
	}
	if !long {
		cases = cases[1:] // TestKafkaBrokerRestart has the other, for as long as it takes
	}
	for _, what := range cases {
		for _, n := range what.gone {
			what.goes(t, n)
		}
		looks, passes := 0, 0
		for from := time.Now(); time.Since(from) < away; time.Sleep(500 * time.Millisecond) {
			looks += alive(t, pods)
			if len(what.gone) < len(w.Brokers) {
				passes += watch.neverPassed()
			}
		}
		back := time.Now()
		for _, n := range what.gone {
			what.comesBack(t, n)
		}
		watch.awaitInSync(w.Market, w.Notes, w.Alerts, "__consumer_offsets")
		watch.awaitMore(60)
		if passes += watch.neverPassed(); passes == 0 {
			t.Error("nobody told which offsets were committed")
		}
		t.Logf("%s for %v: %d looks at /livez, %d at commits; alerts come again %v after it was over", what.name, away, looks, passes, time.Since(back).Round(time.Millisecond))
	}

	load.Stop()
	w.admin = nil // it may be on a connection that has gone
	w.AwaitNoLag()
	alive(t, pods)
	for _, p := range pods {
		if code, ended := p.Ended(); ended {
			t.Errorf("%s ended with %d", p.Name, code)
		}
		for _, l := range p.Logs() {
			if strings.HasPrefix(l.Msg(), "stalled") {
				t.Errorf("%s: %v", p.Name, l)
			}
		}
	}
	pods.Stop()
	w.awaitEnds()
	proof := w.Prove()
	t.Logf("%d notifications, %d alerts, %d doubled", proof.Notes, proof.Alerts, proof.Doubled())
	if proof.Hits != proof.Notes {
		t.Errorf("of %d notifications %d are hits", proof.Notes, proof.Hits)
	}
}

// awaitEnds waits until an administrator knows where everything is again: leaders
// go home a while after their brokers.
func (w *World) awaitEnds() {
	w.t.Helper()
	await(w.t, "the ends of all topics", func() error {
		w.admin = nil
		for _, topic := range []string{w.Market, w.Notes, w.Alerts} {
			if _, err := w.ends(topic); err != nil {
				return err
			}
		}
		return nil
	})
}

// alive looks at the pods' liveness once.
func alive(t *testing.T, pods Pods) (looks int) {
	t.Helper()
	for _, p := range pods {
		code, body, err := p.Get("/livez")
		if err != nil || code != http.StatusOK {
			t.Fatalf("%s: /livez %d %q %v", p.Name, code, body, err)
		}
		looks++
	}
	return looks
}

// neverPassed looks that every notification that the group counts as done has
// its alert: they are in the partition of the same number, one each at least. It
// looks at nothing, and returns 0, where no broker tells.
func (w *watcher) neverPassed() (looks int) {
	w.t.Helper()
	coordinator, err := w.client.Coordinator(w.Group)
	if err != nil {
		return 0
	}
	indices := make([]int32, 0, w.Partitions)
	for partition := range w.Partitions {
		indices = append(indices, partition)
	}
	request := sarama.NewOffsetFetchRequest(sarama.V2_8_0_0, w.Group, map[string][]int32{w.Notes: indices})
	answer, err := coordinator.FetchOffset(request)
	if err != nil {
		_ = w.client.RefreshCoordinator(w.Group) // the next look tells
		return 0
	}
	for partition := range w.Partitions {
		block := answer.GetBlock(w.Notes, partition)
		if block == nil || block.Err != sarama.ErrNoError {
			_ = w.client.RefreshCoordinator(w.Group)
			continue
		}
		end, err := w.client.GetOffset(w.Alerts, partition, sarama.OffsetNewest)
		if err != nil {
			continue
		}
		if end < block.Offset {
			w.t.Errorf("partition %d: %d notifications are committed, %d alerts are out", partition, block.Offset, end)
		}
		looks++
	}
	return looks
}
