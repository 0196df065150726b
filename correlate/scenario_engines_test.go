package correlate

import (
	"fmt"
	"testing"

	"inferspan/correlate/signal"
)

// scenarioEngines are engines of several processes, and the parts they have.
var scenarioEngines = []scenario{
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
}

// pd is a request of an engine that has a role among servers apart for prefill and decode.
func pd(role string) *script {
	s := newScript().chat(100, 7, "chatcmpl-a")
	s.sig[1].(*signal.Engine).PDRole = role
	return s
}
