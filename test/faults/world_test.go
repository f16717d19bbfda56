package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
	"joiner/test/proc"
)

// world is what a run has for itself on the cluster.
type world struct {
	*cluster.Cluster
	ways *proxies

	market, notes, alerts, dead string
	group                       string
	partitions                  int32 // at the beginning
	settings                    map[string]string

	t      testing.TB
	client sarama.Client // past the proxies
}

// stage is what runs share.
type stage struct {
	*cluster.Cluster
	ways *proxies
}

// world makes topics and a group. place, where it is not nil, says which brokers
// have the replicas of a topic's partitions, the leader first, by role.
func (s *stage) world(t testing.TB, partitions int32, guarantee string, place map[string][]int32) *world {
	t.Helper()
	w := &world{
		Cluster: s.Cluster, ways: s.ways, t: t, partitions: partitions,
		market: s.Name("market"), notes: s.Name("notes"), alerts: s.Name("alerts"), dead: s.Name("dead"), group: s.Name("group"),
	}
	for role, topic := range map[string]string{"market": w.market, "notes": w.notes, "alerts": w.alerts, "dead": w.dead} {
		if place == nil {
			s.Topic(t, topic, partitions, nil)
			continue
		}
		w.placed(topic, partitions, place[role])
	}
	w.settings = map[string]string{
		"topics.market_updates": w.market, "topics.notifications": w.notes,
		"topics.enriched_alerts": w.alerts, "topics.dead_letters": w.dead,
		"group.id": w.group, "group.session_timeout": sessionTimeout.String(), "group.rebalance_timeout": "10s",
		"delivery.guarantee": guarantee, "kafka.metadata_refresh": "2s", "shutdown.timeout": "20s",
		"http.listen": "127.0.0.1:0", "peer.listen": "127.0.0.1:0",
	}
	client, err := sarama.NewClient(w.Brokers, cluster.Config())
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	w.client = client
	t.Cleanup(func() { _ = client.Close() })
	return w
}

// placed makes a topic whose partitions all lie on these brokers.
func (w *world) placed(topic string, partitions int32, replicas []int32) {
	w.t.Helper()
	all := make(map[int32][]int32)
	for p := range partitions {
		all[p] = replicas
	}
	w.administer("creating "+topic, func(admin sarama.ClusterAdmin) error {
		err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: -1, ReplicationFactor: -1, ReplicaAssignment: all}, false)
		if errors.Is(err, sarama.ErrTopicAlreadyExists) {
			return nil // the answer to the try before was lost
		}
		return err
	})
	w.t.Cleanup(func() {
		w.administer("removing "+topic, func(admin sarama.ClusterAdmin) error { return admin.DeleteTopic(topic) })
	})
	proc.Await(w.t, topic+" to have leaders", func() error { return inSync(w.Brokers, topic) })
}

// administer has an administrator of its own try until it succeeds: one that
// was made before a broker went may be on a connection that has gone.
func (w *world) administer(what string, do func(sarama.ClusterAdmin) error) {
	w.t.Helper()
	proc.Await(w.t, what, func() error {
		admin, err := sarama.NewClusterAdmin(w.Brokers, cluster.Config())
		if err != nil {
			return err
		}
		defer func() { _ = admin.Close() }()
		return do(admin)
	})
}

// inSync asks every broker whether all replicas of these topics are in sync.
func inSync(brokers []string, topics ...string) error {
	for _, address := range brokers {
		answer, err := metadata(address, topics...)
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
	}
	return nil
}

func metadata(address string, topics ...string) (*sarama.MetadataResponse, error) {
	broker := sarama.NewBroker(address)
	if err := broker.Open(cluster.Config()); err != nil {
		return nil, err
	}
	defer func() { _ = broker.Close() }()
	return broker.GetMetadata(sarama.NewMetadataRequest(sarama.V2_8_0_0, topics))
}

// coordinator is the number of the broker that coordinates the group, from 1.
func (w *world) coordinator() (id int) {
	w.t.Helper()
	proc.Await(w.t, "the coordinator of "+w.group, func() error {
		if err := w.client.RefreshCoordinator(w.group); err != nil {
			return err
		}
		broker, err := w.client.Coordinator(w.group)
		if err == nil {
			id = int(broker.ID())
		}
		return err
	})
	return id
}

// leaders counts the partitions of these topics by the broker that leads them.
func (w *world) leaders(topics ...string) map[int]int {
	w.t.Helper()
	counts := make(map[int]int)
	proc.Await(w.t, "the leaders of the topics", func() error {
		if err := w.client.RefreshMetadata(topics...); err != nil {
			return err
		}
		clear(counts)
		for _, topic := range topics {
			partitions, err := w.client.Partitions(topic)
			if err != nil {
				return err
			}
			for _, p := range partitions {
				leader, err := w.client.Leader(topic, p)
				if err != nil {
					return err
				}
				counts[int(leader.ID())]++
			}
		}
		return nil
	})
	return counts
}

// ends returns where each partition of the topic ends.
func (w *world) ends(topic string) (map[int32]int64, error) {
	if err := w.client.RefreshMetadata(topic); err != nil {
		return nil, err
	}
	partitions, err := w.client.Partitions(topic)
	if err != nil {
		return nil, err
	}
	ends := make(map[int32]int64, len(partitions))
	for _, p := range partitions {
		if ends[p], err = w.client.GetOffset(topic, p, sarama.OffsetNewest); err != nil {
			return nil, fmt.Errorf("end of %s/%d: %w", topic, p, err)
		}
	}
	return ends, nil
}

func total(ends map[int32]int64) (n int64) {
	for _, end := range ends {
		n += end
	}
	return n
}

// committed returns what the group has committed of the topic, -1 where nothing.
func (w *world) committed(topic string, partitions map[int32]int64) (map[int32]int64, error) {
	asked := slices.Sorted(maps.Keys(partitions))
	request := sarama.NewOffsetFetchRequest(sarama.V2_8_0_0, w.group, map[string][]int32{topic: asked})
	request.RequireStable = true // what waits for a transaction is an error
	coordinator, err := w.client.Coordinator(w.group)
	if err != nil {
		return nil, err
	}
	answer, err := coordinator.FetchOffset(request)
	if err == nil && answer.Err != sarama.ErrNoError {
		err = answer.Err
	}
	if err != nil {
		return nil, errors.Join(err, w.client.RefreshCoordinator(w.group))
	}
	have := make(map[int32]int64, len(asked))
	for _, p := range asked {
		have[p] = -1
		if block := answer.GetBlock(topic, p); block != nil {
			if block.Err != sarama.ErrNoError {
				return nil, block.Err
			}
			have[p] = block.Offset
		}
	}
	return have, nil
}

// lag is how much of both inputs is not committed.
func (w *world) lag() (lag int64, err error) {
	for _, topic := range []string{w.market, w.notes} {
		ends, err := w.ends(topic)
		if err != nil {
			return 0, err
		}
		committed, err := w.committed(topic, ends)
		if err != nil {
			return 0, err
		}
		for p, end := range ends {
			lag += end - max(committed[p], 0)
		}
	}
	return lag, nil
}

// awaitNoLag waits until both inputs are committed up to their ends. While that
// comes nearer it may take as long as it does.
func (w *world) awaitNoLag(alive func() error) {
	w.t.Helper()
	least, since := int64(1<<62), time.Now()
	for {
		lag, err := w.lag()
		switch {
		case err == nil && lag == 0:
			return
		case err == nil && lag < least:
			least, since = lag, time.Now()
		}
		if alive != nil {
			if err := alive(); err != nil {
				w.t.Fatal(err)
			}
		}
		if time.Since(since) > proc.Patience {
			w.t.Fatalf("the lag stays at %d for %v: %v", lag, proc.Patience, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// audited is what `joiner audit -o json` prints, as far as it is looked at here.
type audited struct {
	Notifications int64            `json:"notifications"`
	Alerts        int64            `json:"alerts"`
	Lost          int64            `json:"lost"`
	Doubled       int64            `json:"doubled"`
	Wrong         int64            `json:"wrong"`
	OutOfOrder    int64            `json:"out_of_order"`
	Foreign       int64            `json:"foreign"`
	Unverifiable  int64            `json:"unverifiable"`
	TicksLost     int64            `json:"ticks_lost"`
	DeadLettered  int64            `json:"dead_lettered"`
	Missed        int64            `json:"missed"`
	Unavailable   int64            `json:"unavailable"`
	Revised       int64            `json:"revised"`
	Examples      []map[string]any `json:"examples"`
}

func (a audited) String() string {
	return fmt.Sprintf("%d notifications, %d alerts: %d lost, %d doubled, %d wrong, %d out of order, %d foreign, %d unverifiable, %d ticks lost; %d missed, %d unavailable, %d revised, %d dead-lettered",
		a.Notifications, a.Alerts, a.Lost, a.Doubled, a.Wrong, a.OutOfOrder, a.Foreign, a.Unverifiable, a.TicksLost, a.Missed, a.Unavailable, a.Revised, a.DeadLettered)
}

// clean tells whether nothing is wrong.
func (a audited) clean() bool {
	return a.Lost+a.Doubled+a.Wrong+a.OutOfOrder+a.Foreign+a.Unverifiable+a.TicksLost+a.DeadLettered == 0
}

// audit runs `joiner audit`, past the proxies. The exit code must say what the
// figures do.
func (w *world) audit(t testing.TB) (a audited) {
	t.Helper()
	binary, err := proc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	settings := maps.Clone(w.settings)
	settings["kafka.brokers"] = w.bootstrap()
	cmd := exec.CommandContext(t.Context(), binary, "audit", "-o", "json", "--examples", "3")
	cmd.Dir, cmd.Env = t.TempDir(), proc.Environment(settings)
	began := time.Now()
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1 || len(out) == 0) {
		if failed != nil {
			t.Fatalf("joiner audit: %v\n%s", err, failed.Stderr)
		}
		t.Fatalf("joiner audit: %v", err)
	}
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("joiner audit: %v: %s", err, out)
	}
	code := cmd.ProcessState.ExitCode()
	t.Logf("audit (%v, exit code %d): %s", time.Since(began).Round(time.Millisecond), code, a)
	if bad := a.Lost+a.Doubled+a.Wrong+a.OutOfOrder+a.Foreign+a.TicksLost > 0; bad != (code == 1) {
		t.Errorf("joiner audit ends with %d and says: %s", code, out)
	}
	return a
}

func (w *world) bootstrap() string {
	list := ""
	for i, b := range w.Brokers {
		if i > 0 {
			list += ","
		}
		list += b
	}
	return list
}
