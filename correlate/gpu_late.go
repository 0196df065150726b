package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/signal"
)

// Which step a worker's calls are of is known by the next wake-up from its core at the
// latest, which may come behind the outputs of the step: of the first one that is seen, or
// the first after a mark was lost. Such a step is shared out then, and those that came
// behind it after it, since each begins when the one before was done. Meanwhile the ledger
// keeps the energy of their time.

// shareWait is how long a step waits for its pass to be known: the next wake-up comes with
// the next step, if there is one.
const shareWait = deliveryWait

// stepShare is a step that is to be shared out.
type stepShare struct {
	step   signal.Step // its times, without what is in it
	came   signal.Mono
	parts  []gpuPart
	known  bool // the tokens of all parts
	tokens int64
	late   bool // it waits for its turn
}

// shareStep shares a step out to its requests, or puts it in line. It comes after what the
// step says of them.
func (c *Correlator) shareStep(co *core, s *signal.Step) {
	e := co.eng
	if e.gpuHost(co.PID) == nil && !e.hasWorkerHosts(co.PID) {
		return // no work is seen
	}
	x := stepShare{step: *s, came: c.now, known: !s.Partial, parts: make([]gpuPart, 0, len(s.Requests)), late: co.mustWait(s)}
	x.step.Requests, x.step.Preempted, x.step.Finished = nil, nil, nil
	ended := cmp.Or(max(s.Update, 0), s.Schedule, s.Dispatch) // as requestStep has it
	for i := range s.Requests {
		q := &s.Requests[i]
		n := q.Tokens
		x.known = x.known && n >= 0 && n < mostTokens
		x.tokens += max(n, 0)
		kind, _ := kindOf(q.Phase)
		p := gpuPart{kind: kind, tokens: n}
		if r := co.find(string(q.ID)); r != nil && (!r.done || ended <= r.endAt) {
			if r.gpu == nil {
				r.gpu = &gpuTime{}
			}
			p.of = r.gpu
			p.of.steps++
			if x.late {
				p.of.late++
			}
		}
		x.parts = append(x.parts, p)
	}
	if x.late {
		co.unshared = append(co.unshared, x)
		return
	}
	e.share(&x, "")
}

// untold reports whether a pass of which it is not known what it is of may be that of a
// step that has given its outputs: a worker had waited for them by then.
func (e *engine) untold(s *signal.Step) bool {
	if s.Dispatch <= 0 || e.gpuHost(s.Core.PID) != nil {
		return false
	}
	maybe := false
	for _, h := range e.gpuHosts {
		if !h.workerOf(s.Core.PID) {
			continue
		}
		if i := h.at(s.Dispatch); i >= 0 && h.passes[i].waited {
			return false
		}
		// Messages are told in their order.
		for i := len(h.passes) - 1; i >= 0 && h.passes[i].untold && h.reached <= s.Dispatch; i-- {
			maybe = maybe || h.passes[i].waited
		}
	}
	return maybe
}

// mustWait reports whether a step cannot be shared out yet.
func (co *core) mustWait(s *signal.Step) bool {
	return len(co.unshared) > 0 || !co.inVain && co.eng.untold(s)
}

// shareOut shares out the steps of a core that waited and are known by now, or have waited
// for too long. all: nothing comes any more.
func (c *Correlator) shareOut(co *core, all bool) {
	n := 0
	for ; n < len(co.unshared); n++ {
		x, why := &co.unshared[n], ""
		if co.eng.untold(&x.step) {
			co.inVain = co.inVain || all || c.now-x.came > shareWait || len(co.unshared)-n > maxHeld
			if !co.inVain {
				break
			}
			why = reasonUntold
		}
		co.eng.share(x, why)
	}
	if n > 0 {
		co.unshared = slices.Delete(co.unshared, 0, n)
		c.workKnown()
	}
}

// awaitsWork: some of r's steps, which is over, is to be shared out, or the next sample
// will tell of their energy.
func (r *request) awaitsWork() bool {
	g := r.gpu
	return g != nil && g.unknown == "" && (g.late > 0 || g.open > 0 && g.missing == "" && r.core.eng.energy.at != 0)
}

// workKnown lets the requests go that waited for nothing but that.
func (c *Correlator) workKnown() {
	for _, r := range slices.Clone(c.waiting) {
		if r.live && r.waiting && r.forWork && !r.awaitsWork() {
			c.settle(r)
		}
	}
}
