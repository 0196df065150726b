package correlate

import (
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// gpu follows the thread of a core: what it launches counts until the next point.
type gpuScript struct {
	s     *script
	point signal.GPUPoint
}

func newGPU(s *script) *gpuScript {
	return &gpuScript{s, signal.GPUPoint{Engine: testCore.Engine, PID: testCore.PID, TID: testCore.PID, Epoch: 1, Launches: true, Work: signal.GPUWork{Kernels: 1000, Graphs: 50}}}
}

func (g *gpuScript) launch(kernels, graphs int64, first, last float64) *gpuScript {
	p := &g.point
	p.Work.Kernels, p.Work.Graphs = p.Work.Kernels+kernels, p.Work.Graphs+graphs
	p.Work.GraphsUnknown += graphs
	if p.First == 0 {
		p.First = at(first)
	}
	p.Last = at(last)
	return g
}

// mark is a capture, at the beginning of a step or elsewhere.
func (g *gpuScript) mark(t float64, step bool) *gpuScript {
	m := signal.StepUnmarked
	if step {
		m = signal.StepBegins
	}
	return g.marked(t, m)
}

func (g *gpuScript) marked(t float64, m signal.StepMark) *gpuScript {
	g.point.Marks++
	g.point.At = at(t)
	g.s.put(&signal.GPUMark{GPUPoint: g.point, Step: m})
	g.point.First, g.point.Last = 0, 0
	return g
}

// wait is for an event that was recorded before.
func (g *gpuScript) wait(submitted, from, to float64, edit ...func(*signal.GPUWait)) *gpuScript {
	w := &signal.GPUWait{GPUPoint: g.point, Entry: at(from), Submitted: at(submitted), Submitter: g.point.TID, Event: true}
	w.At = at(to)
	for _, e := range edit {
		e(w)
	}
	g.s.put(w)
	return g
}

func steps(trees []*trace.Tree) (out []trace.Step) {
	for _, t := range trees {
		out = append(out, t.Steps...)
	}
	return out
}

func num(n int64) trace.Int { return trace.Int{V: n, OK: true} }

// TestForward: asynchronous scheduling, where a step is launched before the wait for the
// one before. The wait for step 11 lies within the launches of step 12.
func TestForward(t *testing.T) {
	build := func(edit func(*gpuScript)) []trace.Step {
		s := newScript()
		g := newGPU(s)
		first := reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd))
		more := func(n int64) []signal.StepRequest {
			return reqs(in("a", 1, n, signal.StepRunning, signal.StepDecode))
		}
		g.launch(7, 0, 90, 91) // before any step
		g.mark(100, true).launch(40, 1, 101, 103)
		g.mark(104, true).launch(20, 2, 105, 106).wait(103.5, 106.5, 109).mark(110, false)
		s.iterate(11, 100, 110, first)
		edit(g)
		g.mark(111, true).launch(21, 3, 112, 113).wait(106.2, 113.5, 113.51).mark(114, false)
		s.iterate(12, 104, 114, more(16))
		g.wait(113.2, 115, 117).mark(118, false)
		s.iterate(13, 111, 118, more(17))
		trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
		return steps(trees)
	}
	got := build(func(*gpuScript) {})
	want := []trace.Forward{
		{Counted: "all", Kernels: num(40), Graphs: num(1), Copies: num(0), CopyBytes: num(0), First: wall(101), Last: wall(103), Submitted: wall(103.5), Wait: wall(106.5), Done: wall(109), Bound: "gpu"},
		{Counted: "all", Kernels: num(20), Graphs: num(2), Copies: num(0), CopyBytes: num(0), First: wall(105), Last: wall(106), Submitted: wall(106.2), Wait: wall(113.5), Done: wall(113.51), Bound: "host", Gap: num(-4e6)},
		{Counted: "all", Kernels: num(21), Graphs: num(3), Copies: num(0), CopyBytes: num(0), First: wall(112), Last: wall(113), Submitted: wall(113.2), Wait: wall(115), Done: wall(117), Bound: "gpu", Gap: num(-1.51e6)},
	}
	if len(got) != len(want) {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	for i := range want {
		if len(got[i].Forward) != 1 || got[i].Forward[0] != want[i] {
			t.Errorf("step %d: %+v, want %+v", i, got[i].Forward, want[i])
		}
	}
	for _, c := range []struct {
		name string
		edit func(*gpuScript)
		has  [3]bool
	}{
		{"a mark was lost", func(g *gpuScript) { g.point.Marks++ }, [3]bool{true, false, true}},
		{"nothing was counted for a while", func(g *gpuScript) { g.point.Epoch++ }, [3]bool{true, false, true}},
		{"and then it changed what is", func(g *gpuScript) { g.point.Epoch++; g.changed() }, [3]bool{true, false, true}},
		{"a wait that failed", func(g *gpuScript) { g.wait(106.2, 110.1, 110.2, func(w *signal.GPUWait) { w.Failed = true }) }, [3]bool{true, true, true}},
		{"another thread's event", func(g *gpuScript) { g.wait(106.2, 110.1, 110.2, func(w *signal.GPUWait) { w.Submitter++ }) }, [3]bool{true, true, true}},
		{"a wait for a stream on the way", func(g *gpuScript) { g.wait(110.1, 110.1, 110.2, func(w *signal.GPUWait) { w.Event = false }) }, [3]bool{true, true, true}},
	} {
		got := build(c.edit)
		for i, has := range c.has {
			if (len(got[i].Forward) == 1) != has {
				t.Errorf("%s: step %d has %+v", c.name, i, got[i].Forward)
			} else if has && i == 1 && got[i].Forward[0] != want[i] {
				t.Errorf("%s: step %d: %+v, want %+v", c.name, i, got[i].Forward[0], want[i])
			}
		}
	}
}

// changed: from here on launches are counted if they were not, or not any more. All else is
// counted throughout.
func (g *gpuScript) changed() *gpuScript {
	g.point.Epoch++
	g.point.Continues++
	g.point.Launches = !g.point.Launches
	return g
}

// TestForwardChanged: of the step under way when it changes what is counted there is all
// that was counted throughout, and those around it are whole.
func TestForwardChanged(t *testing.T) {
	s := newScript()
	g := newGPU(s)
	g.point.Launches = false
	prompt := reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd))
	more := reqs(in("a", 1, 16, signal.StepRunning, signal.StepDecode))
	g.mark(100, true).launch(0, 1, 101, 103)
	g.mark(104, true).launch(0, 1, 105, 105).changed().changed().changed().launch(20, 1, 106, 107).wait(103.5, 107.5, 109).mark(110, false)
	s.iterate(11, 100, 110, prompt)
	g.mark(111, true).launch(21, 3, 112, 113).wait(107.2, 113.5, 115).mark(116, false)
	s.iterate(12, 104, 116, more)
	g.mark(117, true).launch(5, 1, 118, 119).wait(113.2, 119.5, 121).changed().mark(122, false)
	s.iterate(13, 111, 122, more)
	g.mark(123, true).wait(119.2, 124, 125).mark(126, false)
	s.iterate(14, 117, 126, more)
	trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
	want := []trace.Forward{
		{Counted: "graph", Graphs: num(1), First: wall(101), Last: wall(103), Submitted: wall(103.5), Wait: wall(107.5), Done: wall(109), Bound: "gpu"},
		{Counted: "changed", Graphs: num(2), Submitted: wall(107.2), Wait: wall(113.5), Done: wall(115), Bound: "gpu"},
		{Counted: "all", Kernels: num(21), Graphs: num(3), Copies: num(0), CopyBytes: num(0), First: wall(112), Last: wall(113), Submitted: wall(113.2), Wait: wall(119.5), Done: wall(121), Bound: "gpu", Gap: num(-3e6)},
		{Counted: "changed", Graphs: num(1), Submitted: wall(119.2), Wait: wall(124), Done: wall(125), Bound: "gpu"},
	}
	got := steps(trees)
	if len(got) != len(want) {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	for i := range want {
		if len(got[i].Forward) != 1 || got[i].Forward[0] != want[i] {
			t.Errorf("step %d: %+v, want %+v", i, got[i].Forward, want[i])
		}
	}
}

// TestForwardGraphsOnly: what is not counted is not there.
func TestForwardGraphsOnly(t *testing.T) {
	s := newScript()
	g := newGPU(s)
	g.point.Launches = false
	g.mark(100, true).launch(0, 0, 0, 0).wait(103.5, 106.5, 109).mark(110, false)
	s.iterate(11, 100, 110, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd)))
	trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
	want := trace.Forward{Counted: "graph", Graphs: num(0), GraphKernels: num(0), Submitted: wall(103.5), Wait: wall(106.5), Done: wall(109), Bound: "gpu"}
	if got := steps(trees); len(got) != 1 || len(got[0].Forward) != 1 || got[0].Forward[0] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestForwardSpans: the pass of a prefill's step is its child.
func TestForwardSpans(t *testing.T) {
	s := &script{}
	g := newGPU(s)
	for _, x := range chunked().sig {
		st, ok := x.(*signal.Step)
		if !ok {
			s.put(x)
			continue
		}
		b := float64(st.Schedule) / 1e6
		g.mark(b, true).launch(5, 0, b+1, b+2).wait(b+3, b+4, b+5).mark(b+5.5, false)
		s.put(x)
	}
	o := NewOptions()
	o.Steps = StepsSpans
	trees, _ := run(t, o, s.sig)
	chunks, passes := find(trees, "inferspan.prefill_chunk"), find(trees, "inferspan.forward")
	if len(chunks) != 3 || len(passes) != 3 {
		t.Fatalf("%d steps of the prefill with %d passes, want 3", len(chunks), len(passes))
	}
	for i, p := range passes {
		c := chunks[i]
		if p.ParentID != c.SpanID || p.Start < c.Start || p.End > c.End || p.End-p.Start != 4e6 {
			t.Errorf("pass %d: %+v in %+v", i, p, c)
		}
		attrs := map[string]any{}
		for _, a := range p.Attrs {
			attrs[a.Key] = a.Value
		}
		if attrs["inferspan.forward.kernels"] != int64(5) || attrs["inferspan.forward.bound"] != "gpu" || attrs["inferspan.forward.launch_time"] != 0.001 {
			t.Errorf("pass %d: %v", i, attrs)
		}
	}
}

// TestForwardBound: a host that did not have to wait for a stream may have waited before, in a
// copy.
func TestForwardBound(t *testing.T) {
	for _, c := range []struct {
		event, slept bool
		took         float64
		want         string
	}{
		{true, true, 0.001, "gpu"}, {true, false, 0.02, "gpu"}, {true, false, 0.019, "host"},
		{false, true, 0.001, "gpu"}, {false, false, 0.02, "gpu"}, {false, false, 0.019, ""},
	} {
		p := pass{wait: signal.GPUWait{Entry: at(1), Event: c.event, Slept: c.slept}}
		p.wait.At = at(1 + c.took)
		if got := p.bound(); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
