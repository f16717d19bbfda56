package deliver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"joiner/internal/record"
)

// The group does not know the member of the session before: a new session has
// begun while the transaction was under way, and its tasks are nobody's to drop.
func TestTransactionOfTheSessionBefore(t *testing.T) {
	x := newTransacting(t)
	for _, j := range x.tasks {
		j.join(10, never)
	}
	x.coord.next(onCommitOffsets, trouble{err: sarama.ErrUnknownMemberId, happened: func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.member, x.generation = "me, joined again", x.generation+1
	}})
	x.round(context.Background())
	if diff := cmp.Diff(map[Outcome]int{Aborted: 1}, x.is()); diff != "" {
		t.Error(diff)
	}
	if x.fencedNow {
		t.Error("the session that has begun since was ended")
	}
	x.finish(10)
	x.prove(10)
}

// An attempt to make the producer that nobody answered may be carried out after
// the one that was: then it is not somebody else who has the id. Twice is.
func TestTransactorFencedByItself(t *testing.T) {
	x := newTransacting(t)
	x.coord.next(onInit, trouble{err: sarama.ErrRequestTimedOut})
	x.standing = fresh
	if x.remake(context.Background()) {
		t.Fatal("made without an answer")
	}
	for _, j := range x.tasks {
		j.join(10, never)
	}
	x.coord.next(onAddOffsets, trouble{err: sarama.ErrProducerFenced})
	x.round(context.Background())
	if x.fencedNow || x.is()[Fenced] > 0 {
		t.Error("the tasks were given up for a request of our own")
	}
	x.coord.next(onAddOffsets, trouble{err: sarama.ErrProducerFenced})
	eventually(t, "somebody else has the id", func() bool {
		x.round(context.Background())
		return x.fencedNow
	})
	x.finish(10)
	x.prove(10)
}

// The end of a transaction has time of its own, after all that was given to its
// records.
func TestTheEndOfATransactionHasTime(t *testing.T) {
	x := newTransacting(t)
	x.tasks[0].join(1, never)
	x.round(context.Background())
	spare := x.coord.until[onEnd].Sub(x.coord.until[onCommitOffsets])
	if want := x.o.Timeout / 5; spare < want/2 || spare > 2*want {
		t.Errorf("the end may last %v longer than the rest, want %v", spare, want)
	}
}

// An input partition that is not there any more stops its own task only, which is
// named.
func TestTransactionsGoOnWithoutAMissingInput(t *testing.T) {
	x := newTransacting(t)
	for _, j := range x.tasks {
		j.join(10, never)
	}
	x.coord.next(onCommitOffsets, trouble{err: &PartitionFaults{
		Faults: []Fault{{"notes", 1, "UNKNOWN_TOPIC_OR_PARTITION"}}, Err: sarama.ErrUnknownTopicOrPartition,
	}})
	x.round(context.Background())
	if f := x.Faults(); len(f) != 1 || f[0].Topic != "notes" || f[0].Partition != 1 {
		t.Errorf("faults: %v", f)
	}
	if p := x.tasks[1]; !x.part(p).until.After(time.Now().Add(-time.Minute)) || x.part(p).strikes != 1 {
		t.Errorf("the task does not sit out: %+v", x.part(p))
	}
	if n := x.part(x.tasks[0]).strikes + x.part(x.tasks[2]).strikes; n > 0 {
		t.Error("others sit out with it")
	}
	x.finish(10)
	x.prove(10)
}

func (x *transacting) part(j *joined) *part {
	x.Transactor.mu.Lock()
	defer x.Transactor.mu.Unlock()
	return x.Transactor.tasks[j]
}

// A trial of a partition that has no leader begins no transaction: it could not
// be aborted before there is one, and everybody would wait for that.
func TestNoTrialWithoutALeader(t *testing.T) {
	x := newTransacting(t)
	x.tasks[1].join(10, never)
	p := x.part(x.tasks[1])
	p.strikes = 1
	x.fake.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		x.fake.KeepControl()
		answer := r.ResponseKind().(*kmsg.MetadataResponse)
		topic := kmsg.NewMetadataResponseTopic()
		name := "alerts"
		topic.Topic = &name
		for id := range int32(txnTasks) {
			one := kmsg.NewMetadataResponseTopicPartition()
			one.Partition, one.Leader, one.ErrorCode = id, -1, kerr.LeaderNotAvailable.Code
			topic.Partitions = append(topic.Partitions, one)
		}
		answer.Topics = append(answer.Topics, topic)
		return answer, nil, true
	})
	before := x.coord.count(onAddPartitions)
	x.round(context.Background())
	if n := x.coord.count(onAddPartitions) - before; n > 0 {
		t.Errorf("%d transactions began", n)
	}
	if f := x.Faults(); len(f) != 1 || f[0].Reason != "LEADER_NOT_AVAILABLE" {
		t.Errorf("faults: %v", f)
	}
	if p.strikes != 2 || !p.until.After(time.Now().Add(-time.Minute)) {
		t.Errorf("it does not sit out: %+v", p)
	}
	x.fake.Control(func(kmsg.Request) (kmsg.Response, error, bool) { return nil, nil, false })
}

// What all transactions wait for is told, once it has lasted a while.
func TestTransactorSaysWhatItWaitsFor(t *testing.T) {
	x := newTransacting(t)
	if w := x.Waits(); w != "" {
		t.Errorf("%q, and nothing is waited for", w)
	}
	x.standing = fresh
	x.coord.next(onInit, trouble{err: fmt.Errorf("making a transactional producer: %w", sarama.ErrConcurrentTransactions)})
	x.remake(context.Background())
	if w := x.Waits(); w != "" {
		t.Errorf("%q, after a moment", w)
	}
	long := *x.wait.Load()
	long.since = long.since.Add(-time.Minute)
	x.wait.Store(&long)
	x.coord.next(onInit, trouble{err: fmt.Errorf("making a transactional producer: %w", sarama.ErrConcurrentTransactions)})
	x.remake(context.Background())
	for _, part := range []string{"since " + long.since.UTC().Format(time.RFC3339), sarama.ErrConcurrentTransactions.Error()} {
		if w := x.Waits(); !strings.Contains(w, part) {
			t.Errorf("%q does not say %q", w, part)
		}
	}
	if !x.remake(context.Background()) || x.Waits() != "" {
		t.Errorf("made, and still waiting: %q", x.Waits())
	}
}

// A ledger is full of small outputs long before they are plenty of bytes: they do
// not wait for the interval either.
func TestManySmallOutputsDoNotWaitForTheInterval(t *testing.T) {
	x := newTransacting(t)
	all := outputs(newLedger(), "alerts", 0, 0, plentyOutputs-1)
	for _, o := range all {
		o.Key, o.Value = nil, nil
	}
	x.Send(all)
	if len(x.kick) > 0 {
		t.Error("a transaction before its time")
	}
	x.Send([]*record.Output{{}})
	if len(x.kick) == 0 {
		t.Error("as many outputs as fill a ledger wait for the interval")
	}
}

// An attempt that nobody answered is not carried out for ever: once transactions
// were committed for as long as one may last, whoever fences is somebody else.
func TestTransactorDoubtsItselfForAWhile(t *testing.T) {
	for name, test := range map[string]struct {
		ago    time.Duration // that the attempt came to no answer
		fenced bool
	}{
		"just now":    {time.Second, false},
		"a while ago": {11 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTransacting(t)
			x.coord.next(onInit, trouble{err: sarama.ErrRequestTimedOut})
			x.standing = fresh
			if x.remake(context.Background()) {
				t.Fatal("made without an answer")
			}
			for _, j := range x.tasks {
				j.join(10, never)
			}
			x.doubt = time.Now().Add(-test.ago)
			eventually(t, "a committed transaction", func() bool {
				x.round(context.Background())
				return x.is()[Committed] > 0
			})
			for _, j := range x.tasks {
				j.join(20, never)
			}
			x.coord.next(onAddOffsets, trouble{err: sarama.ErrProducerFenced})
			eventually(t, "the answer", func() bool {
				x.round(context.Background())
				return x.is()[Fenced] > 0 || x.is()[Aborted] > 0
			})
			if x.fencedNow != test.fenced {
				t.Errorf("fenced %t, want %t: %v", x.fencedNow, test.fenced, x.is())
			}
		})
	}
}
