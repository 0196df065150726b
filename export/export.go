// Package export moves finished requests and metrics out of the tracer.
//
// A Sink writes one format to one place. A Queue stands between the tracer and
// a Sink: it never blocks the tracer, holds a bounded amount, and counts by
// reason what it could not deliver.
package export

import (
	"context"
	"errors"
	"fmt"
	"time"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
)

// Sink takes finished requests and metric states.
//
// Its methods are called by one goroutine at a time. Trees and snapshots are
// shared with other sinks: a Sink reads them and keeps no part of them after it
// returns. A format that has no metrics returns nil from Metrics.
type Sink interface {
	// Export delivers trees. A *RetryError asks for another call with the same
	// trees; a *PartialError says that some of them were lost; any other error
	// means that all were.
	Export(ctx context.Context, trees []trace.Tree) error
	// Metrics delivers the state of all metrics.
	Metrics(ctx context.Context, s *metric.Snapshot) error
	// Close writes out what is buffered and frees what the sink holds. Later
	// calls return the first call's error.
	Close(ctx context.Context) error
}

// RetryError marks a failure that may pass: nothing was delivered.
type RetryError struct {
	Err   error
	After time.Duration // the receiver asked to wait this long; 0 if it did not say
}

func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// PartialError says that the receiver took part of an export and refused the rest for good.
type PartialError struct {
	Spans int // spans refused
	Logs  int // log events refused
	Err   error
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("%d spans and %d log events refused: %v", e.Spans, e.Logs, e.Err)
}

// Unwrap returns the cause.
func (e *PartialError) Unwrap() error { return e.Err }

// ErrClosed is returned by a Sink that was used after Close.
var ErrClosed = errors.New("sink is closed")

// Size estimates the memory that a tree holds, in bytes. Resources are shared
// among trees and not counted.
func Size(t *trace.Tree) int64 {
	const (
		span  = 320 // sizeof(trace.Span) and its share of slice headers
		event = 80
		log   = 128
		link  = 24
		step  = 240
		part  = 72 // of a request in a step
	)
	n := int64(0)
	for i := range t.Spans {
		s := &t.Spans[i]
		n += span + int64(len(s.Name)+len(s.Message)+len(s.TraceState)) + attrsSize(s.Attrs) + link*int64(len(s.Links))
		for j := range s.Events {
			n += event + int64(len(s.Events[j].Name)) + attrsSize(s.Events[j].Attrs)
		}
	}
	for i := range t.Logs {
		n += log + attrsSize(t.Logs[i].Attrs)
	}
	for i := range t.Steps {
		s := &t.Steps[i]
		n += step + part*int64(len(s.Requests))
		for j := range s.Requests {
			n += int64(len(s.Requests[j].ID) + len(s.Requests[j].RequestID))
		}
		for _, id := range s.Preempted {
			n += 16 + int64(len(id))
		}
	}
	return n
}

func attrsSize(as []trace.Attr) int64 {
	const attr = 48 // key and interface headers, and a boxed number
	n := attr * int64(len(as))
	for i := range as {
		// Keys are constants of the program and take no memory of their own.
		switch v := as[i].Value.(type) {
		case string:
			n += int64(len(v))
		case []string:
			for _, s := range v {
				n += 16 + int64(len(s))
			}
		case []int64:
			n += 8 * int64(len(v))
		case []float64:
			n += 8 * int64(len(v))
		}
	}
	return n
}
