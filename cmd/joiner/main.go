// Command joiner joins notifications with prices on Kafka.
//
// This package is the command line: one file a command, the flags, exit codes,
// signals and the log. It must never hold logic worth testing elsewhere, and
// nothing below it may touch what belongs to the whole process: signals,
// standard output, the environment, sarama's global logger and os.Exit are
// used here and handed down.
package main

import (
	"context"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], &process{
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		environ: os.Environ(),
		exit:    os.Exit,
	}))
}

// process is what commands use of the process they run in.
type process struct {
	stdout, stderr io.Writer
	environ        []string
	exit           func(code int) // at once, on a second signal
}

// run executes the command line and returns the exit code.
func run(args []string, p *process) int {
	root := newRoot(p)
	root.SetArgs(args)
	return report(p.stderr, root.ExecuteContext(context.Background()))
}
