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
	// Graph: always, Sampled: where launches are counted now and then, All: while they are.
	from Mode
	hit  bpf.CUDAHit // as which its hits are counted, or rare
	need need
}

// need is what it means that a function cannot be probed.
type need int

const (
	optional need = iota // less is counted
	present              // what is counted would be wrong, if the driver has one
	required             // what is counted would be wrong
)

// reads is how many integer arguments a program reads; stack and memory come beside them.
func reads(p bpf.Program) int {
	switch p {
	case bpf.ProgCUDASyncContext, bpf.ProgCUDACompareGraph, bpf.ProgCUDACompareRecord, bpf.ProgCUDACompareEvent, bpf.ProgCUDACompareStream, bpf.ProgCUDACompareContext,
		bpf.ProgCUDARuntimeCompare, bpf.ProgCUDARuntimeCompareEx:
		return 0
	case bpf.ProgCUDASyncEvent, bpf.ProgCUDASyncStream, bpf.ProgCUDALaunch, bpf.ProgCUDALaunchCoop:
		return 1
	case bpf.ProgCUDALaunchGraph, bpf.ProgCUDAEventRecord, bpf.ProgCUDAWaitEvent, bpf.ProgCUDALaunchEx:
		return 2
	case bpf.ProgCUDARecordFlags:
		return 3
	}
	return 6 // all that are in registers
}

// rare is of calls that are made when an engine starts: what they cost does not count.
const rare bpf.CUDAHit = -1

// table lists the probes. Those on returns come before those on entries, so that no
// call is noted whose return is not seen.
//
// Names with _ptsz are of programs built for a default stream per thread, _v2 those of
// a changed signature: cuda.h maps the plain names to them, and cuGetProcAddress hands
// them out.
var table = []probe{
	{[]string{"cuEventSynchronize"}, attach.Return, bpf.ProgCUDASyncExit, Graph, bpf.CUDAHitSyncExit, required},
	{[]string{"cuEventSynchronize"}, attach.Entry, bpf.ProgCUDASyncEvent, Graph, bpf.CUDAHitSyncEvent, required},
	{[]string{"cuStreamSynchronize", "cuStreamSynchronize_ptsz"}, attach.Return, bpf.ProgCUDASyncExit, Graph, bpf.CUDAHitSyncExit, optional},
	{[]string{"cuStreamSynchronize", "cuStreamSynchronize_ptsz"}, attach.Entry, bpf.ProgCUDASyncStream, Graph, bpf.CUDAHitSyncStream, optional},
	{[]string{"cuCtxSynchronize", "cuCtxSynchronize_v2"}, attach.Return, bpf.ProgCUDASyncExit, Graph, bpf.CUDAHitSyncExit, optional},
	{[]string{"cuCtxSynchronize", "cuCtxSynchronize_v2"}, attach.Entry, bpf.ProgCUDASyncContext, Graph, bpf.CUDAHitSyncContext, optional},
	{[]string{"cuEventRecord", "cuEventRecord_ptsz"}, attach.Entry, bpf.ProgCUDAEventRecord, Graph, bpf.CUDAHitRecord, required},
	{[]string{"cuEventRecordWithFlags", "cuEventRecordWithFlags_ptsz"}, attach.Entry, bpf.ProgCUDARecordFlags, Graph, bpf.CUDAHitRecord, optional}, // since 11.1
	{[]string{"cuGraphLaunch", "cuGraphLaunch_ptsz"}, attach.Entry, bpf.ProgCUDALaunchGraph, Graph, bpf.CUDAHitGraph, required},
	// Rare calls: when an engine starts.
	{[]string{"cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"}, attach.Entry, bpf.ProgCUDACaptureBegin, Graph, rare, required},
	{[]string{"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}, attach.Return, bpf.ProgCUDACaptureEnded, Graph, rare, required},
	{[]string{"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}, attach.Entry, bpf.ProgCUDACaptureEnd, Graph, rare, required},
	{[]string{"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"}, attach.Return, bpf.ProgCUDAInstantiated, Graph, rare, optional},
	{[]string{"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"}, attach.Entry, bpf.ProgCUDAInstantiate, Graph, rare, optional},

	// Names of kernels, mostly when an engine starts.
	{[]string{"cuModuleGetFunction"}, attach.Return, bpf.ProgCUDANameEnd, Sampled, rare, optional},
	{[]string{"cuModuleGetFunction"}, attach.Entry, bpf.ProgCUDANameBegin, Sampled, rare, optional},
	{[]string{"cuLibraryGetKernel"}, attach.Return, bpf.ProgCUDANameEnd, Sampled, rare, optional}, // since 12.0, as the next
	{[]string{"cuLibraryGetKernel"}, attach.Entry, bpf.ProgCUDANameBegin, Sampled, rare, optional},
	{[]string{kernelFunction}, attach.Return, bpf.ProgCUDAAliasEnd, Sampled, rare, optional},
	{[]string{kernelFunction}, attach.Entry, bpf.ProgCUDAAliasBegin, Sampled, rare, optional},

	// What a graph's functions are is counted when it is captured. What may change them
	// makes them unknown; handles are used again.
	{[]string{"cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph_ptsz"}, attach.Entry, bpf.ProgCUDACaptureInto, Sampled, rare, present}, // since 12.3
	{[]string{"cuGraphClone"}, attach.Return, bpf.ProgCUDAInstantiated, Sampled, rare, present},
	{[]string{"cuGraphClone"}, attach.Entry, bpf.ProgCUDAInstantiate, Sampled, rare, present},
	{[]string{"cuGraphInstantiate", "cuGraphInstantiate_v2"}, attach.Return, bpf.ProgCUDAInstantiated, Sampled, rare, present}, // of programs built before 12.0
	{[]string{"cuGraphInstantiate", "cuGraphInstantiate_v2"}, attach.Entry, bpf.ProgCUDAInstantiate, Sampled, rare, present},
	{[]string{"cuGraphAddKernelNode", "cuGraphAddKernelNode_v2", "cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddChildGraphNode"}, attach.Entry, bpf.ProgCUDAGraphEdited, Sampled, rare, present},
	{[]string{"cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams_v2", "cuGraphNodeSetParams", "cuGraphChildGraphNodeGetGraph", "cuGraphDestroyNode"}, attach.Entry, bpf.ProgCUDANodeEdited, Sampled, rare, present},
	{[]string{"cuGraphNodeSetEnabled"}, attach.Entry, bpf.ProgCUDAExecEdited, Sampled, rare, present},
	{[]string{"cuGraphExecKernelNodeSetParams", "cuGraphExecKernelNodeSetParams_v2", "cuGraphExecNodeSetParams", "cuGraphExecChildGraphNodeSetParams", "cuGraphExecUpdate", "cuGraphExecUpdate_v2"}, attach.Entry, bpf.ProgCUDAExecChanged, Sampled, rare, present},
	{[]string{"cuGraphDestroy", "cuGraphExecDestroy"}, attach.Entry, bpf.ProgCUDAGraphGone, Sampled, rare, present},

	{[]string{"cuLaunchKernel", "cuLaunchKernel_ptsz"}, attach.Entry, bpf.ProgCUDALaunch, All, bpf.CUDAHitLaunch, required},
	{[]string{"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"}, attach.Entry, bpf.ProgCUDALaunchEx, All, bpf.CUDAHitLaunchEx, optional}, // since 11.8
	{[]string{"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"}, attach.Entry, bpf.ProgCUDALaunchCoop, All, bpf.CUDAHitLaunchCoop, required},
	{[]string{"cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"}, attach.Entry, bpf.ProgCUDACopyIn, All, bpf.CUDAHitCopy, required},
	{[]string{"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz"}, attach.Entry, bpf.ProgCUDACopyOut, All, bpf.CUDAHitCopy, required},
	{[]string{"cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_v2_ptsz"}, attach.Entry, bpf.ProgCUDACopyDevice, All, bpf.CUDAHitCopy, required},
	{[]string{"cuMemcpyAsync", "cuMemcpyAsync_ptsz"}, attach.Entry, bpf.ProgCUDACopyOther, All, bpf.CUDAHitCopy, required},
	// By this streams join a capture, in which launches are nodes; without launches nothing
	// is counted there.
	{[]string{"cuStreamWaitEvent", "cuStreamWaitEvent_ptsz"}, attach.Entry, bpf.ProgCUDAWaitEvent, All, bpf.CUDAHitWaitEvent, required},
}

// kernelFunction makes a function that can be launched of a kernel, whose name it has.
const kernelFunction = "cuKernelGetFunction"

// pair is a function of the runtime that calls one of the driver, or more of a kind.
type pair struct {
	what     string   // they are for, in messages
	driver   []string // by the first function of the table's entry
	runtime  []string // versions of the function
	from     Mode     // as in probe
	compare  bpf.Program
	programs []runtimeProbe // in place of the driver's
	pair     bpf.Program    // at a launch: which function it is asked for; "": it is none
}

// runtimeProbe is what runs at a function of the runtime. Handles are the same as in the
// driver, and so are arguments up to the last that is read.
type runtimeProbe struct {
	where   attach.Where
	program bpf.Program
	hit     bpf.CUDAHit
	of      []string // at these versions; nil: at all
}

var pairs = [bpf.CUDAPairs]pair{
	bpf.CUDAPairLaunch: {"kernels", []string{"cuLaunchKernel"}, []string{"cudaLaunchKernel", "cudaLaunchKernel_ptsz"}, All,
		bpf.ProgCUDARuntimeCompare, []runtimeProbe{{attach.Entry, bpf.ProgCUDARuntimeLaunch, bpf.CUDAHitLaunch, nil}}, bpf.ProgCUDAPairBegin},
	bpf.CUDAPairLaunchEx: {"kernels", []string{"cuLaunchKernelEx"}, []string{"cudaLaunchKernelExC", "cudaLaunchKernelExC_ptsz"}, All,
		bpf.ProgCUDARuntimeCompareEx, []runtimeProbe{{attach.Entry, bpf.ProgCUDARuntimeLaunchEx, bpf.CUDAHitLaunchEx, nil}}, bpf.ProgCUDAPairBeginEx},
	bpf.CUDAPairGraph: {"launches of graphs", []string{"cuGraphLaunch"}, []string{"cudaGraphLaunch", "cudaGraphLaunch_ptsz"}, Graph,
		bpf.ProgCUDACompareGraph, []runtimeProbe{{attach.Entry, bpf.ProgCUDALaunchGraph, bpf.CUDAHitGraph, nil}}, ""},
	bpf.CUDAPairRecord: {"events", []string{"cuEventRecord", "cuEventRecordWithFlags"}, []string{"cudaEventRecord", "cudaEventRecord_ptsz", "cudaEventRecordWithFlags", "cudaEventRecordWithFlags_ptsz"}, Graph,
		bpf.ProgCUDACompareRecord, []runtimeProbe{
			{attach.Entry, bpf.ProgCUDAEventRecord, bpf.CUDAHitRecord, []string{"cudaEventRecord", "cudaEventRecord_ptsz"}},
			{attach.Entry, bpf.ProgCUDARecordFlags, bpf.CUDAHitRecord, []string{"cudaEventRecordWithFlags", "cudaEventRecordWithFlags_ptsz"}}}, ""},
	bpf.CUDAPairSyncEvent: {"waits for events", []string{"cuEventSynchronize"}, []string{"cudaEventSynchronize"}, Graph,
		bpf.ProgCUDACompareEvent, []runtimeProbe{{attach.Return, bpf.ProgCUDASyncExit, bpf.CUDAHitSyncExit, nil}, {attach.Entry, bpf.ProgCUDASyncEvent, bpf.CUDAHitSyncEvent, nil}}, ""},
	bpf.CUDAPairSyncStream: {"waits for streams", []string{"cuStreamSynchronize"}, []string{"cudaStreamSynchronize", "cudaStreamSynchronize_ptsz"}, Graph,
		bpf.ProgCUDACompareStream, []runtimeProbe{{attach.Return, bpf.ProgCUDASyncExit, bpf.CUDAHitSyncExit, nil}, {attach.Entry, bpf.ProgCUDASyncStream, bpf.CUDAHitSyncStream, nil}}, ""},
	bpf.CUDAPairSyncContext: {"waits for all", []string{"cuCtxSynchronize"}, []string{"cudaDeviceSynchronize"}, Graph,
		bpf.ProgCUDACompareContext, []runtimeProbe{{attach.Return, bpf.ProgCUDASyncExit, bpf.CUDAHitSyncExit, nil}, {attach.Entry, bpf.ProgCUDASyncContext, bpf.CUDAHitSyncContext, nil}}, ""},
}

// captures are the runtime's functions that make graphs. They are probed beside those of
// the driver once one of the runtime's does not reach it: seen twice they do no harm.
var captures = []probe{
	{[]string{"cudaStreamBeginCapture", "cudaStreamBeginCapture_ptsz"}, attach.Entry, bpf.ProgCUDACaptureBegin, Graph, rare, optional},
	{[]string{"cudaStreamEndCapture", "cudaStreamEndCapture_ptsz"}, attach.Return, bpf.ProgCUDACaptureEnded, Graph, rare, optional},
	{[]string{"cudaStreamEndCapture", "cudaStreamEndCapture_ptsz"}, attach.Entry, bpf.ProgCUDACaptureEnd, Graph, rare, optional},
	{[]string{"cudaGraphInstantiate", "cudaGraphInstantiateWithFlags"}, attach.Return, bpf.ProgCUDAInstantiated, Graph, rare, optional},
	{[]string{"cudaGraphInstantiate", "cudaGraphInstantiateWithFlags"}, attach.Entry, bpf.ProgCUDAInstantiate, Graph, rare, optional},
	{[]string{"cudaStreamBeginCaptureToGraph", "cudaStreamBeginCaptureToGraph_ptsz"}, attach.Entry, bpf.ProgCUDACaptureInto, Graph, rare, optional},
	{[]string{"cudaGraphInstantiateWithParams", "cudaGraphInstantiateWithParams_ptsz", "cudaGraphClone"}, attach.Return, bpf.ProgCUDAInstantiated, Graph, rare, optional},
	{[]string{"cudaGraphInstantiateWithParams", "cudaGraphInstantiateWithParams_ptsz", "cudaGraphClone"}, attach.Entry, bpf.ProgCUDAInstantiate, Graph, rare, optional},
	{[]string{"cudaGraphAddKernelNode", "cudaGraphAddNode", "cudaGraphAddNode_v2", "cudaGraphAddChildGraphNode"}, attach.Entry, bpf.ProgCUDAGraphEdited, Graph, rare, optional},
	{[]string{"cudaGraphKernelNodeSetParams", "cudaGraphNodeSetParams", "cudaGraphChildGraphNodeGetGraph", "cudaGraphDestroyNode"}, attach.Entry, bpf.ProgCUDANodeEdited, Graph, rare, optional},
	{[]string{"cudaGraphNodeSetEnabled"}, attach.Entry, bpf.ProgCUDAExecEdited, Graph, rare, optional},
	{[]string{"cudaGraphExecKernelNodeSetParams", "cudaGraphExecNodeSetParams", "cudaGraphExecChildGraphNodeSetParams", "cudaGraphExecUpdate"}, attach.Entry, bpf.ProgCUDAExecChanged, Graph, rare, optional},
	{[]string{"cudaGraphDestroy", "cudaGraphExecDestroy"}, attach.Entry, bpf.ProgCUDAGraphGone, Graph, rare, optional},
	{[]string{"cudaStreamWaitEvent", "cudaStreamWaitEvent_ptsz"}, attach.Entry, bpf.ProgCUDAWaitEvent, All, bpf.CUDAHitWaitEvent, optional},
}
