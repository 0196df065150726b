package prom

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"inferspan/correlate/metric"
	"inferspan/export"
)

// HandlerOptions sets up a handler.
type HandlerOptions struct {
	// Defaults complete the resources as they do for OTLP.
	Defaults export.Defaults
	// Version goes into inferspan_build_info.
	Version string
	// Queues returns the state of the export queues; nil if there are none.
	Queues func() []export.Stats
	// Log is told what cannot be shown; the rest is shown all the same. It may be nil.
	Log func(error)
}

// Handler returns a handler that shows the snapshot of the moment and the
// agent's own metrics: queues, process, Go runtime. snapshot is called once for
// each scrape, by any goroutine, and may return nil.
func Handler(snapshot func() *metric.Snapshot, o HandlerOptions) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		&collector{snapshot: snapshot, defaults: o.Defaults},
		queueCollector{o.Queues},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: own + "build_info", Help: "Version of the tracer. Always 1.",
			ConstLabels: prometheus.Labels{"version": o.Version}}, func() float64 { return 1 }),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(),
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("setting up the Prometheus endpoint: %w", err)
		}
	}
	opts := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, Registry: reg, MaxRequestsInFlight: 4}
	if o.Log != nil {
		opts.ErrorLog = logger(o.Log)
	}
	return promhttp.HandlerFor(reg, opts), nil
}

type logger func(error)

func (l logger) Println(v ...any) {
	for _, x := range v {
		if err, ok := x.(error); ok {
			l(fmt.Errorf("gathering metrics: %w", err))
			return
		}
	}
	l(errors.New(fmt.Sprint(v...)))
}

type queueCollector struct{ stats func() []export.Stats }

var (
	qExported = queueDesc("export_spans_total", "Spans delivered.")
	qDropped  = queueDesc("export_dropped_spans_total", "Spans not delivered, by reason.", "reason")
	qLogs     = queueDesc("export_log_events_total", "Log events delivered.")
	qLogsLost = queueDesc("export_dropped_log_events_total", "Log events not delivered, by reason.", "reason")
	qSteps    = queueDesc("export_steps_total", "Scheduler steps delivered.")
	qStepLost = queueDesc("export_dropped_steps_total", "Scheduler steps not delivered, by reason.", "reason")
	qRetries  = queueDesc("export_retries_total", "Deliveries tried again.")
	qSpans    = queueDesc("export_queue_spans", "Spans that wait or are being delivered.")
	qBytes    = queueDesc("export_queue_bytes", "Estimated memory of the spans that wait or are being delivered.")
	qFailed   = queueDesc("export_failed_snapshots_total", "Metric states not delivered; the next one holds the same totals.")
)

func queueDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(own+name, help, append([]string{"sink"}, labels...), nil)
}

func (c queueCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{qExported, qDropped, qLogs, qLogsLost, qSteps, qStepLost, qRetries, qSpans, qBytes, qFailed} {
		ch <- d
	}
}

func (c queueCollector) Collect(ch chan<- prometheus.Metric) {
	if c.stats == nil {
		return
	}
	for _, s := range c.stats() {
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.Name}, labels...)...)
		}
		counter(qExported, s.Exported.Spans)
		counter(qLogs, s.Exported.Logs)
		counter(qSteps, s.Exported.Steps)
		for i, r := range export.Reasons {
			counter(qDropped, s.Dropped[i].Spans, string(r))
			counter(qLogsLost, s.Dropped[i].Logs, string(r))
			counter(qStepLost, s.Dropped[i].Steps, string(r))
		}
		counter(qRetries, s.Retries)
		counter(qFailed, s.FailedSnapshots)
		ch <- prometheus.MustNewConstMetric(qSpans, prometheus.GaugeValue, float64(s.Waiting.Spans), s.Name)
		ch <- prometheus.MustNewConstMetric(qBytes, prometheus.GaugeValue, float64(s.Bytes), s.Name)
	}
}

// Server serves a handler at /metrics.
type Server struct {
	l    net.Listener
	srv  *http.Server
	done chan error
}

// Listen starts a server on a TCP address such as 127.0.0.1:9464.
func Listen(addr string, h http.Handler) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		var oe *net.OpError
		if errors.As(err, &oe) {
			err = oe.Err
		}
		return nil, fmt.Errorf("serving metrics at %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "inferspan: metrics are at /metrics")
	})
	s := &Server{l: l, done: make(chan error, 1), srv: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute}}
	go func() { s.done <- s.srv.Serve(l) }()
	return s, nil
}

// Addr returns the address that is served.
func (s *Server) Addr() net.Addr { return s.l.Addr() }

// Close stops serving; scrapes under way may end until ctx does.
func (s *Server) Close(ctx context.Context) error {
	err := s.srv.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.srv.Close())
	}
	if serveErr := <-s.done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	s.done <- http.ErrServerClosed // for another Close
	if err != nil {
		return fmt.Errorf("closing the metrics server: %w", err)
	}
	return nil
}
