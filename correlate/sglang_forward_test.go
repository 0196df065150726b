package correlate

import (
	"testing"

	"inferspan/correlate/signal"
)

// TestSGLangForward: the pass of a batch of prompts is in the prefill of its requests. That of
// the second chunk begins in the stage of the first.
func TestSGLangForward(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	g := newGPU(&s.script)
	g.point.PID, g.point.TID = schPID, schPID
	step := func(number int64, launch, done, update float64, q signal.StepRequest) {
		q.ID = []byte(id)
		s.put(&signal.Step{Core: sglCore, Number: signal.Some(number), Schedule: at(launch), Launched: at(done), Update: at(update), Requests: reqs(q)})
	}
	g.marked(1, signal.StepLaunched)
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	s.stage(schPID, id, "request_process", 3, 3.5)
	s.stage(schPID, id, "prefill_waiting", 3.5, 4)
	g.launch(20, 0, 4.5, 4.8).marked(5, signal.StepLaunched)                      // launched from 4.2 on
	g.launch(1, 0, 5.9, 6).launch(22, 1, 6.3, 6.6).marked(7, signal.StepLaunched) // prepared before 6.2
	g.wait(4.9, 7.1, 7.4).mark(7.6, false)
	s.stage(schPID, id, "chunked_prefill", 4, 7.5)
	step(1, 4.2, 5, 7.6, in(id, 6, 0, signal.StepNew, signal.StepPrefillChunk))
	g.launch(21, 1, 8.1, 8.2).marked(8.4, signal.StepLaunched).wait(6.8, 8.5, 8.50001)
	g.mark(8.8, false)
	s.stage(schPID, id, "prefill_forward", 4, 8.7)
	step(2, 6.2, 7, 8.8, in(id, 4, 6, signal.StepRunning, signal.StepPrefillEnd))
	g.wait(8.3, 9, 9.5).mark(9.8, false)
	s.stage(schPID, id, "decode_loop", 8.7, 9.7, round(0))
	s.stage(schPID, id, "decode_forward", 8.7, 9.9)
	step(3, 8, 8.4, 9.8, in(id, 1, 10, signal.StepRunning, signal.StepDecode))
	s.out(9.9, id, 2, finishedLength)
	s.mark(schPID, id, "complete", 9.95, "", 0)
	s.times(12, id, 0, 0, 12, 12)
	o := NewOptions()
	o.Steps = StepsSpans
	trees, _ := run(t, o, s.sig)
	wantTree(t, trees[0], `
		Req aaaaaaaa
		  Tokenizer
		  Scheduler [TP 0] [PP 0]
		    request_process
		    prefill_waiting <- request_process
		    prefill_forward <- prefill_waiting
		      chunked_prefill
		    decode_forward <- prefill_forward
		      decode_loop
		      inferspan.forward
		      inferspan.forward
		`)
	conforms(t, trees[0], o)
	passes := find(trees, "inferspan.forward")
	wantAttrs(t, passes[0], map[string]any{"inferspan.step.number": int64(1), "inferspan.step.tokens": int64(6), "inferspan.forward.kernels": int64(20), "inferspan.forward.bound": "gpu", "inferspan.forward.launch_time": 0.0003})
	// That something was launched before its launch leaves open which was its first one.
	wantAttrs(t, passes[1], map[string]any{"inferspan.step.number": int64(2), "inferspan.step.computed_tokens": int64(6), "inferspan.forward.kernels": int64(23), "inferspan.forward.graphs": int64(1), "inferspan.forward.bound": "host", "inferspan.derived": []string{"span.start"}})
	for i, want := range [][2]float64{{4.5, 7.4}, {6.2, 8.50001}} {
		if p := passes[i]; p.ParentID != one(t, trees, "prefill_forward").SpanID || p.Start != wall(want[0]) || p.End != wall(want[1]) {
			t.Errorf("pass %d is from %d to %d, want %d to %d", i, p.Start, p.End, wall(want[0]), wall(want[1]))
		}
	}
	if n := len(find(trees[:1], "inferspan.prefill_chunk")); n != 0 {
		t.Errorf("%d steps of the prefill, whose stages the engine has itself", n)
	}
}
