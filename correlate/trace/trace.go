// Package trace holds finished spans and log events: the output of correlate
// and the input of every exporter.
package trace

// ID types in wire form.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// Kind is a span kind.
type Kind uint8

// Span kinds in use; the numbers are OTLP's.
const (
	KindInternal Kind = 1
	KindServer   Kind = 2
)

// Code is a span status.
type Code uint8

// Status codes; the numbers are OTLP's.
const (
	StatusUnset Code = 0
	StatusOK    Code = 1
	StatusError Code = 2
)

// Attr is an attribute. Value is a string, bool, int64, float64, []string, []int64 or []float64.
type Attr struct {
	Key   string
	Value any
}

// Event is a span event.
type Event struct {
	Name  string
	Time  int64 // ns since the epoch
	Attrs []Attr
}

// Link points to another span.
type Link struct {
	TraceID TraceID
	SpanID  SpanID
}

// Resource describes the observed process. Spans of one process share one Resource.
type Resource struct {
	Attrs []Attr // sorted by key
}

// Span is a finished span.
type Span struct {
	TraceID       TraceID
	SpanID        SpanID
	ParentID      SpanID // zero: root
	RemoteParent  bool   // ParentID came in a traceparent header
	TraceState    string
	Name          string
	Kind          Kind
	Start, End    int64 // ns since the epoch
	Attrs         []Attr
	Events        []Event
	DroppedEvents int
	Links         []Link
	Code          Code
	Message       string
	Resource      *Resource
}

// Attr returns the attribute's value, nil if the span has none of that name.
func (s *Span) Attr(key string) any {
	for i := range s.Attrs {
		if s.Attrs[i].Key == key {
			return s.Attrs[i].Value
		}
	}
	return nil
}

// Log is a log event that belongs to a span.
type Log struct {
	TraceID   TraceID
	SpanID    SpanID
	EventName string
	Time      int64
	Attrs     []Attr
	Resource  *Resource
}

// Tree is one request: the spans in the order root first, parents before
// children. Where steps are asked for they come in trees of their own, without
// spans and log events.
type Tree struct {
	Spans []Span
	Logs  []Log
	Steps []Step
}
