package correlate

import (
	"reflect"
	"testing"

	"inferspan/correlate/signal"
)

// kernel is one of a signal; n is of all launches.
func kernel(handle uint64, n int64, symbol string) signal.GPUKernel {
	k := signal.GPUKernel{Handle: handle, Launches: signal.Some(n), Symbol: symbol}
	if symbol != "" {
		k.Name, k.By = "name of "+symbol, "symbols"
	}
	return k
}

func (r *gpuRun) kernels(pid uint32, k ...signal.GPUKernel) {
	r.put(&signal.GPUKernels{At: r.at, Engine: 1, PID: pid, Kernels: k})
}

func (r *gpuRun) wantKernels(want EngineKernels) {
	r.Helper()
	want.Model = "m1"
	got := r.c.Kernels()
	if len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		r.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestKernels(t *testing.T) {
	r := newGPURun(t)
	if got := r.c.Kernels(); got != nil {
		t.Errorf("%+v of nothing", got)
	}
	r.kernels(10, kernel(0x10, 5, "a"), kernel(0x20, 7, ""), kernel(0x30, 0, "none"))
	r.kernels(11, kernel(0x10, 2, "b"), kernel(0x20, 1, "a")) // another process, which has handles of its own
	want := EngineKernels{Launches: 15, Unnamed: 7, Kernels: []KernelCount{
		{Name: "unknown (handle 0x20)", Launches: 7}, {Name: "name of a", Symbol: "a", By: "symbols", Launches: 6}, {Name: "name of b", Symbol: "b", By: "symbols", Launches: 2},
	}}
	r.wantKernels(want)
	// A name that comes later is of all launches.
	r.kernels(10, kernel(0x20, 8, "c"))
	r.kernels(10, kernel(0x20, 9, "")) // only what is new
	want = EngineKernels{Launches: 17, Kernels: []KernelCount{
		{Name: "name of c", Symbol: "c", By: "symbols", Launches: 9}, {Name: "name of a", Symbol: "a", By: "symbols", Launches: 6}, {Name: "name of b", Symbol: "b", By: "symbols", Launches: 2},
	}}
	r.wantKernels(want)
	// A handle that is another kernel's now: what lies between is neither's.
	r.kernels(10, kernel(0x20, 12, "d"))
	r.kernels(10, kernel(0x20, 16, ""))
	want.Launches, want.Reused = 24, 3
	want.Kernels = []KernelCount{want.Kernels[0], want.Kernels[1], {Name: "name of d", Symbol: "d", By: "symbols", Launches: 4}, want.Kernels[2]}
	r.wantKernels(want)
	// Counted anew, as after probes were put in again.
	r.kernels(11, kernel(0x20, 1, "a"), kernel(0x20, 1, ""))
	r.kernels(11, kernel(0x20, 3, ""))
	r.kernels(11, kernel(0x20, 1, ""))
	want.Launches, want.Kernels[1].Launches = 27, 9
	want.Kernels[0], want.Kernels[1] = want.Kernels[1], want.Kernels[0]
	r.wantKernels(want)
	r.put(&signal.GPUKernels{At: r.at, Engine: 1, PID: 11, Beyond: signal.Some[int64](4), Unnoted: signal.Some[int64](2)})
	want.Launches, want.Beyond, want.Unnoted = 31, 4, 2
	r.wantKernels(want)
}

// TestKernelSteps: steps count while launches do, and are not known where some were not seen.
func TestKernelSteps(t *testing.T) {
	r := newGPURun(t)
	r.kernels(10, kernel(1, 8, "a"))
	const begins, launched, none = signal.StepBegins, signal.StepLaunched, signal.StepUnmarked
	mark := func(marks uint32, step signal.StepMark, launches bool) {
		r.put(&signal.GPUMark{GPUPoint: signal.GPUPoint{At: r.at, Engine: 1, PID: 10, TID: 10, Marks: marks, Launches: launches}, Step: step})
	}
	want := EngineKernels{Launches: 8, Kernels: []KernelCount{{Name: "name of a", Symbol: "a", By: "symbols", Launches: 8}}}
	mark(1, none, true)
	mark(2, signal.StepTaken, true)
	r.wantKernels(want)
	mark(4, begins, true)
	mark(5, signal.StepIdle, true)
	mark(6, begins, false)
	mark(7, launched, true)
	want.Steps = 2
	r.wantKernels(want)
	mark(9, begins, true)
	want.Steps = 0
	r.wantKernels(want)
}

// TestGraphKernels: launches as nodes of graphs go with those by the host, and begin anew as
// these do; parts of a note have the same totals.
func TestGraphKernels(t *testing.T) {
	r := newGPURun(t)
	node := func(handle uint64, host, in int64, symbol string) signal.GPUKernel {
		k := kernel(handle, host, symbol)
		k.InGraphs = signal.Some(in)
		return k
	}
	totals := func(named, unseen, changed, room int64, k ...signal.GPUKernel) {
		some := signal.Some[int64]
		r.put(&signal.GPUKernels{At: r.at, Engine: 1, PID: 10, Kernels: k, Graphs: some(named), GraphsUnseen: some(unseen), GraphsChanged: some(changed), GraphsBeyond: some(room)})
	}
	totals(5, 1, 2, 3, node(1, 0, 10, "a"), node(2, 3, 5, ""))
	totals(5, 1, 2, 3, node(3, 9, 0, "b"))
	want := EngineKernels{Launches: 12, InGraphs: 15, Unnamed: 8, Graphs: 5, GraphsUnseen: 1, GraphsChanged: 2, GraphsBeyond: 3, Kernels: []KernelCount{
		{Name: "name of a", Symbol: "a", By: "symbols", InGraphs: 10}, {Name: "name of b", Symbol: "b", By: "symbols", Launches: 9}, {Name: "unknown (handle 0x2)", Launches: 3, InGraphs: 5},
	}}
	r.wantKernels(want)
	totals(6, 1, 2, 3, node(1, 1, 12, ""))
	want.Launches, want.InGraphs, want.Graphs, want.Kernels[0].Launches, want.Kernels[0].InGraphs = 13, 17, 6, 1, 12
	r.wantKernels(want)
	// Anew: the graphs that are known are those that were made since.
	totals(1, 0, 1, 0, node(1, 1, 2, ""), node(2, 3, 0, ""))
	want.InGraphs, want.Graphs, want.GraphsChanged, want.Kernels[0].InGraphs = 19, 7, 3, 14
	r.wantKernels(want)
	// Another kernel's handle.
	totals(1, 0, 1, 0, node(1, 2, 7, "c"))
	want.Launches, want.InGraphs, want.Reused, want.ReusedInGraphs = 14, 24, 1, 5
	r.wantKernels(want)
}
