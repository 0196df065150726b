package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"inferspan/bpf"
	"inferspan/correlate/signal"
	"inferspan/gpu/cuda"
	"inferspan/probes/attach/governor"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

// gpuWork is the probes on the CUDA driver of a process. The governor of the process has
// them look at less than was asked for where that costs too much.
type gpuWork struct {
	inside *inside
	proc   *target.Process
	asked  cuda.Mode    // the most that is looked at
	mode   cuda.Mode    // that is looked at
	probes *cuda.Probes // nil: none, or not yet
	done   bool         // nothing more is to be tried
	turns  turns

	launched *kernelNotes
	started  time.Time // the latest look before the core is there
	costs    governor.Costs
	governor *governor.Governor // of its own, if the process has no other
	hits     cuda.Hits          // of probes that are out again
	silent   bool
	reason   string // why not all is looked at that was asked for
	sent     note.Probe
}

func (p *inside) gpuWork(proc *target.Process) *gpuWork {
	g := &gpuWork{inside: p, proc: proc, asked: p.opt.CUDA, launched: newKernelNotes(proc.PID)}
	if g.asked == "" {
		g.asked = cuda.Graph
	}
	g.mode, g.done = g.asked, g.asked == cuda.Off
	return g
}

// govern has a governor keep the probes within the budget, nil: one of their own. Where
// the cost of a trap cannot be measured, nothing says that they cost too much.
func (g *gpuWork) govern(shared *governor.Governor) {
	var err error
	if g.costs, err = g.inside.trap.of(g.inside.tracer); err != nil {
		return
	}
	if shared == nil {
		g.governor = governor.New(nil, g.inside.opt.Budget, g.costs, nil)
		shared = g.governor
	}
	shared.Watch(g)
}

// start looks at a core that starts, once a second however often it is called.
func (g *gpuWork) start(ctx context.Context) {
	if now := time.Now(); now.Sub(g.started) >= stateEvery {
		g.started = now
		g.look(ctx)
	}
}

// look puts the probes in as soon as the process maps a driver, and sends a note of what
// became of them when that changes. Of one that never does nothing is said. It is to be
// called about once a second.
func (g *gpuWork) look(ctx context.Context) {
	if g.governor != nil {
		_, _, _ = g.governor.Tick(int64(bpf.Monotonic()))
	}
	if g.probes != nil {
		if err := g.watch(); err != nil {
			g.end(err)
		}
		g.kernels(ctx)
	}
	if !g.done {
		err := g.attach()
		if errors.Is(err, cuda.ErrNoDriver) {
			return
		}
		g.done = true
		if err != nil {
			g.end(err)
		}
	}
	if g.inside.opt.CUDA != cuda.Off {
		g.tell(ctx)
	}
}

func (g *gpuWork) attach() (err error) {
	g.probes, err = cuda.Attach(g.inside.tracer, g.proc, g.mode)
	return err
}

// watch does what is to be done once a second.
func (g *gpuWork) watch() (err error) {
	// First: what was compared of launches is there as long as they are counted.
	if _, err := g.probes.Settle(); err != nil {
		return err
	}
	if g.mode == cuda.Sampled {
		began := g.turns.begun
		if err := g.probes.Launches(g.turns.count(time.Now())); err != nil {
			return err
		}
		if g.turns.begun != began {
			// On a busy host it takes longer than to the next look until the probes are in.
			g.turns.begun = time.Now()
		}
	}
	g.silent, err = g.probes.Silent()
	return err
}

// For so long launches are counted, and so often.
const (
	sampleFor   = time.Second
	sampleEvery = 10 * time.Second
)

// turns says when launches are counted. It is asked about once a second: a turn that is due
// within a tenth of one begins, and one that lasted for half of one ends, so that it is a
// second even if it began some time behind the look.
type turns struct{ begun time.Time }

// count tells whether they are, from now on.
func (t *turns) count(now time.Time) bool {
	since := now.Sub(t.begun)
	if t.begun.IsZero() || since >= sampleEvery-stateEvery/10 {
		t.begun = now
		return true
	}
	return since < sampleFor-stateEvery/2
}

// end takes the probes out for good.
func (g *gpuWork) end(err error) {
	g.close()
	g.asked, g.mode, g.done, g.reason = cuda.Off, cuda.Off, true, err.Error()
}

// Level makes gpuWork a governor.Ladder.
func (g *gpuWork) Level() (now, most int) {
	if !g.done {
		return 0, 0
	}
	return slices.Index(cuda.Modes, g.mode), slices.Index(cuda.Modes, g.asked)
}

// Window is how long costs are looked at before they are judged.
func (g *gpuWork) Window() time.Duration {
	if g.mode == cuda.Sampled {
		return sampleEvery
	}
	return 0
}

// Spent is what the hits have cost.
func (g *gpuWork) Spent() (time.Duration, error) {
	n := g.hits
	if g.probes != nil {
		more, err := g.probes.Hits()
		if err != nil {
			return 0, err
		}
		n.Add(more)
	}
	return time.Duration(n.Emulated)*(g.costs.Emulated+g.costs.Run) + time.Duration(n.Stepped)*(g.costs.Stepped+g.costs.Run), nil
}

// Step looks at more or at less. After an error nothing is looked at any more.
func (g *gpuWork) Step(to int, reason string) error {
	if to < slices.Index(cuda.Modes, g.mode) {
		g.reason = "calls of the CUDA driver " + reason
	}
	g.mode = cuda.Modes[to]
	if g.mode == g.asked {
		g.reason = ""
	}
	var err error
	switch {
	case g.mode == cuda.Off:
		g.close()
	case g.probes == nil:
		err = g.attach()
	default:
		err = g.probes.Launches(g.mode == cuda.All)
		g.turns = turns{}
	}
	if err != nil {
		g.end(err)
	}
	return err
}

// tell sends a note if what is seen is not what the last one says.
func (g *gpuWork) tell(ctx context.Context) {
	n := note.Probe{Detail: signal.DetailForward, Active: g.mode != cuda.Off, Reason: g.reason}
	if g.silent && !(g.inside.workers.Load() && g.proc.Role == target.RoleCore) {
		n.Active, n.Reason = false, "no call of the CUDA driver was seen in the steps: it is not reached by the functions that it exports, or not by this process"
	}
	if n.Active {
		n.Source = string(g.mode)
		lacks := g.probes.Lacks()
		if len(lacks) > 0 {
			n.Source += ", " + signal.SourceRuntime
		}
		if g.mode != g.asked {
			lacks = append(lacks, less[g.mode])
		}
		n.Lacks = strings.Join(lacks, "; ")
	}
	if n.Active == g.sent.Active && n.Reason == g.sent.Reason && n.Source == g.sent.Source && n.Lacks == g.sent.Lacks && g.sent.Detail != "" {
		return
	}
	g.sent = n
	g.inside.probe(ctx, uint32(g.proc.PID), n)
}

// less is what modes do not tell of what more would be asked for.
var less = map[cuda.Mode]string{
	cuda.Graph:   "kernels and copies that are not in graphs",
	cuda.Sampled: "kernels and copies that are not in graphs, but for a second now and then",
}

// close takes the probes out.
func (g *gpuWork) close() {
	if g.probes == nil {
		return
	}
	g.lastKernels()
	if n, err := g.probes.Hits(); err == nil {
		g.hits.Add(n)
	}
	_ = g.probes.Close()
	g.probes, g.silent = nil, false
}
