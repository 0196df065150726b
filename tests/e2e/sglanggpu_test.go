package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const serveSGLangCUDA = "../engines/sglang-cuda/serve.sh"

// TestGPUSGLangForward is TestGPUForward for SGLang, whose steps are marked behind their
// launch, and at its beginning where it does not overlap them; and TestGPUShare. With several
// ranks the passes of each are compared.
func TestGPUSGLangForward(t *testing.T) {
	needGPUOf(t, "sglang-cuda-0.5.23", "engine-sglang-cuda")
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skipf("the kernel does not count runs of BPF programs: %v", err)
	}
	defer stats.Close()
	for _, c := range []struct {
		name, mode, kernel string
		ranks              int
		flags              []string
	}{
		{"eager", "eager", "2000", 1, nil},
		{"graph", "graph", "100000", 1, nil},
		{"no overlap", "graph", "20000", 1, []string{"--disable-overlap-schedule"}},
		{"eager-2", "eager", "2000", 2, nil},
		{"graph-2", "graph", "100000", 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := append([]string{"--sleep-on-idle", "--chunked-prefill-size", "64"}, c.flags...)
			if c.ranks > 1 {
				flags = append(flags, "--tp-size", strconv.Itoa(c.ranks), "--disable-custom-all-reduce")
			}
			sglangForward(t, c.mode, c.kernel, c.ranks, len(c.flags) == 0, flags)
		})
	}
}

// scheduler finds the scheduler of a rank of SGLang, whose main thread has its number.
func scheduler(t *testing.T, e *engine, rank int) int {
	t.Helper()
	for _, pid := range childrenOf(e.pid) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if name := strings.TrimRight(string(b), "\x00 "); name == "sglang::scheduler" || name == fmt.Sprint("sglang::scheduler_TP", rank) {
			return pid
		}
	}
	t.Fatalf("no scheduler of rank %d", rank)
	return 0
}

func sglangForward(t *testing.T, mode, kernel string, ranks int, overlap bool, flags []string) {
	log := filepath.Join(outDir(t), "gpu.ndjson")
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	e := startWith(t, serveSGLangCUDA, []string{"CUDA_MODE=" + mode, "FAKE_CUDA_LOG=" + log, "FAKE_CUDA_KERNEL_NS=" + kernel, "FAKE_CUDA_DEVICES=" + strconv.Itoa(ranks)}, flags...)
	// Each rank has a device, and the same number of steps.
	of := func(rank int, ops []gpuOp) []gpuOp {
		pid := scheduler(t, e, rank)
		return slices.DeleteFunc(slices.Clone(ops), func(o gpuOp) bool { return ranks > 1 && o.Tid != pid })
	}
	prompts := 0
	load := func(tokens int) {
		e.generate(t, 1, tokens)
		e.generate(t, 8, tokens)
		prompts++ // one that is in no cache
		generateLong(t, e, prompts)
	}
	load(20) // compiles what the first requests need
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "--cuda\tsteps\tlaunches\tcopies\tstreams\tgraphs\tevents\twaits\ttraps per step\t")
	for _, counted := range []string{"all", "graph"} {
		restSGLang(t, e)
		_, from := gpuLog(t, log, 0)
		tr := attach(t, e, "--cuda", counted, "--steps", "2", "--probe-work", "0", "--probe-wait", "0")
		time.Sleep(2 * time.Second)
		// What the first batch ever seen is to its requests is not known.
		e.generate(t, 1, 2)
		restSGLang(t, e)
		time.Sleep(100 * time.Millisecond)
		_, from = gpuLog(t, log, from)
		began := time.Now().UnixNano()
		// By the difference, what a request costs once does not count.
		var runs []map[string]float64
		for _, tokens := range []int{50, 150} {
			load(tokens)
			restSGLang(t, e)
			time.Sleep(500 * time.Millisecond)
			n, _ := programs(t, tr.cmd.Process.Pid)
			ops, _ := gpuLog(t, log, from)
			r := map[string]float64{"steps": float64(samplings(of(0, ops)))}
			for p, n := range n {
				r[p] = float64(n)
			}
			runs = append(runs, r)
		}
		steps := runs[1]["steps"] - runs[0]["steps"]
		row, sum := cudaTraps(func(p string) float64 { return (runs[1][p] - runs[0][p]) / steps / float64(ranks) })
		fmt.Fprintf(w, "%s\t%.0f\t", counted, steps)
		for _, x := range row {
			fmt.Fprintf(w, "%.2f\t", x)
		}
		fmt.Fprintf(w, "%.2f\t\n", sum)
		most := 12.0
		if ranks > 1 && mode == "eager" {
			most += 2 * 6 // torch records two events at each collective: two in a layer, of which there are two, and two more
		}
		if counted == "graph" && sum > most {
			t.Errorf("%.2f traps per step with --cuda graph: it is to be a few, however many kernels there are", sum)
		}
		seen := slices.DeleteFunc(tr.mustStop(t), func(s *span) bool { return s.Start < began })
		spans, lines := splitSteps(seen)
		ops, _ := gpuLog(t, log, from)
		if ranks > 1 {
			each := rankSteps(t, lines, ranks)
			for rank := 1; rank < ranks; rank++ {
				checkLaunched(t, counted, rank, overlap, each[rank], of(rank, ops))
			}
			lines, ops = each[0], of(0, ops)
		}
		checkLaunched(t, counted, 0, overlap, lines, ops)
		checkPrefills(t, overlap, spans)
		method := "forward_pass"
		if counted == "graph" {
			method = "forward_step"
		}
		checkShares(t, counted, method, spans, lines, ops)
	}
	if overlap && mode == "eager" && ranks == 1 {
		sampledLater(t, e)
	}
	w.Flush()
	t.Logf("traps on the CUDA driver per scheduler step, SGLang, %s\n%s", t.Name(), &b)
}

// rankSteps has the steps of each rank, with its own pass and when its launch began. Outputs
// are sent by the first one.
func rankSteps(t *testing.T, steps []*span, ranks int) [][]*span {
	t.Helper()
	f := faults{t: t}
	defer f.end("ranks")
	each := make([][]*span, ranks)
	for _, s := range steps {
		if len(s.Forward) != ranks {
			f.add("step %d has %d passes", s.Step, len(s.Forward))
			continue
		}
		for rank, p := range s.Forward {
			if p.Rank == nil || *p.Rank != rank || p.Begin == 0 {
				f.add("step %d: pass %d is of rank %s, begun at %d", s.Step, rank, intText(p.Rank), p.Begin)
			}
			one := *s
			one.Start, one.Forward = p.Begin, []forward{p}
			if rank > 0 {
				one.End = 0
			}
			each[rank] = append(each[rank], &one)
		}
		if (s.FirstSkew == nil) != slices.ContainsFunc(s.Forward, func(p forward) bool { return p.First == 0 }) {
			f.add("step %d: ranks' first launches are %v apart, of %+v", s.Step, s.FirstSkew, s.Forward)
		}
	}
	return each
}

// sampledLater: steps with a request that has a grammar, whose tokens are sampled behind the
// results before, have no pass, nor has a step that was launched before these were sampled; the
// others do.
func sampledLater(t *testing.T, e *engine) {
	f := faults{t: t}
	defer f.end("steps that are sampled later")
	tr := attach(t, e, "--steps", "1", "--probe-work", "0", "--probe-wait", "0")
	time.Sleep(2 * time.Second)
	e.generate(t, 1, 5)
	grammar := generateText(t, e, `{"text":"any text","sampling_params":{"regex":"(.|\\n)*","max_new_tokens":12,"temperature":0}}`)
	e.generate(t, 1, 5)
	restSGLang(t, e)
	time.Sleep(500 * time.Millisecond)
	_, steps := splitSteps(tr.mustStop(t))
	later, behind := 0, false
	for i, s := range steps {
		of := slices.ContainsFunc(s.Requests, func(q stepRequest) bool { return q.ID == grammar })
		if n := len(s.Forward); of && n != 0 || behind && n != 0 || !of && !behind && n != 1 {
			f.add("step %d has %d passes; with a grammar: %v, behind one: %v", s.Step, n, of, behind)
		}
		// One that is launched when the results of the one before are out is whole.
		behind = of && i+1 < len(steps) && (s.End == 0 || steps[i+1].Start < s.End)
		if of {
			later++
		}
	}
	t.Logf("%d of %d steps are sampled later", later, len(steps))
	if later == 0 || later == len(steps) {
		f.add("%d of %d steps are sampled later", later, len(steps))
	}
}

// generateLong has the prompt in several chunks, and all tokens of the answer at once.
func generateLong(t *testing.T, e *engine, n int) {
	t.Helper()
	generateText(t, e, fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":8,"temperature":0,"ignore_eos":true}}`, strings.Repeat(fmt.Sprintf("road %d ", n), 60)))
}

// generateText sends a request to SGLang's own interface and returns its id.
func generateText(t *testing.T, e *engine, body string) string {
	t.Helper()
	resp, err := http.Post(e.url+"/generate", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Meta struct{ ID string } `json:"meta_info"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("generate: status %s, %v", resp.Status, err)
	}
	return answer.Meta.ID
}

// samplings is how many steps are in the log: each takes the likeliest tokens once.
func samplings(ops []gpuOp) (n int) {
	for i := range ops {
		if ops[i].Op == "kernel" && strings.Contains(ops[i].Name, "ArgMaxOps") {
			n++
		}
	}
	return n
}

// checkLaunched: the operations of each step are as its forward pass says. With overlap a
// step has those up to the event that its results are waited for by, from that of the step
// before on, or since outputs were sent behind that; else those from its launch to when its
// outputs were sent, or to the next launch if none were, and waits for the stream that its
// tokens are copied in. Ranks but the first send nothing: their first pass begins before the
// log that is looked at, and is not compared.
func checkLaunched(t *testing.T, counted string, rank int, overlap bool, steps []*span, ops []gpuOp) {
	t.Helper()
	f := faults{t: t}
	defer f.end(fmt.Sprintf("forward passes of rank %d, --cuda %s", rank, counted))
	var sent []int64
	for _, s := range steps {
		if s.End != 0 {
			sent = append(sent, s.End)
		}
	}
	passes, ahead, bound, before := 0, 0, map[string]int{}, int64(0)
	var last *forward // of the step before
	for i, s := range steps {
		if len(s.Forward) != 1 {
			f.add("step %d has %d forward passes", s.Step, len(s.Forward))
			last = nil
			continue
		}
		p := &s.Forward[0]
		passes++
		var end *gpuOp // what it is waited for
		from, to := s.Start, s.End
		if to == 0 && i+1 < len(steps) {
			to = steps[i+1].Start
		}
		if overlap {
			end = eventAt(ops, p.Submitted)
			if end == nil {
				f.add("step %d: no event in the log for the one recorded at %d", s.Step, p.Submitted)
				continue
			}
			from, to, before = before, end.Enq, end.Enq
			for _, at := range sent {
				if at < to {
					from = max(from, at)
				}
			}
		}
		if i == 0 && rank > 0 {
			continue
		}
		var window []gpuOp
		for _, o := range ops {
			if o.Enq > from && o.Enq <= to {
				window = append(window, o)
			}
		}
		for k := range window {
			if o := &window[k]; !overlap && o.Name == "DtoH" && o.Enq <= p.Wait {
				end = o
			}
		}
		if end == nil || !overlap && p.Submitted != p.Wait {
			f.add("step %d: %d was waited for from %d on, the log has %+v", s.Step, p.Submitted, p.Wait, end)
			continue
		}
		if n := samplings(window); n != 1 {
			f.add("step %d: the log has %d steps there", s.Step, n)
		}
		comparePass(&f, s, p, counted, window)
		compareWait(&f, s, p, window, end)
		bound[p.Bound]++
		if i+1 < len(steps) && p.Done > steps[i+1].Start {
			ahead++
		}
		// The wall clock is set anew once a second, so that times of two steps differ by its drift.
		if counted == "all" && last != nil && last.Done != 0 {
			if want := p.First - last.Done; p.Gap == nil || *p.Gap-want > 100_000 || want-*p.Gap > 100_000 {
				f.add("step %d: gap %v, want %d", s.Step, p.Gap, want)
			}
		}
		last = p
	}
	t.Logf("--cuda %s, rank %d: %d forward passes, %v, %d of them waited for after the next one had begun", counted, rank, passes, bound, ahead)
	if passes == 0 || overlap && ahead == 0 {
		f.add("%d passes, %d with overlap", passes, ahead)
	}
}

// checkPrefills: the prefill of each request has the forward passes of its steps.
func checkPrefills(t *testing.T, overlap bool, spans []*span) {
	t.Helper()
	f := faults{t: t}
	defer f.end("spans of forward passes")
	prefills, passes, byID := map[string]*span{}, map[string]int{}, map[string]*span{}
	for _, s := range spans {
		byID[s.SpanID] = s
	}
	// What it is of the other ranks is not followed.
	follows := func(s *span) bool {
		for ; s != nil; s = byID[s.ParentID] {
			if strings.Contains(s.Name, "[TP ") && !strings.Contains(s.Name, "[TP 0]") {
				return true
			}
		}
		return false
	}
	for _, s := range spans {
		if s.Name == "prefill_forward" && !follows(s) {
			prefills[s.SpanID] = s
		}
	}
	for _, s := range spans {
		if s.Name != "inferspan.forward" {
			continue
		}
		passes[s.ParentID]++
		if c := prefills[s.ParentID]; c == nil || s.Start < c.Start || s.End > c.End || s.End <= s.Start {
			f.add("span %s is not within a prefill: %+v", s.SpanID, c)
		}
		if overlap && s.text("inferspan.forward.bound") == "" {
			f.add("span %s: %v", s.SpanID, s.Attrs)
		}
	}
	most := 0
	for id := range prefills {
		if passes[id] == 0 {
			f.add("prefill %s has no forward pass", id)
		}
		most = max(most, passes[id])
	}
	if most < 2 {
		f.add("no prefill has several passes")
	}
	t.Logf("%d prefills, of up to %d passes", len(prefills), most)
}
