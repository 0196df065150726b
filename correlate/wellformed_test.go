package correlate

import (
	"slices"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/correlate/trace"
)

// eachSpan checks what holds in every tree, and gives f each span with its parent, nil for
// the root. before are the spans up to this one.
func eachSpan(t *testing.T, tr *trace.Tree, f func(s, parent *trace.Span, before map[trace.SpanID]*trace.Span)) {
	t.Helper()
	at := map[trace.SpanID]*trace.Span{}
	for i := range tr.Spans {
		s := &tr.Spans[i]
		if s.TraceID == (trace.TraceID{}) || s.TraceID != tr.Spans[0].TraceID || s.SpanID == (trace.SpanID{}) || at[s.SpanID] != nil || s.Resource == nil {
			t.Errorf("%s: ids %x %x", s.Name, s.TraceID, s.SpanID)
		}
		at[s.SpanID] = s
		if s.End < s.Start {
			t.Errorf("%s ends %d ns before it starts", s.Name, s.Start-s.End)
		}
		if !slices.IsSortedFunc(s.Events, func(a, b trace.Event) int { return int(a.Time - b.Time) }) {
			t.Errorf("%s: events out of order", s.Name)
		}
		if i == 0 {
			if (s.ParentID != trace.SpanID{}) != s.RemoteParent {
				t.Errorf("root %s: parent %x, remote %v", s.Name, s.ParentID, s.RemoteParent)
			}
			f(s, nil, at)
			continue
		}
		p := at[s.ParentID]
		if p == nil {
			t.Errorf("%s comes before its parent or has none in its tree", s.Name)
			continue
		}
		f(s, p, at)
	}
}

// wellFormed checks what holds in every tree of vLLM.
func wellFormed(t *testing.T, tr *trace.Tree) {
	t.Helper()
	if len(tr.Spans) == 0 {
		t.Error("an empty tree")
		return
	}
	eachSpan(t, tr, func(s, p *trace.Span, _ map[trace.SpanID]*trace.Span) {
		for _, a := range s.Attrs {
			if d, ok := a.Value.(int64); ok && d < 0 {
				t.Errorf("%s: %s = %d", s.Name, a.Key, d)
			}
		}
		for _, e := range s.Events {
			if e.Time < s.Start || e.Time > s.End {
				t.Errorf("%s: event %s outside of the span", s.Name, e.Name)
			}
		}
		if p == nil {
			return
		}
		if s.Start < p.Start || s.End > p.End {
			t.Errorf("%s from %d to %d outside of %s from %d to %d", s.Name, s.Start, s.End, p.Name, p.Start, p.End)
		}
		def, pdef := layerOf(s), ""
		if layerOf(p) != nil {
			pdef = layerOf(p).ID
		}
		if def != nil && !slices.Contains(def.Parents, pdef) {
			t.Errorf("%s below %s", s.Name, pdef)
		}
	})
}

// stepWellFormed checks what holds of every step record.
func stepWellFormed(t *testing.T, s *trace.Step) {
	t.Helper()
	if s.Start != 0 && s.End != 0 && s.End < s.Start {
		t.Errorf("step %d ends before it starts", s.Number.V)
	}
	if s.Resource == nil {
		t.Errorf("step %+v", s)
	}
	for _, q := range s.Requests {
		if q.ID == "" || q.Kind == "" {
			t.Errorf("step %d: request %+v", s.Number.V, q)
		}
	}
}

// sglangWellFormed checks what holds in every tree of SGLang. Only with exact stamps are
// stages within their threads, and those within their requests.
func sglangWellFormed(t *testing.T, tr *trace.Tree, exact bool) {
	t.Helper()
	eachSpan(t, tr, func(s, p *trace.Span, before map[trace.SpanID]*trace.Span) {
		for _, l := range s.Links {
			if o := before[l.SpanID]; l.TraceID != s.TraceID || o == nil || layerOf(o).Layer != "native_stage" {
				t.Errorf("%s is linked to what does not come before it", s.Name)
			}
		}
		if p == nil {
			return
		}
		if exact && (s.Start < p.Start || s.End > p.End) && layerOf(p).Layer != "entry" {
			t.Errorf("%s from %d to %d outside of %s from %d to %d", s.Name, s.Start, s.End, p.Name, p.Start, p.End)
		}
		parents := layerOf(s).Parents
		entry := layerOf(s).ID == semconv.SpanSGLangRequest && layerOf(p).Layer == "entry"
		// After a retraction a forward stage runs within the one before.
		within := layerOf(s).Layer == "native_stage" && p.Name == semconv.NameDecodeForward
		if !slices.Contains(parents, layerOf(p).ID) && !entry && !within {
			t.Errorf("%s below %s", s.Name, p.Name)
		}
	})
}
