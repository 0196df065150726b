package cuda

import (
	"strings"
	"testing"

	"inferspan/bpf"
)

func TestKernelOf(t *testing.T) {
	for _, tt := range []struct {
		symbol, name string
		handle       bool
	}{
		{"_Z24__device_stub__Z4gemmPfiPfi", "_Z4gemmPfi", false},
		{"_ZZ24__device_stub__Z4gemmPfiPfiE8__handle", "_Z4gemmPfi", true},
		// of libtorch_cuda 2.13
		{
			"_ZZ108__device_stub__ZN2at4cuda45_GLOBAL__N__71ac1640_12_CUDAGraph_cu_8c11d6ca29set_conditional_handle_kernelEyPKbyPKbE8__handle",
			"_ZN2at4cuda45_GLOBAL__N__71ac1640_12_CUDAGraph_cu_8c11d6ca29set_conditional_handle_kernelEyPKb", true,
		},
		{"_ZZL24__device_stub__Z4gemmPfiPfiE8__handle", "_Z4gemmPfi", true}, // static, as most are
		{"_ZGVZL24__device_stub__Z4gemmPfiPfiE8__handle", "", false},
		{"_ZL24__device_stub__Z4gemmPfiPfi", "_Z4gemmPfi", false},
		{"_Z22__device_stub__softmaxPf", "softmax", false}, // extern "C"
		{"_ZZ22__device_stub__softmaxPfE8__handle", "softmax", true},
		{"_ZZ22__device_stub__softmaxPfE5other", "", false},
		{"_Z4gemmPfi", "", false},
		{"_Z14__device_stub_v", "", false},
		{"_Z15__device_stub__v", "", false},
		{"_Z99__device_stub__softmaxPf", "", false},
		{"_Z99999999999999999999__device_stub__softmaxPf", "", false},
		{"_Z-1__device_stub__softmaxPf", "", false},
		{"_ZZ", "", false},
		{"main", "", false},
		{"", "", false},
	} {
		name, handle, ok := kernelOf(tt.symbol)
		if name != tt.name || ok != (tt.name != "") || ok && handle != tt.handle {
			t.Errorf("%s: %q, %v, %v; want %q, %v", tt.symbol, name, handle, ok, tt.name, tt.handle)
		}
	}
}

// FuzzKernelOf: whatever a library calls its symbols, a name is a part of that.
func FuzzKernelOf(f *testing.F) {
	f.Add("_ZZ24__device_stub__Z4gemmPfiPfiE8__handle")
	f.Add("_Z22__device_stub__softmaxPf")
	f.Fuzz(func(t *testing.T, symbol string) {
		if name, _, ok := kernelOf(symbol); ok != (name != "") || !strings.Contains(symbol, name) {
			t.Errorf("%q, %v", name, ok)
		}
	})
}

func TestGiven(t *testing.T) {
	n := newNamer(1)
	is := func(handle uint64, want string) {
		t.Helper()
		if name, by := n.name(handle); name != want || (by == ByRegistration) != (want != "") {
			t.Errorf("%d is %q by %q, want %q", handle, name, by, want)
		}
	}
	byName, byKernel := n.give([]bpf.CUDAName{{Handle: 1, Calls: 1, Name: "a"}, {Handle: 2, Calls: 3, Kernel: 1}, {Handle: 3, Calls: 1, Kernel: 4}, {Handle: 5, Calls: 1, Kernel: 5}, {Handle: 6, Calls: 1}})
	if byName != 0 || byKernel != 2 {
		t.Errorf("%d and %d calls gave what was known, want 0 and 2", byName, byKernel)
	}
	is(1, "a")
	is(2, "a")
	is(3, "")
	is(5, "")
	is(6, "")
	if byName, byKernel := n.give([]bpf.CUDAName{{Handle: 2, Calls: 7, Kernel: 1}, {Handle: 1, Calls: 3, Name: "b"}}); byName != 2 || byKernel != 7 {
		t.Errorf("%d and %d calls gave what was known, want 2 and 7", byName, byKernel)
	}
	is(2, "b")
}
