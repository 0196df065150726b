package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Workers that are processes of their own execute the steps that their core schedules. A
// step has a pass of each. Where one ends is known when the worker takes the next step, or
// has none for a second: mostly after the outputs of the step, so that its record is held
// back until then.

// Bounds on steps that are held back: for how many, and how long after their dispatch.
const (
	maxHeld  = maxPasses / 2
	heldWait = signal.Mono(5e9)
)

// workerPass is the pass of one worker.
type workerPass struct {
	rank signal.Opt[int64]
	*pass
}

// stepWork is what a step had the GPUs do: by its process, or by each of its workers.
type stepWork struct {
	passes  []workerPass
	workers bool // they are processes of their own
	ranks   bool // passes of other ranks are to come
	// skews are the differences between the ranks' first launches, and between their last,
	// in ns; where there is tensor parallelism only.
	skews [len(skewOf)]signal.Opt[int64]
}

// skewOf names the launches that are compared.
var skewOf = [...]string{"first", "last"}

// heldStep is a step whose passes are not all known to have ended.
type heldStep struct {
	core     *core
	dispatch signal.Mono // or launch
	number   int64       // of one of several ranks
	work     *stepWork
	record   *trace.Step // nil if none is asked for
}

// messageTaken: it is known now what a mark of a worker began.
func (c *Correlator) messageTaken(s *signal.MessageTaken) {
	e := c.engine(s.Engine)
	h := e.gpuHost(s.PID)
	if h == nil {
		return
	}
	h.core = s.Core.PID
	for _, co := range e.cores {
		if co.PID == s.Core.PID {
			co.inVain = false
		}
	}
	i := slices.IndexFunc(h.passes, func(p *pass) bool { return p.begin == s.At })
	if i < 0 {
		return
	}
	p := h.passes[i]
	p.untold = false
	switch {
	case s.Step != 0:
		p.step = s.Step
		if p.follows && i > 0 {
			h.passes[i-1].over = true
		}
		h.reached = max(h.reached, s.Step)
	case p.follows && i > 0 && !h.passes[i-1].over:
		h.passes[i-1].join(p)
		h.passes = slices.Delete(h.passes, i, i+1)
	}
	c.passesClosed(e)
}

// unseen: the probes in a worker were taken out, or put in: what its thread did meanwhile has
// no mark, which the kernel does not count as one that was lost.
func (h *gpuHost) unseen() {
	h.drop()
	h.broken, h.mark = true, signal.GPUPoint{}
}

// join takes in what was done after the message behind p's: it belongs to the same step.
func (p *pass) join(next *pass) {
	p.to, p.cut, p.closed, p.over = next.to, next.cut, next.closed, next.over
	if p.first == 0 {
		p.first = next.first
	}
	if p.seen == 0 {
		p.seen = next.seen
	}
	p.last = max(p.last, next.last)
	if next.waited {
		p.await(&next.wait)
	}
}

// workerOf reports whether h belongs to a worker of a core.
func (h *gpuHost) workerOf(core uint32) bool { return h.core == core && h.pid != core }

// workOf returns what a step had the GPUs do; nil if that is not seen. Of workers of its
// own it is empty, and filled in by passesClosed.
func (e *engine) workOf(s *signal.Step) *stepWork {
	if p := e.passOf(s); p != nil {
		w := &stepWork{passes: []workerPass{{pass: p}}}
		if s.Number.OK && e.ranks(s.Core.PID) > 0 {
			w.ranks, w.passes[0].rank = true, e.tensorRank(s.Core.PID)
		}
		return w
	}
	if s.Dispatch <= 0 || !e.awaited(s.Core.PID) && !e.hasWorkerHosts(s.Core.PID) {
		return nil
	}
	return &stepWork{workers: true}
}

// coreOf returns the process that schedules the steps of a worker, 0 if it is not known.
func (e *engine) coreOf(pid uint32) uint32 {
	for i := range e.procs {
		if e.procs[i].pid == pid {
			return e.procs[i].core
		}
	}
	return 0
}

// hasWorkers reports whether a core has workers that are processes of their own.
func (e *engine) hasWorkers(core uint32) bool { return e.workersOf(core) > 0 }

// hasWorkerHosts reports whether work of such is seen.
func (e *engine) hasWorkerHosts(core uint32) bool {
	return slices.ContainsFunc(e.gpuHosts, func(h *gpuHost) bool { return h.workerOf(core) })
}

// workersOf counts them.
func (e *engine) workersOf(core uint32) (n int) {
	for i := range e.procs {
		if e.procs[i].core == core {
			n++
		}
	}
	return n
}

// awaited reports whether a worker of a core, in which there are probes, has not taken a
// message yet.
func (e *engine) awaited(core uint32) bool {
	d := e.detail(signal.DetailMessages)
	if d == nil {
		return false
	}
	for i := range e.procs {
		p := &e.procs[i]
		if _, out := d.inactive[p.pid]; p.core == core && !out && d.first[p.pid] != 0 && e.gpuHost(p.pid) == nil {
			return true
		}
	}
	return false
}

// hold keeps a step until the passes of its workers have ended.
func (c *Correlator) hold(co *core, s *signal.Step, w *stepWork, record *trace.Step) {
	e := co.eng
	h := &heldStep{core: co, dispatch: s.Dispatch, work: w, record: record}
	if w.ranks {
		h.dispatch, h.number = cmp.Or(s.Launched, s.Schedule), s.Number.V
	}
	e.held = append(e.held, h)
	c.passesClosed(e)
	if n := len(e.held) - maxHeld; n > 0 {
		c.letGo(e, n)
	}
}

// passesClosed hands over the steps whose passes have ended, in their order.
func (c *Correlator) passesClosed(e *engine) {
	for _, co := range e.cores {
		c.shareOut(co, false)
	}
	n := 0
	for n < len(e.held) && (e.passed(e.held[n]) || c.now-e.held[n].dispatch > heldWait) {
		n++
	}
	c.letGo(e, n)
}

// passed reports whether the passes of a step have ended, or are not to be had.
func (e *engine) passed(s *heldStep) bool {
	if s.work.ranks {
		return e.ranksPassed(s)
	}
	if e.awaited(s.core.PID) {
		return false
	}
	for _, h := range e.gpuHosts {
		if !h.workerOf(s.core.PID) {
			continue
		}
		if i := h.at(s.dispatch); i >= 0 && !h.passes[i].over && !h.endLost(i) || i < 0 && h.reached < s.dispatch {
			return false
		}
	}
	return true
}

// endLost reports whether it cannot become known any more where pass i ended.
func (h *gpuHost) endLost(i int) bool {
	return h.passes[i].closed && !h.passes[i].over && i+1 < len(h.passes) && !h.passes[i+1].follows
}

// letGo hands over the n oldest steps that are held, with the passes that have ended.
func (c *Correlator) letGo(e *engine, n int) {
	for _, s := range e.held[:n] {
		c.fill(e, s)
		if s.record != nil {
			for _, p := range s.work.passes {
				s.record.Forward = append(s.record.Forward, p.record(c.clock))
			}
			s.record.FirstLaunchSkew, s.record.LastLaunchSkew = known(s.work.skews[0]), known(s.work.skews[1])
			c.sink(&trace.Tree{Steps: []trace.Step{*s.record}})
		}
	}
	e.held = slices.Delete(e.held, 0, n)
}

// fill takes the passes of a step that have ended into what is known of its work.
func (c *Correlator) fill(e *engine, s *heldStep) {
	hosts, workers := 0, e.workersOf(s.core.PID)
	if s.work.ranks {
		hosts, workers = 1, 1+e.ranks(s.core.PID)
	}
	for _, h := range e.gpuHosts {
		if !h.workerOf(s.core.PID) {
			continue
		}
		hosts++
		if h.rank {
			if p := h.passOfRank(s.number); s.work.ranks && p != nil {
				s.work.passes = append(s.work.passes, workerPass{e.tensorRank(h.pid), p})
			}
			continue
		}
		if i := h.at(s.dispatch); i >= 0 && h.passes[i].over {
			s.work.passes = append(s.work.passes, workerPass{e.rank(h.pid), h.passOfWorker(i)})
		}
	}
	e.kernels.workers(s.work.passes, workers)
	slices.SortStableFunc(s.work.passes, func(a, b workerPass) int { return int(a.rank.V - b.rank.V) })
	if len(s.work.passes) == hosts && s.core.tensorParallel() == int64(hosts) {
		s.work.compare(&s.core.steps)
	}
}

// passOfWorker returns pass i, which has ended.
func (h *gpuHost) passOfWorker(i int) *pass {
	p := *h.passes[i]
	p.forgetLaunches()
	if before := i - 1; p.follows && before >= 0 && h.passes[before].waited && p.launches() && p.first != 0 {
		p.gap = signal.Some(int64(p.first - h.passes[before].wait.At))
	}
	return &p
}

// compare notes how far the ranks are apart.
func (w *stepWork) compare(t *stepTrack) {
	for k := range skewOf {
		var from, to signal.Mono
		for i, p := range w.passes {
			at := [...]signal.Mono{p.first, p.last}[k]
			if at == 0 || p.launches() != w.passes[0].launches() {
				return
			}
			if i == 0 || at < from {
				from = at
			}
			to = max(to, at)
		}
		w.skews[k] = signal.Some(int64(to - from))
		t.skew[k].add(gapBounds, float64(to-from)/1e9)
	}
}

// tensorParallel is how many workers share each layer, where there is no other parallelism
// within the core; 0 if that is not known, or there is none.
func (co *core) tensorParallel() int64 {
	var tensor, pipeline int64
	for _, kv := range co.config {
		n, _ := kv.Value.(int64)
		switch kv.Key {
		case semconv.AttrInferspanEngineTensorParallelSize:
			tensor = n
		case semconv.AttrInferspanEnginePipelineParallelSize:
			pipeline = n
		}
	}
	if pipeline != 1 || tensor < 2 {
		return 0
	}
	return tensor
}

// rank is that of a worker among those of its core.
func (e *engine) rank(pid uint32) signal.Opt[int64] {
	for i := range e.procs {
		if e.procs[i].pid == pid {
			return e.procs[i].rank
		}
	}
	return signal.Opt[int64]{}
}

// leader returns the host whose time is that of a step: of several workers the one that
// waits for the outputs. nil if no work is seen.
func (e *engine) leader(s *signal.Step) (lead *gpuHost) {
	if h := e.gpuHost(s.Core.PID); h != nil {
		h.settled = max(h.settled, s.Schedule)
		return h
	}
	busyUntil := signal.Mono(0)
	for _, h := range e.gpuHosts {
		if !h.workerOf(s.Core.PID) {
			continue
		}
		h.settled = max(h.settled, s.Dispatch)
		busyUntil = max(busyUntil, h.busyUntil)
		i := h.find(s)
		if waits := i >= 0 && h.passes[i].waited; lead == nil || waits {
			lead = h
		}
	}
	if lead != nil {
		lead.busyUntil = busyUntil
	}
	return lead
}

// underWay reports whether the step of a pass, if it is of one, has not come yet.
func (h *gpuHost) underWay(p *pass) bool {
	if h.workerOf(h.core) {
		return p.untold || p.step > h.settled
	}
	return p.begin > h.settled
}

// calls reports whether calls for work on GPUs are seen that steps of a core make.
func (e *engine) calls(core uint32) bool {
	return slices.ContainsFunc(e.gpuHosts, func(h *gpuHost) bool { return h.core == core })
}

// oneCaller reports whether all work that is seen is of the steps of one core.
func (e *engine) oneCaller() bool {
	for _, h := range e.gpuHosts {
		if h.core != e.gpuHosts[0].core {
			return false
		}
	}
	return len(e.gpuHosts) > 0
}

// attrs puts what is known of a step's work: of several workers that of the one that waits
// for the outputs, or of the first.
func (w *stepWork) attrs(a *attrs) {
	if w == nil || len(w.passes) == 0 {
		return
	}
	of := w.passes[0]
	for _, p := range w.passes {
		if p.waited {
			of = p
			break
		}
	}
	of.attrs(a)
	for k, name := range [...]string{semconv.AttrInferspanForwardFirstLaunchSkew, semconv.AttrInferspanForwardLastLaunchSkew} {
		if w.skews[k].OK {
			a.put(name, float64(w.skews[k].V)/1e9)
		}
	}
}

// attrs puts what is known of a pass, and whose it is.
func (p workerPass) attrs(a *attrs) {
	putOpt(a, semconv.AttrInferspanForwardRank, p.rank)
	p.pass.attrs(a)
}

func (p workerPass) record(k clock) trace.Forward {
	f := p.pass.record(k)
	f.Rank = known(p.rank)
	if p.rank.OK {
		f.Begin = k.wall(cmp.Or(p.schedule, p.begin))
	}
	return f
}

// spans makes the children of a step's span for its passes, as workerPass.span does each.
func (w *stepWork) spans(step *trace.Span, off int64, launched signal.Mono) (out []trace.Span) {
	if w == nil {
		return nil
	}
	for _, p := range w.passes {
		if s, ok := p.span(step, off, launched); ok {
			out = append(out, s)
		}
	}
	return out
}
