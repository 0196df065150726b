package correlate

import (
	"slices"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

const (
	rank0PID = 301
	rank1PID = 302
)

// workerScript follows the thread of a worker that is a process of its own.
type workerScript struct{ *gpuScript }

func newWorkers(s *script) (r0, r1 workerScript) {
	for _, x := range s.sig {
		if e, ok := x.(*signal.Engine); ok {
			for i, pid := range []uint32{rank0PID, rank1PID} {
				e.Process = append(e.Process, signal.Process{PID: pid, Role: "worker", Rank: signal.Some(int64(i)), Core: corePID})
			}
		}
	}
	s.put(&signal.EngineConfig{At: at(2), Core: testCore, TensorParallel: signal.Some[int64](2), PipelineParallel: signal.Some[int64](1)})
	r0, r1 = workerScript{newGPU(s)}, workerScript{newGPU(s)}
	for r, pid := range map[workerScript]uint32{r0: rank0PID, r1: rank1PID} {
		r.point.PID, r.point.TID = pid, pid
	}
	return r0, r1
}

// take is a mark where a worker takes a message.
func (w workerScript) take(t float64) workerScript {
	w.point.Marks++
	w.point.At = at(t)
	w.s.put(&signal.GPUMark{GPUPoint: w.point, Step: signal.StepTaken})
	w.point.First, w.point.Last = 0, 0
	return w
}

// told says what the message that was taken at t is: of the step dispatched then, 0 for
// none.
func (w workerScript) told(t, step float64) workerScript {
	w.s.put(&signal.MessageTaken{At: at(t), Engine: 1, PID: w.point.PID, Core: testCore, Step: at(step)})
	return w
}

func (w workerScript) idle(t float64) workerScript {
	w.point.Marks++
	w.point.At = at(t)
	w.s.put(&signal.GPUMark{GPUPoint: w.point, Step: signal.StepIdle})
	w.point.First, w.point.Last = 0, 0
	return w
}

func (w workerScript) launch(kernels int64, first, last float64) workerScript {
	w.gpuScript.launch(kernels, 0, first, last)
	return w
}

// output is a wait of another thread for the event that this one recorded.
func (w workerScript) output(submitted, from, to float64) workerScript {
	w.wait(submitted, from, to, func(x *signal.GPUWait) { x.TID = 999 })
	return w
}

// twoRanks has three steps: rank 0 takes the second before the core has woken it for that,
// and rank 1 is behind, so that outputs of the first come before it is at the second.
func twoRanks(edit func(at string, r0, r1 workerScript)) *script {
	s := newScript()
	r0, r1 := newWorkers(s)
	by := func(dispatch float64) func(*signal.Step) {
		return func(st *signal.Step) {
			st.Method, st.Dispatch, st.Schedule = signal.StepByDispatch, at(dispatch), 0
		}
	}
	s.add(94, 95, "a", func(a *signal.RequestAdded) { a.Param.HasStop = false })
	edit("begin", r0, r1)
	r0.launch(7, 90, 91) // before any step
	r0.take(100.1).told(100.1, 100.2).launch(30, 101, 102)
	r1.take(100.4).told(100.4, 100.2).launch(30, 101.5, 103)
	r0.take(102.5).told(102.5, 0).launch(10, 103, 103.4)
	edit("second", r0, r1)
	r0.take(104.1).launch(20, 104.3, 105)
	r1.take(104.2).told(104.2, 0)
	r0.told(104.1, 104.2)
	r0.output(103.5, 104, 109)
	r1.launch(10, 104.5, 104.7)
	s.iterate(11, 100, 110, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd)), by(100.2)).step(110, out("a", 1, started(97, 100)))
	r0.take(110.5).launch(10, 110.6, 110.9).take(111).told(111, 112).told(110.5, 0) // the message behind it is known first
	edit("third", r0, r1)
	r1.take(111.5).told(111.5, 104.2).launch(20, 112, 112.5).take(112.6).told(112.6, 0).launch(10, 113, 113.5)
	r0.launch(20, 112.1, 112.4)
	r0.output(110.95, 111, 114)
	s.iterate(12, 104, 115, reqs(in("a", 1, 16, signal.StepRunning, signal.StepDecode)), by(104.2)).step(115, out("a", 1))
	r1.take(116).told(116, 112).launch(20, 116.2, 117).take(117.1).told(117.1, 0).launch(10, 117.2, 117.5)
	r0.take(117.2).told(117.2, 0).launch(10, 117.3, 117.6)
	r0.output(117.7, 118, 119)
	s.iterate(13, 111, 120, reqs(in("a", 1, 17, signal.StepRunning, signal.StepDecode)), by(112)).step(120, out("a", 1, finished(signal.FinishLength, "length")))
	edit("end", r0, r1)
	r1.idle(1118)
	r0.idle(1119).launch(5, 2000, 2001) // for a message outside of any step
	return s
}

func forwards(steps []trace.Step) (all [][]trace.Forward) {
	for i := range steps {
		all = append(all, steps[i].Forward)
	}
	return all
}

func TestWorkers(t *testing.T) {
	s := twoRanks(func(string, workerScript, workerScript) {})
	trees, m := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
	got := steps(trees)
	if len(got) != 3 {
		t.Fatalf("%d steps, want 3", len(got))
	}
	pass := func(rank int64, begin float64, kernels int64, first, last float64) trace.Forward {
		return trace.Forward{Rank: num(rank), Begin: wall(begin), Counted: "all", Kernels: num(kernels), Graphs: num(0), GraphKernels: num(0), Copies: num(0), CopyBytes: num(0), First: wall(first), Last: wall(last)}
	}
	waited := func(f trace.Forward, submitted, wait, done float64, gap trace.Int) trace.Forward {
		f.Submitted, f.Wait, f.Done, f.Bound, f.Gap = wall(submitted), wall(wait), wall(done), "gpu", gap
		return f
	}
	want := [][]trace.Forward{
		{waited(pass(0, 100.1, 40, 101, 103.4), 103.5, 104, 109, trace.Int{}), pass(1, 100.4, 40, 101.5, 104.7)},
		{waited(pass(0, 104.1, 30, 104.3, 110.9), 110.95, 111, 114, num(-4.7e6)), pass(1, 111.5, 30, 112, 113.5)},
		{waited(pass(0, 111, 30, 112.1, 117.6), 117.7, 118, 119, num(-1.9e6)), pass(1, 116, 30, 116.2, 117.5)},
	}
	for i, f := range forwards(got) {
		if !slices.Equal(f, want[i]) {
			t.Errorf("step %d:\n%+v, want\n%+v", i, f, want[i])
		}
	}
	for i, want := range [][2]float64{{0.5, 1.3}, {7.7, 2.6}, {4.1, 0.1}} {
		if a, b := got[i].FirstLaunchSkew, got[i].LastLaunchSkew; !near(a, want[0]) || !near(b, want[1]) {
			t.Errorf("step %d: skews %v, %v, want %v ms", i, a, b, want)
		}
	}
	// The time of the steps: that of the rank whose outputs are waited for.
	busy, compared := 0.0, uint64(0)
	for _, f := range m.Families {
		for _, p := range f.Points {
			switch f.Name {
			case "inferspan.gpu.engine.busy_time":
				busy += p.Value
			case "inferspan_forward_skew_seconds":
				compared += p.Count
			}
		}
	}
	if busy < 17.9999e-3 || busy > 18.0001e-3 || compared != 6 {
		t.Errorf("busy for %v s, %d launches compared", busy, compared)
	}
	for _, x := range find(trees, "llm_request") {
		if v, _ := x.Attr("inferspan.gpu.time").(float64); v < 17.9999e-3 || v > 18.0001e-3 {
			t.Errorf("GPU time %v of %v", v, x.Attrs)
		}
	}
}

// TestWorkersKernels: means are over the steps in which all launches of a rank are known,
// or of all ranks.
func TestWorkersKernels(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(at string, r0, r1 workerScript)
		want EngineKernels
	}{
		{name: "whole", want: EngineKernels{Together: StepKernels{Steps: 3, Kernels: 200},
			Ranks: []StepKernels{{Rank: 0, Steps: 3, Kernels: 100}, {Rank: 1, Steps: 3, Kernels: 100}}}},
		{name: "rank 1 is counted otherwise from the first step on", edit: func(at string, _, r1 workerScript) {
			if at == "third" {
				r1.changed()
			}
		}, want: EngineKernels{Ranks: []StepKernels{{Rank: 0, Steps: 3, Kernels: 100}}}},
		{name: "a mark of rank 0 was lost", edit: func(at string, r0, _ workerScript) {
			if at == "second" {
				r0.point.Marks++
			}
		}, want: EngineKernels{Together: StepKernels{Steps: 2, Kernels: 120},
			Ranks: []StepKernels{{Rank: 0, Steps: 2, Kernels: 60}, {Rank: 1, Steps: 3, Kernels: 100}}}},
		{name: "graphs only", edit: func(at string, r0, r1 workerScript) {
			r0.point.Launches, r1.point.Launches = false, false
		}},
	} {
		edit := c.edit
		if edit == nil {
			edit = func(string, workerScript, workerScript) {}
		}
		s := twoRanks(edit)
		cor := New(NewOptions())
		for _, x := range append(s.sig, signal.Signal(&signal.GPUKernels{At: at(3000), Engine: 1, PID: rank0PID, Kernels: []signal.GPUKernel{kernel(0x10, 5, "a")}})) {
			cor.Put(x, func(*trace.Tree) {})
		}
		got := cor.Kernels()
		if len(got) != 1 || got[0].Together != c.want.Together || !slices.Equal(got[0].Ranks, c.want.Ranks) || got[0].Steps != 0 {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func near(n trace.Int, ms float64) bool {
	d := float64(n.V) - ms*1e6
	return n.OK && d < 2 && d > -2
}

// TestWorkersBehind: outputs of the first step come before one of the workers has taken a
// message at all.
func TestWorkersBehind(t *testing.T) {
	s := newScript()
	r0, r1 := newWorkers(s)
	for _, pid := range []uint32{rank0PID, rank1PID} {
		s.put(&signal.ProbeChange{At: at(90), Engine: 1, PID: pid, Probe: signal.DetailMessages, Active: true})
	}
	r0.take(100.1).told(100.1, 100.2).launch(30, 101, 102).take(102.5).told(102.5, 0).launch(10, 103, 103.4)
	r0.output(103.5, 104, 109)
	s.iterate(11, 100, 110, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd)), func(st *signal.Step) {
		st.Method, st.Dispatch, st.Schedule = signal.StepByDispatch, at(100.2), 0
	})
	r0.idle(1102)
	r1.take(1110).told(1110, 100.2).launch(30, 1111, 1112).idle(2111)
	trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
	if got := steps(trees); len(got) != 1 || len(got[0].Forward) != 2 || got[0].Forward[1].Kernels != num(30) {
		t.Errorf("%+v", got)
	}
}

// TestWorkersByClock: steps that are not seen at their dispatch have no pass; the core, which
// maps the driver as well, calls for nothing.
func TestWorkersByClock(t *testing.T) {
	s := newScript()
	r0, _ := newWorkers(s)
	newGPU(s).mark(100, true)
	r0.take(100.3)
	s.iterate(11, 100, 110, reqs(in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd)))
	trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
	if got := steps(trees); len(got) != 1 || len(got[0].Forward) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestWorkersLost: what was not seen whole is not there, and the rest is as it would be.
func TestWorkersLost(t *testing.T) {
	base, _ := run(t, Options{StepRecords: true, EventLimit: 1}, twoRanks(func(string, workerScript, workerScript) {}).sig)
	want := forwards(steps(base))
	for _, c := range []struct {
		name string
		edit func(at string, r0, r1 workerScript)
		drop func(x signal.Signal) bool
		has  [3][2]bool
	}{
		{"a mark of rank 0 was lost", func(at string, r0, _ workerScript) {
			if at == "second" {
				r0.point.Marks++
			}
		}, nil, [3][2]bool{{false, true}, {true, true}, {true, true}}},
		{"the probes in rank 0 were out for a while", func(at string, r0, _ workerScript) {
			if at == "third" {
				for _, active := range []bool{false, true} {
					r0.s.put(&signal.ProbeChange{At: 111_200_000, Engine: 1, PID: rank0PID, Probe: signal.DetailMessages, Active: active})
				}
			}
		}, nil, [3][2]bool{{true, true}, {true, true}, {false, true}}},
		{"nothing of rank 1 was counted for a while", func(at string, _, r1 workerScript) {
			if at == "third" {
				r1.point.Epoch++
			}
		}, nil, [3][2]bool{{true, false}, {true, true}, {true, true}}},
		// What it does may be of step 11, or of one that was not seen.
		{"it is not known which message rank 1 took", nil, func(x signal.Signal) bool {
			m, ok := x.(*signal.MessageTaken)
			return ok && m.PID == rank1PID && m.At == at(104.2)
		}, [3][2]bool{{true, false}, {true, true}, {true, true}}},
		{"it is not known which step rank 1 began", nil, func(x signal.Signal) bool {
			m, ok := x.(*signal.MessageTaken)
			return ok && m.PID == rank1PID && m.At == at(111.5)
		}, [3][2]bool{{true, false}, {true, false}, {true, true}}},
		{"rank 1 is not seen to be idle", nil, func(x signal.Signal) bool {
			m, ok := x.(*signal.GPUMark)
			return ok && m.PID == rank1PID && m.Step == signal.StepIdle
		}, [3][2]bool{{true, true}, {true, true}, {true, false}}},
	} {
		edit := c.edit
		if edit == nil {
			edit = func(string, workerScript, workerScript) {}
		}
		s := twoRanks(edit)
		if c.drop != nil {
			s.sig = slices.DeleteFunc(s.sig, c.drop)
		}
		s.put(&signal.Detach{At: at(3000)})
		trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
		got := forwards(steps(trees))
		if len(got) != 3 {
			t.Fatalf("%s: %d steps", c.name, len(got))
		}
		for i, of := range c.has {
			var expect []trace.Forward
			for rank, has := range of {
				if has {
					f := want[i][rank]
					if i > 0 && rank == 0 && !c.has[i-1][rank] {
						f.Gap = trace.Int{} // it is not known when the one before was done
					}
					expect = append(expect, f)
				}
			}
			if !slices.Equal(got[i], expect) {
				t.Errorf("%s: step %d:\n%+v, want\n%+v", c.name, i, got[i], expect)
			}
		}
	}
}

// TestWorkersChanged: where it changes what is counted of a rank, its pass has what was
// counted throughout, and no launch is compared with another rank's.
func TestWorkersChanged(t *testing.T) {
	base, _ := run(t, Options{StepRecords: true, EventLimit: 1}, twoRanks(func(string, workerScript, workerScript) {}).sig)
	want := forwards(steps(base))
	trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, twoRanks(func(at string, _, r1 workerScript) {
		if at == "third" {
			r1.changed().point.Launches = true
		}
	}).sig)
	got := steps(trees)
	old := &want[0][1]
	*old = trace.Forward{Rank: old.Rank, Begin: old.Begin, Counted: "changed", Graphs: old.Graphs, GraphKernels: old.GraphKernels}
	for i, f := range forwards(got) {
		if !slices.Equal(f, want[i]) {
			t.Errorf("step %d:\n%+v, want\n%+v", i, f, want[i])
		}
		if skew := got[i].FirstLaunchSkew.OK; skew != (i > 0) || got[i].LastLaunchSkew.OK != skew {
			t.Errorf("step %d: skews %v, %v", i, got[i].FirstLaunchSkew, got[i].LastLaunchSkew)
		}
	}
}

// TestWorkersEnergy: the energy of all GPUs of the engine flows into the steps of its one
// core.
func TestWorkersEnergy(t *testing.T) {
	boards := func(s *script, t float64, mj0, mj1 int64) {
		s.put(&signal.GPUSamples{At: at(t), Samples: []signal.GPUSample{energySample("G0", mj0, onGPU(rank0PID, -1)), energySample("G1", mj1, onGPU(rank1PID, -1))}})
	}
	s := twoRanks(func(at string, r0, _ workerScript) {
		switch at {
		case "begin":
			boards(r0.s, 90, 0, 0)
		case "end":
			boards(r0.s, 1090, 1000, 3000)
		}
	})
	trees, _ := run(t, NewOptions(), s.sig)
	requests := find(trees, "llm_request")
	if len(requests) != 1 {
		t.Fatalf("%d requests", len(requests))
	}
	if v, _ := requests[0].Attr("inferspan.gpu.energy").(float64); v < 0.0719999 || v > 0.0720001 {
		t.Errorf("%v J of 4 in a second, of which it had 18 ms: %v", v, requests[0].Attrs)
	}
}

// TestWorkersTakenOut: a request says why it has no GPU time.
func TestWorkersTakenOut(t *testing.T) {
	s := twoRanks(func(when string, r0, _ workerScript) {
		change := func(ms float64, active bool, reason string) {
			r0.s.put(&signal.ProbeChange{At: at(ms), Engine: 1, PID: rank0PID, Probe: signal.DetailMessages, Active: active, Reason: reason})
		}
		switch when {
		case "begin":
			change(90, true, "")
		case "third":
			change(111.2, false, "they cost too much")
		}
	})
	s.put(&signal.Detach{At: at(3000)})
	trees, _ := run(t, NewOptions(), s.sig)
	want := "inferspan.gpu.time: " + reasonPass + ": the probes were taken out: they cost too much"
	for _, r := range find(trees, "llm_request") {
		if got, _ := r.Attr("inferspan.unavailable").([]string); !slices.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
