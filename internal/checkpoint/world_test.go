package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/record"
	"joiner/internal/sampled"
	"joiner/internal/state"
)

// world is a directory of checkpoints and a log that a task would read.
type world struct {
	t        *testing.T
	path     string
	fs       vfs.FS
	facts    Facts
	factsErr error
	interval time.Duration
	patience time.Duration
	failures atomic.Int64
	logs     *observer.ObservedLogs
	now      func() time.Time
	log      []record.Tick

	mu       sync.Mutex
	verdicts []Verdict
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, path: filepath.Join(t.TempDir(), "state"), fs: vfs.Default, interval: time.Millisecond,
		facts: Facts{
			Scope: state.Scope{
				Cluster: "cluster", Group: "g", Topic: "market-updates", TopicID: "id", Partition: 3,
				Rules: "price=price", History: 1000,
			},
			Compacted: true, DeleteRetention: 24 * time.Hour,
		},
		now: time.Now,
	}
}

// open begins a process.
func (w *world) open() *Dir {
	w.t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	w.logs = logs
	d, err := Open(w.t.Context(), w.options(zap.New(core)))
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) options(log *zap.Logger) Options {
	return Options{
		Path: w.path, Interval: w.interval, LockWait: 0, Log: log, Faults: sampled.New(log, nil), FS: w.fs, Now: w.now, Patience: w.patience,
		OnFailure: func() { w.failures.Add(1) },
		OnRestore: func(v Verdict) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.verdicts = append(w.verdicts, v)
		},
	}
}

func (w *world) close(d *Dir) {
	w.t.Helper()
	d.Close(w.t.Context())
}

// task is what a task is to its checkpoint.
type task struct {
	w     *world
	s     *Session
	table *state.Table
	read  int64 // records read to restore

	mu       sync.Mutex
	progress Progress
}

// begin restores a task up to the committed offset.
func (w *world) begin(d *Dir, committed int64) *task {
	w.t.Helper()
	t := &task{
		w: w, table: state.New(3, time.Duration(w.facts.Scope.History)*time.Millisecond),
		s: d.Session(3, func(context.Context) (Facts, error) { return w.facts, w.factsErr }),
	}
	from := t.s.Load(w.t.Context(), t.table, Range{Start: 0, Committed: committed, End: int64(len(w.log))})
	for ; from < committed; from++ {
		t.apply(from)
		t.read++
	}
	t.progress = Progress{Position: committed, Committed: committed, Next: record.NoTimestamp}
	return t
}

func (t *task) follow() *task {
	t.s.Begin(t.stands)
	return t
}

func (t *task) stands() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress
}

func (t *task) apply(offset int64) {
	t.table.Lock()
	defer t.table.Unlock()
	t.table.Apply(&t.w.log[offset], offset)
}

// merge applies a tick that the log has from then on.
func (t *task) merge(symbol, price string, at record.Millis) {
	tick := record.Tick{Symbol: []byte(symbol), Price: []byte(price), EventTime: at, Tombstone: price == ""}
	t.w.log = append(t.w.log, tick)
	t.apply(int64(len(t.w.log) - 1))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.progress.Position = int64(len(t.w.log))
}

func (t *task) commit() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.progress.Committed = t.progress.Position
}

// written waits for a checkpoint of all that is committed.
func (t *task) written() {
	t.w.t.Helper()
	t.w.eventually("a checkpoint of all", func() bool {
		h, err := t.w.head()
		return err == nil && h.From == int64(len(t.w.log))
	})
}

// head is what the store on the disk says, read from a copy, since it is open.
func (w *world) head() (state.Head, error) {
	copied := filepath.Join(w.t.TempDir(), "copy")
	if ok, err := vfs.Clone(vfs.Default, vfs.Default, filepath.Join(w.path, "partition-3"), copied, vfs.CloneTryLink); err != nil || !ok {
		return state.Head{}, errors.Join(err, os.ErrNotExist)
	}
	r, err := openReader(vfs.Default, copied, zap.NewNop())
	if err != nil {
		return state.Head{}, err
	}
	defer func() { _ = r.close() }()
	return r.head()
}

func (w *world) eventually(what string, done func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s never came; failures %d, logs: %v", what, w.failures.Load(), w.logs.All())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// contents are all versions of a table.
func contents(table *state.Table) map[string]string {
	table.TakeAll()
	all := map[string]string{}
	table.Take(1<<30, func(symbol string, data []byte) { all[symbol] = string(data) })
	return all
}

// isWhole compares the table with one that all ticks below the offset give.
func (t *task) isWhole(upTo int64) {
	t.w.t.Helper()
	want := state.New(3, time.Duration(t.w.facts.Scope.History)*time.Millisecond)
	want.TrackChanges()
	want.Lock()
	for offset := range upTo {
		want.Apply(&t.w.log[offset], offset)
	}
	want.Unlock()
	if got, want := contents(t.table), contents(want); !maps.Equal(got, want) {
		t.w.t.Errorf("%d symbols restored, want %d: %q, want %q", len(got), len(want), got, want)
	}
	if t.table.Next() != upTo {
		t.w.t.Errorf("next %d, want %d", t.table.Next(), upTo)
	}
}

func (w *world) verdict(want Verdict) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.verdicts) == 0 || w.verdicts[len(w.verdicts)-1] != want {
		w.t.Errorf("verdicts %v, want the last to be %v", w.verdicts, want)
	}
}

func (w *world) names() []string {
	entries, err := os.ReadDir(w.path)
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// aside lists what was set aside.
func (w *world) aside() []string {
	return slices.DeleteFunc(w.names(), func(name string) bool { return !strings.Contains(name, asideMark) })
}

// warned reports whether something was set aside with a warning for the reason.
func (w *world) warned(reason string) {
	w.t.Helper()
	for _, e := range w.logs.FilterMessageSnippet("set aside").FilterLevelExact(zap.WarnLevel).All() {
		if e.ContextMap()["reason"] == reason && fmt.Sprint(e.ContextMap()["kept_as"]) != "" {
			return
		}
	}
	w.t.Errorf("no warning for %q: %v", reason, w.logs.All())
}

// comesBackWhole begins the partition once more, in another process, and wants
// the checkpoint used and the table what the log makes of it.
func (w *world) comesBackWhole() {
	w.t.Helper()
	end := int64(len(w.log))
	d := w.open()
	defer w.close(d)
	task := w.begin(d, end)
	w.verdict(Used)
	task.isWhole(end)
	task.s.End()
}
