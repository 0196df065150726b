package correlate

import (
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

func (s *script) peek(t float64, id string, output int64, edit ...func(*signal.RequestPeeked)) *script {
	p := &signal.RequestPeeked{At: at(t), State: signal.RequestRunning, Output: signal.Some(output), Preemptions: signal.Some[int64](0),
		Request: signal.RequestAdded{Core: testCore, ID: id + "-x", ExternalID: id, ResponseID: id, Arrival: wallT(50), PromptTokens: signal.Some[int64](16),
			Param: signal.Param{MaxTokens: signal.Some[int64](9), HasStop: false}}}
	for _, e := range edit {
		e(p)
	}
	return s.put(p)
}

func (s *script) lora(on bool) *script {
	return s.put(&signal.EngineConfig{At: at(10), Core: testCore, LoRA: signal.Some(on)})
}

func TestPeeked(t *testing.T) {
	queued := func(p *signal.RequestPeeked) {
		p.Events = []signal.EngineEvent{{Kind: signal.EventQueued, At: at(51)}, {Kind: signal.EventScheduled, At: at(60)}}
	}
	for _, c := range []struct {
		name  string
		build func() *script
		want  map[string]any
	}{
		{"waiting: as good as seen from the beginning", func() *script {
			return newScript().peek(100, "a", 0, func(p *signal.RequestPeeked) {
				p.State, p.Events = signal.RequestWaiting, []signal.EngineEvent{{Kind: signal.EventQueued, At: at(51)}}
			}).
				step(110, out("a", 1, started(51, 105))).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.latency.time_in_queue": int64(54e6), "gen_ai.latency.time_in_model_prefill": int64(5e6), "gen_ai.latency.e2e": int64(70.5e6),
			"gen_ai.latency.time_to_first_token": int64(60.5e6), "gen_ai.usage.completion_tokens": int64(2), "gen_ai.request.max_tokens": int64(9), "inferspan.partial": nil, "inferspan.derived": nil}},
		{"in its prefill", func() *script {
			return newScript().peek(100, "a", 0, queued).step(110, out("a", 1, started(51, 60))).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.latency.time_in_queue": int64(9e6), "gen_ai.latency.time_in_model_prefill": int64(50e6), "inferspan.partial": nil}},
		{"in its decode: counts go on from there", func() *script {
			return newScript().peek(100, "a", 5).step(110, out("a", 1)).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.usage.completion_tokens": int64(7), "gen_ai.latency.e2e": int64(70.5e6), "gen_ai.latency.time_in_queue": nil, "gen_ai.latency.time_to_first_token": nil,
			"gen_ai.latency.time_in_model_decode": nil, "gen_ai.request.id": "a", "inferspan.partial": []string{"outputs"}, "inferspan.derived": nil}},
		{"outputs come before the peek", func() *script {
			return newScript().step(90, out("a", 1)).step(99, out("a", 2)).step(101, out("a", 1)).peek(100, "a", 7).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.usage.completion_tokens": int64(9), "inferspan.partial": []string{"outputs"}}},
		{"an output is on its way during the look", func() *script {
			return newScript().step(90, out("a", 1)).peek(100, "a", 7, func(p *signal.RequestPeeked) { p.Preemptions = signal.Some[int64](2) }).
				step(99, out("a", 1, func(o *signal.Output) {
					o.Events = []signal.EngineEvent{{Kind: signal.EventPreempted, At: at(92)}, {Kind: signal.EventScheduled, At: at(95)}}
				})).step(101, out("a", 1)).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.usage.completion_tokens": int64(9), "gen_ai.request.preemption_count": int64(2), "inferspan.partial": []string{"outputs"}}},
		{"too long before", func() *script {
			s := newScript()
			for i := range 20 {
				s.step(101+float64(i), out("a", 1))
			}
			return s.peek(100, "a", 7).step(130, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.usage.completion_tokens": nil, "gen_ai.request.id": "a"}},
		{"preempted before and after", func() *script {
			return newScript().peek(100, "a", 5, func(p *signal.RequestPeeked) {
				p.State, p.Preemptions, p.Events = signal.RequestPreempted, signal.Some[int64](3), []signal.EngineEvent{{Kind: signal.EventPreempted, At: at(95)}}
			}).step(110, out("a", 1, func(o *signal.Output) {
				o.Events = []signal.EngineEvent{{Kind: signal.EventPreempted, At: at(95)}, {Kind: signal.EventPreempted, At: at(102)}, {Kind: signal.EventScheduled, At: at(105)}}
			}, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.preemption_count": int64(4), "gen_ai.usage.completion_tokens": int64(6)}},
		{"seen arriving before", func() *script {
			return newScript().add(49, 51, "a", func(a *signal.RequestAdded) { a.Arrival = wallT(49) }).peek(100, "a", 0).step(110, out("a", 1, started(51, 60), finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.latency.e2e": int64(61.5e6), "inferspan.partial": nil, "gen_ai.usage.completion_tokens": int64(1)}},
		{"its first output is lost", func() *script {
			return newScript().peek(100, "a", 0, queued).step(110, out("b", 1, started(1, 2))).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.latency.time_in_model_prefill": nil, "inferspan.partial": []string{"outputs"}}},
		{"twice", func() *script {
			return newScript().peek(100, "a", 5).step(110, out("a", 1)).peek(111, "a", 6).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.usage.completion_tokens": int64(7)}},
		{"statistics off", func() *script {
			return newScript().peek(100, "a", 0).iterate(5, 101, 109.9, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd))).step(110, out("a", 1)).step(120, out("a", 1, finished(signal.FinishStop, "stop"))).silently()
		}, map[string]any{"gen_ai.latency.time_in_queue": nil, "gen_ai.latency.time_in_model_prefill": int64(9e6), "gen_ai.latency.time_to_first_token": int64(60.5e6), "inferspan.partial": nil,
			"inferspan.derived": []string{"gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_inference"}}},
		{"part of a program, seen after its first steps: how much came after the look is not known", func() *script {
			s := newScript()
			s.iterate(5, 90, 99.9, reqs(in("a", 16, 0, signal.StepNew, signal.StepPhaseUnknown))).peek(105, "a", 1).iterate(6, 110, 119.9, reqs(in("a", 1, 16, signal.StepRunning, signal.StepDecode)))
			return s.put(&signal.RequestPeeked{At: at(125), Request: signal.RequestAdded{Core: testCore, ID: "a-x"}, State: signal.RequestFinished})
		}, map[string]any{"gen_ai.usage.completion_tokens": nil, "inferspan.outcome": "completed"}},
		{"a program's requests are no longer seen beginning", func() *script {
			change := func(t float64, active bool, reason string) *signal.ProbeChange {
				return &signal.ProbeChange{At: at(t), Engine: 1, PID: corePID, Probe: signal.DetailArrivals, Active: active, Reason: reason}
			}
			return newScript().put(change(1, true, "")).put(change(80, false, "hit too often")).peek(100, "a", 0).
				iterate(5, 101, 109.9, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd))).step(110, out("a", 1, finished(signal.FinishStop, "stop"))).silently()
		}, map[string]any{"gen_ai.latency.time_in_queue": nil, "gen_ai.latency.time_in_model_prefill": int64(9e6),
			"inferspan.unavailable": []string{"gen_ai.latency.time_in_queue: the probes were taken out: hit too often"}}},
		{"an adapter is asked for by its own name", func() *script {
			return newScript().peek(100, "a", 5, func(p *signal.RequestPeeked) { p.Request.Adapter = "sql" }).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.model_name": "sql"}},
		{"asked for an adapter maybe", func() *script {
			return newScript().lora(true).peek(100, "a", 5, func(p *signal.RequestPeeked) { p.Request.AdapterUnknown = true }).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.model_name": nil, "gen_ai.request.id": "a", "inferspan.unavailable": []string{"gen_ai.request.model_name: whether it asked for an adapter was not seen"}}},
		{"asked for no adapter", func() *script {
			return newScript().lora(true).peek(100, "a", 5).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.model_name": "tiny", "inferspan.unavailable": nil}},
		{"known by its outputs, with adapters", func() *script {
			return newScript().lora(true).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.model_name": nil, "inferspan.unavailable": []string{"gen_ai.request.model_name: whether it asked for an adapter was not seen"}}},
		{"known by its outputs, without adapters", func() *script {
			return newScript().lora(false).step(120, out("a", 1, finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.model_name": "tiny", "inferspan.unavailable": nil}},
		{"begun before the look, which says the rest", func() *script {
			return newScript().add(50, 51, "a", func(a *signal.RequestAdded) { a.Outline, a.Param = true, signal.Param{} }).
				peek(100, "a", 0, func(p *signal.RequestPeeked) { p.Request.Arrival = 0 }).step(110, out("a", 1, started(51, 60), finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.max_tokens": int64(9), "gen_ai.latency.e2e": int64(60.5e6), "inferspan.partial": nil, "inferspan.unavailable": nil}},
		{"over before a look", func() *script {
			return newScript().add(50, 51, "a", func(a *signal.RequestAdded) { a.Outline, a.Param = true, signal.Param{} }).step(110, out("a", 1, started(51, 60), finished(signal.FinishStop, "stop")))
		}, map[string]any{"gen_ai.request.max_tokens": nil, "inferspan.unavailable": []string{"gen_ai.request.temperature: it ended before it was looked at", "gen_ai.request.top_p: it ended before it was looked at",
			"gen_ai.request.max_tokens: it ended before it was looked at", "gen_ai.request.n: it ended before it was looked at"}}},
		{"a stop string in a program, seen late", func() *script {
			return newScript().add(50, 51, "a", func(a *signal.RequestAdded) { a.Param.HasStop = true }).step(110, out("a", 1, started(51, 60))).step(120, out("a", 1)).
				put(&signal.RequestAborted{At: at(900), Core: testCore, IDs: []string{"a-x"}, Late: true})
		}, map[string]any{"inferspan.outcome": "stop_string", "gen_ai.usage.completion_tokens": int64(2), "gen_ai.latency.time_in_model_decode": int64(10e6),
			"inferspan.derived": []string{"inferspan.outcome", "span.end", "gen_ai.usage.completion_tokens", "gen_ai.latency.e2e", "gen_ai.latency.time_in_model_decode", "gen_ai.latency.time_in_model_inference"}}},
		{"cut short in a program, seen late", func() *script {
			return newScript().add(50, 51, "a").step(110, out("a", 1, started(51, 60))).step(120, out("a", 1)).
				put(&signal.RequestAborted{At: at(900), Core: testCore, IDs: []string{"a-x"}, Late: true})
		}, map[string]any{"inferspan.outcome": "aborted", "gen_ai.usage.completion_tokens": int64(2), "gen_ai.latency.e2e": int64(70.1e6)}},
		{"statistics off, the first output before the peek", func() *script {
			return newScript().step(110, out("a", 1)).peek(100, "a", 0).step(120, out("a", 1, finished(signal.FinishStop, "stop"))).silently()
		}, map[string]any{"gen_ai.latency.time_to_first_token": int64(60.5e6), "gen_ai.latency.time_in_model_decode": int64(10e6), "gen_ai.usage.completion_tokens": int64(2), "inferspan.partial": nil}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := NewOptions()
			o.Precision = 2
			trees, m := run(t, o, c.build().put(&signal.Detach{At: at(9000)}).sig)
			var q *trace.Span
			for _, s := range find(trees, "llm_request") {
				if s.Attr("inferspan.request.internal_id") == "a-x" {
					if q != nil {
						t.Fatal("exported twice")
					}
					q = s
				}
			}
			wantAttrs(t, q, c.want)
			for _, tr := range trees {
				wellFormed(t, tr)
				conforms(t, tr, o)
			}
			metricsConform(t, m)
			n := 0
			for _, e := range q.Events {
				if e.Name == "WAIT" {
					n++
				}
			}
			if n > 1 {
				t.Errorf("%d WAIT events", n)
			}
		})
	}
}

// The configuration is part of the core's resource, whatever comes first.
func TestEngineConfig(t *testing.T) {
	cfg := &signal.EngineConfig{At: at(2), Core: testCore, MaxSeqs: signal.Some[int64](128), PrefixCaching: signal.Some(true), SpecMethod: signal.Some("")}
	facts := newScript().sig[1]
	for _, list := range [][]signal.Signal{{cfg}, {cfg, facts}, {cfg, cfg, facts, facts}} {
		s := newScript()
		s.sig = append(s.sig, list...)
		trees, _ := run(t, NewOptions(), append(s.sig, newScript().chat(100, 7, "chatcmpl-a").sig[2:]...))
		want := []trace.Attr{{Key: "inferspan.engine.max_num_seqs", Value: int64(128)}, {Key: "inferspan.engine.prefix_caching", Value: true}, {Key: "process.pid", Value: int64(corePID)}, {Key: "service.name", Value: "vllm"}}
		if got := one(t, trees, "llm_request").Resource.Attrs; !slices.Equal(got, want) {
			t.Errorf("resource %v", got)
		}
		if got := one(t, trees, "chat tiny").Resource.Attrs; len(got) != 2 {
			t.Errorf("resource of the API server %v", got)
		}
	}
	c := New(NewOptions())
	var res []*trace.Resource
	for range 3 {
		for _, x := range []signal.Signal{newScript().sig[0], facts, cfg} {
			c.Put(x, nil)
		}
		res = append(res, c.engine(1).resource(corePID))
	}
	if res[1] != res[0] || res[2] != res[0] {
		t.Error("a resource that has not changed is another one")
	}
}

func TestPeekOfWhatIsOver(t *testing.T) {
	s := newScript().chat(50, 7, "chatcmpl-a").peek(60, "chatcmpl-a", 3).put(&signal.Detach{At: at(200)})
	trees, _ := run(t, NewOptions(), s.sig)
	one(t, trees, "llm_request")
}

// What the engine reports itself goes before what a look at it gives.
func TestGaugeSources(t *testing.T) {
	state := &signal.EngineState{At: at(50), Core: testCore, Running: signal.Some[int64](9), Waiting: signal.Some[int64](8), KVUsage: signal.Some(0.9)}
	c := New(NewOptions())
	put := func(s signal.Signal) { c.Put(s, func(*trace.Tree) {}) }
	sources := func() (n int) {
		for _, f := range c.Metrics().Families {
			if f.Name == "inferspan_value_source" {
				n = len(f.Points)
			}
		}
		return n
	}
	for _, x := range newScript().sig {
		put(x)
	}
	put(state)
	if got := point(t, c.Metrics(), "gen_ai_vllm_num_requests_running"); got != 9 || sources() != 3 {
		t.Errorf("running %v, %d sources", got, sources())
	}
	for _, x := range newScript().step(60, out("a", 1)).sig {
		put(x)
	}
	put(state)
	if got := point(t, c.Metrics(), "gen_ai_vllm_num_requests_running"); got != 1 || sources() != 0 {
		t.Errorf("running %v, %d sources", got, sources())
	}
	put(&signal.ProcessExit{At: at(70), Engine: 1, PID: corePID})
	for _, f := range c.Metrics().Families {
		if f.Name == "gen_ai_vllm_num_requests_running" {
			t.Error("a core that has ended has a state")
		}
	}
}

func TestGaugesBySteps(t *testing.T) {
	s := newScript().iterate(5, 101, 109.9, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd)), func(s *signal.Step) { s.Waiting = signal.Some[int64](3) })
	_, m := run(t, NewOptions(), s.sig)
	for name, want := range map[string]float64{"gen_ai_vllm_num_requests_running": 1, "gen_ai_vllm_num_requests_waiting": 3, "gen_ai_vllm_kv_cache_usage_perc": 0.25} {
		if got := point(t, m, name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
		point(t, m, "inferspan_value_source", name, "steps")
	}
}

func TestProbeChanges(t *testing.T) {
	change := func(t float64, name string, active bool, reason string) *signal.ProbeChange {
		return &signal.ProbeChange{At: at(t), Engine: 1, PID: corePID, Probe: name, Active: active, Reason: reason}
	}
	s := newScript()
	for _, d := range []string{signal.DetailSteps, signal.DetailTokenize, signal.DetailDetokenize} {
		s.put(change(1, d, true, ""))
	}
	s.put(change(1, "kv_transfer", false, "no connector"))
	s.put(&signal.Detokenized{At: at(90), Engine: 1, PID: apiPID, Duration: 1000, Tokens: 10})
	s.put(&signal.Tokenized{At: at(101), Engine: 1, PID: apiPID, Duration: 5000, Tokens: signal.Some[int64](40)})
	s.sig = append(s.sig, chunked().sig[2:]...)
	for _, d := range []string{signal.DetailSteps, signal.DetailTokenize, signal.DetailDetokenize} {
		s.put(change(165, d, false, "over budget"))
	}
	later := newScript().chat(200, 8, "chatcmpl-b").silently()
	s.sig = append(s.sig, later.sig[2:]...)
	s.put(change(300, signal.DetailSteps, true, ""))
	o := NewOptions()
	o.Steps = StepsRefs
	trees, _, m, c := collect(t, o, s.sig)
	q := find(trees, "llm_request")
	if len(q) != 2 {
		t.Fatalf("%d requests", len(q))
	}
	wantAttrs(t, q[0], map[string]any{"inferspan.steps.count": int64(6), "gen_ai.latency.time_in_tokenize": int64(5000), "gen_ai.latency.time_in_detokenize": int64(400), "inferspan.unavailable": nil})
	wantAttrs(t, q[1], map[string]any{"inferspan.steps.count": nil, "gen_ai.latency.time_in_tokenize": nil, "gen_ai.latency.time_in_detokenize": nil,
		"inferspan.unavailable": []string{"inferspan.steps.count: the probes were taken out: over budget", "gen_ai.latency.time_in_tokenize: the probes were taken out: over budget",
			"gen_ai.latency.time_in_detokenize: the probes were taken out: over budget"}})
	metricsConform(t, m)
	if n := point(t, m, "inferspan_probe_changes", "steps", "active"); n != 2 {
		t.Errorf("%v changes", n)
	}
	var text []string
	for _, n := range c.Notes() {
		text = append(text, n.Text)
	}
	want := []string{"detail kv_transfer not seen in process 200: no connector", "detail steps no longer seen in process 200: over budget", "detail tokenize no longer seen in process 200: over budget",
		"detail detokenize no longer seen in process 200: over budget", "detail steps seen again in process 200"}
	if !slices.Equal(text, want) {
		t.Errorf("notes\n%s\nwant\n%s", strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
	for i := range 1000 {
		c.Put(change(400, signal.DetailSteps, i%2 == 0, "again"), nil)
	}
	if len(c.Notes()) > maxNotes {
		t.Error("notes without bound")
	}
}
