package audit

import (
	"bufio"
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

const (
	fanIn    = 64       // runs of one size that become one of the next
	runRead  = 64 << 10 // bytes read ahead of each run
	runWrite = 1 << 20
	minRows  = 1024 // a buffer never holds less, however little memory there is
)

// sorter sorts rows of one size as bytes, in memory as far as they fit and
// beyond that in files: an external merge sort (Knuth, The Art of Computer
// Programming, vol. 3, section 5.4). Not safe for concurrent use.
type sorter[T any, R interface {
	*T
	row
}] struct {
	dir    string
	size   int
	limit  int // bytes of buf
	buf    []byte
	inRow  bool // buf is in order
	levels [][]*run
	rows   int64
	coder  coder
}

// run is a sorted file. It has no name: it goes with the process, however that
// ends.
type run struct {
	file *os.File
	rows int64
}

func newSorter[T any, R interface {
	*T
	row
}](dir string, memory int) *sorter[T, R] {
	var zero T
	size := sizeOf(R(&zero))
	return &sorter[T, R]{dir: dir, size: size, limit: max(memory/size, minRows) * size, inRow: true}
}

// add puts a row in.
func (s *sorter[T, R]) add(r R) error {
	if len(s.buf)+s.size > s.limit {
		if err := s.spill(); err != nil {
			return err
		}
	}
	s.coder.buf = s.coder.buf[:0]
	r.code(&s.coder)
	if n := len(s.buf); s.inRow && n > 0 && bytes.Compare(s.buf[n-s.size:], s.coder.buf) > 0 {
		s.inRow = false
	}
	s.grow()
	s.buf = append(s.buf, s.coder.buf...)
	s.rows++
	return nil
}

// grow makes room for one more row, and never for more than the limit.
func (s *sorter[T, R]) grow() {
	if len(s.buf)+s.size <= cap(s.buf) {
		return
	}
	grown := make([]byte, len(s.buf), min(max(2*cap(s.buf), minRows*s.size), s.limit))
	copy(grown, s.buf)
	s.buf = grown
}

// order sorts the buffer.
func (s *sorter[T, R]) order() {
	if s.inRow {
		return
	}
	index := make([]int32, len(s.buf)/s.size)
	for i := range index {
		index[i] = int32(i)
	}
	at := func(i int32) []byte { return s.buf[int(i)*s.size : int(i+1)*s.size] }
	slices.SortFunc(index, func(a, b int32) int { return bytes.Compare(at(a), at(b)) })
	permute(s.buf, s.size, index)
	s.inRow = true
}

// permute moves row index[i] to i, in place.
func permute(buf []byte, size int, index []int32) {
	held := make([]byte, size)
	row := func(i int32) []byte { return buf[int(i)*size : int(i+1)*size] }
	for i := range index {
		at := int32(i)
		if index[at] < 0 || index[at] == at {
			continue
		}
		copy(held, row(at))
		for index[at] != int32(i) {
			from := index[at]
			copy(row(at), row(from))
			index[at], at = -1, from
		}
		copy(row(at), held)
		index[at] = -1
	}
}

// spill writes the buffer to a file.
func (s *sorter[T, R]) spill() error {
	s.order()
	r, err := s.write(func(w *bufio.Writer) error {
		_, err := w.Write(s.buf)
		return err
	})
	if err != nil {
		return err
	}
	r.rows = int64(len(s.buf) / s.size)
	s.buf = s.buf[:0]
	return s.keep(r, 0)
}

// keep files a run under its level; a full level becomes one run of the next.
func (s *sorter[T, R]) keep(r *run, level int) error {
	for len(s.levels) <= level {
		s.levels = append(s.levels, nil)
	}
	s.levels[level] = append(s.levels[level], r)
	if len(s.levels[level]) < fanIn {
		return nil
	}
	full := s.levels[level]
	merged := &run{}
	m := &merger{size: s.size}
	for _, r := range full {
		if err := m.include(r); err != nil {
			return err
		}
		merged.rows += r.rows
	}
	out, err := s.write(func(w *bufio.Writer) error {
		for {
			row, err := m.next()
			if err != nil || row == nil {
				return err
			}
			if _, err := w.Write(row); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	merged.file = out.file
	s.levels[level] = nil
	if err := closeRuns(full); err != nil {
		return err
	}
	return s.keep(merged, level+1)
}

// write makes a file of what fill writes.
func (s *sorter[T, R]) write(fill func(*bufio.Writer) error) (*run, error) {
	file, err := os.CreateTemp(s.dir, "joiner-audit-*")
	if err != nil {
		return nil, fmt.Errorf("sorting: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("sorting: %w", err), file.Close())
	}
	w := bufio.NewWriterSize(file, runWrite)
	if err := errors.Join(fill(w), w.Flush()); err != nil {
		return nil, errors.Join(fmt.Errorf("sorting, in %s: %w", s.dir, err), file.Close())
	}
	return &run{file: file}, nil
}

// sorted ends the adding and returns the rows in order.
func (s *sorter[T, R]) sorted() (*stream[T, R], error) {
	s.order()
	m := &merger{size: s.size}
	for _, level := range s.levels {
		for _, r := range level {
			if err := m.include(r); err != nil {
				return nil, err
			}
		}
	}
	if err := m.add(&source{memory: s.buf}); err != nil {
		return nil, err
	}
	st := &stream[T, R]{merger: m}
	return st, st.advance()
}

// close lets go of files and memory.
func (s *sorter[T, R]) close() error {
	var errs []error
	for _, level := range s.levels {
		errs = append(errs, closeRuns(level))
	}
	s.levels, s.buf = nil, nil
	return errors.Join(errs...)
}

func closeRuns(runs []*run) error {
	var errs []error
	for _, r := range runs {
		errs = append(errs, r.file.Close())
	}
	return errors.Join(errs...)
}

// stream gives rows back one by one.
type stream[T any, R interface {
	*T
	row
}] struct {
	merger *merger
	head   T
	some   bool
}

// peek returns the next row, nil at the end. It stays valid until the next
// advance.
func (s *stream[T, R]) peek() R {
	if !s.some {
		return nil
	}
	return &s.head
}

// advance goes on to the next row.
func (s *stream[T, R]) advance() error {
	b, err := s.merger.next()
	if err != nil {
		return err
	}
	s.some = b != nil
	if s.some {
		c := coder{buf: b, read: true}
		R(&s.head).code(&c)
	}
	return nil
}

// source is a sorted sequence of rows, in memory or in a file.
type source struct {
	memory []byte
	file   *bufio.Reader
	left   int64
	row    []byte
}

func (s *source) next(size int) (bool, error) {
	if s.file == nil {
		if len(s.memory) == 0 {
			return false, nil
		}
		s.row, s.memory = s.memory[:size], s.memory[size:]
		return true, nil
	}
	if s.left == 0 {
		return false, nil
	}
	s.left--
	if s.row == nil {
		s.row = make([]byte, size)
	}
	if _, err := io.ReadFull(s.file, s.row); err != nil {
		return false, fmt.Errorf("sorting: reading back: %w", err)
	}
	return true, nil
}

// merger is a heap of sources by their next row.
type merger struct {
	size    int
	sources []*source
	taken   bool // the first source's row has been handed out
}

func (m *merger) Len() int           { return len(m.sources) }
func (m *merger) Less(i, j int) bool { return bytes.Compare(m.sources[i].row, m.sources[j].row) < 0 }
func (m *merger) Swap(i, j int)      { m.sources[i], m.sources[j] = m.sources[j], m.sources[i] }
func (m *merger) Push(x any)         { m.sources = append(m.sources, x.(*source)) }

func (m *merger) Pop() any {
	last := m.sources[len(m.sources)-1]
	m.sources = m.sources[:len(m.sources)-1]
	return last
}

func (m *merger) include(r *run) error {
	file := io.NewSectionReader(r.file, 0, r.rows*int64(m.size))
	return m.add(&source{file: bufio.NewReaderSize(file, runRead), left: r.rows})
}

func (m *merger) add(s *source) error {
	more, err := s.next(m.size)
	if err != nil || !more {
		return err
	}
	heap.Push(m, s)
	return nil
}

// next returns the next row, nil at the end. It is valid until the next call.
func (m *merger) next() ([]byte, error) {
	if m.taken {
		more, err := m.sources[0].next(m.size)
		if err != nil {
			return nil, err
		}
		if more {
			heap.Fix(m, 0)
		} else {
			heap.Pop(m)
		}
	}
	m.taken = len(m.sources) > 0
	if !m.taken {
		return nil, nil
	}
	return m.sources[0].row, nil
}
