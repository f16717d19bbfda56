package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// task is what a contender is given to do.
type task struct {
	brokers []string
	group   string
	market  string
	notes   string
	output  string
	dead    string
	expect  int64 // input records that will come, of both topics; 0 unknown
}

// contender is a program that is measured.
type contender struct {
	name    string
	command func(task) *exec.Cmd
	// tells is set where the program says when every input was read; where it
	// is not, its outputs being complete says so.
	tells bool
	// transactional is set where outputs are visible with their transaction
	// only: their number and the time of their being appended say nothing.
	transactional bool
}

func bareContender(self string) contender {
	return contender{name: "bare", tells: true, command: func(t task) *exec.Cmd {
		return exec.Command(self, bareCommand,
			"-brokers", strings.Join(t.brokers, ","), "-group", t.group, "-market", t.market,
			"-notifications", t.notes, "-output", t.output, "-expect", strconv.FormatInt(t.expect, 10))
	}}
}

// exactlyContender is the joiner in transactions, at its default interval.
func exactlyContender(path, profiles string) contender {
	c := joinerContender(path, profiles)
	plain := c.command
	c.name, c.transactional = "exactly", true
	c.command = func(t task) *exec.Cmd {
		cmd := plain(t)
		cmd.Env = append(cmd.Env, "JOINER_DELIVERY_GUARANTEE=exactly_once")
		return cmd
	}
	return c
}

// joinerContender is the joiner at path, which serves its profiles there where
// that is not empty.
func joinerContender(path, profiles string) contender {
	return contender{name: "joiner", command: func(t task) *exec.Cmd {
		cmd := exec.Command(path, "run")
		cmd.Env = append(withoutJoiner(os.Environ()),
			"JOINER_KAFKA_BROKERS="+strings.Join(t.brokers, ","),
			"JOINER_GROUP_ID="+t.group,
			"JOINER_TOPICS_MARKET_UPDATES="+t.market,
			"JOINER_TOPICS_NOTIFICATIONS="+t.notes,
			"JOINER_TOPICS_ENRICHED_ALERTS="+t.output,
			"JOINER_TOPICS_DEAD_LETTERS="+t.dead,
			"JOINER_HTTP_LISTEN=127.0.0.1:0",
			"JOINER_PEER_LISTEN=127.0.0.1:0",
			"JOINER_LOG_LEVEL=warn",
			"JOINER_HTTP_PPROF_LISTEN="+profiles,
		)
		return cmd
	}}
}

// withoutJoiner removes what the caller's environment would configure.
func withoutJoiner(env []string) []string {
	var kept []string
	for _, entry := range env {
		if !strings.HasPrefix(entry, "JOINER_") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// process is a contender at work.
type process struct {
	contender contender
	cmd       *exec.Cmd
	dir       string
	started   time.Time
	consumed  chan time.Time // at most one, from a contender that tells
	exited    chan struct{}  // closed when it has ended
	err       error          // of its end, once exited is closed
	reader    sync.WaitGroup
}

func start(c contender, t task) (*process, error) {
	// A directory of its own, so that no config.yaml is found.
	dir, err := os.MkdirTemp("", "joiner-bench.")
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	p := &process{contender: c, cmd: c.command(t), dir: dir, consumed: make(chan time.Time, 1), exited: make(chan struct{})}
	if err := p.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", c.name, err), os.RemoveAll(dir))
	}
	return p, nil
}

func (p *process) start() error {
	log, err := os.Create(filepath.Join(p.dir, "stderr"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	p.cmd.Dir, p.cmd.Stderr = p.dir, log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.reader.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if lines.Text() == consumedLine {
				select {
				case p.consumed <- time.Now():
				default:
				}
			}
		}
	})
	go func() {
		p.reader.Wait()
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return nil
}

// log is the end of what the process wrote to its standard error.
func (p *process) log() string {
	const tail = 4096
	text, err := os.ReadFile(filepath.Join(p.dir, "stderr"))
	if err != nil {
		return err.Error()
	}
	if len(text) > tail {
		text = text[len(text)-tail:]
	}
	return string(text)
}

// peak is the largest resident set so far, in bytes. The kernel's own account
// at a process's end would include what its parent held when it was started.
func (p *process) peak() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("peak memory of %s: %w", p.contender.name, err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("peak memory of %s: %w", p.contender.name, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("peak memory of %s: not in its status", p.contender.name)
}

// cpu is the processor time used so far, in steps of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.contender.name, err)
	}
	// The second field is a name in parentheses; user and system time are the
	// 12th and 13th after it, in hundredths of a second.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("processor time of %s: %q", p.contender.name, text)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// stopPatience bounds a contender's orderly end.
const stopPatience = time.Minute

// stop ends the process in order and returns the processor time it took in all.
func (p *process) stop() (time.Duration, error) {
	defer func() { _ = os.RemoveAll(p.dir) }()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(stopPatience):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return 0, fmt.Errorf("%s did not end within %v\n%s", p.contender.name, stopPatience, p.log())
	}
	if p.err != nil {
		return 0, fmt.Errorf("%s ended badly: %w\n%s", p.contender.name, p.err, p.log())
	}
	state := p.cmd.ProcessState
	return state.UserTime() + state.SystemTime(), nil
}

// kill ends the process where its measurement has failed already.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	_ = os.RemoveAll(p.dir)
}

// workPatience bounds each thing that is waited for: only a hung contender
// needs it.
const workPatience = 10 * time.Minute

// until polls a condition; the process ending, or workPatience, is an error.
func (p *process) until(ctx context.Context, what string, condition func() (bool, error)) error {
	deadline := time.NewTimer(workPatience)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		done, err := condition()
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not %s: %w\n%s", p.contender.name, what, ctx.Err(), p.log())
		case <-p.exited:
			return fmt.Errorf("%s ended (%v) before %s\n%s", p.contender.name, p.cmd.ProcessState, what, p.log())
		case <-deadline.C:
			return fmt.Errorf("%s: not %s within %v\n%s", p.contender.name, what, workPatience, p.log())
		case <-poll.C:
		}
	}
}
