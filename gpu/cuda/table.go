// Package cuda puts probes on the CUDA driver that a process has mapped, and takes
// them out again. What they see is counted in the kernel (bpf/cuda.bpf.c) and decoded
// by probes/decode.
//
// The level is the driver's: what reaches a GPU goes by there, also from libraries
// with a CUDA runtime of their own inside (cuBLAS, NCCL) and from those that use none
// (Triton). A look at the runtime would miss half of an engine's launches.
package cuda

import (
	"inferspan/bpf"
	"inferspan/probes/attach"
)

// Mode is how much is looked at. The price is in traps.
type Mode string

// Modes.
const (
	Off Mode = "off"
	// Graph: launches of graphs, events and synchronises. A few traps per step, however
	// many kernels it has.
	Graph Mode = "graph"
	// Sampled: as Graph, and now and then for a while as All; Probes.Launches says when.
	Sampled Mode = "sampled"
	// All: every launch and copy too. One trap each.
	All Mode = "all"
)

// Modes are all modes, the cheapest first.
var Modes = []Mode{Off, Graph, Sampled, All}

// probe is a function of the driver, and what runs there.
type probe struct {
	symbols []string // its versions; those that the driver has are probed, each address once
	where   attach.Where
	program bpf.Program
	from    Mode // Graph: always, Sampled: where launches are counted now and then, All: while they are
	// required: without it, what is counted would be wrong and not only less.
	required bool
}

// table lists the probes. Those on returns come before those on entries, so that no
// call is noted whose return is not seen.
//
// Names with _ptsz are of programs built for a default stream per thread, _v2 those of
// a changed signature: cuda.h maps the plain names to them, and cuGetProcAddress hands
// them out.
var table = []probe{
	{[]string{"cuEventSynchronize"}, attach.Return, bpf.ProgCUDASyncExit, Graph, true},
	{[]string{"cuEventSynchronize"}, attach.Entry, bpf.ProgCUDASyncEvent, Graph, true},
	{[]string{"cuStreamSynchronize", "cuStreamSynchronize_ptsz"}, attach.Return, bpf.ProgCUDASyncExit, Graph, false},
	{[]string{"cuStreamSynchronize", "cuStreamSynchronize_ptsz"}, attach.Entry, bpf.ProgCUDASyncStream, Graph, false},
	{[]string{"cuCtxSynchronize", "cuCtxSynchronize_v2"}, attach.Return, bpf.ProgCUDASyncExit, Graph, false},
	{[]string{"cuCtxSynchronize", "cuCtxSynchronize_v2"}, attach.Entry, bpf.ProgCUDASyncContext, Graph, false},
	{[]string{"cuEventRecord", "cuEventRecord_ptsz"}, attach.Entry, bpf.ProgCUDAEventRecord, Graph, true},
	{[]string{"cuEventRecordWithFlags", "cuEventRecordWithFlags_ptsz"}, attach.Entry, bpf.ProgCUDAEventRecord, Graph, false}, // since 11.1
	{[]string{"cuGraphLaunch", "cuGraphLaunch_ptsz"}, attach.Entry, bpf.ProgCUDALaunchGraph, Graph, true},
	// Rare calls: when an engine starts.
	{[]string{"cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"}, attach.Entry, bpf.ProgCUDACaptureBegin, Graph, true},
	{[]string{"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}, attach.Return, bpf.ProgCUDACaptureEnded, Graph, true},
	{[]string{"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}, attach.Entry, bpf.ProgCUDACaptureEnd, Graph, true},
	{[]string{"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"}, attach.Return, bpf.ProgCUDAInstantiated, Graph, false},
	{[]string{"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"}, attach.Entry, bpf.ProgCUDAInstantiate, Graph, false},

	// Names of kernels, mostly when an engine starts.
	{[]string{"cuModuleGetFunction"}, attach.Return, bpf.ProgCUDANameEnd, Sampled, false},
	{[]string{"cuModuleGetFunction"}, attach.Entry, bpf.ProgCUDANameBegin, Sampled, false},
	{[]string{"cuLibraryGetKernel"}, attach.Return, bpf.ProgCUDANameEnd, Sampled, false}, // since 12.0, as the next
	{[]string{"cuLibraryGetKernel"}, attach.Entry, bpf.ProgCUDANameBegin, Sampled, false},
	{[]string{kernelFunction}, attach.Return, bpf.ProgCUDAAliasEnd, Sampled, false},
	{[]string{kernelFunction}, attach.Entry, bpf.ProgCUDAAliasBegin, Sampled, false},

	{[]string{"cuLaunchKernel", "cuLaunchKernel_ptsz"}, attach.Entry, bpf.ProgCUDALaunch, All, true},
	{[]string{"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"}, attach.Entry, bpf.ProgCUDALaunchEx, All, false}, // since 11.8
	{[]string{"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"}, attach.Entry, bpf.ProgCUDALaunchCoop, All, true},
	{[]string{"cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"}, attach.Entry, bpf.ProgCUDACopyIn, All, true},
	{[]string{"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz"}, attach.Entry, bpf.ProgCUDACopyOut, All, true},
	{[]string{"cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_v2_ptsz"}, attach.Entry, bpf.ProgCUDACopyDevice, All, true},
	{[]string{"cuMemcpyAsync", "cuMemcpyAsync_ptsz"}, attach.Entry, bpf.ProgCUDACopyOther, All, true},
}

// kernelFunction makes a function that can be launched of a kernel, whose name it has.
const kernelFunction = "cuKernelGetFunction"

// pair is a launch of the runtime and of the driver that it leads to.
type pair struct {
	driver, runtime string // functions; the driver's as the first of its table entry
	compare, launch bpf.Program
	pair            bpf.Program // at the runtime's: which function it is asked for
}

var pairs = [2]pair{
	{"cuLaunchKernel", "cudaLaunchKernel", bpf.ProgCUDARuntimeCompare, bpf.ProgCUDARuntimeLaunch, bpf.ProgCUDAPairBegin},
	{"cuLaunchKernelEx", "cudaLaunchKernelExC", bpf.ProgCUDARuntimeCompareEx, bpf.ProgCUDARuntimeLaunchEx, bpf.ProgCUDAPairBeginEx},
}
