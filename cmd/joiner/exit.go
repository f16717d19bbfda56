package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"joiner/internal/config"

	"github.com/spf13/cobra"
)

// Exit codes. On a second signal it is 128 and the signal's number.
const (
	exitOK      = 0
	exitFailure = 1 // a runtime failure, a failed check, a shutdown cut short, an interruption
	exitUsage   = 2 // wrong usage or configuration
)

// exitError is an error that knows the exit code it stands for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

// Unwrap returns the error itself.
func (e *exitError) Unwrap() error { return e.err }

// wrongUsage makes err end the process with exitUsage.
func wrongUsage(err error) error { return &exitError{exitUsage, err} }

// failures makes what commands return runtime failures, unless they say
// otherwise, in root and all below it. What is then left without a code comes
// from cobra, which finds wrong flags and arguments: that is wrong usage.
func failures(command *cobra.Command) {
	for _, c := range command.Commands() {
		failures(c)
	}
	runE := command.RunE
	if runE == nil {
		return
	}
	command.RunE = func(cmd *cobra.Command, args []string) error {
		err := runE(cmd, args)
		var coded *exitError
		if err == nil || errors.As(err, &coded) {
			return err
		}
		return &exitError{exitFailure, err}
	}
}

// report tells people what went wrong and returns the exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	code := exitUsage
	var coded *exitError
	if errors.As(err, &coded) {
		code = coded.code
	}
	fmt.Fprintln(stderr, message(err, code))
	return code
}

func message(err error, code int) string {
	var faults config.Faults
	if errors.As(err, &faults) {
		return faultMessage(faults)
	}
	if code == exitUsage {
		return fmt.Sprintf("joiner: %v\nRun 'joiner --help' for usage.", err)
	}
	return fmt.Sprintf("joiner: %v", err)
}

func faultMessage(faults config.Faults) string {
	if len(faults) == 1 {
		return "joiner: configuration: " + faults[0].Error()
	}
	lines := strings.ReplaceAll(faults.Error(), "\n", "\n  ")
	return fmt.Sprintf("joiner: configuration: %d faults\n  %s", len(faults), lines)
}
