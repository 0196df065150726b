package correlate

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// in is a request's part in a step.
func in(id string, tokens, computed int64, entry signal.StepEntry, phase signal.StepPhase) signal.StepRequest {
	return signal.StepRequest{ID: []byte(id + "-x"), Tokens: tokens, Computed: signal.Some(computed), Entry: entry, Phase: phase}
}

// iterate puts a step of the scheduler.
func (s *script) iterate(number int64, schedule, update float64, reqs []signal.StepRequest, edit ...func(*signal.Step)) *script {
	st := &signal.Step{Core: testCore, Number: signal.Some(number), Schedule: at(schedule), Update: at(update), Requests: reqs, PreemptedKnown: true,
		Running: signal.Some(int64(len(reqs))), Waiting: signal.Some[int64](0), Blocks: signal.Some[int64](100), FreeBlocks: signal.Some[int64](60), FreeAfter: signal.Some[int64](75)}
	total := int64(0)
	for _, q := range reqs {
		total += q.Tokens
	}
	st.Tokens = signal.Some(total)
	for _, e := range edit {
		e(st)
	}
	return s.put(st)
}

func reqs(q ...signal.StepRequest) []signal.StepRequest { return q }

// silently removes from a script what the engine sends with its statistics on.
func (s *script) silently() *script {
	for _, x := range s.sig {
		if o, ok := x.(*signal.StepOutput); ok {
			o.Stats = nil
			for i := range o.Outputs {
				o.Outputs[i].Events = nil
			}
		}
	}
	return s
}

// chunked is a request of 40 prompt tokens in chunks of 16, then 3 decode steps.
func chunked() *script {
	s := newScript().begin(100, 7, "/v1/chat/completions").
		add(101, 102, "chatcmpl-a", func(a *signal.RequestAdded) { a.PromptTokens = signal.Some[int64](40) }).
		iterate(11, 103, 109, reqs(in("chatcmpl-a", 16, 0, signal.StepNew, signal.StepPrefillChunk))).
		iterate(12, 109.5, 119, reqs(in("chatcmpl-a", 16, 16, signal.StepRunning, signal.StepPrefillChunk))).
		iterate(13, 119.5, 129.9, reqs(in("chatcmpl-a", 8, 32, signal.StepRunning, signal.StepPrefillEnd))).
		step(130, out("chatcmpl-a", 1, started(102.5, 103.001)))
	for i := range 3 {
		t := 131 + 10*float64(i)
		s.iterate(14+int64(i), t, t+8.9, reqs(in("chatcmpl-a", 1, 40+int64(i), signal.StepRunning, signal.StepDecode)))
		o := out("chatcmpl-a", 1)
		if i == 2 {
			finished(signal.FinishLength, "length")(&o)
		}
		s.step(t+9, o)
	}
	return s.endHTTP(162, 7, 200, "chatcmpl-a", signal.OutcomeComplete)
}

func collect(t *testing.T, o Options, sig []signal.Signal) (trees []*trace.Tree, steps []trace.Step, m metric.Snapshot, c *Correlator) {
	t.Helper()
	c = New(o)
	for _, s := range sig {
		c.Put(s, func(tr *trace.Tree) {
			if len(tr.Spans) > 0 {
				trees = append(trees, tr)
			}
			steps = append(steps, tr.Steps...)
		})
	}
	return trees, steps, c.Metrics(), c
}

func TestStepLevels(t *testing.T) {
	refs := []string{"inferspan.steps.first", "inferspan.steps.last", "inferspan.steps.count", "inferspan.steps.prefill_tokens"}
	o := NewOptions()
	off, steps, _, _ := collect(t, o, chunked().sig)
	if len(steps) != 0 || len(find(off, "inferspan.prefill_chunk")) != 0 {
		t.Errorf("%d step records and %d chunks that nobody asked for", len(steps), len(find(off, "inferspan.prefill_chunk")))
	}
	plain := chunked()
	plain.sig = slices.DeleteFunc(plain.sig, func(s signal.Signal) bool { _, ok := s.(*signal.Step); return ok })
	without, _, _, _ := collect(t, o, plain.sig)
	if !reflect.DeepEqual(off, without) {
		t.Error("at level 0 a request with steps differs from one without")
	}
	o.Steps = StepsRefs
	trees, _, _, _ := collect(t, o, chunked().sig)
	wantAttrs(t, one(t, trees, "llm_request"), map[string]any{refs[0]: int64(11), refs[1]: int64(16), refs[2]: int64(6), refs[3]: []int64{16, 16, 8}, "inferspan.derived": nil})
	if len(find(trees, "inferspan.prefill_chunk")) != 0 {
		t.Error("chunks at level 1")
	}
	for i, s := range trees[0].Spans { // the documented attributes are the same
		s.Attrs = slices.DeleteFunc(slices.Clone(s.Attrs), func(a trace.Attr) bool { return slices.Contains(refs, a.Key) })
		if !reflect.DeepEqual(s, off[0].Spans[i]) {
			t.Errorf("%s differs: %v, %v", s.Name, s, off[0].Spans[i])
		}
	}
	o.Steps = StepsSpans
	trees, _, _, _ = collect(t, o, chunked().sig)
	prefill, chunks := one(t, trees, "prefill"), find(trees, "inferspan.prefill_chunk")
	if len(chunks) != 3 {
		t.Fatalf("%d chunks", len(chunks))
	}
	for i, want := range [][4]float64{{103.001, 109, 16, 0}, {109.5, 119, 16, 16}, {119.5, 129.9, 8, 32}} {
		k := chunks[i]
		if k.ParentID != prefill.SpanID || k.Start != wall(want[0]) || k.End != wall(want[1]) {
			t.Errorf("chunk %d from %d to %d", i, k.Start-wallOff, k.End-wallOff)
		}
		wantAttrs(t, k, map[string]any{"inferspan.step.number": int64(11 + i), "inferspan.step.tokens": int64(want[2]), "inferspan.step.computed_tokens": int64(want[3])})
	}
	for _, tr := range trees {
		wellFormed(t, tr)
		conforms(t, tr, o)
	}
}

func TestPrefillEvents(t *testing.T) {
	o := NewOptions()
	o.Precision = 2
	trees, _, _, _ := collect(t, o, chunked().sig)
	var got []string
	for _, e := range one(t, trees, "llm_request").Events {
		n := int64(0)
		for _, a := range e.Attrs {
			if a.Key == "gen_ai.token.count" {
				n = a.Value.(int64)
			}
		}
		got = append(got, fmt.Sprintf("%s@%v:%d", e.Name, float64(e.Time-wallOff)/1e6, n))
	}
	want := []string{"WAIT@102.5:0", "PREFILL@109:0", "PREFILL@119:0", "PREFILL@130:1", "DECODE@140:1", "DECODE@150:1", "DECODE@160:1"}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func TestStepRecords(t *testing.T) {
	o := NewOptions()
	o.StepRecords = true
	s := chunked()
	s.iterate(20, 200, 210, reqs(in("b", 4, 0, signal.StepNew, signal.StepPrefillEnd), in("c", 1, 9, signal.StepRunning, signal.StepDecode), in("d", 5, 0, signal.StepResumed, signal.StepRecompute)),
		func(s *signal.Step) { s.Preempted = [][]byte{[]byte("e-x")} }).
		iterate(21, 205, 220, nil, func(s *signal.Step) { s.Detail, s.Partial, s.Update = signal.StepNoEnd, true, 0 })
	_, steps, m, _ := collect(t, o, s.sig)
	if len(steps) != 8 {
		t.Fatalf("%d steps", len(steps))
	}
	if f := steps[0]; f.Number != (trace.Int{V: 11, OK: true}) || f.Start != wall(103) || f.End != wall(109) || f.Gap.OK || f.Requests[0].ID != "chatcmpl-a-x" || f.Requests[0].RequestID != "chatcmpl-a" || f.Requests[0].Kind != trace.StepPrefillChunk {
		t.Errorf("first step %+v", f)
	}
	if f := steps[1]; f.Gap != (trace.Int{V: 0.5e6, OK: true}) || f.Idle {
		t.Errorf("second step %+v", f)
	}
	if f := steps[6]; f.Gap.OK || len(f.Requests) != 3 || f.Requests[2].Kind != trace.StepResumed || !slices.Equal(f.Preempted, []string{"e-x"}) || f.Requests[0].RequestID != "" {
		t.Errorf("step after missed ones %+v", f)
	}
	if f := steps[7]; f.Gap != (trace.Int{V: -5e6, OK: true}) || !f.Partial || f.End != 0 {
		t.Errorf("overlapping step %+v", f)
	}
	metricsConform(t, m)
	for name, want := range map[string]float64{"inferspan_steps_missed": 3, "inferspan_kv_blocks": 100, "inferspan_kv_blocks_used": 25} {
		if got := point(t, m, name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := point(t, m, "inferspan_step_tokens", "prefill"); got != 44 {
		t.Errorf("%v prefill tokens", got)
	}
	if got := point(t, m, "inferspan_step_tokens", "decode"); got != 4 {
		t.Errorf("%v decode tokens", got)
	}
}

// Gaps in which no request was there are the engine's idle time.
func TestStepIdle(t *testing.T) {
	o := NewOptions()
	o.StepRecords = true
	s := newScript().add(101, 102, "a").iterate(1, 103, 110, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd))).
		add(111, 112, "b").iterate(2, 113, 120, reqs(in("b", 16, 0, signal.StepNew, signal.StepPrefillEnd))).
		add(114, 115, "c").iterate(3, 121, 130, reqs(in("c", 16, 0, signal.StepNew, signal.StepPrefillEnd)))
	_, steps, m, _ := collect(t, o, s.sig)
	if !steps[1].Idle || steps[2].Idle || steps[1].Gap.V != 3e6 {
		t.Errorf("steps %+v", steps)
	}
	if got := point(t, m, "inferspan_step_gap_seconds"); got != 0.001 {
		t.Errorf("gaps of %v s, want those with requests only", got)
	}
}

// A request of which a step was missed has no references.
func TestStepsMissed(t *testing.T) {
	o := NewOptions()
	o.Steps = StepsRefs
	for name, spoil := range map[string]func(*script){
		"a step is missing": func(s *script) { s.sig = slices.Delete(s.sig, 5, 6) },
		"a step is partial": func(s *script) { s.sig[5].(*signal.Step).Partial = true },
		"the last one":      func(s *script) { s.drop(16) },
		"an end was not seen": func(s *script) {
			st := s.sig[5].(*signal.Step)
			st.Detail, st.Requests, st.Partial = signal.StepNoEnd, nil, true
		},
		"its first one": func(s *script) { s.drop(11) },
		"probes were taken out": func(s *script) {
			s.sig = slices.Insert(s.sig, 6, signal.Signal(&signal.ProbeChange{At: at(119.2), Engine: 1, PID: corePID, Probe: "steps"}))
		},
		"numbers are not known": func(s *script) {
			s.sig = slices.Insert(s.sig, 6, signal.Signal(&signal.Loss{At: at(119.2), Stage: "kernel", Lost: []signal.LossCount{{Reason: "ring_full", N: 1}}}))
			s.unnumber()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := chunked()
			spoil(s)
			trees, _, _, _ := collect(t, o, s.sig)
			wantAttrs(t, one(t, trees, "llm_request"), map[string]any{"inferspan.steps.first": nil, "inferspan.steps.count": nil, "gen_ai.latency.time_in_queue": int64(501_000)})
		})
	}
}

// With the statistics off, a step with chunks only has no end, and what was in it
// shows when the next one begins.
func TestSilentChunk(t *testing.T) {
	s := chunked().silently()
	st := s.sig[5].(*signal.Step)
	st.Detail, st.Update, st.Requests[0].Tokens = signal.StepNoEnd, 0, -1
	o := NewOptions()
	o.Precision, o.Steps, o.StepRecords = 2, StepsSpans, true
	trees, steps, m, _ := collect(t, o, s.sig)
	wantAttrs(t, one(t, trees, "llm_request"), map[string]any{"inferspan.steps.first": int64(11), "inferspan.steps.count": int64(6), "inferspan.steps.prefill_tokens": nil})
	if n := len(find(trees, "inferspan.prefill_chunk")); n != 2 {
		t.Errorf("%d chunks with a beginning and an end", n)
	}
	if f := steps[1]; f.End != 0 || f.Partial || f.Requests[0].Tokens.OK || steps[2].Gap.OK {
		t.Errorf("step %+v", f)
	}
	if got := point(t, m, "inferspan_step_tokens", "prefill"); got != 24 {
		t.Errorf("%v prefill tokens, want those of the steps that are known", got)
	}
	conforms(t, trees[0], o)
}

func TestReceipts(t *testing.T) {
	both := []string{"gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e"}
	for method, spoil := range map[string]func(*signal.Delivered){
		"receipt": func(d *signal.Delivered) { d.Stamped = false },
		"send":    func(d *signal.Delivered) { d.Key = 0 },
		"":        func(*signal.Delivered) {},
	} {
		s := newScript().chat(100, 7, "chatcmpl-a")
		for _, x := range s.sig {
			if d, ok := x.(*signal.Delivered); ok {
				spoil(d)
			}
		}
		trees, _ := run(t, NewOptions(), s.put(&signal.Clock{At: at(9000), Wall: wallT(9000)}).sig)
		q := one(t, trees, "llm_request")
		derived, _ := q.Attr("inferspan.derived").([]string)
		methods, _ := q.Attr("inferspan.derived.methods").([]string)
		for _, a := range both {
			if slices.Contains(derived, a) != (method != "") || (method != "" && !slices.Contains(methods, a+": "+method)) {
				t.Errorf("%s: %s: derived %v, methods %v", method, a, derived, methods)
			}
		}
		if slices.Contains(derived, "span.end") != (method == "send") {
			t.Errorf("%s: derived %v", method, derived)
		}
	}
}

func (s *script) drop(number int64) {
	s.sig = slices.DeleteFunc(s.sig, func(x signal.Signal) bool { st, ok := x.(*signal.Step); return ok && st.Number.V == number })
}

func (s *script) unnumber() {
	for _, x := range s.sig {
		if st, ok := x.(*signal.Step); ok {
			st.Number = signal.Opt[int64]{}
		}
	}
}

func TestSilentEngine(t *testing.T) {
	o := NewOptions()
	o.Precision = 2
	s := chunked().silently()
	i := slices.IndexFunc(s.sig, func(x signal.Signal) bool { st, ok := x.(*signal.Step); return ok && st.Number.V == 15 })
	s.sig[i].(*signal.Step).Preempted = [][]byte{[]byte("chatcmpl-a-x")}
	s.put(&signal.EngineConfig{At: at(1), Core: testCore, LogStats: signal.Some(false)})
	s.put(&signal.EngineState{At: at(200), Core: testCore, Running: signal.Some[int64](3), Waiting: signal.Some[int64](2), KVUsage: signal.Some(0.25), Blocks: signal.Some[int64](200), FreeBlocks: signal.Some[int64](150)})
	trees, _, m, _ := collect(t, o, s.sig)
	q := one(t, trees, "llm_request")
	wantAttrs(t, q, map[string]any{
		"gen_ai.latency.time_in_queue": int64(1e6), "gen_ai.latency.time_in_model_prefill": int64(27e6), "gen_ai.latency.time_in_model_decode": int64(30e6),
		"gen_ai.latency.time_in_model_inference": int64(57e6), "gen_ai.latency.time_to_first_token": int64(29.5e6), "gen_ai.usage.completion_tokens": int64(4),
		"gen_ai.request.preemption_count": int64(1), "inferspan.partial": nil,
		"inferspan.derived": []string{"gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_inference",
			"gen_ai.request.preemption_count", "event.WAIT", "event.PREEMPTED"},
		"inferspan.derived.methods": []string{"gen_ai.latency.time_in_queue: receipt_to_step", "gen_ai.latency.time_in_model_prefill: steps",
			"gen_ai.latency.time_in_model_inference: steps", "gen_ai.request.preemption_count: steps"},
	})
	wantAttrs(t, one(t, trees, "wait"), map[string]any{"inferspan.derived": []string{"span.start", "span.end"}})
	wantAttrs(t, one(t, trees, "prefill"), map[string]any{"inferspan.derived": []string{"span.start"}})
	wantAttrs(t, one(t, trees, "decode"), map[string]any{"inferspan.derived": nil})
	if e := q.Events[0]; e.Name != "WAIT" || e.Time != wall(102) {
		t.Errorf("first event %+v", e)
	}
	for _, tr := range trees {
		wellFormed(t, tr)
		conforms(t, tr, o)
	}
	metricsConform(t, m)
	for name, want := range map[string]float64{
		"gen_ai_vllm_request_queue_time_seconds": 0.001, "gen_ai_vllm_request_prefill_time_seconds": 0.027, "gen_ai_vllm_request_inference_time_seconds": 0.057,
		"gen_ai_vllm_num_preemptions": 1, "gen_ai_vllm_num_requests_running": 3, "gen_ai_vllm_num_requests_waiting": 2, "gen_ai_vllm_kv_cache_usage_perc": 0.25,
		"inferspan_kv_blocks": 200, "inferspan_kv_blocks_used": 50,
	} {
		if got := point(t, m, name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	point(t, m, "inferspan_value_source", "gen_ai_vllm_num_requests_running", "peek")
	point(t, m, "inferspan_value_source", "gen_ai_vllm_request_queue_time_seconds", "steps")
	for _, f := range m.Families {
		if f.Name == "gen_ai_vllm_prefix_cache_queries" || f.Name == "gen_ai_vllm_prefix_cache_hits" {
			t.Errorf("%s cannot be known", f.Name)
		}
	}
}

// An engine in the same process as its front end sends nothing.
func TestInProcessEngine(t *testing.T) {
	for name, end := range map[string]func(*script){
		"the scheduler lists it": func(s *script) {
			s.iterate(17, 170, 171, nil, func(s *signal.Step) { s.Finished = [][]byte{[]byte("chatcmpl-a-x")} })
		},
		"the core is empty": func(s *script) {
			s.put(&signal.EngineState{At: at(300), Core: testCore, Running: signal.Some[int64](0), Waiting: signal.Some[int64](0)})
		},
		"peeked as finished": func(s *script) {
			s.put(&signal.RequestPeeked{At: at(300), Request: signal.RequestAdded{Core: testCore, ID: "chatcmpl-a-x"}, State: signal.RequestFinished})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := chunked()
			s.sig = slices.DeleteFunc(s.sig, func(x signal.Signal) bool {
				switch x.(type) {
				case *signal.StepOutput, *signal.Delivered, *signal.RequestAdded, *signal.ExchangeBegin, *signal.ExchangeEnd:
					return true
				}
				return false
			})
			i := slices.IndexFunc(s.sig, func(x signal.Signal) bool { st, ok := x.(*signal.Step); return ok && st.Number.V == 12 })
			s.sig = slices.Insert(s.sig, i, signal.Signal(&signal.RequestPeeked{At: at(109.2), State: signal.RequestRunning, Output: signal.Some[int64](0),
				Request: signal.RequestAdded{Core: testCore, ID: "chatcmpl-a-x", ExternalID: "0", Arrival: wallT(101), PromptTokens: signal.Some[int64](40)}}))
			end(s)
			for i := range int64(enough) { // others, so that it is clear that there are no messages
				at := 400 + 10*float64(i)
				s.iterate(30+i, at, at+1, reqs(in("b", 1, 9, signal.StepRunning, signal.StepDecode)))
			}
			o := NewOptions()
			o.Precision, o.Steps = 2, StepsSpans
			trees, _, m, _ := collect(t, o, s.sig)
			q := one(t, trees, "llm_request")
			wantAttrs(t, q, map[string]any{
				"gen_ai.request.id": "0", "gen_ai.latency.time_in_queue": nil, "gen_ai.latency.time_in_model_prefill": int64(26.9e6), "gen_ai.latency.time_in_model_decode": int64(30e6),
				"gen_ai.latency.time_in_model_inference": int64(56.9e6), "gen_ai.latency.time_to_first_token": int64(28.9e6), "gen_ai.latency.e2e": int64(58.9e6),
				"gen_ai.usage.completion_tokens": int64(4), "gen_ai.usage.prompt_tokens": int64(40), "inferspan.outcome": "completed", "inferspan.finish_reason": nil,
				"inferspan.steps.count": int64(6), "inferspan.partial": nil,
			})
			derived := q.Attr("inferspan.derived").([]string)
			for _, a := range []string{"gen_ai.latency.time_in_model_decode", "gen_ai.usage.completion_tokens", "inferspan.outcome", "gen_ai.latency.e2e", "span.end"} {
				if !slices.Contains(derived, a) {
					t.Errorf("%s is not marked", a)
				}
			}
			if q.Start != wall(101) || q.End != wall(159.9) || len(find(trees, "inferspan.prefill_chunk")) != 3 {
				t.Errorf("from %d to %d", q.Start-wallOff, q.End-wallOff)
			}
			for _, tr := range trees {
				wellFormed(t, tr)
				conforms(t, tr, o)
			}
			metricsConform(t, m)
			for name, want := range map[string]float64{"vllm_iter_count": 4 + enough, "gen_ai_vllm_generation_tokens": 4, "gen_ai_vllm_prompt_tokens": 40} {
				if got := point(t, m, name); got != want {
					t.Errorf("%s = %v, want %v", name, got, want)
				}
				point(t, m, "inferspan_value_source", name, "steps")
			}
			for _, f := range m.Families {
				if f.Name == "gen_ai_vllm_request_success" || f.Name == "gen_ai_vllm_request_queue_time_seconds" {
					t.Errorf("%s cannot be known", f.Name)
				}
			}
		})
	}
}

// Steps that are made between the first look at a core and the first step seen are
// counted, and requests that may lack something by that say so.
func TestStepsBeforeProbes(t *testing.T) {
	for _, c := range []struct {
		name   string
		base   signal.Opt[int64] // latest step at the first look
		first  int64             // step seen
		since  float64           // when the probes were in
		missed float64
		why    []string
	}{
		{"none", signal.Some[int64](10), 11, 90, 0, nil},
		{"one was under way", signal.Some[int64](11), 11, 90, 0, nil},
		{"two before the request, one of it", signal.Some[int64](8), 12, 105, 3, []string{"inferspan.steps.count: it began before the probes were in",
			"gen_ai.latency.time_in_queue: it began before the probes were in", "gen_ai.latency.time_in_model_prefill: it began before the probes were in",
			"gen_ai.latency.time_in_model_inference: it began before the probes were in"}},
		{"another count", signal.Some[int64](1 << 30), 11, 90, 0, nil},
		{"not known", signal.Opt[int64]{}, 12, 105, 0, []string{"inferspan.steps.count: it began before the probes were in",
			"gen_ai.latency.time_in_queue: it began before the probes were in", "gen_ai.latency.time_in_model_prefill: it began before the probes were in",
			"gen_ai.latency.time_in_model_inference: it began before the probes were in"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := chunked().silently()
			for n := int64(11); n < c.first; n++ {
				s.drop(n)
			}
			s.sig = slices.Insert(s.sig, 2,
				signal.Signal(&signal.EngineConfig{At: at(49), Core: testCore, LogStats: signal.Some(false)}),
				signal.Signal(&signal.EngineState{At: at(50), Core: testCore, Step: c.base}))
			i := slices.IndexFunc(s.sig, func(x signal.Signal) bool { _, ok := x.(*signal.Step); return ok })
			s.sig = slices.Insert(s.sig, i, signal.Signal(&signal.ProbeChange{At: at(c.since), Engine: 1, PID: corePID, Probe: signal.DetailSteps, Active: true}))
			o := NewOptions()
			o.Steps = StepsRefs
			trees, _, m, cor := collect(t, o, s.sig)
			q := one(t, trees, "llm_request")
			var why any
			if c.why != nil {
				why = c.why
			}
			wantAttrs(t, q, map[string]any{"inferspan.unavailable": why})
			if got := point(t, m, "inferspan_steps_missed"); got != c.missed {
				t.Errorf("%v steps missed, want %v", got, c.missed)
			}
			var notes []string
			for _, n := range cor.Notes() {
				notes = append(notes, n.Text)
			}
			var want []string
			if c.missed > 0 {
				want = []string{fmt.Sprintf("steps of process 200 made before its probes were in, and not seen: %v", c.missed)}
			}
			if !slices.Equal(notes, want) {
				t.Errorf("notes %q, want %q", notes, want)
			}
			conforms(t, trees[0], o)
		})
	}
}
