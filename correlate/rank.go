package correlate

import (
	"slices"

	"inferspan/correlate/signal"
)

// Ranks that schedule for themselves what the first of them does, SGLang's, launch the same
// steps with the same numbers, each at its own time. The first one's pass of a step is known
// when the step has ended; those of the others when they waited for it, mostly a little
// later, so that the record of the step is held back until then.

// rankLaunched: it is known now which step a mark of a rank launched.
func (c *Correlator) rankLaunched(s *signal.RankLaunched) {
	e := c.engine(s.Engine)
	h := e.gpuHost(s.PID)
	if h == nil {
		return
	}
	i := h.at(s.At)
	if i >= 0 && h.passes[i].end == 0 {
		return // it is not known where the pass of a step ends that is marked at its beginning
	}
	h.rank, h.core, h.launched = true, s.Core.PID, s.Number
	if i >= 0 {
		p := h.passes[i]
		p.number, p.schedule, p.more = s.Number, s.Schedule, s.More
		p.torn = s.More || p.follows && i > 0 && h.passes[i-1].more
	}
	c.passesClosed(e)
}

// ranks counts the ranks that do what a core does.
func (e *engine) ranks(core uint32) (n int) {
	for _, h := range e.gpuHosts {
		if h.rank && h.workerOf(core) {
			n++
		}
	}
	return n
}

// tensorRank is that of a scheduler.
func (e *engine) tensorRank(pid uint32) signal.Opt[int64] {
	for i := range e.procs {
		if e.procs[i].pid == pid {
			return e.procs[i].tensorRank
		}
	}
	return signal.Opt[int64]{}
}

// ranksPassed reports whether the other ranks have waited for a step, or are not seen to.
func (e *engine) ranksPassed(s *heldStep) bool {
	for _, h := range e.gpuHosts {
		if !h.rank || !h.workerOf(s.core.PID) {
			continue
		}
		if h.launched < s.number {
			return false
		}
		i := h.numbered(s.number)
		if i >= 0 && !slices.ContainsFunc(h.passes[i:], func(p *pass) bool { return p.waited }) {
			return false
		}
	}
	return true
}

// numbered returns the place of a rank's pass of a step, -1 if there is none.
func (h *gpuHost) numbered(step int64) int {
	return slices.IndexFunc(h.passes, func(p *pass) bool { return p.number == step && p.number != 0 })
}

// passOfRank returns the pass of a step, nil if it was not seen whole.
func (h *gpuHost) passOfRank(step int64) *pass {
	i := h.numbered(step)
	if i < 0 {
		return nil
	}
	return h.launchedPass(i, h.passes[i].schedule)
}
