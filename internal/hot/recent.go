package hot

// Recent counts the latest part of a stream: the hottest keys of a process's
// whole life say nothing any more after a day. It keeps two sketches, of the
// window that is filling and of the one before; Rotate begins the next window
// and forgets the older one. What a Sketch promises holds for what was added in
// the two windows, with their bounds added up (they are mergeable: Agarwal et
// al., "Mergeable Summaries", PODS 2012).
//
// Windows were preferred to halving all counts now and then since a halved
// count is no bound any more, and the share of a key that has gone would fade
// for ever.
//
// A Recent is not safe for concurrent use.
type Recent struct {
	now, before *Sketch
}

// NewRecent makes a Recent with room for capacity keys in each of its windows;
// below 1 counts as 1.
func NewRecent(capacity int) *Recent {
	return &Recent{now: New(capacity), before: New(capacity)}
}

// AddN counts n occurrences of key in the present window. It does not allocate
// where that window holds the key.
func (r *Recent) AddN(key []byte, n uint64) { r.now.AddN(key, n) }

// Rotate begins a new window.
func (r *Recent) Rotate() {
	r.now, r.before = r.before, r.now
	r.now.clear()
}

// Window is the sum of what was added since the last Rotate.
func (r *Recent) Window() uint64 { return r.now.total }

// Total is the sum of what was added in both windows.
func (r *Recent) Total() uint64 { return r.now.total + r.before.total }

// Top returns the n keys with the highest counts in both windows, highest
// first; of equal counts the surer one.
func (r *Recent) Top(n int) []Key {
	keys := make([]Key, 0, len(r.now.entries)+len(r.before.entries))
	for i := range r.now.entries {
		e := &r.now.entries[i]
		keys = append(keys, sum(e.key(), r.before.get(e.name)))
	}
	for i := range r.before.entries {
		e := &r.before.entries[i]
		if _, both := r.now.ids[e.name]; !both {
			keys = append(keys, sum(e.key(), r.now.get(e.name)))
		}
	}
	return highest(keys, n)
}

func sum(a, b Key) Key {
	return Key{Name: a.Name, Count: a.Count + b.Count, Error: a.Error + b.Error}
}
