package deliver

import (
	"time"

	"joiner/internal/record"
)

// place says who holds a partition. Only the holder touches its open batch and
// decides where it goes next, so that a leader's move cannot hand one batch to
// two senders.
type place uint8

const (
	idle    place = iota // nothing to send
	ready                // in its leader's list
	sending              // in a request under way
	waiting              // with the router: no leader, no identity, or a pause
)

// identity is what the broker knows a producer by (KIP-98). The zero value is
// none; generation counts the identities that this writer was given.
type identity struct {
	id         int64
	epoch      int16
	generation int
	// transactional batches are marked as such.
	transactional bool
}

// partition is one output partition: its queue, its open batch, its sequence.
// All of it is guarded by the writer's lock, but for the batch while sending.
type partition struct {
	topic *topic
	id    int32

	at    place
	queue []entry // behind the open batch, from head on
	head  int
	bytes int // of the queue
	batch batch

	ident identity
	seq   int32
	// renew: the sequence may be out of step with the broker's; nothing goes
	// out before the partition has an identity that it never used.
	renew bool

	leader *sender
	due    time.Time // not to be routed before, while waiting
	pauses int       // in a row, for the length of the next

	// unverified: since when the broker has been answering what it does while it
	// cannot verify the batch's transaction; zero: it is not.
	unverified time.Time

	failing failing // while attempts fail

	turns uint64 // how often its holder has looked after it

	fault      string // why outputs wait for a person; "" none
	fromBroker bool   // the fault came with an answer to Produce: only an answer ends it

	// After a refusal that names no record: the first suspects outputs go out
	// at most split at a time, until the bad one stands alone.
	suspects, split int
}

func (p *partition) queued() int { return len(p.queue) - p.head }

func (p *partition) empty() bool { return !p.batch.open() && p.queued() == 0 }

func (p *partition) push(e entry) {
	if p.head > 0 && len(p.queue) == cap(p.queue) && p.head >= len(p.queue)/2 {
		n := copy(p.queue, p.queue[p.head:])
		clear(p.queue[n:])
		p.queue, p.head = p.queue[:n], 0
	}
	p.queue = append(p.queue, e)
	p.bytes += e.size
}

// size is about what the partition's next batch takes in a request, in bytes.
func (p *partition) size() int {
	if p.batch.open() {
		return p.batch.bytes
	}
	return batchOverhead + min(p.bytes, p.topic.batchBytes())
}

// fill opens the next batch from the queue, if none is open.
func (p *partition) fill() {
	if p.batch.open() {
		return
	}
	most := p.queued()
	if p.suspects > 0 {
		most = min(most, p.suspects, p.split)
	}
	limit := p.topic.batchBytes()
	total := batchOverhead
	for i := 0; i < most; i++ {
		e := p.queue[p.head]
		total += e.size + deltaSlack
		if i > 0 && total > limit {
			break
		}
		p.batch.entries = append(p.batch.entries, e)
		p.batch.bytes = total
		p.bytes -= e.size
		p.queue[p.head] = entry{}
		p.head++
	}
	if p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	}
}

// unfill puts the open batch's outputs back in front of the queue, but for
// those that nobody wants and those that skip names, and closes it.
func (p *partition) unfill(skip func(i int) bool) {
	kept := make([]entry, 0, len(p.batch.entries)+p.queued())
	for i, e := range p.batch.entries {
		if skip(i) || !p.batch.wanted(e.out) {
			continue
		}
		kept = append(kept, e)
		p.bytes += e.size
	}
	p.queue, p.head = append(kept, p.queue[p.head:]...), 0
	p.batch.close()
}

// drop forgets owner's outputs and returns how many there were.
func (p *partition) drop(owner record.Owner) int {
	n := p.dropQueued(owner) + p.dropOpen(owner)
	if p.empty() {
		p.fault = ""
	}
	return n
}

func (p *partition) dropQueued(owner record.Owner) int {
	before := p.queued()
	kept := p.queue[:p.head]
	for _, e := range p.queue[p.head:] {
		if e.out.Owner == owner {
			p.bytes -= e.size
			continue
		}
		kept = append(kept, e)
	}
	clear(p.queue[len(kept):])
	p.queue = kept
	return before - p.queued()
}

func (p *partition) dropOpen(owner record.Owner) int {
	n := 0
	for i := range p.batch.entries {
		o := p.batch.entries[i].out
		if o.Owner == owner && p.batch.wanted(o) {
			n++
		}
	}
	if n == 0 {
		return 0
	}
	p.batch.dropped = append(p.batch.dropped, owner)
	if p.at != sending {
		p.reduce()
	}
	return n
}

// reduce takes what nobody wants out of the open batch, if the broker surely
// does not have it. A batch that it may have stays whole, and is given up,
// with its sequence, once nobody wants any of it.
func (p *partition) reduce() {
	switch {
	case !p.batch.uncertain:
		p.unfill(func(int) bool { return false })
	case p.batch.abandoned():
		p.batch.close()
		p.renew = true
	}
}
