package status

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"joiner/internal/assign"
	"joiner/internal/record"
)

// Local is what a pod knows now.
type Local struct {
	Part      Part
	Strategy  string
	Topics    [record.Sides]string
	Directory *assign.Directory // nil before the first assignment, or where a foreign member leads
}

// answer is what came of asking a member.
type answer struct {
	part Part
	err  error
}

// hottestShown is how many keys a View lists.
const hottestShown = 10

// merge puts a View together. answers has an entry for each member that was
// asked, by ID.
func merge(scope Scope, l Local, answers map[string]answer, at time.Time) View {
	m := merger{Local: l, tasks: map[int32]*Task{}, parts: []Part{l.Part}, told: map[int32]*told{}}
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		if a := answers[id]; a.err == nil {
			m.parts = append(m.parts, a.part)
		}
	}
	m.fromDirectory()
	for i := range m.parts {
		m.fromPart(&m.parts[i])
	}
	v := View{
		Group: l.Part.Group, Generation: l.Part.Generation, Strategy: l.Strategy,
		Scope: scope, Pod: l.Part.ID, At: at.UTC().Format("2006-01-02T15:04:05.000Z"),
		Problem: problem(l.Directory, l.Topics),
		Inputs:  Inputs{MarketUpdates: l.Topics[record.Market], Notifications: l.Topics[record.Notification]},
		Tasks:   m.finish(),
		Joins:   NewJoins(),
		Hottest: hottest(m.parts),
	}
	for i := range m.parts {
		v.Joins.add(m.parts[i].Joins)
	}
	v.Members = m.members(v.Tasks, answers)
	return v
}

func problem(d *assign.Directory, topics [record.Sides]string) string {
	var problems []string
	switch {
	case d == nil:
	case d.Problem != "":
		problems = append(problems, d.Problem)
	case d.Truncated:
		problems = append(problems, "the group is too large for every member to be told who owns what")
	}
	return strings.Join(append(problems, ForeignOwners(d, topics)...), "; ")
}

type merger struct {
	Local
	parts []Part
	tasks map[int32]*Task
	told  map[int32]*told
}

// told remembers whose word is taken for each half of a task.
type told struct {
	by     [record.Sides]word
	market State // what the market half's says of the state
}

// word is how much somebody's word counts.
type word int64

const (
	nobodys word = iota
	another      // of one who is handing over, or has yet to be told to
	owners       // as the directory has it
	later        // and above: of a pod that knows of a later generation, which is added
)

func (m *merger) task(index int32) *Task {
	t := m.tasks[index]
	if t == nil {
		t = &Task{Partition: index, Topics: map[string]Half{}}
		m.tasks[index] = t
	}
	return t
}

// fromDirectory lists every partition with its owners.
func (m *merger) fromDirectory() {
	d := m.Directory
	if d == nil {
		return
	}
	for _, topic := range m.Topics {
		for p, owner := range d.Owners[topic] {
			m.task(int32(p)).Topics[topic] = Half{Owner: owner}
		}
		for _, p := range d.Unowned[topic] {
			t := m.task(p)
			t.Topics[topic] = Half{}
			t.State = StateUnowned
		}
		for _, p := range d.Moving[topic] {
			t := m.task(p)
			t.Topics[topic] = Half{}
			t.State = StateMoving
		}
	}
}

// fromPart adds what a pod says of its own tasks. It counts where the directory
// calls the pod the owner, where nobody is, and where the pod knows of a later
// generation than the directory does.
func (m *merger) fromPart(p *Part) {
	newer := m.Directory == nil || p.Generation > m.Directory.Generation
	for i := range p.Tasks {
		from := &p.Tasks[i]
		t := m.task(from.Partition)
		for side, topic := range m.Topics {
			half, ok := from.Topics[topic]
			if !ok {
				continue
			}
			owner, counts := t.Topics[topic].Owner, another
			switch {
			case newer:
				owner, counts = p.ID, later+word(p.Generation)
			case owner == p.ID:
				counts = owners
			case owner != "":
				continue // it has yet to let go: the new owner's word counts
			}
			if !m.heed(t.Partition, record.Side(side), counts) {
				continue
			}
			half.Owner = owner
			half.Lag = lag(half)
			t.Topics[topic] = half
			m.describe(t, from, record.Side(side))
		}
	}
}

// heed tells whether somebody's word on a half counts more than any before.
func (m *merger) heed(partition int32, side record.Side, counts word) bool {
	before := m.told[partition]
	if before == nil {
		before = &told{}
		m.told[partition] = before
	}
	if counts <= before.by[side] {
		return false
	}
	before.by[side] = counts
	return true
}

// describe takes over what a pod says of a half that it holds. The price table
// belongs to the market half, everything else to that of the notifications, which
// joins.
func (m *merger) describe(t, from *Task, side record.Side) {
	if side == record.Market {
		m.told[t.Partition].market = from.State
		t.CaughtUp, t.Remaining, t.Symbols = from.CaughtUp, from.Remaining, from.Symbols
		return
	}
	t.State, t.Unsettled = from.State, from.Unsettled
}

func lag(h Half) *int64 {
	if h.HighWatermark == nil || h.Committed == nil {
		return nil
	}
	n := max(0, *h.HighWatermark-*h.Committed)
	return &n
}

// finish fills in what follows from the rest and sorts.
func (m *merger) finish() []Task {
	tasks := make([]Task, 0, len(m.tasks))
	for _, t := range m.tasks {
		market, note := t.Topics[m.Topics[record.Market]].Owner, t.Topics[m.Topics[record.Notification]].Owner
		t.Owner = cmp.Or(note, market)
		t.Colocated = note != "" && note == market
		alone := m.told[t.Partition]
		switch {
		case t.State != "":
		case note == "" && alone != nil:
			t.State = alone.market // nobody joins there, but prices are kept
		case t.Owner == "":
			t.State = StateMoving // the next generation gives it to somebody
		default:
			t.State = StateUnknown
		}
		tasks = append(tasks, *t)
	}
	slices.SortFunc(tasks, func(a, b Task) int { return cmp.Compare(a.Partition, b.Partition) })
	return tasks
}

// members lists those of the directory, this pod among them even where the
// directory does not know it.
func (m *merger) members(tasks []Task, answers map[string]answer) []Member {
	var members []Member
	self := false
	if m.Directory != nil {
		for _, d := range m.Directory.Members {
			self = self || d.ID == m.Part.ID
			members = append(members, Member{ID: d.ID, Instance: d.Instance, Address: d.Address})
		}
	}
	if !self {
		members = append(members, Member{ID: m.Part.ID, Instance: m.Part.Instance, Address: m.Part.Address})
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	owned := indicesByOwner(tasks)
	for i := range members {
		mem := &members[i]
		mem.Tasks = owned[mem.ID]
		if mem.Tasks == nil {
			mem.Tasks = []int32{}
		}
		if mem.ID == m.Part.ID {
			mem.heard(m.Part, nil)
		} else if a, asked := answers[mem.ID]; asked {
			mem.heard(a.part, a.err)
		}
	}
	return members
}

// heard notes what came of asking the member.
func (m *Member) heard(p Part, err error) {
	if err != nil {
		m.Error = err.Error()
	}
	if errors.Is(err, errNotAsked) {
		return // which says nothing of the member
	}
	reachable := err == nil
	m.Reachable = &reachable
	if err != nil {
		return
	}
	m.Ready, m.Reasons, m.Notes, m.Joins = &p.Ready, p.Reasons, p.Notes, p.Joins
}

func indicesByOwner(tasks []Task) map[string][]int32 {
	owned := map[string][]int32{}
	for i := range tasks {
		for _, h := range tasks[i].Topics {
			list := owned[h.Owner]
			if h.Owner == "" || (len(list) > 0 && list[len(list)-1] == tasks[i].Partition) {
				continue
			}
			owned[h.Owner] = append(list, tasks[i].Partition)
		}
	}
	return owned
}

// hottest adds up what the pods have counted. Each counts other records, so
// that the sums are exact where the counts are; a key that is frequent nowhere
// near the top of any pod cannot be frequent in all of them.
func hottest(parts []Part) []HotRate {
	var total uint64
	counts := map[Symbol]uint64{}
	for i := range parts {
		total += parts[i].Hot.Total
		for _, k := range parts[i].Hot.Keys {
			counts[Symbol(k.Symbol)] += k.Count
		}
	}
	rates := make([]HotRate, 0, len(counts))
	if total == 0 {
		return rates
	}
	for symbol, n := range counts {
		rates = append(rates, HotRate{symbol, min(1, float64(n)/float64(total))})
	}
	slices.SortFunc(rates, func(a, b HotRate) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Symbol, b.Symbol))
	})
	return rates[:min(len(rates), hottestShown)]
}
