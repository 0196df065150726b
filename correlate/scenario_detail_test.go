package correlate

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/signal"
)

// scenarioDetail are requests by how much of them is to be said.
var scenarioDetail = []scenario{
	{"precision 0", func(o *Options) { o.Precision = 0 }, func() *script { return newScript().chat(100, 7, "chatcmpl-a") }, func(t *testing.T, r result) {
		if len(r.trees[0].Spans) != 2 || len(r.requests()[0].Events) != 0 {
			t.Errorf("%d spans", len(r.trees[0].Spans))
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
}

// contentScript is a request whose prompt and answer were read.
func contentScript() *script {
	return newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Body.Messages = "[in]" }).
		add(101, 102, "chatcmpl-a", func(a *signal.RequestAdded) { a.Param.Logprobs = true }).
		step(110, out("chatcmpl-a", 2, started(102.5, 103), func(o *signal.Output) { o.Logprobs = []float64{-0.5, -1} }, finished(signal.FinishStop, "stop"))).
		endHTTP(112, 7, 200, "chatcmpl-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.Content = "[out]" })
}
