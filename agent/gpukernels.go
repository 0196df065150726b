package agent

import (
	"context"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
	"inferspan/gpu/triton"
	"inferspan/probes/note"
	"inferspan/probes/procfs"
)

// kernelNotes makes notes of what a process launches.
type kernelNotes struct {
	pid       uint32
	names     cuda.Names
	sent      map[kernelKey]cuda.Kernel
	graphs    uint64
	uncounted bpf.CUDAUncounted
}

type kernelKey struct {
	handle  uint64
	runtime bool
}

func newKernelNotes(pid int) *kernelNotes {
	return &kernelNotes{pid: uint32(pid), names: triton.Of(pid).Names, sent: make(map[kernelKey]cuda.Kernel)}
}

// look returns the records of what changed from the last look up to a moment not longer
// than age ago.
func (k *kernelNotes) look(p *cuda.Probes, age time.Duration) ([]*event.Record, error) {
	now, err := p.Kernels(k.names, age)
	if err != nil {
		return nil, err
	}
	n := note.GPUKernels{
		Beyond: now.Uncounted.Launches, Unnoted: now.Uncounted.Names, Graphs: now.Graphs,
		GraphsUnseen: now.Uncounted.Graphs[bpf.CUDAUnseen], GraphsChanged: now.Uncounted.Graphs[bpf.CUDAChanged], GraphsBeyond: now.Uncounted.Graphs[bpf.CUDANoRoom],
	}
	for _, one := range now.Kernels {
		key := kernelKey{one.Handle, one.Runtime}
		old, was := k.sent[key]
		if was && old == one {
			continue
		}
		k.sent[key] = one
		out := note.GPUKernel{Handle: one.Handle, Runtime: one.Runtime, Launches: one.Launches, InGraphs: one.InGraphs}
		if one.Name != old.Name {
			out.Name, out.By = one.Name, one.By
		}
		n.Kernels = append(n.Kernels, out)
	}
	if len(n.Kernels) == 0 && k.graphs == now.Graphs && k.uncounted == now.Uncounted {
		return nil, nil
	}
	k.graphs, k.uncounted = now.Graphs, now.Uncounted
	return note.PutGPUKernels(k.pid, now.At, n)
}

// kernels sends what was launched since the last look.
func (g *gpuWork) kernels(ctx context.Context) {
	if g.probes == nil {
		return
	}
	records, err := g.launched.look(g.probes, stateEvery)
	if err != nil {
		return // it is read again at the next look
	}
	for _, r := range records {
		g.inside.send(ctx)(r, nil)
	}
}

// lastKernels sends it once more, before the probes are out, as far as there is room: the
// run is over. Of a process that is gone nothing more is taken.
func (g *gpuWork) lastKernels() {
	if (procfs.FS{}).Exiting(g.proc.PID) {
		return
	}
	records, err := g.launched.look(g.probes, 0)
	if err != nil {
		return
	}
	for _, r := range records {
		select {
		case g.inside.notes <- r:
		default:
		}
	}
}
