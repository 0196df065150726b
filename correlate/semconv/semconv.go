// Package semconv holds the names of everything exported: attributes, spans,
// events, metrics and dimensions, as constants and as tables. names_gen.go is
// generated from the files in spec/; nothing else in the module spells a name.
package semconv

import (
	"strconv"
	"strings"
)

//go:generate go run inferspan/tools/gensemconv -spec ../../spec -o names_gen.go

// Attr describes an attribute of a span, an event or a log event.
type Attr struct {
	Name        string
	Type        string // string, int, double, boolean, string[], int[], double[], any
	Unit        string // UCUM; "none" for text
	Requirement string // "always" or "conditional: ..."
	Meaning     string
	Sensitive   bool     // content: gated by the content policy
	Values      []string // allowed values, nil if open
	On          []string // own attributes: layers of the spans that carry it
}

// Span describes a documented span.
type Span struct {
	ID          string
	Engine      string
	Version     string // "V0", "V1", "any": the engine's generation
	Layer       string // entry, engine_request, engine_stage, native_thread, native_stage; own: step
	NamePattern string
	NameRegex   string
	MinLevel    int      // -1: not switched by a level
	Parents     []string // ids; "" stands for a root or a remote parent
	When        string
	Attrs       []Attr
	Events      []string // ids of events
}

// Event describes a span event or a log event.
type Event struct {
	ID       string
	Name     string
	Engine   string
	MinLevel int // -1: not switched by a level
	Attrs    []Attr
}

// Metric describes a metric.
type Metric struct {
	ID         string
	Name       string
	Instrument string // Counter, Gauge, Histogram
	Unit       string
	Engine     string
	Version    string
	Group      string // id of the dimension group
	Dimensions []string
	Meaning    string
	Condition  string
	Own        bool // ours, not documented
}

// Attr returns the attribute of that name, nil if the span has none. Names with
// numbers in them are documented with {i} and {j} in their places.
func (s *Span) Attr(name string) *Attr {
	for i := range s.Attrs {
		if s.Attrs[i].Name == name || fits(s.Attrs[i].Name, name) {
			return &s.Attrs[i]
		}
	}
	return nil
}

// fits tells whether a name is one of those that a template stands for.
func fits(template, name string) bool {
	if !strings.Contains(template, "{") {
		return false
	}
	words, of := strings.Split(name, "."), strings.Split(template, ".")
	if len(words) != len(of) {
		return false
	}
	for i, w := range words {
		if strings.HasPrefix(of[i], "{") {
			if _, err := strconv.ParseUint(w, 10, 32); err != nil {
				return false
			}
		} else if w != of[i] {
			return false
		}
	}
	return true
}

// SpanByID returns the span of that id, documented or our own, nil if there is none.
func SpanByID(id string) *Span {
	for _, list := range [2][]Span{Spans, OwnSpans} {
		for i := range list {
			if list[i].ID == id {
				return &list[i]
			}
		}
	}
	return nil
}

// EventByID returns the event of that id, nil if there is none.
func EventByID(id string) *Event {
	for i := range Events {
		if Events[i].ID == id {
			return &Events[i]
		}
	}
	return nil
}

// MetricByID returns the metric of that id, nil if there is none.
func MetricByID(id string) *Metric {
	for i := range Metrics {
		if Metrics[i].ID == id {
			return &Metrics[i]
		}
	}
	return nil
}

// OwnAttr returns the own attribute of that name, nil if there is none.
func OwnAttr(name string) *Attr {
	for i := range OwnAttrs {
		if OwnAttrs[i].Name == name {
			return &OwnAttrs[i]
		}
	}
	return nil
}

// ToolCallName returns the attribute of the name of a tool call, ToolCallArguments that
// of its arguments.
func ToolCallName(choice, call int64) string { return toolCall(choice, call) + "name" }

// ToolCallArguments is described at ToolCallName.
func ToolCallArguments(choice, call int64) string { return toolCall(choice, call) + "arguments" }

func toolCall(choice, call int64) string {
	return "gen_ai.completions." + strconv.FormatInt(choice, 10) + ".tool_calls." + strconv.FormatInt(call, 10) + "."
}
