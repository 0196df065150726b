package correlate

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// scenarioPartial are requests of which something was not seen, or not in order.
var scenarioPartial = []scenario{
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
}
