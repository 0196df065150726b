package correlate

import (
	"cmp"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// gpuHost follows what the thread of one process that schedules steps has its GPU do.
//
// All that it calls for from the beginning of one step to the beginning of the next is of
// the first of the two: with asynchronous scheduling it launches a step before it waits
// for the one before, so that which step a wait ended is told by when the event was
// recorded, not by the order.
type gpuHost struct {
	pid, tid uint32
	marks    uint32 // of the latest point
	passes   []*pass

	busyUntil signal.Mono // done, of the latest pass that was shared out
	settled   signal.Mono // beginning of the latest step that came
}

// maxPasses bounds the passes of a host that are kept: one for each step under way, and
// those that wait for their turn in the stream of signals.
const maxPasses = 64

// pass is the GPU work of one step.
type pass struct {
	begin       signal.Mono // as Step.Schedule
	from, to    signal.GPUPoint
	first, last signal.Mono // launch
	seen        signal.Mono // first launch up to the latest mark but one, while it is the newest
	closed      bool        // the next one has begun
	wait        signal.GPUWait
	waited      bool
	follows     bool              // the pass before it in the list is that of the step before
	gap         signal.Opt[int64] // from the outputs of that one to the first launch
}

// boundWait is how long a call that need not wait takes at most, by a wide margin: it
// costs about a microsecond and two traps more.
const boundWait = 20_000

func (e *engine) gpuHost(pid uint32) *gpuHost {
	for _, h := range e.gpuHosts {
		if h.pid == pid {
			return h
		}
	}
	return nil
}

func (c *Correlator) gpuMark(s *signal.GPUMark) {
	e := c.engine(s.Engine)
	e.kernels.mark(s)
	h := e.gpuHost(s.PID)
	if h == nil {
		if !s.Step {
			return // it says nothing of a step
		}
		h = &gpuHost{pid: s.PID, tid: s.TID}
		e.gpuHosts = append(e.gpuHosts, h)
	}
	if s.TID != h.tid {
		if !s.Step {
			return
		}
		*h = gpuHost{pid: s.PID, tid: s.TID, busyUntil: h.busyUntil, settled: h.settled} // another thread schedules now
	}
	lost := s.Marks != h.marks+1
	h.marks = s.Marks
	p := h.newest()
	if p != nil && lost {
		h.drop() // what lies between is of more than one step, maybe
		p = nil
	}
	if p != nil {
		p.extend(&s.GPUPoint)
		p.seen = p.first
	}
	if !s.Step {
		return
	}
	if p != nil {
		p.closed = true
	}
	if len(h.passes) == maxPasses {
		h.passes = append(h.passes[:0], h.passes[1:]...)
	}
	h.passes = append(h.passes, &pass{begin: s.At, from: s.GPUPoint, to: s.GPUPoint, follows: p != nil})
}

// newest is the pass under way, nil if there is none.
func (h *gpuHost) newest() *pass {
	if n := len(h.passes); n > 0 && !h.passes[n-1].closed {
		return h.passes[n-1]
	}
	return nil
}

// drop forgets the pass under way.
func (h *gpuHost) drop() { h.passes = h.passes[:len(h.passes)-1] }

// extend takes what was done up to a point into a pass.
func (p *pass) extend(to *signal.GPUPoint) {
	p.to = *to
	p.first = cmp.Or(p.seen, to.First)
	p.last = max(p.last, to.Last)
}

func (c *Correlator) gpuWait(s *signal.GPUWait) {
	h := c.engine(s.Engine).gpuHost(s.PID)
	if h == nil {
		return
	}
	if s.TID == h.tid {
		p := h.newest()
		switch {
		case p != nil && s.Marks != h.marks:
			h.drop()
			h.marks = s.Marks
		case p != nil:
			p.extend(&s.GPUPoint)
		}
	}
	if s.Failed || s.Submitted == 0 || s.Submitter != h.tid {
		return
	}
	for i := len(h.passes) - 1; i >= 0; i-- {
		p := h.passes[i]
		if p.begin > s.Submitted {
			continue
		}
		// A later event of the same step stands for more of it; other waits are for
		// something on the way.
		if !p.waited || s.Event && (!p.wait.Event || s.Submitted >= p.wait.Submitted) || !s.Event && !p.wait.Event {
			p.wait, p.waited = *s, true
		}
		return
	}
}

// passOf returns the pass of a step that has ended, nil if it was not seen whole.
func (e *engine) passOf(s *signal.Step) *pass {
	h := e.gpuHost(s.Core.PID)
	if h == nil || s.Schedule <= 0 {
		return nil
	}
	for i, p := range h.passes {
		if p.begin != s.Schedule {
			continue
		}
		if p.from.Epoch != p.to.Epoch || s.Detail != signal.StepSeen && !p.closed {
			return nil
		}
		if before := i - 1; p.follows && before >= 0 && h.passes[before].waited && p.from.Launches && p.first != 0 {
			p.gap = signal.Some(int64(p.first - h.passes[before].wait.At))
		}
		seen := *p // what the thread does from here on is not of the step
		return &seen
	}
	return nil
}

// Words for what a pass counts, and for what a step waited for.
const (
	countedAll   = "all"
	countedGraph = "graph"
	boundGPU     = "gpu"
	boundHost    = "host"
)

func (p *pass) counted() string {
	if p.from.Launches {
		return countedAll
	}
	return countedGraph
}

func (p *pass) bound() string {
	if p.wait.Slept || p.wait.At-p.wait.Entry >= boundWait {
		return boundGPU
	}
	return boundHost
}

// graphKernels are the kernels in the graphs, if that is known of all.
func graphKernels(w *signal.GPUWork) signal.Opt[int64] {
	return signal.Opt[int64]{V: w.GraphKernels, OK: w.GraphsUnknown == 0}
}

func (p *pass) record(k clock) trace.Forward {
	w := p.to.Work.Less(p.from.Work)
	launches := func(n int64) trace.Int { return trace.Int{V: n, OK: p.from.Launches} }
	f := trace.Forward{
		Counted: p.counted(), Kernels: launches(w.Kernels), Graphs: trace.Int{V: w.Graphs, OK: true},
		GraphKernels: known(graphKernels(&w)), Copies: launches(w.Copies), CopyBytes: launches(w.CopyBytes), Gap: known(p.gap),
	}
	if p.first != 0 {
		f.First, f.Last = k.wall(p.first), k.wall(p.last)
	}
	if p.waited {
		f.Submitted, f.Wait, f.Done, f.Bound = k.wall(p.wait.Submitted), k.wall(p.wait.Entry), k.wall(p.wait.At), p.bound()
	}
	return f
}

// attrs puts what is known of a pass; of nil that is nothing.
func (p *pass) attrs(a *attrs) {
	if p == nil {
		return
	}
	w := p.to.Work.Less(p.from.Work)
	a.put(semconv.AttrInferspanForwardCounted, p.counted())
	a.put(semconv.AttrInferspanForwardGraphs, w.Graphs)
	putOpt(a, semconv.AttrInferspanForwardGraphKernels, graphKernels(&w))
	if p.from.Launches {
		a.put(semconv.AttrInferspanForwardKernels, w.Kernels)
		a.put(semconv.AttrInferspanForwardCopies, w.Copies)
		a.put(semconv.AttrInferspanForwardCopyBytes, w.CopyBytes)
	}
	if p.first != 0 {
		a.put(semconv.AttrInferspanForwardLaunchTime, float64(p.last-p.first)/1e9)
	}
	if p.waited {
		a.put(semconv.AttrInferspanForwardWaitTime, float64(p.wait.At-p.wait.Entry)/1e9)
		a.put(semconv.AttrInferspanForwardBound, p.bound())
	}
	if p.gap.OK {
		a.put(semconv.AttrInferspanForwardGap, float64(p.gap.V)/1e9)
	}
}

// span makes the child of a step's span for its pass, which ends when the host had the
// outputs. Without a launch that counts it has no beginning.
func (p *pass) span(step *trace.Span, off int64) (trace.Span, bool) {
	if p == nil || p.first == 0 || !p.waited {
		return trace.Span{}, false
	}
	start, end := max(int64(p.first)+off, step.Start), min(int64(p.wait.At)+off, step.End)
	if end < start {
		return trace.Span{}, false
	}
	var a attrs
	p.attrs(&a)
	if !p.from.Launches {
		a.put(semconv.AttrInferspanDerived, []string{spanStart}) // kernels may have been launched before
	}
	var f facts
	f.b = append(append(f.b, step.TraceID[:]...), step.SpanID[:]...)
	return trace.Span{
		TraceID: step.TraceID, SpanID: f.str(semconv.NameInferspanForward).spanID(), ParentID: step.SpanID, TraceState: step.TraceState,
		Name: semconv.NameInferspanForward, Kind: trace.KindInternal, Start: start, End: end, Attrs: a, Resource: step.Resource,
	}, true
}
