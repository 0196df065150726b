package e2e

import (
	"fmt"
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

// forward is a forward pass of a step, in its line.
type forward struct {
	Rank        *int   `json:"rank"`
	Begin       int64  `json:"begin_unix_nano"`
	Counted     string `json:"counted"`
	Kernels     *int   `json:"kernels"`
	Graphs      *int   `json:"graphs"`
	GraphKernel *int   `json:"graph_kernels"`
	Copies      *int   `json:"copies"`
	CopyBytes   *int64 `json:"copy_bytes"`
	First       int64  `json:"first_launch_unix_nano"`
	Last        int64  `json:"last_launch_unix_nano"`
	Submitted   int64  `json:"submitted_unix_nano"`
	Wait        int64  `json:"wait_unix_nano"`
	Done        int64  `json:"done_unix_nano"`
	Bound       string `json:"bound"`
	Gap         *int64 `json:"gap_nano"`
}

// TestGPUForward compares the forward pass of each step with the log of the GPU: what was
// called for, from when to when, and the wait that ended it.
func TestGPUForward(t *testing.T) {
	needGPU(t)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skipf("the kernel does not count runs of BPF programs: %v", err)
	}
	defer stats.Close()
	for _, tt := range []struct{ mode, kernel string }{{"eager", "2000"}, {"graph", "100000"}} {
		t.Run(tt.mode, func(t *testing.T) { gpuForward(t, tt.mode, tt.kernel, 1, "all", "graph", "sampled") })
	}
	for _, tt := range []struct{ mode, kernel string }{{"eager", "2000"}, {"graph", "100000"}} {
		t.Run(tt.mode+"-2", func(t *testing.T) { gpuForward(t, tt.mode, tt.kernel, 2, "all", "graph", "sampled") })
	}
}

// gpuForward runs an engine on so many devices, by tensor parallelism if there are several.
func gpuForward(t *testing.T, mode, kernel string, devices int, levels ...string) {
	log := filepath.Join(outDir(t), "gpu.ndjson")
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	e := startWith(t, serveCUDA, []string{"CUDA_MODE=" + mode, "FAKE_CUDA_LOG=" + log, "FAKE_CUDA_KERNEL_NS=" + kernel, "CUDA_DEVICES=" + strconv.Itoa(devices)})
	rate(t, e) // compiles what the first requests need
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "--cuda\tsteps\tlaunches\tcopies\tstreams\tgraphs\tevents\twaits\ttraps per step\t")
	for _, counted := range levels {
		e.idle(t)
		_, from := gpuLog(t, log, 0)
		tr := attachTo(t, e, "spans-"+counted, "--cuda", counted, "--steps", "2")
		time.Sleep(2 * time.Second)
		if counted == "sampled" {
			// For longer than a turn of it.
			for began := time.Now(); time.Since(began) < 14*time.Second; {
				e.generate(t, 8, 100)
			}
		}
		// By the difference, what a request costs once does not count.
		var runs []map[string]float64
		for _, tokens := range []int{50, 150} {
			e.generate(t, 1, tokens)
			e.generate(t, 8, tokens)
			e.idle(t)
			time.Sleep(500 * time.Millisecond)
			n, _ := programs(t, tr.cmd.Process.Pid)
			r := map[string]float64{"steps": e.metrics(t).sum("vllm:iteration_tokens_total_count")}
			for p, n := range n {
				r[p] = float64(n)
			}
			runs = append(runs, r)
		}
		per := func(program string) float64 {
			return (runs[1][program] - runs[0][program]) / (runs[1]["steps"] - runs[0]["steps"]) / float64(devices)
		}
		row, sum := cudaTraps(per)
		fmt.Fprintf(w, "%s\t%.0f\t", counted, runs[1]["steps"]-runs[0]["steps"])
		for _, x := range row {
			fmt.Fprintf(w, "%.2f\t", x)
		}
		fmt.Fprintf(w, "%.2f\t\n", sum)
		if counted == "graph" && sum > 12 {
			t.Errorf("%.2f traps per step with --cuda graph: it is to be a few, however many kernels there are", sum)
		}
		if devices > 1 {
			time.Sleep(1500 * time.Millisecond) // after a second without a message workers wait for one: the last pass has ended
		}
		spans, steps := splitSteps(tr.mustStop(t))
		ops, _ := gpuLog(t, log, from)
		if devices == 1 {
			checkForward(t, counted, true, steps, ops)
		} else {
			t.Logf("hits of probes on interpreters: %.2f per step and device", per("py_hit"))
			of, ops := checkWorkers(t, e, counted, devices, steps, ops)
			// The time of requests is that of the worker that waits for the outputs.
			checkShares(t, counted, map[string]string{"all": "forward_pass", "graph": "forward_step", "sampled": "forward_"}[counted], spans, of, ops)
		}
		checkForwardSpans(t, spans, steps, devices)
	}
	w.Flush()
	t.Logf("traps on the CUDA driver per scheduler step and device, %s mode\n%s", mode, &b)
}

// checkWorkers compares the passes of each worker with what its thread called for, which
// begin when it took the message of the step, and how far they are apart. It returns the
// steps of rank 0, with that beginning, and its operations.
func checkWorkers(t *testing.T, e *engine, counted string, n int, steps []*span, ops []gpuOp) (lead []*span, leads []gpuOp) {
	t.Helper()
	f := faults{t: t}
	defer f.end("passes of workers, --cuda " + counted)
	of := make([][]*span, n)
	apart := 0
	for i, s := range steps {
		if len(s.Forward) != n {
			f.add("step %d (%d of %d) has %d passes", s.Step, i+1, len(steps), len(s.Forward))
			continue
		}
		var first, last []int64
		for rank, p := range s.Forward {
			if p.Rank == nil || *p.Rank != rank || p.Begin == 0 {
				f.add("step %d: pass %d is of rank %s, begun at %d", s.Step, rank, intText(p.Rank), p.Begin)
			}
			one := *s
			one.Start, one.Forward = p.Begin, []forward{p}
			of[rank] = append(of[rank], &one)
			first, last = append(first, p.First), append(last, p.Last)
		}
		for _, x := range []struct {
			what string
			got  *int64
			at   []int64
		}{{"first", s.FirstSkew, first}, {"last", s.LastSkew, last}} {
			known := !slices.Contains(x.at, 0) && s.Forward[0].Counted == s.Forward[n-1].Counted
			if (x.got != nil) != known || known && *x.got != slices.Max(x.at)-slices.Min(x.at) {
				f.add("step %d: ranks' %s launches are at %v", s.Step, x.what, x.at)
			}
			if known {
				apart++
			}
		}
	}
	t.Logf("--cuda %s: ranks' launches were compared %d times", counted, apart)
	for rank := range of {
		pid := workerPID(t, e, rank)
		var own []gpuOp
		for _, o := range ops {
			if o.Tid == pid {
				own = append(own, o)
			}
		}
		t.Logf("rank %d, process %d", rank, pid)
		checkForward(t, counted, rank == 0, of[rank], own)
		if rank == 0 {
			leads = own
		}
	}
	return of[0], leads
}

// childrenOf lists the processes that a process started.
func childrenOf(pid int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for _, x := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(x); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// workerPID finds the worker of a rank among the grandchildren of the API server.
func workerPID(t *testing.T, e *engine, rank int) int {
	t.Helper()
	for _, core := range childrenOf(e.pid) {
		for _, pid := range childrenOf(core) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.HasPrefix(string(b), fmt.Sprintf("VLLM::Worker_TP%d", rank)) {
				return pid
			}
		}
	}
	t.Fatalf("no worker of rank %d", rank)
	return 0
}

// TestGPUForwardRuntime: an engine whose runtime reaches the driver by functions that it does
// not export has its graphs, events and waits seen at the runtime: each step as above.
func TestGPUForwardRuntime(t *testing.T) {
	needGPU(t)
	log := filepath.Join(outDir(t), "gpu.ndjson")
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	e := startWith(t, serveCUDA, []string{"CUDA_MODE=graph", "FAKE_CUDA_LOG=" + log, "FAKE_CUDA_KERNEL_NS=50000", "FAKE_CUDA_ALIAS=2"})
	e.generate(t, 2, 20) // compiles what the first requests need
	tr := attach(t, e, "--cuda", "graph", "--steps", "1", "--probe-work", "0", "--probe-wait", "0")
	time.Sleep(2 * time.Second)
	e.generate(t, 1, 50) // by which it is settled
	e.idle(t)
	time.Sleep(5 * time.Second)
	_, from := gpuLog(t, log, 0)
	began := time.Now().UnixNano()
	e.generate(t, 1, 50)
	e.generate(t, 8, 50)
	e.idle(t)
	time.Sleep(500 * time.Millisecond)
	_, steps := splitSteps(tr.mustStop(t))
	before := 0
	for before < len(steps) && steps[before].Start < began {
		before++
	}
	// It takes some steps to settle.
	if before == 0 || len(steps[0].Forward) > 0 && steps[0].Forward[0].Done != 0 {
		t.Errorf("of %d steps before it was settled the first one has its wait: the driver is reached by what it exports", before)
	}
	ops, _ := gpuLog(t, log, from)
	checkForward(t, "graph", true, steps[before:], ops)
}

// checkForward: the operations of each step, which are those called for from its beginning
// to that of the next, are as its forward pass says. waits: the thread's outputs are waited
// for.
func checkForward(t *testing.T, counted string, waits bool, steps []*span, ops []gpuOp) {
	t.Helper()
	f := faults{t: t}
	defer f.end("forward passes, --cuda " + counted)
	passes, overlapped, bound, kinds := 0, 0, map[string]int{}, map[string]int{}
	sampled := counted == "sampled"
	for i, s := range steps {
		if len(s.Requests) == 0 || i+1 == len(steps) {
			continue // nothing goes to the GPU; and of the last one the log does not say where it ends
		}
		if len(s.Forward) != 1 {
			f.add("step %d has %d forward passes", s.Step, len(s.Forward))
			continue
		}
		p := &s.Forward[0]
		passes++
		kinds[p.Counted]++
		if sampled {
			counted = p.Counted
		}
		var window []gpuOp
		updates := 0
		for _, o := range ops {
			if o.Enq < s.Start || o.Enq >= steps[i+1].Start {
				continue
			}
			window = append(window, o)
			if o.Name == "_post_update_kernel" {
				updates++
				if o.Grid[0] != len(s.Requests) {
					f.add("step %d of %d requests: the log has %d", s.Step, len(s.Requests), o.Grid[0])
				}
			}
		}
		if updates != 1 {
			f.add("step %d: the log has %d steps there", s.Step, updates)
		}
		comparePass(&f, s, p, counted, window)
		if !waits {
			if p.Submitted != 0 || p.Done != 0 || p.Bound != "" {
				f.add("step %d: a wait of a rank that does not wait: %+v", s.Step, p)
			}
			continue
		}
		event := eventAt(window, p.Submitted)
		if event == nil {
			f.add("step %d: no event in the log for the one recorded at %d", s.Step, p.Submitted)
			continue
		}
		compareWait(&f, s, p, window, event)
		bound[p.Bound]++
		if p.Submitted != 0 && p.Done > steps[i+1].Start {
			overlapped++
		}
		// The wall clock is set anew once a second, so that times of two steps differ by its drift.
		if counted == "all" && i > 0 && len(steps[i-1].Forward) == 1 && steps[i-1].Forward[0].Done != 0 && steps[i-1].Forward[0].Counted == counted {
			want := p.First - steps[i-1].Forward[0].Done
			if p.Gap == nil || *p.Gap-want > 100_000 || want-*p.Gap > 100_000 {
				f.add("step %d: gap %v, want %d", s.Step, p.Gap, want)
			}
		}
	}
	t.Logf("--cuda %s: %d forward passes, %v, %d of them waited for after the next one had begun", counted, passes, bound, overlapped)
	if passes == 0 {
		f.add("no forward pass was seen")
	}
	if sampled {
		t.Logf("sampled: %v", kinds)
		// It changes twice in ten seconds, in one step each time.
		seconds := 1 + (steps[len(steps)-1].Start-steps[0].Start)/1e9
		if kinds["all"] == 0 || kinds["graph"] == 0 || kinds["changed"] == 0 || int64(kinds["changed"]) > 2*(1+seconds/10) {
			f.add("sampled: %v in %d s", kinds, seconds)
		}
	}
}

// comparePass compares what a pass says with the operations in its time. Its first launch is
// the first one from the beginning of the step on.
func comparePass(f *faults, s *span, p *forward, counted string, window []gpuOp) {
	var kernels, graphs, copies int
	var copied int64
	var launches []gpuOp
	for _, o := range window {
		switch {
		case o.Op == "graph":
			graphs++
			launches = append(launches, o)
		case o.Op == "kernel" && o.Graph == 0:
			kernels++
			if counted == "all" {
				launches = append(launches, o)
			}
		case o.Op == "memcpy" && o.Graph == 0:
			copies++
			copied += o.Bytes
		}
	}
	want := forward{Graphs: &graphs}
	if counted == "all" {
		want.Kernels, want.Copies, want.CopyBytes = &kernels, &copies, &copied
	}
	if graphs == 0 {
		want.GraphKernel = new(int) // those of graphs made before attaching are not known
	}
	for _, c := range []struct {
		what      string
		got, want *int
	}{{"kernels", p.Kernels, want.Kernels}, {"graphs", p.Graphs, want.Graphs}, {"copies", p.Copies, want.Copies}, {"kernels in graphs", p.GraphKernel, want.GraphKernel}} {
		if (c.got == nil) != (c.want == nil) || c.got != nil && *c.got != *c.want {
			f.add("step %d: %s %s, the log has %s", s.Step, c.what, intText(c.got), intText(c.want))
		}
	}
	if p.Counted != counted || (p.CopyBytes == nil) != (counted != "all") || p.CopyBytes != nil && *p.CopyBytes != copied {
		f.add("step %d: counted %s, %v bytes copied, the log has %d", s.Step, p.Counted, p.CopyBytes, copied)
	}
	if n := len(launches); n > 0 && counted != "changed" {
		first := 0
		for first < n-1 && launches[first].Enq < s.Start {
			first++ // it prepares the step
		}
		nearCall(f, s, "first launch", p.First, window, &launches[first])
		nearCall(f, s, "last launch", p.Last, window, &launches[n-1])
	} else if p.First != 0 {
		f.add("step %d: a launch at %d, the log has none", s.Step, p.First)
	}
}

// nearCall compares times of one call of those in a step's time: a probe comes before the
// driver notes the call, and behind what the same thread called before that, however busy the
// host is.
func nearCall(f *faults, s *span, what string, got int64, window []gpuOp, call *gpuOp) {
	earlier := s.Start
	for k := range window {
		if o := &window[k]; o.Tid == call.Tid && o.Enq < call.Enq {
			earlier = max(earlier, o.Enq)
		}
	}
	if got > call.Enq+50_000 || got < earlier-50_000 {
		f.add("step %d: %s %d us before the log's, %d us behind the call before", s.Step, what, (call.Enq-got)/1000, (got-earlier)/1000)
	}
}

// compareWait compares the wait of a pass with what it was for in the log.
func compareWait(f *faults, s *span, p *forward, window []gpuOp, end *gpuOp) {
	if end.Op == "event_record" {
		nearCall(f, s, "event", p.Submitted, window, end)
	}
	if p.Done < end.End {
		f.add("step %d: the wait ended %d us before what it was for", s.Step, (end.End-p.Done)/1000)
	}
	// It is certain only where there is time between the two. A copy to memory that is not
	// pinned has been waited for in its call.
	there := "host"
	if end.Op != "event_record" {
		there = ""
	}
	if late := end.End - p.Wait; late > 200_000 && p.Bound != "gpu" || late < -200_000 && p.Bound != there && p.Done-p.Wait < 20_000 {
		f.add("step %d: %s-bound; that came %d us after the wait began", s.Step, p.Bound, late/1000)
	}
}

// cudaTraps returns hits of the probes on the CUDA driver by what they are for, and in all.
func cudaTraps(per func(program string) float64) (row []float64, sum float64) {
	for _, of := range [][]string{
		{"cuda_launch", "cuda_launch_ex", "cuda_launch_coop"},
		{"cuda_copy_in", "cuda_copy_out", "cuda_copy_device", "cuda_copy_other"},
		{"cuda_wait_event"}, {"cuda_launch_graph"}, {"cuda_event_record", "cuda_event_record_flags"},
		{"cuda_sync_event", "cuda_sync_stream", "cuda_sync_context", "cuda_sync_exit"},
	} {
		n := 0.0
		for _, p := range of {
			n += per(p)
		}
		row, sum = append(row, n), sum+n
	}
	return row, sum
}

func intText(n *int) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// checkForwardSpans: a step of a prefill has the forward pass that the step's own line has,
// and the span of that is within it.
func checkForwardSpans(t *testing.T, spans, steps []*span, devices int) {
	t.Helper()
	f := faults{t: t}
	defer f.end("spans of forward passes")
	whole := map[int64]bool{}
	for _, s := range steps {
		whole[s.Step] = slices.ContainsFunc(s.Forward, func(p forward) bool { return p.Done != 0 })
	}
	chunks := map[string]*span{}
	for _, s := range spans {
		if s.Name == "inferspan.prefill_chunk" {
			chunks[s.SpanID] = s
			n, ok := s.number("inferspan.step.number")
			if has := s.text("inferspan.forward.bound") != ""; !ok || has != whole[int64(n)] {
				f.add("chunk %s has a forward pass: %v; its step: %v: %v", s.SpanID, has, whole[int64(n)], s.Attrs)
			}
		}
	}
	if len(chunks) == 0 {
		f.add("no steps of prefills")
	}
	passes := map[string]int{}
	for _, s := range spans {
		if s.Name != "inferspan.forward" {
			continue
		}
		passes[s.ParentID]++
		if c := chunks[s.ParentID]; c == nil || s.Start < c.Start || s.End > c.End || s.End <= s.Start {
			f.add("span %s is not within a step: %+v", s.SpanID, c)
		}
		if _, ok := s.number("inferspan.forward.rank"); ok != (devices > 1) {
			f.add("span %s of %d devices: %v", s.SpanID, devices, s.Attrs)
		}
	}
	// Ranks of the fake GPU do not wait for each other: one that does not give the outputs may
	// launch when these have come and the step is over.
	lines := map[int64]*span{}
	for _, s := range steps {
		lines[s.Step] = s
	}
	for id, n := range passes {
		number, _ := chunks[id].number("inferspan.step.number")
		s, least, most := lines[int64(number)], 0, 0
		if s == nil {
			f.add("step %s of a prefill has no line", id)
			continue
		}
		for _, p := range s.Forward {
			if p.First != 0 && p.First < s.End-1e6 {
				least++
			}
			if p.First != 0 && p.First < s.End+1e6 {
				most++
			}
		}
		if n < least || n > most {
			f.add("step %d of a prefill has spans of %d passes, of %d to %d that began before its end", s.Step, n, least, most)
		}
	}
	t.Logf("%d steps of prefills, %d of them with spans of passes", len(chunks), len(passes))
}
