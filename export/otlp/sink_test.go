package otlp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	collogspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"

	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/internal/sample"
)

var _ export.Sink = (*Sink)(nil)

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

// A receiver of OTLP by gRPC, which is one port away, is told as such.
func TestProbeGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00")) // SETTINGS
			c.Read(make([]byte, 4096))
			c.Close()
		}
	}()
	s := open(t, Options{Endpoint: "http://" + l.Addr().String()})
	if err := s.Probe(short(t, 10*time.Second)); err == nil || !strings.Contains(err.Error(), "OTLP by gRPC") || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v", err)
	}
}
