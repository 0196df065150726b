package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"inferspan/bpf/event"
)

// Programs for functions of the CUDA driver. Those of a return are for all of a kind.
const (
	ProgCUDALaunch           Program = "cuda_launch"
	ProgCUDALaunchCoop       Program = "cuda_launch_coop"
	ProgCUDALaunchEx         Program = "cuda_launch_ex"
	ProgCUDARuntimeCompare   Program = "cuda_runtime_compare"
	ProgCUDARuntimeCompareEx Program = "cuda_runtime_compare_ex"
	ProgCUDACompareGraph     Program = "cuda_runtime_compare_graph"
	ProgCUDACompareRecord    Program = "cuda_runtime_compare_record"
	ProgCUDACompareEvent     Program = "cuda_runtime_compare_event"
	ProgCUDACompareStream    Program = "cuda_runtime_compare_stream"
	ProgCUDACompareContext   Program = "cuda_runtime_compare_context"
	ProgCUDARuntimeLaunch    Program = "cuda_runtime_launch"
	ProgCUDARuntimeLaunchEx  Program = "cuda_runtime_launch_ex"
	ProgCUDAPairBegin        Program = "cuda_pair_begin"
	ProgCUDAPairBeginEx      Program = "cuda_pair_begin_ex"
	ProgCUDAPairEnd          Program = "cuda_pair_end"
	ProgCUDANameBegin        Program = "cuda_name_begin"
	ProgCUDANameEnd          Program = "cuda_name_end"
	ProgCUDAAliasBegin       Program = "cuda_alias_begin"
	ProgCUDAAliasEnd         Program = "cuda_alias_end"
	ProgCUDALaunchGraph      Program = "cuda_launch_graph"
	ProgCUDACopyIn           Program = "cuda_copy_in"
	ProgCUDACopyOut          Program = "cuda_copy_out"
	ProgCUDACopyDevice       Program = "cuda_copy_device"
	ProgCUDACopyOther        Program = "cuda_copy_other"
	ProgCUDAEventRecord      Program = "cuda_event_record"
	ProgCUDARecordFlags      Program = "cuda_event_record_flags"
	ProgCUDAWaitEvent        Program = "cuda_wait_event"
	ProgCUDASyncEvent        Program = "cuda_sync_event"
	ProgCUDASyncStream       Program = "cuda_sync_stream"
	ProgCUDASyncContext      Program = "cuda_sync_context"
	ProgCUDASyncExit         Program = "cuda_sync_exit"
	ProgCUDACaptureBegin     Program = "cuda_capture_begin"
	ProgCUDACaptureEnd       Program = "cuda_capture_end"
	ProgCUDACaptureEnded     Program = "cuda_capture_ended"
	ProgCUDAInstantiate      Program = "cuda_instantiate"
	ProgCUDAInstantiated     Program = "cuda_instantiated"
	ProgCUDACaptureInto      Program = "cuda_capture_into"
	ProgCUDAGraphEdited      Program = "cuda_graph_edited"
	ProgCUDANodeEdited       Program = "cuda_node_edited"
	ProgCUDAExecEdited       Program = "cuda_exec_edited"
	ProgCUDAExecChanged      Program = "cuda_exec_changed"
	ProgCUDAGraphGone        Program = "cuda_graph_gone"
)

// CUDAHit is what hits of programs are counted by (enum gpu_hit).
type CUDAHit int

// Hits. Those of rare calls (captures, instantiation of graphs) are not counted.
const (
	CUDAHitLaunch CUDAHit = iota
	CUDAHitLaunchEx
	CUDAHitLaunchCoop
	CUDAHitCopy
	CUDAHitWaitEvent
	CUDAHitGraph
	CUDAHitRecord
	CUDAHitSyncEvent
	CUDAHitSyncStream
	CUDAHitSyncContext
	CUDAHitSyncExit
	CUDAHitCompare
	CUDAHitPair
	CUDAHits // number of them
)

// CUDAPair is a function of the CUDA runtime, or several, that are compared with what
// they call in the driver (enum gpu_pair).
type CUDAPair int

// Pairs.
const (
	CUDAPairLaunch CUDAPair = iota
	CUDAPairLaunchEx
	CUDAPairGraph
	CUDAPairRecord
	CUDAPairSyncEvent
	CUDAPairSyncStream
	CUDAPairSyncContext
	CUDAPairs // number of them
)

// CUDALevels says how many calls of the CUDA runtime were compared with the driver's,
// and under how many the driver was not seen to be called.
type CUDALevels struct{ Compared, Missed uint64 }

// CUDAState is what was counted of a process since SetCUDA was first called, or since it
// was called again after RemoveCUDA.
type CUDAState struct {
	Hits   [CUDAHits]uint64
	Levels [CUDAPairs]CUDALevels // while the programs for it are in place
	Marks  uint64                // captures on its threads
}

// SetCUDA has what a process does with its GPU sent: at its captures, and when it
// waited for the GPU. It is to be called when the probes are in place; launches says
// that those on kernels and copies are. Differences between records are right from
// one call to the next: each begins a new epoch of the process, from 1 on. Those of all but
// kernels and copies are right beyond that, too, until RemoveCUDA is called
// (event.GPUContinues). ErrFull if there are too many processes.
func (o *Objects) SetCUDA(pid int, launches bool) error {
	o.mu.Lock()
	var p tracerCudaProcess
	var flags uint32
	if !o.closed && o.objs.CudaProcesses.Lookup(uint32(pid), &p) == nil {
		// What is counted from here to below is not: a few hits at most.
		flags = min(p.Flags&event.GPUContinues+1<<8, event.GPUContinues)
	}
	if o.epochs == nil {
		o.epochs = make(map[int]uint32)
	}
	o.epochs[pid]++
	if launches {
		flags |= event.GPULaunches
	}
	p.Epoch, p.Flags = o.epochs[pid], flags
	o.mu.Unlock()
	if err := o.put("watching the GPU work", pid, o.objs.CudaProcesses, uint32(pid), p); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.markCaptures(pid)
}

// RemoveCUDA ends SetCUDA; to be called before the probes are taken out. An unknown
// pid is no error.
func (o *Objects) RemoveCUDA(pid int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if err := o.objs.CudaProcesses.Delete(uint32(pid)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forgetting the GPU work of process %d: %w", pid, err)
	}
	return o.markCaptures(pid)
}

// CUDA returns what was counted of a process. The error wraps ebpf.ErrKeyNotExist if
// SetCUDA was not called for it.
func (o *Objects) CUDA(pid int) (CUDAState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return CUDAState{}, os.ErrClosed
	}
	var p tracerCudaProcess
	if err := o.objs.CudaProcesses.Lookup(uint32(pid), &p); err != nil {
		return CUDAState{}, fmt.Errorf("reading what was counted of the GPU work of process %d: %w", pid, err)
	}
	s := CUDAState{Hits: p.Hits, Marks: p.Marks}
	for i := range s.Levels {
		s.Levels[i] = CUDALevels{p.Compared[i], p.Missed[i]}
	}
	return s, nil
}
