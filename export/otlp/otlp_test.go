package otlp

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	collogspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
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

var _ export.Sink = (*Sink)(nil)

// receiver is an OTLP receiver that keeps what it takes. answer may stand in
// for the usual success.
type receiver struct {
	t      *testing.T
	answer func(w http.ResponseWriter, r *http.Request, n int) bool // n: how many requests came before

	mu      sync.Mutex
	n       int
	headers []http.Header
	paths   []string
	traces  []*coltracepb.ExportTraceServiceRequest
	metrics []*colmetricspb.ExportMetricsServiceRequest
	logs    []*collogspb.ExportLogsServiceRequest
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rc.mu.Lock()
	n := rc.n
	rc.n++
	rc.headers = append(rc.headers, r.Header.Clone())
	rc.paths = append(rc.paths, r.URL.Path)
	rc.mu.Unlock()
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		zr, err := gzip.NewReader(body)
		if err != nil {
			rc.t.Error(err)
			return
		}
		body = zr
	}
	data, err := io.ReadAll(body)
	if err != nil {
		rc.t.Error(err)
		return
	}
	if ct := r.Header.Get("Content-Type"); ct != "application/x-protobuf" {
		rc.t.Errorf("content type %q", ct)
	}
	if rc.answer != nil && rc.answer(w, r, n) {
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	var resp proto.Message
	switch {
	case strings.HasSuffix(r.URL.Path, "/v1/traces"):
		m := new(coltracepb.ExportTraceServiceRequest)
		err, resp = proto.Unmarshal(data, m), new(coltracepb.ExportTraceServiceResponse)
		rc.traces = append(rc.traces, m)
	case strings.HasSuffix(r.URL.Path, "/v1/metrics"):
		m := new(colmetricspb.ExportMetricsServiceRequest)
		err, resp = proto.Unmarshal(data, m), new(colmetricspb.ExportMetricsServiceResponse)
		rc.metrics = append(rc.metrics, m)
	case strings.HasSuffix(r.URL.Path, "/v1/logs"):
		m := new(collogspb.ExportLogsServiceRequest)
		err, resp = proto.Unmarshal(data, m), new(collogspb.ExportLogsServiceResponse)
		rc.logs = append(rc.logs, m)
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		rc.t.Error(err)
	}
	reply(w, resp)
}

func reply(w http.ResponseWriter, m proto.Message) {
	b, _ := proto.Marshal(m)
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(b)
}

func (rc *receiver) spans() map[string]*tracepb.Span {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	out := map[string]*tracepb.Span{}
	for _, req := range rc.traces {
		for _, rs := range req.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					out[fmt.Sprintf("%x/%x", s.TraceId, s.SpanId)] = s
				}
			}
		}
	}
	return out
}

// clean removes the exporter's variables that the test's own environment may have.
func clean(t *testing.T) {
	for _, kv := range os.Environ() {
		if k, _, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "OTEL_") {
			t.Setenv(k, "")
		}
	}
}

func start(t *testing.T, answer func(http.ResponseWriter, *http.Request, int) bool) (*receiver, *httptest.Server) {
	t.Helper()
	clean(t)
	rc := &receiver{t: t, answer: answer}
	srv := httptest.NewServer(rc)
	t.Cleanup(srv.Close)
	return rc, srv
}

func open(t *testing.T, o Options) *Sink {
	t.Helper()
	s, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func short(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func attrMap(kvs []*commonpb.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range kvs {
		out[kv.Key] = kv.Value.String()
	}
	return out
}

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

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		name   string
		env    map[string]string // SRV stands for the server's URL
		option string
		path   string
		header map[string]string
	}{
		{"general endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "SRV/base"}, "", "/base/v1/traces", nil},
		{"endpoint for traces is taken as it is", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "SRV/mine/v1/traces", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "", "/mine/v1/traces", nil},
		{"option goes first", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "SRV/opt/", "/opt/v1/traces", nil},
		{"headers", map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,x-a=1"}, "SRV", "/v1/traces", map[string]string{"Authorization": "Bearer x", "X-A": "1"}},
		{"headers for traces", map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "x-a=1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-a=2"}, "SRV", "/v1/traces", map[string]string{"X-A": "2"}},
		{"gzip", map[string]string{"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, "SRV", "/v1/traces", map[string]string{"Content-Encoding": "gzip"}},
		{"protocol", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "SRV", "/v1/traces", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			rc, srv := start(t, nil)
			for k, v := range c.env {
				t.Setenv(k, strings.ReplaceAll(v, "SRV", srv.URL))
			}
			s := open(t, Options{Endpoint: strings.ReplaceAll(c.option, "SRV", srv.URL)})
			if err := s.Probe(short(t, 5*time.Second)); err != nil {
				t.Fatal(err)
			}
			if err := s.Export(short(t, 5*time.Second), sample.Requests(3)); err != nil {
				t.Fatal(err)
			}
			if len(rc.spans()) != 15 || rc.paths[0] != c.path {
				t.Errorf("%d spans at %v", len(rc.spans()), rc.paths)
			}
			for k, v := range c.header {
				if got := rc.headers[1].Get(k); got != v {
					t.Errorf("%s: %q, want %q", k, got, v)
				}
			}
		})
	}
}

func TestConfigurationErrors(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	if err := os.WriteFile(junk, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env    map[string]string
		option string
		want   string
	}{
		{map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "", `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": only http/protobuf is supported`},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "", `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is "http/json": only http/protobuf is supported`},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, "", `OTEL_EXPORTER_OTLP_ENDPOINT is "localhost:4318": it must begin with http:// or https://`},
		{nil, "collector", `endpoint is "collector": it must begin with http:// or https://`},
		{nil, "127.0.0.1:4318", `endpoint is "127.0.0.1:4318": it must begin with http:// or https://`},
		{nil, "http://", `endpoint is "http://": it has no host`},
		{map[string]string{"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "", `OTEL_EXPORTER_OTLP_COMPRESSION is "zstd": only gzip and none are supported`},
		{map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": "/does/not/exist"}, "", "reading OTEL_EXPORTER_OTLP_CERTIFICATE: open /does/not/exist: no such file or directory"},
		{map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": junk}, "", "reading OTEL_EXPORTER_OTLP_CERTIFICATE: no certificate in " + junk},
		{map[string]string{"OTEL_EXPORTER_OTLP_CLIENT_KEY": junk}, "", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other"},
		{map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, "", `OTEL_TRACES_EXPORTER is "zipkin": only otlp and none are supported`},
	} {
		t.Run(c.want, func(t *testing.T) {
			clean(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			s, err := New(context.Background(), Options{Endpoint: c.option})
			if err == nil || err.Error() != "setting up the OTLP exporter: "+c.want || s != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestSignalsOff(t *testing.T) {
	rc, srv := start(t, nil)
	t.Setenv("OTEL_TRACES_EXPORTER", "none")
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	t.Setenv("OTEL_LOGS_EXPORTER", "none")
	s := open(t, Options{Endpoint: srv.URL})
	ctx := short(t, 5*time.Second)
	if err := errors.Join(s.Probe(ctx), s.Export(ctx, []trace.Tree{sample.Odd()}), s.Metrics(ctx, sample.Snapshot())); err != nil || rc.n != 0 {
		t.Errorf("%d requests, %v", rc.n, err)
	}
}

func status(codes ...int) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n >= len(codes) || codes[n] == 200 {
			return false
		}
		http.Error(w, "because", codes[n])
		return true
	}
}

func TestRetryOn503(t *testing.T) {
	rc, srv := start(t, status(503, 429, 200))
	s := open(t, Options{Endpoint: srv.URL})
	if err := s.Export(short(t, 10*time.Second), sample.Requests(2)); err != nil {
		t.Fatal(err)
	}
	if rc.n != 3 || len(rc.spans()) != 10 {
		t.Errorf("%d requests, %d spans", rc.n, len(rc.spans()))
	}
}

func TestNoRetryOn400(t *testing.T) {
	rc, srv := start(t, status(400, 400, 400))
	s := open(t, Options{Endpoint: srv.URL})
	err := s.Export(short(t, 10*time.Second), sample.Requests(2))
	want := "exporting: failed to send to " + srv.URL + "/v1/traces: 400 Bad Request (body: because)"
	if err == nil || err.Error() != want || rc.n != 1 {
		t.Errorf("%d requests, %v, want %s", rc.n, err, want)
	}
	var re *export.RetryError
	if errors.As(err, &re) {
		t.Error("asks for a retry")
	}
}

func TestPartialSuccess(t *testing.T) {
	_, srv := start(t, func(w http.ResponseWriter, r *http.Request, _ int) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, "/traces"):
			reply(w, &coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{RejectedSpans: 3, ErrorMessage: "too old"}})
		case strings.HasSuffix(r.URL.Path, "/logs"):
			reply(w, &collogspb.ExportLogsServiceResponse{PartialSuccess: &collogspb.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "too long"}})
		default:
			reply(w, &colmetricspb.ExportMetricsServiceResponse{PartialSuccess: &colmetricspb.ExportMetricsPartialSuccess{RejectedDataPoints: 2, ErrorMessage: "no"}})
		}
		return true
	})
	s := open(t, Options{Endpoint: srv.URL})
	ctx := short(t, 5*time.Second)
	if err := s.Probe(ctx); err != nil {
		t.Errorf("probe: %v", err)
	}
	err := s.Export(ctx, []trace.Tree{sample.Odd()})
	var pe *export.PartialError
	if !errors.As(err, &pe) || pe.Spans != 3 || pe.Logs != 1 || !strings.Contains(err.Error(), "too old") || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v", err)
	}
	if err := s.Metrics(ctx, sample.Snapshot()); err == nil || !strings.Contains(err.Error(), "2 metric data points rejected") {
		t.Errorf("metrics: %v", err)
	}
}

func TestLogsRefusedAfterSpansArrived(t *testing.T) {
	rc, srv := start(t, func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if strings.HasSuffix(r.URL.Path, "/logs") {
			http.NotFound(w, r) // many backends take traces only
			return true
		}
		return false
	})
	s := open(t, Options{Endpoint: srv.URL})
	err := s.Export(short(t, 5*time.Second), []trace.Tree{sample.Odd()})
	var pe *export.PartialError
	if !errors.As(err, &pe) || pe.Spans != 0 || pe.Logs != 1 || len(rc.spans()) != 1 {
		t.Errorf("got %v with %d spans", err, len(rc.spans()))
	}
}

// A connection that fails may come back; what the receiver refuses does not.
func TestUnreachable(t *testing.T) {
	clean(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	s := open(t, Options{Endpoint: "http://" + addr})
	want := "exporting to http://" + addr + "/v1/traces: connection refused"
	if err := s.Probe(short(t, 5*time.Second)); err == nil || err.Error() != want {
		t.Errorf("probe: %v, want %s", err, want)
	}
	err = s.Export(short(t, 5*time.Second), sample.Requests(1))
	var re *export.RetryError
	if !errors.As(err, &re) || err.Error() != want {
		t.Errorf("export: %v, want a retry", err)
	}
}

func TestProbeOfBadReceivers(t *testing.T) {
	for code, want := range map[int]string{401: "401 Unauthorized", 404: "404 Not Found", 503: "because"} {
		_, srv := start(t, status(code, code, code))
		s := open(t, Options{Endpoint: srv.URL})
		begin := time.Now()
		err := s.Probe(short(t, 5*time.Second))
		if err == nil || !strings.Contains(err.Error(), want) || time.Since(begin) > time.Second {
			t.Errorf("%d: %v after %v", code, err, time.Since(begin))
		}
	}
}

func TestConnectionLostIsRetriedByTheQueue(t *testing.T) {
	rc, srv := start(t, func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n < 2 {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				c.Close()
			}
			return true
		}
		return false
	})
	q := export.NewQueue(open(t, Options{Endpoint: srv.URL}), export.QueueOptions{BatchSpans: 1, Backoff: 10 * time.Millisecond})
	q.Add(sample.Requests(1)[0])
	if err := q.Close(short(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if s := q.Stats(); s.Exported.Spans != 5 || len(rc.spans()) != 5 {
		t.Errorf("got %+v", s)
	}
}

func TestTimeoutOfARequest(t *testing.T) {
	release := make(chan struct{})
	rc, srv := start(t, func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n == 0 {
			<-release
		}
		return n == 0
	})
	t.Cleanup(func() { close(release) })
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100") // ms
	s := open(t, Options{Endpoint: srv.URL})
	if err := s.Export(short(t, 10*time.Second), sample.Requests(1)); err != nil {
		t.Fatalf("the second try should have succeeded: %v", err)
	}
	if rc.n != 2 {
		t.Errorf("%d requests", rc.n)
	}
}

func TestDeadline(t *testing.T) {
	_, srv := start(t, status(503, 503, 503, 503, 503, 503, 503, 503, 503, 503))
	q := export.NewQueue(open(t, Options{Endpoint: srv.URL}), export.QueueOptions{BatchSpans: 1, Deadline: 300 * time.Millisecond})
	q.Add(sample.Requests(1)[0])
	if err := q.Close(short(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if s := q.Stats(); s.Dropped[2].Spans != 5 || export.Reasons[2] != export.Timeout {
		t.Errorf("got %+v", s)
	}
}

func TestTLS(t *testing.T) {
	clean(t)
	rc := &receiver{t: t}
	srv := httptest.NewTLSServer(rc)
	srv.Config.ErrorLog = nil
	t.Cleanup(srv.Close)
	s := open(t, Options{Endpoint: srv.URL})
	err := s.Probe(short(t, 5*time.Second))
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority was trusted: %v", err)
	}
	var re *export.RetryError
	if err := s.Export(short(t, 5*time.Second), sample.Requests(1)); err == nil || errors.As(err, &re) {
		t.Errorf("export: %v, want an error without a retry", err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", ca)
	s = open(t, Options{Endpoint: srv.URL})
	ctx := short(t, 5*time.Second)
	if err := errors.Join(s.Probe(ctx), s.Export(ctx, []trace.Tree{sample.Odd()}), s.Metrics(ctx, sample.Snapshot())); err != nil {
		t.Fatal(err)
	}
	if len(rc.spans()) != 1 || len(rc.logs) != 1 || len(rc.metrics) != 3 {
		t.Errorf("%d spans, %d logs, %d metrics", len(rc.spans()), len(rc.logs), len(rc.metrics))
	}
}

func TestCloseTwice(t *testing.T) {
	_, srv := start(t, nil)
	s := open(t, Options{Endpoint: srv.URL})
	for range 2 {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if err := s.Export(short(t, time.Second), sample.Requests(1)); err == nil {
		t.Error("export after close gave no error")
	}
}

func TestCertificateNeedsHTTPS(t *testing.T) {
	clean(t)
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(srv.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", ca)
	if _, err := New(context.Background(), Options{Endpoint: "http://127.0.0.1:4318"}); err == nil || !strings.Contains(err.Error(), "insecure HTTP endpoint cannot use TLS") {
		t.Errorf("got %v", err)
	}
}

func TestNothingLeaks(t *testing.T) {
	files := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(fds)
	}
	settled := func(want func() bool) bool {
		for range 300 {
			if want() {
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		return false
	}
	clean(t)
	goroutines, fds := runtime.NumGoroutine(), files()
	srv := httptest.NewServer(&receiver{t: t})
	for range 10 {
		s, err := New(context.Background(), Options{Endpoint: srv.URL})
		if err != nil {
			t.Fatal(err)
		}
		q := export.NewQueue(s, export.QueueOptions{})
		q.Add(sample.Odd())
		q.Metrics(sample.Snapshot())
		if err := q.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	srv.Close() // ends the connections that the clients keep open
	if !settled(func() bool { return runtime.NumGoroutine() <= goroutines && files() <= fds }) {
		t.Errorf("%d goroutines, %d files; %d and %d before", runtime.NumGoroutine(), files(), goroutines, fds)
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
