// Package otlp sends spans, metrics and log events by OTLP over HTTP, encoded
// as protobuf, through the clients of the OpenTelemetry Go exporters. These
// honour the variables of the OTLP exporter specification in their general form
// and in the forms for one signal: OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS,
// _TIMEOUT (of one request; the retries have the queue's deadline),
// _COMPRESSION, _CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY and _INSECURE.
// OTEL_{TRACES,METRICS,LOGS}_EXPORTER=none switches a signal off. Metrics are
// cumulative whatever OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE says.
//
// There is one resource for each observed process: what was observed, then the
// defaults of export.Defaults where that says nothing. The service name is the
// process's own OTEL_SERVICE_NAME, else the agent's, else the engine's kind.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
	"inferspan/export"
)

const scopeName = "inferspan"

// Options sets up a Sink.
type Options struct {
	// Endpoint is the base URL, e.g. http://localhost:4318, to which /v1/traces
	// and so on are added. It goes before the variables; "" leaves the choice to
	// them, and to http://localhost:4318 when they say nothing.
	Endpoint string
	// Defaults are added to the resources.
	Defaults export.Defaults
	// Version is the version of the instrumentation scope.
	Version string
}

// Sink sends to an OTLP receiver. It implements export.Sink.
type Sink struct {
	scope     *commonpb.InstrumentationScope
	resources resources

	traces  otlptrace.Client         // nil: switched off
	probe   otlptrace.Client         // traces without retries
	metrics *otlpmetrichttp.Exporter // nil: switched off
	logs    *logExporter             // nil: switched off

	close    sync.Once
	closeErr error
}

// New checks the configuration and returns a sink. It does not connect: see Probe.
func New(ctx context.Context, o Options) (*Sink, error) {
	s := &Sink{scope: &commonpb.InstrumentationScope{Name: scopeName, Version: o.Version}, resources: resources{defaults: o.Defaults}}
	for _, signal := range []string{traces, metrics, logs} {
		on, err := enabled(signal)
		if err == nil && on {
			err = s.open(ctx, signal, o)
		}
		if err != nil {
			return nil, fmt.Errorf("setting up the OTLP exporter: %w", err)
		}
	}
	return s, nil
}

func (s *Sink) open(ctx context.Context, signal string, o Options) error {
	if err := checkEnv(signal); err != nil {
		return err
	}
	url, err := endpoint(signal, o.Endpoint)
	if err != nil {
		return err
	}
	// The queue's context ends the retries, so they have no limit of their own.
	const first, most = 250 * time.Millisecond, 5 * time.Second
	switch signal {
	case traces:
		opts := []otlptracehttp.Option{}
		if url != "" {
			opts = append(opts, otlptracehttp.WithEndpointURL(url))
		}
		s.probe = otlptracehttp.NewClient(append(opts, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))...)
		s.traces = otlptracehttp.NewClient(append(opts, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: first, MaxInterval: most}))...)
		return errors.Join(s.probe.Start(ctx), s.traces.Start(ctx))
	case metrics:
		opts := []otlpmetrichttp.Option{otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{Enabled: true, InitialInterval: first, MaxInterval: most})}
		if url != "" {
			opts = append(opts, otlpmetrichttp.WithEndpointURL(url))
		}
		s.metrics, err = otlpmetrichttp.New(ctx, opts...)
	case logs:
		opts := []otlploghttp.Option{otlploghttp.WithRetry(otlploghttp.RetryConfig{Enabled: true, InitialInterval: first, MaxInterval: most})}
		if url != "" {
			opts = append(opts, otlploghttp.WithEndpointURL(url))
		}
		s.logs = &logExporter{version: o.Version, loggers: make(map[*trace.Resource]log.Logger)}
		s.logs.exp, err = otlploghttp.New(ctx, opts...)
	}
	return err
}

// Probe sends an export of no spans, which a receiver answers with success, and
// returns why that failed. It does not retry; ctx bounds it.
func (s *Sink) Probe(ctx context.Context) error {
	if s.traces == nil {
		return nil
	}
	err := s.probe.UploadTraces(ctx, nil)
	if err == nil {
		return nil
	}
	if _, _, ok := partial(err); ok {
		return nil // it answered, and nothing was there to be refused
	}
	return explain(err)
}

// Export sends the spans, then the log events of trees.
func (s *Sink) Export(ctx context.Context, trees []trace.Tree) error {
	var lost export.PartialError
	if s.traces != nil {
		pb := resourceSpans(trees, s.scope, func(r *trace.Resource) *resourcepb.Resource { return s.resources.get(r).pb })
		var err error
		if len(pb) > 0 { // there may be trees with steps only
			err = s.traces.UploadTraces(ctx, pb)
		}
		if err != nil {
			n, msg, ok := partial(err)
			if !ok {
				return classify(err)
			}
			lost.Spans, lost.Err = n, errors.New(msg)
		}
	}
	if s.logs != nil {
		if err := s.logs.export(ctx, trees, &s.resources); err != nil {
			// The spans have arrived and must not be sent again, so a failure
			// here loses the log events.
			n, msg, ok := partial(err)
			if !ok {
				for i := range trees {
					n += len(trees[i].Logs)
				}
				msg = explain(err).Error()
			}
			lost.Logs = n
			lost.Err = errors.Join(lost.Err, fmt.Errorf("log events: %s", msg))
		}
	}
	if lost.Err != nil {
		return &lost
	}
	return nil
}

// Metrics sends the state of all metrics, one request for each resource.
func (s *Sink) Metrics(ctx context.Context, m *metric.Snapshot) error {
	if s.metrics == nil {
		return nil
	}
	scope := instrumentation.Scope{Name: s.scope.Name, Version: s.scope.Version}
	var errs []error
	for _, rm := range resourceMetrics(m, scope, func(r *trace.Resource) *sdkresource.Resource { return s.resources.get(r).sdk }) {
		if err := s.metrics.Export(ctx, rm); err != nil {
			errs = append(errs, classify(err))
			if ctx.Err() != nil {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// Close frees the clients. Nothing is buffered in them.
func (s *Sink) Close(ctx context.Context) error {
	s.close.Do(func() {
		var errs []error
		if s.traces != nil {
			errs = append(errs, s.traces.Stop(ctx), s.probe.Stop(ctx))
		}
		if s.metrics != nil {
			errs = append(errs, s.metrics.Shutdown(ctx))
		}
		if s.logs != nil {
			errs = append(errs, s.logs.exp.Shutdown(ctx))
		}
		s.closeErr = errors.Join(errs...)
	})
	return s.closeErr
}

// maxResources bounds what is kept for resources: engines come and go while the
// agent runs. Past it all are forgotten and made anew.
const maxResources = 1024

// resources converts each resource once.
type resources struct {
	defaults export.Defaults
	byPtr    map[*trace.Resource]*converted
}

type converted struct {
	pb  *resourcepb.Resource
	sdk *sdkresource.Resource
}

func (rs *resources) get(r *trace.Resource) *converted {
	if c := rs.byPtr[r]; c != nil {
		return c
	}
	if rs.byPtr == nil || len(rs.byPtr) >= maxResources {
		rs.byPtr = make(map[*trace.Resource]*converted)
	}
	attrs := rs.defaults.Apply(r)
	c := &converted{pb: &resourcepb.Resource{}, sdk: sdkresource.NewSchemaless(sdkAttrs(attrs)...)}
	c.pb.Attributes, c.pb.DroppedAttributesCount = keyValues(attrs)
	rs.byPtr[r] = c
	return c
}

// classify tells failures that may pass from those that will not. The clients
// retry by themselves what the receiver asks to retry; what is left are the
// connections that fail.
func classify(err error) error {
	var op *net.OpError
	lost := errors.As(err, &op) && op.Op != "remote error" || // that one is an alert of TLS
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if lost {
		return &export.RetryError{Err: explain(err)}
	}
	return explain(err)
}

var errGRPC = errors.New("the answer is HTTP/2, as of OTLP by gRPC (port 4317 mostly); wanted is the port of OTLP by HTTP (4318 mostly)")

// explain shortens the error of a failed connection to the URL and the reason.
func explain(err error) error {
	var ue *url.Error
	if !errors.As(err, &ue) {
		return fmt.Errorf("exporting: %w", err)
	}
	cause := ue.Err
	var errno syscall.Errno
	var dns *net.DNSError
	switch {
	case errors.As(cause, &errno):
		cause = errno
	case errors.As(cause, &dns):
		cause = dns
	case strings.Contains(cause.Error(), `malformed HTTP response "\x00\x00`):
		// The first frame of HTTP/2, which a server sends without being asked.
		cause = errGRPC
	}
	return fmt.Errorf("exporting to %s: %w", ue.URL, cause)
}

// partial finds the answer "partial success" in an error of the clients. They
// keep its type in an internal package of each, so its fields are read by name.
func partial(err error) (rejected int, msg string, ok bool) {
	switch e := err.(type) {
	case nil:
		return 0, "", false
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			if rejected, msg, ok = partial(sub); ok {
				return rejected, msg, true
			}
		}
		return 0, "", false
	case interface{ Unwrap() error }:
		return partial(e.Unwrap())
	}
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Struct || v.Type().Name() != "PartialSuccess" || !strings.Contains(v.Type().PkgPath(), "/exporters/otlp/") {
		return 0, "", false
	}
	n := v.FieldByName("RejectedItems")
	if !n.IsValid() || !n.CanInt() {
		return 0, "", false
	}
	return int(n.Int()), err.Error(), true
}
