package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// gpuHost follows what the thread of one process that schedules steps, or executes them as
// a worker of its own, has its GPU do.
//
// What it calls for between two of its marks is of one step. Where the first is that of a
// step's beginning, it is of that step, up to the beginning of the next; where the second
// is behind the launch of a step, it is of that one. With asynchronous scheduling a step is
// launched before the thread waits for the one before, so that which step a wait ended is
// told by when the event was recorded, not by the order.
type gpuHost struct {
	pid, tid uint32
	core     uint32          // process that schedules, 0: not known yet
	marks    uint32          // of the latest point
	mark     signal.GPUPoint // the latest one, At 0 if there is none or some were lost
	epoch    uint32          // of the latest point, 0 if there is none
	broken   bool            // marks were lost since the latest pass
	behind   bool            // marks are behind the launches of steps
	rank     bool            // it does what core does, the first of its ranks
	launched int64           // of a rank: number of the latest step that it launched
	passes   []*pass

	busyUntil signal.Mono // done, of the latest pass that was shared out
	settled   signal.Mono // beginning of the latest step that came; of a worker its dispatch
	reached   signal.Mono // of a worker: dispatch of the latest step that it began
}

// maxPasses bounds the passes of a host that are kept: one for each step under way, and
// those that wait for their turn in the stream of signals.
const maxPasses = 64

// pass is the GPU work of one step.
type pass struct {
	step        signal.Mono // Launched of its Step, or Schedule if that has none; of a worker's Dispatch, 0: of none
	number      int64       // of a rank: of its step, 0: of none
	more        bool        // of a rank: some of it is launched behind the mark
	schedule    signal.Mono // when its launch began, if that is told
	untold      bool        // of a worker: it is not known what message it is of
	over        bool        // of a worker: it ended with the next step, or with no message to be worked on
	begin       signal.Mono // nothing of it was called for before, or it is not seen whole
	end         signal.Mono // nor behind, 0: up to the next one
	cut         signal.Mono // what came from then on was forgotten, 0: nothing was
	torn        bool        // some of it, or what is not of it, is on the other side of a mark
	from, to    signal.GPUPoint
	first, last signal.Mono // launch
	bursts      [signal.GPUBursts]signal.GPUBurst
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
		if s.Step == signal.StepUnmarked || e.hasWorkers(s.PID) {
			return // it says nothing of a step, or the process has others execute them
		}
		h = &gpuHost{pid: s.PID, tid: s.TID, core: e.coreOf(s.PID)}
		e.gpuHosts = append(e.gpuHosts, h)
	}
	if s.TID != h.tid {
		if s.Step == signal.StepUnmarked {
			return
		}
		*h = gpuHost{pid: s.PID, tid: s.TID, core: h.core, rank: h.rank, busyUntil: h.busyUntil, settled: h.settled, reached: h.reached} // another thread schedules now
	}
	lost := !h.goesOn(&s.GPUPoint) || s.Marks != h.marks+1
	before := h.mark
	h.marks, h.mark = s.Marks, s.GPUPoint
	h.broken = h.broken || lost
	p := h.newest()
	if lost {
		h.drop() // what lies between is of more than one step, maybe
		p = nil
	}
	if p != nil {
		p.extend(&s.GPUPoint)
		p.seen = p.first
	}
	switch s.Step {
	case signal.StepTaken, signal.StepIdle:
		if p != nil {
			p.closed, p.over = true, s.Step == signal.StepIdle
		}
		if s.Step == signal.StepTaken {
			h.add(&pass{untold: true, begin: s.At, from: s.GPUPoint, to: s.GPUPoint})
		}
		c.passesClosed(e)
	case signal.StepBegins:
		h.schedules(s.PID)
		if p != nil {
			p.closed = true
		}
		h.add(&pass{step: s.At, begin: s.At, from: s.GPUPoint, to: s.GPUPoint})
	case signal.StepLaunched:
		h.schedules(s.PID)
		h.behind = true
		if s.Marks == 1 && s.Epoch == 1 {
			before = signal.GPUPoint{At: e.lookedFrom(s.PID), Epoch: s.Epoch, Launches: s.Launches}
		}
		if !lost && before.At != 0 {
			h.add(&pass{step: s.At, begin: before.At, end: s.At, from: before, to: s.GPUPoint, first: s.First, last: s.Last, bursts: s.Bursts, closed: true})
		}
	}
}

// schedules: the process schedules steps, of its own but for a rank.
func (h *gpuHost) schedules(pid uint32) {
	if !h.rank {
		h.core = pid
	}
}

// goesOn takes a point of the thread in, and reports whether all that it does but launches
// was counted since the one before.
func (h *gpuHost) goesOn(p *signal.GPUPoint) bool {
	before := h.epoch
	h.epoch = p.Epoch
	return before == 0 || p.Epoch-before <= p.Continues
}

// lookedFrom is since when all that a process has its GPU do is seen, 0 if that is not known.
func (e *engine) lookedFrom(pid uint32) signal.Mono {
	if d := e.detail(signal.DetailForward); d != nil {
		return d.first[pid]
	}
	return 0
}

func (h *gpuHost) add(p *pass) {
	p.follows = len(h.passes) > 0 && !h.broken
	h.broken = false
	if len(h.passes) == maxPasses {
		h.passes = append(h.passes[:0], h.passes[1:]...)
	}
	h.passes = append(h.passes, p)
}

// newest is the pass under way, nil if there is none.
func (h *gpuHost) newest() *pass {
	if n := len(h.passes); n > 0 && !h.passes[n-1].closed {
		return h.passes[n-1]
	}
	return nil
}

// drop forgets the pass under way, if there is one. What comes behind the pass before is not
// of that.
func (h *gpuHost) drop() {
	from := signal.Mono(0)
	if p := h.newest(); p != nil {
		from, h.passes = p.begin, h.passes[:len(h.passes)-1]
	}
	if n := len(h.passes); n > 0 && h.passes[n-1].cut == 0 {
		h.passes[n-1].cut = cmp.Or(from, h.passes[n-1].to.At)
	}
}

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
		switch on := h.goesOn(&s.GPUPoint); {
		case !on || s.Marks != h.marks:
			h.marks, h.mark, h.broken = s.Marks, signal.GPUPoint{}, true
			h.drop()
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
		if p.end != 0 && p.end < s.Submitted || p.cut != 0 && p.cut <= s.Submitted {
			return // of no step, or of one that is not launched yet
		}
		p.await(s)
		if h.rank {
			c.passesClosed(c.engine(s.Engine))
		}
		return
	}
}

// await notes a wait. A later event of the same step stands for more of it; other waits
// are for something on the way.
func (p *pass) await(s *signal.GPUWait) {
	if !p.waited || s.Event && (!p.wait.Event || s.Submitted >= p.wait.Submitted) || !s.Event && !p.wait.Event {
		p.wait, p.waited = *s, true
	}
}

// find returns the place of a step's pass, -1 if there is none.
func (h *gpuHost) find(s *signal.Step) int {
	if h.workerOf(s.Core.PID) {
		return h.at(s.Dispatch)
	}
	return h.at(cmp.Or(s.Launched, s.Schedule))
}

func (h *gpuHost) at(step signal.Mono) int {
	if step <= 0 {
		return -1
	}
	return slices.IndexFunc(h.passes, func(p *pass) bool { return p.step == step })
}

// firstFrom is the first launch from a moment on, 0 if there is none or it is not known.
func (p *pass) firstFrom(at signal.Mono) signal.Mono {
	if p.first >= at {
		return p.first
	}
	// In older recordings earlier bursts may be missing where there is no room for one more.
	certain := p.bursts[0].First == p.first || p.bursts[signal.GPUBursts-1].First == 0
	for _, b := range p.bursts {
		switch {
		case b.First == 0, b.First < at && at <= b.Last:
			return 0
		case b.First < at:
			certain = true
		case certain:
			return b.First
		default:
			return 0
		}
	}
	return 0
}

// passOf returns the pass of a step that has ended, nil if it was not seen whole.
func (e *engine) passOf(s *signal.Step) *pass {
	h := e.gpuHost(s.Core.PID)
	if h == nil {
		return nil
	}
	i := h.find(s)
	if i < 0 {
		return nil
	}
	if s.More {
		h.passes[i].torn = true
		if next := i + 1; next < len(h.passes) && h.passes[next].follows {
			h.passes[next].torn = true
		}
	}
	if p := h.passes[i]; s.Detail != signal.StepSeen && !p.closed {
		return nil
	}
	return h.launchedPass(i, s.Schedule)
}

// launchedPass returns pass i of a process that schedules steps, nil if it was not seen whole.
// Its launch began at schedule.
func (h *gpuHost) launchedPass(i int, schedule signal.Mono) *pass {
	p := h.passes[i]
	if p.torn || p.end != 0 && schedule < p.begin {
		return nil // it was being launched when that began to be seen, or had no time
	}
	seen := *p // what the thread does from here on is not of the step
	seen.schedule = schedule
	seen.first = p.firstFrom(schedule)
	seen.forgetLaunches()
	if before := i - 1; p.follows && before >= 0 && h.passes[before].waited && p.launches() && seen.first != 0 {
		seen.gap = signal.Some(int64(seen.first - h.passes[before].wait.At))
	}
	return &seen
}

// Words for what a pass counts, and for what a step waited for.
const (
	countedAll     = "all"
	countedGraph   = "graph"
	countedChanged = "changed"
	boundGPU       = "gpu"
	boundHost      = "host"
)

// changed: kernels and copies were counted in a part of it only.
func (p *pass) changed() bool { return p.from.Epoch != p.to.Epoch }

// launches: kernels and copies were counted from its beginning to its end.
func (p *pass) launches() bool { return p.from.Launches && !p.changed() }

func (p *pass) counted() string {
	switch {
	case p.changed():
		return countedChanged
	case p.from.Launches:
		return countedAll
	}
	return countedGraph
}

// forgetLaunches leaves the times of launches out where they are of different ones.
func (p *pass) forgetLaunches() {
	if p.changed() {
		p.first, p.last = 0, 0
	}
}

// bound is "" if it is not known: before the host waits for a stream it may have waited in
// a call that copies from it to memory that is not pinned.
func (p *pass) bound() string {
	switch {
	case p.wait.Slept, p.wait.At-p.wait.Entry >= boundWait:
		return boundGPU
	case p.wait.Event:
		return boundHost
	}
	return ""
}

// graphKernels are the kernels in the graphs, if that is known of all.
func graphKernels(w *signal.GPUWork) signal.Opt[int64] {
	return signal.Opt[int64]{V: w.GraphKernels, OK: w.GraphsUnknown == 0}
}

func (p *pass) record(k clock) trace.Forward {
	w := p.to.Work.Less(p.from.Work)
	launches := func(n int64) trace.Int {
		if !p.launches() {
			return trace.Int{}
		}
		return trace.Int{V: n, OK: true}
	}
	f := trace.Forward{
		Counted: p.counted(), Kernels: launches(w.Kernels), Graphs: trace.Int{V: w.Graphs, OK: true},
		GraphKernels: known(graphKernels(&w)), Copies: launches(w.Copies), CopyBytes: launches(w.CopyBytes), Gap: known(p.gap),
	}
	if p.first != 0 {
		f.First = k.wall(p.first)
	}
	if p.last != 0 {
		f.Last = k.wall(p.last)
	}
	if p.waited {
		f.Submitted, f.Wait, f.Done, f.Bound = k.wall(p.wait.Submitted), k.wall(p.wait.Entry), k.wall(p.wait.At), p.bound()
	}
	return f
}

// attrs puts what is known of a pass.
func (p *pass) attrs(a *attrs) {
	w := p.to.Work.Less(p.from.Work)
	a.put(semconv.AttrInferspanForwardCounted, p.counted())
	a.put(semconv.AttrInferspanForwardGraphs, w.Graphs)
	putOpt(a, semconv.AttrInferspanForwardGraphKernels, graphKernels(&w))
	if p.launches() {
		a.put(semconv.AttrInferspanForwardKernels, w.Kernels)
		a.put(semconv.AttrInferspanForwardCopies, w.Copies)
		a.put(semconv.AttrInferspanForwardCopyBytes, w.CopyBytes)
	}
	if p.first != 0 {
		a.put(semconv.AttrInferspanForwardLaunchTime, float64(p.last-p.first)/1e9)
	}
	if p.waited {
		a.put(semconv.AttrInferspanForwardWaitTime, float64(p.wait.At-p.wait.Entry)/1e9)
		a.text(semconv.AttrInferspanForwardBound, p.bound())
	}
	if p.gap.OK {
		a.put(semconv.AttrInferspanForwardGap, float64(p.gap.V)/1e9)
	}
}

// span makes the child of a step's span for a pass, which ends when the host had the
// outputs; of a worker that does not wait for them, with its last launch. It begins at
// launched, if that is not 0, where no launch is known to be the first.
func (p workerPass) span(step *trace.Span, off int64, launched signal.Mono) (trace.Span, bool) {
	if p.first == 0 && launched == 0 || !p.waited && !p.rank.OK {
		return trace.Span{}, false
	}
	to := p.last
	if p.waited {
		to = p.wait.At
	}
	start, end := max(int64(cmp.Or(p.first, launched))+off, step.Start), min(int64(to)+off, step.End)
	if end < start {
		return trace.Span{}, false
	}
	var a attrs
	p.attrs(&a)
	if !p.launches() || p.first == 0 {
		a.put(semconv.AttrInferspanDerived, []string{spanStart}) // kernels may have been launched before
	}
	var f facts
	f.b = append(append(f.b, step.TraceID[:]...), step.SpanID[:]...)
	f.str(semconv.NameInferspanForward)
	if p.rank.OK {
		f.num(uint64(p.rank.V))
	}
	return trace.Span{
		TraceID: step.TraceID, SpanID: f.spanID(), ParentID: step.SpanID, TraceState: step.TraceState,
		Name: semconv.NameInferspanForward, Kind: trace.KindInternal, Start: start, End: end, Attrs: a, Resource: step.Resource,
	}, true
}
