package faults

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"io"

	"joiner/test/proc"
)

// slot is the place of a pod: it has a way of its own to the brokers, and one
// process after the other.
type slot struct {
	w      *world
	t      testing.TB
	n      int // from 0; of its way
	binary string
	more   map[string]string // settings over the world's

	mu     sync.Mutex
	pod    *proc.Proc
	ended  []*proc.Proc // those before
	counts counts       // of the processes that have ended
	now    counts       // of this one, as last seen
}

// counts are counters, by name and labels.
type counts map[string]float64

func (c counts) plus(other counts) counts {
	sum := maps.Clone(c)
	if sum == nil {
		sum = make(counts)
	}
	for name, n := range other {
		sum[name] += n
	}
	return sum
}

func (c counts) minus(other counts) counts {
	rest := make(counts)
	for name, n := range c {
		rest[name] = n - other[name]
	}
	return rest
}

// of adds up the counters whose names begin so.
func (c counts) of(prefixes ...string) (n int) {
	for name, x := range c {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			n += int(x)
		}
	}
	return n
}

// The counters that runs look at.
const (
	rebalances     = "joiner_rebalances_total"
	commitsFailed  = "joiner_commits_total{failed}"
	txnAborted     = "joiner_transactions_total{aborted}"
	txnFenced      = "joiner_transactions_total{fenced}"
	txnUnknown     = "joiner_transactions_total{unknown}"
	txnCommitted   = "joiner_transactions_total{committed}"
	produceErrors  = "joiner_produce_errors_total"
	restores       = "joiner_checkpoint_restores_total"
	restoresUsed   = restores + "{used}"
	fencedOthers   = "log{fenced a member that has left}"
	fencedByOthers = "log{refused by the group}"
	expelled       = "log{expelled by the group}"
)

// slot makes a place for pods of this binary on the nth way, with these settings
// over the world's (nil: none). Nothing runs in it yet.
func (w *world) slot(t testing.TB, n int, binary string, more map[string]string) *slot {
	return &slot{w: w, t: t, n: n, binary: binary, more: more}
}

// start runs a process there.
func (s *slot) start() *proc.Proc {
	s.t.Helper()
	settings := maps.Clone(s.w.settings)
	settings["kafka.brokers"] = s.w.ways.bootstrap(s.n)
	maps.Copy(settings, s.more)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod != nil {
		s.ended = append(s.ended, s.pod)
		s.counts, s.now = s.counts.plus(s.now), nil
	}
	s.pod = proc.StartBinary(s.t, s.binary, fmt.Sprintf("pod%d-%d", s.n+1, len(s.ended)+1), s.t.TempDir(), settings)
	return s.pod
}

// process is the one that runs there now, or ran last.
func (s *slot) process() *proc.Proc {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pod
}

// scrape looks at the counters of the process, for as long as that takes a
// process that answers.
func (s *slot) scrape() error {
	pod := s.process()
	if _, ended := pod.Ended(); ended {
		return fmt.Errorf("%s has ended", pod.Name)
	}
	text, err := s.get(pod, "/metrics")
	if err != nil {
		return err
	}
	metrics, err := proc.ParseMetrics(text)
	if err != nil {
		return err
	}
	now := make(counts)
	for _, m := range metrics {
		switch m.Name {
		case rebalances:
			now[m.Name] += m.Value
		case "joiner_commits_total", "joiner_transactions_total", restores:
			now[m.Name+"{"+m.Labels["outcome"]+"}"] += m.Value
		case produceErrors:
			now[m.Name+"{"+m.Labels["error"]+"}"] += m.Value
		}
	}
	member := ""
	for _, l := range pod.Logs() {
		if id := l.Text("member_id"); l.Msg() == "session begins" {
			if member != "" && id != member {
				now[expelled]++ // it did not leave, and is not known any more
			}
			member = id
		}
		switch text := l.Text("error"); {
		case l.Msg() == "the transactional producer of a member that has left is fenced":
			now[fencedOthers]++
		case strings.Contains(text, "generation id is not the current") || strings.Contains(text, "not aware of this member"):
			now[fencedByOthers]++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod == pod {
		s.now = now
	}
	return nil
}

// scrapePatience bounds a request to a process that may be stopped.
const scrapePatience = 2 * time.Second

func (s *slot) get(pod *proc.Proc, path string) ([]byte, error) {
	address := pod.Listening()
	if address == "" {
		return nil, fmt.Errorf("%s does not listen yet", pod.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := pod.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s answers %d: %s", pod.Name, path, answer.StatusCode, text)
	}
	return text, err
}

// count is all that this place has counted so far.
func (s *slot) count() counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts.plus(s.now)
}

// settledFor is how long a process has to have had a partition, and gone on, for
// a checkpoint of it to be sure.
const settledFor = 5 * time.Second

// cameBack counts the partitions that a process here had for a while and the one
// after it was given first.
func (s *slot) cameBack() (n int) {
	all := s.processes()
	for i, pod := range all[1:] {
		next := pod.Logged("assigned")
		if len(next) == 0 {
			continue
		}
		had := settled(all[i])
		for _, p := range partitionsOf(next[0]) {
			if slices.Contains(had, p) {
				n++
			}
		}
	}
	return n
}

// settled lists the partitions that a process had had for settledFor when it
// ended.
func settled(pod *proc.Proc) []int32 {
	lines, logs := pod.Logged("assigned"), pod.Logs()
	if len(lines) == 0 {
		return nil
	}
	last := lines[len(lines)-1]
	from, err := time.Parse(time.RFC3339Nano, last.Text("time"))
	until, err2 := time.Parse(time.RFC3339Nano, logs[len(logs)-1].Text("time"))
	if err != nil || err2 != nil || until.Sub(from) < settledFor {
		return nil
	}
	return partitionsOf(last)
}

func partitionsOf(assigned proc.Line) (indices []int32) {
	list, _ := assigned["notification_partitions"].([]any)
	for _, x := range list {
		if f, ok := x.(float64); ok {
			indices = append(indices, int32(f))
		}
	}
	return indices
}

// processes are all that ran here.
func (s *slot) processes() []*proc.Proc {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(slices.Clone(s.ended), s.pod)
}

// owned lists the partitions of the process's newest assignment.
func (s *slot) owned() (indices []int32) {
	lines := s.process().Logged("assigned")
	if len(lines) == 0 {
		return nil
	}
	return partitionsOf(lines[len(lines)-1])
}

// awaitOwned waits until the process has partitions.
func (s *slot) awaitOwned() (indices []int32, err error) {
	err = poll(fmt.Sprintf("pod %d to own partitions", s.n+1), func() error {
		if indices = s.owned(); len(indices) == 0 {
			return fmt.Errorf("it owns %v", indices)
		}
		return s.alive()
	})
	return indices, err
}

func (s *slot) alive() error {
	pod := s.process()
	if code, ended := pod.Ended(); ended {
		return fmt.Errorf("%s has ended by itself with %d", pod.Name, code)
	}
	return nil
}

// ready tells why the process is not.
func (s *slot) ready() error {
	_, err := s.get(s.process(), "/readyz")
	return err
}

// poll is proc.Await for goroutines that are not the test's.
func poll(what string, check func() error) error {
	deadline := time.Now().Add(proc.Patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s: %w", proc.Patience, what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
