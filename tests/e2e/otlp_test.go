package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"inferspan/tests/collectortest"
)

// nativeSpan is an llm_request span of the engine itself.
type nativeSpan struct {
	TraceID, ParentID string
	Start, End        int64
	Attrs             map[string]any
}

// number returns a numeric attribute.
func (n *nativeSpan) number(key string) (float64, bool) {
	switch v := n.Attrs[key].(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	}
	return 0, false
}

// received splits what the Collector got into the engine's own llm_request spans
// and all of ours.
func received(t *testing.T, c *collectortest.Collector) (native []*nativeSpan, ours []collectortest.Span) {
	t.Helper()
	all, err := c.Spans()
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		s := &all[i]
		switch {
		case s.Scope == "inferspan":
			ours = append(ours, *s)
		case strings.HasPrefix(s.Scope, "vllm") && s.Name == "llm_request":
			native = append(native, &nativeSpan{s.TraceID, s.ParentID, s.Start, s.End, s.Attrs})
		}
	}
	if bad := c.Complaints(); len(bad) > 0 {
		t.Errorf("the Collector complains: %q", bad)
	}
	return native, ours
}

// waitSpans waits until the number of spans stays the same for a second: the
// engine's exporter says nothing about when it is done.
func waitSpans(t *testing.T, c *collectortest.Collector) {
	t.Helper()
	last := -1
	for range 20 {
		all, err := c.Spans()
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == last {
			return
		}
		last = len(all)
		time.Sleep(time.Second)
	}
	t.Fatal("spans keep coming for 20 s after the last request")
}

// checkOTLP checks that the Collector got the spans that the other export wrote.
func checkOTLP(t *testing.T, written []*span, got []collectortest.Span) {
	t.Helper()
	f := faults{t: t}
	defer f.end("spans by OTLP")
	if len(got) != len(written) {
		f.add("the Collector has %d of our spans, %d were written as JSON lines", len(got), len(written))
	}
	byID := map[string]*collectortest.Span{}
	for i := range got {
		byID[got[i].SpanID] = &got[i]
	}
	for _, w := range written {
		g := byID[w.SpanID]
		if g == nil {
			f.add("the Collector has no span %s (%s)", w.SpanID, w.Name)
			continue
		}
		if g.TraceID != w.TraceID || g.ParentID != w.ParentID || g.Name != w.Name || g.Start != w.Start || g.End != w.End || len(g.Events) != len(w.Events) {
			f.add("span %s came as %+v, written as %+v", w.SpanID, *g, *w)
		}
		if len(g.Attrs) != len(w.Attrs) {
			f.add("span %s came with attributes %v, written with %v", w.SpanID, g.Attrs, w.Attrs)
			continue
		}
		for k, v := range w.Attrs {
			a, b := fmt.Sprint(v), fmt.Sprint(g.Attrs[k])
			if _, ok := w.number(k); ok {
				a, b = number(t, a), number(t, b)
			}
			if a != b {
				f.add("span %s: %s came as %s, written as %s", w.SpanID, k, b, a)
			}
		}
	}
}

// number writes a number in one form, however it was written.
func number(t *testing.T, s string) string {
	t.Helper()
	var v float64
	if _, err := fmt.Sscan(s, &v); err != nil {
		t.Fatalf("%q is not a number: %v", s, err)
	}
	return fmt.Sprint(v)
}
