package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/signal"
)

// What the spans of a request lack, and say so.

// ranksUnseen names the threads of ranks that work on r with its core and in which nothing
// of it was seen, with the reason.
func (r *request) ranksUnseen() (out []string) {
	e := r.core.eng
	core, d := e.process(r.core.PID), e.detail(signal.DetailSteps)
	if core.pid == 0 || r.way == nil || d == nil {
		return nil
	}
	for i := range e.procs {
		p := &e.procs[i]
		if !p.tensorRank.OK && !p.pipelineRank.OK || p.dataRank != core.dataRank || p.pid == core.pid {
			continue
		}
		if slices.ContainsFunc(r.way.threads, func(t thread) bool { return t.pid == p.pid && t.kind == threadScheduler && t.from != 0 }) {
			continue
		}
		why := cmp.Or(r.lostDetail(signal.DetailSteps), e.halfSeen(signal.DetailSteps, p.pid))
		if _, less := e.lesserOf(signal.DetailSteps, p.pid, r.added, r.endAt); why == "" && less != nil {
			why = less[0]
		}
		if why == "" && !d.known(p.pid) {
			why = "there are no probes in it"
		}
		out = append(out, ofRole(e.sglangRole(), threadLabels[threadScheduler])+p.ranks()+": "+cmp.Or(why, "the rank sends nothing, and no batch there shows the request"))
	}
	return out
}

// notKept names what is not below the thread at a trace level since the engine keeps no
// stamps of it.
func (t *thread) notKept(level int) (out []string) {
	for _, name := range t.unkept {
		if d := stageDefs[name]; d != nil && d.level <= level || name == eventSchedule.Name && eventSchedule.MinLevel <= level {
			out = append(out, name+": this version keeps no times of it")
		}
	}
	return out
}
