package sglang

import "inferspan/correlate/signal"

// drafted is a count of speculative decoding.
type drafted struct {
	checks   int64               // passes of the model over drafts
	accepted int64               // draft tokens that stood
	length   signal.Opt[float64] // tokens of a pass when there was the last one
}

// drafts counts what an output says of drafts since the last one of the same request. A
// request that was not seen from its beginning says it from its second output on.
func (d *Decoder) drafts(r *running, q *Output) {
	if !q.SpecVerifies.OK || !q.SpecAccepted.OK {
		return
	}
	now := drafted{checks: q.SpecVerifies.V, accepted: q.SpecAccepted.V}
	more := drafted{checks: now.checks - r.drafts.checks, accepted: now.accepted - r.drafts.accepted}
	if (r.added || r.drafted) && more.checks >= 0 && more.accepted >= 0 {
		sum := d.drafted[d.step.Core.PID]
		sum.checks += more.checks
		sum.accepted += more.accepted
		d.drafted[d.step.Core.PID] = sum
	}
	r.drafts, r.drafted = now, true
}

// acceptLength is how many tokens a pass over drafts of a scheduler gave in the outputs
// since it was last asked for: those that stood, and the one that the pass itself makes.
// Without new passes it stays as it was, as in the engine's own reports.
func (d *Decoder) acceptLength(pid uint32) signal.Opt[float64] {
	sum := d.drafted[pid]
	if sum.checks > 0 {
		sum.length = signal.Some(1 + float64(sum.accepted)/float64(sum.checks))
		d.drafted[pid] = drafted{length: sum.length}
	}
	return sum.length
}
