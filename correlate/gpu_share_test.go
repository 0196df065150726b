package correlate

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// boardAt is a look at the only GPU, which the core alone is on and which has used mj.
func (s *script) boardAt(t float64, mj int64, procs ...signal.GPUProcess) *script {
	if procs == nil {
		procs = []signal.GPUProcess{onGPU(corePID, -1)}
	}
	return s.put(&signal.GPUSamples{At: at(t), Samples: []signal.GPUSample{energySample("G", mj, procs...)}})
}

// shared is two requests: the prompt of a in one step, then the prompt of b beside a token
// of a, launched before the wait for the one before, then a token of each. energy has the
// GPU read at 90, 190 and 290 ms: 1 J each.
func shared(energy bool, edit ...func(*gpuScript)) *script {
	s := newScript()
	g := newGPU(s)
	for _, e := range edit {
		e(g)
	}
	if energy {
		s.boardAt(90, 1000)
	}
	s.add(94, 95, "a", func(a *signal.RequestAdded) { a.Param.HasStop = false }).add(94, 95, "b")
	g.mark(100, true).launch(40, 0, 101, 103)
	g.mark(104, true).launch(20, 0, 105, 106).wait(103.5, 106.5, 109).mark(110, false)
	s.iterate(11, 100, 110, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd))).
		step(110, out("a", 1, started(97, 100)))
	g.wait(106.2, 113.5, 119).mark(120, false)
	s.iterate(12, 104, 120, reqs(in("a", 1, 16, signal.StepRunning, signal.StepDecode), in("b", 6, 0, signal.StepNew, signal.StepPrefillEnd))).
		step(120, out("a", 1), out("b", 1, started(97, 104)))
	g.mark(184, true).launch(20, 0, 185, 186).wait(186.2, 187, 195).mark(196, false)
	s.iterate(13, 184, 196, reqs(in("a", 1, 17, signal.StepRunning, signal.StepDecode), in("b", 1, 6, signal.StepRunning, signal.StepDecode))).
		step(196, out("a", 1, finished(signal.FinishLength, "length")), out("b", 1, finished(signal.FinishLength, "length")))
	if energy {
		// The look at 190 ms is seen before the end of the step under way.
		k := slices.IndexFunc(s.sig, func(x signal.Signal) bool {
			w, ok := x.(*signal.GPUWait)
			return ok && w.At == at(195)
		})
		last := slices.Clone(s.sig[k:])
		s.sig = s.sig[:k]
		s.boardAt(190, 2000)
		s.sig = append(s.sig, last...)
		s.boardAt(290, 3000)
	}
	return s
}

func requestsOf(trees []*trace.Tree) map[string]*trace.Span {
	out := map[string]*trace.Span{}
	for _, s := range find(trees, "llm_request") {
		out[fmt.Sprint(s.Attr("gen_ai.request.id"))] = s
	}
	return out
}

// TestGPUTime: 8 ms for the first step, 10 from when it was done for the second, of which
// a has 1/7, and 10 ms for the last, of which each has half.
func TestGPUTime(t *testing.T) {
	end := signal.Signal(&signal.Detach{At: at(20000)})
	trees, m := run(t, NewOptions(), append(shared(false).sig, end))
	by := requestsOf(trees)
	method := []string{"inferspan.gpu.time: forward_pass, scheduled_tokens"}
	wantAttrs(t, by["a"], map[string]any{"inferspan.gpu.time": (8e6 + 1428571 + 5e6) / 1e9, "inferspan.gpu.energy": nil, "inferspan.unavailable": nil, "inferspan.derived.methods": method})
	wantAttrs(t, by["b"], map[string]any{"inferspan.gpu.time": (8571429 + 5e6) / 1e9, "inferspan.derived.methods": method})
	for _, tr := range trees {
		conforms(t, tr, NewOptions())
	}
	if got := point(t, m, "inferspan.gpu.engine.busy_time", "prefill", "forward_pass"); got != 0.016571429 {
		t.Errorf("prefill %v s", got)
	}
	if got := point(t, m, "inferspan.gpu.engine.busy_time", "decode", "forward_pass"); got != 0.011428571 {
		t.Errorf("decode %v s", got)
	}
	if got := point(t, m, "inferspan.gpu.engine.busy", "forward_pass"); math.Abs(got-0.028/19.899) > 1e-9 {
		t.Errorf("busy share %v", got)
	}

	// With graphs only, a step counts from its beginning.
	trees, _ = run(t, NewOptions(), append(shared(false, func(g *gpuScript) { g.point.Launches = false }).sig, end))
	wantAttrs(t, requestsOf(trees)["b"], map[string]any{"inferspan.gpu.time": (8571429 + 55e5) / 1e9, "inferspan.derived.methods": []string{"inferspan.gpu.time: forward_step, scheduled_tokens"}})
}

// TestGPUTimeLoose: where not all launches of a step are sure to be seen, it counts from its
// beginning.
func TestGPUTimeLoose(t *testing.T) {
	late := func(p *signal.GPUPoint) {
		if p.At >= at(113) {
			p.Epoch++
			p.Continues = 1
		}
	}
	for name, edit := range map[string]func(*script){
		"it changed what is counted in the second step": func(s *script) {
			for _, x := range s.sig {
				switch x := x.(type) {
				case *signal.GPUMark:
					late(&x.GPUPoint)
				case *signal.GPUWait:
					late(&x.GPUPoint)
				}
			}
		},
		"at the runtime": func(s *script) {
			s.sig = slices.Insert(s.sig, 2, signal.Signal(&signal.ProbeChange{At: at(80), Engine: 1, PID: corePID, Probe: signal.DetailForward, Active: true, Source: "all, runtime", Lacks: "some"}))
		},
	} {
		s := shared(false)
		edit(s)
		trees, _ := run(t, NewOptions(), append(s.sig, &signal.Detach{At: at(5000)}))
		for id, r := range requestsOf(trees) {
			if got := r.Attr("inferspan.derived.methods"); !reflect.DeepEqual(got, []string{"inferspan.gpu.time: forward_step, scheduled_tokens"}) {
				t.Errorf("%s: %s: %v", name, id, got)
			}
		}
	}
}

// TestGPUShareTakenOut: requests under way when the governor took the probes out say so.
func TestGPUShareTakenOut(t *testing.T) {
	for _, again := range []bool{false, true} {
		change := func(ms float64, active bool, reason string) signal.Signal {
			return &signal.ProbeChange{At: at(ms), Engine: 1, PID: corePID, Probe: signal.DetailForward, Active: active, Reason: reason}
		}
		s := newScript()
		s.put(change(80, true, ""))
		for _, x := range shared(false).sig {
			switch x := x.(type) {
			case *signal.GPUMark:
				if x.At >= at(150) {
					continue
				}
			case *signal.GPUWait:
				if x.At >= at(150) {
					continue
				}
			case *signal.Step:
				if x.Number.V == 13 {
					s.put(change(150, false, "calls cost too much"))
					if again {
						s.put(change(160, true, ""))
					}
				}
			}
			s.put(x)
		}
		want := "inferspan.gpu.time: " + reasonPass + ": the probes were taken out: calls cost too much"
		if again {
			want = "inferspan.gpu.time: " + reasonPass + ": the probes were taken out meanwhile"
		}
		trees, _ := run(t, NewOptions(), append(s.sig, &signal.Detach{At: at(5000)}))
		for id, r := range requestsOf(trees) {
			if got, _ := r.Attr("inferspan.unavailable").([]string); !slices.Contains(got, want) || r.Attr("inferspan.gpu.time") != nil {
				t.Errorf("again %v: %s: %q, want %q", again, id, got, want)
			}
		}
	}
}

// TestGPUEnergy: 1 J in 100 ms is 10 W. The last step lies in two intervals, of which the
// second closes after the requests are over: they wait for it.
func TestGPUEnergy(t *testing.T) {
	c := New(NewOptions())
	var trees []*trace.Tree
	for _, s := range shared(true).sig {
		n := len(trees)
		c.Put(s, func(tr *trace.Tree) { trees = append(trees, tr) })
		if _, ok := s.(*signal.GPUSamples); len(trees) != n && !ok {
			t.Error("exported before the GPU was read")
		}
	}
	by := requestsOf(trees)
	if len(by) != 2 {
		t.Fatalf("%d requests", len(by))
	}
	for id, want := range map[string]float64{"a": 10 * 0.014428571, "b": 10 * 0.013571429} {
		got, _ := by[id].Attr("inferspan.gpu.energy").(float64)
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v J, want %v", id, got, want)
		}
		wantAttrs(t, by[id], map[string]any{"inferspan.unavailable": nil, "inferspan.derived.methods": []string{"inferspan.gpu.time: forward_pass, scheduled_tokens", "inferspan.gpu.energy: sole, forward_pass, scheduled_tokens"}})
	}
	for labels, want := range map[string]float64{"prefill": 0.16571429, "decode": 0.11428571} {
		if got := point(t, c.Metrics(), "inferspan.gpu.engine.busy_energy", labels, "sole"); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v J, want %v", labels, got, want)
		}
	}
	if got := point(t, c.Metrics(), "inferspan.gpu.engine.outside_energy", "sole"); math.Abs(got-1.72) > 1e-9 {
		t.Errorf("outside of steps: %v J, want 1.72", got)
	}
	metricsConform(t, c.Metrics())
}

// TestGPUShareUnknown: what is not known is left out, with the reason.
func TestGPUShareUnknown(t *testing.T) {
	step := func(number int64, edit func(*signal.Step)) func(signal.Signal) {
		return func(x signal.Signal) {
			if s, ok := x.(*signal.Step); ok && s.Number.V == number {
				edit(s)
			}
		}
	}
	const onTime, onEnergy = "inferspan.gpu.time: ", "inferspan.gpu.energy: "
	for name, c := range map[string]struct {
		edit func(signal.Signal)
		want map[string][]string // of a and b
	}{
		"a wait was not seen": {func(x signal.Signal) {
			if w, ok := x.(*signal.GPUWait); ok && w.At == at(109) {
				w.Submitter++
			}
		}, map[string][]string{"a": {onTime + reasonPass, onEnergy + reasonNoTime}, "b": nil}},
		"tokens not known": {step(12, func(s *signal.Step) { s.Requests[1].Tokens = -1 }),
			map[string][]string{"a": {onTime + reasonTokens, onEnergy + reasonNoTime}, "b": {onTime + reasonTokens, onEnergy + reasonNoTime}}},
		"a step was not seen": {step(13, func(s *signal.Step) { s.Number.V++ }),
			map[string][]string{"a": {onTime + reasonSteps, onEnergy + reasonNoTime}, "b": {onTime + reasonSteps, onEnergy + reasonNoTime}}},
		"a stranger came": {func(x signal.Signal) {
			if g, ok := x.(*signal.GPUSamples); ok && g.At == at(290) {
				g.Samples[0].Processes = append(g.Samples[0].Processes, onGPU(99, -1))
			}
		}, map[string][]string{"a": {onEnergy + reasonChanged}, "b": {onEnergy + reasonChanged}}},
		"not read again": {func(x signal.Signal) {
			if g, ok := x.(*signal.GPUSamples); ok && g.At == at(290) {
				g.At = at(4000)
			}
		}, map[string][]string{"a": {onEnergy + reasonNotAgain}, "b": {onEnergy + reasonNotAgain}}},
		"driver seen from the last step on": {func(x signal.Signal) {
			if m, ok := x.(*signal.GPUMark); ok && m.At < at(150) {
				m.Step = signal.StepUnmarked
			}
		}, map[string][]string{"a": {onTime + reasonCalls, onEnergy + reasonNoTime}, "b": {onTime + reasonCalls, onEnergy + reasonNoTime}}},
		"first read in a step": {func(x signal.Signal) {
			if g, ok := x.(*signal.GPUSamples); ok && g.At == at(90) {
				g.At = at(102)
			}
		}, map[string][]string{"a": {onEnergy + reasonUnread}, "b": nil}},
		"first read later": {func(x signal.Signal) {
			if g, ok := x.(*signal.GPUSamples); ok && g.At == at(90) {
				g.Samples[0].Processes = nil
			}
		}, map[string][]string{"a": {onEnergy + reasonUnread}, "b": {onEnergy + reasonUnread}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := shared(true)
			for _, x := range s.sig {
				c.edit(x)
			}
			last := s.sig[len(s.sig)-1]
			s.sig = s.sig[:len(s.sig)-1]
			s.put(&signal.EngineState{At: at(289), Core: testCore})
			if name == "not read again" {
				s.put(&signal.EngineState{At: at(1400), Core: testCore})
			}
			s.put(last).put(&signal.Detach{At: at(5000)})
			trees, _ := run(t, NewOptions(), s.sig)
			by := requestsOf(trees)
			for id, want := range c.want {
				got, _ := by[id].Attr("inferspan.unavailable").([]string)
				if !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q", id, got, want)
				}
				for _, name := range []string{"inferspan.gpu.time", "inferspan.gpu.energy"} {
					missing := slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(w, name+": ") })
					if (by[id].Attr(name) == nil) != missing {
						t.Errorf("%s: %s is %v", id, name, by[id].Attr(name))
					}
				}
			}
		})
	}
}

// TestGPUShareHosts: the energy of several processes with steps cannot be told apart.
func TestGPUShareHosts(t *testing.T) {
	s := shared(true)
	s.sig = slices.Insert(s.sig, 3, signal.Signal(&signal.GPUMark{GPUPoint: signal.GPUPoint{At: at(91), Engine: 1, PID: 201, TID: 201, Marks: 1}, Step: signal.StepBegins}))
	trees, _ := run(t, NewOptions(), append(s.sig, &signal.Detach{At: at(5000)}))
	for id, r := range requestsOf(trees) {
		if r.Attr("inferspan.gpu.time") == nil {
			t.Errorf("%s: no time", id)
		}
		wantAttrs(t, r, map[string]any{"inferspan.gpu.energy": nil, "inferspan.unavailable": []string{"inferspan.gpu.energy: " + reasonManyHosts}})
	}
}

// TestGPUSGLang: a request of SGLang waits for the sample after its end too.
func TestGPUSGLang(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	g := newGPU(&s.script)
	g.point.PID, g.point.TID = sglCore.PID, sglCore.PID
	board := func(t float64, mj int64) { s.boardAt(t, mj, onGPU(sglCore.PID, -1)) }
	board(1, 0)
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	for i := range 3 {
		b := 4 + 10*float64(i)
		g.mark(b, true).launch(10, 0, b+1, b+2).wait(b+3, b+4, b+7).mark(b+8, false)
		q := signal.StepRequest{ID: []byte(id), Tokens: 1, Entry: signal.StepRunning, Phase: signal.StepDecode}
		if i == 0 {
			q.Tokens, q.Entry, q.Phase = 10, signal.StepNew, signal.StepPrefillEnd
		}
		s.put(&signal.Step{Core: sglCore, Number: signal.Some(int64(70 + i)), Schedule: at(b), Update: at(b + 8.5), Tokens: signal.Some(q.Tokens), Requests: []signal.StepRequest{q}})
	}
	s.out(34, id, 3, finishedLength)
	s.times(35, id, 0, 0, 35, 35)
	board(101, 2000)
	trees, _ := run(t, NewOptions(), s.sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees", len(trees))
	}
	how := "forward_pass, scheduled_tokens"
	wantAttrs(t, &trees[0].Spans[0], map[string]any{"inferspan.gpu.time": 0.018, "inferspan.unavailable": nil})
	if got, _ := trees[0].Spans[0].Attr("inferspan.gpu.energy").(float64); math.Abs(got-0.36) > 1e-9 {
		t.Errorf("%v J, want 0.36: 18 ms at 20 W", got)
	}
	methods, _ := trees[0].Spans[0].Attr("inferspan.derived.methods").([]string)
	for _, want := range []string{"inferspan.gpu.time: " + how, "inferspan.gpu.energy: sole, " + how} {
		if !slices.Contains(methods, want) {
			t.Errorf("methods %q, want %q", methods, want)
		}
	}
	conforms(t, trees[0], NewOptions())
}
