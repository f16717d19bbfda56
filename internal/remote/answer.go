package remote

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"joiner/internal/assign"
	"joiner/internal/task"
)

// Group is what this pod knows of itself and of its group. Its methods are
// called from any goroutine and must not block.
type Group interface {
	// Standing is this pod's place in the group; false while it has none, or
	// not all of it is known.
	Standing() (Standing, bool)
	// Alive reports whether the group's coordinator has taken this member for
	// alive within the session timeout.
	Alive() bool
	// Owns reports whether the newest assignment gives this pod the market
	// partition.
	Owns(partition int32) bool
	// Table is what answers for a partition of this pod, nil where nothing does
	// yet.
	Table(partition int32) Table
	// Directory says who owns what; nil where nobody has told.
	Directory() *assign.Directory
	// Partitions is how many the market topic has; 0 unknown.
	Partitions() int32
}

// Standing is a pod's place in its group.
type Standing struct {
	Cluster    string // the Kafka cluster's id
	Group      string
	Topic      string // of market updates
	TopicID    string // empty on both sides where the brokers know none
	Generation int32  // of the newest assignment
	Self       string // the pod's stable identity
}

func (s Standing) scope() scope {
	return scope{cluster: s.Cluster, group: s.Group, topic: s.Topic, topicID: s.TopicID, generation: s.Generation}
}

// Table answers for one market partition; *task.Task is one.
type Table interface {
	Lookup(ctx context.Context, q task.Query, done func(task.Answer)) task.Ticket
	Newest(symbol []byte) task.Answer
	State() task.State
	Freezing() bool
}

// answerer answers requests from this pod's tables.
type answerer struct{ group Group }

// Why a pod must not answer. The first three pass: they are part of every
// rebalance.
const (
	whyNoAssignment = "it has no assignment"
	whyGeneration   = "it is in another generation"
	whySilence      = "it does not know whether it is still in the group"
	whyCluster      = "it is in another cluster"
	whyGroup        = "it is in another group"
	whyTopic        = "it joins another market topic"
	whyTopicID      = "its market topic is another one of the same name"
	whyMember       = "it is another member"
	whyHops         = "too many hints were followed"
)

// passing reports whether a refusal says no more than that things are moving.
func passing(why string) bool {
	return why == whyNoAssignment || why == whyGeneration || why == whySilence
}

// refuses says why this pod must not answer the request; empty where it may.
func (a answerer) refuses(r *request) string {
	s, ok := a.group.Standing()
	switch {
	case !ok:
		return whyNoAssignment
	case r.cluster != s.Cluster:
		return whyCluster
	case r.group != s.Group:
		return whyGroup
	case r.topic != s.Topic:
		return whyTopic
	case r.topicID != s.TopicID:
		return whyTopicID
	case r.to != s.Self:
		return whyMember
	case r.hops > MaxHops:
		return whyHops
	case r.generation != s.Generation:
		return whyGeneration
	case !a.group.Alive():
		return whySilence
	}
	return ""
}

// answer answers within ctx. What is not answered by then is outTimeout.
func (a answerer) answer(ctx context.Context, r *request) response {
	if why := a.refuses(r); why != "" {
		return a.refusal(r, why)
	}
	n := len(r.asked)
	g := &gathering{replies: make([]reply, n), tables: make([]Table, n), tickets: make([]task.Ticket, n), all: make(chan struct{})}
	g.open.Add(1)
	for i := range r.asked {
		a.begin(ctx, r, i, g)
	}
	g.ended() // this loop's own share
	select {
	case <-g.all:
	case <-ctx.Done():
	}
	replies := g.close()
	// A look-up takes time: by now everything may belong to somebody else.
	if why := a.refuses(r); why != "" {
		return a.refusal(r, why)
	}
	for i := range replies {
		if replies[i].outcome == outTimeout {
			replies[i].ticket = g.tickets[i]
		}
		if g.tables[i] != nil && !a.still(r.asked[i].partition, g.tables[i]) {
			replies[i] = a.moved(r.asked[i].partition)
		}
	}
	return response{answerer: r.to, replies: replies}
}

// begin sets off the answer to one question.
func (a answerer) begin(ctx context.Context, r *request, i int, g *gathering) {
	q := &r.asked[i]
	if !a.group.Owns(q.partition) {
		g.replies[i] = a.moved(q.partition)
		return
	}
	table := a.group.Table(q.partition)
	switch {
	case table == nil || table.State() < task.Running && !table.Freezing():
		g.replies[i] = reply{outcome: outRestoring}
		return
	case table.Freezing():
		g.replies[i] = a.moved(q.partition)
		return
	}
	g.tables[i] = table
	if q.now {
		g.replies[i] = replyOf(table.Newest([]byte(q.symbol)))
		return
	}
	g.open.Add(1)
	query := task.Query{Symbol: q.symbol, Partition: q.partition, At: q.at, Since: time.Now().Add(-q.age), Ticket: q.ticket}
	g.tickets[i] = table.Lookup(ctx, query, func(answer task.Answer) {
		g.set(i, replyOf(answer))
		g.ended()
	})
}

// still reports whether table is what answers for the partition.
func (a answerer) still(partition int32, table Table) bool {
	return a.group.Owns(partition) && a.group.Table(partition) == table && !table.Freezing()
}

// moved says who owns the partition, if the directory knows another pod.
func (a answerer) moved(partition int32) reply {
	s, ok := a.group.Standing()
	m := a.hint(s, partition)
	if !ok || m.owner.id == s.Self {
		return reply{outcome: outMoved}
	}
	return m
}

// hint says who owns the partition, be it this pod.
func (a answerer) hint(s Standing, partition int32) reply {
	d := a.group.Directory()
	owner, ok := d.Owner(s.Topic, partition)
	if !ok || owner.Address == "" {
		return reply{outcome: outMoved}
	}
	return reply{outcome: outMoved, owner: pod{owner.ID, owner.Address}, since: d.Generation}
}

// refusal is the answer of a pod that must not answer. Only to those who mean
// this very group does it say who owns what: itself, too, to those who have not
// heard of its generation yet.
func (a answerer) refusal(r *request, why string) response {
	out := response{refusal: why, replies: make([]reply, len(r.asked))}
	s, ok := a.group.Standing()
	if ok {
		out.answerer = s.Self
	}
	same := r.scope
	same.generation = s.Generation
	kin := ok && same == s.scope() && r.hops < MaxHops && r.generation <= s.Generation
	for i := range out.replies {
		out.replies[i] = reply{outcome: outMoved}
		if !kin {
			continue
		}
		if h := a.hint(s, r.asked[i].partition); h.owner.id != s.Self || r.generation < h.since {
			out.replies[i] = h
		}
	}
	return out
}

func replyOf(a task.Answer) reply {
	switch a.Outcome {
	case task.Found:
		return reply{
			outcome: outFound, text: a.Price.Text, eventTime: a.Price.EventTime, offset: a.Price.Offset,
			asOf: a.AsOf, partition: a.Partition, next: a.Next,
		}
	case task.NoPrice:
		return reply{outcome: outNoPrice, partition: a.Partition, next: a.Next, held: a.Held}
	case task.Unready:
		return reply{outcome: outRestoring}
	case task.Busy:
		return reply{outcome: outOverload}
	case task.Unanswered:
		return reply{outcome: outTimeout}
	}
	return reply{outcome: outMoved}
}

// gathering collects the answers to one request until it is closed.
type gathering struct {
	tables  []Table       // who answers; nil where the reply was there at once
	tickets []task.Ticket // of those questions
	open    atomic.Int64
	all     chan struct{} // closed when nothing is open

	mu      sync.Mutex
	closed  bool
	replies []reply
}

func (g *gathering) set(i int, r reply) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.replies[i] = r
	}
}

func (g *gathering) ended() {
	if g.open.Add(-1) == 0 {
		close(g.all)
	}
}

// close takes the answers; those that come later are dropped.
func (g *gathering) close() []reply {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for i := range g.replies {
		if g.replies[i].outcome == 0 {
			g.replies[i].outcome = outTimeout
		}
	}
	return g.replies
}
