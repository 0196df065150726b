// Package jsonl writes spans as JSON lines.
//
// Each span is one object:
//
//	trace_id, span_id, parent_span_id ("" for a root), name, kind,
//	start_unix_nano, end_unix_nano, attributes, events, links, status, resource
//
// kind is INTERNAL or SERVER, status.code UNSET, OK or ERROR. Two more keys
// appear at the end only when they say something: trace_state, and
// dropped_events when the event limit cut the list. A tree's spans come in the
// tree's order, parents first.
//
// Log events, which exist only when the content policy asks for them, follow
// the spans of their request as objects that begin with the key "log" (the
// event's name), then trace_id, span_id, time_unix_nano, attributes, resource.
//
// Steps of engine cores, where they are asked for, are objects that begin with
// the key "step" (its number, null if not known), then counted (true: the number
// is our count, not the engine's), engine_index, start_unix_nano, end_unix_nano,
// of steps that were not seen by the clock method ("dispatch") and
// dispatch_unix_nano (running, waiting and free_blocks are as of then), gap_nano (since the end of the step before, negative if they overlap), idle (no
// request was there meanwhile), tokens, requests ([{id, request_id, tokens,
// computed_tokens, kind}]; id is inferspan.request.internal_id), partial (there are
// requests that are not listed), preempted (ids), running, waiting, blocks,
// free_blocks, free_blocks_after, forward (where calls of the CUDA driver are seen: see
// trace.Forward), first_launch_skew_nano and last_launch_skew_nano (of several
// workers), resource. What is not known is null.
//
// The bytes depend on nothing but the input: attributes are sorted by key (of
// equal keys the last one counts), integers have no point and doubles always
// have a point or an exponent, "NaN", "Infinity" and "-Infinity" are strings,
// nothing is escaped for HTML, and invalid UTF-8 becomes U+FFFD.
package jsonl

import (
	"encoding/hex"
	"math"
	"strconv"
	"unicode/utf8"

	"inferspan/correlate/trace"
	"inferspan/export"
)

// An encoder keeps scratch memory between spans.
type encoder struct {
	order    []int // attribute indexes, sorted
	defaults export.Defaults

	// The last resource, which most spans share with the one before.
	resource     *trace.Resource
	resourceJSON []byte
}

func (e *encoder) tree(b []byte, t *trace.Tree) []byte {
	for i := range t.Spans {
		b = e.span(b, &t.Spans[i])
	}
	for i := range t.Logs {
		b = e.log(b, &t.Logs[i])
	}
	for i := range t.Steps {
		b = e.step(b, &t.Steps[i])
	}
	return b
}

func (e *encoder) span(b []byte, s *trace.Span) []byte {
	b = append(b, `{"trace_id":`...)
	b = appendID(b, s.TraceID[:])
	b = append(b, `,"span_id":`...)
	b = appendID(b, s.SpanID[:])
	b = append(b, `,"parent_span_id":`...)
	if s.ParentID == (trace.SpanID{}) {
		b = append(b, `""`...)
	} else {
		b = appendID(b, s.ParentID[:])
	}
	b = append(b, `,"name":`...)
	b = appendString(b, s.Name)
	b = append(b, `,"kind":`...)
	b = appendKind(b, s.Kind)
	b = append(b, `,"start_unix_nano":`...)
	b = strconv.AppendInt(b, s.Start, 10)
	b = append(b, `,"end_unix_nano":`...)
	b = strconv.AppendInt(b, s.End, 10)
	b = append(b, `,"attributes":`...)
	b = e.attrs(b, s.Attrs)
	b = append(b, `,"events":[`...)
	for i := range s.Events {
		if i > 0 {
			b = append(b, ',')
		}
		ev := &s.Events[i]
		b = append(b, `{"name":`...)
		b = appendString(b, ev.Name)
		b = append(b, `,"time_unix_nano":`...)
		b = strconv.AppendInt(b, ev.Time, 10)
		b = append(b, `,"attributes":`...)
		b = e.attrs(b, ev.Attrs)
		b = append(b, '}')
	}
	b = append(b, `],"links":[`...)
	for i := range s.Links {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"trace_id":`...)
		b = appendID(b, s.Links[i].TraceID[:])
		b = append(b, `,"span_id":`...)
		b = appendID(b, s.Links[i].SpanID[:])
		b = append(b, '}')
	}
	b = append(b, `],"status":{"code":`...)
	b = appendCode(b, s.Code)
	b = append(b, `,"message":`...)
	b = appendString(b, s.Message)
	b = append(b, `},"resource":`...)
	b = e.appendResource(b, s.Resource)
	if s.TraceState != "" {
		b = append(b, `,"trace_state":`...)
		b = appendString(b, s.TraceState)
	}
	if s.DroppedEvents > 0 {
		b = append(b, `,"dropped_events":`...)
		b = strconv.AppendInt(b, int64(s.DroppedEvents), 10)
	}
	return append(b, '}', '\n')
}

func (e *encoder) log(b []byte, l *trace.Log) []byte {
	b = append(b, `{"log":`...)
	b = appendString(b, l.EventName)
	b = append(b, `,"trace_id":`...)
	b = appendID(b, l.TraceID[:])
	b = append(b, `,"span_id":`...)
	b = appendID(b, l.SpanID[:])
	b = append(b, `,"time_unix_nano":`...)
	b = strconv.AppendInt(b, l.Time, 10)
	b = append(b, `,"attributes":`...)
	b = e.attrs(b, l.Attrs)
	b = append(b, `,"resource":`...)
	b = e.appendResource(b, l.Resource)
	return append(b, '}', '\n')
}

func (e *encoder) step(b []byte, s *trace.Step) []byte {
	num := func(key string, v trace.Int) {
		b = append(b, key...)
		b = appendInt(b, v)
	}
	at := func(key string, ns int64) { num(key, trace.Int{V: ns, OK: ns != 0}) }
	num(`{"step":`, s.Number)
	b = append(b, `,"counted":`...)
	b = strconv.AppendBool(b, s.Counted)
	num(`,"engine_index":`, trace.Int{V: int64(s.EngineIndex), OK: true})
	at(`,"start_unix_nano":`, s.Start)
	at(`,"end_unix_nano":`, s.End)
	if s.Method != "" {
		b = append(b, `,"method":`...)
		b = appendString(b, s.Method)
		at(`,"dispatch_unix_nano":`, s.Dispatch)
	}
	num(`,"gap_nano":`, s.Gap)
	b = append(b, `,"idle":`...)
	b = strconv.AppendBool(b, s.Idle)
	num(`,"tokens":`, s.Tokens)
	b = append(b, `,"requests":[`...)
	for i := range s.Requests {
		q := &s.Requests[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = appendString(b, q.ID)
		b = append(b, `,"request_id":`...)
		b = appendString(b, q.RequestID)
		num(`,"tokens":`, q.Tokens)
		num(`,"computed_tokens":`, q.Computed)
		b = append(b, `,"kind":`...)
		b = appendString(b, string(q.Kind))
		b = append(b, '}')
	}
	b = append(b, `],"partial":`...)
	b = strconv.AppendBool(b, s.Partial)
	b = append(b, `,"preempted":`...)
	b = appendArray(b, s.Preempted, appendString)
	num(`,"running":`, s.Running)
	num(`,"waiting":`, s.Waiting)
	num(`,"blocks":`, s.Blocks)
	num(`,"free_blocks":`, s.FreeBlocks)
	num(`,"free_blocks_after":`, s.FreeAfter)
	if len(s.Forward) > 0 {
		b = append(b, `,"forward":`...)
		b = appendArray(b, s.Forward, appendForward)
		if len(s.Forward) > 1 {
			num(`,"first_launch_skew_nano":`, s.FirstLaunchSkew)
			num(`,"last_launch_skew_nano":`, s.LastLaunchSkew)
		}
	}
	b = append(b, `,"resource":`...)
	b = e.appendResource(b, s.Resource)
	return append(b, '}', '\n')
}

func appendForward(b []byte, f trace.Forward) []byte {
	num := func(key string, v trace.Int) {
		b = append(b, key...)
		b = appendInt(b, v)
	}
	at := func(key string, ns int64) { num(key, trace.Int{V: ns, OK: ns != 0}) }
	b = append(b, '{')
	if f.Rank.OK {
		num(`"rank":`, f.Rank)
		at(`,"begin_unix_nano":`, f.Begin)
		b = append(b, ',')
	}
	b = append(b, `"counted":`...)
	b = appendString(b, f.Counted)
	num(`,"kernels":`, f.Kernels)
	num(`,"graphs":`, f.Graphs)
	num(`,"graph_kernels":`, f.GraphKernels)
	num(`,"copies":`, f.Copies)
	num(`,"copy_bytes":`, f.CopyBytes)
	at(`,"first_launch_unix_nano":`, f.First)
	at(`,"last_launch_unix_nano":`, f.Last)
	at(`,"submitted_unix_nano":`, f.Submitted)
	at(`,"wait_unix_nano":`, f.Wait)
	at(`,"done_unix_nano":`, f.Done)
	if f.Bound != "" {
		b = append(b, `,"bound":`...)
		b = appendString(b, f.Bound)
	}
	num(`,"gap_nano":`, f.Gap)
	return append(b, '}')
}

func appendInt(b []byte, v trace.Int) []byte {
	if !v.OK {
		return append(b, `null`...)
	}
	return strconv.AppendInt(b, v.V, 10)
}

func (e *encoder) appendResource(b []byte, r *trace.Resource) []byte {
	if r == nil {
		return append(b, `{}`...)
	}
	if r != e.resource {
		e.resource = r
		attrs := r.Attrs
		if e.defaults.ServiceName != "" || len(e.defaults.Attrs) > 0 {
			attrs = e.defaults.Apply(r)
		}
		e.resourceJSON = e.attrs(e.resourceJSON[:0], attrs)
	}
	return append(b, e.resourceJSON...)
}

func (e *encoder) attrs(b []byte, as []trace.Attr) []byte {
	// Insertion sort: short, often sorted already, and stable.
	e.order = e.order[:0]
	for i := range as {
		j := len(e.order)
		e.order = append(e.order, i)
		for ; j > 0 && as[e.order[j-1]].Key > as[i].Key; j-- {
			e.order[j] = e.order[j-1]
		}
		e.order[j] = i
	}
	b = append(b, '{')
	first := true
	for n, i := range e.order {
		if n+1 < len(e.order) && as[e.order[n+1]].Key == as[i].Key {
			continue
		}
		mark := len(b)
		if !first {
			b = append(b, ',')
		}
		b = appendString(b, as[i].Key)
		b = append(b, ':')
		var ok bool
		if b, ok = appendValue(b, as[i].Value); !ok {
			b = b[:mark] // not a type that attributes have
			continue
		}
		first = false
	}
	return append(b, '}')
}

func appendValue(b []byte, v any) ([]byte, bool) {
	switch v := v.(type) {
	case string:
		return appendString(b, v), true
	case bool:
		return strconv.AppendBool(b, v), true
	case int64:
		return strconv.AppendInt(b, v, 10), true
	case float64:
		return appendFloat(b, v), true
	case []string:
		return appendArray(b, v, appendString), true
	case []int64:
		return appendArray(b, v, func(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }), true
	case []float64:
		return appendArray(b, v, appendFloat), true
	}
	return b, false
}

func appendArray[T any](b []byte, vs []T, one func([]byte, T) []byte) []byte {
	b = append(b, '[')
	for i, v := range vs {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, v)
	}
	return append(b, ']')
}

// appendFloat writes the shortest text that reads back as f.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Infinity"`...)
	}
	// The same switch to exponents as encoding/json.
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	mark := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	for _, c := range b[mark:] {
		if c == '.' {
			return b
		}
	}
	return append(b, '.', '0')
}

func appendID(b, id []byte) []byte {
	b = append(b, '"')
	b = hex.AppendEncode(b, id)
	return append(b, '"')
}

func appendKind(b []byte, k trace.Kind) []byte {
	switch k {
	case trace.KindInternal:
		return append(b, `"INTERNAL"`...)
	case trace.KindServer:
		return append(b, `"SERVER"`...)
	}
	return append(b, `"UNSPECIFIED"`...)
}

func appendCode(b []byte, c trace.Code) []byte {
	switch c {
	case trace.StatusOK:
		return append(b, `"OK"`...)
	case trace.StatusError:
		return append(b, `"ERROR"`...)
	}
	return append(b, `"UNSET"`...)
}

const hexDigits = "0123456789abcdef"

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			start = i + 1
		case r == '\u2028' || r == '\u2029': // line ends to some readers of lines
			b = append(b, s[start:i]...)
			b = append(b, `\u202`...)
			b = append(b, hexDigits[r&15])
			start = i + n
		}
		i += n
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
