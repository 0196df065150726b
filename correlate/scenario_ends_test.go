package correlate

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// scenarioEnds are requests that end in other ways than by themselves.
var scenarioEnds = []scenario{
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
	{"x-request-id, killed before any byte", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.RequestID = "mine" }).add(101, 102, "chatcmpl-mine").
			endHTTP(110, 7, 0, "", signal.OutcomeDisconnect).put(&signal.RequestAborted{At: at(112), Core: testCore, IDs: []string{"chatcmpl-mine-x"}})
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"inferspan.correlation": "id", "inferspan.outcome": "client_disconnect"})
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
	{"error inside a stream", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions").add(101, 102, "chatcmpl-a").
			step(110, out("chatcmpl-a", 1, started(102.5, 103), finished(signal.FinishError, "error"))).
			endHTTP(122, 7, 200, "chatcmpl-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.ErrorType = "InternalServerError" })
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "chat tiny"), map[string]any{"inferspan.outcome": "error", "error.type": "InternalServerError"})
		wantAttrs(t, one(t, r.trees, "llm_request"), map[string]any{"inferspan.outcome": "error", "error.type": "error"})
	}},
}
