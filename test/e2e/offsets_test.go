package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/resume"
)

// gonePartitions is how many partitions each topic of these tests has.
const gonePartitions = 2

// gone is what a test of offsets that are gone works on: two groups, one under
// each guarantee, that read the same inputs.
type gone struct {
	*World
	groups []*group
	tick   int64 // the newest event time written
	notes  int   // written so far, for their keys' values
	began  time.Time
}

// group is one pod of one group, and what is known of it.
type group struct {
	*World
	pod    *Proc
	more   Settings
	alerts int64 // that have to be there
	marks  int64 // records of the test's own among them, which come from nowhere
}

func newGone(w *World) *gone {
	g := &gone{World: w, tick: time.Now().Add(-time.Hour).UnixMilli(), began: time.Now()}
	quick := Settings{"delivery.commit_interval": "100ms", "kafka.metadata_refresh": "1s"}
	g.groups = []*group{
		{World: w, more: quick},
		{World: w.Beside(), more: exactly(quick)},
	}
	return g
}

func (g *gone) step(format string, args ...any) {
	g.t.Helper()
	g.t.Logf("%5.1fs %s", time.Since(g.began).Seconds(), fmt.Sprintf(format, args...))
}

func (g *gone) start() {
	g.t.Helper()
	for _, x := range g.groups {
		x.pod = x.Start(x.more)
	}
	for _, x := range g.groups {
		x.pod.WaitReady()
	}
}

func (g *gone) stop() {
	g.t.Helper()
	for _, x := range g.groups {
		if code := x.pod.Stop(); code != 0 {
			g.t.Errorf("%s ended with %d", x.pod.Name, code)
		}
	}
}

// symbol is one of that name that belongs to the partition.
func (g *gone) symbol(name string, partition int32) string {
	for i := 0; ; i++ {
		if s := fmt.Sprint(name, i); g.Home(s) == partition {
			return s
		}
	}
}

// ticks writes n ticks of a symbol to each partition, each with another price;
// the last is price.
func (g *gone) ticks(symbol string, n int, price int) {
	g.t.Helper()
	var all []Record
	for i := range n {
		g.tick++
		for p := range int32(gonePartitions) {
			all = append(all, Record{
				Key: g.symbol(symbol, p), Value: fmt.Sprintf(`{"price":%d}`, price-n+1+i), Time: g.tick,
			}.At(p))
		}
	}
	g.Send(g.Market, all...)
}

// notify writes n notifications of a symbol to each partition.
func (g *gone) notify(symbol string, n int) {
	g.t.Helper()
	var all []Record
	for range n {
		g.notes++
		for p := range int32(gonePartitions) {
			all = append(all, Record{Key: g.symbol(symbol, p), Value: fmt.Sprintf(`{"n":%d}`, g.notes), Time: g.tick}.At(p))
		}
	}
	g.Send(g.Notes, all...)
}

// caughtUp waits until both groups have read and committed everything, and have
// written as many alerts more, by partition, as alerts says since it was last
// asked; 0: any number.
func (g *gone) caughtUp(alerts int) {
	g.t.Helper()
	for _, x := range g.groups {
		x.AwaitNoLag()
		x.alerts += int64(alerts * gonePartitions)
		var got int64
		await(g.t, fmt.Sprintf("%d alerts of %s", x.alerts, x.pod.Name), func() error {
			got, x.marks = 0, x.marks+gonePartitions
			for _, all := range x.ReadVisible(x.Alerts) {
				got += int64(len(all))
			}
			if got < x.alerts {
				return fmt.Errorf("%d are there", got)
			}
			return nil
		})
		if alerts > 0 && got > x.alerts {
			g.t.Errorf("%s: %d alerts, want %d", x.pod.Name, got, x.alerts)
		}
		x.alerts = got
	}
}

// resets checks what the pods have counted and logged of offsets that are gone
// since they started, by topic.
func (g *gone) resets(market, notes int, check func(Line) error) {
	g.t.Helper()
	for _, x := range g.groups {
		want := map[string]int{g.Market: market, g.Notes: notes}
		var lines []Line
		await(g.t, fmt.Sprintf("%s to count %v resets", x.pod.Name, want), func() error {
			m := x.pod.Metrics()
			for topic, n := range want {
				if got := int(m.Sum("joiner_offset_resets_total", "topic", topic)); got != n {
					return fmt.Errorf("%d of %s", got, topic)
				}
			}
			return nil
		})
		have := map[string]int{g.Market: 0, g.Notes: 0}
		lines = x.resetLines()
		for _, l := range lines {
			have[l.Text("topic")]++
			if err := check(l); err != nil {
				g.t.Errorf("%s: %v: %v", x.pod.Name, err, l)
			}
		}
		if !maps.Equal(want, have) {
			g.t.Errorf("%s: %v resets are logged, want %v", x.pod.Name, have, want)
		}
	}
}

func (x *group) resetLines() (lines []Line) {
	for _, l := range x.pod.Logs() {
		if l.Text("why") != "" {
			lines = append(lines, l)
		}
	}
	return lines
}

func because(why string) func(Line) error {
	return func(l Line) error {
		if l.Text("why") != why {
			return fmt.Errorf("a reset for another reason than %s", why)
		}
		return nil
	}
}

// price checks the price of a symbol at all pods, as text; "" is none.
func (g *gone) price(symbol, want string) {
	g.t.Helper()
	for p := range int32(gonePartitions) {
		name := g.symbol(symbol, p)
		for _, x := range g.groups {
			await(g.t, fmt.Sprintf("%s to have the price %q of %s", x.pod.Name, want, name), func() error {
				status, body, err := x.pod.Get("/v1/prices?" + url.Values{"symbol": {name}}.Encode())
				if err != nil {
					return err
				}
				var got struct {
					Price json.Number `json:"price"`
				}
				if err := json.Unmarshal(body, &got); err != nil {
					return fmt.Errorf("%d %s: %w", status, body, err)
				}
				if want == "" && status != http.StatusNotFound || string(got.Price) != want {
					return fmt.Errorf("%d %s", status, body)
				}
				return nil
			})
		}
	}
}

// remake deletes a topic and makes it anew.
func (g *gone) remake(topic string) { g.t.Helper(); g.remakeWith(topic, gonePartitions) }

func (g *gone) remakeWith(topic string, partitions int32) {
	g.t.Helper()
	if err := g.Admin().DeleteTopic(topic); err != nil {
		g.t.Fatal(err)
	}
	await(g.t, topic+" to be made anew", func() error {
		err := g.Admin().CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1}, false)
		if errors.Is(err, sarama.ErrTopicAlreadyExists) {
			return errors.New("the old one is still there")
		}
		return err
	})
	if err := g.AwaitTopic(topic, partitions); err != nil {
		g.t.Fatal(err)
	}
}

// deleteUpTo deletes all records of the topic but the last keep of each
// partition.
func (g *gone) deleteUpTo(topic string, keep int64) {
	g.t.Helper()
	ends := g.Ends(topic)
	for p := range ends {
		ends[p] -= keep
	}
	if err := g.Admin().DeleteRecords(topic, ends); err != nil {
		g.t.Fatal(err)
	}
}

// commits returns what a group has committed of a topic, labels included.
func (x *group) commits(topic string) map[int32]*sarama.OffsetFetchResponseBlock {
	x.t.Helper()
	answer, err := x.Admin().ListConsumerGroupOffsets(x.Group, map[string][]int32{topic: {0, 1}})
	if err != nil {
		x.t.Fatal(err)
	}
	return answer.Blocks[topic]
}

// commit puts offsets back that a group without members had committed.
func (x *group) commit(topic string, blocks map[int32]*sarama.OffsetFetchResponseBlock) {
	x.t.Helper()
	client, err := sarama.NewClient(x.Brokers, x.Config())
	if err != nil {
		x.t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	await(x.t, "offsets to be committed again", func() error {
		coordinator, err := client.Coordinator(x.Group)
		if err != nil {
			return err
		}
		request := sarama.NewOffsetCommitRequest(client.Config(), x.Group)
		request.ConsumerGroupGeneration = -1
		for p, b := range blocks {
			request.AddBlockWithLeaderEpoch(topic, p, b.Offset, -1, 0, b.Metadata)
		}
		answer, err := coordinator.CommitOffset(request)
		if err != nil {
			return err
		}
		for _, byPartition := range answer.Errors {
			for _, err := range byPartition {
				if err != sarama.ErrNoError {
					return err
				}
			}
		}
		return nil
	})
}

// Records that are deleted and topics that are made anew, under both guarantees,
// while the pods are down and while they run: everything goes on by the rule,
// each move is counted and told, and no price outlives its topic.
func TestKafkaOffsetsGone(t *testing.T) {
	g := newGone(NewWorld(t, gonePartitions, nil))
	g.start()
	g.ticks("A", 20, 100)
	g.notify("A", 20)
	g.caughtUp(20)
	g.resets(0, 0, because("none"))
	labels := map[string]map[int32]*sarama.OffsetFetchResponseBlock{}
	for _, x := range g.groups {
		labels[x.Group] = x.commits(g.Notes)
		for p, b := range labels[x.Group] {
			l := resume.ParseLabel(b.Metadata)
			if l.TopicID == "" || l.OtherID == "" || l.OtherID == l.TopicID || l.OtherOffset < 0 || b.Offset != 20 {
				t.Errorf("%s/%d: committed %d with the label %q", g.Notes, p, b.Offset, b.Metadata)
			}
		}
	}

	g.step("records are deleted past a lagging group that is down")
	g.stop()
	g.ticks("A", 10, 200)
	g.notify("A", 10)
	g.deleteUpTo(g.Market, 3)
	g.deleteUpTo(g.Notes, 3)
	g.start()
	g.caughtUp(3)
	g.resets(gonePartitions, gonePartitions, func(l Line) error {
		if l.Text("why") != "below_start" || l.Number("committed") != 20 || l.Number("from") != 20 || l.Number("to") != 27 ||
			l.Number("skipped") != 7 || l.Number("log_start") != 27 || l.Number("log_end") != 30 {
			return errors.New("not 20 to 27")
		}
		return nil
	})
	g.price("A", "200")

	g.step("records are deleted past pods that run and lag")
	g.overtake()
	g.price("A", "300")

	for _, x := range g.groups {
		// What was deleted unread has no alert, and those of before no source.
		r, _ := x.Audit(x.more)
		if r.Wrong > 0 || r.Lost > 0 || r.OutOfOrder > 0 || r.Foreign != x.marks || r.Notifications != 3*gonePartitions || r.Unverifiable == 0 {
			t.Errorf("%s: the audit after records were deleted: %+v", x.Group, r)
		}
	}

	g.step("the market topic is made anew while pods run, and reaches further than before")
	g.remake(g.Market)
	g.ticks("B", 60, 400)
	g.price("B", "400")
	g.price("A", "") // the table was emptied
	g.notify("B", 5)
	g.caughtUp(5)
	g.recreated(g.Market, gonePartitions)

	g.step("the notifications are made anew while pods stand still, and reach further than before")
	g.signal(syscall.SIGSTOP)
	g.remake(g.Notes)
	g.notify("B", 70) // the old one had 40
	time.Sleep(2500 * time.Millisecond)
	g.signal(syscall.SIGCONT)
	g.caughtUp(70)
	g.recreated(g.Notes, gonePartitions)
	g.price("B", "400")

	g.step("topics are made anew while pods are down; Kafka deletes their offsets")
	g.stop()
	old := map[string]map[int32]*sarama.OffsetFetchResponseBlock{}
	for _, x := range g.groups {
		old[x.Group] = x.commits(g.Market)
	}
	g.remake(g.Notes)
	g.notify("B", 90)
	for _, x := range g.groups {
		for p, b := range x.commits(g.Notes) {
			t.Logf("%s: offset %d of %s/%d after the topic was deleted", x.Group, b.Offset, g.Notes, p)
		}
	}
	g.start()
	g.caughtUp(90)
	g.resets(0, gonePartitions, because("recreated"))

	g.step("the market topic is made anew while pods are down, and its offsets survive")
	g.stop()
	g.remake(g.Market)
	g.ticks("C", 80, 500) // further than what was committed
	for _, x := range g.groups {
		x.commit(g.Market, old[x.Group])
	}
	g.notify("C", 4)
	g.start()
	g.caughtUp(4)
	g.resets(gonePartitions, 0, func(l Line) error {
		if l.Text("why") != "recreated" || l.Number("committed") != 60 || l.Number("from") != 60 || l.Number("to") != 0 || l.Number("log_end") != 80 {
			return errors.New("not from 60 to 0")
		}
		return nil
	})
	g.price("C", "500")
	g.price("B", "")

	g.step("offsets of a tool, without a label, above the end")
	g.stop()
	for _, x := range g.groups {
		far := map[int32]*sarama.OffsetFetchResponseBlock{0: {Offset: 1000}, 1: {Offset: 1000}}
		x.commit(g.Market, far)
		x.commit(g.Notes, far)
	}
	g.start()
	g.resets(gonePartitions, gonePartitions, because("truncated"))
	g.notify("C", 6)
	g.caughtUp(6) // those before the start are not joined again
	g.price("C", "500")
	g.step("done")
	g.stop()
}

// overtake deletes records that pods which stand still have not read. A fetch
// that was under way may have brought them all the same: then it is tried again.
func (g *gone) overtake() {
	g.t.Helper()
	for range 10 {
		before := make([]int, len(g.groups))
		for i, x := range g.groups {
			before[i] = len(x.resetLines())
		}
		g.signal(syscall.SIGSTOP)
		time.Sleep(time.Second)
		g.ticks("A", 10, 300)
		g.notify("A", 10)
		g.deleteUpTo(g.Market, 3)
		g.deleteUpTo(g.Notes, 3)
		g.signal(syscall.SIGCONT)
		all := true
		for i, x := range g.groups {
			x.AwaitNoLag()
			lines := x.resetLines()
			all = all && len(lines)-before[i] == 2*gonePartitions
			for _, l := range lines {
				if l.Text("why") != "below_start" || l.Number("to")-l.Number("from") != l.Number("skipped") || l.Number("to") != l.Number("log_start") {
					g.t.Errorf("%s: %v", x.pod.Name, l)
				}
			}
		}
		g.caughtUp(0)
		if all {
			return
		}
	}
	g.t.Fatal("records were always read before they were deleted")
}

// recreated waits until every pod has told so many resets of a topic made anew.
func (g *gone) recreated(topic string, n int) {
	g.t.Helper()
	for _, x := range g.groups {
		await(g.t, fmt.Sprintf("%s to tell of %d partitions of %s made anew", x.pod.Name, n, topic), func() error {
			have := 0
			for _, l := range x.resetLines() {
				if l.Text("topic") == topic && l.Text("why") == "recreated" {
					have++
				}
			}
			if have != n {
				return fmt.Errorf("%d are", have)
			}
			return nil
		})
	}
}

func (g *gone) signal(s syscall.Signal) {
	g.t.Helper()
	for _, x := range g.groups {
		x.pod.Signal(s)
	}
}
