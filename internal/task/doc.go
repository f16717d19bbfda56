// Package task runs one partition index: it merges the index's ticks and
// notifications by event time, joins each notification with the price table,
// hands the outputs to a sink and knows how far it may be committed.
//
// A record's way through it: a reader delivers it (input.go), the merge takes it
// in event-time order (merge.go), a tick goes into the table, a notification
// is joined (join.go) and takes a place in the ledger (ledger.go) until its
// output is acknowledged. Before the first join the table is restored
// (restore.go). Other tasks ask this one for prices (lookup.go).
//
// One goroutine, the merge, owns everything but the input queues and the
// ledger's list; it never waits for a broker, a look-up or a waiting
// notification. The package must never see a claim, a sarama client, HTTP or
// the configuration: what it needs of the world are the interfaces below.
package task

import (
	"context"
	"errors"
	"time"

	"joiner/internal/record"
	"joiner/internal/state"
)

// Ends tells where a partition ends for a reader of this isolation level.
type Ends interface {
	// Ask answers with an end offset that was read after the call. done is
	// called exactly once, from another goroutine; after an error the task
	// asks again. urgent is set when a notification waits for the answer;
	// otherwise the question may be held back some 50 ms for company.
	Ask(topic string, partition int32, urgent bool, done func(end int64, err error))
}

// Log reads a partition without a claim.
type Log interface {
	// Bounds returns the log's start and the end for this isolation level.
	Bounds(ctx context.Context, topic string, partition int32) (start, end int64, err error)
	// Read calls each with the visible records from `from` up to but not
	// including `to`, in order, and returns once every offset below `to` is
	// known to be read or invisible (a control record, an aborted, a compacted
	// or a deleted one). It repeats what can be repeated until ctx ends, waits
	// for open transactions, and fails with ErrGone where `to` cannot be reached.
	Read(ctx context.Context, topic string, partition int32, from, to int64, each func([]record.Record) error, progress func(position int64)) error
	// Tries counts the questions put to brokers about the partition, by Bounds
	// and Read; waiting tells that one is under way. It waits for nobody.
	Tries(topic string, partition int32) (n uint64, waiting bool)
}

// ErrGone is what Log.Read fails with where what it was to read is not in the
// log any more and will not come back: the log ends below it, or belongs to
// another topic of the same name.
var ErrGone = errors.New("offsets are gone")

// Sink takes encoded outputs.
type Sink interface {
	// Send hands outputs over and never blocks. Order is kept within a
	// partition of a topic. Each output's owner is told its fate exactly once
	// unless the output is dropped.
	Send(outputs []*record.Output)
	// Drop forgets the owner's outputs that are not in a request under way;
	// their fate is not told any more. It returns how many outputs of the
	// owner were unsettled.
	Drop(owner record.Owner) int
}

// Query asks for the price of a symbol at an event time.
type Query struct {
	Symbol    string
	Partition int32 // of the market topic; AnyPartition: every owner may hold it
	Except    int32 // with AnyPartition: the one that has been asked already
	At        record.Millis
	// Since is when the answer was first wanted; zero: now. join.max_idle is
	// counted from it, however often and whomever somebody asks.
	Since time.Time
	// Begun is when the first of the questions that belong together was asked: for
	// one notification, of one partition after another. Their askers' patience is
	// counted from it; zero: now.
	Begun time.Time
	// Ticket is what Lookup returned when the question was asked before; zero:
	// it was not.
	Ticket Ticket
}

// Ticket says when a task was first asked a question, by its own count. Shown
// with a later attempt it makes the ends of the partition that were asked for
// since then count: where a broker takes longer to tell one than an attempt
// lasts, no attempt would ever be answered. Another task takes no notice of it.
type Ticket struct {
	Task uint64 // who gave it; 0: nobody
	Seq  uint64 // of that task's count
}

// AnyPartition in a Query: nobody knows which partition holds the symbol.
const AnyPartition int32 = -1

// Outcome says how a look-up ended.
type Outcome uint8

// The outcomes of a look-up.
const (
	Found       Outcome = iota
	NoPrice             // the owner, restored and at the end it saw, has none
	NotAsked            // another pod owns the partition and look-ups are off
	Unanswered          // asked, and no owner answered in time
	Moved               // the task asked is not the owner any more: ask again
	Unready             // it has not read up to the end that it saw at its start: ask again
	Busy                // too many ask it: ask again
	outcomesEnd = iota
)

// Answer is what a look-up brought.
type Answer struct {
	Outcome   Outcome
	Price     record.Price
	AsOf      bool  // Price was in force at the event time asked for
	Partition int32 // that answered
	Next      int64 // one above the owner's last merged record of Partition; 0 none
	Known     bool  // Partition and Next are valid: somebody answered
	Held      bool  // with NoPrice: the table knows that the symbol has none any more
}

// Prices finds prices that are not in this task's table.
type Prices interface {
	// Owns reports whether this pod owns the market partition.
	Owns(partition int32) bool
	// Ask calls done exactly once, from any goroutine, with Found, NoPrice,
	// NotAsked or Unanswered, which it is Options.Patience after q.Begun at the
	// latest, but for an attempt that is under way then. Once ctx has ended nobody waits for the answer,
	// and it may not come.
	Ask(ctx context.Context, q Query, done func(Answer))
}

// Flow lets a reader that found the task Full go on.
type Flow interface {
	// Resume says that there is room again. It is called with the task's lock
	// held and must not call the task.
	Resume(side record.Side)
}

// Checkpoint keeps a task's table where a restart of the process does not reach
// it. The task calls its methods one after the other; none but Load waits.
type Checkpoint interface {
	// Load fills the table, which is empty, if it can, and returns from where
	// the log has to be read: start if it cannot. committed is where the claim
	// begins, 0 or less where the group has no commit. It may be called again,
	// after a restore that failed.
	Load(ctx context.Context, table *state.Table, start, committed, end int64) (from int64)
	// Begin says that the table changes from now on. progress may be called
	// from any goroutine until the table has ended.
	Begin(progress func() Progress)
	// End says that neither the table nor what is committed changes any more.
	// It is called once, whether Begin was or not.
	End()
}

// Progress is how far a task has come with market-updates.
type Progress struct {
	Position  int64         // every record below it is in the table
	Committed int64         // what the group has; below 0: nothing of this task
	Next      record.Millis // timestamp of the record that waits at or above Position; record.NoTimestamp: none does
	Behind    bool          // the log is known to have more at or above Position, whether any of it waits or not
}
