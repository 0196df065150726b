// Package sample makes span trees and metric states of the shape that correlate
// makes, for the tests of the exporters. Everything is a function of its arguments.
package sample

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"inferspan/correlate/metric"
	sc "inferspan/correlate/semconv"
	"inferspan/correlate/trace"
)

// Start is when the first request of Requests begins.
const Start int64 = 1_790_000_000_000_000_000

const ms = int64(1_000_000)

// Resource returns the resource of an observed process.
func Resource(pid int64) *trace.Resource {
	return &trace.Resource{Attrs: []trace.Attr{
		{Key: "container.id", Value: fmt.Sprintf("%064x", pid)},
		{Key: "inferspan.engine.kind", Value: "vllm"},
		{Key: "process.pid", Value: pid},
		{Key: "service.version", Value: "0.32.0"},
	}}
}

// Requests returns n requests of a mixed load: most complete, some go wrong.
func Requests(n int) []trace.Tree {
	rng := rand.New(rand.NewPCG(1, 2))
	res := Resource(4242)
	trees := make([]trace.Tree, n)
	for i := range trees {
		r := Req{
			I: i, Resource: res, Model: "tiny", Start: Start + int64(i)*37*ms,
			Queue: int64(rng.ExpFloat64() * 8 * float64(ms)), Prefill: int64((5 + rng.Float64()*40) * float64(ms)),
			PerToken: int64((4 + rng.Float64()*4) * float64(ms)), Prompt: 16 + rng.Int64N(900), Output: 1 + rng.Int64N(128),
			Outcome: "completed", Finish: "length", Status: 200,
		}
		switch i % 17 {
		case 5:
			r.Outcome, r.Finish = "client_disconnect", "abort"
		case 9:
			r.Outcome, r.Finish = "stop_string", ""
		case 13:
			r.Outcome, r.Finish, r.Status = "rejected", "", 400
		}
		if i%11 == 3 {
			r.Preemptions = 1
		}
		trees[i] = r.Tree()
	}
	return trees
}

// Req describes one request.
type Req struct {
	I                        int
	Resource                 *trace.Resource
	Model                    string
	Start                    int64
	Queue, Prefill, PerToken int64 // ns
	Prompt, Output           int64
	Outcome, Finish          string
	Status                   int64
	Preemptions              int64
}

// Tree builds the spans: entry, llm_request, wait, prefill, decode. A rejected
// request has the entry span only.
func (r Req) Tree() trace.Tree {
	var tid trace.TraceID
	binary.BigEndian.PutUint64(tid[:], 0xabcdef0000000000)
	binary.BigEndian.PutUint64(tid[8:], uint64(r.I+1))
	id := func(k int) (s trace.SpanID) {
		binary.BigEndian.PutUint64(s[:], uint64(r.I+1)<<8|uint64(k))
		return
	}
	decode := r.PerToken * (r.Output - 1)
	front := ms / 2 // HTTP to engine, and back
	first := front + r.Queue + r.Prefill
	e2e := first + decode + front
	// Spread over the whole number, as real ids are.
	rid := fmt.Sprintf("chatcmpl-%016x", uint64(r.I+1)*0x9e3779b97f4a7c15)
	code, msg := trace.StatusUnset, ""
	if r.Outcome != "completed" && r.Outcome != "stop_string" {
		code, msg = trace.StatusError, r.Outcome
	}

	entry := trace.Span{TraceID: tid, SpanID: id(1), Name: "chat " + r.Model, Kind: trace.KindInternal,
		Start: r.Start, End: r.Start + e2e, Code: code, Message: msg, Resource: r.Resource,
		Attrs: []trace.Attr{
			{Key: sc.AttrGenAISpanKind, Value: "LLM"},
			{Key: sc.AttrGenAIOperationName, Value: "chat"},
			{Key: sc.AttrGenAIRequestModel, Value: r.Model},
			{Key: sc.AttrGenAIRequestIsStream, Value: r.I%2 == 0},
			{Key: sc.AttrURLPath, Value: "/v1/chat/completions"},
			{Key: sc.AttrHTTPResponseStatusCode, Value: r.Status},
			{Key: sc.AttrInferspanOutcome, Value: r.Outcome},
		}}
	if r.Outcome == "rejected" {
		entry.End = entry.Start + 2*ms
		entry.Attrs = append(entry.Attrs, trace.Attr{Key: sc.AttrErrorType, Value: fmt.Sprint(r.Status)})
		return trace.Tree{Spans: []trace.Span{entry}}
	}
	entry.Attrs = append(entry.Attrs,
		trace.Attr{Key: sc.AttrGenAIResponseID, Value: rid},
		trace.Attr{Key: sc.AttrGenAIUsageInputTokens, Value: r.Prompt},
		trace.Attr{Key: sc.AttrGenAIUsageOutputTokens, Value: r.Output},
	)
	common := []trace.Attr{
		{Key: sc.AttrGenAIRequestID, Value: rid},
		{Key: sc.AttrGenAIRequestModelName, Value: r.Model},
		{Key: sc.AttrGenAIEngineIndex, Value: int64(0)},
		{Key: sc.AttrGenAIPDRole, Value: "none"},
	}
	req := trace.Span{TraceID: tid, SpanID: id(2), ParentID: id(1), Name: sc.NameLLMRequest, Kind: trace.KindInternal,
		Start: r.Start + front, End: r.Start + e2e - front, Code: code, Message: msg, Resource: r.Resource,
		Attrs: append(append([]trace.Attr(nil), common...),
			trace.Attr{Key: sc.AttrGenAIRequestTemperature, Value: 1.0},
			trace.Attr{Key: sc.AttrGenAIRequestTopP, Value: 0.95},
			trace.Attr{Key: sc.AttrGenAIRequestMaxTokens, Value: int64(128)},
			trace.Attr{Key: sc.AttrGenAIUsagePromptTokens, Value: r.Prompt},
			trace.Attr{Key: sc.AttrGenAIUsageCompletionTokens, Value: r.Output},
			trace.Attr{Key: sc.AttrGenAIUsageCacheReadInputTokens, Value: r.Prompt / 4 * int64(r.I%3)},
			trace.Attr{Key: sc.AttrGenAILatencyE2E, Value: e2e},
			trace.Attr{Key: sc.AttrGenAILatencyTimeToFirstToken, Value: first},
			trace.Attr{Key: sc.AttrGenAILatencyTimeInQueue, Value: r.Queue},
			trace.Attr{Key: sc.AttrGenAILatencyTimeInModelPrefill, Value: r.Prefill},
			trace.Attr{Key: sc.AttrGenAILatencyTimeInModelDecode, Value: decode},
			trace.Attr{Key: sc.AttrGenAILatencyTimeInModelInference, Value: r.Prefill + decode},
			trace.Attr{Key: sc.AttrInferspanOutcome, Value: r.Outcome},
			trace.Attr{Key: sc.AttrInferspanDerived, Value: []string{sc.AttrGenAILatencyE2E, sc.AttrGenAILatencyTimeToFirstToken}},
		)}
	if r.Finish != "" {
		req.Attrs = append(req.Attrs, trace.Attr{Key: sc.AttrInferspanFinishReason, Value: r.Finish})
	}
	if r.Preemptions > 0 {
		req.Attrs = append(req.Attrs, trace.Attr{Key: sc.AttrGenAIRequestPreemptionCount, Value: r.Preemptions})
	}
	stage := func(k int, name string, start, end int64) trace.Span {
		return trace.Span{TraceID: tid, SpanID: id(k), ParentID: id(2), Name: name, Kind: trace.KindInternal,
			Start: start, End: end, Attrs: common, Resource: r.Resource}
	}
	t := r.Start + front
	return trace.Tree{Spans: []trace.Span{entry, req,
		stage(3, sc.NameWait, t, t+r.Queue),
		stage(4, sc.NamePrefill, t+r.Queue, t+r.Queue+r.Prefill),
		stage(5, sc.NameDecode, t+r.Queue+r.Prefill, t+r.Queue+r.Prefill+decode),
	}}
}

// Odd returns a tree that holds whatever is hard to write down: every value
// type, extreme numbers, foreign bytes, events, links, a log event.
func Odd() trace.Tree {
	res := &trace.Resource{Attrs: []trace.Attr{{Key: "process.pid", Value: int64(7)}, {Key: "service.name", Value: "od\"d"}}}
	tid := trace.TraceID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	sid := trace.SpanID{0xff, 0, 0, 0, 0, 0, 0, 1}
	return trace.Tree{
		Spans: []trace.Span{{
			TraceID: tid, SpanID: sid, ParentID: trace.SpanID{9}, RemoteParent: true, TraceState: "a=1,b=2",
			Name: "chat <b>\x00\u2028\xff\U0001F600", Kind: trace.KindServer,
			Start: Start, End: Start + 1, Code: trace.StatusError, Message: "line\nbreak\ttab \\ \"quoted\"",
			DroppedEvents: 3, Resource: res,
			Links: []trace.Link{{TraceID: tid, SpanID: trace.SpanID{1}}},
			Attrs: []trace.Attr{
				{Key: "z.string", Value: "a&b<c>"},
				{Key: "int.big", Value: int64(-1 << 63)},
				{Key: "double.whole", Value: 2.0},
				{Key: "double.tiny", Value: 1e-300},
				{Key: "double.big", Value: 1e22},
				{Key: "double.third", Value: 1.0 / 3},
				{Key: "bool", Value: true},
				{Key: "strings", Value: []string{"x", "", "\xc3("}},
				{Key: "ints", Value: []int64{1, -2}},
				{Key: "doubles", Value: []float64{0.5, -1}},
				{Key: "empty", Value: []int64(nil)},
				{Key: "same", Value: "first"},
				{Key: "same", Value: "last"},
			},
			Events: []trace.Event{{Name: "DECODE", Time: Start + 1, Attrs: []trace.Attr{{Key: sc.AttrGenAITokenIDs, Value: []int64{3923, 374}}}}},
		}},
		Logs: []trace.Log{{TraceID: tid, SpanID: sid, EventName: sc.EventGenAIClientInferenceOperationDetails, Time: Start + 1, Resource: res,
			Attrs: []trace.Attr{{Key: sc.AttrGenAIInputMessages, Value: `[{"role":"user","parts":[{"type":"text","content":"hi <you>"}]}]`}}}},
	}
}

// Snapshot returns a metric state of two engines.
func Snapshot() *metric.Snapshot {
	a, b := Resource(4242), Resource(5151)
	label := func(model string, extra ...metric.Label) []metric.Label {
		return append([]metric.Label{{Name: "callType", Value: "gen_ai"}, {Name: "rpcType", Value: "2100"},
			{Name: "engine_index", Value: "0"}, {Name: "model_name", Value: model}}, extra...)
	}
	return &metric.Snapshot{Start: Start, Time: Start + 60*1000*ms, Families: []metric.Family{
		{Name: sc.MetricGenAIVLLMGenerationTokens, Help: "tokens generated", Unit: "{token}", Type: metric.Counter, Points: []metric.Point{
			{Labels: label("tiny"), Value: 12345, Resource: a}, {Labels: label("tiny"), Value: 7, Resource: b}}},
		{Name: sc.MetricGenAIVLLMRequestSuccess, Help: "requests finished successfully", Unit: "{request}", Type: metric.Counter, Points: []metric.Point{
			{Labels: label("tiny", metric.Label{Name: "finished_reason", Value: "length"}), Value: 40, Resource: a},
			{Labels: label("tiny", metric.Label{Name: "finished_reason", Value: "stop"}), Value: 2, Resource: a}}},
		{Name: sc.MetricGenAIVLLMRequestQueueTimeSeconds, Help: "sum of time in WAITING", Unit: "s", Type: metric.Counter, Points: []metric.Point{
			{Labels: label("tiny"), Value: 0.30000000000000004, Resource: a}}},
		{Name: sc.MetricGenAIVLLMKVCacheUsagePerc, Help: "KV cache in use", Unit: "1", Type: metric.Gauge, Points: []metric.Point{
			{Labels: label("tiny"), Value: 0.25, Resource: a}}},
		{Name: sc.MetricOTelGenAIServerRequestDuration, Help: "end-to-end request time", Unit: "s", Type: metric.Histogram, Bounds: []float64{0.1, 1, 10}, Points: []metric.Point{
			{Labels: label("tiny"), Value: 21.5, Count: 12, Buckets: []uint64{1, 5, 4, 2}, Resource: a}}},
		{Name: sc.MetricInferspanLostRecords, Help: "records lost before correlation", Unit: "{record}", Type: metric.Counter, Points: []metric.Point{
			{Labels: []metric.Label{{Name: "stage", Value: "kernel"}, {Name: "reason", Value: "ring_full"}}, Value: 3}}},
	}}
}
