package task

import (
	"joiner/internal/record"
)

// input is one side's queue between its reader and the merge. Everything is
// guarded by Task.mu.
type input struct {
	started bool
	initial int64 // where the claim began; below 0: no commit, at the log's start

	pending []chunk           // batches in the order they came
	spare   [][]record.Record // empty batches to be filled again
	seq     uint64            // Task.seq when the newest pending record came
	came    record.Millis     // and the moment

	held      int // records delivered and not yet merged, pending among them
	heldBytes int
	paused    bool

	position int64  // the next offset that can still come; -1 unknown
	asked    uint64 // Task.seq when the request was made whose response comes next
	hw       int64  // the highest end heard of

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
	seq    uint64        // Task.seq when it was asked for: it covers all heads received before
	at     record.Millis // when it was learnt
	since  record.Millis // when this offset was first learnt
	wanted bool          // the merge waits for a newer one, or for records
	asking bool
	urgent bool
	failed record.Millis // when the last question failed; 0 never
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
	t.o.Metrics.SetCommitted(side, initial)
	t.poke()
}

// Batch returns an empty batch to be filled for Deliver.
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

// Full reports whether the side's queue has no room for one more response. It
// is asked before each request: what a response says of the partition's end
// was read after that.
func (t *Task) Full(side record.Side) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := &t.in[side]
	in.asked = t.seq
	return in.paused || t.frozen.Load()
}

// Deliver queues records of one side, in offset order, and takes what came
// with them: the position behind them, which control records move too, the
// partition's end (-1 where the answer does not tell) and its high watermark.
// The batch is the task's from then on: the caller takes the next from Batch.
func (t *Task) Deliver(side record.Side, recs []record.Record, position, end, highWatermark int64) {
	size := 0
	for i := range recs {
		size += recs[i].Size()
	}
	if t.deliver(side, recs, size, position, end, highWatermark) {
		t.poke()
	}
}

// deliver is Deliver under the lock; it reports whether the merge cares.
func (t *Task) deliver(side record.Side, recs []record.Record, size int, position, end, highWatermark int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := &t.in[side]
	if t.frozen.Load() {
		return false // what comes after the first sign of a revocation is the next owner's
	}
	if t.State() < Running {
		defer t.showWaiting(side)
	}
	moved := position > in.position
	in.position = max(in.position, position)
	in.hw = max(in.hw, highWatermark)
	if end >= 0 {
		t.learnEnd(side, in.asked, end)
	}
	if len(recs) == 0 {
		in.recycle(recs)
		return moved || in.end.wanted
	}
	t.seq++
	in.seq = t.seq
	in.came = t.clock()
	in.held += len(recs)
	in.heldBytes += size
	in.queue(recs, size) // the batch may be empty from here on
	in.paused = in.paused || in.held > t.o.Limits.QueueRecords || in.heldBytes > t.o.Limits.QueueBytes
	return true
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
	if recs == nil || len(in.spare) == maxSpare {
		return
	}
	clear(recs) // or what they point at stays in memory until they are overwritten
	in.spare = append(in.spare, recs[:0])
}

// release gives back what the merge has taken and wakes the reader of a side
// that has room again. Called with mu held.
func (t *Task) release(side record.Side, records, bytes int) {
	in := &t.in[side]
	in.held -= records
	in.heldBytes -= bytes
	if !in.paused {
		return
	}
	if in.held > t.o.Limits.QueueRecords/2 || in.heldBytes > t.o.Limits.QueueBytes/2 {
		return
	}
	in.paused = false
	t.o.Flow.Resume(side)
}
