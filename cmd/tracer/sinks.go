package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"inferspan/agent"
	"inferspan/correlate"
	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/jsonl"
	"inferspan/export/otlp"
	"inferspan/export/prom"
)

// traceLevelEnv is what SGLang reads its own trace level from.
const traceLevelEnv = "SGLANG_TRACE_LEVEL"

// detail are the flags that say what spans hold.
type detail struct {
	precision  int
	traceLevel string
	content    string
	serverKind bool
	steps      int
}

func (d *detail) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&d.precision, "precision", 1, "vLLM: 0: engine requests, 1: and their stages, 2: and an event per step")
	f.StringVar(&d.traceLevel, "trace-level", "", "SGLang's stages: 0 (no spans in the engine) to 4 (default SGLANG_TRACE_LEVEL, or 3)")
	f.StringVar(&d.content, "content", "none", "where prompts and completions go: none, span, event, span_and_event")
	f.BoolVar(&d.serverKind, "server-kind", false, "give entry spans the kind SERVER instead of INTERNAL")
	f.IntVar(&d.steps, "steps", 0, "scheduler steps: 1: references on requests, a JSON line per step, 2: and a span per prefill chunk")
	must(c.RegisterFlagCompletionFunc("steps", cobra.FixedCompletions([]string{"0", "1", "2"}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.RegisterFlagCompletionFunc("content", cobra.FixedCompletions([]string{"none", "span", "event", "span_and_event"}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.RegisterFlagCompletionFunc("trace-level", cobra.FixedCompletions([]string{"0", "1", "2", "3", "4"}, cobra.ShellCompDirectiveNoFileComp)))
	must(c.RegisterFlagCompletionFunc("precision", cobra.FixedCompletions([]string{"0", "1", "2"}, cobra.ShellCompDirectiveNoFileComp)))
}

func (d *detail) options() (agent.Options, error) {
	o := agent.Options{Precision: d.precision, ServerKind: d.serverKind, Steps: d.steps, StepRecords: d.steps > 0}
	if d.steps < 0 || d.steps > 2 {
		return o, withCode(exitUsage, fmt.Errorf("--steps %d: want 0, 1 or 2", d.steps))
	}
	if d.precision < 0 || d.precision > 2 {
		return o, withCode(exitUsage, fmt.Errorf("--precision %d: want 0, 1 or 2", d.precision))
	}
	name, level := "--trace-level", d.traceLevel
	if level == "" {
		name, level = traceLevelEnv, os.Getenv(traceLevelEnv)
	}
	if level != "" {
		n, err := strconv.Atoi(level)
		if err != nil || n < 0 || n > correlate.MaxTraceLevel {
			return o, withCode(exitUsage, fmt.Errorf("%s %s: want 0 to %d", name, level, correlate.MaxTraceLevel))
		}
		o.TraceLevel = signal.Some(n)
	}
	switch d.content {
	case "none":
	case "span":
		o.Content = correlate.ContentSpan
	case "event":
		o.Content = correlate.ContentEvent
	case "span_and_event":
		o.Content = correlate.ContentSpanAndEvent
	default:
		return o, withCode(exitUsage, fmt.Errorf("--content %q: want none, span, event or span_and_event", d.content))
	}
	if v := os.Getenv("OTEL_SPAN_EVENT_COUNT_LIMIT"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return o, withCode(exitUsage, fmt.Errorf("OTEL_SPAN_EVENT_COUNT_LIMIT=%q: want a positive number", v))
		}
		o.EventLimit = n
	}
	return o, nil
}

// outputs are the flags that say where results go.
type outputs struct {
	otlp     bool
	endpoint string
	jsonl    string
	prom     string
	service  string
	every    time.Duration
	steps    bool // scheduler steps were asked for: JSON lines have them
}

func (o *outputs) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.otlp, "otlp", false, "export by OTLP http/protobuf; OTEL_EXPORTER_OTLP_* say where")
	f.StringVar(&o.endpoint, "otlp-endpoint", "", "export by OTLP to this base URL, e.g. http://127.0.0.1:4318")
	f.StringVar(&o.jsonl, "jsonl", "", `write spans as JSON lines to this file ("-": standard output)`)
	f.StringVar(&o.prom, "prometheus", "", "serve metrics for Prometheus on this address, e.g. :9464")
	f.StringVar(&o.service, "service-name", "", "service.name of engines that do not set their own")
	f.DurationVar(&o.every, "metric-interval", envMillis("OTEL_METRIC_EXPORT_INTERVAL", 10*time.Second), "how often metrics go to OTLP")
}

// check finds wrong values before any work.
func (o *outputs) check(c *cobra.Command) error {
	if o.every < time.Second {
		return withCode(exitUsage, fmt.Errorf("--metric-interval %s: want at least 1s", o.every))
	}
	return noEmpty(c, "otlp-endpoint", "jsonl", "prometheus")
}

// noEmpty refuses flags that were given without a value, as a variable that is not
// set makes them: the output would be missing without a word.
func noEmpty(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := c.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return withCode(exitUsage, fmt.Errorf("--%s is empty: give it a value or leave it out", name))
		}
	}
	return nil
}

// any reports whether an output was asked for.
func (o *outputs) any() bool { return o.otlp || o.endpoint != "" || o.jsonl != "" || o.prom != "" }

// sinks are the open outputs of a run.
type sinks struct {
	queues   []*export.Queue
	server   *prom.Server
	defaults export.Defaults
	closed   bool
}

// open opens the outputs but for the file of JSON lines, which file does. An OTLP
// receiver that cannot be reached is an error now, not after the run, and so is a
// folder that takes no file: this comes before the engine is touched.
func (o *outputs) open(ctx context.Context, cmd *cobra.Command, snapshot func() metric.Snapshot) (_ *sinks, err error) {
	s := &sinks{}
	defer func() {
		if err != nil {
			s.close(ctx)
		}
	}()
	if s.defaults, err = export.DefaultsFromEnv(o.service, os.Getenv); err != nil {
		return nil, withCode(exitUsage, err)
	}
	if o.jsonl != "" && o.jsonl != "-" {
		if err := takesFile(o.jsonl); err != nil {
			return nil, withCode(exitExport, fmt.Errorf("creating %s: %w", o.jsonl, err))
		}
	}
	if o.otlp || o.endpoint != "" {
		sink, err := otlp.New(ctx, otlp.Options{Endpoint: o.endpoint, Defaults: s.defaults, Version: version})
		if err != nil {
			return nil, withCode(exitUsage, err)
		}
		pctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err = sink.Probe(pctx)
		cancel()
		if err != nil {
			return nil, withCode(exitExport, err)
		}
		s.add(sink, cmd, export.QueueOptions{Name: "otlp"})
	}
	if o.prom != "" {
		h, err := prom.Handler(
			func() *metric.Snapshot { m := snapshot(); return &m },
			prom.HandlerOptions{Defaults: s.defaults, Version: version, Queues: s.stats, Log: func(err error) {
				say(cmd.ErrOrStderr(), fmt.Sprintf("inferspan: %v", err))
			}})
		if err == nil {
			s.server, err = prom.Listen(o.prom, h)
		}
		if err != nil {
			return nil, withCode(exitExport, err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "metrics on http://%s/metrics\n", s.server.Addr())
	}
	return s, nil
}

// file opens the file of JSON lines, which empties one that is there: not before
// the run can begin.
func (s *sinks) file(o *outputs, cmd *cobra.Command) (err error) {
	if o.jsonl == "" {
		return nil
	}
	sink := jsonl.New(cmd.OutOrStdout())
	if o.jsonl != "-" {
		if sink, err = jsonl.Create(o.jsonl); err != nil {
			return withCode(exitExport, err)
		}
	}
	sink.SetDefaults(s.defaults)
	s.add(sink, cmd, export.QueueOptions{Name: "jsonl", Steps: o.steps})
	return nil
}

// takesFile finds out whether the named file can be written, without making it.
func takesFile(name string) error {
	if st, err := os.Stat(name); err == nil {
		if st.IsDir() {
			return syscall.EISDIR
		}
		return unix.Access(name, unix.W_OK)
	}
	return unix.Access(filepath.Dir(name), unix.W_OK|unix.X_OK)
}

func (s *sinks) add(sink export.Sink, cmd *cobra.Command, q export.QueueOptions) {
	q.OnLoss = func(reason export.Reason, spans int, err error) {
		say(cmd.ErrOrStderr(), fmt.Sprintf("inferspan: %d spans lost (%s): %v", spans, reason, err))
	}
	s.queues = append(s.queues, export.NewQueue(sink, q))
}

func (s *sinks) tree(t *trace.Tree) {
	for _, q := range s.queues {
		q.Add(*t)
	}
}

// wait hands a tree to the queues as fast as they deliver: for a source that
// can wait, unlike a live run. It does not wait once ctx has ended.
func (s *sinks) wait(ctx context.Context, t *trace.Tree) {
	for _, q := range s.queues {
		for st := q.Stats(); st.Waiting.Spans > 4096 && ctx.Err() == nil; st = q.Stats() {
			time.Sleep(2 * time.Millisecond)
		}
	}
	s.tree(t)
}

func (s *sinks) stats() []export.Stats {
	var all []export.Stats
	for _, q := range s.queues {
		all = append(all, q.Stats())
	}
	return all
}

func (s *sinks) metrics(m metric.Snapshot) {
	for _, q := range s.queues {
		q.Metrics(&m)
	}
}

// close delivers what waits. The error says what could not be delivered. A second
// call does nothing.
func (s *sinks) close(ctx context.Context) error {
	if s.closed {
		return nil
	}
	s.closed = true
	// The command's context has ended by an interrupt at this point; what waits
	// is delivered all the same, within the queues' own limit.
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, q := range s.queues {
		if err := q.Close(ctx); err != nil {
			errs = append(errs, err)
		}
		if st := q.Stats(); st.Lost().Spans > 0 {
			var why []string
			for i, n := range st.Dropped {
				if n.Spans > 0 {
					why = append(why, fmt.Sprintf("%s %d", export.Reasons[i], n.Spans))
				}
			}
			errs = append(errs, fmt.Errorf("exporting to %s: %d of %d spans were lost (%s)", st.Name, st.Lost().Spans, st.Offered.Spans, strings.Join(why, ", ")))
		}
	}
	if s.server != nil {
		errs = append(errs, s.server.Close(ctx))
	}
	return withCode(exitExport, errors.Join(errs...))
}

func envMillis(name string, def time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return time.Duration(n) * time.Millisecond
	}
	return def
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
