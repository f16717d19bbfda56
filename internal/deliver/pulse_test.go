package deliver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"joiner/internal/record"
)

// moves waits until every partition with outputs has been looked after, or waits
// for a broker, which is the broker's affair.
func moves(t *testing.T, w *Writer, want int) {
	t.Helper()
	before := make(map[string]uint64)
	for _, p := range w.Pulses() {
		before[p.Part] = p.Done
	}
	if len(before) != want {
		t.Fatalf("%d partitions with outputs, want %d", len(before), want)
	}
	seen := make(map[string]bool)
	eventually(t, "every partition has had a turn", func() bool {
		for _, p := range w.Pulses() {
			if p.Work == "" || p.Done != before[p.Part] {
				seen[p.Part] = true
			}
		}
		return len(seen) == want
	})
}

// Whatever keeps outputs waiting outside of this process, somebody here sees to
// them: a missing topic, a missing partition, a leader that is silent, brokers
// that are away.
func TestPulsesOfOutputsThatWait(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(2, "alerts"))
	proxy, conf := newProxy(t), producerConfig()
	conf.Net.Proxy.Enable, conf.Net.Proxy.Dialer = true, proxy
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), conf)})
	l := newLedger()
	w.Send(outputs(l, "alerts", 0, 0, 1))
	l.wait(t, 1)
	w.Send(outputs(l, "dlq", 0, 0, 3))
	w.Send(outputs(l, "alerts", 5, 3, 6))
	for range 3 {
		moves(t, w.Writer, 2)
	}
	proxy.cutAnswers(1 << 30)
	defer proxy.cutAnswers(0)
	w.Send(outputs(l, "alerts", 0, 0, 3))
	w.Send(outputs(l, "alerts", 1, 0, 3))
	for range 3 {
		moves(t, w.Writer, 4)
	}
	if n := len(l.told()); n != 1 {
		t.Errorf("%d outputs settled: the brokers were there", n)
	}
}

// owner takes the news of its outputs and does not come back.
type owner struct{ entered, gate chan struct{} }

func (o owner) Settled(*record.Output, error) {
	o.entered <- struct{}{}
	<-o.gate
}

func TestPulsesOfAWriterThatIsStuck(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "alerts"))
	w := runWriter(t, Options{Client: newClient(t, c.ListenAddrs(), producerConfig())})
	o := owner{make(chan struct{}, 1), make(chan struct{})}
	w.Send(outputs(o, "alerts", 0, 0, 1))
	<-o.entered
	l := newLedger()
	w.Send(outputs(l, "alerts", 1, 0, 2)) // its leader's sender is with the owner
	var first Pulse
	eventually(t, "work that nobody does", func() bool {
		for i := range 50 {
			all := w.Pulses()
			if len(all) != 1 || all[0].Work == "" || i > 0 && all[0] != first {
				return false // on its way to its leader's sender
			}
			first = all[0]
			time.Sleep(time.Millisecond)
		}
		return true
	})
	if first.Owner != l || first.Part != "outputs to alerts/1" {
		t.Errorf("%s of %v", first.Part, first.Owner)
	}
	close(o.gate)
	l.wait(t, 2)
	if all := w.Pulses(); len(all) > 0 {
		t.Errorf("nothing is left to be written: %v", all)
	}
	w.mu.Lock()
	all := w.Pulses()
	w.mu.Unlock()
	if len(all) != 1 || all[0].Work == "" {
		t.Errorf("a lock that is not given back: %v", all)
	}
}

func TestTurnsThatDoNotEnd(t *testing.T) {
	var c turns
	if p := c.pulse("committer"); p.Work != "" {
		t.Errorf("nothing is under way: %v", p)
	}
	c.begin(context.Background(), time.Hour)
	if p := c.pulse("committer"); p.Work != "" {
		t.Errorf("within its bound: %v", p)
	}
	c.begin(context.Background(), -time.Second)
	if p := c.pulse("committer"); p.Work == "" || p.Done != 0 || p.Owner != nil {
		t.Errorf("beyond its bound: %+v", p)
	}
	c.end()
	if p := c.pulse("committer"); p.Work != "" || p.Done != 1 {
		t.Errorf("it has ended: %+v", p)
	}
}

// A task that is handed over may wait for its commit longer than a periodic one
// does, by its configuration: brokers that are away for that long are no stall.
func TestACommitThatMayTakeLongIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := NewCommitter(CommitterOptions{
			Interval: time.Second, Timeout: 10 * time.Second,
			Topics: [record.Sides]string{"ticks", "notes"},
			Member: func() (Generation, bool) { return Generation{}, true },
			Commit: func(ctx context.Context, _ Generation, _ map[string]map[int32]int64) (map[string]map[int32]error, error) {
				<-ctx.Done() // the coordinator is away
				return nil, ctx.Err()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		go func() { _ = c.CommitNow(ctx, handedOver{}) }()
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		if p := c.Pulses()[0]; p.Work != "" {
			t.Errorf("within what it was given: %+v", p)
		}
	})
}

// handedOver is a task with something to commit.
type handedOver struct{}

func (handedOver) Index() int32 { return 3 }
func (handedOver) Cut() (record.Offsets, [record.Sides]bool) {
	return record.Offsets{1, 1}, [record.Sides]bool{true, true}
}
func (handedOver) Committed(record.Offsets) {}
