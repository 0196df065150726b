package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"inferspan/tests/workload"
)

// cost prints how often each BPF program runs per engine step, with one request
// at a time and with 32, and what the agent takes of the machine. What must not
// depend on the batch size is asserted: traps per step in the engine core.
func cost(t *testing.T, e *engine) {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skipf("the kernel does not count runs of BPF programs: %v", err)
	}
	defer stats.Close()
	before := rate(t, e)
	tr := attach(t, e, governed...)
	one := load(t, e, tr, "one at a time", workload.Options{Seed: 31, Concurrency: 1, Count: 24, Plain: true})
	many := load(t, e, tr, "32 at a time", workload.Options{Seed: 32, Concurrency: 32, Count: 384, Plain: true})
	during := rate(t, e)
	tr.mustStop(t)
	t.Logf("32 at a time: %.0f tokens/s before tracing, %.0f traced, %.0f after (a short run on a shared machine: no benchmark)", before, during, rate(t, e))
	// The CPU build always runs its worker in a process of its own and tells it of each
	// step by two one-byte frames; a single GPU has the worker in the engine core and
	// sends the outputs only.
	const notes = 2
	for _, l := range []loaded{one, many} {
		if per := l.runs["wire_send"] / l.steps; per > 1.2+notes {
			t.Errorf("%s: %.2f traps per step at the engine core's send, want one and %d of the worker's", l.name, per, notes)
		}
		// The rest is receiving: one receipt per step in the API server, which is not on the
		// engine's path, and two frames per request in the engine core.
		for _, p := range []string{"wire_recv_enter", "wire_recv_exit"} {
			if rest := l.runs[p] - l.steps - 2*l.requests; rest > 0.2*l.steps {
				t.Errorf("%s: %.0f unexplained runs of %s in %.0f steps", l.name, rest, p, l.steps)
			}
		}
	}
	// Everything but the tracepoints is a trap in a thread of the engine. py_hit is left
	// to the governor, which tells calls that cost time from those of code that only
	// waits: this engine core spins while its worker computes.
	const most = 12
	traps := 0.0
	for p, n := range many.runs {
		if !strings.HasPrefix(p, "http_") && p != "process_exit" && p != "py_hit" {
			traps += n
		}
	}
	if per := traps / many.steps; per > most {
		t.Errorf("%s: %.1f traps per step in all, want at most %d", many.name, per, most)
	}
	if a, b := one.runs["wire_send"]/one.steps, many.runs["wire_send"]/many.steps; b > a+0.2 {
		t.Errorf("traps per step grow with the batch: %.2f with one request at a time, %.2f with 32", a, b)
	}
}

// rate returns the tokens per second with 32 requests at a time.
func rate(t *testing.T, e *engine) float64 {
	t.Helper()
	e.idle(t)
	before, start := e.metrics(t), time.Now()
	e.playNamed(t, workload.Options{Seed: 33, Concurrency: 32, Count: 192, Plain: true}, "burst")
	return (e.metrics(t).sum("vllm:generation_tokens_total") - before.sum("vllm:generation_tokens_total")) / time.Since(start).Seconds()
}

// loaded is what one piece of traffic took.
type loaded struct {
	name     string
	steps    float64
	requests float64
	runs     map[string]float64 // of each BPF program
}

func load(t *testing.T, e *engine, tr *tracer, name string, o workload.Options) loaded {
	t.Helper()
	runs0, ns0 := programs(t, tr.cmd.Process.Pid)
	before, cpu0, engine0, start := e.metrics(t), cpuTime(t, tr.cmd.Process.Pid), cpuTree(t, e.pid), time.Now()
	log := e.playNamed(t, o, "burst")
	e.idle(t)
	wall := time.Since(start).Seconds()
	cpu, engineCPU := cpuTime(t, tr.cmd.Process.Pid)-cpu0, cpuTree(t, e.pid)-engine0
	runs1, ns1 := programs(t, tr.cmd.Process.Pid)
	after := e.metrics(t)
	l := loaded{name: name, requests: float64(len(log)), runs: map[string]float64{}}
	l.steps = after.sum("vllm:iteration_tokens_total_count") - before.sum("vllm:iteration_tokens_total_count")
	if l.steps == 0 {
		t.Fatal("the engine made no step")
	}
	tokens := after.sum("vllm:generation_tokens_total") - before.sum("vllm:generation_tokens_total")
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "runs\tper step\tper request\tns each\t  program\n")
	var names []string
	for p := range runs1 {
		names = append(names, p)
	}
	sort.Strings(names)
	for _, p := range names {
		n := float64(runs1[p] - runs0[p])
		l.runs[p] = n
		if n == 0 {
			continue
		}
		fmt.Fprintf(w, "%.0f\t%.3f\t%.2f\t%.0f\t  %s\n", n, n/l.steps, n/l.requests, float64(ns1[p]-ns0[p])/n, p)
	}
	w.Flush()
	rss, peak := memory(t, tr.cmd.Process.Pid)
	t.Logf("%s: %.0f requests, %.0f tokens, %.0f steps in %.1f s; agent CPU %.1f %% of a core (engine %.0f %%), RSS %d MiB, peak %d MiB\n%s",
		name, l.requests, tokens, l.steps, wall, 100*cpu/wall, 100*engineCPU/wall, rss>>10, peak>>10, &b)
	return l
}

// programs returns runs and nanoseconds of the BPF programs that the process holds.
func programs(t *testing.T, pid int) (runs, ns map[string]int64) {
	t.Helper()
	runs, ns = map[string]int64{}, map[string]int64{}
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[ebpf.ProgramID]bool{}
	for _, f := range infos {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the descriptor is gone
		}
		for line := range strings.Lines(string(b)) {
			v, ok := strings.CutPrefix(line, "prog_id:")
			if !ok {
				continue
			}
			id, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil || seen[ebpf.ProgramID(id)] {
				continue
			}
			seen[ebpf.ProgramID(id)] = true
			p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
			if err != nil {
				t.Fatalf("opening BPF program %d: %v", id, err)
			}
			info, err := p.Info()
			if err != nil {
				t.Fatalf("reading BPF program %d: %v", id, err)
			}
			st, err := p.Stats()
			p.Close()
			if err != nil {
				t.Fatalf("reading BPF program %d: %v", id, err)
			}
			runs[info.Name] += int64(st.RunCount)
			ns[info.Name] += st.Runtime.Nanoseconds()
		}
	}
	if len(runs) == 0 {
		t.Fatalf("process %d holds no BPF program", pid)
	}
	return runs, ns
}

// cpuTime returns the seconds of CPU that a process has used.
func cpuTime(t *testing.T, pid int) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The command in parentheses may hold blanks; utime and stime are fields 14 and 15.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	const hz = 100 // USER_HZ, the same on all architectures we build for
	u, _ := strconv.ParseFloat(f[11], 64)
	s, _ := strconv.ParseFloat(f[12], 64)
	return (u + s) / hz
}

// cpuTree is cpuTime of a process and everything below it.
func cpuTree(t *testing.T, pid int) float64 {
	t.Helper()
	sum := cpuTime(t, pid)
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for c := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(c); err == nil {
				sum += cpuTree(t, n)
			}
		}
	}
	return sum
}

// memory returns resident memory and its peak in KiB.
func memory(t *testing.T, pid int) (rss, peak int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			rss = n
		case "VmHWM:":
			peak = n
		}
	}
	return rss, peak
}
