package correlate

import (
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// launchedSteps are those of a core whose marks are behind the launches, with overlap: the
// outputs of a step are sent behind the launch of the next one.
func launchedSteps(t *testing.T, edit func(*gpuScript), more ...func(*signal.Step)) []trace.Step {
	t.Helper()
	s := newScript()
	g := newGPU(s)
	launched := func(at float64) { g.marked(at, signal.StepLaunched) }
	step := func(number int64, launch, done, update float64, tokens int64, edit ...func(*signal.Step)) {
		phase := signal.StepDecode
		if tokens > 1 {
			phase = signal.StepPrefillEnd
		}
		s.iterate(number, launch, update, reqs(in("a", tokens, 0, signal.StepRunning, phase)),
			append(edit, func(st *signal.Step) { st.Launched = at(done) })...)
	}
	g.launch(7, 0, 90, 91)
	launched(95)
	g.mark(96, false) // outputs of step 9

	g.launch(40, 1, 101, 103)
	launched(104)
	g.wait(94, 104.5, 104.6).launch(3, 0, 104.7, 104.8).mark(105, false)
	step(10, 89, 95, 105, 1)

	g.launch(22, 2, 106, 108) // from when it prepares step 12
	launched(109)
	edit(g)
	g.wait(103.5, 109.5, 111).mark(112, false)
	step(11, 100, 104, 112, 16)

	g.launch(21, 3, 113.5, 114).wait(114.5, 114.5, 114.6, ofAll) // a wait while it launches step 13
	launched(115)
	g.wait(108.5, 115.5, 115.51).mark(116, false)
	step(12, 107, 109, 116, 1, more...)

	g.wait(114.7, 117, 119).launch(4, 0, 119.1, 119.2).mark(120, false)
	step(13, 113, 115, 120, 1)
	trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
	return steps(trees)
}

// ofAll: a wait for a stream or for all of them.
func ofAll(w *signal.GPUWait) { w.Event = false }

// TestForwardLaunched: what the thread called for since its mark before is of the step that
// is launched. Step 10 was under way when it was first looked at.
func TestForwardLaunched(t *testing.T) {
	want := []*trace.Forward{
		nil,
		{Counted: "all", Kernels: num(40), Graphs: num(1), Copies: num(0), CopyBytes: num(0), First: wall(101), Last: wall(103), Submitted: wall(103.5), Wait: wall(109.5), Done: wall(111), Bound: "gpu"},
		{Counted: "all", Kernels: num(22), Graphs: num(2), Copies: num(0), CopyBytes: num(0), Last: wall(108), Submitted: wall(108.5), Wait: wall(115.5), Done: wall(115.51), Bound: "host"},
		{Counted: "all", Kernels: num(21), Graphs: num(3), Copies: num(0), CopyBytes: num(0), First: wall(113.5), Last: wall(114), Submitted: wall(114.7), Wait: wall(117), Done: wall(119), Bound: "gpu", Gap: num(-2.01e6)},
	}
	check := func(name string, got []trace.Step, has ...bool) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: %d steps, want %d", name, len(got), len(want))
		}
		for i, w := range want {
			switch f := got[i].Forward; {
			case !has[i]:
				if len(f) != 0 {
					t.Errorf("%s: step %d: %+v, want none", name, i, f)
				}
			case len(f) != 1:
				t.Errorf("%s: step %d has no pass", name, i)
			default:
				x := f[0]
				if !x.Gap.OK && name != "" {
					x.Gap = w.Gap // the pass before is not there
				}
				if x != *w {
					t.Errorf("%s: step %d: %+v, want %+v", name, i, x, *w)
				}
			}
		}
	}
	check("", launchedSteps(t, func(*gpuScript) {}), false, true, true, true)
	// What is lost behind the mark of step 12 is of the time until the next mark.
	check("a mark was lost", launchedSteps(t, func(g *gpuScript) { g.point.Marks++ }), false, true, true, true)
	check("nothing was counted for a while", launchedSteps(t, func(g *gpuScript) { g.point.Epoch++ }), false, true, true, true)
	check("in that while it waited", launchedSteps(t, func(g *gpuScript) { g.point.Epoch++; g.wait(109.1, 109.1, 109.2, ofAll) }), false, true, true, true)
	// Behind the mark of step 12, up to that of the outputs of step 11: before step 13 begins.
	check("it changed what is counted", launchedSteps(t, func(g *gpuScript) { g.changed().changed() }), false, true, true, true)
	got := launchedSteps(t, func(g *gpuScript) { g.mark(109.2, false).changed().mark(109.4, false) })
	check("it changed between outputs", launchedSteps(t, func(g *gpuScript) { g.mark(109.2, false).changed().changed() }), false, true, true, true)
	if f := got[3].Forward; len(f) != 1 || f[0].Counted != "graph" || f[0].Graphs != num(3) || f[0].Kernels.OK {
		t.Errorf("launches are not counted any more: step 13: %+v", f)
	}
	check("sampled behind the results", launchedSteps(t, func(*gpuScript) {}, func(s *signal.Step) { s.More = true }), false, true, false, false)
	check("launched when it was not seen", launchedSteps(t, func(*gpuScript) {}, func(s *signal.Step) { s.Schedule = at(104.9) }), false, true, false, true)
}

// TestForwardFirstLaunched: the first step is whole if it was launched when all was seen.
func TestForwardFirstLaunched(t *testing.T) {
	for _, c := range []struct {
		name  string
		from  float64
		epoch uint32
		want  bool
	}{
		{"before", 99, 1, true},
		{"behind", 101, 1, false},
		{"counted otherwise since", 99, 2, false},
		{"not known", 0, 1, false},
	} {
		s := newScript()
		g := newGPU(s)
		g.point.Work, g.point.Epoch = signal.GPUWork{}, c.epoch
		if c.from != 0 {
			s.put(&signal.ProbeChange{At: at(c.from), Engine: testCore.Engine, PID: testCore.PID, Probe: signal.DetailForward, Active: true})
		}
		g.launch(5, 1, 102, 103).marked(104, signal.StepLaunched).wait(103.5, 104.5, 106).mark(107, false)
		s.iterate(1, 100, 107, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd)), func(st *signal.Step) { st.Launched = at(104) })
		trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
		if got := steps(trees); len(got) != 1 || (len(got[0].Forward) == 1) != c.want || c.want && got[0].Forward[0].Kernels != num(5) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
