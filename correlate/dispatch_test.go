package correlate

import (
	"reflect"
	"slices"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// byDispatch has the steps of a script seen 0.2 ms after they began to be scheduled,
// when the workers were told. known are the numbers of those that the engine's events
// give a beginning.
func (s *script) byDispatch(known ...int64) *script {
	for _, x := range s.sig {
		if st, ok := x.(*signal.Step); ok {
			st.Method, st.Dispatch, st.FreeAfter = signal.StepByDispatch, st.Schedule+0.2e6, signal.Opt[int64]{}
			if !slices.Contains(known, st.Number.V) {
				st.Schedule = 0
			}
		}
	}
	return s
}

func TestStepsByDispatch(t *testing.T) {
	o := NewOptions()
	o.Steps, o.StepRecords = StepsSpans, true
	trees, steps, m, _ := collect(t, o, chunked().byDispatch(11).sig)
	wantAttrs(t, one(t, trees, "llm_request"), map[string]any{
		"inferspan.steps.first": int64(11), "inferspan.steps.last": int64(16), "inferspan.steps.count": int64(6), "inferspan.steps.method": "dispatch",
		"inferspan.steps.prefill_tokens": []int64{16, 16, 8}, "inferspan.derived": nil,
	})
	chunks := find(trees, "inferspan.prefill_chunk")
	if len(chunks) != 3 {
		t.Fatalf("%d chunks", len(chunks))
	}
	for i, want := range []struct {
		start   float64
		derived any
	}{{103.001, nil}, {109.7, []string{"span.start"}}, {119.7, []string{"span.start"}}} {
		if k := chunks[i]; k.Start != wall(want.start) {
			t.Errorf("chunk %d from %d", i, k.Start-wallOff)
		}
		wantAttrs(t, chunks[i], map[string]any{"inferspan.step.method": "dispatch", "inferspan.derived": want.derived})
	}
	for _, tr := range trees {
		if len(tr.Spans) > 0 {
			wellFormed(t, tr)
			conforms(t, tr, o)
		}
	}
	if len(steps) != 6 {
		t.Fatalf("%d steps", len(steps))
	}
	if f := steps[0]; f.Method != "dispatch" || f.Start != wall(103) || f.Dispatch != wall(103.2) || f.End != wall(109) {
		t.Errorf("first step %+v", f)
	}
	if f := steps[1]; f.Method != "dispatch" || f.Start != 0 || f.Dispatch != wall(109.7) || f.End != wall(119) || f.Gap != (trace.Int{}) {
		t.Errorf("second step %+v", f)
	}
	metricsConform(t, m)
	for _, f := range m.Families {
		if f.Name == "inferspan_step_duration_seconds" || f.Name == "inferspan_step_gap_seconds" {
			t.Errorf("%s cannot be known: a part of the steps is no sample of all", f.Name)
		}
	}
	// 5.8 and 9.3 ms, 10.2 ms, and three times 8.7 ms.
	if got, want := point(t, m, "inferspan_step_run_seconds"), 0.0058+0.0093+0.0102+3*0.0087; got < want-1e-9 || got > want+1e-9 {
		t.Errorf("the steps ran for %v s, want %v", got, want)
	}
}

// Where the clock is taken out in the middle of a request, it says so.
func TestStepsByBoth(t *testing.T) {
	s := chunked()
	for _, x := range s.sig {
		if st, ok := x.(*signal.Step); ok && st.Number.V >= 14 {
			st.Method, st.Dispatch, st.Schedule = signal.StepByDispatch, st.Schedule+0.2e6, 0
		}
	}
	change := func(t float64, source, lacks, reason string) signal.Signal {
		return &signal.ProbeChange{At: at(t), Engine: 1, PID: corePID, Probe: signal.DetailSteps, Active: true, Source: source, Lacks: lacks, Reason: reason}
	}
	s.sig = slices.Insert(s.sig, 3, change(101, "clock", "", ""))
	i := slices.IndexFunc(s.sig, func(x signal.Signal) bool { st, ok := x.(*signal.Step); return ok && st.Number.V == 14 })
	s.sig = slices.Insert(s.sig, i, change(130.5, "dispatch", "the beginning", "clock: over budget"))
	s.put(change(300, "clock", "", ""))
	o := NewOptions()
	o.Steps = StepsRefs
	trees, _, m, c := collect(t, o, s.sig)
	wantAttrs(t, one(t, trees, "llm_request"), map[string]any{"inferspan.steps.count": int64(6), "inferspan.steps.method": "mixed", "inferspan.unavailable": nil})
	var notes []string
	for _, n := range c.Notes() {
		notes = append(notes, n.Text)
	}
	want := []string{"detail steps seen by dispatch, without the beginning in process 200: clock: over budget", "detail steps seen by clock in process 200"}
	if !reflect.DeepEqual(notes, want) {
		t.Errorf("notes %q, want %q", notes, want)
	}
	if got := point(t, m, "inferspan_detail_active", "steps", "clock"); got != 1 {
		t.Errorf("steps by the clock: %v", got)
	}
	if got := point(t, m, "inferspan_steps_missed"); got != 0 {
		t.Errorf("%v steps missed", got)
	}
}

// With the engine's statistics off the dispatch of the first step stands for its
// beginning, and the values made from it say so.
func TestSilentEngineByDispatch(t *testing.T) {
	s := chunked().silently().byDispatch()
	s.put(&signal.EngineConfig{At: at(1), Core: testCore, LogStats: signal.Some(false)})
	o := NewOptions()
	trees, _, _, _ := collect(t, o, s.sig)
	wantAttrs(t, one(t, trees, "llm_request"), map[string]any{
		"gen_ai.latency.time_in_queue": int64(1.2e6), "gen_ai.latency.time_in_model_prefill": int64(26.8e6), "gen_ai.latency.time_in_model_inference": int64(56.8e6),
		"inferspan.derived": []string{"gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_inference"},
		"inferspan.derived.methods": []string{"gen_ai.latency.time_in_queue: receipt_to_dispatch", "gen_ai.latency.time_in_model_prefill: dispatch",
			"gen_ai.latency.time_in_model_inference: dispatch"},
	})
}
