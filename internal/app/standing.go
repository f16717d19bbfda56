package app

import (
	"errors"
	"slices"

	"github.com/IBM/sarama"

	"joiner/internal/assign"
	"joiner/internal/kafka"
	"joiner/internal/member"
	"joiner/internal/record"
	"joiner/internal/stall"
	"joiner/internal/status"
	"joiner/internal/task"
)

// standing is what this pod knows now, for /v1/status and for other pods that
// ask. It waits for nobody.
func (a *App) standing() status.Local {
	s := a.member.Status()
	ready := a.Ready()
	l := status.Local{
		Part: status.Part{
			Format: status.Format,
			Group:  a.o.Config.Group.ID, Generation: s.Session.Generation,
			ID: a.o.Identity, Instance: a.o.Config.Group.InstanceID, Address: a.address(),
			Ready: ready.Ready, Reasons: ready.Reasons, Notes: ready.Notes,
			Tasks: []status.Task{},
			Joins: a.joins(),
			Hot:   a.hot(),
		},
		Strategy: a.o.Config.Group.Strategy, Topics: a.topics, Directory: goesBy(&s, a.o.Identity),
	}
	for _, t := range s.Tasks {
		l.Part.Tasks = append(l.Part.Tasks, a.taskOf(t))
	}
	for _, index := range s.Starting {
		l.Part.Tasks = append(l.Part.Tasks, a.starting(index, s.Owned))
	}
	return l
}

// goesBy is the directory that this pod goes by. One that has lost its
// instance id to another process (KIP-345) owns nothing any more, and knows
// nobody else's address for that name: its last directory calls it the owner.
func goesBy(s *member.Status, self string) *assign.Directory {
	if s.Directory == nil || !errors.Is(s.LastError, sarama.ErrFencedInstancedId) {
		return s.Directory
	}
	d := *s.Directory
	d.Members = slices.DeleteFunc(slices.Clone(d.Members), func(m assign.Member) bool { return m.ID == self })
	d.Owners = make(map[string][]string, len(s.Directory.Owners))
	for topic, owners := range s.Directory.Owners {
		owners = slices.Clone(owners)
		for p, owner := range owners {
			if owner == self {
				owners[p] = ""
			}
		}
		d.Owners[topic] = owners
	}
	return &d
}

// address is where other pods ask this one.
func (a *App) address() string {
	p := a.o.Config.Peer
	if addr := a.PeerAddr(); addr != nil {
		p = withPort(p, addr)
	}
	return Advertised(p)
}

func (a *App) joins() status.Joins {
	j := status.NewJoins()
	for l, results := range a.metrics.JoinCounts() {
		for r, n := range results {
			j[record.Locality(l).String()][record.Result(r).String()] = n
		}
	}
	return j
}

// hotKeys is how many of its keys a pod tells of: enough for one that is hot in
// several pods to be found in each.
const hotKeys = 100

func (a *App) hot() status.Hot {
	hottest, total := a.Hottest(hotKeys)
	h := status.Hot{Total: total, Keys: make([]status.HotCount, 0, len(hottest))}
	for _, k := range hottest {
		h.Keys = append(h.Keys, status.HotCount{Symbol: []byte(k.Symbol), Count: k.Records})
	}
	return h
}

func (a *App) taskOf(t task.Status) status.Task {
	symbols, unsettled := int64(t.Symbols), int64(t.Unsettled)
	out := status.Task{
		Partition: t.Index,
		State:     stateOf(t.State),
		CaughtUp:  &t.CaughtUp, Remaining: &t.RestoreRemaining,
		Symbols: &symbols, Unsettled: &unsettled,
		Topics: map[string]status.Half{},
	}
	if stall.Stalled(a.stalls.Stalls(), t.Index) {
		out.State = status.StateStalled
	}
	for side, topic := range a.topics {
		if !t.Mine[side] {
			continue
		}
		position := t.Position[side]
		if t.State == task.Fresh {
			position = -1
		}
		out.Topics[topic] = status.Half{
			Position: offset(position), Committed: offset(t.Committed[side]),
			HighWatermark: offset(t.End[side]), Leader: a.leader(topic, t.Index),
		}
	}
	return out
}

// starting is an index whose claims have not begun.
func (a *App) starting(index int32, owned [record.Sides][]int32) status.Task {
	out := status.Task{Partition: index, State: status.StateStarting, Topics: map[string]status.Half{}}
	for side, topic := range a.topics {
		for _, p := range owned[side] {
			if p == index {
				out.Topics[topic] = status.Half{}
			}
		}
	}
	return out
}

// leader is what the fetcher knows: nobody is asked.
func (a *App) leader(topic string, partition int32) *int32 {
	if !a.connected.Load() {
		return nil
	}
	id := a.fetcher.Leader(topic, partition)
	if id == kafka.NoLeader {
		return nil
	}
	return &id
}

func offset(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func stateOf(s task.State) status.State {
	switch s {
	case task.Fresh:
		return status.StateNew
	case task.Restoring:
		return status.StateRestoring
	case task.Running:
		return status.StateRunning
	case task.Frozen:
		return status.StateFrozen
	}
	return status.StateClosed
}
