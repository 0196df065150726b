package otlp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	oteltrace "go.opentelemetry.io/otel/trace"

	sc "inferspan/correlate/semconv"
	"inferspan/correlate/trace"
)

// logExporter turns log events into the SDK's records, which only a logger can
// make, and exports them.
type logExporter struct {
	exp     *otlploghttp.Exporter
	loggers map[*trace.Resource]log.Logger
	version string
	records gather
}

// gather is a log processor that only keeps what it is given.
type gather struct{ records []sdklog.Record }

func (g *gather) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }
func (g *gather) OnEmit(_ context.Context, r *sdklog.Record) error {
	g.records = append(g.records, r.Clone())
	return nil
}
func (g *gather) Shutdown(context.Context) error   { return nil }
func (g *gather) ForceFlush(context.Context) error { return nil }

func (l *logExporter) export(ctx context.Context, trees []trace.Tree, resources *resources) error {
	l.records.records = nil
	for i := range trees {
		for j := range trees[i].Logs {
			ev := &trees[i].Logs[j]
			logger := l.loggers[ev.Resource]
			if logger == nil {
				if len(l.loggers) >= maxResources {
					clear(l.loggers)
				}
				logger = sdklog.NewLoggerProvider(sdklog.WithProcessor(&l.records), sdklog.WithResource(resources.get(ev.Resource).sdk)).
					Logger(scopeName, log.WithInstrumentationVersion(l.version))
				l.loggers[ev.Resource] = logger
			}
			var r log.Record
			r.SetEventName(text(ev.EventName))
			r.SetTimestamp(time.Unix(0, ev.Time))
			r.SetObservedTimestamp(time.Unix(0, ev.Time))
			r.SetSeverity(log.SeverityInfo)
			r.AddAttributes(logAttrs(ev.Attrs)...)
			logger.Emit(oteltrace.ContextWithSpanContext(ctx, oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
				TraceID: oteltrace.TraceID(ev.TraceID), SpanID: oteltrace.SpanID(ev.SpanID)})), r)
		}
	}
	if len(l.records.records) == 0 {
		return nil
	}
	return l.exp.Export(ctx, l.records.records)
}

// logAttrs converts the attributes of a log event. The two message attributes
// are JSON text in the tracer and structured values in a log event, as their
// definition asks.
func logAttrs(as []trace.Attr) []attribute.KeyValue {
	out := sdkAttrs(as)
	for i := range out {
		if k := string(out[i].Key); k != sc.AttrGenAIInputMessages && k != sc.AttrGenAIOutputMessages {
			continue
		}
		if v, ok := structured(out[i].Value.AsString()); ok {
			out[i].Value = v
		}
	}
	return out
}

func structured(s string) (attribute.Value, bool) {
	dec := json.NewDecoder(bytes.NewReader([]byte(s)))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return attribute.Value{}, false
	}
	if _, err := dec.Token(); err != io.EOF {
		return attribute.Value{}, false
	}
	return jsonValue(v), true
}

func jsonValue(v any) attribute.Value {
	switch v := v.(type) {
	case string:
		return attribute.StringValue(v)
	case bool:
		return attribute.BoolValue(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return attribute.Int64Value(n)
		}
		if f, err := v.Float64(); err == nil {
			return attribute.Float64Value(f)
		}
		return attribute.StringValue(v.String())
	case []any:
		vals := make([]attribute.Value, len(v))
		for i := range v {
			vals[i] = jsonValue(v[i])
		}
		return attribute.SliceValue(vals...)
	case map[string]any:
		kvs := make([]attribute.KeyValue, 0, len(v))
		for k, e := range v { // MapValue sorts them
			kvs = append(kvs, attribute.KeyValue{Key: attribute.Key(k), Value: jsonValue(e)})
		}
		return attribute.MapValue(kvs...)
	}
	return attribute.Value{} // null
}
