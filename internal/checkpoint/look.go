package checkpoint

import (
	"context"
	"errors"

	"joiner/internal/record"
	"joiner/internal/state"
)

// look looks at what a partition's store holds, for a task that begins or has
// begun.
type look struct {
	d         *Dir
	partition int32
	facts     Facts
	begins    Range
}

// finding is what a look has found.
type finding struct {
	verdict Verdict
	unread  bool // nobody could look
	why     string
	cause   error
	head    state.Head // where the verdict is Used

	aside    string // where it was moved to, "" where there was nothing
	notMoved error
}

// moveAside moves it out of the way.
func (f *finding) moveAside(d *Dir, partition int32) {
	f.aside, f.notMoved = d.setAside(partition, f.verdict.String())
}

// judge says whether the checkpoint may be used, without reading its entries.
func (l look) judge() finding {
	in, found := l.open()
	if in != nil {
		_ = in.close()
	}
	return found
}

// load fills the table of the errand where the checkpoint may be used, and sets
// aside what may not be. Unless the verdict is Used, the table may be half full.
func (l look) load(ctx context.Context, e *errand) finding {
	found := l.read(ctx, e)
	if found.verdict != Used && found.verdict != Absent {
		found.moveAside(l.d, l.partition)
	}
	return found
}

func (l look) read(ctx context.Context, e *errand) finding {
	in, found := l.open()
	if in == nil {
		return found
	}
	defer func() { _ = in.close() }()
	if found.verdict != Used {
		return found
	}
	switch err := fill(ctx, e, in, found.head.Next); {
	case err == nil:
		return found
	case ctx.Err() != nil, errors.Is(err, errLeft):
		return finding{verdict: Absent, unread: true}
	default:
		return finding{verdict: Damaged, why: "its entries cannot be read", cause: err}
	}
}

// open opens the store and judges its head. There is a reader where there is one
// to be closed.
func (l look) open() (*reader, finding) {
	path := l.d.path(l.partition)
	if there, err := exists(l.d.o.FS, path); err != nil || !there {
		return nil, finding{verdict: Absent}
	}
	in, err := openReader(l.d.o.FS, path, l.d.o.Log)
	if err != nil {
		return nil, finding{verdict: verdictOf(err), why: "it cannot be opened", cause: err}
	}
	head, err := in.head()
	switch {
	case errors.Is(err, errUnfinished):
		return in, finding{verdict: Absent}
	case err != nil:
		return in, finding{verdict: verdictOf(err), why: "its head cannot be read", cause: err}
	}
	verdict, why := judge(&head, &l.facts, l.begins, record.MillisOf(l.d.o.Now()))
	return in, finding{verdict: verdict, why: why, head: head}
}

// Entries are put into the table so many at a time, or so many bytes.
const (
	loadBatch = 1024
	loadBytes = 64 << 10
)

// fill loads the entries, and lets readers of the table in between: it does not
// have the table while it waits for the disk. It ends with ctx: until a task that
// is taken away has ended the whole group waits.
func fill(ctx context.Context, e *errand, in *reader, next int64) error {
	var read entries
	load := func() error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return e.fill(read.load)
	}
	err := in.entries(func(symbol, data []byte) error {
		read.add(symbol, data)
		if len(read.ends) < 2*loadBatch && len(read.bytes) < loadBytes {
			return nil
		}
		return load()
	})
	if err == nil {
		err = load()
	}
	if err != nil {
		return err
	}
	return e.fill(func(t *state.Table) error { t.Loaded(next); return nil })
}

// entries are entries that were read and are not in the table yet.
type entries struct {
	bytes []byte // symbol, data, symbol, data, ...
	ends  []int  // of each of them
}

func (r *entries) add(symbol, data []byte) {
	r.bytes = append(r.bytes, symbol...)
	r.ends = append(r.ends, len(r.bytes))
	r.bytes = append(r.bytes, data...)
	r.ends = append(r.ends, len(r.bytes))
}

// load puts them into the table and forgets them.
func (r *entries) load(t *state.Table) error {
	at := 0
	for i := 0; i < len(r.ends); i += 2 {
		symbol, data := r.bytes[at:r.ends[i]], r.bytes[r.ends[i]:r.ends[i+1]]
		at = r.ends[i+1]
		if err := t.Load(symbol, data); err != nil {
			return err
		}
	}
	r.bytes, r.ends = r.bytes[:0], r.ends[:0]
	return nil
}
