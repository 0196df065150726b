package correlate

import (
	"math"
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// TestSGLangSilent: where the client does not stream, the first token is there when the
// prefill has ended, at every level, and the gaps begin with what the front end gets.
func TestSGLangSilent(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, stream := range []bool{false, true} {
		s := newSGLang()
		s.added(2.5, id, func(a *signal.RequestAdded) { a.Stream = signal.Some(stream) })
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_waiting", 3.5, 4)
		s.stage(schPID, id, "prefill_forward", 4, 10)
		s.out(50.4, id, 50)
		s.times(51, id, 0, 0, 51, 0)
		s.out(71, id, 20, finishedLength)
		s.mark(schPID, id, "complete", 70, "", 0)
		s.times(71, id, 0, 0, 0, 71)
		trees, series := run(t, NewOptions(), s.sig)
		conforms(t, trees[0], NewOptions())
		first, decode := 0.009, 0.061
		if stream {
			first, decode = 0.050, 0.020
		}
		wantAttrs(t, one(t, trees, "Req aaaaaaaa"), map[string]any{
			semconv.AttrGenAILatencyTimeToFirstToken: first, semconv.AttrGenAILatencyTimeInModelDecode: decode,
		})
		for name, want := range map[string]float64{"gen_ai_server_time_to_first_token": first, "sglang_inter_token_latency_seconds": 0.020} {
			if got := point(t, series, name); math.Abs(got-want) > 1e-9 {
				t.Errorf("stream %v: %s = %v, want %v", stream, name, got, want)
			}
		}
	}
}

// TestSGLangLateEnd: a front end that is busy says long after the core when it had finished
// with a request, which counts with that all the same, once.
func TestSGLangLateEnd(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, late := range []float64{0.4, 1500, 9000} { // ms
		s := newSGLang()
		s.begin(1, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Exchange.PID = tokPID })
		s.added(2.5, id)
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_forward", 4, 10)
		s.out(10.2, id, 1)
		s.times(11, id, 0, 0, 11, 0)
		s.out(50, id, 1, finishedLength)
		s.mark(schPID, id, "complete", 49, "", 0)
		for now := 500.0; now < late; now += 500 { // others go on
			s.out(now, "bbbbbbbbbb", 1)
		}
		s.times(50+late, id, 0, 0, 0, 50+late)
		s.endHTTP(51+late, 7, 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.Exchange.PID = tokPID })
		_, series := run(t, NewOptions(), s.sig)
		for name, want := range map[string]float64{
			"num_requests_total": 1, "generation_tokens_total": 2, "gen_ai_server_request_duration": (49 + late) / 1e3,
			"gen_ai_server_time_per_output_token": (49 + late) / 2e3, "sglang_inter_token_latency_seconds": (39 + late) / 1e3,
		} {
			if got := point(t, series, name); math.Abs(got-want) > 1e-9 {
				t.Errorf("%v ms late: %s = %v, want %v", late, name, got, want)
			}
		}
	}
}

func TestSGLangMetrics(t *testing.T) {
	s := newSGLang()
	state := func(t float64, running, waiting, used int64) {
		s.put(&signal.EngineState{At: at(t), Core: sglCore, Running: signal.Some(running), Waiting: signal.Some(waiting),
			KVUsage: signal.Some(float64(used) / 1000), UsedTokens: signal.Some(used), Blocks: signal.Some[int64](1000), FreeBlocks: signal.Some(1000 - used), AcceptLength: signal.Some(2.5)})
	}
	state(50, 9, 9, 900)
	s.chat(100, 7, "aaaaaaaaaa", 4)
	state(1050, 2, 1, 100)
	state(2050, 4, 0, 200)
	_, m := run(t, NewOptions(), s.sig)
	for name, want := range map[string]float64{
		"sglang_num_running_reqs": 6, "sglang_num_queue_reqs": 1, "sglang_num_used_tokens": 300, "sglang_token_usage": 0.3,
		"sglang_gen_throughput": 4, "gen_ai_sglang_cache_hit_rate": 0, "sglang_spec_accept_length": 5, "sglang_log_count": 2,
		"prompt_tokens_total": 10, "generation_tokens_total": 4, "gen_ai_sglang_cached_tokens_total": 0, "num_requests_total": 1,
		"gen_ai_server_time_to_first_token": 0.0095, "gen_ai_server_time_per_output_token": 0.0396 / 4,
		"sglang_inter_token_latency_seconds": 0.0301, "gen_ai_server_request_duration": 0.0396,
		"inferspan_kv_blocks_used": 200, "inferspan_kv_blocks": 1000,
	} {
		if got := point(t, m, name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := point(t, m, "genai_llm_usage_tokens", "input"); got != 10 {
		t.Errorf("%v input tokens", got)
	}
	metricsConformTo(t, m, "sglang")
	for _, def := range semconv.Metrics {
		if def.Engine == "sglang" && !slices.Contains(names(m), def.Name) {
			t.Errorf("no series of %s", def.Name)
		}
	}
	for _, name := range names(m) {
		if strings.Contains(name, "vllm") {
			t.Errorf("%s of SGLang", name)
		}
	}
}

// fiveSteps are a request of five steps, the first of them a chunk of its prompt.
func fiveSteps(id string, tokens int, edit ...outEdit) *sglang {
	s := newSGLang()
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	for i := range 5 {
		st := &signal.Step{Core: sglCore, Number: signal.Some(int64(70 + i)), Schedule: at(4 + 10*float64(i)), Update: at(13 + 10*float64(i)),
			Tokens: signal.Some[int64](1), Blocks: signal.Some[int64](1000), FreeAfter: signal.Some[int64](900)}
		q := signal.StepRequest{ID: []byte(id), Tokens: 1, Entry: signal.StepRunning, Phase: signal.StepDecode}
		switch i {
		case 0:
			q.Tokens, q.Entry, q.Phase = 6, signal.StepNew, signal.StepPrefillChunk
		case 1:
			q.Tokens, q.Phase = 4, signal.StepPrefillEnd
		}
		st.Requests = []signal.StepRequest{q}
		s.put(st)
	}
	s.out(54, id, tokens, append(edit, finishedLength)...)
	s.times(55, id, 0, 0, 55, 55)
	return s
}

// TestSGLangDraftSteps: where drafts are checked a step gives any number of tokens, and the
// engine says how many steps there were.
func TestSGLangDraftSteps(t *testing.T) {
	checks := func(n int64) outEdit { return func(o *signal.Output) { o.Checks = signal.Some(n) } }
	for _, c := range []struct {
		name   string
		tokens int
		edit   []outEdit
		count  any
	}{
		{"none were checked", 4, nil, int64(5)},
		{"more tokens than steps, which nothing explains", 9, nil, nil},
		{"three checks", 9, []outEdit{checks(3)}, int64(5)},
		{"one more than was seen", 9, []outEdit{checks(4)}, nil},
		{"one fewer", 9, []outEdit{checks(2)}, nil},
	} {
		o := NewOptions()
		o.Steps = StepsRefs
		trees, _ := run(t, o, fiveSteps("aaaaaaaaaa", c.tokens, c.edit...).sig)
		q := &trees[0].Spans[0]
		if got := q.Attr("inferspan.steps.count"); got != c.count {
			t.Errorf("%s: %v steps, want %v", c.name, got, c.count)
		}
		if why := q.Attr("inferspan.unavailable"); (why == nil) != (c.count != nil) {
			t.Errorf("%s: %v", c.name, why)
		}
	}
}

// TestSGLangSteps: a client that does not stream gets its tokens in one output, after
// many steps; the step metrics are those of every engine.
func TestSGLangSteps(t *testing.T) {
	o := NewOptions()
	o.Steps = StepsRefs
	trees, m := run(t, o, fiveSteps("aaaaaaaaaa", 4).sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees", len(trees))
	}
	wantAttrs(t, &trees[0].Spans[0], map[string]any{
		"inferspan.partial": nil, "gen_ai.usage.completion_tokens": int64(4), "inferspan.steps.first": int64(70), "inferspan.steps.last": int64(74),
		"inferspan.steps.count": int64(5), "inferspan.steps.prefill_tokens": []int64{6, 4},
	})
	conforms(t, trees[0], o)
	metricsConformTo(t, m, "sglang")
	for name, want := range map[string]float64{"inferspan_step_duration_seconds": 0.045, "inferspan_step_requests": 5, "inferspan_kv_blocks_used": 100} {
		if got := point(t, m, name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

// TestSGLangUsage: the tokens used are those of the requests that the engine counts, when it
// counts them, whatever responses state and clients see.
func TestSGLangUsage(t *testing.T) {
	const path = "/v1/chat/completions"
	front := func(b *signal.ExchangeBegin) { b.Exchange.PID = tokPID }
	abort := finished(signal.FinishAbort, "abort")
	refused := func(o *signal.Output) {
		o.PromptTokens, o.CachedTokens, o.NumTokens = signal.Opt[int64]{}, signal.Opt[int64]{}, 0
		abort(o)
	}
	begin := func(s *sglang, t float64, id string) *sglang {
		s.added(t, id).times(t+0.1, id, t-1, t+0.1, 0, 0)
		return s
	}
	for _, c := range []struct {
		name    string
		play    func(*sglang)
		in, out float64
	}{
		{"response with usage", func(s *sglang) { s.chat(100, 7, "aaaaaaaaaa", 4) }, 10, 4},
		{"no exchange, just over", func(s *sglang) { s.engineRequest(100, "aaaaaaaaaa", 4) }, 10, 4},
		{"given up long before the engine notices", func(s *sglang) {
			s.begin(100, 7, path, front)
			begin(s, 102, "aaaaaaaaaa")
			s.endHTTP(110, 7, 0, "", signal.OutcomeDisconnect, func(e *signal.ExchangeEnd) { e.Exchange.PID = tokPID })
			for i := range 80 {
				s.out(150+50*float64(i), "aaaaaaaaaa", 10)
			}
			s.out(4200, "aaaaaaaaaa", 5, abort)
			s.times(4201, "aaaaaaaaaa", 0, 0, 150, 4201)
		}, 10, 805},
		{"health check", func(s *sglang) {
			s.added(102, "HEALTH_CHECK_9d").out(104, "HEALTH_CHECK_9d", 1, finished(signal.FinishLength, "length"))
			s.times(105, "HEALTH_CHECK_9d", 101, 102, 105, 105)
		}, 0, 0},
		{"taken out of the queue", func(s *sglang) { begin(s, 102, "aaaaaaaaaa").out(104, "aaaaaaaaaa", 0, refused) }, 0, 0},
		{"taken out of the queue after it had been put back", func(s *sglang) {
			begin(s, 102, "aaaaaaaaaa").out(104, "aaaaaaaaaa", 3).out(106, "aaaaaaaaaa", 0, refused)
		}, 0, 0},
		{"ended by an error before its first token", func(s *sglang) {
			begin(s, 102, "aaaaaaaaaa").out(104, "aaaaaaaaaa", 0, abort)
			s.times(105, "aaaaaaaaaa", 0, 0, 105, 105)
		}, 10, 0},
		{"three choices", func(s *sglang) {
			s.begin(100, 7, path, front, func(b *signal.ExchangeBegin) { b.Body.N = signal.Some[int64](3) })
			for i, id := range []string{"warm", "aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"} {
				s.added(102, id, func(a *signal.RequestAdded) { a.Param.N = signal.Some[int64](3) })
				s.times(102.1, id, 101, 102.1, 0, 0)
				s.out(110+float64(i), id, min(i, 1)*5, finished(signal.FinishLength, "length"))
				s.times(114, id, 0, 0, 114, 114)
			}
			s.endHTTP(120, 7, 200, "aaaaaaaaaa", signal.OutcomeComplete, func(e *signal.ExchangeEnd) {
				e.Exchange.PID, e.InputTokens, e.OutputTokens = tokPID, signal.Some[int64](10), signal.Some[int64](15)
			})
		}, 40, 15},
		{"embedding", func(s *sglang) {
			s.added(102, "aaaaaaaaaa", func(a *signal.RequestAdded) { a.Pooling = true }).out(104, "aaaaaaaaaa", 0, finished(signal.FinishStop, "stop"))
		}, 0, 0},
	} {
		s := newSGLang()
		c.play(s)
		for _, whole := range []bool{false, true} { // not exported yet, and all exported
			correlator := New(NewOptions())
			for _, x := range s.sig {
				correlator.Put(x, func(*trace.Tree) {})
			}
			if whole {
				correlator.Put(&signal.Detach{At: at(20_000)}, func(*trace.Tree) {})
			}
			m := correlator.Metrics()
			usage := func(kind string) (n float64) {
				for _, f := range m.Families {
					for _, p := range f.Points {
						if f.Name == semconv.MetricGenAILLMUsageTokens && slices.ContainsFunc(p.Labels, func(l metric.Label) bool { return l.Value == kind }) {
							n += p.Value
						}
					}
				}
				return n
			}
			if in, out := usage("input"), usage("output"); in != c.in || out != c.out {
				t.Errorf("%s, exported %v: %v and %v tokens, want %v and %v", c.name, whole, in, out, c.in, c.out)
			}
		}
	}
}
