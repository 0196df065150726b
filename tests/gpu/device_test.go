package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
	"inferspan/tests/child"
)

// deviceProgram does so many of each thing for a line of input, on a real GPU: kernels by
// the runtime, products by cuBLAS, launches of a graph of 4 kernels that it made before.
const deviceProgram = `
import sys, torch
x = torch.ones(1024, device="cuda")
m = torch.ones(256, 256, device="cuda")
s = torch.cuda.Stream()
with torch.cuda.stream(s):
    for _ in range(3):
        x.add_(1)
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    for _ in range(4):
        x.add_(1)
host = torch.empty(1024, pin_memory=True)
torch.mm(m, m)
torch.cuda.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(100):
        x.add_(1)
    for _ in range(50):
        torch.mm(m, m)
    for _ in range(10):
        g.replay()
    host.copy_(x, non_blocking=True)
    e = torch.cuda.Event(blocking=True)
    e.record()
    e.synchronize()
    print("done", flush=True)
`

// startDeviceProgram starts the program; step has it do so many of each thing.
func startDeviceProgram(t *testing.T) (pid int, step func()) {
	t.Helper()
	p := child.Start(t, exec.Command(os.Getenv("INFERSPAN_DEVICE_PYTHON"), "-c", deviceProgram))
	p.Expect("ready")
	return p.PID(), func() {
		t.Helper()
		if s := p.Do(""); s != "done" {
			t.Fatalf("the program says %q", s)
		}
	}
}

// TestDevice is for a machine with a GPU (on_device.sh): it prints what the probes on the
// real driver see of a program whose calls are known, and fails where they see less.
func TestDevice(t *testing.T) {
	if os.Getenv("INFERSPAN_DEVICE_PYTHON") == "" {
		t.Skip("INFERSPAN_DEVICE_PYTHON is not set: this test needs a GPU, see on_device.sh")
	}
	pid, step := startDeviceProgram(t)
	driver, err := cuda.Driver(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("driver %s", driver.Path)
	objs, p := attached(t, pid, cuda.All)
	for _, s := range p.Report() {
		t.Logf("%-36s %-6s %d points %s %s", s.Symbol, s.Where, s.Points, s.Means, s.Reason)
	}
	var before, after event.GPU
	for i := range 3 {
		step()
		rd := objs.Reader()
		rd.SetDeadline(time.Now().Add(500 * time.Millisecond))
		var r event.Record
		for rd.Read(&r) == nil {
			if r.Kind == event.KindGPU {
				t.Logf("round %d: %+v", i, r.GPU)
				before, after = after, r.GPU
			}
		}
		seen, err := objs.CUDA(pid)
		t.Logf("round %d: hits %v, runtime calls compared with the driver's: %+v, %v", i, seen.Hits, seen.Levels, err)
		says, err := p.Settle()
		t.Logf("round %d: settled: %q, %v", i, says, err)
	}
	if after.What == 0 {
		t.Fatal("no wait was seen: the driver is reached by functions other than those that it exports")
	}
	got := func(c event.GPUCount) uint64 { return after.Counts[c] - before.Counts[c] }
	kernels := got(event.GPUKernels) + got(event.GPUKernelsEx)
	// cuBLAS may launch more than one kernel for a product.
	for _, c := range []struct {
		what string
		ok   bool
	}{
		{fmt.Sprintf("%d kernels, at least 150 were launched", kernels), kernels >= 150},
		{fmt.Sprintf("%d graphs of 10", got(event.GPUGraphs)), got(event.GPUGraphs) == 10},
		{fmt.Sprintf("%d copies to the host of 1, %d bytes of 4096", got(event.GPUCopiesOut), got(event.GPUBytesOut)), got(event.GPUCopiesOut) == 1 && got(event.GPUBytesOut) == 4096},
	} {
		if !c.ok {
			t.Error(c.what)
		}
	}
}
