package bpf

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// CUDAFunction is how often a function was launched.
type CUDAFunction struct {
	Handle  uint64 // the driver's; of Runtime the argument of the runtime's launch
	Runtime bool   // it was counted where the runtime launches it
	// Launches since the first SetCUDA, while launches were counted. Nodes of graphs are
	// none: 0 if it was launched in captures alone.
	Launches uint64
	// Under is the argument of the runtime's launch in which it was launched, 0 if that is
	// not known or not always the same. Settled: it is known, or that there is none.
	Under   uint64
	Settled bool
}

// settledBare is CUDA_BARE of cuda.bpf.c.
const settledBare = 4

// CUDAUncounted says what has no room in the kernel.
type CUDAUncounted struct {
	Launches uint64 // of functions beyond those that are counted one by one
	Names    uint64 // that were given out while there was no room
	// Launches of graphs whose functions are not known, while launches were counted, by
	// reason.
	Graphs [CUDAUnnamed]uint64
}

// CUDAReason is why the functions of a graph are not known (enum gpu_unnamed).
type CUDAReason int

// Reasons.
const (
	CUDAUnseen  CUDAReason = iota // it was not seen being made while all launches were counted
	CUDAChanged                   // it was made or changed node by node
	CUDANoRoom                    // there are too many graphs, or functions in them
	CUDAUnnamed                   // number of them
)

// CUDALaunches are the functions that a process launched, in no order.
type CUDALaunches struct {
	At        uint64 // when they were read, ns of the clock that stamps records
	Functions []CUDAFunction
	Uncounted CUDAUncounted // by now
}

// functionLook is one look at what all processes launched.
type functionLook struct {
	at    uint64
	by    map[int][]CUDAFunction
	given map[int]bool // who has had theirs
}

// CUDALaunches returns what a process launched, as it is now or was seen not longer than
// age ago: the counts of all processes are one map, which those who ask at much the same
// time need not read each. None gets the same look twice.
func (o *Objects) CUDALaunches(pid int, age time.Duration) (CUDALaunches, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return CUDALaunches{}, os.ErrClosed
	}
	fail := func(err error) (CUDALaunches, error) {
		return CUDALaunches{}, fmt.Errorf("reading the launches of process %d: %w", pid, err)
	}
	var p tracerCudaProcess
	if err := o.objs.CudaProcesses.Lookup(uint32(pid), &p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fail(err)
	}
	l := &o.launches
	if now := Monotonic(); l.by == nil || l.given[pid] || now-l.at > uint64(age) {
		*l = functionLook{at: now, by: make(map[int][]CUDAFunction), given: make(map[int]bool)}
		var k tracerCudaKey
		var v tracerCudaFunction
		it := o.objs.CudaFunctions.Iterate()
		for it.Next(&k, &v) {
			f := CUDAFunction{Handle: k.Handle, Runtime: k.Runtime != 0, Launches: v.Launches, Under: v.Under, Settled: v.Under != 0 || v.Bare >= settledBare}
			if v.Mixed != 0 {
				f.Under = 0
			}
			l.by[int(k.Tgid)] = append(l.by[int(k.Tgid)], f)
		}
		if err := it.Err(); err != nil {
			l.by = nil
			return fail(err)
		}
	}
	l.given[pid] = true
	return CUDALaunches{l.at, l.by[pid], CUDAUncounted{p.Beyond, p.Unnoted, p.Unnamed}}, nil
}

// CUDAName is a name that the driver gave a handle for.
type CUDAName struct {
	Handle uint64
	Calls  uint32 // that gave the handle since the last look
	// Kernel is another handle, whose name this one has; 0 if it has a name of its own.
	Kernel uint64
	Name   string // "" if it could not be read whole
}

// TakeCUDANames returns the names that a process had handles for since the last call.
func (o *Objects) TakeCUDANames(pid int) ([]CUDAName, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, os.ErrClosed
	}
	var keys []tracerCudaKey
	var k tracerCudaKey
	var v tracerCudaName
	it := o.objs.CudaNames.Iterate()
	for it.Next(&k, &v) {
		if k.Tgid == uint32(pid) {
			keys = append(keys, k)
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("reading the names of process %d's kernels: %w", pid, err)
	}
	var out []CUDAName
	for _, k := range keys {
		if err := o.objs.CudaNames.Lookup(k, &v); err != nil {
			continue // taken by another
		}
		n := CUDAName{Handle: k.Handle, Calls: v.Calls, Kernel: v.Kernel}
		if v.Length > 0 && int(v.Length) < len(v.Text) {
			text := make([]byte, v.Length-1)
			for i := range text {
				text[i] = byte(v.Text[i])
			}
			n.Name = string(text)
		}
		out = append(out, n)
		if err := o.objs.CudaNames.Delete(k); err != nil {
			return nil, fmt.Errorf("reading the names of process %d's kernels: %w", pid, err)
		}
	}
	return out, nil
}

// PairCUDA begins to note in which launch of the runtime's each function is launched, or
// ends it. The programs for it are to be in place in between.
func (o *Objects) PairCUDA(pid int, on bool) error {
	if on {
		return o.put("pairing the launches", pid, o.objs.CudaPairing, uint32(pid), uint32(1))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if err := o.objs.CudaPairing.Delete(uint32(pid)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("pairing the launches of process %d: %w", pid, err)
	}
	return nil
}

// CUDAPaired returns how many launches of the runtime's were looked at for pairs.
func (o *Objects) CUDAPaired(pid int) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0, os.ErrClosed
	}
	var p tracerCudaProcess
	if err := o.objs.CudaProcesses.Lookup(uint32(pid), &p); err != nil {
		return 0, fmt.Errorf("pairing the launches of process %d: %w", pid, err)
	}
	return p.Paired, nil
}

// ForgetCUDA frees what is kept of a process's functions and graphs; to be called when its
// probes are out.
func (o *Objects) ForgetCUDA(pid int) error {
	if err := o.PairCUDA(pid, false); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	o.launches.by = nil
	mine := func(k tracerCudaKey) bool { return k.Tgid == uint32(pid) }
	var function tracerCudaFunction
	var name tracerCudaName
	if err := errors.Join(clearKeys(o.objs.CudaFunctions, &function, mine), clearKeys(o.objs.CudaNames, &name, mine), o.forgetGraphs(pid)); err != nil {
		return fmt.Errorf("forgetting the functions of process %d: %w", pid, err)
	}
	return nil
}
