package otlp

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/internal/sample"
)

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
