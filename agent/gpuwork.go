package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"inferspan/correlate/signal"
	"inferspan/gpu/cuda"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

// gpuWork is the probes on the CUDA driver of a process.
type gpuWork struct {
	inside   *inside
	proc     *target.Process
	probes   *cuda.Probes // nil: none, or not yet
	done     bool         // nothing more is to be tried
	looks    int          // since they are in
	launched *kernelNotes
	started  time.Time // the latest look before the core is there
}

func (p *inside) gpuWork(proc *target.Process) *gpuWork {
	return &gpuWork{inside: p, proc: proc, done: p.opt.CUDA == cuda.Off, launched: newKernelNotes(proc.PID)}
}

// start looks at a core that starts, once a second however often it is called.
func (g *gpuWork) start(ctx context.Context) {
	if now := time.Now(); now.Sub(g.started) >= stateEvery {
		g.started = now
		g.look(ctx)
	}
}

// look puts the probes in as soon as the process maps a driver, and sends a note of what
// became of them. Of one that never does nothing is said.
func (g *gpuWork) look(ctx context.Context) {
	if g.probes != nil {
		g.looks++
		if g.inside.opt.CUDA == cuda.Sampled {
			g.sample(ctx)
		}
		g.settle(ctx)
		g.kernels(ctx)
	}
	if g.done {
		return
	}
	mode := g.inside.opt.CUDA
	if mode == "" {
		mode = cuda.Graph
	}
	var err error
	if g.probes, err = cuda.Attach(g.inside.tracer, g.proc, mode); errors.Is(err, cuda.ErrNoDriver) {
		return
	}
	g.done = true
	n := note.Probe{Detail: signal.DetailForward, Active: err == nil, Reason: text(err)}
	if err == nil && mode != cuda.All {
		n.Lacks = "kernels and copies that are not in graphs"
	}
	g.inside.probe(ctx, uint32(g.proc.PID), n)
}

// sampleEvery is one in how many looks, which are a second apart, begins to count launches
// up to the next.
const sampleEvery = 10

// sample counts launches now and then.
func (g *gpuWork) sample(ctx context.Context) {
	if err := g.probes.Launches(g.looks%sampleEvery == 1); err != nil {
		g.close()
		g.probes = nil
		g.inside.probe(ctx, uint32(g.proc.PID), note.Probe{Detail: signal.DetailForward, Reason: err.Error()})
	}
}

// settle says so where launches are seen at another level than before.
func (g *gpuWork) settle(ctx context.Context) {
	if g.probes == nil {
		return
	}
	says, err := g.probes.Settle()
	if len(says) == 0 && err == nil {
		return
	}
	n := note.Probe{Detail: signal.DetailForward, Active: err == nil, Source: sourceRuntime, Lacks: strings.Join(says, "; ")}
	if err != nil {
		n = note.Probe{Detail: signal.DetailForward, Reason: err.Error()}
	}
	g.inside.probe(ctx, uint32(g.proc.PID), n)
}

// sourceRuntime names the way to forward passes by the runtime's launches.
const sourceRuntime = "runtime"

// close takes the probes out.
func (g *gpuWork) close() {
	if g.probes != nil {
		g.lastKernels()
		_ = g.probes.Close()
	}
}
