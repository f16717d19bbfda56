package member

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/assign"
	"joiner/internal/record"
)

// vacant are the indices that the newest generation withholds from everybody
// until their old owner has let go. It does so by joining again, and who comes
// out of a restart, a crash or a freeze with nothing to let go never does. So
// everybody watches, and asks for the next generation where the old owner does
// not for longer than a handover takes. It is guarded by the member's lock.
type vacant struct {
	since map[int32]time.Time // by index, since when it has been vacant
	began time.Time           // the generation
	rank  int                 // this member's place among those who ask
	lasts int                 // generations that have lasted for too long, in a row
	asked int                 // times that this member has asked in this one
	timer *time.Timer         // nil while nothing is vacant
	turn  int                 // tells a timer that was stopped too late
}

const (
	// longestVacancy bounds the wait between two requests.
	longestVacancy = 10 * time.Minute
	// ranksApart is how many members have a turn of their own: the others share
	// one, spread at random. Requests at the same time are one rebalance.
	ranksApart = 3
)

// noteVacant takes in a new directory. Called with mu held.
func (m *Member) noteVacant(d *assign.Directory) {
	v, now := &m.vacant, time.Now()
	v.stop()
	since, still := make(map[int32]time.Time), false
	for _, index := range d.Vacant(m.o.Topics[:]...) {
		from, before := v.since[index]
		if !before {
			from = now
		}
		since[index] = from
		still = still || before
	}
	switch {
	case !still:
		v.lasts = 0
	case now.Sub(v.began) >= m.o.Handover:
		v.lasts++ // and the next generation is no better: it is not asked for as often
	}
	v.since, v.began, v.asked = since, now, 0
	if len(since) == 0 || m.o.Handover <= 0 || m.stopping {
		return
	}
	v.rank = rankOf(d, m.o.ID)
	m.watchVacant()
}

// rankOf is a member's place among those who ask: those that a vacant index is for
// come first, then the others, by their names.
func rankOf(d *assign.Directory, id string) int {
	heirs := slices.Sorted(maps.Values(d.MovingTo))
	heirs = slices.Compact(heirs)
	if i, ok := slices.BinarySearch(heirs, id); ok {
		return i
	}
	rank := len(heirs)
	for _, other := range d.Members {
		if _, heir := slices.BinarySearch(heirs, other.ID); !heir && other.ID < id {
			rank++
		}
	}
	return rank
}

// patience is how long the member waits before it asks: a handover in order for the
// first in rank, half of one more for each behind it, and twice as long each time
// that it has not helped.
func (v *vacant) patience(handover time.Duration) time.Duration {
	wait := handover
	for range v.lasts + v.asked {
		if wait = 2 * wait; wait >= longestVacancy {
			wait = max(longestVacancy, handover)
			break
		}
	}
	if v.rank == 0 {
		return wait
	}
	apart := handover / 2
	return wait + time.Duration(min(v.rank, ranksApart))*apart + rand.N(apart/2+1)
}

// watchVacant has the member look again after its patience. Called with mu held.
func (m *Member) watchVacant() {
	v := &m.vacant
	v.stop()
	turn := v.turn
	v.timer = time.AfterFunc(v.patience(m.o.Handover), func() { m.judgeVacant(turn) })
}

// stop ends the watch.
func (v *vacant) stop() {
	v.turn++
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
}

// judgeVacant asks for a rebalance, unless one is under way.
func (m *Member) judgeVacant(turn int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.vacant
	if v.turn != turn || m.stopping {
		return
	}
	defer m.watchVacant()
	if m.session == nil || !m.joinAt.IsZero() {
		return
	}
	v.asked++
	m.log.Warn("partitions have had no owner for longer than it takes to hand them over: this member asks for a rebalance, which gives them one",
		zap.Int32s("partitions", v.indices()), zap.Duration("unowned_for", time.Since(v.oldest())),
		zap.Int32("generation", m.gen), zap.Int("asked", v.asked))
	m.enforce()
}

// resumeVacant asks for a rebalance where a session begins with an assignment that
// was made for this member's process before (KIP-345), and with vacant indices: if
// they were that process's, nobody else lets them go. Called with mu held.
func (m *Member) resumeVacant(s sarama.ConsumerGroupSession) {
	if m.o.Handover <= 0 || m.o.InstanceID == "" || !m.assigned || m.dir == nil || len(m.vacant.since) == 0 {
		return
	}
	known, listed := m.dir.Member(m.o.ID)
	if !listed || known.MemberID == "" || known.MemberID == s.MemberID() {
		return
	}
	m.log.Info("this member comes back to a group in which partitions wait for their old owner, which may have been itself: it joins again",
		zap.Int32s("partitions", m.vacant.indices()), zap.Int32("generation", m.gen), zap.String("instance_id", m.o.InstanceID))
	m.enforce()
}

// enforce asks for a rebalance. Called with mu held.
func (m *Member) enforce() {
	m.asks.Add(1)
	m.o.Enforce()
}

// Asks is how often the member has asked for a rebalance by itself.
func (m *Member) Asks() uint64 { return m.asks.Load() }

// indices are the vacant ones, ascending.
func (v *vacant) indices() []int32 { return slices.Sorted(maps.Keys(v.since)) }

// oldest is since when the first of them has been vacant.
func (v *vacant) oldest() (from time.Time) {
	for _, since := range v.since {
		if from.IsZero() || since.Before(from) {
			from = since
		}
	}
	return from
}

// overdue lists, ascending, the indices that have been vacant for longer than a
// handover takes, and since when the first of them. Called with mu held.
func (m *Member) overdue() (indices []int32, since time.Time) {
	from := m.vacant.oldest()
	if m.o.Handover <= 0 || from.IsZero() || time.Since(from) < m.o.Handover {
		return nil, time.Time{}
	}
	for _, index := range m.vacant.indices() {
		if time.Since(m.vacant.since[index]) >= m.o.Handover {
			indices = append(indices, index)
		}
	}
	return indices, from
}

// coming lists, ascending, what the next generation gives to a member that has
// nothing. Called with mu held.
func (m *Member) coming() (indices []int32) {
	if m.dir == nil || len(m.claims[record.Market])+len(m.claims[record.Notification]) > 0 {
		return nil
	}
	for index, id := range m.dir.MovingTo {
		if id == m.o.ID {
			indices = append(indices, index)
		}
	}
	slices.Sort(indices)
	return indices
}
