package correlate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// lateTold is two steps of request a, dispatched before the outputs of the first one came,
// and one of b, dispatched at next. Of the messages of a's steps it is told what they were
// at a point: "in time", behind the outputs of the "first" or of the "second" step, at the
// "next" dispatch, or "never", nor is it then of those behind. The GPU draws 10 W.
func lateTold(told string, next float64) *script {
	s := newScript()
	r0, r1 := newWorkers(s)
	board := 90.0
	until := func(t float64) {
		for ; board <= t; board += 100 {
			s.boardAt(board, int64(10*board), onGPU(rank0PID, -1))
			s.put(&signal.EngineState{At: at(board + 50), Core: testCore})
		}
	}
	point := func(at string) {
		if told == at {
			r0.told(100.3, 100.2).told(102.5, 0).told(104.1, 100.6).told(106, 0)
			r1.told(100.4, 100.2).told(102.6, 0).told(104.2, 100.6).told(106.1, 0)
		}
	}
	step := func(number int64, dispatch, update float64, q signal.StepRequest, o signal.Output) {
		s.iterate(number, dispatch, update, reqs(q), func(st *signal.Step) {
			st.Method, st.Dispatch, st.Schedule = signal.StepByDispatch, at(dispatch), 0
		}).step(update, o)
	}
	until(94)
	s.add(94, 95, "a", func(a *signal.RequestAdded) { a.Param.HasStop = false })
	r0.take(100.3).launch(30, 101, 102).take(102.5).launch(10, 103, 103.4).take(104.1).launch(30, 104.5, 105)
	r1.take(100.4).launch(30, 101, 102).take(102.6).launch(10, 103, 103.4).take(104.2).launch(30, 104.5, 105)
	r0.output(103.5, 104, 109).take(106).launch(10, 106.2, 106.4)
	r1.take(106.1).launch(10, 106.2, 106.4)
	point("in time")
	step(11, 100.2, 110, in("a", 16, 0, signal.StepNew, signal.StepPrefillEnd), out("a", 1, started(97, 100)))
	point("first")
	r0.output(106.5, 110, 114)
	step(12, 100.6, 115, in("a", 1, 16, signal.StepRunning, signal.StepDecode), out("a", 1, finished(signal.FinishLength, "length")))
	point("second")
	until(next - 3)
	s.add(next-3, next-2, "b", func(a *signal.RequestAdded) { a.Param.HasStop = false })
	point("next")
	r0.take(next+0.2).launch(30, next+0.5, next+1)
	r1.take(next+0.2).launch(30, next+0.5, next+1)
	if told != "never" {
		r0.told(next+0.2, next)
		r1.told(next+0.2, next)
	}
	r0.output(next+1.1, next+2, next+5)
	step(13, next, next+6, in("b", 16, 0, signal.StepNew, signal.StepPrefillEnd), out("b", 1, started(next-2, next-1), finished(signal.FinishLength, "length")))
	until(next + 3000)
	return s
}

// TestWorkersTold: a step whose pass is known behind its outputs is shared out then, and so
// are those behind it, in their order. Requests that are over wait for that for a second.
func TestWorkersTold(t *testing.T) {
	const onTime, onEnergy = "inferspan.gpu.time: ", "inferspan.gpu.energy: "
	untold := []string{onTime + reasonUntold, onEnergy + reasonNoTime}
	for _, c := range []struct {
		told    string
		next    float64
		a, b    []string // what is missing of a and b
		outBy   float64  // when a is exported
		outFrom float64
	}{
		{told: "first", next: 150, outBy: 190},
		{told: "second", next: 150, outBy: 190},
		{told: "next", next: 150, outBy: 190},
		{told: "next", next: 700, outFrom: 690, outBy: 740},
		{told: "next", next: 1700, a: untold, outFrom: 1110, outBy: 1240},
		// Nothing is waited for where a wait was in vain, until something is told.
		{told: "never", next: 1700, a: untold, b: []string{onTime + reasonPass, onEnergy + reasonNoTime}, outFrom: 1110, outBy: 1240},
	} {
		t.Run(fmt.Sprint(c.told, c.next), func(t *testing.T) {
			cor := New(NewOptions())
			out := map[string]signal.Mono{}
			var trees []*trace.Tree
			for _, s := range lateTold(c.told, c.next).sig {
				cor.Put(s, func(tr *trace.Tree) {
					trees = append(trees, tr)
					for id := range requestsOf([]*trace.Tree{tr}) {
						out[id] = cor.now
					}
				})
			}
			base, m := run(t, NewOptions(), lateTold("in time", c.next).sig)
			got, want := requestsOf(trees), requestsOf(base)
			if len(got) != 2 || len(want) != 2 {
				t.Fatalf("%d requests, %d where all is told in time", len(got), len(want))
			}
			for id, missing := range map[string][]string{"a": c.a, "b": c.b} {
				if why, _ := got[id].Attr("inferspan.unavailable").([]string); !slices.Equal(why, missing) {
					t.Errorf("%s lacks %q, want %q", id, why, missing)
				}
				for _, name := range []string{"inferspan.gpu.time", "inferspan.gpu.energy"} {
					w, ok := want[id].Attr(name).(float64)
					if !ok {
						t.Fatalf("%s has no %s where all is told in time", id, name)
					}
					if g, ok := got[id].Attr(name).(float64); ok != (missing == nil) || ok && math.Abs(g-w) > 1e-12 {
						t.Errorf("%s: %s is %v, want %v", id, name, got[id].Attr(name), w)
					}
				}
			}
			if out["a"] > at(c.outBy) || out["a"] < at(c.outFrom) {
				t.Errorf("a was exported at %d, want %v to %v ms", out["a"], c.outFrom, c.outBy)
			}
			// b waits for the next sample, and for nothing if it can have no energy.
			if by := c.next + 90; out["b"] > at(by) || c.told == "never" && out["b"] > at(c.next+40) {
				t.Errorf("b was exported at %d, dispatched at %v ms", out["b"], c.next)
			}
			if c.a == nil {
				sameWork(t, cor.Metrics(), m)
			}
			if n := len(cor.engines[0].cores[0].unshared); n != 0 {
				t.Errorf("%d steps are left", n)
			}
		})
	}
}

// sameWork compares what the steps had of the GPUs.
func sameWork(t *testing.T, got, want metric.Snapshot) {
	t.Helper()
	points := func(m metric.Snapshot) map[string]float64 {
		out := map[string]float64{}
		for _, f := range m.Families {
			switch f.Name {
			case "inferspan.gpu.engine.busy_time", "inferspan.gpu.engine.unattributed_busy_time", "inferspan.gpu.engine.busy_energy", "inferspan.gpu.engine.outside_energy", "inferspan.gpu.engine.busy":
				for _, p := range f.Points {
					out[fmt.Sprint(f.Name, p.Labels)] = p.Value
				}
			}
		}
		return out
	}
	g, w := points(got), points(want)
	for k, v := range w {
		if math.Abs(g[k]-v) > 1e-9 {
			t.Errorf("%s is %v, want %v", k, g[k], v)
		}
	}
	if len(w) < 3 || len(g) != len(w) {
		t.Errorf("%d series, want %d", len(g), len(w))
	}
}

// workerLoad is an engine with two steps under way, whose requests come and go, on two
// workers. Where it loses, now and then a mark, or a wait, is not seen.
func workerLoad(rng *rand.Rand, loses bool) []signal.Signal {
	type job struct {
		id           string
		done, wanted int64
	}
	type turn struct {
		dispatch, submitted float64
		batch               []signal.StepRequest
		outs                []signal.Output
	}
	s := newScript()
	r0, r1 := newWorkers(s)
	now, board, mj, number := 100.0, 90.0, int64(5), int64(10)
	var jobs []*job
	var under []*turn
	end := func() {
		x := under[0]
		under = under[1:]
		from := max(now, x.submitted)
		now = from + 4*rng.Float64()
		if !loses || rng.IntN(40) > 0 {
			r0.output(x.submitted, from, now)
		}
		for ; board < now; board += 25 {
			s.boardAt(board, mj, onGPU(rank0PID, -1))
			mj += rng.Int64N(900)
		}
		now += 0.1
		number++
		s.iterate(number, x.dispatch, now, x.batch, func(st *signal.Step) {
			st.Method, st.Dispatch, st.Schedule = signal.StepByDispatch, at(x.dispatch), 0
		}).step(now, x.outs...)
	}
	for k := range 60 {
		for len(jobs) == 0 || rng.IntN(3) == 0 {
			id := fmt.Sprint("r", k, ".", len(jobs))
			now += 0.1
			s.add(now-0.05, now, id, func(a *signal.RequestAdded) { a.Param.HasStop = false })
			jobs = append(jobs, &job{id: id, wanted: 1 + rng.Int64N(6)})
		}
		x := &turn{dispatch: now + 0.3}
		for _, w := range []workerScript{r0, r1} {
			if loses && rng.IntN(60) == 0 {
				w.point.Marks++
			}
			t := now + 0.2 + 0.3*rng.Float64() // before it is woken, or after that
			w.take(t).told(t, x.dispatch).launch(30, t+0.1, t+0.4)
			w.take(t+0.5).told(t+0.5, 0).launch(10, t+0.6, t+0.7)
		}
		now += 1.5
		x.submitted = now
		for _, j := range jobs {
			q, o := in(j.id, 1, 15+j.done, signal.StepRunning, signal.StepDecode), out(j.id, 1)
			if j.done == 0 {
				q = in(j.id, 16, 0, signal.StepNew, signal.StepPrefillEnd)
				started(now-3, now-2)(&o)
			}
			if j.done++; j.done == j.wanted {
				finished(signal.FinishLength, "length")(&o)
			}
			x.batch, x.outs = append(x.batch, q), append(x.outs, o)
		}
		jobs = slices.DeleteFunc(jobs, func(j *job) bool { return j.done == j.wanted })
		under = append(under, x)
		now += 0.1
		for len(under) > rng.IntN(3) {
			end()
		}
	}
	for len(under) > 0 {
		end()
	}
	s.boardAt(board, mj, onGPU(rank0PID, -1)).boardAt(board+25, mj, onGPU(rank0PID, -1))
	return s.put(&signal.Detach{At: at(board + 3000)}).sig
}

// toldLater has messages told up to so many signals later, in their order, and all of them
// before the last two signals. A core is ahead by ten messages at most.
func toldLater(rng *rand.Rand, sig []signal.Signal, most int) (out []signal.Signal) {
	var told []signal.Signal
	due := 0
	for i, x := range sig {
		if _, ok := x.(*signal.MessageTaken); ok {
			if told = append(told, x); rng.IntN(3) == 0 {
				due = max(due, i+rng.IntN(most))
			}
			continue
		}
		if due <= i || len(told) > 2*20 || i == len(sig)-2 {
			out, told = append(out, told...), nil
		}
		out = append(out, x)
	}
	return out
}

// TestPropertyToldLate: however late it is told which messages the workers took, requests have
// the same of the GPUs, and so has nobody. Where marks are lost meanwhile some have nothing.
func TestPropertyToldLate(t *testing.T) {
	timed, powered, lacking, waited := 0, 0, 0, 0
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 3))
		loses := seed%2 == 1
		sig := workerLoad(rng, loses)
		base, m := run(t, NewOptions(), sig)
		want := requestsOf(base)
		c := New(NewOptions())
		var trees []*trace.Tree
		all := map[*gpuTime]bool{}
		for _, s := range toldLater(rng, sig, 40) {
			c.Put(s, func(tr *trace.Tree) {
				conforms(t, tr, NewOptions())
				trees = append(trees, tr)
			})
			for r := c.reqs.head; r != nil; r = r.next {
				if r.gpu != nil {
					all[r.gpu] = true
				}
			}
			for _, e := range c.engines {
				for _, co := range e.cores {
					waited += len(co.unshared)
				}
			}
		}
		got := requestsOf(trees)
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d requests, want %d", seed, len(got), len(want))
		}
		for id, w := range want {
			g := got[id]
			a, has := g.Attr("inferspan.gpu.time").(float64)
			b, had := w.Attr("inferspan.gpu.time").(float64)
			x, powers := g.Attr("inferspan.gpu.energy").(float64)
			y, powers1 := w.Attr("inferspan.gpu.energy").(float64)
			switch {
			case has && !had || powers && !powers1:
				t.Errorf("seed %d: %s has %v s, %v J, and nothing where all is told in time", seed, id, a, x)
			case loses: // of a step behind one without a time it may have more
			case a != b || has != had || powers != powers1 || math.Abs(x-y) > 1e-9:
				t.Errorf("seed %d: %s has %v s and %v J, want %v and %v: %v", seed, id, a, x, b, y, g.Attr("inferspan.unavailable"))
			}
			if has {
				timed++
			} else {
				lacking++
			}
			if powers {
				powered++
			}
		}
		if !loses {
			sameWork(t, c.Metrics(), m)
		}
		metricsConform(t, c.Metrics())
		parts, total := int64(0), int64(0)
		for g := range all {
			parts += g.time
			if g.late != 0 || g.open != 0 {
				t.Errorf("seed %d: one ends as %+v", seed, *g)
			}
		}
		l := &c.engines[0].ledger
		for _, n := range l.nobody {
			parts += int64(n.time)
		}
		for _, x := range l.times {
			total += x.time
		}
		if parts != total || total == 0 {
			t.Errorf("seed %d: %d ns of requests and of nobody, of %d", seed, parts, total)
		}
	}
	t.Logf("%d requests with time, %d with energy, %d without, %d steps waited at some signal", timed, powered, lacking, waited)
	if timed < 2000 || powered < 2000 || lacking < 200 || waited < 10000 {
		t.Error("too few")
	}
}
