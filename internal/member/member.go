package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/assign"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/sampled"
	"joiner/internal/task"
)

// Options is what a member needs. Every field without a remark is required.
type Options struct {
	Topics [record.Sides]string
	// ID is the member's stable identity, which directories know it by.
	ID string
	// InstanceID is that of a static member (KIP-345), empty for a dynamic one.
	InstanceID string
	// SessionTimeout is the group's.
	SessionTimeout time.Duration
	NewTask        Factory
	Begin          Begin // nil: where the claims begin
	// Fetcher reads the partitions that the group gives this member. It is
	// asked for once Run has begun.
	Fetcher func() Fetcher
	// Interrupt ends a JoinGroup under way, which nothing else can. It must
	// not block: it is called from within a join, too.
	Interrupt func()
	// Handover is how long an index may be without an owner on its way from one
	// member to the next, where all is well; 0: nobody looks.
	Handover time.Duration
	// Enforce has the member join the group again at its next heartbeat, without
	// ending the session. It must not block. Needed with Handover only.
	Enforce func()
	Metrics *metrics.Group
	Logger  *zap.Logger
}

// Member runs one member of the group.
type Member struct {
	o      Options
	log    *zap.Logger
	faults *sampled.Log

	mu       sync.Mutex
	group    sarama.ConsumerGroup
	session  sarama.ConsumerGroupSession // nil outside one
	assigned bool
	claims   [record.Sides][]int32
	tasks    map[int32]*entry
	dir      *assign.Directory
	gen      int32
	lastErr  error
	lastID   string              // member id of the newest session
	joinAt   time.Time           // when the rebalance under way began here
	idleFrom map[int32]time.Time // indices that nobody runs because of a rebalance, since when
	vacant   vacant
	stopping bool
	asks     atomic.Uint64
	running  atomic.Bool        // Run has begun and is not to end yet
	rejoin   context.CancelFunc // ends the session; nil before the first
	stalled  func(index int32) bool
}

// entry is a task and the claims that hold it.
type entry struct {
	task  *task.Task
	flow  *flow
	holds int
	// lost is the generation whose assignment took the task away, 0 while none
	// has.
	lost int32
	// anew: it ends because of its positions, and another one takes its place
	// under the same claims.
	anew bool
}

// New makes a member; Run starts it. OnAssigned may be called from then on.
func New(o Options) *Member {
	return &Member{
		o:        o,
		log:      o.Logger,
		faults:   sampled.New(o.Logger, nil),
		tasks:    make(map[int32]*entry),
		idleFrom: make(map[int32]time.Time),
	}
}

// The pace of the Consume loop after a failure.
const (
	backoffFirst   = 100 * time.Millisecond
	backoffLongest = 5 * time.Second
	// backoffRefused is the longest for a member that may not read its group: whoever
	// gives the right looks on, and the coordinator is looked for ten times a second
	// in between as it is.
	backoffRefused = time.Second
	steady         = 10 * time.Second // a session that lasted this long resets the pace
)

// Run consumes until ctx ends, then hands everything over and returns. The
// caller closes the group afterwards, which leaves it.
func (m *Member) Run(ctx context.Context, group sarama.ConsumerGroup) error {
	m.mu.Lock()
	m.group = group
	m.mu.Unlock()
	m.running.Store(true)
	defer m.running.Store(false)
	stop := context.AfterFunc(ctx, m.stop)
	defer stop()

	topics := []string{m.o.Topics[record.Market], m.o.Topics[record.Notification]}
	p := pace{session: m.o.SessionTimeout}
	for ctx.Err() == nil {
		began := time.Now()
		err := m.consume(ctx, group, topics)
		m.sessionEnded(err)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, sarama.ErrClosedConsumerGroup) {
			return fmt.Errorf("consumer group closed while it ran: %w", err)
		}
		wait := p.after(err, time.Since(began))
		m.tell(err, wait)
		sleep(ctx, wait)
	}
	return nil
}

// tell logs why a session ended.
func (m *Member) tell(err error, wait time.Duration) {
	switch {
	case err == nil:
	case errors.Is(err, sarama.ErrFencedInstancedId):
		m.o.Metrics.Fenced.Inc()
		m.faults.Error("fenced instance", "another process has this pod's group.instance_id: the group has given it the pod's tasks, and this one waits until it is gone",
			zap.String("instance_id", m.o.InstanceID), zap.Error(err), zap.Duration("after", wait))
	default:
		m.faults.Warn("session "+err.Error(), "session ended, joining the group again", zap.Error(err), zap.Duration("after", wait))
	}
}

// pace says how long to wait before the group is joined again.
type pace struct {
	session time.Duration // the group's session timeout
	next    time.Duration // 0: from the beginning
}

// longestFenced bounds the wait of a fenced member where the session timeout is
// long.
const longestFenced = 30 * time.Second

// after returns the wait after a session that ended with err. A member whose
// instance id somebody else has can only wait for him to go: the coordinator
// notices that within a session timeout, so asking more often than that is of
// little use. The wait is spread, so that several do not come at once.
func (p *pace) after(err error, lasted time.Duration) time.Duration {
	longest := backoffLongest
	fenced := errors.Is(err, sarama.ErrFencedInstancedId)
	switch {
	case fenced:
		longest = max(longest, min(p.session, longestFenced))
	case errors.Is(err, sarama.ErrGroupAuthorizationFailed):
		longest = backoffRefused
	}
	if err == nil || lasted > steady || p.next == 0 {
		p.next = backoffFirst
	}
	wait := min(p.next, longest)
	p.next = min(2*wait, longest)
	if fenced {
		wait = wait/2 + rand.N(wait/2)
	}
	return wait
}

// Running reports whether the member is in its group, or on its way there. It
// waits for nobody.
func (m *Member) Running() bool { return m.running.Load() }

// consume takes part in the group until ctx or the session ends, or Rejoin ends
// it.
func (m *Member) consume(ctx context.Context, group sarama.ConsumerGroup, topics []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	m.rejoin = cancel
	m.mu.Unlock()
	return group.Consume(ctx, topics, m)
}

// Rejoin ends the session, and with it every task, and joins the group again.
// It returns at once.
func (m *Member) Rejoin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rejoin != nil {
		m.rejoin()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stop freezes every task, so that nothing more is taken while the session
// winds down, and ends a join under way.
func (m *Member) stop() {
	m.running.Store(false)
	m.mu.Lock()
	m.stopping = true
	m.vacant.stop()
	joining := m.session == nil || !m.joinAt.IsZero()
	for _, e := range m.tasks {
		e.task.Freeze()
	}
	m.mu.Unlock()
	if joining {
		m.o.Interrupt()
	}
}

// Joining notes that a rebalance begins for this member. It never blocks. A
// join that slips in behind the stop is interrupted here: its connection is
// open by now, and its answer may be as far off as the rebalance timeout.
func (m *Member) Joining() {
	m.mu.Lock()
	if m.joinAt.IsZero() {
		m.joinAt = time.Now()
	}
	stopping := m.stopping
	m.mu.Unlock()
	if stopping {
		m.o.Interrupt()
	}
}

// OnAssigned takes the member's new assignment. It is called under sarama's
// locks: it sets flags and starts nothing that waits.
func (m *Member) OnAssigned(a assign.Assignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.claims
	m.claims = claimsOf(a.Claims, m.o.Topics)
	m.assigned = true
	m.gen = a.Generation
	m.dir = a.Directory
	m.lastErr = nil
	for index, e := range m.tasks {
		if e.task.Mine() != m.halves(index) {
			e.task.Freeze()
			if e.lost == 0 {
				e.lost = a.Generation
			}
		}
	}
	m.noteIdle()
	m.noteVacant(a.Directory)
	m.noteTaken(before)
	m.count(before)
	m.log.Info("assigned",
		zap.Int32("generation", a.Generation),
		zap.Int32s("market_partitions", m.claims[record.Market]),
		zap.Int32s("notification_partitions", m.claims[record.Notification]))
}

func claimsOf(claims map[string][]int32, topics [record.Sides]string) (owned [record.Sides][]int32) {
	for side, topic := range topics {
		owned[side] = slices.Clone(claims[topic])
		slices.Sort(owned[side])
	}
	return owned
}

// halves tells which inputs of an index the assignment gives this member.
func (m *Member) halves(index int32) (mine [record.Sides]bool) {
	for side := range mine {
		_, mine[side] = slices.BinarySearch(m.claims[side], index)
	}
	return mine
}

// noteIdle remembers since when an index has been withheld from everybody:
// its next owner's pause counts from then. Without a directory what this member
// has not got is taken to be somebody else's.
func (m *Member) noteIdle() {
	now := time.Now()
	if m.dir == nil {
		maps.DeleteFunc(m.idleFrom, func(index int32, _ time.Time) bool {
			return m.halves(index) == [record.Sides]bool{}
		})
		return
	}
	for p, owner := range m.dir.Owners[m.o.Topics[record.Notification]] {
		index := int32(p)
		switch {
		case owner == "" && m.idleFrom[index].IsZero():
			m.idleFrom[index] = now
		case owner != "" && m.halves(index) == [record.Sides]bool{}:
			delete(m.idleFrom, index)
		}
	}
}

// noteTaken begins the pause of an index that comes at once, since its owner has
// left the group: it lay idle from before this member heard of the rebalance,
// which is the earliest that this member knows.
func (m *Member) noteTaken(before [record.Sides][]int32) {
	if m.joinAt.IsZero() {
		return
	}
	for _, index := range union(m.claims) {
		if m.idleFrom[index].IsZero() && !slices.Contains(union(before), index) {
			m.idleFrom[index] = m.joinAt
		}
	}
}

// count brings the group's metrics up to the new assignment.
func (m *Member) count(before [record.Sides][]int32) {
	g := m.o.Metrics
	g.Rebalances.Inc()
	g.Generation.Set(float64(m.gen))
	if !m.joinAt.IsZero() {
		g.RebalanceDuration.Observe(time.Since(m.joinAt).Seconds())
		m.joinAt = time.Time{}
	}
	for side := range m.claims {
		g.Assigned[side].Set(float64(len(m.claims[side])))
	}
	both := func(c [record.Sides][]int32) (n int) {
		for _, p := range c[record.Market] {
			if _, ok := slices.BinarySearch(c[record.Notification], p); ok {
				n++
			}
		}
		return n
	}
	g.Colocated.Set(float64(both(m.claims)))
	for _, p := range union(before) {
		if !slices.Contains(union(m.claims), p) {
			g.TaskMoves[metrics.Lost].Inc()
		}
	}
	for _, p := range union(m.claims) {
		if !slices.Contains(union(before), p) {
			g.TaskMoves[metrics.Gained].Inc()
		}
	}
	if m.dir == nil {
		return
	}
	g.Members.Set(float64(len(m.dir.Members)))
	for topic, n := range m.dir.Partitions {
		g.SetTopicPartitions(topic, n)
	}
}

// union lists the indices of which at least one half is there.
func union(c [record.Sides][]int32) []int32 {
	all := slices.Concat(c[record.Market], c[record.Notification])
	slices.Sort(all)
	return slices.Compact(all)
}

// sessionEnded forgets a session; what it owned is not owned any more.
func (m *Member) sessionEnded(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = nil
	m.vacant.stop()
	m.assigned = false
	m.gen = 0 // a group that is made anew counts from the start
	before := m.claims
	m.claims = [record.Sides][]int32{}
	m.joinAt = time.Time{}
	m.lastErr = err
	g := m.o.Metrics
	for _, p := range union(before) {
		g.TaskMoves[metrics.Lost].Inc()
		if m.idleFrom[p].IsZero() { // else it has not run since
			m.idleFrom[p] = time.Now()
		}
	}
	for side := range g.Assigned {
		g.Assigned[side].Set(0)
	}
	g.Colocated.Set(0)
}

// Setup implements sarama.ConsumerGroupHandler.
func (m *Member) Setup(s sarama.ConsumerGroupSession) error {
	m.mu.Lock()
	m.session = s
	m.lastID = s.MemberID()
	m.resumeVacant(s)
	m.mu.Unlock()
	m.log.Info("session begins", zap.String("member_id", s.MemberID()), zap.Int32("generation", s.GenerationID()))
	return nil
}

// Cleanup implements sarama.ConsumerGroupHandler. Every task has been
// committed by then, before its claims returned.
func (m *Member) Cleanup(s sarama.ConsumerGroupSession) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastID = s.MemberID() // a cooperative session may have got a new one
	m.session = nil
	return nil
}

// ConsumeClaim implements sarama.ConsumerGroupHandler: it feeds one half of a
// task until the claim closes, and returns once the task is committed for the
// last time. Only then may another member begin.
func (m *Member) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	side := record.Notification
	if claim.Topic() == m.o.Topics[record.Market] {
		side = record.Market
	}
	index := claim.Partition()
	log := m.log.With(zap.String("topic", claim.Topic()), zap.Int32("partition", index), zap.String("member_id", s.MemberID()))
	log.Info("claim begins", zap.Int64("offset", claim.InitialOffset()), zap.Int32("generation", s.GenerationID()))

	for m.runHalf(s.Context(), claim, side) {
		log.Info("partition begins anew")
	}
	log.Info("claim ends", zap.Int32("generation", s.GenerationID()))
	return nil
}

// runHalf feeds one half of a task until the task is closed. It reports true
// where the claim stays and the next task is to begin under it.
func (m *Member) runHalf(ctx context.Context, claim sarama.ConsumerGroupClaim, side record.Side) (again bool) {
	e := m.hold(claim.Partition(), side)
	defer m.letGo(claim.Partition(), e)
	again = m.read(ctx, claim, e, side)
	<-e.task.Done()
	return again
}

// read feeds one half of the task until the claim is taken away. The claim is
// for ownership only: it is paused, and what it has fetched already is dropped,
// since the fetcher reads the same records at a third less of the cost. A pause
// outlives the claim in sarama, which here is as it should be. Where to begin is
// asked for while the claim is drained already. again is as in runHalf.
func (m *Member) read(ctx context.Context, claim sarama.ConsumerGroupClaim, e *entry, side record.Side) (again bool) {
	m.group.Pause(map[string][]int32{claim.Topic(): {claim.Partition()}})
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	var begun sync.WaitGroup
	var feed Feed
	if m.o.Begin == nil {
		feed = m.start(claim, e, side, Start{Offset: claim.InitialOffset()})
	} else {
		begun.Go(func() {
			if at, ok := m.o.Begin(asking, side, claim.Partition(), claim.InitialOffset()); ok {
				feed = m.start(claim, e, side, at)
			}
		})
	}
	again = m.drain(ctx, claim, e, side)
	cancel()
	begun.Wait()
	if feed != nil {
		feed.Remove()
	}
	e.task.Freeze()
	return again
}

// start begins the reading of one half.
func (m *Member) start(claim sarama.ConsumerGroupClaim, e *entry, side record.Side, at Start) Feed {
	e.task.Start(side, at.Offset)
	feed := m.o.Fetcher().Add(claim.Topic(), claim.Partition(), at, sink{e.task, side})
	e.flow.set(side, feed)
	return feed
}

// hold returns the index's task, made by the first of its claims. A claim may
// begin when the next assignment has taken its partition away already: its task
// takes nothing.
func (m *Member) hold(index int32, side record.Side) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.tasks[index]; e != nil && e.task.State() < task.Frozen && !e.task.Freezing() {
		e.holds++
		return e
	}
	f := &flow{}
	halves := m.halves(index)
	e := &entry{task: m.o.NewTask(index, halves, f), flow: f, holds: 1}
	if m.stopping || !halves[side] {
		e.task.Freeze()
	}
	m.tasks[index] = e
	m.countTasks()
	go m.watchStart(index, e.task)
	return e
}

// watchStart measures how long the index lay idle because of a rebalance.
func (m *Member) watchStart(index int32, t *task.Task) {
	select {
	case <-t.Ready():
	case <-t.Done():
		return
	}
	m.mu.Lock()
	from := m.idleFrom[index]
	delete(m.idleFrom, index)
	m.countTasks()
	m.mu.Unlock()
	if !from.IsZero() {
		m.o.Metrics.TaskPause.Observe(time.Since(from).Seconds())
	}
}

// letGo forgets a closed task once none of its claims needs it.
func (m *Member) letGo(index int32, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.holds--
	if e.holds == 0 && m.tasks[index] == e {
		delete(m.tasks, index)
	}
	m.countTasks()
}

// countTasks brings joiner_tasks up to date. Called with mu held.
func (m *Member) countTasks() {
	var n [metrics.TaskStates]int
	for index, e := range m.tasks {
		switch s := e.task.State(); {
		case m.stalled != nil && m.stalled(index):
			n[metrics.Stalled]++
		case s < task.Running:
			n[metrics.Restoring]++
		case s == task.Running:
			n[metrics.Running]++
		}
	}
	for s := range n {
		m.o.Metrics.Tasks[s].Set(float64(n[s]))
	}
}

// Tasks lists the tasks that there are, those being handed over among them, in
// no order. ok is false where the member's lock is held by somebody who does not
// give it back: it waits for nobody.
func (m *Member) Tasks() (tasks []*task.Task, ok bool) {
	if !record.TryLock(&m.mu) {
		return nil, false
	}
	defer m.mu.Unlock()
	tasks = make([]*task.Task, 0, len(m.tasks))
	for _, e := range m.tasks {
		tasks = append(tasks, e.task)
	}
	return tasks, true
}

// CountStalled brings joiner_tasks up to date with the tasks that have stalled.
// It reports false, and has done nothing, where it would have to wait.
func (m *Member) CountStalled(stalled func(index int32) bool) bool {
	if !record.TryLock(&m.mu) {
		return false
	}
	defer m.mu.Unlock()
	m.stalled = stalled
	m.countTasks()
	return true
}

// Session returns the member's standing, for commits; ok is false outside a
// session.
func (m *Member) Session() (s Session, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == nil {
		return Session{}, false
	}
	return m.standing(), true
}

// standing is the session's, with the generation of the newest assignment:
// sarama's session learns of it only after OnAssigned, when a task that the
// assignment takes away may already be committing. Called with mu held and a
// session.
func (m *Member) standing() Session {
	return Session{MemberID: m.session.MemberID(), Generation: max(m.gen, m.session.GenerationID())}
}

// MayCommit reports whether the group lets this member commit the task in that
// generation: its assignment has the task, or has just taken it away, so that
// nobody else has got it yet. The coordinator itself looks at the generation,
// not at whose a partition is.
func (m *Member) MayCommit(t *task.Task, generation int32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.tasks[t.Index()]
	return e != nil && e.task == t && (e.lost == 0 || e.lost == generation)
}

// Generation returns that of the newest assignment; ok is false outside a
// session, or before its first assignment.
func (m *Member) Generation() (generation int32, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gen, m.assigned
}

// LastID returns the member id of the newest session, "" before the first.
func (m *Member) LastID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session != nil {
		return m.session.MemberID()
	}
	return m.lastID
}

// Reset ends the task of an index whose positions are not in the log any more,
// and has another one take its place, under the same claims: nobody else is
// disturbed. It never blocks.
func (m *Member) Reset(index int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.tasks[index]; e != nil {
		e.anew = true
		e.task.Freeze()
	}
}

// beginsAnew reports whether the task that has ended is to be followed by another.
func (m *Member) beginsAnew(e *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return e.anew
}

// Task returns the running task of an index, nil where there is none.
func (m *Member) Task(index int32) *task.Task {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.tasks[index]; e != nil {
		return e.task
	}
	return nil
}

// Owns reports whether the last assignment gave this member the market
// partition.
func (m *Member) Owns(partition int32) bool { return m.owns(record.Market, partition) }

func (m *Member) owns(side record.Side, partition int32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.halves(partition)[side]
}

// Directory returns who owns what, nil before the first assignment or where a
// foreign member leads.
func (m *Member) Directory() *assign.Directory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dir
}

// Status returns a snapshot.
func (m *Member) Status() Status {
	m.mu.Lock()
	s := Status{
		Assigned:  m.assigned && m.session != nil,
		Owned:     [record.Sides][]int32{slices.Clone(m.claims[record.Market]), slices.Clone(m.claims[record.Notification])},
		Directory: m.dir,
		LastError: m.lastErr,
	}
	if m.session != nil {
		s.Session = m.standing()
		s.Coming = m.coming()
		s.Vacant, s.VacantSince = m.overdue()
	}
	var tasks []*task.Task
	for _, index := range union(m.claims) {
		if e := m.tasks[index]; e != nil {
			tasks = append(tasks, e.task)
			continue
		}
		s.Starting = append(s.Starting, index)
	}
	m.mu.Unlock()
	for _, t := range tasks {
		s.Tasks = append(s.Tasks, t.Status())
	}
	slices.SortFunc(s.Tasks, func(a, b task.Status) int { return cmp.Compare(a.Index, b.Index) })
	return s
}
