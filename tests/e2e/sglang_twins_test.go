package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"text/tabwriter"

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
func plainName(s *otel) string { return strings.ReplaceAll(s.Name, " ", "") }

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

// twins pairs the engine's own trees with ours, and the spans in them.
type twins struct {
	f    *faults
	byID map[string]*otel // ours and the engine's

	native, ours    int // spans in trees
	paired          int
	missing, beyond map[string]int // of the engine's own without a twin, of ours without one
	starts, ends    map[string]*differences
	numbers         map[string]*differences
	placed          map[string]int // events that are on another span than the engine's
	known           map[string]int // differences that are the engine's own, or documented
	nativeTrees     []*otelTree
	joined          []joined
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

const (
	// A twin is sought this far away; what is beyond 1 ms and 1 % is a fault.
	seek      = int64(200e6)
	tolerance = int64(1e6)
	// The tracer begins a scheduler's thread when it makes its object, some time before it
	// stamps that it got the request.
	objectMade = int64(10e6)
	// A batch is put together some time before it is launched: if the results of the batch
	// before it are waited for in between, as long as that runs. The engine keeps the former
	// moment only when it traces.
	launched = int64(500e6)
)

func near(a, b, duration int64) bool {
	d := max(a-b, b-a)
	return d <= tolerance || d <= duration/100
}

func (w *twins) find(t *testing.T, native, ours []collectortest.Span) {
	theirs, mine := treesOf(native), treesOf(ours)
	w.missing, w.beyond, w.placed, w.known = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	byRID := map[string]*otelTree{}
	for _, x := range mine {
		if x.root == nil {
			w.f.add("threads of ours are below no request: %s", x.threads[0].Name)
			continue
		}
		if byRID[x.rid()] != nil {
			w.f.add("request %s has two spans of ours", x.rid())
		}
		byRID[x.rid()] = x
	}
	for _, n := range theirs {
		if n.root == nil {
			continue
		}
		if m := byRID[n.rid()]; m != nil && m.twin == nil {
			n.twin, m.twin = m, n
		}
	}
	theirs = w.warmUps(theirs)
	theirs = slices.DeleteFunc(theirs, w.neverSent)
	// What the engine did not end has no id; it began when its front end began with it.
	for _, n := range theirs {
		if n.root != nil {
			continue
		}
		for _, m := range mine {
			if m.root != nil && m.twin == nil && near(m.start(), n.start(), 0) && sameThreads(n, m) {
				n.twin, m.twin = m, n
				break
			}
		}
	}
	w.nativeTrees = theirs
	w.starts, w.ends, w.numbers = map[string]*differences{}, map[string]*differences{}, map[string]*differences{}
	w.byID = map[string]*otel{}
	for _, list := range [][]*otelTree{theirs, mine} {
		for _, x := range list {
			x.each(func(s *otel) { w.byID[s.TraceID+s.SpanID] = s })
		}
	}
	for _, j := range w.joined {
		w.byID[j.gone.TraceID+j.gone.SpanID] = j.stays
	}
	for _, n := range theirs {
		n.each(func(*otel) { w.native++ })
		if n.twin != nil {
			w.pair(n)
		} else {
			w.f.add("request %s, begun at %d: the engine has a tree, we have none", n.rid(), n.start())
			n.each(func(s *otel) { w.missing[s.layer()]++ })
		}
	}
	for _, m := range mine {
		m.each(func(s *otel) {
			w.ours++
			if s.twin == nil {
				w.beyond[s.layer()]++
			}
		})
	}
}

// warmUps joins what the engine makes of one request in two trees: before it samples
// several choices of a prompt it sends the prompt with an id of its own and no tokens to
// generate. It ends that request, but hands the time stats of the first id on.
func (w *twins) warmUps(theirs []*otelTree) []*otelTree {
	return slices.DeleteFunc(theirs, func(n *otelTree) bool {
		if n.root == nil || n.twin != nil {
			return false
		}
		for _, x := range theirs {
			if x.twin == nil || x.root == nil || !warmUp(x) || !near(x.start(), n.start(), 0) || len(x.threads) != 1 {
				continue
			}
			x.threads = n.threads
			for _, th := range n.threads {
				th.tree = x
			}
			w.joined = append(w.joined, joined{n.root, x.root})
			w.known["requests that sample several choices have their warm-up in two trees"]++
			return true
		}
		return false
	})
}

// joined are two spans of the engine's that stand for one.
type joined struct{ gone, stays *otel }

// warmUp: no tokens are asked for, as we see it.
func warmUp(t *otelTree) bool {
	v, err := toFloat(t.twin.root.Attrs["gen_ai.request.max_tokens"])
	return err == nil && v == 0
}

// neverSent: the front end began with a request that is there for the bookkeeping of
// several choices, and forgot it.
func (w *twins) neverSent(n *otelTree) bool {
	if n.root != nil || n.twin != nil || len(n.threads) != 1 || !autoClosed(n.threads[0]) || len(n.threads[0].children) != 1 {
		return false
	}
	w.known["requests that were never sent"]++
	return true
}

// autoClosed: the tracer ended the span when the request's object was collected.
func autoClosed(s *otel) bool {
	return s.Attrs["reason"] == "have unclosed span, auto closed"
}

// dispatchedWithin: the engine has the handing over below tokenize.
func dispatchedWithin(t *otelTree) bool {
	for _, th := range t.threads {
		for _, s := range th.children {
			if s.Name == "tokenize" && len(s.children) > 0 {
				return true
			}
		}
	}
	return false
}

// endsByChance says that s is auto-closed, or what lasts until the thread that is.
func endsByChance(s *otel, t *otelTree) bool {
	for _, th := range t.threads {
		if autoClosed(th) && (s == th || slices.Contains(th.stages(), s) && s.End == th.End) {
			return true
		}
	}
	return false
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

// sameThreads: the front end is the same, and the trees are of one trace if the client said so.
func sameThreads(n, m *otelTree) bool {
	for _, a := range n.threads {
		if !slices.ContainsFunc(m.threads, func(b *otel) bool { return plainName(a) == plainName(b) }) {
			return false
		}
	}
	return true
}

// pair pairs the spans of two trees: those of a name in a thread by their times, the
// nearest first, so that one that is missing does not shift the others.
func (w *twins) pair(n *otelTree) {
	m := n.twin
	if n.root != nil {
		n.root.twin, m.root.twin = m.root, n.root
	}
	w.nearest(n.threads, m.threads, n)
	for _, th := range n.threads {
		if th.twin == nil {
			for _, s := range th.stages() {
				w.missing[s.layer()]++
			}
			continue
		}
		w.nearest(th.stages(), th.twin.stages(), n)
	}
	n.each(func(s *otel) {
		if s.twin != nil {
			w.paired++
			w.compare(s, n)
		}
	})
	w.events(n)
}

func (w *twins) nearest(theirs, mine []*otel, n *otelTree) {
	type edge struct {
		a, b *otel
		cost int64
	}
	var edges []edge
	for _, a := range theirs {
		for _, b := range mine {
			cost := max(a.Start-b.Start, b.Start-a.Start) + max(a.End-b.End, b.End-a.End)
			if plainName(a) == plainName(b) && (cost < seek || a.layer() != a.Name) {
				edges = append(edges, edge{a, b, cost})
			}
		}
	}
	slices.SortStableFunc(edges, func(x, y edge) int { return cmp.Compare(x.cost, y.cost) })
	for _, e := range edges {
		if e.a.twin == nil && e.b.twin == nil {
			e.a.twin, e.b.twin = e.b, e.a
		}
	}
	for _, a := range theirs {
		switch {
		case a.twin != nil:
		case a.Name == "decode_loop" && marked(n.twin):
			w.known["decode_loop of the last results of a request that does not stream, said to be missing"]++
		case a.Name == "api_server_dispatch" && warmUp(n):
			w.known["api_server_dispatch of warm-ups, whose stamps nothing leads to"]++
		default:
			w.missing[a.layer()]++
		}
	}
}

// marked: a scheduler's thread says that stages of it were not seen.
func marked(t *otelTree) bool {
	return slices.ContainsFunc(t.threads, func(s *otel) bool {
		return s.Attrs["thread_label"] == "Scheduler" && strings.Contains(fmt.Sprint(s.Attrs["inferspan.partial"]), "stages")
	})
}

func record(m map[string]*differences, key string, mine, theirs int64, over bool) {
	d := m[key]
	if d == nil {
		d = &differences{}
		m[key] = d
	}
	d.abs = append(d.abs, math.Abs(float64(mine-theirs)))
	if over {
		d.over++
	}
}

// compare compares a span of the engine's with its twin.
func (w *twins) compare(n *otel, t *otelTree) {
	m, layer := n.twin, n.layer()
	who := fmt.Sprintf("request %s: %s", t.twin.rid(), strings.TrimSpace(n.Name))
	duration := n.End - n.Start
	start, end := near(m.Start, n.Start, duration), near(m.End, n.End, duration)
	switch d := m.Start - n.Start; {
	case start:
	case d > 0 && d < launched && strings.Contains(fmt.Sprint(m.Attrs["inferspan.derived.methods"]), "span.start: batch_launch"):
		w.known["first rounds of decoding that are later by more than 1 ms, at the launch of the batch, and say so"]++
		start = true
	case threadName.MatchString(n.Name) && d > 0 && d < objectMade:
		w.known["threads that natively begin when the request's object is made"]++
		start = true
	}
	if !end && warmUp(t) && strings.Contains(n.Name, "Tokenizer") {
		w.known["tokenizer's threads of warm-ups, which end with that stage"]++
		end = true
	}
	if !end && endsByChance(n, t) {
		w.known["spans that natively end when the request's object is collected"]++
		end = true
	}
	record(w.starts, layer, m.Start, n.Start, !start)
	record(w.ends, layer, m.End, n.End, !end)
	if !start || !end {
		w.f.add("%s begins %+.3f ms and ends %+.3f ms from the engine's, which lasts %.3f ms (derived: %v)", who,
			float64(m.Start-n.Start)/1e6, float64(m.End-n.End)/1e6, float64(duration)/1e6, m.Attrs["inferspan.derived.methods"])
	}
	p := w.byID[n.TraceID+n.ParentID]
	// Prompts that come as a batch are handed over before the stage of their tokenizing is
	// ended. Then the tracer has the one below the other, where it is not documented.
	within := n.Name == "api_server_dispatch" && p != nil && p.Name == "tokenize"
	if within {
		w.known["api_server_dispatch of prompts that come as a batch, natively below tokenize"]++
	} else if n != t.root {
		if p != nil && (p.twin == nil || p.twin.SpanID != m.ParentID) {
			w.f.add("%s is below %s, the engine's below %s", who, w.name(m.TraceID+m.ParentID), p.Name)
		}
	}
	switch outcome := t.twin.root.Attrs["inferspan.outcome"]; {
	case (n.Code == 2) == (m.Code == 2):
	case m.Code == 2 && outcome != "completed" && outcome != "stop_string" && threadName.MatchString(n.Name):
		w.known["threads of requests that were given up, whose status natively says so only before they run"]++
	default:
		w.f.add("%s has status %d, the engine's %d", who, m.Code, n.Code)
	}
	var want, got []string
	for _, l := range n.Links {
		if p := w.byID[l.TraceID+l.SpanID]; p == nil || p.twin == nil {
			want = append(want, "no twin of "+w.name(l.TraceID+l.SpanID))
		} else {
			want = append(want, p.twin.TraceID+p.twin.SpanID)
		}
	}
	for _, l := range m.Links {
		got = append(got, l.TraceID+l.SpanID)
	}
	first := n.Name == "request_process" && (warmUp(t) || dispatchedWithin(t))
	if !slices.Equal(want, got) && (within || first) {
		w.known["links of these, and of warm-ups without that stage"]++
	} else if !slices.Equal(want, got) {
		for i := range got {
			got[i] = w.name(got[i])
		}
		for i := range want {
			want[i] = w.name(want[i])
		}
		w.f.add("%s is linked to %q, the engine's to %q", who, got, want)
	}
	for k, v := range n.Attrs {
		w.attr(who, k, v, n, t)
	}
	for k := range m.Attrs {
		if _, ok := n.Attrs[k]; !ok {
			w.beyond[layer+" attribute "+k]++
		}
	}
}

func (w *twins) name(id string) string {
	if s := w.byID[id]; s != nil {
		return s.Name
	}
	return id
}

// attr compares an attribute: numbers of seconds as times, all else for equality.
func (w *twins) attr(who, k string, want any, n *otel, t *otelTree) {
	m := n.twin
	got, ok := m.Attrs[k]
	outcome := t.twin.root.Attrs["inferspan.outcome"]
	_, sampled := n.Attrs["gen_ai.request.temperature"]
	switch {
	case k == "reason":
		w.known["attribute reason, the tracer's word for why it ended a thread"]++
		return
	case !ok && outcome != "completed" && outcome != "stop_string" && strings.HasPrefix(k, "gen_ai."):
		w.known["attributes that are documented for normal ends only"]++
		return
	case !ok && k == "gen_ai.request.top_k" && !sampled:
		w.known["top_k of greedy requests, whose parameters the engine replaces"]++
		return
	case t.root == n && warmUp(t) && (k == "gen_ai.request.max_tokens" || strings.HasPrefix(k, "gen_ai.latency.")):
		w.known["attributes of warm-ups, natively those of what is asked for"]++
		return
	case !ok:
		w.missing["attribute "+k]++
		w.f.add("%s: no %s, the engine has %v (left out: %v)", who, k, want, m.Attrs["inferspan.unavailable"])
		return
	}
	if a, err := toFloat(want); err == nil && strings.HasPrefix(k, "gen_ai.latency.") {
		b, err := toFloat(got)
		over := err != nil || !near(int64(b*1e9), int64(a*1e9), int64(a*1e9))
		record(w.numbers, k, int64(b*1e9), int64(a*1e9), over)
		if over {
			w.f.add("%s: %s is %v, the engine has %v (derived: %v)", who, k, got, want, m.Attrs["inferspan.derived.methods"])
		}
		return
	}
	a, errA := toFloat(want)
	b, errB := toFloat(got)
	same := reflect.DeepEqual(want, got)
	if errA == nil && errB == nil {
		same = a == b
	}
	record(w.numbers, k, 0, 0, !same)
	if !same {
		w.f.add("%s: %s is %v, the engine has %v", who, k, got, want)
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

// events compares the events of two trees, and the spans that they are on. What only a
// stage covers that ends with its thread is natively on the thread.
func (w *twins) events(n *otelTree) {
	mine := n.twin.events()
	used := make([]bool, len(mine))
	for _, a := range n.events() {
		best := -1
		for i, b := range mine {
			if !used[i] && b.Name == a.Name && (best < 0 || abs(b.Time-a.Time) < abs(mine[best].Time-a.Time)) {
				best = i
			}
		}
		if best < 0 || abs(mine[best].Time-a.Time) > seek {
			w.missing["event "+a.Name]++
			continue
		}
		used[best] = true
		b := mine[best]
		over := abs(b.Time-a.Time) > tolerance
		record(w.starts, "event "+a.Name, b.Time, a.Time, over)
		if d := b.Time - a.Time; over && a.Name == "schedule" && d > 0 && d < launched {
			w.known["schedule events that are later by more than 1 ms, at the launch of the batch"]++
			over = false
		}
		if over {
			w.f.add("request %s: event %s is %+.3f ms from the engine's", n.twin.rid(), a.Name, float64(b.Time-a.Time)/1e6)
		}
		if a.on.twin != b.on {
			w.placed[fmt.Sprintf("%s on %s, natively on %s", a.Name, b.on.layer(), a.on.layer())]++
		}
		for k, v := range a.Attrs {
			if k == "bid" {
				continue // drawn by chance
			}
			if fmt.Sprint(b.Attrs[k]) != fmt.Sprint(v) {
				w.f.add("request %s: event %s has %s=%v, the engine's %v", n.twin.rid(), a.Name, k, b.Attrs[k], v)
			}
		}
	}
	for i, b := range mine {
		if !used[i] {
			w.beyond["event "+b.Name]++
		}
	}
}

// report prints what was compared.
func (w *twins) report(t *testing.T) {
	t.Helper()
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "n\tequal\tp50\tp99\tmax\tmax rel.\tover\tunit\t  span or attribute\n")
	for _, g := range []struct {
		name string
		m    map[string]*differences
	}{{" start", w.starts}, {" end", w.ends}, {"", w.numbers}} {
		for _, k := range slices.Sorted(maps.Keys(g.m)) {
			g.m[k].print(tw, k+g.name, "us", 1e3)
		}
	}
	tw.Flush()
	t.Logf("%d spans of the engine's own in %d requests, %d of ours, %d pairs (over: beyond 1 ms and 1 %%)\n%s", w.native, len(w.nativeTrees), w.ours, w.paired, &b)
	t.Logf("the engine's own that we have not: %s", counted(w.missing))
	t.Logf("beyond the engine's own: %s", counted(w.beyond))
	t.Logf("the engine's own doing, or documented: %s", counted(w.known))
	t.Logf("events on another span than the engine's: %s", counted(w.placed))
}

func counted(m map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[k], k))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
