package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"joiner/internal/config"
	"joiner/internal/load"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestDescribe(t *testing.T) {
	sarama := &debug.Module{Path: saramaModule, Version: "v1.61.1"}
	dirty := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}
	clean := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}}
	replaced := &debug.Module{Path: saramaModule, Version: "v1.61.1", Replace: &debug.Module{Path: "example.com/fork", Version: "v9"}}
	for _, c := range []struct {
		name            string
		version, commit string
		info            debug.BuildInfo
		want            build
	}{
		{"nothing known", "", "", debug.BuildInfo{}, build{"(devel)", "unknown", "", "unknown"}},
		{"linked", "v1.2.3", "def", debug.BuildInfo{Main: debug.Module{Version: "v0"}, Settings: dirty}, build{"v1.2.3", "def", "", "unknown"}},
		{"installed", "", "", debug.BuildInfo{Main: debug.Module{Version: "v1.0.0"}, Settings: clean, Deps: []*debug.Module{{Path: "x"}, sarama}}, build{"v1.0.0", "abc", "", "v1.61.1"}},
		{"changed tree, fork", "", "", debug.BuildInfo{Settings: dirty, Deps: []*debug.Module{replaced}}, build{"(devel)", "abc-dirty", "", "v9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Go = runtime.Version()
			if diff := cmp.Diff(c.want, describe(c.version, c.commit, &c.info)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReport(t *testing.T) {
	fault := config.Fault{Key: "group.id", Problem: "is empty", Cure: "write a name"}
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{nil, 0, ""},
		{errors.New("unknown flag"), 2, "joiner: unknown flag\nRun 'joiner --help' for usage.\n"},
		{&exitError{exitFailure, io.ErrUnexpectedEOF}, 1, "joiner: unexpected EOF\n"},
		{fmt.Errorf("run: %w", &exitError{exitFailure, io.EOF}), 1, "joiner: run: EOF\n"},
		{wrongUsage(config.Faults{fault}), 2, "joiner: configuration: group.id: is empty; write a name\n"},
		{wrongUsage(config.Faults{fault, fault}), 2, "joiner: configuration: 2 faults\n  group.id: is empty; write a name\n  group.id: is empty; write a name\n"},
	} {
		var b strings.Builder
		if code := report(&b, c.err); code != c.code || b.String() != c.text {
			t.Errorf("%v: code %d, %q", c.err, code, b.String())
		}
	}
}

func TestFailuresOfCommandsAreRuntimeFailures(t *testing.T) {
	root := &cobra.Command{Use: "root", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(
		&cobra.Command{Use: "fails", RunE: func(*cobra.Command, []string) error { return io.EOF }},
		&cobra.Command{Use: "misused", RunE: func(*cobra.Command, []string) error { return wrongUsage(io.EOF) }},
		&cobra.Command{Use: "works", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }},
	)
	failures(root)
	for args, want := range map[string]int{"fails": 1, "misused": 2, "works": 0, "works x": 2, "works --x": 2, "absent": 2} {
		root.SetArgs(strings.Fields(args))
		err := root.Execute()
		if code := report(io.Discard, err); code != want {
			t.Errorf("%s: %v, code %d, want %d", args, err, code, want)
		}
	}
}

// failing is standard output on a full disk.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestUnwritableOutputIsAFailure(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"version", "-o", "json"}, {"config", "--defaults"}, {"config"}, {"config", "-o", "json"}} {
		var stderr strings.Builder
		code := run(args, &process{stdout: failing{}, stderr: &stderr})
		if code != exitFailure || !strings.Contains(stderr.String(), "short write") {
			t.Errorf("%v: code %d, %s", args, code, &stderr)
		}
	}
}

// TestLoadReadsAsTheServiceDoes: an alert of an aborted transaction is no alert,
// and its copy is no duplicate.
func TestLoadReadsAsTheServiceDoes(t *testing.T) {
	for level, want := range map[string]sarama.IsolationLevel{
		readCommitted: sarama.ReadCommitted, readUncommitted: sarama.ReadUncommitted,
	} {
		c := config.Default()
		c.Kafka.IsolationLevel = level
		o := load.DefaultOptions()
		if err := target(&o, c, ""); err != nil {
			t.Fatal(err)
		}
		conf, err := o.Config()
		if err != nil {
			t.Fatal(err)
		}
		if got := conf.Consumer.IsolationLevel; got != want {
			t.Errorf("%s: isolation level %d, want %d", level, got, want)
		}
	}
}

func TestLogger(t *testing.T) {
	for _, c := range []struct {
		log   config.Log
		lines int
	}{
		{config.Log{Level: "debug", Format: "json"}, 3},
		{config.Log{Level: "info", Format: "json"}, 2},
		{config.Log{Level: "error", Format: "json"}, 1},
		{config.Log{Level: "info", Format: "console"}, 2},
	} {
		var b bytes.Buffer
		log, err := newLogger(c.log, &b)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("low")
		log.Info("middle")
		log.Named("room").Error("high", zap.String("topic", "t"), zap.Int32("partition", 3), zap.Duration("after", 1500*time.Millisecond))
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != c.lines {
			t.Errorf("%v: %q", c.log, lines)
		}
		if c.log.Format == "console" {
			continue
		}
		var last map[string]any
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse("2006-01-02T15:04:05.000Z", last["time"].(string))
		if err != nil || at.IsZero() {
			t.Errorf("time %v: %v", last["time"], err)
		}
		delete(last, "time")
		want := map[string]any{"level": "error", "logger": "room", "msg": "high", "topic": "t", "partition": 3.0, "after": "1.5s"}
		if diff := cmp.Diff(want, last); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := newLogger(config.Log{Level: "loud"}, io.Discard); err == nil {
		t.Error("an unknown level passes")
	}
}

func TestSaramaLogsAtDebugOnly(t *testing.T) {
	before := sarama.Logger
	t.Cleanup(func() { sarama.Logger = before })

	quiet, _ := observer.New(zapcore.InfoLevel)
	logSarama(zap.New(quiet))
	if sarama.Logger != before {
		t.Error("sarama would format lines that nobody sees")
	}

	core, seen := observer.New(zapcore.DebugLevel)
	logSarama(zap.New(core))
	sarama.Logger.Print("a", 1)
	sarama.Logger.Printf("b %d\n", 2)
	sarama.Logger.Println("c", 3)
	var got []string
	for _, e := range seen.All() {
		got = append(got, e.Level.String()+" "+e.LoggerName+" "+e.Message)
	}
	if diff := cmp.Diff([]string{"debug sarama a1", "debug sarama b 2", "debug sarama c 3"}, got); diff != "" {
		t.Error(diff)
	}
}
