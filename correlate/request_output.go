package correlate

import "inferspan/correlate/signal"

// output is an output of a request that may turn out to be its last.
type output struct {
	stamp, send signal.Mono
	msg         uint64
	n           int64 // outputs of the request up to here
	tokens      int64 // its tokens up to here
	preempted   int64 // its preemptions up to here
}

// recentOutputs is how many outputs are kept of a request with stop strings: the
// front end finds the stop, so the core may be this many steps ahead. Of a request
// seen from its middle they are kept too, until what was read from memory comes.
const recentOutputs = 8

// stepOutput is the hot path: one call per message, one pass of the loop per
// request and step, without allocation once a request has begun.
func (c *Correlator) stepOutput(s *signal.StepOutput) {
	e := c.engine(s.Core.Engine)
	e.seen.Outputs = true
	co := e.core(s.Core)
	co.m.step(s)
	if s.Stats != nil {
		e.seen.Stats = true
	} else if len(s.Outputs) > 0 && !e.seen.Stats {
		e.bare++
	}
	stamp := s.Stamp
	if !plausible(stamp, c.now) {
		stamp = 0
	}
	seq, undelivered := e.msgs.add(s)
	for _, r := range undelivered {
		c.requestUndelivered(r)
	}
	for i := range s.Outputs {
		o := &s.Outputs[i]
		r := co.reqs[string(o.ID)]
		if r == nil {
			if _, gone := co.gone.ids[string(o.ID)]; gone {
				c.own.droppedOutputs++
				continue
			}
			if r = e.running(co, string(o.ID)); r == nil {
				r = c.newRequest(co, string(o.ID), s.At) // seen for the first time in mid-flight
			}
		}
		c.output(co, r, s, o, stamp, seq)
	}
}

// plausible: a stamp read from a message is a time that has passed.
func plausible(stamp, now signal.Mono) bool { return stamp > 0 && stamp <= now+second }

func (c *Correlator) output(co *core, r *request, s *signal.StepOutput, o *signal.Output, stamp signal.Mono, seq uint64) {
	r.outputs++
	n := max(o.NumTokens, 0)
	r.tokens += int64(n)
	if o.Checks.OK && o.Checks.V < mostTokens {
		r.checks = o.Checks
	}
	co.m.generated += uint64(n)
	preempted := r.preempted
	if len(o.Events) > 0 {
		c.engineEvents(co, r, o.Events)
	}
	if stamp != 0 && stamp < r.lookedAt {
		r.countedBefore(int64(n), r.preempted-preempted)
	}
	if r.outputs == 1 {
		c.firstOutput(co, r, s, o, stamp, seq)
	}
	r.last, r.lastSend, r.lastMsg = stamp, s.At, seq
	if r.param.HasStop || !r.firstOK {
		r.recent[r.outputs%recentOutputs] = output{stamp, s.At, seq, r.outputs, r.tokens, r.preempted}
		r.unstamped = r.unstamped || stamp == 0
	}
	if c.opt.Precision >= 2 {
		c.tokenEvent(r, stamp, o)
	}
	if o.Finish != signal.FinishNone {
		r.finish, r.finishReason = o.Finish, o.FinishReason
		r.refused = o.Finish == signal.FinishAbort && !o.PromptTokens.OK && !o.Total.OK
		if o.Failure != nil {
			f := *o.Failure
			r.failure = &f
		}
		c.endRequest(r, endFinished, s.At)
	}
}

func (c *Correlator) firstOutput(co *core, r *request, s *signal.StepOutput, o *signal.Output, stamp signal.Mono, seq uint64) {
	// With its statistics on, the engine sends QUEUED with the first output. One
	// without it is a later one, whose predecessors were not seen. With them off it
	// is the first of a request seen from its beginning, unless the steps say that
	// one was missed.
	whole, missed := r.arrivalSeen || r.fresh, false
	if n := r.steps; n != nil {
		whole, missed = whole || n.fromStart, n.gave > max(co.eng.rules.stepsOf(1, int64(o.NumTokens)), 1)
	}
	if n := o.Total.V - int64(max(o.NumTokens, 0)); o.Total.OK && n >= 0 && n < mostTokens {
		// The engine counts, so that what was before is known.
		whole, missed = n == 0, false
		if n > 0 && !r.before.OK {
			r.before = signal.Some(n)
		}
	}
	r.firstOK = r.started || (whole && !missed && !co.eng.events())
	if o.CachedTokens.OK {
		r.cached = o.CachedTokens
	}
	if o.ExternalTokens.OK {
		r.loaded = o.ExternalTokens
	}
	if o.PromptTokens.OK {
		r.corePrompt = o.PromptTokens
	}
	if !r.firstOK {
		return
	}
	r.first, r.firstSend, r.firstMsg = stamp, s.At, seq
	co.m.cached += uint64(max(o.CachedTokens.V, 0))
	switch {
	case o.PromptTokens.OK:
		co.m.prompt += uint64(max(o.PromptTokens.V, 0))
	case r.prompt.OK:
		co.m.prompt += uint64(max(r.prompt.V, 0))
	}
	if m := co.eng.msgs.get(seq); m != nil && o.Finish == signal.FinishNone {
		if m.recv.at != 0 {
			c.requestDelivered(r, seq, m.recv)
		} else {
			m.waiters = append(m.waiters, r)
		}
	}
}

func (c *Correlator) engineEvents(co *core, r *request, events []signal.EngineEvent) {
	for _, ev := range events {
		switch ev.Kind {
		case signal.EventQueued:
			co.eng.seen.Events = true
			if !plausible(ev.At, c.now) {
				continue
			}
			r.started = r.started || r.outputs == 1
			if r.queued == 0 {
				r.queued = ev.At
				c.stateEvent(r, ev)
			}
		case signal.EventScheduled:
			// Preempted requests are scheduled again: the first time counts, and
			// only if it is known to be the first.
			if r.sched == 0 && r.queued != 0 && r.outputs == 1 && plausible(ev.At, c.now) {
				r.sched = ev.At
			}
		case signal.EventPreempted:
			r.preempted++
			co.m.preemptions++
			c.stateEvent(r, ev)
		}
	}
}
