package e2e

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"testing"
	"text/tabwriter"

	"inferspan/tests/collectortest"
	"inferspan/tests/workload"
)

// stamped are the times that the engine core stamps in its messages. The engine
// states seconds, we nanoseconds.
var stamped = []string{
	"gen_ai.latency.time_in_queue",
	"gen_ai.latency.time_in_model_prefill",
	"gen_ai.latency.time_in_model_decode",
	"gen_ai.latency.time_in_model_inference",
}

// delivered are the times whose end the API server reads from its own clock, some
// time after it received the message: when its event loop gets to it. Ours end at
// the receipt (spec/README.md) and are early by as long as that loop was busy.
var delivered = []string{
	"gen_ai.latency.time_to_first_token",
	"gen_ai.latency.e2e",
}

var times = append(slices.Clone(stamped), delivered...)

// values are those that must be equal. The engine leaves a parameter out when it is 0.
var values = []string{
	"gen_ai.usage.prompt_tokens",
	"gen_ai.usage.completion_tokens",
	"gen_ai.request.max_tokens",
	"gen_ai.request.n",
	"gen_ai.request.temperature",
	"gen_ai.request.top_p",
}

// TestTruth compares our spans with the ones that the engine makes itself, of the
// same requests at the same time, and then looks at an engine without tracing:
// the spans must not depend on it.
func TestTruth(t *testing.T) {
	need(t)
	var traced, plain map[string]int
	t.Run("engine traces too", func(t *testing.T) { traced = truth(t) })
	if t.Failed() {
		return
	}
	t.Run("engine does not trace", func(t *testing.T) { plain = shapesWithoutTracing(t) })
	if t.Failed() {
		return
	}
	for shape, n := range traced {
		if plain[shape] == 0 {
			t.Errorf("only with the engine's own tracing (%d times): %s", n, shape)
		}
	}
	for shape, n := range plain {
		if traced[shape] == 0 {
			t.Errorf("only without the engine's own tracing (%d times): %s", n, shape)
		}
	}
	t.Logf("%d kinds of spans (name and attributes) with the engine's own tracing, %d without", len(traced), len(plain))
}

// truthOptions make the two runs the same. They are those of one request at a time
// where that decides what attributes there are.
var truthOptions = workload.Options{Seed: 3}

func truth(t *testing.T) map[string]int {
	c := collectortest.Start(t)
	e := startEngine(t, []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", "OTEL_SERVICE_NAME=vllm-truth", "OTEL_BSP_SCHEDULE_DELAY=200"},
		append(generateFlags, "--otlp-traces-endpoint", c.Endpoint+"/v1/traces")...)
	tr := attach(t, e, "--precision", "2", "--otlp-endpoint", c.Endpoint)
	log := e.play(t, truthOptions, generateNeeds...)
	e.idle(t)
	tr.settle(t, inferences(log))
	spans := tr.mustStop(t)
	waitSpans(t, c)
	native, ours := received(t, c)
	checkOTLP(t, spans, ours)

	checkHTTP(t, log, spans)
	compareNative(t, log, spans, native)
	checkTrees(t, spans)
	return shapes(log, spans)
}

func shapesWithoutTracing(t *testing.T) map[string]int {
	e := startEngine(t, nil, generateFlags...)
	tr := attach(t, e, "--precision", "2")
	log := e.play(t, truthOptions, generateNeeds...)
	e.idle(t)
	tr.settle(t, inferences(log))
	spans := tr.mustStop(t)
	checkHTTP(t, log, spans)
	checkTrees(t, spans)
	return shapes(log, spans)
}

func inferences(log []workload.Entry) int {
	n := 0
	for i := range log {
		if log[i].Inference() {
			n++
		}
	}
	return n
}

// ofTheMoment are attributes that a request has or not by chance: whether the
// tokenizer's cost had been measured when it came, whether the KV cache was full just
// then, and what follows from these.
var ofTheMoment = []string{
	"gen_ai.latency.time_in_tokenize", "gen_ai.latency.time_in_detokenize", "gen_ai.request.preemption_count",
	"inferspan.derived", "inferspan.derived.methods",
}

// shapes counts spans by name and attribute names, but for those of the moment. Spans of requests whose client
// left are left out: how far such a request got is a matter of milliseconds.
func shapes(log []workload.Entry, spans []*span) map[string]int {
	left := map[string]bool{}
	for _, s := range spans {
		if s.entry() && s.text("inferspan.outcome") == "client_disconnect" {
			left[s.TraceID] = true
		}
	}
	m := map[string]int{}
	for _, s := range spans {
		if left[s.TraceID] {
			continue
		}
		m[shapeOf(s, s.Name)]++
	}
	return m
}

// shapeOf is the name and the names of the attributes, but for those of the moment.
func shapeOf(s *span, name string) string {
	var keys []string
	for k := range s.Attrs {
		if !slices.Contains(ofTheMoment, k) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	if s.entry() {
		name += " " + s.text("url.path")
	}
	return name + ": " + strings.Join(keys, " ")
}

// compareNative matches our llm_request spans with the engine's own, one to one,
// prints how much they differ, and fails where a count differs at all or a stamped
// time by more than 1 ms and more than 1 %. Of the delivered times most must be so
// near, the median within 1 ms, and none later than the engine's own.
func compareNative(t *testing.T, log []workload.Entry, spans []*span, native []*nativeSpan) {
	t.Helper()
	f := faults{t: t}
	defer f.end("engine's own spans")
	ours := map[string][]*span{}
	finished, unfinished := 0, 0
	for _, s := range spans {
		if !s.llmRequest() {
			continue
		}
		// The engine makes no span of a request that was aborted.
		if o := s.text("inferspan.outcome"); o == "completed" || o == "stop_string" {
			ours[s.text("gen_ai.request.id")] = append(ours[s.text("gen_ai.request.id")], s)
			finished++
		} else {
			unfinished++
		}
	}
	theirs := map[string][]*nativeSpan{}
	for _, n := range native {
		id, _ := n.Attrs["gen_ai.request.id"].(string)
		theirs[id] = append(theirs[id], n)
	}
	t.Logf("%d requests sent, %d finished llm_request spans of ours, %d of the engine, %d of requests that did not finish",
		len(log), finished, len(native), unfinished)
	if len(native) < 200 {
		f.add("the engine made %d spans, want at least 200", len(native))
	}
	for id, list := range theirs {
		if len(ours[id]) != len(list) {
			f.add("request %s: the engine has %d spans, we have %d", id, len(list), len(ours[id]))
		}
	}
	for id, list := range ours {
		if len(theirs[id]) == 0 {
			f.add("request %s: the engine has no span, we have %d", id, len(list))
		}
	}
	byID := map[string]*span{}
	for _, s := range spans {
		byID[s.TraceID+s.SpanID] = s
	}

	diffs := map[string]*differences{}
	for _, a := range append(slices.Clone(times), append(slices.Clone(values), "span start")...) {
		diffs[a] = &differences{}
	}
	for id, list := range theirs {
		if len(ours[id]) != len(list) {
			continue
		}
		for i, s := range assign(ours[id], list) {
			n := list[i]
			for _, a := range times {
				compare(&f, id, a, s, n, diffs[a], 1e9)
			}
			for _, a := range values {
				compare(&f, id, a, s, n, diffs[a], 1)
			}
			diffs["span start"].add(float64(s.Start)/1e3, float64(n.Start)/1e3)
			if n.ParentID != "" {
				// The engine's parent is the client's span; ours has the entry span in between.
				entry := byID[s.TraceID+s.ParentID]
				if s.TraceID != n.TraceID || entry == nil || entry.ParentID != n.ParentID {
					f.add("request %s: the engine's span is in trace %s below %s, ours in %s below entry %+v", id, n.TraceID, n.ParentID, s.TraceID, entry)
				}
			}
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "n\tequal\tp50\tp99\tmax\tmax rel.\tover\tunit\t  attribute\n")
	for _, a := range times {
		diffs[a].print(w, a, "us", 1e3)
	}
	for _, a := range values {
		diffs[a].print(w, a, "1", 1)
	}
	diffs["span start"].print(w, "span start", "us", 1)
	w.Flush()
	for _, a := range delivered {
		d := diffs[a]
		if n := len(d.abs); n > 0 && (d.abs[n/2] > 1e6 || d.over > n/20) {
			t.Errorf("%s: %d of %d are beyond 1 ms and 1 %%, the median is %.0f us", a, d.over, n, d.abs[n/2]/1e3)
		}
	}
	t.Logf("differences between our spans and the engine's own (over: beyond 1 ms and 1 %%)\n%s", &b)
}

// compare notes the difference in one attribute and fails when it is too large.
func compare(f *faults, id, a string, s *span, n *nativeSpan, d *differences, scale float64) {
	f.t.Helper()
	theirs, has := n.number(a)
	mine, ok := s.number(a)
	if !has {
		if ok && mine != 0 && scale == 1 {
			f.add("request %s: %s is %v, the engine leaves it out, which means 0", id, a, mine)
		}
		return
	}
	if !ok {
		f.add("request %s: no %s, the engine has %v", id, a, theirs)
		return
	}
	theirs *= scale
	diff := math.Abs(mine - theirs)
	over := false
	if scale == 1 {
		over = diff > 1e-9
	} else {
		over = diff > 1e6 && diff > 0.01*theirs
	}
	d.add(mine, theirs)
	if over {
		d.over++
	}
	if slices.Contains(delivered, a) {
		over = over && mine > theirs
	}
	if over {
		f.add("request %s: %s is %v, the engine has %v", id, a, mine, theirs)
	}
}

// differences of one attribute.
type differences struct {
	abs  []float64
	rel  float64
	over int
}

func (d *differences) add(a, b float64) {
	diff := math.Abs(a - b)
	// The engine's seconds are doubles: below a nanosecond there is no difference.
	if diff < 1 && diff != 0 && b > 1e6 {
		diff = 0
	}
	d.abs = append(d.abs, diff)
	if b != 0 {
		d.rel = max(d.rel, diff/math.Abs(b))
	}
}

func (d *differences) print(w *tabwriter.Writer, name, unit string, scale float64) {
	if len(d.abs) == 0 {
		fmt.Fprintf(w, "0\t\t\t\t\t\t\t%s\t  %s\n", unit, name)
		return
	}
	sort.Float64s(d.abs)
	equal := 0
	for _, v := range d.abs {
		if v == 0 {
			equal++
		}
	}
	n := len(d.abs)
	fmt.Fprintf(w, "%d\t%d\t%.3f\t%.3f\t%.3f\t%.4f%%\t%d\t%s\t  %s\n", n, equal,
		d.abs[n/2]/scale, d.abs[min(n-1, n*99/100)]/scale, d.abs[n-1]/scale, d.rel*100, d.over, unit, name)
}

// assign returns ours in the order of theirs. Children of one request share an id;
// of their possible pairings it takes the one with the smallest sum of differences.
func assign(ours []*span, theirs []*nativeSpan) []*span {
	best, bestCost := ours, math.Inf(1)
	permute(slices.Clone(ours), 0, func(p []*span) {
		cost := 0.0
		for i := range p {
			for _, a := range times {
				m, _ := p[i].number(a)
				n, _ := theirs[i].number(a)
				cost += math.Abs(m - n*1e9)
			}
		}
		if cost < bestCost {
			best, bestCost = slices.Clone(p), cost
		}
	})
	return best
}

func permute(p []*span, k int, f func([]*span)) {
	if k == len(p) {
		f(p)
		return
	}
	for i := k; i < len(p); i++ {
		p[k], p[i] = p[i], p[k]
		permute(p, k+1, f)
		p[k], p[i] = p[i], p[k]
	}
}

// checkTrees checks what holds in every tree: parents exist in the same trace and
// contain their children, nothing lasts a negative time, ids are not used twice.
func checkTrees(t *testing.T, spans []*span) {
	t.Helper()
	f := faults{t: t}
	defer f.end("trees")
	byID := map[string]*span{}
	for _, s := range spans {
		if byID[s.SpanID] != nil {
			f.add("span id %s is used twice", s.SpanID)
		}
		byID[s.SpanID] = s
	}
	for _, s := range spans {
		if s.End < s.Start {
			f.add("%s %s ends %d ns before it starts", s.Name, s.SpanID, s.Start-s.End)
		}
		for _, ev := range s.Events {
			if ev.Time < s.Start || ev.Time > s.End {
				f.add("%s %s: event %s lies outside the span", s.Name, s.SpanID, ev.Name)
			}
		}
		if s.entry() || s.ParentID == "" {
			continue
		}
		p := byID[s.ParentID]
		if p == nil {
			f.add("%s %s has no parent %s", s.Name, s.SpanID, s.ParentID)
			continue
		}
		if p.TraceID != s.TraceID {
			f.add("%s %s is in trace %s, its parent in %s", s.Name, s.SpanID, s.TraceID, p.TraceID)
		}
	}
}
