package correlate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// workload is an engine with a batch of requests on a GPU that is read now and then, with
// all that can be missing.
func workload(rng *rand.Rand) []signal.Signal {
	s := newScript()
	g := newGPU(s)
	type job struct {
		id                  string
		prompt, done, wants int64
		over                bool
	}
	var jobs []*job
	async, graphs, flaky := rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(3) > 0
	odd := func(n int) bool { return flaky && rng.IntN(n) == 0 }
	g.point.Launches = !graphs
	now, board, mj := 100.0, 90.0, int64(5)
	look := func() {
		for board < now {
			board += 20 + 30*rng.Float64()
			mj += rng.Int64N(900)
			procs := []signal.GPUProcess{onGPU(corePID, 30)}
			if odd(4) {
				procs = append(procs, onGPU(99, rng.Int64N(20)))
			}
			s.boardAt(board, mj, procs...)
		}
	}
	type turn struct {
		begin, submitted float64
		batch            []signal.StepRequest
		outs             []signal.Output
	}
	var before *turn
	number := int64(10)
	end := func(x *turn, from float64) {
		d := max(now, x.submitted) + 5*rng.Float64()
		if !odd(30) {
			g.wait(x.submitted, max(from, x.submitted), d)
		}
		now = d
		look()
		now += 0.1
		g.mark(now, false)
		if number++; odd(60) {
			number++
		}
		s.iterate(number, x.begin, now, x.batch, func(st *signal.Step) {
			st.Partial = odd(40)
			if odd(40) && len(st.Requests) > 0 {
				st.Requests[0].Tokens = -1
			}
		})
		if len(x.outs) > 0 {
			s.step(now, x.outs...)
		}
		now += 0.6
	}
	for k := 0; k < 150 || len(jobs) > 0; k++ {
		if k < 120 && rng.IntN(3) == 0 {
			id := fmt.Sprint("r", k)
			s.add(now, now+0.01, id, func(a *signal.RequestAdded) { a.PromptTokens = signal.Some(int64(10)) })
			jobs = append(jobs, &job{id: id, prompt: 1 + rng.Int64N(2000), wants: 1 + rng.Int64N(12)})
		}
		now += 0.1
		begin := now
		x := &turn{begin: begin}
		if odd(50) {
			g.point.Marks++
		}
		if odd(50) {
			if g.changed(); odd(3) {
				g.point.Continues = 0
			}
		}
		g.mark(now, true)
		now += 0.1
		for _, j := range jobs {
			e, ph, n := signal.StepRunning, signal.StepDecode, int64(1+rng.IntN(3)/2)
			if j.done == 0 {
				e = signal.StepNew
			}
			o := out(j.id, 1)
			if j.wants == 0 { // it was launched before its end was known
				j.over = true
				x.batch = append(x.batch, in(j.id, 1, j.done, e, ph))
				continue
			}
			switch {
			case j.done+700 < j.prompt:
				ph, n = signal.StepPrefillChunk, 700
			case j.done < j.prompt:
				ph, n = signal.StepPrefillEnd, j.prompt-j.done
				started(now-3, now-2)(&o)
			}
			x.batch = append(x.batch, in(j.id, n, j.done, e, ph))
			if j.done += n; ph != signal.StepPrefillChunk {
				if j.wants--; j.wants == 0 {
					finished(signal.FinishLength, "length")(&o)
				}
				x.outs = append(x.outs, o)
			}
		}
		jobs = slices.DeleteFunc(jobs, func(j *job) bool { return j.over || j.wants == 0 && !async })
		g.launch(30, 1, now, now+0.5)
		now += 0.7
		x.submitted = now
		now += 0.1
		if !async {
			end(x, now)
			continue
		}
		if before != nil {
			end(before, now)
		}
		before = x
	}
	if before != nil {
		end(before, now)
	}
	now += 60
	look()
	return s.put(&signal.Detach{At: at(board + 3000)}).sig
}

// TestPropertyGPUShare: the parts of requests and what is nobody's are the time of the
// steps, to the nanosecond; their energy and what flowed outside of steps is the engine's.
func TestPropertyGPUShare(t *testing.T) {
	timed, powered, reasons := 0, 0, map[string]bool{}
	for seed := range uint64(80) {
		sig := workload(rand.New(rand.NewPCG(seed, 7)))
		c := New(NewOptions())
		all := map[*gpuTime]string{}
		var trees []*trace.Tree
		var before metric.Snapshot
		for i, s := range sig {
			c.Put(s, func(tr *trace.Tree) {
				conforms(t, tr, NewOptions())
				trees = append(trees, tr)
			})
			for r := c.reqs.head; r != nil; r = r.next {
				if r.gpu != nil {
					all[r.gpu] = r.external
				}
			}
			if i%40 == 0 {
				m := c.Metrics()
				metricsConform(t, m)
				grows(t, before, m)
				before = m
			}
		}
		l := &c.engines[0].ledger
		requests, nobody, total := int64(0), int64(0), int64(0)
		joules, used, outside, known := 0.0, 0.0, 0.0, 0.0
		for g := range all {
			requests += g.time
			joules += g.joules
			if g.open != 0 || g.time < 0 || g.joules < 0 {
				t.Errorf("seed %d: %s ends as %+v", seed, all[g], *g)
			}
		}
		for _, n := range l.nobody {
			nobody += int64(n.time)
			reasons[n.reason] = true
		}
		for _, x := range l.times {
			total += x.time
			used += x.joules
		}
		if requests+nobody != total || total == 0 {
			t.Errorf("seed %d: %d ns of requests and %d of nobody, of %d", seed, requests, nobody, total)
		}
		for _, x := range l.outside {
			outside += x.joules
		}
		for _, x := range c.engines[0].energy.shares {
			known += x.joules
		}
		if joules > used*(1+1e-9) || nobody == 0 && math.Abs(joules-used) > 1e-6 {
			t.Errorf("seed %d: %v J of requests, of %v", seed, joules, used)
		}
		if len(l.intervals) != 0 || len(l.uses) != 0 || math.Abs(used+outside-known) > 1e-6*known {
			t.Errorf("seed %d: %v J of steps and %v outside, of %v; %d intervals and %d steps left", seed, used, outside, known, len(l.intervals), len(l.uses))
		}
		for id, s := range requestsOf(trees) {
			sum := 0.0
			for g, of := range all {
				if of == id {
					sum += float64(g.time) / 1e9
				}
			}
			if v, ok := s.Attr("inferspan.gpu.time").(float64); ok {
				timed++
				if v != sum {
					t.Errorf("seed %d: %s has %v s, its parts are %v", seed, id, v, sum)
				}
			}
			if s.Attr("inferspan.gpu.energy") != nil {
				powered++
			}
		}
		var again []*trace.Tree
		d := New(NewOptions())
		for _, s := range sig {
			d.Put(s, func(tr *trace.Tree) { again = append(again, tr) })
		}
		if !reflect.DeepEqual(trees, again) || !reflect.DeepEqual(c.Metrics(), d.Metrics()) {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
	if timed < 500 || powered < 200 || !reasons[reasonOver] || !reasons[reasonTokens] {
		t.Errorf("only %d requests with time, %d with energy, nobody has %v", timed, powered, reasons)
	}
}
