package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/record"
)

// failed does what a transaction that was not committed leaves to do, and
// returns why it was not.
func (t *Transactor) failed(x *transaction, began, lost bool, err error) error {
	err = fmt.Errorf("transaction of %d outputs: %w", len(x.outputs), err)
	unwritten := t.o.Writer.forget()
	what := t.milder(verdictOf(err, lost, time.Since(x.began) >= t.o.Timeout), x)
	t.warn(x, what, err)
	if began {
		t.standing = fresh // made anew at once, which aborts what is open
		signal(t.kick)
		t.o.OnOutcome(what.outcome())
	}
	switch what {
	case undecided:
		t.open = x
	case usurped:
		// Whoever has the id may well be alive: it is not taken back before
		// there is something to write under a new membership.
		t.standing = fenced
		t.giveUp()
	case expelled:
		t.giveUp()
	case outdated:
		t.refused, t.refusedSince = x.member, time.Now()
	case unwritable:
		t.sitOut(x, unwritten, err)
	case expired:
		t.most = max(t.most/2, leastBytes)
		t.pause()
	case poisoned:
		// Told only now: the tasks make dead letters of them, and the next
		// transaction has those in their place.
		for _, r := range x.refusals() {
			r.out.Owner.Settled(r.out, r.err)
		}
	case undone:
		t.pause()
	}
	if what == usurped || what == expelled {
		return fmt.Errorf("%w: %w", ErrDropped, err)
	}
	return err
}

// milder takes a verdict back that is not about those whom it would hit.
func (t *Transactor) milder(what ending, x *transaction) ending {
	switch what {
	case expelled:
		// It is the session before that the group does not know: the tasks of
		// the one that has begun since are well.
		if m, ok := t.o.Member(); ok && m.MemberID != x.member.MemberID {
			return outdated
		}
	case usurped:
		// Whoever has the id may be this producer, made twice. Once that is tried,
		// it is somebody else.
		if !t.doubt.IsZero() {
			t.doubt = time.Time{}
			return undone
		}
	case undone, outdated, poisoned, unwritable, expired, undecided:
	}
	return what
}

// pause keeps a transaction that fails from failing as often as it can.
func (t *Transactor) pause() {
	t.notBefore = time.Now().Add(min(firstPause<<t.failures, lastPause))
	t.failures = min(t.failures+1, 8)
}

// ending is what follows from the error that ended a transaction.
type ending uint8

const (
	undone     ending = iota // aborted; the same again
	outdated                 // aborted; the same again in the next generation
	poisoned                 // aborted; the same again without what was refused
	unwritable               // aborted; the same again without the tasks that it failed for
	expired                  // aborted for its length; the same again, in smaller portions
	expelled                 // the group does not know the member any more
	usurped                  // another producer has the id
	undecided                // nobody has told whether it was committed
)

func (e ending) outcome() Outcome {
	switch e {
	case expelled, usurped:
		return Fenced
	case undecided:
		return Unknown
	default:
		return Aborted
	}
}

// verdictOf sorts the error that ended a transaction. lost: its end may have
// been carried out. overdue: the coordinator has aborted it by now.
func verdictOf(err error, lost, overdue bool) ending {
	var faults *PartitionFaults
	switch {
	case lost:
		return undecided
	case errors.Is(err, sarama.ErrUnknownMemberId), errors.Is(err, sarama.ErrFencedInstancedId):
		return expelled
	case errors.Is(err, sarama.ErrProducerFenced), errors.Is(err, sarama.ErrInvalidProducerEpoch):
		// The coordinator fences a producer, too, whose transaction it aborts.
		if overdue {
			return expired
		}
		return usurped
	case errors.Is(err, sarama.ErrIllegalGeneration), errors.Is(err, sarama.ErrRebalanceInProgress):
		return outdated
	case errors.Is(err, errRefused):
		return poisoned
	case errors.As(err, &faults), errors.Is(err, errStuck):
		return unwritable
	case overdue, errors.Is(err, errSlow):
		return expired
	default:
		return undone
	}
}

func (t *Transactor) warn(x *transaction, what ending, err error) {
	say, text := t.faults.Warn, "a transaction was aborted, its outputs go out again"
	switch what {
	case outdated:
		t.log.Info("the group has moved on, a transaction goes out again in its next generation",
			zap.Int32("generation", x.member.Generation), zap.Int("outputs", len(x.outputs)), errorField(err))
		return
	case undecided:
		text = "it is not known whether a transaction was committed, looking at the group's offsets"
	case usurped, expelled:
		text = "fenced: the tasks are given up and the group is joined again"
	case undone, poisoned, unwritable, expired:
	}
	say("transaction "+causeOf(err), text, errorField(err), zap.String("group", x.member.Group),
		zap.Int32("generation", x.member.Generation), zap.String("member_id", x.member.MemberID),
		zap.Int("outputs", len(x.outputs)), zap.Duration("after", time.Since(x.began)))
}

// giveUp drops all tasks that there are: whatever they still want to commit is
// somebody else's by now.
func (t *Transactor) giveUp() {
	t.mu.Lock()
	for _, p := range t.tasks {
		p.dropped = true
	}
	t.mu.Unlock()
	t.o.OnFenced()
}

// sitOut leaves tasks out of the next transactions whose output partitions
// could not be written to, so that the others go on.
func (t *Transactor) sitOut(x *transaction, unwritten []Fault, err error) {
	var refused *PartitionFaults
	if errors.As(err, &refused) {
		unwritten = refused.Faults
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range x.shares {
		s := &x.shares[i]
		faults := append(faultsOf(s.outputs, unwritten), t.faultsOfOffsets(s, unwritten)...)
		if len(faults) > 0 {
			s.part.faults = faults
			s.part.until = time.Now().Add(min(faultPause<<s.part.strikes, longestPause))
			s.part.strikes = min(s.part.strikes+1, 8)
		}
	}
}

// faultsOf picks the faults that are about the outputs' partitions.
func faultsOf(outputs []*record.Output, all []Fault) (faults []Fault) {
	for _, f := range all {
		for _, o := range outputs {
			if o.Topic == f.Topic && o.Partition == f.Partition {
				faults = append(faults, f)
				break
			}
		}
	}
	return faults
}

// faultsOfOffsets picks the faults that are about the share's input partitions:
// offsets of one that is not there any more are refused.
func (t *Transactor) faultsOfOffsets(s *share, all []Fault) (faults []Fault) {
	for _, f := range all {
		for side, topic := range t.o.Topics {
			if s.changed[side] && f.Topic == topic && f.Partition == s.part.task.Index() {
				faults = append(faults, f)
			}
		}
	}
	return faults
}

// resolve finds out what became of a transaction whose end was not answered.
// The producer is a new one by then, so nothing of the old is pending; a task
// that is still ours has been committed by nobody else, so its offsets tell.
func (t *Transactor) resolve(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	x := t.open
	asked := make(map[string][]int32, record.Sides)
	for topic, partitions := range t.offsets(x) {
		for p := range partitions {
			asked[topic] = append(asked[topic], p)
		}
	}
	have, err := t.o.Coordinator.Committed(ctx, asked)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.faults.Warn("resolve", "it is still not known whether a transaction was committed", zap.Error(err))
		}
		return false
	}
	t.open = nil
	kept := 0
	for i := range x.shares {
		s := &x.shares[i]
		if t.has(s, have) {
			kept++
			t.settle(s)
		}
	}
	t.log.Info("a transaction without an answer is resolved",
		zap.Int("tasks_committed", kept), zap.Int("tasks_to_send_again", len(x.shares)-kept))
	return true
}

// has compares for equality: a task whose topic was made anew, or truncated, begins
// below what was committed before.
func (t *Transactor) has(s *share, have map[string]map[int32]int64) bool {
	for side, topic := range t.o.Topics {
		if s.changed[side] && have[topic][s.part.task.Index()] != s.to[side] {
			return false
		}
	}
	return true
}

// errMovedOn: the group has given the partition on. It is Kafka's own error,
// since that is what its coordinator would say if it knew.
var errMovedOn error = sarama.ErrIllegalGeneration

// retried reports whether CommitNow waits for another transaction after one that
// failed so.
func retried(err error) bool {
	for _, final := range []error{
		ErrNoMember, ErrDropped, errMovedOn, context.Canceled,
		sarama.ErrGroupAuthorizationFailed, sarama.ErrTransactionalIDAuthorizationFailed,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	var faults *PartitionFaults
	return !errors.As(err, &faults)
}
