package e2e

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestGPUShare compares the GPU time of requests with their shares of the steps, and that
// of all with how long the fake GPU worked.
func TestGPUShare(t *testing.T) {
	needGPU(t)
	log := filepath.Join(outDir(t), "gpu.ndjson")
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	e := startWith(t, serveCUDA, []string{"CUDA_MODE=eager", "FAKE_CUDA_LOG=" + log, "FAKE_CUDA_KERNEL_NS=50000"})
	rate(t, e) // compiles what the first requests need
	for counted, method := range map[string]string{"all": "forward_pass", "graph": "forward_step"} {
		e.idle(t)
		_, from := gpuLog(t, log, 0)
		tr := attach(t, e, "--cuda", counted, "--steps", "1")
		time.Sleep(2 * time.Second)
		e.generate(t, 1, 40)
		e.generate(t, 8, 60)
		e.idle(t)
		time.Sleep(500 * time.Millisecond)
		spans, steps := splitSteps(tr.mustStop(t))
		ops, _ := gpuLog(t, log, from)
		checkShares(t, counted, method, spans, steps, ops)
	}
}

func checkShares(t *testing.T, counted, method string, spans, steps []*span, ops []gpuOp) {
	t.Helper()
	f := faults{t: t}
	defer f.end("GPU time of requests, --cuda " + counted)
	want := map[string]float64{} // ns
	timed, done := int64(0), int64(0)
	for _, s := range steps {
		if len(s.Requests) == 0 {
			continue
		}
		if len(s.Forward) != 1 || s.Forward[0].Done == 0 {
			f.add("step %d has no pass that was waited for", s.Step)
			continue
		}
		p := s.Forward[0]
		begin := s.Start
		if p.Counted == "all" {
			begin = p.First
		}
		ns := p.Done - max(begin, done)
		timed, done = timed+ns, p.Done
		tokens := 0.0
		for _, q := range s.Requests {
			tokens += q.Tokens
		}
		for _, q := range s.Requests {
			want[q.ID] += float64(ns) * q.Tokens / tokens
		}
	}
	sum, n := 0.0, 0
	for _, s := range spans {
		id := s.text("inferspan.request.internal_id")
		if strings.Contains(s.Name, "Req ") {
			id = s.text("rid") // SGLang's
		}
		if id == "" {
			continue
		}
		n++
		v, ok := s.number("inferspan.gpu.time")
		if !ok {
			f.add("%s has no GPU time: %v", id, s.Attrs["inferspan.unavailable"])
			continue
		}
		sum += v * 1e9
		// The wall clock is set anew once a second; a step computed after the end of a
		// request is none of its.
		if d := want[id] - v*1e9; d < -1e6-0.02*want[id] || d > 1e6+0.1*want[id] {
			f.add("%s: %.3f ms, by its steps %.3f", id, v*1e3, want[id]/1e6)
		}
		if derived, how := s.derived("inferspan.gpu.time"); !derived || !strings.HasPrefix(how, method) {
			f.add("%s: derived %v by %q, want %s", id, derived, how, method)
		}
	}
	if n == 0 {
		f.add("no requests")
	}
	worked := gpuWorked(ops)
	t.Logf("--cuda %s: %d requests with %.1f ms, %d steps with %.1f ms, in which the GPU worked for %.1f ms", counted, n, sum/1e6, len(steps), float64(timed)/1e6, float64(worked)/1e6)
	if worked == 0 || float64(timed) < 0.99*float64(worked) {
		f.add("the GPU worked for %d us, longer than the %d us of all steps", worked/1000, timed/1000)
	}
	if sum > float64(timed)*1.001 || math.Abs(sum-float64(timed)) > 0.1*float64(timed) {
		f.add("requests have %.0f us, their steps %d us", sum/1e3, timed/1000)
	}
}

// gpuWorked is how long some kernel ran.
func gpuWorked(ops []gpuOp) (ns int64) {
	var runs []gpuOp
	for _, o := range ops {
		if o.Op == "kernel" && o.End > o.Start {
			runs = append(runs, o)
		}
	}
	slices.SortFunc(runs, func(a, b gpuOp) int { return int(min(max(a.Start-b.Start, -1), 1)) })
	end := int64(0)
	for _, o := range runs {
		ns += max(o.End-max(o.Start, end), 0)
		end = max(end, o.End)
	}
	return ns
}
