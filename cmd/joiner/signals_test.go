package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// waitForSignals is a program that stops gracefully, or never when it is told
// "stuck". It says what it does, a word a line.
func waitForSignals() {
	ctx, stop := withSignals(context.Background(), os.Exit, func(s os.Signal) { fmt.Println("first", s) })
	defer stop()
	fmt.Println("waiting")
	<-ctx.Done()
	var cause signalled
	fmt.Println("ended", errors.As(context.Cause(ctx), &cause))
	if len(os.Args) > 1 && os.Args[1] == "stuck" {
		select {}
	}
}

func TestSignals(t *testing.T) {
	for _, c := range []struct {
		name    string
		args    []string
		signals []os.Signal
		code    int
	}{
		{"one SIGTERM", nil, []os.Signal{syscall.SIGTERM}, 0},
		{"one SIGINT", nil, []os.Signal{syscall.SIGINT}, 0},
		{"SIGTERM, then SIGTERM", []string{"stuck"}, []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, 128 + 15},
		{"SIGTERM, then SIGINT", []string{"stuck"}, []os.Signal{syscall.SIGTERM, syscall.SIGINT}, 128 + 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program := exec.Command("joinerwait", c.args...)
			out, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			// Each signal goes out once the program is seen to be ready for it.
			for i, s := range c.signals {
				readUntil(t, lines, []string{"waiting", "ended true"}[i])
				if err := program.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			for lines.Scan() { // to its end, before Wait closes the pipe
			}
			err = program.Wait()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := program.ProcessState.ExitCode(); got != c.code {
				t.Errorf("exit code %d, want %d", got, c.code)
			}
		})
	}
}

func readUntil(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == want {
			return
		}
	}
	t.Fatalf("ended without saying %q: %v", want, lines.Err())
}

func TestStoppedWatchHearsNothing(t *testing.T) {
	ctx, stop := withSignals(context.Background(), func(code int) { t.Errorf("exit %d", code) }, func(s os.Signal) { t.Errorf("heard %s", s) })
	stop()
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
}

func TestParentEndsTheContext(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	ctx, stop := withSignals(parent, func(int) {}, nil)
	defer stop()
	cancel()
	<-ctx.Done()
	var cause signalled
	if errors.As(context.Cause(ctx), &cause) {
		t.Errorf("cause %v", cause)
	}
}

// silent is a broker that takes connections and says nothing.
func silent(t *testing.T) (address string, called <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		var held []net.Conn
		defer func() {
			for _, c := range held {
				_ = c.Close()
			}
		}()
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			if held = append(held, c); len(held) == 1 {
				close(first)
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return listener.Addr().String(), first
}

// Every command that may take long ends by the first signal, whatever it is
// doing, and says that it was interrupted, unless that is how it ends well.
func TestInterrupted(t *testing.T) {
	for _, c := range []struct {
		args []string
		busy string // what standard error says first; empty: once it calls the broker
		code int
		says string
	}{
		// One call of sarama's sticky strategy takes hours here.
		{[]string{"plan", "--partitions", "100000", "--events", "9999", "--strategy", "sticky"}, "planning sticky: event 1 of 1 (9999)", 1, "joiner: plan: interrupted (SIGTERM)\n"},
		{[]string{"check"}, "", 1, "joiner: check: interrupted (SIGTERM)\n"},
		{[]string{"audit"}, "", 1, "joiner: audit: interrupted (SIGTERM)\n"},
		{[]string{"load"}, "", 1, "joiner: load: connecting to [BROKER]: interrupted (SIGTERM)\n"},
		{[]string{"demo"}, "copartition: 4 members join the group", 1, "joiner: demo: interrupted (SIGTERM)\n"},
		{[]string{"run", "--set", "http.listen=127.0.0.1:0", "--set", "peer.listen=127.0.0.1:0"}, "", 0, `"msg":"stopped"`},
	} {
		t.Run(c.args[0], func(t *testing.T) {
			t.Parallel()
			args, says := c.args, c.says
			var called <-chan struct{}
			if c.busy == "" {
				var broker string
				broker, called = silent(t)
				args, says = append(args, "--brokers", broker), strings.ReplaceAll(says, "BROKER", broker)
			}
			program := exec.Command("joiner", args...)
			program.Dir = t.TempDir()
			stderr, err := program.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			defer time.AfterFunc(2*time.Minute, func() { _ = program.Process.Kill() }).Stop() // else it would hang
			if c.busy == "" {
				<-called
			} else {
				readUntil(t, bufio.NewScanner(stderr), c.busy)
			}
			if err := program.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(stderr)
			if err != nil {
				t.Fatal(err)
			}
			err = program.Wait()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := program.ProcessState.ExitCode(); got != c.code || !strings.Contains(string(rest), says) {
				t.Errorf("exit code %d, want %d with %q:\n%s", got, c.code, says, rest)
			}
		})
	}
}

func TestInterruptedSaysWhatElse(t *testing.T) {
	signal := signalled{syscall.SIGINT}
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(signal)
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{ended, fmt.Errorf("reading: %w", context.Canceled), "interrupted (SIGINT)"},
		{ended, fmt.Errorf("connecting: %w", signal), "connecting: interrupted (SIGINT)"},
		{ended, io.ErrShortWrite, "interrupted (SIGINT): short write"},
		{context.Background(), context.Canceled, "context canceled"},
	} {
		if got := interrupted(c.ctx, c.err); got.Error() != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
	if err := interrupted(ended, nil); err != nil {
		t.Errorf("work that ended well: %v", err)
	}
}

func TestWorkThatKnowsNoContextIsLeftBehind(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(signalled{syscall.SIGINT})
	stuck := make(chan struct{})
	defer close(stuck)
	_, err := within(ctx, time.Millisecond, func(context.Context) (int, error) {
		<-stuck
		return 1, nil
	})
	if !errors.As(err, new(signalled)) {
		t.Errorf("error %v", err)
	}
	got, err := within(ctx, time.Hour, func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 7, nil
	})
	if got != 7 || err != nil {
		t.Errorf("%d, %v: what ended within its time is lost", got, err)
	}
}
