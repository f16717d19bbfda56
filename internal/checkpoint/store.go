package checkpoint

import (
	"errors"
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"joiner/internal/state"
)

// What a store holds: the head, and an entry for each symbol.
const (
	headKey     = "h"
	entryPrefix = 'e'
)

var errUnfinished = errors.New("it has no head: it was never written to the end")

// storeFormat is the store's own format; a later version of the library keeps
// reading and writing it until we say otherwise.
const storeFormat = pebble.FormatValueSeparation

// storeOptions makes many stores in one process cheap: small tables in memory,
// and no cache to speak of, since nothing is read but once.
func storeOptions(fs vfs.FS, log *zap.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:                 fs,
		FormatMajorVersion: storeFormat,
		CacheSize:          1 << 20,
		MaxOpenFiles:       128,
		MemTableSize:       4 << 20,
		DisableTableStats:  true,
		Logger:             storeLog{log},
		EventListener:      &pebble.EventListener{},
	}
	o.Experimental.FileCacheShards = 1
	return o
}

// storeLog keeps the store's own log out of ours, and the process alive as far
// as that can be: what the store calls fatal after a failed write cannot happen
// behind the guard, and what is left is a mistake in the program.
type storeLog struct{ log *zap.Logger }

// Infof implements pebble.Logger.
func (storeLog) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (l storeLog) Errorf(format string, args ...any) {
	l.log.Debug("checkpoint store", zap.String("error", fmt.Sprintf(format, args...)))
}

// Fatalf implements pebble.Logger.
func (storeLog) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// exists reports whether there is anything at path.
func exists(fs vfs.FS, path string) (bool, error) {
	_, err := fs.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// reader reads a store without changing anything on the disk.
type reader struct{ db *pebble.DB }

// openReader opens the store at path for reading. Whatever the store makes of
// damaged files, a panic included, is an error here.
func openReader(fs vfs.FS, path string, log *zap.Logger) (r *reader, err error) {
	defer recovered(&err)
	o := storeOptions(lockless{fs}, log)
	o.ReadOnly = true
	o.ErrorIfNotExists = true
	db, err := pebble.Open(path, o)
	if err != nil {
		return nil, err
	}
	return &reader{db}, nil
}

// recovered makes an error of a panic.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the store broke down: %v", p)
	}
}

// head reads what the store says of itself.
func (r *reader) head() (h state.Head, err error) {
	defer recovered(&err)
	data, closer, err := r.db.Get([]byte(headKey))
	if errors.Is(err, pebble.ErrNotFound) {
		return h, errUnfinished
	}
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	return state.DecodeHead(data)
}

// entries calls each with every entry, in the order of the symbols' bytes, until
// it fails.
func (r *reader) entries(each func(symbol, data []byte) error) (err error) {
	defer recovered(&err)
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: []byte{entryPrefix}, UpperBound: []byte{entryPrefix + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for valid := it.First(); valid; valid = it.Next() {
		data, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := each(it.Key()[1:], data); err != nil {
			return err
		}
	}
	return it.Error()
}

func (r *reader) close() (err error) {
	defer recovered(&err)
	return r.db.Close()
}

// store is a store that is written to, behind a guard.
type store struct {
	db *pebble.DB
	g  *guard
}

// openStore opens or makes the store at path. It waits while the disk takes
// nothing, and fails with the guard's cause once it is given up.
func openStore(fs vfs.FS, path string, g *guard, log *zap.Logger) (*store, error) {
	s := &store{g: g}
	o := storeOptions(guardedFS{fs, g}, log)
	damaged := func(err error) {
		if pebble.IsCorruptionError(err) {
			g.giveUp(err)
		}
	}
	o.EventListener.BackgroundError = damaged
	o.EventListener.DataCorruption = func(info pebble.DataCorruptionInfo) { g.giveUp(info.Details) }
	err := s.apart(func() error {
		db, err := pebble.Open(path, o)
		s.db = db
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// apart runs f where it may be held for ever, and comes back without it once the
// store is given up.
func (s *store) apart(f func() error) error {
	result := make(chan error, 1)
	go func() {
		var err error
		defer func() { result <- err }()
		defer recovered(&err)
		err = f()
	}()
	select {
	case err := <-result:
		return err
	case <-s.g.broken:
		return s.g.why()
	}
}

// batch collects a piece of a checkpoint.
type batch struct {
	*pebble.Batch
	key []byte
}

func (s *store) batch() *batch { return &batch{Batch: s.db.NewBatch()} }

func (b *batch) add(symbol string, data []byte) {
	b.key = append(append(b.key[:0], entryPrefix), symbol...)
	_ = b.Set(b.key, data, nil) // it fails on a closed batch only
}

// write makes the batch and the head part of the store, both or neither, and
// durable.
func (s *store) write(b *batch, h *state.Head) error {
	if err := b.Set([]byte(headKey), state.AppendHead(nil, h), nil); err != nil {
		return err
	}
	return s.apart(func() error { return b.Commit(pebble.Sync) })
}

// close ends the store in order; one that was given up is left as it is.
func (s *store) close() error {
	if err := s.g.why(); err != nil {
		return err
	}
	return s.apart(s.db.Close)
}
