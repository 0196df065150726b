package e2e

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// nativeSpan is an llm_request span of the engine itself.
type nativeSpan struct {
	TraceID, ParentID string
	Start, End        uint64
	Attrs             map[string]any // string or float64
}

// receiver takes OTLP over HTTP and keeps the llm_request spans.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*nativeSpan
	other map[string]int // spans of other names
	fault error
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{other: map[string]int{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := r.take(req); err != nil {
			r.mu.Lock()
			r.fault = err
			r.mu.Unlock()
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(req *http.Request) error {
	if req.URL.Path != "/v1/traces" {
		return nil // metrics and logs of the engine do not concern us
	}
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			return fmt.Errorf("reading spans of the engine: %w", err)
		}
		body = z
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("reading spans of the engine: %w", err)
	}
	var m collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("reading spans of the engine: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range m.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				if s.Name != "llm_request" {
					r.other[s.Name]++
					continue
				}
				n := &nativeSpan{TraceID: hex.EncodeToString(s.TraceId), ParentID: hex.EncodeToString(s.ParentSpanId), Start: s.StartTimeUnixNano, End: s.EndTimeUnixNano, Attrs: map[string]any{}}
				for _, a := range s.Attributes {
					switch v := a.Value.Value.(type) {
					case *common.AnyValue_StringValue:
						n.Attrs[a.Key] = v.StringValue
					case *common.AnyValue_DoubleValue:
						n.Attrs[a.Key] = v.DoubleValue
					case *common.AnyValue_IntValue:
						n.Attrs[a.Key] = float64(v.IntValue)
					}
				}
				r.spans = append(r.spans, n)
			}
		}
	}
	return nil
}

func (r *receiver) native(t *testing.T) []*nativeSpan {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil {
		t.Fatal(r.fault)
	}
	return append([]*nativeSpan(nil), r.spans...)
}
