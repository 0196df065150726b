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
	ProgCUDASyncEvent        Program = "cuda_sync_event"
	ProgCUDASyncStream       Program = "cuda_sync_stream"
	ProgCUDASyncContext      Program = "cuda_sync_context"
	ProgCUDASyncExit         Program = "cuda_sync_exit"
	ProgCUDACaptureBegin     Program = "cuda_capture_begin"
	ProgCUDACaptureEnd       Program = "cuda_capture_end"
	ProgCUDACaptureEnded     Program = "cuda_capture_ended"
	ProgCUDAInstantiate      Program = "cuda_instantiate"
	ProgCUDAInstantiated     Program = "cuda_instantiated"
)

// SetCUDA has what a process does with its GPU sent: at its captures, and when it
// waited for the GPU. It is to be called when the probes are in place; launches says
// that those on kernels and copies are. Differences between records are right from
// one call to the next: each begins a new epoch of the process, from 1 on. ErrFull if there are too many
// processes.
func (o *Objects) SetCUDA(pid int, launches bool) error {
	o.mu.Lock()
	if o.epochs == nil {
		o.epochs = make(map[int]uint32)
	}
	o.epochs[pid]++
	p := tracerCudaProcess{Epoch: o.epochs[pid]}
	o.mu.Unlock()
	// Counts of what was not kept go on.
	var old tracerCudaProcess
	if err := o.objs.CudaProcesses.Lookup(uint32(pid), &old); err == nil {
		p.Paired, p.Beyond, p.Unnoted = old.Paired, old.Beyond, old.Unnoted
	}
	if launches {
		p.Flags = event.GPULaunches
	}
	return o.put("watching the GPU work", pid, o.objs.CudaProcesses, uint32(pid), p)
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
	return nil
}

// CUDALevels says how many launches of the CUDA runtime were compared with the driver's
// since SetCUDA, and under how many the driver was not seen to launch anything.
type CUDALevels struct{ Compared, Missed uint64 }

// CUDALevels returns the comparison for cudaLaunchKernel and for cudaLaunchKernelExC,
// while the programs for it are in place.
func (o *Objects) CUDALevels(pid int) (launch, launchEx CUDALevels, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return launch, launchEx, os.ErrClosed
	}
	var p tracerCudaProcess
	if err := o.objs.CudaProcesses.Lookup(uint32(pid), &p); err != nil {
		return launch, launchEx, fmt.Errorf("comparing the CUDA levels of process %d: %w", pid, err)
	}
	return CUDALevels{p.Compared[0], p.Missed[0]}, CUDALevels{p.Compared[1], p.Missed[1]}, nil
}
