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

	pending []chunk           // batches in the order they came
	spare   [][]record.Record // empty batches to be filled again
	seq     uint64            // Task.seq when the newest pending record came

	held      int // records offered and not yet merged, pending among them
	heldBytes int
	paused    bool

	position int64 // the next offset that can still come; -1 unknown
	hw       int64 // the highest end heard of

	end endState
}

// chunk is a queued batch and about how much it holds in memory.
type chunk struct {
	recs  []record.Record
	bytes int
}

// endState is what is known of an input's end.
type endState struct {
	known  bool
	offset int64
	seq    uint64 // Task.seq when it was asked for: it covers all heads received before
	at     record.Millis
	asking bool
	urgent bool
	failed record.Millis // when the last question failed; 0 never

	missing  int64         // the position at which nothing comes
	since    record.Millis // since when, or when the log was looked at
	skimming bool
	wasted   int // looks that found the records to be there, in a row
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

// Batch returns an empty batch to be filled for Offer.
func (t *Task) Batch(side record.Side) []record.Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := &t.in[side]
	if n := len(in.spare); n > 0 {
		b := in.spare[n-1]
		in.spare[n-1] = nil
		in.spare = in.spare[:n-1]
		return b
	}
	return make([]record.Record, 0, BatchSize)
}

// BatchSize is how many records a batch of Batch holds without growing.
const BatchSize = 256

// maxSpare bounds the empty batches kept for one side.
const maxSpare = 8

// Offer queues records of one side, in offset order, and the high watermark
// that came with them. It pauses the claim when too many wait for the merge.
// The batch is the task's from then on: the caller takes the next from Batch.
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
	in.held += len(recs)
	in.heldBytes += size
	in.position = recs[len(recs)-1].Offset + 1
	in.queue(recs, size) // the batch may be empty from here on
	in.hw = max(in.hw, highWatermark)
	pause := !in.paused && (in.held > t.o.Limits.QueueRecords || in.heldBytes > t.o.Limits.QueueBytes)
	if pause {
		in.paused = true
		t.o.Flow.Pause(side) // under the lock, so that a Resume cannot overtake it
	}
	t.mu.Unlock()
	t.poke()
}

// queue appends a batch. A small one goes into the room that the last one has
// left, or a slow merge would hold a batch for every record.
func (in *input) queue(recs []record.Record, bytes int) {
	if n := len(in.pending); n > 0 {
		last := &in.pending[n-1]
		if len(recs) <= cap(last.recs)-len(last.recs) {
			last.recs = append(last.recs, recs...)
			last.bytes += bytes
			in.recycle(recs)
			return
		}
	}
	in.pending = append(in.pending, chunk{recs, bytes})
}

// recycle keeps an empty batch to be filled again.
func (in *input) recycle(recs []record.Record) {
	if len(in.spare) == maxSpare {
		return
	}
	clear(recs) // or what they point at stays in memory until they are overwritten
	in.spare = append(in.spare, recs[:0])
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
