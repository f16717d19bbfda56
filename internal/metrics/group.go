package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"joiner/internal/record"
)

// Move says which way a task went.
type Move uint8

// The directions of joiner_task_moves_total.
const (
	Gained Move = iota
	Lost
	Moves
)

func (m Move) String() string { return [Moves]string{"gained", "lost"}[m] }

// TaskState says what a task is at.
type TaskState uint8

// The states of joiner_tasks.
const (
	Restoring TaskState = iota
	Running
	Stalled
	TaskStates
)

func (s TaskState) String() string { return [TaskStates]string{"restoring", "running", "stalled"}[s] }

// Group is what the pod knows of its group.
type Group struct {
	Assigned   [record.Sides]prometheus.Gauge // partitions this pod owns
	Colocated  prometheus.Gauge               // indices of which this pod owns both topics' partitions
	Members    prometheus.Gauge
	Generation prometheus.Gauge

	Rebalances        prometheus.Counter
	Fenced            prometheus.Counter  // joins refused since another process has the instance id
	RebalanceDuration prometheus.Observer // seconds
	TaskMoves         [Moves]prometheus.Counter
	TaskPause         prometheus.Observer // seconds a task's partition went unprocessed because of a rebalance
	Tasks             [TaskStates]prometheus.Gauge

	topicPartitions *prometheus.GaugeVec
}

// SetTopicPartitions notes how many partitions a topic has. A topic without a
// known count has no series.
func (g *Group) SetTopicPartitions(topic string, n int32) {
	g.topicPartitions.WithLabelValues(topic).Set(float64(n))
}

func newGroup(f factory, topics [record.Sides]string) Group {
	g := Group{
		Colocated:  f.gauge("joiner_colocated_partitions", "Partition numbers of which this pod owns both topics' partitions."),
		Members:    f.gauge("joiner_group_members", "Members of the group, as the last assignment says."),
		Generation: f.gauge("joiner_group_generation", "Generation of the group that this pod is in."),
		Rebalances: f.NewCounter(prometheus.CounterOpts{
			Name: "joiner_rebalances_total",
			Help: "Rebalances that this pod took part in.",
		}),
		Fenced: f.NewCounter(prometheus.CounterOpts{
			Name: "joiner_group_fenced_total",
			Help: "Attempts to join the group that were refused because another process has this pod's group.instance_id.",
		}),
		RebalanceDuration: f.NewHistogram(histogram("joiner_rebalance_duration_seconds",
			"Time from joining the group again to having the assignment.", rebalanceBuckets)),
		TaskPause: f.NewHistogram(histogram("joiner_task_pause_seconds",
			"Time a task's partition went unprocessed because of a rebalance.", pauseBuckets)),
		topicPartitions: f.gauges("joiner_topic_partitions", "Partitions that the topic has.", "topic"),
	}
	assigned := f.gauges("joiner_assigned_partitions", "Partitions that this pod owns.", "topic")
	moves := f.counters("joiner_task_moves_total", "Tasks that came to this pod or left it.", "direction")
	tasks := f.gauges("joiner_tasks", "Tasks of this pod, by what they are at.", "state")
	for side, topic := range topics {
		g.Assigned[side] = assigned.WithLabelValues(topic)
	}
	for m := range Moves {
		g.TaskMoves[m] = moves.WithLabelValues(m.String())
	}
	for s := range TaskStates {
		g.Tasks[s] = tasks.WithLabelValues(s.String())
	}
	return g
}
