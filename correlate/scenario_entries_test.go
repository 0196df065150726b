package correlate

import (
	"fmt"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// scenarioEntries are requests by what the client asked for.
var scenarioEntries = []scenario{
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
	{"model not readable", nil, func() *script {
		return newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Body = signal.RequestBody{Truncated: true} }).
			endHTTP(122, 7, 413, "", signal.OutcomeComplete)
	}, func(t *testing.T, r result) {
		wantAttrs(t, one(t, r.trees, "chat tiny"), map[string]any{"inferspan.derived": []string{"gen_ai.request.model"}, "gen_ai.request.is_stream": nil})
	}},
}
