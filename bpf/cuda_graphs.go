package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// CUDAGraph is a graph that was captured while all launches were counted.
type CUDAGraph struct {
	ID uint64 // by which it is told from others of its process
	// Launches of what was instantiated of it, while launches were counted.
	Launches uint64
}

// CUDANode is a function in a graph.
type CUDANode struct {
	Graph uint64 // ID
	// Function is a handle as in CUDAFunction, or, of a Child, the ID of a graph that is
	// launched in this one.
	Function       uint64
	Runtime, Child bool
	Count          uint64
}

// State of a capture and kinds of nodes (bpf/include/cuda_graph.h).
const (
	capturedDone = 1
	capturedVoid = 2

	nodeRuntime = 1
	nodeGraph   = 2
)

// CUDAGraphs returns the graphs of a process whose functions are known, all each time, and
// what is in those that were made since the last call. Both are in no order.
func (o *Objects) CUDAGraphs(pid int) (graphs []CUDAGraph, nodes []CUDANode, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, nil, os.ErrClosed
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("reading the graphs of process %d: %w", pid, err)
		}
	}()
	state := make(map[uint64]uint32)
	err = each(o.objs.CudaCaptured, func(k tracerCudaKey, c tracerCudaCaptured) {
		if k.Tgid != uint32(pid) {
			return
		}
		state[k.Handle] = c.State
		if c.State == capturedDone {
			graphs = append(graphs, CUDAGraph{k.Handle, c.Launches})
		}
	})
	if err != nil {
		return nil, nil, err
	}
	var taken []tracerCudaNode
	err = each(o.objs.CudaNodes, func(k tracerCudaNode, n uint64) {
		if k.Tgid != uint32(pid) || state[k.Capture] != capturedDone && state[k.Capture] != capturedVoid {
			return
		}
		taken = append(taken, k)
		if state[k.Capture] == capturedDone {
			nodes = append(nodes, CUDANode{k.Capture, k.Function, k.Kind == nodeRuntime, k.Kind == nodeGraph, n})
		}
	})
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	remove := func(m *ebpf.Map, key any) {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	for _, k := range taken {
		remove(o.objs.CudaNodes, k)
	}
	for id, s := range state {
		if s == capturedVoid {
			remove(o.objs.CudaCaptured, tracerCudaKey{Handle: id, Tgid: uint32(pid)})
		}
	}
	return graphs, nodes, errors.Join(errs...)
}

// forgetGraphs frees what is kept of a process's graphs. Called with mu held.
func (o *Objects) forgetGraphs(pid int) error {
	mine := func(k tracerCudaKey) bool { return k.Tgid == uint32(pid) }
	var graph tracerCudaGraph
	var captured tracerCudaCaptured
	var count uint64
	return errors.Join(
		clearKeys(o.objs.CudaCaptures, &graph, mine), clearKeys(o.objs.CudaGraphs, &graph, mine), clearKeys(o.objs.CudaCaptured, &captured, mine),
		clearKeys(o.objs.CudaNodes, &count, func(k tracerCudaNode) bool { return k.Tgid == uint32(pid) }))
}

// each calls f with what a hash map has, some thousand entries a system call. Of those that
// come meanwhile some may be missing.
func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	const batch = 4096
	keys, values := make([]K, batch), make([]V, batch)
	var at ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
