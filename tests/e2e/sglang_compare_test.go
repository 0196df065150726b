package e2e

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

func near(a, b, duration int64) bool {
	d := max(a-b, b-a)
	return d <= tolerance || d <= duration/100
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

// beginsWithStage: the first of the engine's own stages in a thread begins at that time.
func beginsWithStage(thread *otel, at int64) bool {
	first := int64(math.MaxInt64)
	for _, s := range thread.stages() {
		first = min(first, s.Start)
	}
	return max(at-first, first-at) <= tolerance
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
	case threadName.MatchString(n.Name) && d > 0 && beginsWithStage(n, m.Start):
		// However long that was before the first stamp: the host may have been busy.
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
	// What shows the beginning and the end of a thread on such a rank is not seen.
	if th := w.silent[n]; th != nil && says(th.twin) && (n == th || n.Name == "decode_forward") {
		if !start && n == th || !end {
			w.known["threads of ranks that send nothing, which begin and end with what was seen, and say so"]++
		}
		start, end = start || n == th, true
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
	before := w.silent[n] != nil && len(want) == 1 && strings.HasPrefix(want[0], "no twin of ") // said to be missing
	if !slices.Equal(want, got) && (within || first || before) {
		w.known["links of these, of warm-ups without that stage, and of what follows a stage that is said to be missing"]++
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
	case k == "thread_label" && ok && want != got && plain(fmt.Sprint(want)) == plain(fmt.Sprint(got)):
		w.known["labels with a blank after the role, as documented"]++
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
