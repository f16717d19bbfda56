package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
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
