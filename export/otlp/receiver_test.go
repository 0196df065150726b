package otlp

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	collogspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

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

func status(codes ...int) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n >= len(codes) || codes[n] == 200 {
			return false
		}
		http.Error(w, "because", codes[n])
		return true
	}
}
