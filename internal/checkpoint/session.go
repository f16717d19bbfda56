package checkpoint

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"joiner/internal/record"
	"joiner/internal/state"
)

// Progress is where a task stands.
type Progress struct {
	Position  int64         // up to which its table has every record of the log
	Committed int64         // what the group has of it; below 0: nothing
	Next      record.Millis // timestamp of the record at or above Position that waits; record.NoTimestamp: none does
	Behind    bool          // the log is known to have more at or above Position, whether any of it waits or not
}

// Session is the checkpoint of one task: it fills the table when the task begins,
// and follows it until the task ends. Load, Begin and End are called one after
// the other, by the task; none of them waits for a disk, but Load for a bounded
// time.
type Session struct {
	d         *Dir
	partition int32
	facts     func(context.Context) (Facts, error)

	table    *state.Table
	progress func() Progress
	slot     chan struct{}
	owns     bool   // of the slot
	known    bool   // base is
	loaded   bool   // what is in the store may stay: the table came out of it, or would have
	unread   bool   // nobody has looked at what is in the store
	discard  string // why what is in the store has to go before it is written; "" where it is not to be kept
	base     Facts
	head     state.Head // of what is in the store
	begins   Range      // when the table was filled: from Start on all of the log is read without a checkpoint
	from     int64      // where the log is read from

	ended chan struct{} // closed by End
	begun bool
	stop  chan struct{} // closed where the pod stops before the task has ended
	once  sync.Once

	last  time.Time   // of a success, zero: none yet; guarded by d.mu
	lock  os.FileInfo // of the directory in which the store was opened
	guard *guard      // of the store that is open; guarded by d.mu
}

var (
	errNoIDs    = errors.New("the ids of cluster and topic are not known")
	errNotYet   = errors.New("the group has not committed what the table is made of")
	errStopping = errors.New("stopping")
	errDirGone  = errors.New("the directory was deleted or put in another's place while the process ran")
	errOver     = errors.New("no more checkpoints are written")
)

// Session makes the session of a task. facts is asked when the task begins, and
// from another goroutine while it fails.
func (d *Dir) Session(partition int32, facts func(context.Context) (Facts, error)) *Session {
	return &Session{
		d: d, partition: partition, facts: facts, slot: d.slot(partition),
		ended: make(chan struct{}), stop: make(chan struct{}),
	}
}

const slotWait = 2 * time.Second

// Load fills an empty table from the checkpoint, where there is one that may be
// used, and returns the offset from which the log has to be read: r.Start where
// it may not. It has the table track its changes. Called again, because reading
// the log failed, it returns what it did the first time, unless the log has lost
// meanwhile what comes after the checkpoint. It ends with ctx, and does not wait
// for a disk that does nothing.
func (s *Session) Load(ctx context.Context, table *state.Table, r Range) (from int64) {
	if s.table != nil {
		return s.loadedAgain(ctx, r)
	}
	s.table, s.begins, s.from = table, r, r.Start
	table.TrackChanges()
	found := s.load(ctx)
	if ctx.Err() != nil {
		s.empty()
		return r.Start // to a task that has ended
	}
	s.d.o.OnRestore(found.verdict)
	if found.verdict == Used {
		s.loaded, s.head, s.from = true, found.head, found.head.From
		s.last = s.head.Written.Time() // nobody knows of the session yet
		s.d.o.Log.Info("table restored from its checkpoint", zap.Int32("partition", s.partition),
			zap.Int64("offset", s.head.From), zap.Int("symbols", table.Symbols()), zap.Int64("committed", r.Committed))
		return s.from
	}
	s.empty()
	s.unread = found.unread
	s.head = s.nothing()
	if found.verdict != Absent {
		s.discard = found.verdict.String()
		s.movedAside(&found)
	}
	return r.Start
}

func (s *Session) loadedAgain(ctx context.Context, r Range) (from int64) {
	if !s.loaded {
		return r.Start
	}
	if s.from >= r.Start {
		return s.from
	}
	found := finding{verdict: Stale, why: goneSince(s.from, r.Start)}
	s.empty()
	s.loaded, s.begins, s.from = false, r, r.Start
	s.head = s.nothing()
	s.discard = found.verdict.String()
	d, partition := s.d, s.partition
	if s.apart(ctx, nil, func(*errand) { found.moveAside(d, partition) }) {
		s.movedAside(&found)
	}
	return r.Start
}

// nothing is the head of an empty store.
func (s *Session) nothing() state.Head {
	return state.Head{Scope: s.base.Scope, From: s.begins.Start, UpTo: s.begins.Start}
}

// empty forgets what was loaded.
func (s *Session) empty() {
	s.table.Lock()
	defer s.table.Unlock()
	s.table.Clear()
}

// load reads the checkpoint into the table.
func (s *Session) load(ctx context.Context) finding {
	unread := finding{verdict: Absent, unread: true}
	facts, err := s.scoped(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.d.failed(s.partition, err)
		}
		return unread
	}
	s.base, s.known = facts, true
	if s.d.take(ctx.Done()) != nil || !s.acquire(ctx.Done(), time.After(s.d.slotWait)) {
		return unread
	}
	var found finding
	look := s.look()
	if s.apart(ctx, s.table, func(e *errand) { found = look.load(ctx, e) }) {
		return found
	}
	if ctx.Err() == nil {
		s.d.failed(s.partition, errHangs)
	}
	return unread
}

// scoped asks for the facts, which have to say whose the checkpoint is.
func (s *Session) scoped(ctx context.Context) (Facts, error) {
	facts, err := s.facts(ctx)
	if err == nil && (facts.Scope.Cluster == "" || facts.Scope.TopicID == "") {
		err = errNoIDs
	}
	return facts, err
}

// look looks at the partition's store as it was when the task began.
func (s *Session) look() look {
	return look{d: s.d, partition: s.partition, facts: s.base, begins: s.begins}
}

// setAside moves what may not be used out of the way. Where that fails, whoever
// writes next does it before anything else.
func (s *Session) setAside(v Verdict, why string, cause error) {
	found := finding{verdict: v, why: why, cause: cause}
	found.moveAside(s.d, s.partition)
	s.movedAside(&found)
}

// movedAside tells of it.
func (s *Session) movedAside(f *finding) {
	if f.notMoved == nil {
		s.discard = ""
	}
	s.d.o.Log.Warn("checkpoint set aside, the table is restored from the topic", zap.Int32("partition", s.partition),
		zap.String("reason", f.verdict.String()), zap.String("detail", f.why), textOf("cause", f.cause),
		zap.String("kept_as", f.aside), textOf("not_moved", f.notMoved))
}

// acquire takes the partition's store for this session, at once or until over:
// a task that has ended does not wait, with its table in memory, for one before
// it whose disk takes nothing.
func (s *Session) acquire(over <-chan struct{}, late <-chan time.Time) bool {
	if s.owns {
		return true
	}
	select {
	case s.slot <- struct{}{}:
		s.owns = true
		return true
	default:
	}
	select {
	case s.slot <- struct{}{}:
		s.owns = true
		return true
	case <-late:
	case <-s.stop:
	case <-over:
	}
	return false
}

func (s *Session) release() {
	if s.owns {
		s.owns = false
		<-s.slot
	}
}

// Begin starts to follow the table, which the task changes from now on.
// progress is called from another goroutine and must not block.
func (s *Session) Begin(progress func() Progress) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.d.closed || s.table == nil || s.begun {
		return
	}
	s.begun = true
	s.progress = progress
	s.d.sessions[s] = true
	s.d.wg.Add(1)
	go s.run()
}

// End says that the table does not change any more and that nothing more will
// be committed. What is committed is written, by and by.
func (s *Session) End() {
	s.d.mu.Lock()
	begun := s.begun
	s.begun = true // too late for Begin
	s.d.mu.Unlock()
	close(s.ended)
	if !begun {
		s.release()
	}
}

// closing ends the session where its task has not ended: a last checkpoint is
// waited for.
func (s *Session) closing() {
	select {
	case <-s.ended:
	default:
		s.abort()
	}
}

// abort ends the session wherever it is.
func (s *Session) abort() { s.once.Do(func() { close(s.stop) }) }

// run writes checkpoints until the task has ended.
func (s *Session) run() {
	defer s.d.wg.Done()
	defer s.retire()
	defer s.release()
	for pause := s.d.o.Interval; ; {
		if err := s.d.isOver(); err != nil {
			s.goWithout(err)
			return
		}
		out, err := s.open()
		if err == nil {
			err = s.follow(out)
			if closed := out.close(); err == nil {
				err = closed
			}
		}
		if err == nil || errors.Is(err, errStopping) {
			return
		}
		if errors.Is(err, errOver) {
			continue
		}
		// The store is broken, or could not be made: all is written again, to a
		// new one.
		s.d.failed(s.partition, err)
		if s.guard != nil && s.guard.why() != nil {
			s.d.gaveUp(err)
		}
		s.lost(err)
		if !s.wait(pause) {
			return
		}
		pause = min(2*pause, rebuildLongest)
	}
}

// goWithout counts the checkpoints that are due and are not written.
func (s *Session) goWithout(cause error) {
	for s.wait(s.d.o.Interval) {
		s.d.failed(s.partition, cause)
	}
}

// rebuildLongest is the longest pause before a store is made anew.
const rebuildLongest = 10 * time.Minute

// retire forgets a session that does not write any more, and lets go of the
// table: goroutines of a store that was given up hold the session for good.
func (s *Session) retire() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.table, s.progress = nil, nil
	delete(s.d.sessions, s)
	delete(s.d.problems, s.partition)
	if s.last.After(s.d.lastEnd) {
		s.d.lastEnd = s.last
	}
}

// lost forgets what is in the store. The first pieces of the next one stand for
// their entries alone, so all of the log belongs to them.
func (s *Session) lost(cause error) {
	s.loaded = false
	s.table.TakeAll()
	s.head = s.nothing()
	if errors.Is(cause, errDirGone) {
		s.discard = "" // what has the path now is not ours before the lock is
		return
	}
	if s.owns {
		s.discard = Damaged.String()
		s.setAside(Damaged, "it is made anew", cause)
	}
}

// wait sleeps; it reports false where the task has ended or the pod stops.
func (s *Session) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ended:
	case <-s.stop:
	}
	return false
}

// open makes the partition's store ready to be written.
func (s *Session) open() (*store, error) {
	if !s.known && !s.ask() {
		return nil, errStopping
	}
	if !s.acquire(s.ended, nil) {
		return nil, errStopping
	}
	g := newGuard(s.failed, func() { s.d.healed(s.partition) })
	for pause := retryFirst; ; pause = min(2*pause, retryLongest) {
		err := s.d.take(s.ended)
		if err == nil {
			err = s.clear()
		}
		if err == nil {
			break
		}
		g.note(err)
		if !s.wait(pause) {
			return nil, errStopping
		}
	}
	g.note(nil)
	if s.lock = s.d.holding(); s.lock == nil {
		return nil, errDirGone
	}
	s.d.mu.Lock()
	s.guard = g
	s.d.mu.Unlock()
	return openStore(s.d.o.FS, s.d.path(s.partition), g, s.d.o.Log)
}

// ask asks for the facts again, which could not be told when the task began, an
// interval after the other until they are known. It reports false where the task
// has ended or the pod stops.
func (s *Session) ask() bool {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	asked := make(chan struct{})
	defer close(asked)
	go func() {
		defer cancel()
		select {
		case <-s.ended:
		case <-s.stop:
		case <-asked:
		}
	}()
	for s.wait(s.d.o.Interval) {
		facts, err := s.scoped(ctx)
		if ctx.Err() != nil {
			return false // they may be those of the next task
		}
		if err != nil {
			s.d.failed(s.partition, err)
			continue
		}
		s.base, s.known = facts, true
		s.head = s.nothing()
		s.d.healed(s.partition)
		return true
	}
	return false
}

// failed hears of each fault of a write.
func (s *Session) failed(err error) {
	s.d.failed(s.partition, err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		s.d.makeRoom()
	}
}

// clear makes sure that nothing is in the store but what may stay. What nobody
// has looked at yet, because the task before still had the store when this one
// began, or the disk did not answer, may stay where it could have been used then:
// the table has every record since, so it is the same checkpoint with more to be
// written, and not to be thrown away before there is another.
func (s *Session) clear() error {
	if s.loaded {
		return nil
	}
	if s.unread {
		s.unread = false
		switch found := s.look().judge(); found.verdict {
		case Used:
			s.loaded, s.head = true, found.head
			return nil
		case Absent:
		default:
			s.discard = found.verdict.String()
			s.setAside(found.verdict, found.why, found.cause)
		}
	}
	if s.discard != "" {
		_, err := s.d.setAside(s.partition, s.discard)
		if err == nil {
			s.discard = ""
		}
		return err
	}
	return s.d.o.FS.RemoveAll(s.d.path(s.partition))
}

// follow writes a checkpoint an interval, and the last one when the task has
// ended. It fails where the store is broken.
func (s *Session) follow(out *store) error {
	s.loaded = true // what is written from now on is the table's
	for s.wait(s.d.o.Interval) {
		if s.d.isOver() != nil {
			return errOver
		}
		if err := s.d.stands(s.lock); err != nil {
			return err
		}
		if err := s.checkpoint(out); err != nil && !errors.Is(err, errNotYet) {
			return err
		}
	}
	select {
	case <-s.ended:
	default:
		return nil
	}
	if err := s.checkpoint(out); err != nil && !errors.Is(err, errNotYet) {
		return err
	}
	return nil
}

const (
	// takeLimit is how many entries are taken while the merge waits: a fifth of
	// a millisecond.
	takeLimit = 1024
	// largePiece is the size from which on a piece needs leave, in bytes.
	largePiece = 256 << 10
	// pieceSize is what is collected at most before it is written, in bytes; it
	// doubles within a checkpoint, so that one ends however fast the table
	// changes.
	pieceSize = 8 << 20
	// headAge is how old the head of a table that does not change may be.
	headAge = 10 * time.Minute

	commitPoll = 50 * time.Millisecond
)

// checkpoint brings the store to where the table stands. What it has written
// when it fails is a checkpoint, too: an older one.
func (s *Session) checkpoint(out *store) error {
	for limit := pieceSize; ; limit *= 2 {
		done, err := s.piece(out, limit)
		if err != nil {
			s.table.Settle(false)
			return err
		}
		if done {
			s.succeeded()
			return nil
		}
	}
}

// piece takes entries until none is left, or more than limit bytes, waits until
// the group has committed all that they are made of, and writes them.
func (s *Session) piece(out *store, limit int) (done bool, err error) {
	b := out.batch()
	large := false
	var since time.Time
	defer func() {
		if large {
			<-s.d.large
		}
		if out.g.why() == nil {
			_ = b.Close()
		}
	}()
	var before Progress
	var next int64
	left, taken := 1, 0
	for left > 0 && b.Len() < limit {
		if !large && b.Len() > largePiece {
			if large = s.leave(); !large {
				return false, errNotYet
			}
			since = s.d.o.Now()
		}
		before = s.progress()
		left, next = s.table.Take(takeLimit, func(symbol string, data []byte) { b.add(symbol, data); taken++ })
	}
	h := s.next(left == 0, next, before)
	if taken == 0 && h.From == s.head.From && h.UpTo == s.head.UpTo &&
		time.Duration(h.Written-s.head.Written)*time.Millisecond < headAge {
		return true, nil
	}
	if err := s.committed(h.UpTo, func() bool { return large && s.d.wanted(since) }); err != nil {
		return false, err
	}
	if err := out.write(b, &h); err != nil {
		return false, err
	}
	s.table.Settle(true)
	s.head = h
	return left == 0, nil
}

// leave waits until another large piece may be in memory.
func (s *Session) leave() bool {
	s.d.waiting.Add(1)
	defer s.d.waiting.Add(-1)
	select {
	case s.d.large <- struct{}{}:
		return true
	case <-s.stop:
		return false
	}
}

// next is the head that goes with a piece. before is where the task stood before
// the last entries were taken: what it had merged then is in the table, control
// records that it had passed included.
func (s *Session) next(whole bool, next int64, before Progress) state.Head {
	now := record.MillisOf(s.d.o.Now())
	h := s.head
	h.Scope = s.base.Scope
	h.Next = next
	h.Written = max(now, h.Since)
	if !whole {
		h.UpTo = max(h.UpTo, next)
		return h
	}
	h.From = max(next, before.Position)
	h.UpTo = max(h.From, h.UpTo)
	switch {
	case before.Next != record.NoTimestamp:
		// Its producer may have dated it back.
		h.Since = max(h.Since, min(now, before.Next))
	case !before.Behind:
		h.Since = now
	}
	return h
}

// committed waits until the group has committed the offset, or until yield says
// that others have waited for long enough.
func (s *Session) committed(offset int64, yield func() bool) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if s.progress().Committed >= offset {
			return nil
		}
		if yield() {
			return errNotYet
		}
		timer.Reset(commitPoll)
		select {
		case <-timer.C:
		case <-s.ended:
			if s.progress().Committed >= offset {
				return nil
			}
			return errNotYet // and never will
		case <-s.stop:
			return errNotYet
		}
	}
}

func (s *Session) succeeded() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.last = s.d.o.Now()
	delete(s.d.problems, s.partition)
	if len(s.d.problems) == 0 && s.d.told && s.d.over == nil {
		s.d.told = false
		s.d.o.Log.Info("checkpoints are written again", zap.String("dir", s.d.o.Path))
	}
}
