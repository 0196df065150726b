package e2e

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inferspan/agent"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/jsonl"
	"inferspan/export/prom"
	"inferspan/gpu/cuda"
	"inferspan/gpu/nvml"
	"inferspan/gpu/nvml/nvmltest"
	"inferspan/probes/attach/governor"
	"inferspan/probes/target"
	"inferspan/recording"
)

// exported is a pipeline and what comes out of it as JSON lines.
type exported struct {
	*agent.Pipeline
	lines bytes.Buffer
}

func newExported(t *testing.T) *exported {
	x := &exported{}
	sink := jsonl.New(&x.lines)
	x.Pipeline = agent.NewPipeline(agent.Options{Precision: 1, Steps: 2, StepRecords: true}, func(tree *trace.Tree) {
		if err := sink.Write(tree); err != nil {
			t.Error(err)
		}
	})
	return x
}

// end ends the pipeline and returns the lines and the metrics as text.
func (x *exported) end(t *testing.T) (lines, metrics string) {
	t.Helper()
	x.Detach()
	var b bytes.Buffer
	m := x.Metrics()
	if err := prom.WriteText(&b, &m, export.Defaults{}); err != nil {
		t.Fatal(err)
	}
	return x.lines.String(), b.String()
}

// TestGPUReplay: a replay of a recording of an engine with a GPU gives what was seen live:
// spans, steps with their forward passes, the values of the GPU and what follows of them.
func TestGPUReplay(t *testing.T) {
	needGPU(t)
	e := startWith(t, serveCUDA, []string{"CUDA_MODE=graph", "FAKE_CUDA_KERNEL_NS=50000"})
	e.generate(t, 2, 20) // compiles what the first requests need

	gpu := &nvmltest.Device{ID: "GPU-1", Product: "H100", Util: nvml.Utilization{GPU: 70}, Mem: nvml.Memory{Total: 80 << 30, Used: 5 << 30, Reserved: 1 << 28}, MW: 170000, MJ: 1000, Celsius: 57}
	lib := nvmltest.New(gpu)
	live, err := agent.Open(t.Context(), e.pid, agent.LiveOptions{
		CUDA: cuda.All, Budget: governor.Budget{Work: math.Inf(1), Wait: math.MaxInt64},
		GPUInterval: 100 * time.Millisecond, GPUs: func() (nvml.Library, error) { return lib, nil },
		Attached: func([]agent.Awaited) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	i := slices.IndexFunc(live.Engine.Processes, func(p target.Process) bool { return p.Role == target.RoleCore })
	if i < 0 {
		t.Fatalf("no core among %+v", live.Engine.Processes)
	}
	gpu.Procs = []nvml.Process{{PID: uint32(live.Engine.Processes[i].PID), Memory: 4 << 30, MemoryKnown: true}}

	file := filepath.Join(outDir(t), "gpu.isr")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := recording.NewWriter(f, recording.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	seen := newExported(t)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- live.Run(ctx, seen, agent.NewRecorder(w, false)) }()
	stop := time.NewTicker(50 * time.Millisecond)
	defer stop.Stop()
	spent := make(chan struct{})
	go func() { // the GPU draws power
		defer close(spent)
		for {
			select {
			case <-ctx.Done():
				return
			case <-stop.C:
				lib.Lock()
				gpu.MJ += 8500
				lib.Unlock()
			}
		}
	}()
	time.Sleep(5 * time.Second) // until the probes are in
	e.generate(t, 1, 40)
	e.generate(t, 8, 60)
	e.idle(t)
	time.Sleep(2 * time.Second) // until the energy of the last step is known
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	<-spent
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	lines, metrics := seen.end(t)

	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	rd, err := recording.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	again := newExported(t)
	if notes, err := agent.Replay(rd, again.Pipeline); err != nil || len(notes) > 0 {
		t.Fatalf("replaying: %v, %v", notes, err)
	}
	lines2, metrics2 := again.end(t)
	if lines != lines2 {
		t.Errorf("spans and steps of the replay differ: %s", firstLine(lines, lines2))
	}
	if metrics != metrics2 {
		t.Errorf("metrics of the replay differ: %s", firstLine(metrics, metrics2))
	}
	for what, text := range map[string]string{
		`"forward":`: lines, `"bound":"gpu"`: lines, "inferspan.forward.kernels": lines, "inferspan.gpu.time": lines, "inferspan.gpu.energy": lines,
		"hw_energy_joules_total{": metrics, "inferspan_gpu_engine_busy_energy": metrics, "hw_gpu_utilization_ratio": metrics,
	} {
		if !strings.Contains(text, what) {
			t.Errorf("nothing was seen of %s", what)
		}
	}
	t.Logf("%d lines, %d of them with a forward pass; %d lines of metrics", strings.Count(lines, "\n"), strings.Count(lines, `"forward":`), strings.Count(metrics, "\n"))
}

// firstLine shows the first lines that differ.
func firstLine(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return "live " + x[i] + "\nreplay " + y[i]
		}
	}
	return "one has more lines"
}
