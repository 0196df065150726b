package otlp

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/internal/sample"
)

func TestSpans(t *testing.T) {
	rc, srv := start(t, nil)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
	d, err := export.DefaultsFromEnv("", os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Endpoint: srv.URL, Defaults: d, Version: "1.2.3"})
	trees := append(sample.Requests(20), sample.Odd())
	if err := s.Export(short(t, 10*time.Second), trees); err != nil {
		t.Fatal(err)
	}
	got := rc.spans()
	want := 0
	for i := range trees {
		for j := range trees[i].Spans {
			want++
			checkSpan(t, &trees[i].Spans[j], got)
		}
	}
	if len(got) != want {
		t.Errorf("%d spans came, want %d", len(got), want)
	}
	if len(rc.traces) != 1 || len(rc.traces[0].ResourceSpans) != 2 {
		t.Fatalf("want one request with two resources: %v", rc.traces)
	}
	for i, service := range []string{"vllm", `od"d`} {
		rs := rc.traces[0].ResourceSpans[i]
		attrs := attrMap(rs.Resource.Attributes)
		if !strings.Contains(attrs["service.name"], strings.ReplaceAll(service, `"`, `\"`)) || !strings.Contains(attrs["deployment.environment.name"], "lab") {
			t.Errorf("resource %v", attrs)
		}
		if rs.SchemaUrl != "" || rs.ScopeSpans[0].SchemaUrl != "" || rs.ScopeSpans[0].Scope.Name != "inferspan" || rs.ScopeSpans[0].Scope.Version != "1.2.3" {
			t.Errorf("scope %v", rs.ScopeSpans[0].Scope)
		}
	}
}

func checkSpan(t *testing.T, s *trace.Span, got map[string]*tracepb.Span) {
	t.Helper()
	p := got[fmt.Sprintf("%x/%x", s.TraceID[:], s.SpanID[:])]
	if p == nil {
		t.Errorf("span %x is missing", s.SpanID)
		return
	}
	parent := s.ParentID[:]
	if s.ParentID == (trace.SpanID{}) {
		parent = nil
	}
	flags := uint32(0x100)
	if s.RemoteParent {
		flags = 0x300
	}
	if string(p.ParentSpanId) != string(parent) || p.Name != text(s.Name) || p.TraceState != s.TraceState || int(p.Kind) != int(s.Kind) ||
		p.StartTimeUnixNano != uint64(s.Start) || p.EndTimeUnixNano != uint64(s.End) || int(p.Status.Code) != int(s.Code) ||
		p.Status.Message != s.Message || p.DroppedEventsCount != uint32(s.DroppedEvents) || len(p.Events) != len(s.Events) ||
		len(p.Links) != len(s.Links) || p.Flags != flags || p.DroppedAttributesCount != 0 {
		t.Errorf("span %+v came as %v", s, p)
	}
	attrs := attrMap(p.Attributes)
	if len(attrs) != len(p.Attributes) {
		t.Errorf("an attribute came twice: %v", p.Attributes)
	}
	for _, a := range s.Attrs {
		var v commonpb.AnyValue
		if !setValue(&v, s.Attr(a.Key)) {
			t.Fatal(a)
		}
		if a.Key == "same" {
			v.Value = &commonpb.AnyValue_StringValue{StringValue: "last"}
		}
		if attrs[a.Key] != v.String() {
			t.Errorf("%s came as %s, want %s", a.Key, attrs[a.Key], v.String())
		}
	}
}

func TestForeignAttributeIsCounted(t *testing.T) {
	got, dropped := keyValues([]trace.Attr{{Key: "a", Value: struct{}{}}, {Key: "b", Value: int64(1)}})
	if dropped != 1 || len(got) != 1 || got[0].Key != "b" {
		t.Errorf("got %v, %d dropped", got, dropped)
	}
}

func TestLogs(t *testing.T) {
	rc, srv := start(t, nil)
	s := open(t, Options{Endpoint: srv.URL, Version: "1"})
	odd := sample.Odd()
	if err := s.Export(short(t, 10*time.Second), []trace.Tree{odd, odd}); err != nil {
		t.Fatal(err)
	}
	if len(rc.logs) != 1 || len(rc.logs[0].ResourceLogs) != 1 {
		t.Fatalf("got %v", rc.logs)
	}
	rl := rc.logs[0].ResourceLogs[0]
	recs := rl.ScopeLogs[0].LogRecords
	if len(recs) != 2 || rl.ScopeLogs[0].Scope.Name != "inferspan" || !strings.Contains(attrMap(rl.Resource.Attributes)["service.name"], `od\"d`) {
		t.Fatalf("got %v", rl)
	}
	r, l := recs[0], odd.Logs[0]
	if r.EventName != l.EventName || string(r.TraceId) != string(l.TraceID[:]) || string(r.SpanId) != string(l.SpanID[:]) || r.TimeUnixNano != uint64(l.Time) {
		t.Errorf("got %v", r)
	}
	msgs := r.Attributes[0].Value.GetArrayValue().GetValues()
	if len(msgs) != 1 || !strings.Contains(fmt.Sprint(attrMap(msgs[0].GetKvlistValue().GetValues())["parts"]), "hi <you>") {
		t.Errorf("messages are not structured: %v", r.Attributes)
	}
}

func TestMetrics(t *testing.T) {
	rc, srv := start(t, nil)
	s := open(t, Options{Endpoint: srv.URL, Version: "1"})
	snap := sample.Snapshot()
	if err := s.Metrics(short(t, 10*time.Second), snap); err != nil {
		t.Fatal(err)
	}
	if len(rc.metrics) != 3 {
		t.Fatalf("%d requests, want one for each of 2 engines and the agent", len(rc.metrics))
	}
	byName := map[string][]*metricspb.Metric{}
	var services []string
	for _, req := range rc.metrics {
		rm := req.ResourceMetrics[0]
		services = append(services, attrMap(rm.Resource.Attributes)["service.name"])
		for _, m := range rm.ScopeMetrics[0].Metrics {
			byName[m.Name] = append(byName[m.Name], m)
		}
	}
	if fmt.Sprint(services) != `[string_value:"vllm" string_value:"vllm" string_value:"inferspan"]` {
		t.Errorf("services %v", services)
	}
	sum := byName["gen_ai_vllm_generation_tokens"]
	if len(sum) != 2 {
		t.Fatalf("got %v", byName)
	}
	dp := sum[0].GetSum().DataPoints[0]
	if !sum[0].GetSum().IsMonotonic || sum[0].GetSum().AggregationTemporality != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE ||
		dp.GetAsDouble() != 12345 || dp.StartTimeUnixNano != uint64(snap.Start) || dp.TimeUnixNano != uint64(snap.Time) || sum[0].Unit != "{token}" || len(dp.Attributes) != 4 {
		t.Errorf("got %v", sum[0])
	}
	if g := byName["gen_ai_vllm_kv_cache_usage_perc"]; len(g) != 1 || g[0].GetGauge().DataPoints[0].GetAsDouble() != 0.25 {
		t.Errorf("gauge %v", g)
	}
	h := byName["gen_ai.server.request.duration"][0].GetHistogram().DataPoints[0]
	if h.Count != 12 || h.GetSum() != 21.5 || fmt.Sprint(h.BucketCounts, h.ExplicitBounds) != "[1 5 4 2] [0.1 1 10]" {
		t.Errorf("histogram %v", h)
	}
}

func TestStructured(t *testing.T) {
	for in, want := range map[string]string{
		`[1,2.5,"x",true,null,{"b":1,"a":[]}]`: "", `{`: "no", `[] []`: "no", ``: "no",
	} {
		v, ok := structured(in)
		if ok != (want == "") {
			t.Errorf("%q: %v %v", in, v, ok)
		}
	}
}

func BenchmarkConvertAndMarshal(b *testing.B) {
	trees := sample.Requests(100)
	spans := 0
	for i := range trees {
		spans += len(trees[i].Spans)
	}
	rs := resources{}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		pb := resourceSpans(trees, &commonpb.InstrumentationScope{Name: scopeName}, func(r *trace.Resource) *resourcepb.Resource { return rs.get(r).pb })
		if _, err := proto.Marshal(&coltracepb.ExportTraceServiceRequest{ResourceSpans: pb}); err != nil {
			b.Fatal(err)
		}
		n += spans
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "spans/s")
}
