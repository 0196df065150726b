package otlp

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
)

// text makes s fit a protobuf string, which must be UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// resourceSpans groups the spans of trees by resource, in the order in which
// the resources first come.
func resourceSpans(trees []trace.Tree, scope *commonpb.InstrumentationScope, resource func(*trace.Resource) *resourcepb.Resource) []*tracepb.ResourceSpans {
	var out []*tracepb.ResourceSpans
	index := make(map[*trace.Resource]*tracepb.ScopeSpans)
	for i := range trees {
		for j := range trees[i].Spans {
			s := &trees[i].Spans[j]
			ss := index[s.Resource]
			if ss == nil {
				ss = &tracepb.ScopeSpans{Scope: scope}
				index[s.Resource] = ss
				out = append(out, &tracepb.ResourceSpans{Resource: resource(s.Resource), ScopeSpans: []*tracepb.ScopeSpans{ss}})
			}
			ss.Spans = append(ss.Spans, span(s))
		}
	}
	return out
}

func span(s *trace.Span) *tracepb.Span {
	p := &tracepb.Span{
		TraceId:            s.TraceID[:],
		SpanId:             s.SpanID[:],
		TraceState:         text(s.TraceState),
		Name:               text(s.Name),
		Kind:               tracepb.Span_SpanKind(s.Kind),
		StartTimeUnixNano:  uint64(s.Start),
		EndTimeUnixNano:    uint64(s.End),
		DroppedEventsCount: uint32(s.DroppedEvents),
		Status:             &tracepb.Status{Code: tracepb.Status_StatusCode(s.Code), Message: text(s.Message)},
		Flags:              uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK),
	}
	if s.RemoteParent {
		p.Flags |= uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	if s.ParentID != (trace.SpanID{}) {
		p.ParentSpanId = s.ParentID[:]
	}
	p.Attributes, p.DroppedAttributesCount = keyValues(s.Attrs)
	for i := range s.Events {
		e := &s.Events[i]
		pe := &tracepb.Span_Event{TimeUnixNano: uint64(e.Time), Name: text(e.Name)}
		pe.Attributes, pe.DroppedAttributesCount = keyValues(e.Attrs)
		p.Events = append(p.Events, pe)
	}
	for i := range s.Links {
		p.Links = append(p.Links, &tracepb.Span_Link{TraceId: s.Links[i].TraceID[:], SpanId: s.Links[i].SpanID[:]})
	}
	return p
}

// keyValues converts attributes. One whose value has a type that attributes do
// not have is left out and counted. Of equal keys the last one counts.
func keyValues(as []trace.Attr) (out []*commonpb.KeyValue, dropped uint32) {
	if len(as) == 0 {
		return nil, 0
	}
	// One block each for the two messages of every attribute.
	kvs := make([]commonpb.KeyValue, len(as))
	vals := make([]commonpb.AnyValue, len(as))
	out = make([]*commonpb.KeyValue, 0, len(as))
next:
	for i := range as {
		for j := i + 1; j < len(as); j++ {
			if as[j].Key == as[i].Key {
				continue next
			}
		}
		if !setValue(&vals[i], as[i].Value) {
			dropped++
			continue
		}
		kvs[i].Key = text(as[i].Key)
		kvs[i].Value = &vals[i]
		out = append(out, &kvs[i])
	}
	return out, dropped
}

func setValue(p *commonpb.AnyValue, v any) bool {
	switch v := v.(type) {
	case string:
		p.Value = &commonpb.AnyValue_StringValue{StringValue: text(v)}
	case bool:
		p.Value = &commonpb.AnyValue_BoolValue{BoolValue: v}
	case int64:
		p.Value = &commonpb.AnyValue_IntValue{IntValue: v}
	case float64:
		p.Value = &commonpb.AnyValue_DoubleValue{DoubleValue: v}
	case []string:
		setArray(p, v, func(s string) any { return s })
	case []int64:
		setArray(p, v, func(n int64) any { return n })
	case []float64:
		setArray(p, v, func(f float64) any { return f })
	default:
		return false
	}
	return true
}

func setArray[T any](p *commonpb.AnyValue, vs []T, value func(T) any) {
	vals := make([]commonpb.AnyValue, len(vs))
	arr := &commonpb.ArrayValue{Values: make([]*commonpb.AnyValue, len(vs))}
	for i, v := range vs {
		setValue(&vals[i], value(v))
		arr.Values[i] = &vals[i]
	}
	p.Value = &commonpb.AnyValue_ArrayValue{ArrayValue: arr}
}

// sdkAttrs converts attributes for the libraries that take the SDK's own types.
func sdkAttrs(as []trace.Attr) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(as))
	for _, a := range as {
		k := attribute.Key(text(a.Key))
		switch v := a.Value.(type) {
		case string:
			out = append(out, k.String(text(v)))
		case bool:
			out = append(out, k.Bool(v))
		case int64:
			out = append(out, k.Int64(v))
		case float64:
			out = append(out, k.Float64(v))
		case []string:
			c := make([]string, len(v))
			for i := range v {
				c[i] = text(v[i])
			}
			out = append(out, k.StringSlice(c))
		case []int64:
			out = append(out, k.Int64Slice(v))
		case []float64:
			out = append(out, k.Float64Slice(v))
		}
	}
	return out
}

// resourceMetrics groups the points of s by resource, in the order in which the
// resources first come. Counters and histograms are cumulative.
func resourceMetrics(s *metric.Snapshot, scope instrumentation.Scope, resource func(*trace.Resource) *sdkresource.Resource) []*metricdata.ResourceMetrics {
	var order []*trace.Resource
	byRes := make(map[*trace.Resource][]metricdata.Metrics)
	start, now := time.Unix(0, s.Start), time.Unix(0, s.Time)
	for i := range s.Families {
		f := &s.Families[i]
		points := make(map[*trace.Resource][]*metric.Point)
		for j := range f.Points {
			r := f.Points[j].Resource
			if _, ok := byRes[r]; !ok {
				byRes[r] = nil
				order = append(order, r)
			}
			points[r] = append(points[r], &f.Points[j])
		}
		for r, ps := range points { // the order within byRes[r] is that of the families
			byRes[r] = append(byRes[r], metricdata.Metrics{
				Name: f.Name, Description: f.Help, Unit: f.Unit, Data: aggregation(f, ps, start, now)})
		}
	}
	out := make([]*metricdata.ResourceMetrics, 0, len(order))
	for _, r := range order {
		out = append(out, &metricdata.ResourceMetrics{Resource: resource(r),
			ScopeMetrics: []metricdata.ScopeMetrics{{Scope: scope, Metrics: byRes[r]}}})
	}
	return out
}

func aggregation(f *metric.Family, ps []*metric.Point, start, now time.Time) metricdata.Aggregation {
	if f.Type == metric.Histogram {
		h := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
		for _, p := range ps {
			h.DataPoints = append(h.DataPoints, metricdata.HistogramDataPoint[float64]{
				Attributes: labels(p), StartTime: start, Time: now,
				Count: p.Count, Sum: p.Value, Bounds: f.Bounds, BucketCounts: p.Buckets})
		}
		return h
	}
	dps := make([]metricdata.DataPoint[float64], 0, len(ps))
	for _, p := range ps {
		dp := metricdata.DataPoint[float64]{Attributes: labels(p), Time: now, Value: p.Value}
		if f.Type == metric.Counter || f.Type == metric.UpDownCounter {
			dp.StartTime = start
		}
		dps = append(dps, dp)
	}
	if f.Type == metric.Counter || f.Type == metric.UpDownCounter {
		return metricdata.Sum[float64]{DataPoints: dps, Temporality: metricdata.CumulativeTemporality, IsMonotonic: f.Type == metric.Counter}
	}
	return metricdata.Gauge[float64]{DataPoints: dps}
}

func labels(p *metric.Point) attribute.Set {
	kvs := make([]attribute.KeyValue, 0, len(p.Labels))
	for _, l := range p.Labels {
		kvs = append(kvs, attribute.String(text(l.Name), text(l.Value)))
	}
	return attribute.NewSet(kvs...)
}
