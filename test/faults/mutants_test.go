package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"joiner/test/proc"
)

// A mutant is a file of mutants/ in txtar form: what is broken, and for each
// source file the passage to be replaced, a line ====, and what takes its place.

const (
	mutantDir  = "mutants"
	mutantLine = "====\n"
	moduleRoot = "../.."
)

// mutant returns the sources of a mutant by their path in the module. A passage
// that is not there exactly once is an error: the source has moved on, and the
// mutant has to follow.
func mutant(name string) (sources map[string][]byte, err error) {
	archive, err := txtar.ParseFile(filepath.Join(mutantDir, name+".txtar"))
	if err != nil {
		return nil, err
	}
	sources = make(map[string][]byte)
	for _, f := range archive.Files {
		old, replacement, ok := strings.Cut(string(f.Data), mutantLine)
		if !ok {
			return nil, fmt.Errorf("mutant %s: %s has no line %q", name, f.Name, mutantLine)
		}
		source, err := os.ReadFile(filepath.Join(moduleRoot, f.Name))
		if err != nil {
			return nil, fmt.Errorf("mutant %s: %w", name, err)
		}
		if n := strings.Count(string(source), old); n != 1 {
			return nil, fmt.Errorf("mutant %s: %s has this passage %d times, which is to be there once:\n%s", name, f.Name, n, old)
		}
		sources[f.Name] = []byte(strings.Replace(string(source), old, replacement, 1))
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("mutant %s changes nothing", name)
	}
	return sources, nil
}

// buildMutant builds it into the directory, and returns the binary's path. The
// module's own files stay as they are.
func buildMutant(dir, name string) (string, error) {
	sources, err := mutant(name)
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs(moduleRoot)
	if err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for path, text := range sources {
		changed := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(changed, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, path)] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "joiner")
	if err := proc.Build(binary, "-overlay", file); err != nil {
		return "", fmt.Errorf("mutant %s: %w", name, err)
	}
	return binary, nil
}

// Every mutant still fits the source, and has a trial.
func TestMutantsFit(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(mutantDir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var names []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		names = append(names, name)
		sources, err := mutant(name)
		if err != nil {
			t.Error(err)
		}
		for path, text := range sources {
			if _, err := parser.ParseFile(token.NewFileSet(), path, text, 0); err != nil {
				t.Errorf("mutant %s: %v", name, err)
			}
		}
	}
	var tried []string
	for _, one := range trials() {
		tried = append(tried, one.mutant)
	}
	slices.Sort(tried)
	if !slices.Equal(names, tried) {
		t.Errorf("there are the mutants %v, and trials of %v", names, tried)
	}
}

// trial is a run that the joiner passes and one mutant does not.
type trial struct {
	mutant string
	// way is the proxies that it has to itself, -1 for none.
	way  int
	play func(t *testing.T, st *stage, way int, binary string) audited
	// caught tells whether the audit's figures show the mutant.
	caught func(audited) bool
}

// mutants has the joiner itself and then the mutant go through each trial.
func mutants(t *testing.T, st *stage) {
	binary, err := proc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range trials() {
		t.Run(one.mutant, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			if a := one.play(t, st, one.way, binary); !a.clean() || a.Missed > 0 {
				t.Fatalf("the joiner itself: %s: %v", a, a.Examples)
			}
			passed := time.Since(began)
			mutated, err := buildMutant(t.TempDir(), one.mutant)
			if err != nil {
				t.Fatal(err)
			}
			built := time.Since(began) - passed
			a := one.play(t, st, one.way, mutated)
			t.Logf("the joiner took %v, building the mutant %v, the mutant %v", passed.Round(time.Second),
				built.Round(time.Second), (time.Since(began) - passed - built).Round(time.Second))
			if !one.caught(a) {
				t.Errorf("the mutant is not caught: %s", a)
			}
		})
	}
}

// position is up to where a pod has joined the notifications of its partitions,
// by its own word.
func (s *slot) position() (positions map[int32]int64, err error) {
	text, err := s.get(s.process(), "/v1/status")
	if err != nil {
		return nil, err
	}
	var status struct {
		Tasks []struct {
			Partition int32 `json:"partition"`
			Topics    map[string]struct {
				Position *int64 `json:"position"`
			} `json:"topics"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return nil, err
	}
	positions = make(map[int32]int64)
	for _, task := range status.Tasks {
		if p := task.Topics[s.w.notes].Position; p != nil {
			positions[task.Partition] = *p
		}
	}
	return positions, nil
}

// awaitJoined waits until a pod has joined all notifications of these partitions
// that there are; what became of the alerts is another matter.
func (s *slot) awaitJoined(t testing.TB, partitions []int32) {
	t.Helper()
	proc.Await(t, "the notifications to be joined", func() error {
		ends, err := s.w.ends(s.w.notes)
		if err != nil {
			return err
		}
		positions, err := s.position()
		if err != nil {
			return err
		}
		for _, p := range partitions {
			if have, ok := positions[p]; !ok || have < ends[p] {
				return fmt.Errorf("partition %d is joined up to %d of %d", p, have, ends[p])
			}
		}
		return nil
	})
}

// uncommitted tells whether the group lacks some of these partitions'
// notifications.
func (w *world) uncommitted(partitions []int32) (bool, error) {
	ends, err := w.ends(w.notes)
	if err != nil {
		return false, err
	}
	committed, err := w.committed(w.notes, ends)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(partitions, func(p int32) bool { return committed[p] < ends[p] }), nil
}

var errCommitted = errors.New("all is committed")
