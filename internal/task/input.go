package task

import (
	"joiner/internal/record"
)

// input is one side's queue between its claim and the merge. Everything is
// guarded by Task.mu.
type input struct {
	started bool
	ended   bool
	initial int64 // where the claim began; below 0: no commit, at the log's start

	pending []record.Record
	bytes   int
	seq     uint64 // Task.seq when the newest pending record came

	held      int // records offered and not yet merged, pending among them
	heldBytes int
	paused    bool

	position int64 // the next offset that can still come; -1 unknown
	hw       int64 // the highest end heard of

	end endState
}

// endState is what is known of an input's end.
type endState struct {
	known   bool
	offset  int64
	seq     uint64 // Task.seq when it was asked for: it covers all heads received before
	at      record.Millis
	asking  bool
	urgent  bool
	failed  record.Millis // when the last question failed; 0 never
	skimmed record.Millis // when the gap was looked at last; 0 never
	skims   int
}

// Start tells the task that the side's claim has begun at the initial offset;
// below 0 means that the group has no commit for it and the claim begins at
// the log's start.
func (t *Task) Start(side record.Side, initial int64) {
	t.mu.Lock()
	in := &t.in[side]
	in.started = true
	in.initial = initial
	in.position = initial
	t.mu.Unlock()
	t.poke()
}

// Offer queues records of one side, in offset order, and the high watermark
// that came with them. It pauses the claim when too many wait for the merge.
// The slice is copied, what the records point at is not.
func (t *Task) Offer(side record.Side, recs []record.Record, highWatermark int64) {
	if len(recs) == 0 {
		return
	}
	size := 0
	for i := range recs {
		size += recs[i].Size()
	}
	t.mu.Lock()
	in := &t.in[side]
	if t.frozen.Load() {
		t.mu.Unlock()
		return // what comes after the first sign of a revocation is the next owner's
	}
	t.seq++
	in.seq = t.seq
	in.pending = append(in.pending, recs...)
	in.bytes += size
	in.held += len(recs)
	in.heldBytes += size
	in.position = recs[len(recs)-1].Offset + 1
	in.hw = max(in.hw, highWatermark)
	pause := !in.paused && (in.held > t.o.Limits.QueueRecords || in.heldBytes > t.o.Limits.QueueBytes)
	if pause {
		in.paused = true
		t.o.Flow.Pause(side) // under the lock, so that a Resume cannot overtake it
	}
	t.mu.Unlock()
	t.poke()
}

// End tells the task that the side's claim takes no more records. The first
// end freezes both: a closed half is not a caught-up half.
func (t *Task) End(side record.Side) {
	t.mu.Lock()
	in := &t.in[side]
	in.ended = true
	if in.paused {
		// A pause outlives its claim in sarama: it would start the next one paused.
		in.paused = false
		t.o.Flow.Resume(side)
	}
	t.mu.Unlock()
	t.Freeze()
}

// release gives back what the merge has taken and resumes a claim that has
// room again. Called with mu held.
func (t *Task) release(side record.Side, records, bytes int) {
	in := &t.in[side]
	in.held -= records
	in.heldBytes -= bytes
	if !in.paused || in.ended {
		return
	}
	if in.held > t.o.Limits.QueueRecords/2 || in.heldBytes > t.o.Limits.QueueBytes/2 {
		return
	}
	in.paused = false
	t.o.Flow.Resume(side)
}
