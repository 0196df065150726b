package collectortest_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/otlp"
	"inferspan/tests/collectortest"
)

// What goes through the queue and the exporter is what the Collector gets.
func TestThroughRealCollector(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the Collector")
	}
	for _, compression := range []string{"none", "gzip"} {
		t.Run(compression, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
			c := collectortest.Start(t)
			sink, err := otlp.New(context.Background(), otlp.Options{Endpoint: c.Endpoint, Version: "1.0"})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := sink.Probe(ctx); err != nil {
				t.Fatal(err)
			}
			q := export.NewQueue(sink, export.QueueOptions{Name: "otlp"})
			res := &trace.Resource{Attrs: []trace.Attr{{Key: "process.pid", Value: int64(7)}}}
			const n = 3000
			for i := range n {
				q.Add(tree(i, res))
			}
			if err := q.Close(ctx); err != nil {
				t.Fatal(err)
			}
			if s := q.Stats(); s.Exported.Spans != n || s.Exported.Logs != 30 {
				t.Fatalf("%+v", s)
			}
			spans, err := c.WaitSpans(n, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			logs, err := c.Logs()
			if err != nil || len(spans) != n || len(logs) != 30 {
				t.Fatalf("%d spans, %d logs, %v", len(spans), len(logs), err)
			}
			byID := map[string]collectortest.Span{}
			for _, s := range spans {
				byID[s.SpanID] = s
			}
			for i := range n {
				want := tree(i, res).Spans[0]
				got := byID[fmt.Sprintf("%x", want.SpanID[:])]
				attrs := map[string]any{"s": "text \ufffd", "i": int64(-i), "f": float64(i), "b": true, "a": []any{"x", "y"}}
				if got.Name != want.Name || got.Start != want.Start || got.End != want.End || got.ParentID != "" ||
					got.TraceID != fmt.Sprintf("%x", want.TraceID[:]) || got.Code != 2 || got.Message != "aborted" ||
					!reflect.DeepEqual(got.Attrs, attrs) || got.Scope != "inferspan" || got.ScopeVersion != "1.0" ||
					!reflect.DeepEqual(got.Resource, map[string]any{"process.pid": int64(7), "service.name": "unknown_service"}) ||
					len(got.Events) != 1 || got.Events[0].Name != "WAIT" || got.Events[0].Time != want.Start {
					t.Fatalf("span %d came as %+v", i, got)
				}
			}
			if logs[0].EventName != "e" || logs[0].Attrs["k"] != "v" || logs[0].SpanID != "0000000000000001" {
				t.Errorf("log came as %+v", logs[0])
			}
			if bad := c.Complaints(); len(bad) > 0 {
				t.Errorf("the Collector complains: %q", bad)
			}
		})
	}
}

func tree(i int, res *trace.Resource) trace.Tree {
	s := trace.Span{Name: fmt.Sprint("n", i), Kind: trace.KindInternal, Start: 1_800_000_000_000_000_000 + int64(i), End: 1_800_000_000_000_001_000 + int64(i),
		Code: trace.StatusError, Message: "aborted", Resource: res,
		Attrs: []trace.Attr{{Key: "s", Value: "text \xff"}, {Key: "i", Value: int64(-i)}, {Key: "f", Value: float64(i)}, {Key: "b", Value: true}, {Key: "a", Value: []string{"x", "y"}}}}
	s.TraceID[15], s.TraceID[14], s.TraceID[0] = byte(i+1), byte((i+1)>>8), 1
	s.SpanID[7], s.SpanID[6] = byte(i+1), byte((i+1)>>8)
	s.Events = []trace.Event{{Name: "WAIT", Time: s.Start}}
	t := trace.Tree{Spans: []trace.Span{s}}
	if i%100 == 0 {
		t.Logs = []trace.Log{{TraceID: s.TraceID, SpanID: s.SpanID, EventName: "e", Time: s.End, Resource: res, Attrs: []trace.Attr{{Key: "k", Value: "v"}}}}
	}
	return t
}
