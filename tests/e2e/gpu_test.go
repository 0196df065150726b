package e2e

import (
	"bytes"
	order "encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"inferspan/tests/cache"
	"inferspan/tests/workload"
)

// needGPU skips the test, with the reason, where the CUDA build of vLLM cannot run.
func needGPU(t *testing.T) {
	t.Helper()
	needGPUOf(t, "vllm-cuda-0.32.0", "engine-cuda")
}

// needGPUOf is needGPU for the engine in a folder of the cache, which a target installs.
func needGPUOf(t *testing.T, dir, target string) {
	t.Helper()
	if os.Getenv("INFERSPAN_GPU") != "1" {
		t.Skip("INFERSPAN_GPU=1 is not set: this test starts the CUDA build of an engine on a fake GPU")
	}
	if os.Getuid() != 0 {
		t.Skip("not root: probes cannot be attached")
	}
	root, err := cache.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"cuda-rig/.complete", dir + "/.complete"} {
		if _, err := os.Stat(filepath.Join(root, f)); err != nil {
			t.Skipf("%v: \"make %s\" installs the CUDA build of the engine", err, target)
		}
	}
	for _, f := range []string{binary, workloadBinary} {
		if _, err := os.Stat(f); err != nil {
			t.Fatalf("%v: run \"make build\" first", err)
		}
	}
}

// TestGPUEngine looks at the layout of one GPU: scheduler and worker in one process.
// Spans must agree with the engine's own counts as they do on the CPU, and steps with
// the spans and with the log of the GPU.
func TestGPUEngine(t *testing.T) {
	needGPU(t)
	for _, mode := range []string{"eager", "graph"} {
		t.Run(mode, func(t *testing.T) {
			gpu := filepath.Join(outDir(t), "gpu.ndjson")
			if err := os.RemoveAll(gpu); err != nil {
				t.Fatal(err)
			}
			e := startWith(t, serveCUDA, []string{"CUDA_MODE=" + mode, "FAKE_CUDA_LOG=" + gpu})
			tr := attach(t, e, "--precision", "2", "--steps", "1")
			before, done := e.metrics(t), len(gpuBatches(t, gpu))
			log := e.playNamed(t, workload.Options{Seed: 1}, "chat", "stream", "completions", "burst")
			tr.settle(t, len(log))
			e.idle(t)
			after := e.metrics(t)
			spans, steps := splitSteps(tr.mustStop(t))
			checkHTTP(t, log, spans)
			checkTrees(t, spans)
			checkCounts(t, spans, before, after)
			checkSteps(t, spans, steps)
			var batches []int
			for _, s := range steps {
				// A step that schedules nothing does not go to the GPU.
				if n := len(s.Requests); n > 0 {
					batches = append(batches, n)
				}
			}
			if want := gpuBatches(t, gpu)[done:]; !slices.Equal(batches, want) {
				t.Errorf("the GPU ran %d steps with requests, %d were seen, of these sizes:\n%v\n%v", len(want), len(batches), want, batches)
			}
		})
	}
}

// splitSteps tells the lines of scheduler steps from those of spans.
func splitSteps(lines []*span) (spans, steps []*span) {
	for _, l := range lines {
		if l.SpanID == "" {
			steps = append(steps, l)
		} else {
			spans = append(spans, l)
		}
	}
	return spans, steps
}

// gpuBatches returns the requests in each step that the GPU ran so far, by its log: a
// kernel that runs once in each step, in a block for each request.
func gpuBatches(t *testing.T, log string) (sizes []int) {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		if !bytes.Contains(line, []byte(`"name":"_post_update_kernel"`)) {
			continue
		}
		var o struct{ Grid [3]int }
		if err := json.Unmarshal(line, &o); err != nil {
			t.Fatalf("%s: %v", log, err)
		}
		sizes = append(sizes, o.Grid[0])
	}
	return sizes
}

// checkSteps requires every step, whole, and that the steps of each request add up to
// its tokens: the prompt, less what came from the cache, and each token but the last.
func checkSteps(t *testing.T, spans, steps []*span) {
	t.Helper()
	f := faults{t: t}
	defer f.end("steps")
	tokens := map[string]float64{}
	for i, s := range steps {
		if i > 0 && s.Step != steps[i-1].Step+1 {
			f.add("step %d after step %d", s.Step, steps[i-1].Step)
		}
		if s.Partial {
			f.add("step %d is not whole", s.Step)
		}
		for _, r := range s.Requests {
			tokens[r.ID] += r.Tokens
		}
	}
	for _, s := range spans {
		if !s.llmRequest() {
			continue
		}
		prompt, _ := s.number("gen_ai.usage.prompt_tokens")
		cached, _ := s.number("gen_ai.usage.cache_read.input_tokens")
		generated, _ := s.number("gen_ai.usage.completion_tokens")
		id := s.text("inferspan.request.internal_id")
		if want := prompt - cached + generated - 1; tokens[id] != want {
			f.add("request %s: %v tokens in its steps, want %v", id, tokens[id], want)
		}
	}
	t.Logf("%d steps", len(steps))
	if len(steps) == 0 {
		f.add("no step was seen")
	}
}

// checkCounts compares the requests, tokens and stages of the spans with the engine's own counts.
func checkCounts(t *testing.T, spans []*span, before, after series) {
	t.Helper()
	f := faults{t: t}
	defer f.end("counts")
	below := children(spans)
	var requests, prompt, generated float64
	for _, s := range spans {
		if !s.llmRequest() {
			continue
		}
		requests++
		p, _ := s.number("gen_ai.usage.prompt_tokens")
		g, _ := s.number("gen_ai.usage.completion_tokens")
		prompt, generated = prompt+p, generated+g
		c := below[s.SpanID]
		if c["wait"] != 1 || c["prefill"] != 1 || c["decode"] != 1 && g > 1 {
			f.add("request %s with %v tokens has children %v", s.SpanID, g, c)
		}
	}
	for _, c := range []struct {
		name string
		got  float64
	}{
		{"vllm:request_success_total", requests},
		{"vllm:prompt_tokens_total", prompt},
		{"vllm:generation_tokens_total", generated},
	} {
		if want := after.sum(c.name) - before.sum(c.name); c.got != want || want == 0 {
			f.add("%s grew by %v, the spans have %v", c.name, want, c.got)
		}
	}
	t.Logf("%.0f engine requests with %.0f prompt and %.0f generated tokens", requests, prompt, generated)
}

// TestGPUTraps counts the traps in the engine core per scheduler step, with step
// detail on, for 1 request at a time and for 128. On the CPU the core's traps include
// those of its wait for the worker process; here the worker is in the core, as on one
// GPU.
func TestGPUTraps(t *testing.T) {
	needGPU(t)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skipf("the kernel does not count runs of BPF programs: %v", err)
	}
	defer stats.Close()
	for _, mode := range []string{"eager", "graph"} {
		t.Run(mode, func(t *testing.T) { gpuTraps(t, mode) })
	}
}

func gpuTraps(t *testing.T, mode string) {
	const most = 3 // traps per step, with step detail on
	e := startWith(t, serveCUDA, []string{"CUDA_MODE=" + mode}, "--max-num-seqs", "128")
	rate(t, e) // compiles what the first requests need
	before := bestRate(t, e)
	tr := attach(t, e, "--cuda", "off", "--steps", "1")
	time.Sleep(5 * time.Second) // until the steps are seen
	one, many := e.trapsAt(t, tr, 1, 100, 900), e.trapsAt(t, tr, 128, 100, 900)
	during := bestRate(t, e)
	tr.mustStop(t)
	after := bestRate(t, e)

	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "requests\tsteps\toutput frame\tstep\tsum\tAPI server\tmore per request\t")
	for _, s := range []*trapped{one, many} {
		fmt.Fprintf(w, "%d\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\t%.2f\t\n", s.requests, s.steps, s.sends, s.clock, s.perStep(), s.front, s.perRequest)
	}
	w.Flush()
	t.Logf("traps per scheduler step in the engine core, %s mode\n%s", mode, &b)
	t.Logf("32 at a time, best of 3: %.0f tokens/s before tracing, %.0f traced, %.0f after (short runs on a shared machine: no benchmark)", before, during, after)
	for _, s := range []*trapped{one, many} {
		// Two clock reads tell of a step: fewer, and some step was not seen.
		if s.clock < 1.98 {
			t.Errorf("%d requests: %.3f hits per step of the probe on the interpreter, want 2: steps go unseen", s.requests, s.clock)
		}
		// The engine counts steps that had outputs: one in a hundred may have had none.
		if s.perStep() > 1.01*most {
			t.Errorf("%d requests: %.3f traps per step, want at most %d", s.requests, s.perStep(), most)
		}
	}
	if d := many.perStep() - one.perStep(); d > 0.05 || d < -0.05 {
		t.Errorf("traps per step: %.3f with one request, %.3f with 128", one.perStep(), many.perStep())
	}
}

// bestRate is the best of three, which other programs disturbed the least.
func bestRate(t *testing.T, e *engine) float64 {
	t.Helper()
	return max(rate(t, e), rate(t, e), rate(t, e))
}

// trapped is what the kernel counted with so many requests at a time.
type trapped struct {
	requests int
	steps    float64
	// Traps per step:
	sends float64 // at output frames, which the engine core alone sends
	clock float64 // of the probe on the interpreter of the engine core
	front float64 // of all kinds, in the API server
	// Traps in the engine core that a request costs beyond its steps, but for the receipt
	// of its frames.
	perRequest float64
}

func (r *trapped) perStep() float64 { return r.sends + r.clock }

// trapsAt counts with n requests at a time, once with answers of few tokens and once
// with more: by the difference, what a request costs once does not count, nor does what was
// under way when the counters were read.
func (e *engine) trapsAt(t *testing.T, tr *tracer, n, few, most int) *trapped {
	t.Helper()
	var runs []trapped
	for _, tokens := range []int{few, most} {
		before := e.count(t, tr)
		e.generate(t, n, tokens)
		after := e.count(t, tr)
		runs = append(runs, trapped{
			steps: after.steps - before.steps, sends: after.sends - before.sends,
			clock: after.clock - before.clock, front: after.front - before.front,
		})
	}
	short, long := runs[0], runs[1]
	steps := long.steps - short.steps
	r := &trapped{
		requests: n, steps: long.steps + short.steps, sends: (long.sends - short.sends) / steps,
		clock: (long.clock - short.clock) / steps, front: (long.front - short.front) / steps,
	}
	r.perRequest = (short.sends + short.clock - r.perStep()*short.steps) / float64(n)
	return r
}

// count reads the counters while the engine does nothing.
func (e *engine) count(t *testing.T, tr *tracer) *trapped {
	t.Helper()
	e.idle(t)
	time.Sleep(500 * time.Millisecond)
	runs, _ := programs(t, tr.cmd.Process.Pid)
	c := &trapped{
		steps: e.metrics(t).sum("vllm:iteration_tokens_total_count"),
		sends: float64(runs["wire_send"]), clock: float64(e.coreHits(t, tr)),
	}
	for p, n := range runs {
		if !strings.HasPrefix(p, "http_") && p != "process_exit" && p != "wire_send" {
			c.front += float64(n)
		}
	}
	c.front -= c.clock
	return c
}

// generate sends n requests for so many tokens at once and waits for their ends.
func (e *engine) generate(t *testing.T, n, tokens int) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		body := fmt.Sprintf(`{"model":"tiny","prompt":"count %d","max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true}`, i, tokens)
		wg.Go(func() {
			resp, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(body))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("status %d", resp.StatusCode)
				}
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatalf("generating: %v", err)
		}
	}
}

// coreHits returns the hits of probes on the interpreter of the engine core, as
// counted in the map py_probes that the tracer holds. The only other process with
// such probes is the API server.
func (e *engine) coreHits(t *testing.T, tr *tracer) (hits uint64) {
	t.Helper()
	m := heldMap(t, tr.cmd.Process.Pid, "py_probes")
	defer m.Close()
	// struct py_probe_key and the beginning of struct py_probe in bpf/include/python.h
	var key struct {
		IP        uint64
		Tgid, Pad uint32
	}
	var probe []byte
	it := m.Iterate()
	for it.Next(&key, &probe) {
		if int(key.Tgid) != e.pid {
			hits += order.NativeEndian.Uint64(probe)
		}
	}
	if err := it.Err(); err != nil {
		t.Fatalf("reading hits: %v", err)
	}
	return hits
}

// heldMap opens the BPF map of that name that the process holds.
func heldMap(t *testing.T, pid int, name string) *ebpf.Map {
	t.Helper()
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range infos {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the descriptor is gone
		}
		for line := range strings.Lines(string(b)) {
			v, ok := strings.CutPrefix(line, "map_id:")
			if !ok {
				continue
			}
			id, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			m, err := ebpf.NewMapFromID(ebpf.MapID(id))
			if err != nil {
				t.Fatalf("opening BPF map %d: %v", id, err)
			}
			if info, err := m.Info(); err == nil && info.Name == name {
				return m
			}
			m.Close()
		}
	}
	t.Fatalf("process %d holds no BPF map %s", pid, name)
	return nil
}
