package correlate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// layerOf names the documented span that s is.
func layerOf(s *trace.Span) *semconv.Span {
	switch s.Name {
	case "llm_request":
		return semconv.SpanByID(semconv.SpanVLLMV1LLMRequest)
	case "wait":
		return semconv.SpanByID(semconv.SpanVLLMV1Wait)
	case "prefill":
		return semconv.SpanByID(semconv.SpanVLLMV1Prefill)
	case "decode":
		return semconv.SpanByID(semconv.SpanVLLMV1Decode)
	case "kv_transfer":
		return semconv.SpanByID(semconv.SpanVLLMV1KVTransfer)
	case "inferspan.forward":
		return semconv.SpanByID(semconv.SpanOwnForward)
	case "inferspan.prefill_chunk":
		return semconv.SpanByID(semconv.SpanOwnPrefillChunk)
	}
	for i := range semconv.Spans {
		if d := &semconv.Spans[i]; d.Engine == "sglang" && d.Layer != "entry" && matches(d.NameRegex, s.Name) {
			return d
		}
	}
	op, _, _ := strings.Cut(s.Name, " ")
	kind := "vllm"
	for _, a := range s.Resource.Attrs {
		if a.Key == "service.name" && a.Value == KindSGLang { // as scripts have it
			kind = KindSGLang
		}
	}
	return semconv.SpanByID(kind + ".entry." + op)
}

var regexes = map[string]*regexp.Regexp{}

func matches(regex, s string) bool {
	if regexes[regex] == nil {
		regexes[regex] = regexp.MustCompile(regex)
	}
	return regexes[regex].MatchString(s)
}

// typeOf gives the specification's word for a value's type.
func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case int64:
		return "int"
	case float64:
		return "double"
	case []string:
		return "string[]"
	case []int64:
		return "int[]"
	case []float64:
		return "double[]"
	}
	return "none of the documented types"
}

// conforms reports what in a tree is not as specified.
func conforms(t *testing.T, tr *trace.Tree, o Options) {
	t.Helper()
	for i := range tr.Spans {
		s := &tr.Spans[i]
		def := layerOf(s)
		if def == nil {
			t.Errorf("span %q is not documented", s.Name)
			continue
		}
		if !matches(def.NameRegex, s.Name) {
			t.Errorf("span name %q does not match %s", s.Name, def.NameRegex)
		}
		level := o.Precision
		if def.Engine == "sglang" {
			level = o.TraceLevel
		}
		if def.MinLevel > level {
			t.Errorf("span %s at level %d", s.Name, level)
		}
		seen := map[string]bool{}
		for _, a := range s.Attrs {
			if seen[a.Key] {
				t.Errorf("%s: %s twice", s.Name, a.Key)
			}
			seen[a.Key] = true
			checkAttr(t, s.Name, def.Attr(a.Key), a, def.Layer)
			if d := def.Attr(a.Key); d != nil && d.Sensitive && !o.Content.span() {
				t.Errorf("%s: %s under the content policy %d", s.Name, a.Key, o.Content)
			}
		}
		derived, _ := s.Attr(semconv.AttrInferspanDerived).([]string)
		for _, d := range derived {
			event, ok := strings.CutPrefix(d, spanEvent)
			if ok && slices.ContainsFunc(s.Events, func(e trace.Event) bool { return e.Name == event }) {
				continue
			}
			if d != spanStart && d != spanEnd && !seen[d] {
				t.Errorf("%s: %s is marked derived and not there", s.Name, d)
			}
		}
		methods, _ := s.Attr(semconv.AttrInferspanDerivedMethods).([]string)
		for _, m := range methods {
			if name, method, ok := strings.Cut(m, ": "); !ok || method == "" || !slices.Contains(derived, name) {
				t.Errorf("%s: method %q of what is not derived", s.Name, m)
			}
		}
		for _, e := range s.Events {
			edef := semconv.EventByID("vllm.event." + e.Name)
			if def.Engine == "sglang" {
				edef = semconv.EventByID("sglang.event." + e.Name)
			}
			if edef == nil || edef.MinLevel > level || !slices.Contains(def.Events, edef.ID) {
				t.Errorf("%s: event %q at level %d", s.Name, e.Name, level)
				continue
			}
			for _, a := range e.Attrs {
				i := slices.IndexFunc(edef.Attrs, func(d semconv.Attr) bool { return d.Name == a.Key })
				if i < 0 || typeOf(a.Value) != edef.Attrs[i].Type || (edef.Attrs[i].Sensitive && !o.Content.span()) {
					t.Errorf("event %s: %s (%T)", e.Name, a.Key, a.Value)
				}
			}
		}
		if len(s.Events) > o.EventLimit {
			t.Errorf("%s: %d events", s.Name, len(s.Events))
		}
	}
	if len(tr.Logs) > 0 && !o.Content.event() {
		t.Errorf("log events under the content policy %d", o.Content)
	}
}

func checkAttr(t *testing.T, span string, def *semconv.Attr, a trace.Attr, layer string) {
	t.Helper()
	if def == nil {
		def = semconv.OwnAttr(a.Key)
		if def == nil {
			t.Errorf("%s: attribute %s is neither documented nor listed as our own", span, a.Key)
			return
		}
		if !slices.Contains(def.On, layer) {
			t.Errorf("%s: own attribute %s is not listed for the layer %s", span, a.Key, layer)
		}
	}
	if got := typeOf(a.Value); got != def.Type {
		t.Errorf("%s: %s is %s, documented as %s", span, a.Key, got, def.Type)
	}
	if len(def.Values) > 0 {
		values := []string{}
		switch v := a.Value.(type) {
		case string:
			values = append(values, v)
		case []string:
			values = v
		}
		for _, v := range values {
			if a.Key == semconv.AttrThreadLabel { // with a role in front, and a number behind, as noted there
				v = strings.TrimPrefix(strings.TrimPrefix(v, "Prefill "), "Decode ")
				if matches(`^MultiTokenizer-\d+$`, v) {
					continue
				}
			}
			if !slices.Contains(def.Values, v) {
				t.Errorf("%s: %s = %q, allowed are %v", span, a.Key, v, def.Values)
			}
		}
	}
}

func metricsConform(t *testing.T, m metric.Snapshot) {
	t.Helper()
	metricsConformTo(t, m, "vllm")
}

// metricsConformTo reports what is not as specified in the metrics of one engine.
func metricsConformTo(t *testing.T, m metric.Snapshot, engine string) {
	t.Helper()
	other := map[string]string{"vllm": "sglang", "sglang": "vllm"}[engine]
	last := -1
	for _, f := range m.Families {
		i := slices.IndexFunc(semconv.Metrics, func(d semconv.Metric) bool { return d.Name == f.Name && d.Engine != other })
		if i < 0 {
			t.Errorf("metric %s is not documented", f.Name)
			continue
		}
		def := semconv.Metrics[i]
		if i <= last {
			t.Errorf("metric %s is out of order", f.Name)
		}
		last = i
		if want := map[metric.Type]string{metric.Counter: "Counter", metric.Gauge: "Gauge", metric.Histogram: "Histogram", metric.UpDownCounter: "UpDownCounter"}[f.Type]; want != def.Instrument || f.Unit != def.Unit {
			t.Errorf("metric %s: %s of unit %s, documented as %s of %s", f.Name, want, f.Unit, def.Instrument, def.Unit)
		}
		series := map[string]bool{}
		for _, p := range f.Points {
			var names []string
			id := ""
			for _, l := range p.Labels {
				names = append(names, l.Name)
				id += l.Value + "\x00"
			}
			if !slices.Equal(names, def.Dimensions) {
				t.Errorf("metric %s: dimensions %v, documented are %v", f.Name, names, def.Dimensions)
			}
			if p.Resource != nil {
				for _, a := range p.Resource.Attrs {
					if a.Key == "process.pid" {
						id += fmt.Sprint(a.Value)
					}
				}
			}
			if series[id] {
				t.Errorf("metric %s: the series %q twice", f.Name, id)
			}
			series[id] = true
			if p.Value < 0 || p.Value != p.Value {
				t.Errorf("metric %s = %v", f.Name, p.Value)
			}
			if f.Type == metric.Histogram {
				n := uint64(0)
				for _, b := range p.Buckets {
					n += b
				}
				if len(p.Buckets) != len(f.Bounds)+1 || n != p.Count {
					t.Errorf("metric %s: %d buckets for %d bounds, %d of %d values in them", f.Name, len(p.Buckets), len(f.Bounds), n, p.Count)
				}
			}
		}
	}
}

func TestConformance(t *testing.T) {
	for _, sc := range scenarios {
		for precision := range 3 {
			t.Run(sc.name, func(t *testing.T) {
				o := NewOptions()
				if sc.opt != nil {
					sc.opt(&o)
				}
				o.Precision = precision
				trees, m := run(t, o, sc.build().sig)
				for _, tr := range trees {
					conforms(t, tr, o)
					wellFormed(t, tr)
				}
				metricsConform(t, m)
			})
		}
	}
}

// TestComplete checks that a whole request has everything that is documented as
// always there, and every V1 and common metric a series.
func TestComplete(t *testing.T) {
	s := newScript().put(&signal.Detokenized{At: at(50), Engine: 1, PID: apiPID, Duration: 1000, Tokens: 10}).
		tokenize(101.5, 300, 16).chat(100, 7, "chatcmpl-a")
	for _, x := range s.sig {
		if st, ok := x.(*signal.StepOutput); ok {
			st.Stats.PrefixQueries, st.Stats.PrefixHits = signal.Some[int64](16), signal.Some[int64](0)
		}
	}
	trees, m := run(t, NewOptions(), s.sig)
	for i := range trees[0].Spans {
		sp := &trees[0].Spans[i]
		def := layerOf(sp)
		for _, a := range def.Attrs {
			if a.Requirement == "always" && sp.Attr(a.Name) == nil {
				t.Errorf("%s lacks %s", sp.Name, a.Name)
			}
		}
		for _, a := range semconv.OwnAttrs {
			if a.Requirement == "always" && slices.Contains(a.On, def.Layer) && sp.Attr(a.Name) == nil {
				t.Errorf("%s lacks %s", sp.Name, a.Name)
			}
		}
	}
	for _, def := range semconv.Metrics {
		if def.Engine != "vllm" || def.Version == "V0" {
			continue
		}
		if !slices.ContainsFunc(m.Families, func(f metric.Family) bool { return f.Name == def.Name }) {
			t.Errorf("no series of %s", def.Name)
		}
	}
}

func names(m metric.Snapshot) (out []string) {
	for _, f := range m.Families {
		out = append(out, f.Name)
	}
	return out
}
