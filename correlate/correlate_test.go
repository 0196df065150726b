package correlate

import (
	"testing"

	"inferspan/correlate/trace"
)

func TestChat(t *testing.T) {
	trees, m := run(t, NewOptions(), newScript().chat(100, 7, "chatcmpl-a").sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees, want 1 as soon as the request is complete", len(trees))
	}
	var names []string
	for _, s := range trees[0].Spans {
		names = append(names, s.Name)
	}
	if got, want := names, []string{"chat tiny", "llm_request", "wait", "prefill", "decode"}; !equal(got, want) {
		t.Fatalf("spans %v, want %v", got, want)
	}
	entry, req := &trees[0].Spans[0], &trees[0].Spans[1]
	wantAttrs(t, entry, map[string]any{
		"gen_ai.span.kind": "LLM", "gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny", "gen_ai.request.max_tokens": int64(4),
		"gen_ai.request.is_stream": false, "gen_ai.response.id": "chatcmpl-a", "gen_ai.response.model": "tiny",
		"gen_ai.response.finish_reasons": []string{"length"}, "gen_ai.usage.input_tokens": int64(16), "gen_ai.usage.output_tokens": int64(4),
		"gen_ai.usage.total_tokens": int64(20), "http.response.status_code": int64(200), "inferspan.outcome": "completed",
		"gen_ai.request.temperature": nil, "session.id": nil, "error.type": nil, "inferspan.derived": nil, "inferspan.partial": nil, "gen_ai.input.messages": nil,
	})
	wantAttrs(t, req, map[string]any{
		"gen_ai.request.id": "chatcmpl-a", "gen_ai.request.model_name": "tiny", "gen_ai.request.temperature": 0.0, "gen_ai.request.top_p": 1.0,
		"gen_ai.request.max_tokens": int64(4), "gen_ai.request.n": int64(1), "gen_ai.usage.prompt_tokens": int64(16),
		"gen_ai.usage.completion_tokens": int64(4), "gen_ai.usage.cache_read.input_tokens": int64(0),
		"gen_ai.latency.time_in_queue": int64(0.5e6), "gen_ai.latency.time_in_model_prefill": int64(7e6), "gen_ai.latency.time_in_model_decode": int64(30e6),
		"gen_ai.latency.time_in_model_inference": int64(37e6), "gen_ai.latency.time_to_first_token": int64(9.5e6), "gen_ai.latency.e2e": int64(39.5e6),
		"gen_ai.engine.index": int64(0), "gen_ai.pd_role": "none", "gen_ai.request.preemption_count": nil,
		"inferspan.outcome": "completed", "inferspan.correlation": "id", "inferspan.finish_reason": "length", "inferspan.derived": nil, "inferspan.partial": nil,
	})
	if req.Start != wall(101) || req.End != wall(140.5) {
		t.Errorf("llm_request from %d to %d, want %d to %d", req.Start, req.End, wall(101), wall(140.5))
	}
	if entry.Start != wall(100) || entry.End != wall(142) {
		t.Errorf("entry from %d to %d", entry.Start, entry.End)
	}
	for i, want := range [][2]float64{{102.5, 103}, {103, 110}, {110, 140}} {
		if s := trees[0].Spans[2+i]; s.Start != wall(want[0]) || s.End != wall(want[1]) || s.ParentID != req.SpanID {
			t.Errorf("%s from %d to %d below %x", s.Name, s.Start-wallOff, s.End-wallOff, s.ParentID)
		}
	}
	if entry.Resource.Attrs[0].Value != int64(apiPID) || req.Resource.Attrs[0].Value != int64(corePID) {
		t.Errorf("resources %v and %v", entry.Resource.Attrs, req.Resource.Attrs)
	}
	if entry.Code != trace.StatusUnset || entry.ParentID != (trace.SpanID{}) {
		t.Errorf("entry status %d, parent %x", entry.Code, entry.ParentID)
	}

	for name, want := range map[string]float64{
		"vllm_iter_count": 4, "gen_ai_vllm_request_success": 1, "genai_llm_first_token_seconds": 0.0095, "gen_ai_server_time_per_output_token": 0.01,
		"gen_ai_server_request_duration": 0.0395, "gen_ai_vllm_prompt_tokens": 16, "gen_ai_vllm_generation_tokens": 4, "gen_ai_vllm_request_params_n": 1,
		"gen_ai_vllm_request_params_max_tokens": 4, "gen_ai_vllm_request_queue_time_seconds": 0.0005, "gen_ai_vllm_request_prefill_time_seconds": 0.007,
		"gen_ai_vllm_request_decode_time_seconds": 0.03, "gen_ai_vllm_request_inference_time_seconds": 0.037, "gen_ai_vllm_num_preemptions": 0,
		"gen_ai_vllm_num_requests_running": 1, "gen_ai_vllm_num_requests_waiting": 0, "gen_ai_vllm_kv_cache_usage_perc": 0.5,
		"gen_ai.server.request.duration": 0.0395, "inferspan_requests": 1,
	} {
		if got := point(t, m, name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := point(t, m, "genai_llm_usage_tokens", "input", "LLM", "tiny", "custom_entry"); got != 16 {
		t.Errorf("input tokens %v", got)
	}
	if got := point(t, m, "genai_llm_usage_tokens", "output"); got != 4 {
		t.Errorf("output tokens %v", got)
	}
	for _, f := range m.Families {
		if f.Name == "gen_ai_vllm_prefix_cache_queries" {
			t.Error("prefix cache counters exported although the engine reported none")
		}
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
