package correlate

import (
	"slices"
	"strings"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// What a request's times are worked out from where the engine does not say them:
// with its statistics off it sends no events, and used as a library in one
// process it sends nothing at all. The steps tell when a request was first
// scheduled, and in the second case also when it got its tokens.

// Values in inferspan.derived.methods.
const (
	methodReceiptToStep = "receipt_to_step"
	methodSteps         = "steps"
	methodToDispatch    = "receipt_to_dispatch"
	methodDispatch      = "dispatch"
	methodOrder         = "order"
	methodShareOfBatch  = "share_of_batch"
	methodCalibrated    = "calibrated"
	methodPeek          = "peek"
	methodReceipt       = "receipt"
	methodSend          = "send"
)

// events: the engine sends its events, as far as is known.
func (e *engine) events() bool { return e.seen.Events || e.seen.Stats || e.logStats.OK && e.logStats.V }

// enough is how many messages without statistics, or steps without messages, must
// have been seen before metrics are worked out from steps: those of an engine that
// turns out to send them would jump.
const enough = 8

// silent: the engine sends neither events nor statistics.
func (e *engine) silent() bool {
	return !e.events() && (e.logStats.OK || e.bare >= enough)
}

// mute: the engine sends nothing, but works.
func (e *engine) mute() bool {
	n := uint64(0)
	for _, co := range e.cores {
		n += co.steps.iterations
	}
	return !e.seen.Outputs && n >= enough
}

// scheduled returns when r was queued and first scheduled; derived says that it
// is by the steps.
func (r *request) scheduled() (queued, sched signal.Mono, derived bool) {
	n := r.steps
	if r.queued != 0 || n == nil || !n.fromStart || n.sched == 0 || r.core.eng.events() {
		return r.queued, r.sched, false
	}
	if r.arrivalSeen && r.added <= n.sched {
		queued = r.added
	}
	return queued, n.sched, true
}

// markScheduled marks what was worked out from the first step.
func (v *view) markScheduled() {
	queue, rest := methodReceiptToStep, methodSteps
	if v.r.steps.schedIsDispatch {
		queue, rest = methodToDispatch, methodDispatch
	}
	v.derive(queue, semconv.AttrGenAILatencyTimeInQueue)
	v.derive(rest, semconv.AttrGenAILatencyTimeInModelPrefill, semconv.AttrGenAILatencyTimeInModelInference)
}

// preemptions of r, if they are known.
func (r *request) preemptionCount() (n signal.Opt[int64], derived bool) {
	switch {
	case r.firstOK && r.core.eng.events():
		return signal.Some(r.preempted), false
	case r.preBefore.OK:
		return signal.Some(r.preBefore.V + r.preempted), false
	case r.steps != nil && r.steps.fromStart && !r.core.eng.events():
		return signal.Some(r.steps.preemptions), true
	case r.firstOK:
		return signal.Some(r.preempted), false
	}
	return n, false
}

// addSilentEvents adds the state changes that the engine did not send.
func (c *Correlator) addSilentEvents(v *view) {
	r := v.r
	queued, _, derived := r.scheduled()
	if c.opt.Precision < 2 || !derived {
		return
	}
	if queued != 0 {
		c.keep(r, semconv.EventWait, queued, func(*attrs) {})
		v.derived.add(spanEvent + semconv.EventWait)
	}
	for _, at := range r.steps.preempted {
		if at != 0 {
			c.keep(r, semconv.EventPreempted, at, func(*attrs) {})
			v.derived.add(spanEvent + semconv.EventPreempted)
		}
	}
}

// endBySteps works out, for a request of which no outputs were seen, what its
// steps say of them.
func (r *request) endBySteps() {
	n := r.steps
	if n == nil || r.outputs > 0 || r.core.eng.seen.Outputs || n.gave == 0 || n.update == 0 || n.firstGave == 0 {
		return
	}
	r.bySteps = true
	r.firstOK = n.fromStart && !n.several && n.maybe == 0 && n.holes == n.endHoles
	r.first, r.last = n.firstGave, n.update
	r.firstSend, r.lastSend = r.first, r.last
	if r.firstOK {
		r.tokens = n.gave
		t := &r.core.steps
		t.generated += uint64(n.gave)
		if r.prompt.OK {
			t.prompt += uint64(max(r.prompt.V, 0))
			t.promptKnown = true
		}
	}
}

// markBySteps marks what was worked out from the steps alone.
func (v *view) markBySteps() {
	v.derive(methodSteps, semconv.AttrGenAIUsageCompletionTokens,
		semconv.AttrGenAILatencyTimeInModelPrefill, semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAILatencyTimeInModelInference,
		semconv.AttrInferspanOutcome)
	v.derived.add(spanEnd)
}

// finishedBySteps ends the requests that the scheduler lists as over, where
// nothing else tells of it.
func (c *Correlator) finishedBySteps(co *core, ids [][]byte) {
	if co.eng.seen.Outputs {
		return
	}
	for _, id := range ids {
		if r := co.reqs[string(id)]; r != nil {
			c.endRequest(r, endStepped, r.lastSeen())
		}
	}
}

// allOver: the core has no requests, so those that it had are over. It is the
// only sign where neither outputs nor a later step are seen.
func (c *Correlator) allOver(co *core, at signal.Mono) {
	c.unseenOver(co, at)
	if co.eng.seen.Outputs || len(co.reqs) == 0 {
		return
	}
	var over []*request
	for r := c.reqs.head; r != nil; r = r.next {
		if r.core == co && !r.done && r.steps != nil && r.steps.update != 0 && r.steps.update < at {
			over = append(over, r)
		}
	}
	for _, r := range over {
		c.endRequest(r, endStepped, r.lastSeen())
	}
}

// unseenOver ends the requests that were there when the core was looked at, and of which
// nothing was seen since: they were over before the probes were in.
func (c *Correlator) unseenOver(co *core, at signal.Mono) {
	if !co.eng.rules.idleEnds() {
		return
	}
	var over []*request
	for _, r := range co.reqs {
		if !r.done && !r.arrivalSeen && r.outputs == 0 && r.steps == nil && r.there != 0 && r.there < at {
			over = append(over, r)
		}
	}
	slices.SortFunc(over, func(a, b *request) int { return strings.Compare(a.id, b.id) })
	for _, r := range over {
		r.unseen = true
		c.endRequest(r, endLost, at)
	}
}

func (r *request) lastSeen() signal.Mono {
	at := max(r.added, r.lastSend)
	if r.steps != nil {
		at = max(at, r.steps.update)
	}
	return at
}
