package e2e

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strings"

	"inferspan/tests/collectortest"
)

// otel is a span of a request's tree, of the engine's own tracer or ours.
type otel struct {
	*collectortest.Span
	children []*otel
	twin     *otel
	tree     *otelTree
}

// otelTree is what one front end made of one request: the request's span with the spans
// of threads and stages below. The engine ends the span of a request that was given up
// never, and so does not send it: root is nil, and the threads are known by their parent.
type otelTree struct {
	root    *otel
	threads []*otel
	twin    *otelTree
}

var (
	requestName = regexp.MustCompile(`^ ?((prefill|decode) )?Req .{1,8}$`)
	threadName  = regexp.MustCompile(`\(host:[^|]+ \| pid:\d+\)$`)
)

// plainName is without spaces: how many there are around ranks differs.
func plainName(s *otel) string { return plain(s.Name) }

func plain(s string) string { return strings.ReplaceAll(s, " ", "") }

func treesOf(spans []collectortest.Span) []*otelTree {
	byID := map[string]*otel{}
	all := make([]*otel, 0, len(spans))
	for i := range spans {
		o := &otel{Span: &spans[i]}
		byID[o.TraceID+o.SpanID] = o
		all = append(all, o)
	}
	trees := map[string]*otelTree{}
	at := func(id string) *otelTree {
		if trees[id] == nil {
			trees[id] = &otelTree{}
		}
		return trees[id]
	}
	for _, o := range all {
		switch {
		case requestName.MatchString(o.Name):
			o.tree = at(o.TraceID + o.SpanID)
			o.tree.root = o
		case threadName.MatchString(o.Name):
			o.tree = at(o.TraceID + o.ParentID)
			o.tree.threads = append(o.tree.threads, o)
		default:
			if p := byID[o.TraceID+o.ParentID]; p != nil {
				p.children = append(p.children, o)
			}
		}
	}
	for _, o := range all {
		slices.SortStableFunc(o.children, func(a, b *otel) int { return cmp.Compare(a.Start, b.Start) })
	}
	var list []*otelTree
	for _, t := range trees {
		slices.SortFunc(t.threads, func(a, b *otel) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Start, b.Start)) })
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *otelTree) int { return cmp.Compare(a.start(), b.start()) })
	return list
}

func (t *otelTree) rid() string {
	if t.root == nil {
		return ""
	}
	id, _ := t.root.Attrs["rid"].(string)
	return id
}

func (t *otelTree) start() int64 {
	if t.root != nil {
		return t.root.Start
	}
	first := int64(math.MaxInt64)
	for _, x := range t.threads {
		first = min(first, x.Start)
	}
	return first
}

// stages are the spans below a thread, of whatever depth.
func (s *otel) stages() []*otel {
	var out []*otel
	for _, c := range s.children {
		out = append(out, c)
		out = append(out, c.stages()...)
	}
	return out
}

// layer of a span for tables: names of requests, threads and attributes vary.
func (s *otel) layer() string {
	switch {
	case requestName.MatchString(s.Name):
		return "request"
	case threadName.MatchString(s.Name):
		return "thread " + strings.TrimSpace(strings.SplitN(strings.SplitN(s.Name, "(", 2)[0], "[", 2)[0])
	}
	return s.Name
}

// autoClosed: the tracer ended the span when the request's object was collected.
func autoClosed(s *otel) bool {
	return s.Attrs["reason"] == "have unclosed span, auto closed"
}

func (t *otelTree) each(f func(*otel)) {
	if t.root != nil {
		f(t.root)
	}
	for _, th := range t.threads {
		f(th)
		for _, s := range th.stages() {
			f(s)
		}
	}
}

func toFloat(v any) (float64, error) {
	switch v := v.(type) {
	case float64:
		return v, nil
	case int64:
		return float64(v), nil
	}
	return 0, fmt.Errorf("%T is not a number", v)
}

// place is an event and the span that it is on.
type place struct {
	collectortest.Event
	on *otel
}

func (t *otelTree) events() []place {
	var out []place
	t.each(func(s *otel) {
		for _, e := range s.Events {
			out = append(out, place{e, s})
		}
	})
	sort.SliceStable(out, func(i, j int) bool { return out[i].Time < out[j].Time })
	return out
}
