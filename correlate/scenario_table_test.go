package correlate

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// scenarios are scripts with what must come of them. The conformance and
// property tests run over them too.
var scenarios = []struct {
	name  string
	opt   func(*Options)
	build func() *script
	check func(t *testing.T, r result)
}{
	{"client leaves before the first token", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").
			endHTTP(110, 7, 0, "", signal.OutcomeDisconnect).
			put(&signal.RequestAborted{At: at(112), Core: testCore, IDs: []string{"chatcmpl-a-x"}})
	}, func(t *testing.T, r result) {
		e, q := one(t, r.trees, "chat tiny"), one(t, r.trees, "llm_request")
		if q.ParentID != e.SpanID || q.TraceID != e.TraceID {
			t.Error("llm_request is not below the entry span")
		}
		const msg = "client disconnected before the first token"
		if e.Code != trace.StatusError || e.Message != msg || q.Code != trace.StatusError || q.Message != msg {
			t.Errorf("status %d %q, %d %q", e.Code, e.Message, q.Code, q.Message)
		}
		wantAttrs(t, e, map[string]any{"inferspan.outcome": "client_disconnect", "error.type": "client_disconnect", "http.response.status_code": nil, "gen_ai.response.id": nil,
			"gen_ai.usage.output_tokens": int64(0), "gen_ai.usage.input_tokens": int64(16)})
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "client_disconnect", "inferspan.correlation": "order", "gen_ai.usage.completion_tokens": int64(0),
			"gen_ai.latency.time_to_first_token": nil, "gen_ai.latency.time_in_queue": nil, "gen_ai.latency.e2e": int64(11e6), "inferspan.derived": []string{"gen_ai.latency.e2e"}})
		if e.End != wall(112) || q.End != wall(112) {
			t.Errorf("entry ends at %d, request at %d", e.End-wallOff, q.End-wallOff)
		}
	}},
	{"the abort comes before the disconnect", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").
			put(&signal.RequestAborted{At: at(112), Core: testCore, IDs: []string{"chatcmpl-a-x"}}).
			endHTTP(113, 7, 0, "", signal.OutcomeDisconnect)
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"inferspan.outcome": "client_disconnect", "inferspan.correlation": "order"})
	}},
	{"client leaves in mid-stream", nil, func() *script {
		return newScript().begin(100, 7, "/v1/completions", func(b *signal.ExchangeBegin) { b.Body.Stream = signal.Some(true) }).
			add(101, 102, "cmpl-a").step(110, out("cmpl-a", 1, started(102.5, 103))).first(111, 7, 200, "cmpl-a").
			step(120, out("cmpl-a", 2)).endHTTP(125, 7, 200, "cmpl-a", signal.OutcomeDisconnect, func(e *signal.ExchangeEnd) { e.Streamed = true }).
			put(&signal.RequestAborted{At: at(126), Core: testCore, IDs: []string{"cmpl-a-x"}}).
			step(130, out("cmpl-a", 1)) // under way when the abort came
	}, func(t *testing.T, r result) {
		e, q := one(t, r.trees, "text_completion tiny"), one(t, r.trees, "llm_request")
		if e.Message != "client disconnected after 3 tokens" || q.Message != e.Message {
			t.Errorf("messages %q, %q", e.Message, q.Message)
		}
		wantAttrs(t, e, map[string]any{"session.id": "cmpl-a", "gen_ai.request.is_stream": true, "gen_ai.usage.output_tokens": int64(3)})
		wantAttrs(t, q, map[string]any{"gen_ai.usage.completion_tokens": int64(3), "inferspan.correlation": "id"})
		if n := point(t, r.m, "inferspan_dropped_outputs"); n != 1 {
			t.Errorf("%v dropped outputs", n)
		}
		for _, f := range r.m.Families {
			if f.Name == "gen_ai_vllm_request_success" {
				t.Error("an aborted request counts as success")
			}
		}
	}},
	{"three at once, the middle one leaves", nil, func() *script {
		s := newScript()
		for i, id := range []string{"chatcmpl-a", "chatcmpl-b", "chatcmpl-c"} {
			d := float64(i)
			s.begin(100+d, uint64(i), "/v1/chat/completions").add(100.5+d, 100.7+d, id)
		}
		s.endHTTP(110, 1, 0, "", signal.OutcomeDisconnect).
			put(&signal.RequestAborted{At: at(111), Core: testCore, IDs: []string{"chatcmpl-b-x"}})
		for i, id := range []string{"chatcmpl-a", "chatcmpl-c"} {
			s.step(120+float64(i), out(id, 4, started(103, 104), finished(signal.FinishLength, "length"))).endHTTP(125+float64(i), uint64(2*i), 200, id, signal.OutcomeComplete)
		}
		return s
	}, func(t *testing.T, r result) {
		if len(r.trees) != 3 {
			t.Fatalf("%d trees", len(r.trees))
		}
		for _, tr := range r.trees {
			if len(tr.Spans) < 2 {
				t.Fatal("entry span without its request")
			}
			id := tr.Spans[1].Attr("gen_ai.request.id").(string)
			if left := tr.Spans[0].Attr("inferspan.outcome") == "client_disconnect"; left != (id == "chatcmpl-b") {
				t.Errorf("%s: outcome %v", id, tr.Spans[0].Attr("inferspan.outcome"))
			}
		}
	}},
	{"two leave at once, aborts in the other order", nil, func() *script {
		return newScript().begin(100, 1, "/v1/chat/completions").add(100.5, 101, "chatcmpl-a").
			begin(105, 2, "/v1/chat/completions").add(105.5, 106, "chatcmpl-b").
			endHTTP(110, 1, 0, "", signal.OutcomeDisconnect).endHTTP(110.1, 2, 0, "", signal.OutcomeDisconnect).
			put(&signal.RequestAborted{At: at(111), Core: testCore, IDs: []string{"chatcmpl-b-x", "chatcmpl-a-x"}})
	}, func(t *testing.T, r result) {
		for _, tr := range r.trees {
			if len(tr.Spans) != 2 {
				t.Fatalf("%d spans in a tree", len(tr.Spans))
			}
			// The requests began 0.5 ms after the exchanges.
			if d := tr.Spans[1].Start - tr.Spans[0].Start; d != 500_000 {
				t.Errorf("%v below the entry that began %d ns before", tr.Spans[1].Attr("gen_ai.request.id"), d)
			}
		}
	}},
	{"aborted through the API", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").
			step(110, out("chatcmpl-a", 1, started(102.5, 103))).
			put(&signal.RequestAborted{At: at(120), Core: testCore, IDs: []string{"chatcmpl-a-x"}}).
			endHTTP(121, 7, 200, "chatcmpl-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.FinishReasons = []string{"abort"} })
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "aborted", "error.type": "aborted"})
		if q.Message != "aborted after 1 token" {
			t.Errorf("message %q", q.Message)
		}
		wantAttrs(t, r.entries()[0], map[string]any{"inferspan.outcome": "aborted"})
	}},
	{"stop string, settled by the usage", nil, func() *script {
		s := newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a", func(a *signal.RequestAdded) { a.Param.HasStop = true }).
			step(110, out("chatcmpl-a", 1, started(102.5, 103)))
		for i := range 3 {
			s.step(120+10*float64(i), out("chatcmpl-a", 1))
		}
		return s.put(&signal.RequestAborted{At: at(140.7), Core: testCore, IDs: []string{"chatcmpl-a-x"}}).
			endHTTP(141, 7, 200, "chatcmpl-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) {
				e.FinishReasons, e.OutputTokens, e.InputTokens = []string{"stop"}, signal.Some[int64](3), signal.Some[int64](16)
			})
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "stop_string", "gen_ai.usage.completion_tokens": int64(3), "gen_ai.latency.time_in_model_decode": int64(20e6),
			"gen_ai.latency.e2e": int64(29.5e6), "inferspan.derived": nil, "error.type": nil})
		if q.Code != trace.StatusUnset {
			t.Errorf("status %d", q.Code)
		}
		wantAttrs(t, r.entries()[0], map[string]any{"inferspan.outcome": "completed"})
		if n := point(t, r.m, "gen_ai_vllm_request_success", "stop"); n != 1 {
			t.Errorf("%v successes", n)
		}
	}},
	{"stop string, the core runs to its limit before it is told", nil, func() *script {
		s := newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a", func(a *signal.RequestAdded) { a.Param.HasStop = true }).
			step(110, out("chatcmpl-a", 1, started(102.5, 103)))
		for i := range 11 {
			s.step(120+10*float64(i), out("chatcmpl-a", 1))
		}
		return s.step(230, out("chatcmpl-a", 1, finished(signal.FinishLength, "length"))).
			endHTTP(231, 7, 200, "chatcmpl-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) {
				e.FinishReasons, e.OutputTokens, e.InputTokens = []string{"stop"}, signal.Some[int64](3), signal.Some[int64](16)
			})
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "stop_string", "gen_ai.usage.completion_tokens": int64(3)})
		if d := fmt.Sprint(q.Attr("inferspan.derived")); !strings.Contains(d, "gen_ai.latency.e2e") || !strings.Contains(d, "time_in_model_decode") {
			t.Errorf("derived %s: the last token's time is not known", d)
		}
		if n := point(t, r.m, "gen_ai_vllm_request_success", "stop"); n != 1 {
			t.Errorf("%v successes", n)
		}
	}},
	{"stop string without HTTP", nil, func() *script {
		return newScript().add(101, 102, "0", func(a *signal.RequestAdded) { a.Param.HasStop = true }).
			step(110, out("0", 1, started(102.5, 103))).step(120, out("0", 1)).
			put(&signal.RequestAborted{At: at(121), Core: testCore, IDs: []string{"0-x"}})
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "stop_string", "gen_ai.usage.completion_tokens": int64(2)})
		d := fmt.Sprint(q.Attr("inferspan.derived"))
		for _, want := range []string{"inferspan.outcome", "gen_ai.usage.completion_tokens", "gen_ai.latency.e2e"} {
			if !strings.Contains(d, want) {
				t.Errorf("%s is not marked derived", want)
			}
		}
		if q.ParentID != (trace.SpanID{}) {
			t.Error("a request without HTTP has a parent")
		}
	}},
	{"the engine dies", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").step(110, out("chatcmpl-a", 1, started(102.5, 103))).
			put(&signal.CoreFailed{At: at(120), Core: testCore}).
			endHTTP(121, 7, 500, "", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.ErrorType = "EngineDeadError" }).
			put(&signal.ProcessExit{At: at(130), Engine: 1, PID: corePID, Code: 9})
	}, func(t *testing.T, r result) {
		e, q := one(t, r.trees, "chat tiny"), one(t, r.trees, "llm_request")
		wantAttrs(t, e, map[string]any{"inferspan.outcome": "engine_exit", "error.type": "500", "http.response.status_code": int64(500)})
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "engine_exit", "error.type": "engine_exit", "gen_ai.usage.completion_tokens": int64(1), "gen_ai.latency.e2e": nil})
		if q.Code != trace.StatusError || q.Message != "the engine exited after 1 token" || q.ParentID != e.SpanID || q.End != wall(120) {
			t.Errorf("status %d %q, ends at %d", q.Code, q.Message, q.End-wallOff)
		}
		for _, f := range r.m.Families {
			if f.Name == "gen_ai_vllm_num_requests_running" {
				t.Error("a dead core has running requests")
			}
		}
	}},
	{"the API server dies", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").step(110, out("chatcmpl-a", 1, started(102.5, 103))).
			put(&signal.ProcessExit{At: at(120), Engine: 1, PID: apiPID, Code: 9}).
			put(&signal.ProcessExit{At: at(121), Engine: 1, PID: corePID, Code: 9})
	}, func(t *testing.T, r result) {
		e := one(t, r.trees, "chat tiny")
		if e.Message != "the API server exited" || len(r.requests()) != 1 {
			t.Errorf("message %q", e.Message)
		}
	}},
	{"refused requests", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").
			endHTTP(101, 7, 400, "", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.ErrorType, e.ErrorMessage = "BadRequestError", "secret prompt" }).
			begin(110, 8, "/v1/embeddings", func(b *signal.ExchangeBegin) { b.Body.Model = signal.Some("nope") }).
			endHTTP(111, 8, 404, "", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.ErrorType = "NotFoundError" })
	}, func(t *testing.T, r result) {
		e := one(t, r.trees, "chat tiny")
		wantAttrs(t, e, map[string]any{"inferspan.outcome": "rejected", "error.type": "400", "http.response.status_code": int64(400)})
		if e.Code != trace.StatusError || e.Message != "HTTP 400: BadRequestError" {
			t.Errorf("status %d %q", e.Code, e.Message)
		}
		wantAttrs(t, one(t, r.trees, "embeddings nope"), map[string]any{"gen_ai.span.kind": "EMBEDDING", "error.type": "404", "gen_ai.request.is_stream": nil})
	}},
	{"paths without a span", nil, func() *script {
		s := newScript()
		for i, p := range []string{"/health", "/metrics", "/v1/models", "/tokenize", "/v1/chat/completions/render", ""} {
			s.begin(100, uint64(i), p).endHTTP(101, uint64(i), 200, "", signal.OutcomeComplete)
		}
		return s.begin(100, 50, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Method = "GET" }).endHTTP(101, 50, 405, "", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		if len(r.trees) != 0 {
			t.Errorf("%d trees", len(r.trees))
		}
	}},
	{"operations by path", nil, func() *script {
		s := newScript()
		for i, p := range []string{"/v1/responses", "/v1/messages", "/score", "/v2/rerank", "/classify", "/pooling"} {
			s.begin(100, uint64(i), p).endHTTP(101, uint64(i), 503, "", signal.OutcomeComplete)
		}
		return s.put(&signal.Clock{At: at(5000), Wall: wallT(5000)})
	}, func(t *testing.T, r result) {
		for i, want := range []string{"chat tiny", "chat tiny", "rerank tiny", "rerank tiny", "embeddings tiny", "embeddings tiny"} {
			if got := r.trees[i].Spans[0].Name; got != want {
				t.Errorf("%v: span %q, want %q", r.trees[i].Spans[0].Attr("url.path"), got, want)
			}
		}
	}},
	{"three candidates", nil, func() *script {
		s := newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Body.N = signal.Some[int64](3) })
		for k := range 3 {
			s.add(101, 102, "chatcmpl-a", func(a *signal.RequestAdded) { a.ID, a.Child = fmt.Sprintf("%d-x", k), signal.Some(k) })
		}
		id := func(k string) signal.Output { o := out("x", 1); o.ID = []byte(k + "-x"); return o }
		s.step(110, with(id("0"), started(102.5, 103)), with(id("1"), started(102.5, 103)), with(id("2"), started(102.5, 103)))
		s.step(120, with(id("0"), finished(signal.FinishStop, "stop")), id("1"), id("2"))
		s.step(130, with(id("1"), finished(signal.FinishLength, "length")), with(id("2"), finished(signal.FinishLength, "length")))
		return s.first(131, 7, 200, "chatcmpl-a").endHTTP(132, 7, 200, "chatcmpl-a", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		if len(r.trees) != 1 || len(r.requests()) != 3 {
			t.Fatalf("%d trees, %d requests", len(r.trees), len(r.requests()))
		}
		e := r.entries()[0]
		wantAttrs(t, e, map[string]any{"gen_ai.request.choice.count": int64(3), "gen_ai.usage.input_tokens": int64(16), "gen_ai.usage.output_tokens": int64(8),
			"gen_ai.response.finish_reasons": []string{"stop", "length", "length"},
			"inferspan.derived":              []string{"gen_ai.response.finish_reasons", "gen_ai.usage.input_tokens", "gen_ai.usage.total_tokens", "gen_ai.usage.output_tokens"}})
		for i, q := range r.requests() {
			wantAttrs(t, q, map[string]any{"inferspan.request.child_index": int64(i), "gen_ai.request.id": "chatcmpl-a", "gen_ai.request.n": int64(1)})
			if q.ParentID != e.SpanID {
				t.Error("candidate is not below the entry span")
			}
		}
		if n := point(t, r.m, "gen_ai_vllm_request_params_n"); n != 3 {
			t.Errorf("n adds up to %v", n)
		}
	}},
	{"several prompts", nil, func() *script {
		s := newScript().begin(100, 7, "/v1/completions")
		for i := range 2 {
			s.add(101, 102, "cmpl-a", func(a *signal.RequestAdded) {
				a.ID, a.ExternalID = fmt.Sprintf("p%d-x", i), fmt.Sprintf("cmpl-a-%d", i)
			})
		}
		return s.step(110, out("p0", 2, started(102.5, 103), finished(signal.FinishLength, "length")), out("p1", 1, started(102.5, 103), finished(signal.FinishStop, "stop"))).
			endHTTP(112, 7, 200, "cmpl-a", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		wantAttrs(t, r.entries()[0], map[string]any{"gen_ai.usage.input_tokens": int64(32), "gen_ai.usage.output_tokens": int64(3)})
		if r.requests()[1].Attr("gen_ai.request.id") != "cmpl-a-1" {
			t.Errorf("id %v", r.requests()[1].Attr("gen_ai.request.id"))
		}
	}},
	{"x-request-id, killed before any byte", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.RequestID = "mine" }).add(101, 102, "chatcmpl-mine").
			endHTTP(110, 7, 0, "", signal.OutcomeDisconnect).put(&signal.RequestAborted{At: at(112), Core: testCore, IDs: []string{"chatcmpl-mine-x"}})
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"inferspan.correlation": "id", "inferspan.outcome": "client_disconnect"})
	}},
	{"traceparent", func(o *Options) { o.ServerKind = true }, func() *script {
		s := newScript()
		s.begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) {
			b.TraceParent, b.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "k=v"
		}).add(101, 102, "chatcmpl-a").step(110, out("chatcmpl-a", 1, started(102.5, 103), finished(signal.FinishStop, "stop"))).
			endHTTP(112, 7, 200, "chatcmpl-a", signal.OutcomeComplete)
		return s.add(201, 202, "0", func(a *signal.RequestAdded) {
			a.TraceParent = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
		}).
			step(210, out("0", 1, started(202.5, 203), finished(signal.FinishStop, "stop"))).
			put(&signal.Clock{At: at(2000), Wall: wallT(2000)})
	}, func(t *testing.T, r result) {
		e := one(t, r.trees, "chat tiny")
		if fmt.Sprintf("%x", e.TraceID) != "0af7651916cd43dd8448eb211c80319c" || fmt.Sprintf("%x", e.ParentID) != "b7ad6b7169203331" || !e.RemoteParent || e.TraceState != "k=v" || e.Kind != trace.KindServer {
			t.Errorf("entry %+v", e)
		}
		q := r.requests()[1]
		if fmt.Sprintf("%x", q.TraceID) != "1af7651916cd43dd8448eb211c80319c" || fmt.Sprintf("%x", q.ParentID) != "c7ad6b7169203331" || !q.RemoteParent {
			t.Errorf("request %+v", q)
		}
	}},
	{"begin heard of with the response", nil, func() *script {
		s := newScript().chat(10, 3, "chatcmpl-before").add(101, 102, "chatcmpl-a").
			step(110, out("chatcmpl-a", 1, started(102.5, 103), finished(signal.FinishStop, "stop")))
		s.put(&signal.Clock{At: at(500), Wall: wallT(500)})
		late := newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Done, b.Body = 0, signal.RequestBody{Truncated: true} })
		return s.put(late.sig[len(late.sig)-1]).endHTTP(512, 7, 200, "chatcmpl-a", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		if e, q := r.entries()[1], r.requests()[1]; q.ParentID != e.SpanID || e.Attr("inferspan.partial") != nil {
			t.Errorf("request %+v of %+v", q, e)
		}
	}},
	{"attached in mid-flight", nil, func() *script {
		return newScript().step(110, out("chatcmpl-a", 1)).step(120, out("chatcmpl-a", 1, finished(signal.FinishLength, "length")))
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"inferspan.partial": []string{"arrival", "outputs"}, "inferspan.outcome": "completed", "gen_ai.usage.completion_tokens": nil,
			"gen_ai.latency.e2e": nil, "gen_ai.latency.time_to_first_token": nil, "gen_ai.latency.time_in_model_decode": nil, "gen_ai.request.id": nil,
			"inferspan.request.internal_id": "chatcmpl-a-x", "inferspan.finish_reason": "length"})
		if q.Start != wall(110.1) || q.End != wall(120.5) || len(r.trees[0].Spans) != 1 {
			t.Errorf("from %d to %d, %d spans", q.Start-wallOff, q.End-wallOff, len(r.trees[0].Spans))
		}
		if n := point(t, r.m, "gen_ai_vllm_generation_tokens"); n != 2 {
			t.Errorf("%v tokens", n)
		}
	}},
	{"attached just before the first output", nil, func() *script {
		return newScript().put(&signal.RequestAdded{At: at(109), Core: testCore, ID: "chatcmpl-a-x", ExternalID: "chatcmpl-a", ResponseID: "chatcmpl-a"}).
			step(110, out("chatcmpl-a", 1, started(102.5, 103))).step(120, out("chatcmpl-a", 1, finished(signal.FinishLength, "length")))
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"inferspan.partial": []string{"arrival"}, "gen_ai.usage.completion_tokens": int64(2), "gen_ai.latency.time_in_queue": int64(0.5e6),
			"gen_ai.usage.prompt_tokens": int64(16), "gen_ai.latency.e2e": nil, "gen_ai.request.id": "chatcmpl-a"})
		if q.Start != wall(102.5) {
			t.Errorf("starts at %d", q.Start-wallOff)
		}
	}},
	{"detached in flight", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").step(110, out("chatcmpl-a", 1, started(102.5, 103))).
			first(111, 7, 200, "chatcmpl-a").put(&signal.Detach{At: at(115)})
	}, func(t *testing.T, r result) {
		e, q := one(t, r.trees, "chat tiny"), one(t, r.trees, "llm_request")
		wantAttrs(t, e, map[string]any{"inferspan.outcome": "in_flight", "inferspan.partial": []string{"end"}})
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "in_flight", "inferspan.partial": []string{"end"}, "gen_ai.latency.e2e": nil})
		if q.End != wall(115) || e.Code != trace.StatusUnset || q.ParentID != e.SpanID {
			t.Errorf("ends at %d", q.End-wallOff)
		}
	}},
	{"preempted", func(o *Options) { o.Precision = 2 }, func() *script {
		return newScript().add(101, 102, "0").step(110, out("0", 1, started(102.5, 103))).
			step(130, out("0", 1, func(o *signal.Output) {
				o.Events = []signal.EngineEvent{{Kind: signal.EventPreempted, At: at(115)}, {Kind: signal.EventScheduled, At: at(125)}}
			})).step(140, out("0", 1, finished(signal.FinishLength, "length")))
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"gen_ai.request.preemption_count": int64(1), "gen_ai.latency.time_in_queue": int64(0.5e6), "gen_ai.latency.time_in_model_inference": int64(37e6)})
		var got []string
		for _, e := range q.Events {
			got = append(got, fmt.Sprintf("%s@%v", e.Name, float64(e.Time-wallOff)/1e6))
		}
		if want := []string{"WAIT@102.5", "PREFILL@110", "PREEMPTED@115", "DECODE@130", "DECODE@140"}; !equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		if n := point(t, r.m, "gen_ai_vllm_num_preemptions"); n != 1 {
			t.Errorf("%v preemptions", n)
		}
	}},
	{"events beyond the limit", func(o *Options) { o.Precision, o.EventLimit = 2, 5 }, func() *script {
		s := newScript().add(101, 102, "0").step(110, out("0", 1, started(102.5, 103)))
		for i := range 8 {
			s.step(120+float64(i), out("0", 1))
		}
		return s.step(140, out("0", 1, func(o *signal.Output) { o.Events = []signal.EngineEvent{{Kind: signal.EventPreempted, At: at(135)}} }, finished(signal.FinishLength, "length")))
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		var got []string
		for _, e := range q.Events {
			got = append(got, e.Name)
		}
		if want := []string{"WAIT", "PREFILL", "DECODE", "DECODE", "PREEMPTED"}; !equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		if q.DroppedEvents != 7 || point(t, r.m, "inferspan_dropped_events") != 7 {
			t.Errorf("%d events dropped", q.DroppedEvents)
		}
	}},
	{"content in spans", func(o *Options) {
		o.Precision, o.Content = 2, ContentSpanAndEvent
		o.TokenText = func(id int64) (string, bool) { return fmt.Sprint("<", id, ">"), true }
	}, contentScript, func(t *testing.T, r result) {
		e, q := one(t, r.trees, "chat tiny"), one(t, r.trees, "llm_request")
		wantAttrs(t, e, map[string]any{"gen_ai.input.messages": "[in]", "gen_ai.output.messages": "[out]"})
		if len(r.trees[0].Logs) != 1 || r.trees[0].Logs[0].SpanID != e.SpanID || len(r.trees[0].Logs[0].Attrs) != 2 {
			t.Errorf("logs %+v", r.trees[0].Logs)
		}
		ev := q.Events[1]
		if s := fmt.Sprint(ev.Attrs); ev.Name != "PREFILL" || s != "[{gen_ai.engine.index 0} {gen_ai.token.ids [0 1]} {gen_ai.token.texts [<0> <1>]} {gen_ai.token.count 2} {gen_ai.token.logprobs [-0.5 -1]}]" {
			t.Errorf("%s %s", ev.Name, s)
		}
	}},
	{"content in events", func(o *Options) { o.Precision, o.Content = 2, ContentEvent }, contentScript, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "chat tiny"), map[string]any{"gen_ai.input.messages": nil, "gen_ai.output.messages": nil})
		if len(r.trees[0].Logs) != 1 || strings.Contains(fmt.Sprint(r.requests()[0].Events), "token.ids") {
			t.Errorf("logs %+v, events %v", r.trees[0].Logs, r.requests()[0].Events)
		}
	}},
	{"no content", func(o *Options) { o.Precision = 2 }, contentScript, func(t *testing.T, r result) {
		if s := fmt.Sprint(r.trees[0].Spans, r.trees[0].Logs); strings.Contains(s, "[in]") || strings.Contains(s, "[out]") || strings.Contains(s, "token.ids") {
			t.Error("content in spans although the policy is none")
		}
		if !strings.Contains(fmt.Sprint(r.requests()[0].Events), "gen_ai.token.count 2") {
			t.Error("no token count")
		}
	}},
	{"precision 0", func(o *Options) { o.Precision = 0 }, func() *script { return newScript().chat(100, 7, "chatcmpl-a") }, func(t *testing.T, r result) {
		if len(r.trees[0].Spans) != 2 || len(r.requests()[0].Events) != 0 {
			t.Errorf("%d spans", len(r.trees[0].Spans))
		}
	}},
	{"producer", nil, func() *script { return pd("producer") }, func(t *testing.T, r result) {
		wantAttrs(t, r.requests()[0], map[string]any{"gen_ai.pd_role": "producer", "gen_ai.latency.time_in_model_decode": int64(0), "gen_ai.latency.time_in_model_prefill": int64(7e6), "gen_ai.latency.time_in_model_inference": int64(7e6)})
		if len(find(r.trees, "decode")) != 0 || len(find(r.trees, "prefill")) != 1 || len(find(r.trees, "wait")) != 1 {
			t.Error("stages of a producer")
		}
	}},
	{"consumer", nil, func() *script { return pd("consumer") }, func(t *testing.T, r result) {
		wantAttrs(t, r.requests()[0], map[string]any{"gen_ai.pd_role": "consumer", "gen_ai.latency.time_in_model_prefill": int64(0), "gen_ai.latency.time_in_model_decode": int64(30e6)})
		if len(find(r.trees, "decode")) != 1 || len(find(r.trees, "prefill")) != 0 || len(find(r.trees, "wait")) != 1 {
			t.Error("stages of a consumer")
		}
	}},
	{"role not known", nil, func() *script { return pd("") }, func(t *testing.T, r result) {
		wantAttrs(t, r.requests()[0], map[string]any{"gen_ai.pd_role": nil})
	}},
	{"embeddings", nil, func() *script {
		return newScript().begin(100, 7, "/v1/embeddings", func(b *signal.ExchangeBegin) { b.Body.MaxTokens = signal.Opt[int64]{} }).
			add(101, 102, "embd-a", func(a *signal.RequestAdded) { a.Pooling, a.Param = true, signal.Param{} }).
			step(110, out("embd-a", 0, started(102.5, 103), finished(signal.FinishStop, "stop"), func(o *signal.Output) { o.Pooled = true })).
			endHTTP(112, 7, 200, "embd-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.InputTokens = signal.Some[int64](16) })
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "embeddings tiny"), map[string]any{"gen_ai.usage.input_tokens": int64(16), "gen_ai.usage.total_tokens": int64(16), "gen_ai.usage.output_tokens": nil, "gen_ai.request.is_stream": nil, "gen_ai.response.finish_reasons": nil})
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"gen_ai.latency.time_to_first_token": nil, "gen_ai.usage.completion_tokens": int64(0), "gen_ai.latency.time_in_model_prefill": int64(7e6)})
		if len(find(r.trees, "decode")) != 0 {
			t.Error("an embedding has a decode stage")
		}
		if n := point(t, r.m, "genai_llm_usage_tokens", "EMBEDDING", "input"); n != 16 {
			t.Errorf("%v tokens", n)
		}
	}},
	{"deliveries not seen", nil, func() *script {
		s := newScript().chat(100, 7, "chatcmpl-a")
		kept := s.sig[:0]
		for _, x := range s.sig {
			if _, ok := x.(*signal.Delivered); !ok {
				kept = append(kept, x)
			}
		}
		s.sig = kept
		return s.put(&signal.Clock{At: at(5000), Wall: wallT(5000)})
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"gen_ai.latency.time_to_first_token": int64(9.1e6), "gen_ai.latency.e2e": int64(39.1e6),
			"inferspan.derived": []string{"gen_ai.latency.time_to_first_token", "span.end", "gen_ai.latency.e2e"}})
	}},
	{"statistics off", nil, func() *script {
		s := newScript().add(101, 102, "0")
		for i := range 3 {
			s.step(110+10*float64(i), out("0", 1))
			s.sig[len(s.sig)-2].(*signal.StepOutput).Stats = nil
		}
		s.step(140, out("0", 1, finished(signal.FinishLength, "length")))
		s.sig[len(s.sig)-2].(*signal.StepOutput).Stats = nil
		return s
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"gen_ai.latency.time_in_queue": nil, "gen_ai.latency.time_in_model_prefill": nil, "gen_ai.latency.time_in_model_inference": nil,
			"gen_ai.latency.time_in_model_decode": int64(30e6), "gen_ai.usage.completion_tokens": int64(4), "inferspan.partial": nil})
		if len(find(r.trees, "wait")) != 0 || len(find(r.trees, "decode")) != 1 {
			t.Error("stages without the engine's events")
		}
		for _, f := range r.m.Families {
			switch f.Name {
			case "gen_ai_vllm_num_preemptions", "gen_ai_vllm_request_queue_time_seconds", "gen_ai_vllm_kv_cache_usage_perc", "gen_ai_vllm_num_requests_running":
				t.Errorf("%s is exported although the engine does not report it", f.Name)
			}
		}
		if n := point(t, r.m, "vllm_iter_count"); n != 4 {
			t.Errorf("%v iterations", n)
		}
	}},
	{"the wall clock is set during a request", nil, func() *script {
		s := newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").step(110, out("chatcmpl-a", 1, started(102.5, 103)))
		s.put(&signal.Clock{At: at(115), Wall: wallT(115) - 3600e9})
		return s.step(120, out("chatcmpl-a", 1, finished(signal.FinishLength, "length"))).endHTTP(122, 7, 200, "chatcmpl-a", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"gen_ai.latency.e2e": int64(19.5e6)})
		if e := one(t, r.trees, "chat tiny"); e.Start != wall(100) || e.End != wall(122) {
			t.Errorf("entry from %d to %d", e.Start-wallOff, e.End-wallOff)
		}
	}},
	{"records lost meanwhile", nil, func() *script {
		s := newScript().put(&signal.Loss{At: at(50), Stage: "kernel", Lost: []signal.LossCount{{Reason: "ring_full", N: 2}, {Reason: "truncated", N: 1}}})
		s.begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").step(110, out("chatcmpl-a", 1, started(102.5, 103)))
		s.put(&signal.Loss{At: at(115), Stage: "kernel", Lost: []signal.LossCount{{Reason: "ring_full", N: 3}, {Reason: "truncated", N: 9}}})
		return s.step(120, out("chatcmpl-a", 1, finished(signal.FinishLength, "length"))).endHTTP(122, 7, 200, "chatcmpl-a", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"inferspan.partial": []string{"lost_records"}, "inferspan.derived": []string{"gen_ai.usage.completion_tokens"}})
		wantAttrs(t, one(t, r.trees, "chat tiny"), map[string]any{"inferspan.partial": []string{"lost_records"}})
		if n := point(t, r.m, "inferspan_lost_records", "ring_full"); n != 3 {
			t.Errorf("%v records lost", n)
		}
	}},
	{"the end of a request is lost", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").step(110, out("chatcmpl-a", 1, started(102.5, 103))).
			endHTTP(122, 7, 200, "chatcmpl-a", signal.OutcomeComplete).put(&signal.Clock{At: at(9000), Wall: wallT(9000)})
	}, func(t *testing.T, r result) {
		q := one(t, r.trees, "llm_request")
		wantAttrs(t, q, map[string]any{"inferspan.outcome": "lost", "inferspan.partial": []string{"end"}, "gen_ai.latency.e2e": nil})
		if q.End != wall(110.1) || q.Code != trace.StatusUnset {
			t.Errorf("ends at %d", q.End-wallOff)
		}
	}},
	{"an id in use again", nil, func() *script {
		return newScript().add(101, 102, "0").step(110, out("0", 1, started(102.5, 103))).
			add(201, 202, "0").step(210, out("0", 1, started(202.5, 203), finished(signal.FinishStop, "stop")))
	}, func(t *testing.T, r result) {
		q := r.requests()
		if len(q) != 2 || q[0].Attr("inferspan.outcome") != "lost" || q[1].Attr("inferspan.outcome") != "completed" || q[0].SpanID == q[1].SpanID || q[0].TraceID == q[1].TraceID {
			t.Errorf("%d requests", len(q))
		}
	}},
	{"more than fits", func(o *Options) { o.MaxRequests, o.MaxExchanges = 2, 2 }, func() *script {
		s := newScript()
		for i := range 4 {
			id := fmt.Sprint("chatcmpl-", i)
			s.begin(100+float64(i), uint64(i), "/v1/chat/completions").add(100.2+float64(i), 100.5+float64(i), id)
		}
		for i := range 4 {
			id := fmt.Sprint("chatcmpl-", i)
			s.step(110+float64(i), out(id, 1, started(104.5, 105), finished(signal.FinishStop, "stop"))).endHTTP(120+float64(i), uint64(i), 200, id, signal.OutcomeComplete)
		}
		return s.put(&signal.Detach{At: at(200)})
	}, func(t *testing.T, r result) {
		if len(r.entries()) != 4 || len(r.requests()) != 4 {
			t.Errorf("%d entries, %d requests", len(r.entries()), len(r.requests()))
		}
		if n := point(t, r.m, "inferspan_evicted", "request"); n != 2 {
			t.Errorf("%v requests evicted", n)
		}
		if n := point(t, r.m, "inferspan_evicted", "exchange"); n != 2 {
			t.Errorf("%v exchanges evicted", n)
		}
		if s := fmt.Sprint(r.requests()[0].Attr("inferspan.partial")); !strings.Contains(s, "evicted") {
			t.Errorf("partial %s", s)
		}
	}},
	{"two cores and two front ends", nil, func() *script {
		s := newScript()
		for i := range 2 {
			core := signal.Core{Engine: 1, Index: i, PID: uint32(corePID + i)}
			id := fmt.Sprint("chatcmpl-", i)
			s.begin(100, uint64(i), "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Exchange.PID = uint32(apiPID + i) })
			s.add(101, 102, id, func(a *signal.RequestAdded) { a.Core, a.Client = core, i })
			s.key++
			o := out(id, 1, started(102.5, 103), finished(signal.FinishStop, "stop"))
			s.put(&signal.StepOutput{At: at(110), Core: core, Stamp: at(110), Client: i, Key: s.key, Outputs: []signal.Output{o}})
			s.put(&signal.Delivered{At: at(111), Engine: 1, PID: uint32(apiPID + i), Key: s.key})
			s.endHTTP(112, uint64(i), 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.Exchange.PID = uint32(apiPID + i) })
		}
		return s
	}, func(t *testing.T, r result) {
		for i, q := range r.requests() {
			wantAttrs(t, q, map[string]any{"gen_ai.engine.index": int64(i)})
		}
		if n := point(t, r.m, "vllm_iter_count", "1"); n != 1 {
			t.Errorf("%v iterations of core 1", n)
		}
	}},
	{"iterations", nil, func() *script {
		s := newScript()
		for i := range 2 {
			s.add(101, 102, fmt.Sprint(i), func(a *signal.RequestAdded) { a.Client = i })
		}
		stats := &signal.SchedulerStats{Running: signal.Some[int64](2)}
		put := func(t float64, client int, st *signal.SchedulerStats, outs ...signal.Output) {
			s.put(&signal.StepOutput{At: at(t), Core: testCore, Stamp: at(t), Client: client, Outputs: outs, Stats: st})
		}
		put(110, 0, stats, out("0", 1, started(103, 104))) // one step, two front ends
		put(110, 1, nil, out("1", 1, started(103, 104)))
		put(120, 1, stats, out("1", 1)) // a step for one of them
		put(130, 0, stats)              // a part of a prompt
		put(140, 0, stats, out("0", 1))
		put(140, 1, nil, out("1", 1))
		return s
	}, func(t *testing.T, r result) {
		if n := point(t, r.m, "vllm_iter_count"); n != 3 {
			t.Errorf("%v iterations, want 3", n)
		}
	}},
	{"error inside a stream", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").
			step(110, out("chatcmpl-a", 1, started(102.5, 103), finished(signal.FinishError, "error"))).
			endHTTP(122, 7, 200, "chatcmpl-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.ErrorType = "InternalServerError" })
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "chat tiny"), map[string]any{"inferspan.outcome": "error", "error.type": "InternalServerError"})
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"inferspan.outcome": "error", "error.type": "error"})
	}},
	{"model not readable", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Body = signal.RequestBody{Truncated: true} }).
			endHTTP(122, 7, 413, "", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "chat tiny"), map[string]any{"inferspan.derived": []string{"gen_ai.request.model"}, "gen_ai.request.is_stream": nil})
	}},
}
