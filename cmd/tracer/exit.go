package main

import (
	"errors"

	"inferspan/recording"
)

// Exit codes, as the help of the root command lists them.
const (
	exitFailure   = 1 // anything else that went wrong
	exitUsage     = 2 // unknown command, flag or value
	exitTarget    = 3 // no such process, not an engine, or it exited
	exitHost      = 4 // the host or the privileges do not allow tracing
	exitRecording = 5 // the recording is damaged or not readable
	exitExport    = 6 // results could not be delivered or written
)

// coded is an error with an exit code.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

// withCode attaches an exit code to err; nil stays nil. The innermost code wins.
func withCode(code int, err error) error {
	var c *coded
	if err == nil || errors.As(err, &c) {
		return err
	}
	return &coded{code, err}
}

// silentError sets the exit code without another line: the reason was printed before.
type silentError struct{ code int }

func (e silentError) Error() string { return "" }

func exitCode(err error) int {
	var s silentError
	if errors.As(err, &s) {
		return s.code
	}
	var c *coded
	if errors.As(err, &c) {
		return c.code
	}
	for _, target := range []error{recording.ErrCorrupt, recording.ErrTruncated, recording.ErrFormat} {
		if errors.Is(err, target) {
			return exitRecording
		}
	}
	return exitFailure
}
