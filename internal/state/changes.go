package state

import (
	"math/bits"
)

// changes notes which entries have changed, for whoever saves the table piece
// by piece: a bit an entry, set where the writer changes one and moved where
// one is taken. The writer touches it under Lock, the one taker under the read
// lock, so that readers go on while entries are taken.
type changes struct {
	pages   [][]numbered // by number
	count   int
	changed []uint64 // a bit an entry: changed since it was last taken
	taken   []uint64 // taken and not settled
	left    int      // bits in changed
	cursor  int      // the word of changed to go on at
	scratch []byte
}

// numbered is the entry of a number, with the key that the map has it under.
type numbered struct {
	symbol string
	e      *entry
}

const (
	pageBits = 10
	pageSize = 1 << pageBits

	// numberedBytes is what an entry takes here, its two bits among it.
	numberedBytes = 24 + 1
)

// TrackChanges makes the table note its changes from now on, for Take. It is
// called before the table has an entry.
func (t *Table) TrackChanges() {
	if len(t.entries) == 0 {
		t.changes = &changes{}
	}
}

// enter numbers an entry and returns what that takes, in bytes.
func (c *changes) enter(symbol string, e *entry) int64 {
	e.newest.number = uint32(c.count)
	if c.count%pageSize == 0 {
		c.pages = append(c.pages, make([]numbered, 0, pageSize))
	}
	page := &c.pages[c.count>>pageBits]
	*page = append(*page, numbered{symbol, e})
	if c.count%64 == 0 {
		c.changed = append(c.changed, 0)
		c.taken = append(c.taken, 0)
	}
	c.count++
	return numberedBytes
}

// mark notes that an entry has changed.
func (c *changes) mark(e *entry) {
	if c != nil {
		c.note(e.newest.number)
	}
}

func (c *changes) note(number uint32) {
	word, bit := number/64, uint64(1)<<(number%64)
	if c.changed[word]&bit == 0 {
		c.changed[word] |= bit
		c.left++
	}
}

// Take calls each with up to limit entries that have changed since they were
// last taken, encoded for Load, and says how many are left and what Next is at
// that moment. Once none is left, all that was taken, over what was saved
// before, is the table as it stands then: entries that change while others are
// being taken are taken again.
//
// One goroutine may take, beside the writer, which waits meanwhile: about 0.2 µs
// an entry. What each is given is valid during the call. Without TrackChanges
// there is nothing to take.
func (t *Table) Take(limit int, each func(symbol string, data []byte)) (left int, next int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c := t.changes
	if c == nil {
		return 0, t.next.Load()
	}
	for ; limit > 0 && c.left > 0; limit-- {
		n := c.pop()
		c.scratch = appendEntry(c.scratch[:0], n.e)
		each(n.symbol, c.scratch)
	}
	return c.left, t.next.Load()
}

// pop moves the next bit of changed to taken; there is one.
func (c *changes) pop() *numbered {
	for c.changed[c.cursor] == 0 {
		c.cursor = (c.cursor + 1) % len(c.changed)
	}
	bit := bits.TrailingZeros64(c.changed[c.cursor])
	c.changed[c.cursor] &^= 1 << bit
	c.taken[c.cursor] |= 1 << bit
	c.left--
	number := c.cursor*64 + bit
	return &c.pages[number>>pageBits][number%pageSize]
}

// Settle tells what became of all that was taken since it was last called: it
// was saved, or it has to be taken again. It is for the one who takes.
func (t *Table) Settle(saved bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c := t.changes
	if c == nil {
		return
	}
	if saved {
		clear(c.taken)
		return
	}
	c.left = 0
	for i, taken := range c.taken {
		c.changed[i] |= taken
		c.left += bits.OnesCount64(c.changed[i])
	}
	clear(c.taken)
}

// TakeAll makes all entries ones to be taken, as where what was saved is lost.
// It is for the one who takes.
func (t *Table) TakeAll() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c := t.changes
	if c == nil {
		return
	}
	for i := range c.changed {
		c.changed[i] = ^uint64(0)
	}
	if rest := c.count % 64; rest > 0 {
		c.changed[len(c.changed)-1] = 1<<rest - 1
	}
	clear(c.taken)
	c.left = c.count
}
