package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"inferspan/agent"
	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/correlate"
	"inferspan/correlate/trace"
	"inferspan/probes/procfs"
)

// TestGPUKernels compares what a recording has of the kernels that an engine launched,
// between two points at which it is idle, with the log of the GPU: by name, from a tracer
// that was there when the engine started, and from one that came later. Of graphs only the
// first one can know what is in them.
func TestGPUKernels(t *testing.T) {
	needGPU(t)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skipf("the kernel does not count runs of BPF programs: %v", err)
	}
	defer stats.Close()
	for _, mode := range []string{"eager", "default"} {
		t.Run(mode, func(t *testing.T) {
			log := filepath.Join(outDir(t), "gpu.ndjson")
			if err := os.RemoveAll(log); err != nil {
				t.Fatal(err)
			}
			early := make(chan *recorder)
			go func() { early <- recordEarly(t, log) }()
			e := startWith(t, serveCUDA, []string{"CUDA_MODE=" + mode, "FAKE_CUDA_LOG=" + log, "FAKE_CUDA_KERNEL_NS=2000"})
			r := <-early
			if r == nil {
				t.Fatal("no core of an engine came up to be recorded")
			}
			e.kernels(t, "early", log, r)
			r = recordKernels(t, e.pid, "late")
			for range 600 {
				if strings.Contains(r.stderr.String(), "attached") {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			e.kernels(t, "late", log, r)
		})
	}
}

// recorder is a running "inferspan record".
type recorder struct {
	cmd    *exec.Cmd
	file   string
	stderr syncBuffer
}

func recordKernels(t *testing.T, pid int, name string) *recorder {
	r := &recorder{file: filepath.Join(outDir(t), name+".isr")}
	r.cmd = exec.Command(binary, "record", "--pid", strconv.Itoa(pid), "-o", r.file, "--cuda", "all", "--probe-work", "0", "--probe-wait", "0")
	r.cmd.Stderr = &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() {
		if r.cmd.ProcessState == nil {
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
		}
	})
	return r
}

// recordEarly records an engine as soon as its core is there, which writes to a log of the
// GPU; nil if none comes.
func recordEarly(t *testing.T, log string) *recorder {
	fs := procfs.FS{}
	for range 1200 {
		pids, _ := fs.PIDs()
		for _, pid := range pids {
			args, _ := fs.Cmdline(pid)
			if !strings.Contains(strings.Join(args, " "), "EngineCore") {
				continue
			}
			// It has its title where its environment was: its parent has that still.
			st, err := fs.Stat(pid)
			if err != nil {
				continue
			}
			if env, err := fs.Env(st.PPID, "FAKE_CUDA_LOG"); err == nil && env["FAKE_CUDA_LOG"] == log {
				return recordKernels(t, pid, "early")
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// kernels has the engine work and ends the recording, and compares.
func (e *engine) kernels(t *testing.T, when, log string, r *recorder) {
	t.Helper()
	// A point is a look later, so that all before it is in.
	point := func() (mono uint64, wall int64, runs map[string]int64) {
		e.idle(t)
		time.Sleep(5 * time.Second)
		var m, w unix.Timespec
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &m) != nil || unix.ClockGettime(unix.CLOCK_REALTIME, &w) != nil {
			t.Fatal("no clocks")
		}
		runs, _ = programs(t, r.cmd.Process.Pid)
		time.Sleep(1500 * time.Millisecond)
		return uint64(m.Nano()), w.Nano(), runs
	}
	work := func() {
		e.generate(t, 1, 50)
		e.generate(t, 8, 50)
	}
	// The probes are in when launches are seen.
	for range 60 {
		if runs, _ := programs(t, r.cmd.Process.Pid); runs[string(bpf.ProgCUDALaunch)] > 0 {
			break
		}
		e.generate(t, 1, 2)
		time.Sleep(time.Second)
	}
	begun, begunWall, _ := point()
	work()
	// Names are found while it works, and in the interpreter by and by.
	for range 12 {
		e.generate(t, 1, 5)
		time.Sleep(2 * time.Second)
	}
	middle, middleWall, before := point()
	work()
	end, endWall, after := point()
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Wait(); err != nil {
		t.Fatalf("record: %v\n%s", err, r.stderr.String())
	}
	ops, _ := gpuLog(t, log, 0)
	at := kernelsAt(t, r.file, begun, middle, end)
	f := faults{t: t}
	defer f.end("kernels, attached " + when)
	checkGraphKernels(&f, when, at, ops, middleWall, endWall)
	// While names are found the counts of all kernels together are compared: a name that
	// comes late is of launches before the first point, too.
	first, then := logged(ops, begunWall, middleWall), logged(ops, middleWall, endWall)
	if n, want := at[1].Launches-at[0].Launches, sum(first); n != want {
		f.add("%d launches while names were found, the log has %d", n, want)
	}
	got := map[string]int64{}
	for _, k := range at[2].Kernels {
		got[k.Symbol] += k.Launches
	}
	for _, k := range at[1].Kernels {
		got[k.Symbol] -= k.Launches
	}
	maps.DeleteFunc(got, func(_ string, n int64) bool { return n == 0 }) // those in graphs alone, too
	if n, want := at[2].Launches-at[1].Launches, sum(then); n != want {
		f.add("%d launches with names, the log has %d", n, want)
	}
	for name, n := range then {
		if got[name] != n {
			f.add("%d launches of %s, the log has %d", got[name], name, n)
		}
	}
	for name, n := range got {
		if then[name] == 0 {
			f.add("%d launches of %q, which the log does not have", n, name)
		}
	}
	t.Logf("attached %s: %d launches while names were found, then %d of %d kernels, %d of them without a name", when, sum(first), sum(then), len(then), got[""])
	by := map[string]int{}
	for _, k := range at[2].Kernels {
		by[k.By]++
	}
	if at[2].Beyond+at[2].Reused+at[2].Unnoted != 0 {
		f.add("not counted: %+v", at[2])
	}
	// Names are asked for when a library is ready to launch a kernel; the rig's cuBLAS and
	// NCCL ask at each launch. Those calls are not launches. Nor does it count that the first
	// launches are compared with the runtime's, which is not for names.
	var traps, asked, n int64
	for program, runs := range after {
		runs -= before[program]
		switch bpf.Program(program) {
		case bpf.ProgCUDALaunch, bpf.ProgCUDALaunchEx, bpf.ProgCUDALaunchCoop, bpf.ProgCUDARuntimeLaunch, bpf.ProgCUDARuntimeLaunchEx,
			bpf.ProgCUDAPairBegin, bpf.ProgCUDAPairBeginEx, bpf.ProgCUDAPairEnd:
			traps += runs
		case bpf.ProgCUDANameBegin, bpf.ProgCUDANameEnd, bpf.ProgCUDAAliasBegin, bpf.ProgCUDAAliasEnd:
			asked += runs
		}
	}
	for _, o := range ops {
		// Nodes of a graph are launched when it is made.
		if o.Op == "kernel" && o.Graph == 0 && o.Enq >= middleWall && o.Enq < endWall {
			n++
		}
	}
	t.Logf("attached %s: names by %v; %.3f traps per launch when they are known, and %d where the driver is asked for names", when, by, float64(traps)/float64(n), asked)
	if traps != n {
		f.add("%d traps at %d launches", traps, n)
	}
}

// checkGraphKernels compares what graphs launched between the second and the third point: of
// an engine whose graphs were seen being made by name and count, of others that it is said.
func checkGraphKernels(f *faults, when string, at []correlate.EngineKernels, ops []gpuOp, from, to int64) {
	want, got := map[string]int64{}, map[string]int64{}
	var graphs int64
	for _, o := range ops {
		switch {
		case o.Enq < from || o.Enq >= to:
		case o.Op == "graph":
			graphs++
		case o.Op == "kernel" && o.Graph != 0:
			want[o.Name]++
		}
	}
	for _, k := range at[2].Kernels {
		got[k.Symbol] += k.InGraphs
	}
	for _, k := range at[1].Kernels {
		got[k.Symbol] -= k.InGraphs
	}
	maps.DeleteFunc(got, func(_ string, n int64) bool { return n == 0 })
	known, unseen := at[2].Graphs-at[1].Graphs, at[2].GraphsUnseen-at[1].GraphsUnseen
	f.t.Logf("attached %s: %d launches of graphs, %d of them known by what they launch: %d of %d kernels", when, graphs, known, sum(got), len(got))
	if at[2].GraphsChanged+at[2].GraphsBeyond != 0 || known+unseen != graphs {
		f.add("%d launches of graphs with names, %d without, %d changed, %d beyond; the log has %d", known, unseen, at[2].GraphsChanged, at[2].GraphsBeyond, graphs)
	}
	if when == "late" {
		// They are made when the engine starts.
		if known != 0 || len(got) != 0 {
			f.add("graphs that were made before are known: %v", got)
		}
		return
	}
	if unseen != 0 || !maps.Equal(got, want) {
		f.add("in graphs %v were launched, the log has %v; %d launches of graphs are not known", got, want, unseen)
	}
}

func sum(n map[string]int64) (all int64) {
	for _, v := range n {
		all += v
	}
	return all
}

// logged counts the kernels of a log by name, those in graphs left out.
func logged(ops []gpuOp, from, to int64) map[string]int64 {
	n := map[string]int64{}
	for _, o := range ops {
		if o.Op == "kernel" && o.Graph == 0 && o.Enq >= from && o.Enq < to {
			n[o.Name]++
		}
	}
	return n
}

// kernelsAt replays a recording up to each of some times.
func kernelsAt(t *testing.T, file string, times ...uint64) (out []correlate.EngineKernels) {
	t.Helper()
	p := agent.NewPipeline(agent.Options{}, func(*trace.Tree) {})
	point := func() {
		all := p.Kernels()
		if len(all) == 0 {
			all = append(all, correlate.EngineKernels{})
		}
		if len(all) > 1 {
			t.Fatalf("%d engines", len(all))
		}
		k := all[0]
		k.Kernels = slices.Clone(k.Kernels)
		out = append(out, k)
	}
	readRecording(t, file, p.Engine, func(r *event.Record) error {
		for len(out) < len(times) && r.Time >= times[len(out)] {
			point()
		}
		return p.Record(r)
	})
	if len(out) < len(times) {
		t.Fatal(fmt.Errorf("the recording ends before the point at %d", times[len(out)]))
	}
	return out
}
