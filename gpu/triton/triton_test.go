package triton

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"testing"

	"inferspan/probes/python"
	"inferspan/tests/child"
	"inferspan/tests/pythons"
)

// script has what triton and torch have of kernels, by the names that these give it.
const script = `
import collections, sys, types
def module(name, **names):
    m = sys.modules[name] = types.ModuleType(name)
    m.__dict__.update(names)
    for c in names.values():
        if isinstance(c, type): c.__module__ = name
    return m
class JITFunction:
    def __init__(self, fn): self.fn, self.device_caches = fn, collections.defaultdict(lambda: None)
class Autotuner:
    def __init__(self, fn): self.fn = fn
class Heuristics(Autotuner): pass
class CachingAutotuner:
    def __init__(self, *kernels): self.compile_results = [Result(k) for k in kernels]
class Result:
    def __init__(self, kernel): self.kernel = kernel
class CompiledKernel:
    def __init__(self, name, function): self.name, self.function = name, function
module("triton.runtime.jit", JITFunction=JITFunction)
module("triton.runtime.autotuner", Autotuner=Autotuner, Heuristics=Heuristics)
module("torch._inductor.runtime.triton_heuristics", CachingAutotuner=CachingAutotuner)
def jit(*kernels):
    j = JITFunction(lambda: None)
    j.device_caches[0] = ({("key", i): k for i, k in enumerate(kernels)}, {}, "target", None, None)
    return j
attention = jit(CompiledKernel("attention", 0x7f0000000010), CompiledKernel("attention", 0x7f0000000020), CompiledKernel("attention", None))
module("engine.attention", attention=attention, again=attention, number=5)
module("engine.tuned", tuned=Autotuner(Heuristics(jit(CompiledKernel("tuned", 0x30)))), bare=Autotuner(None))
module("generated", fused=CachingAutotuner(CompiledKernel("fused_0", 0x40), CompiledKernel("fused_1", 0)))
class Other:
    device_caches = {0: ({0: CompiledKernel("other", 0x50)},)}
module("engine.other", other=Other())
print("ready", flush=True)
sys.stdin.readline()
attention.device_caches[0][0]["late"] = CompiledKernel("late", 0x60)
print("more", flush=True)
sys.stdin.readline()
`

func TestNames(t *testing.T) {
	pythons.Each(t, func(t *testing.T, paths []string) { testNames(t, paths[0]) })
}

func testNames(t *testing.T, exe string) {
	p := child.Start(t, exec.Command(exe, "-c", script))
	p.Expect("ready")
	in, err := python.Open(p.PID())
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("not allowed to read the memory of a child: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := New(in)
	got := f.Names([]uint64{0x7f0000000010, 0x7f0000000020, 0x30, 0x40, 0x50, 0x99, 0})
	want := map[uint64]string{0x7f0000000010: "attention", 0x7f0000000020: "attention", 0x30: "tuned", 0x40: "fused_0"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(f.modules) != 0 || f.Names([]uint64{0x50, 0x99}) == nil || f.Names([]uint64{0x50, 0x99, 0x60}) == nil || f.Names([]uint64{0x50, 0x99}) != nil {
		t.Errorf("what was searched for is searched for again, or what is new is not")
	}
	p.Do("")
	// Asked for when it is launched, so that it is there.
	if got, want := Of(p.PID()).Names([]uint64{0x60}), map[uint64]string{0x60: "late"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNoTriton: a program without it has no names, and is asked again.
func TestNoTriton(t *testing.T) {
	have := pythons.Find()["3.12"]
	if len(have) == 0 {
		t.Skip("no Python 3.12 on this machine")
	}
	p := child.Start(t, exec.Command(have[0], "-c", "print('ready', flush=True); input()"))
	p.Expect("ready")
	in, err := python.Open(p.PID())
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("not allowed to read the memory of a child: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := New(in).Names([]uint64{1}); got != nil {
		t.Errorf("got %v", got)
	}
}
