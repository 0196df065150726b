package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// view is a finished request as its spans show it.
type view struct {
	r          *request
	outcome    string
	start, end int64
	tokens     signal.Opt[int64]
	stopGuess  bool // which output was the last is not certain

	queue, prefill, decode, inference signal.Opt[int64] // ns
	ttft, e2e                         signal.Opt[int64]

	tokenize, detokenize signal.Opt[int64]

	derived, methods, unavailable, partial marks
}

// derive marks attributes as worked out, and how.
func (v *view) derive(method string, names ...string) {
	v.derived.add(names...)
	for _, n := range names {
		v.methods.add(n + ": " + method)
	}
}

// offset fixes the offset of a request's clock; false if no clock sample came.
func (c *Correlator) offset(off *int64, ok *bool) bool {
	if !*ok && c.clock.ok {
		*off, *ok = c.clock.off, true
	}
	return *ok
}

// open reports whether a request is handed over without its end having been seen.
func (r *request) open() bool {
	return r.end == endDetached || r.end == endLost || r.end == endEvicted
}

// cut says what cut short what was seen of a request; open, that its end was not seen.
func (v *view) cut(c *Correlator, open bool) {
	if open {
		v.partial.add(PartialEnd)
	}
	if v.r.losses != c.losses {
		v.partial.add(PartialLost)
	}
	if v.r.evicted {
		v.partial.add(PartialEvicted)
	}
}

// view works out what can be said of r.
func (vllmRules) view(c *Correlator, r *request) view {
	v := view{r: r}
	v.outcome = c.requestOutcome(&v)
	if v.outcome == OutcomeStopString {
		c.findStop(&v)
	}
	e := r.core.eng

	if !r.arrivalSeen && !(r.peeked && r.arrival != 0) {
		v.partial.add(PartialArrival)
	}
	if r.outputs > 0 && !r.firstOK || r.bySteps && !r.steps.fromStart {
		v.partial.add(PartialOutputs)
	}
	v.cut(c, r.open())

	switch {
	case r.firstOK || (r.outputs == 0 && r.arrivalSeen && !r.bySteps):
		v.tokens = signal.Some(r.tokens)
	case r.before.OK && !r.bySteps && r.end != endStepped:
		// Where no outputs are seen, what came after the look is not known.
		v.tokens = signal.Some(r.before.V + r.tokens)
	}
	if r.firstOK {
		queued, sched, derived := r.scheduled()
		if derived {
			v.markScheduled()
		}
		v.queue = between(queued, sched)
		v.prefill = between(sched, r.first)
		v.decode = between(r.first, r.last)
		v.inference = between(sched, r.last)
		switch e.pdRole {
		case "producer":
			v.decode, v.inference = signal.Some[int64](0), v.prefill
		case "consumer":
			v.prefill, v.inference = signal.Some[int64](0), v.decode
		}
	}
	c.times(&v)
	if r.bySteps {
		v.markBySteps()
	}
	c.frontEndTimes(&v)
	if v.stopGuess {
		v.derived.add(semconv.AttrGenAIUsageCompletionTokens, semconv.AttrGenAILatencyE2E, semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAILatencyTimeInModelInference, semconv.AttrGenAILatencyTimeInDetokenize, spanEnd)
	}
	if r.end == endDetached || r.end == endLost || r.end == endEvicted {
		// So far: more may have come.
		v.derived.add(semconv.AttrGenAIUsageCompletionTokens, semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAILatencyTimeInModelInference, semconv.AttrGenAILatencyTimeInDetokenize, semconv.AttrGenAIRequestPreemptionCount)
	}
	if r.losses != c.losses {
		// What an output that was lost would have changed.
		if v.tokens.OK {
			v.derived.add(semconv.AttrGenAIUsageCompletionTokens)
		}
		if v.detokenize.OK {
			v.derived.add(semconv.AttrGenAILatencyTimeInDetokenize)
		}
		if n, _ := r.preemptionCount(); n.V > 0 {
			v.derived.add(semconv.AttrGenAIRequestPreemptionCount)
		}
		if r.queued == 0 && v.ttft.OK {
			v.derived.add(semconv.AttrGenAILatencyTimeToFirstToken)
		}
		if r.queued == 0 && v.decode.OK {
			v.derived.add(semconv.AttrGenAILatencyTimeInModelDecode)
		}
		if r.end != endFinished {
			v.derived.add(semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAILatencyTimeInModelInference, semconv.AttrGenAILatencyE2E, spanEnd)
		}
	}
	return v
}

// times works out the times that involve the front end.
func (c *Correlator) times(v *view) {
	r := v.r
	wall := func(m signal.Mono) int64 { return int64(m) + r.off }
	if r.arrival != 0 {
		v.start = int64(r.arrival)
	} else {
		first := r.added
		if r.queued > 0 && r.queued < first {
			first = r.queued
		}
		v.start = wall(first)
		v.derived.add(spanStart)
	}
	if r.firstOK && r.arrival != 0 && r.tokens > 0 {
		if d := wall(cmp.Or(r.firstRecv.at, r.firstSend)) - v.start; d >= 0 {
			v.ttft = signal.Some(d)
			v.deriveUnstamped(r.firstRecv, semconv.AttrGenAILatencyTimeToFirstToken)
		}
	}
	switch {
	case r.end == endFinished || r.end == endStepped || v.outcome == OutcomeStopString:
		if r.lastRecv.at == 0 {
			v.derived.add(spanEnd)
		}
		v.end = wall(cmp.Or(r.lastRecv.at, r.lastSend))
		if r.arrival != 0 && v.end >= v.start {
			v.e2e = signal.Some(v.end - v.start)
			v.deriveUnstamped(r.lastRecv, semconv.AttrGenAILatencyE2E)
		}
	case r.end == endAborted:
		// The engine itself has no such time for requests that were cut short:
		// this one ends when the core is told.
		v.end = wall(r.endAt)
		if r.arrival != 0 && v.end >= v.start {
			v.e2e = signal.Some(v.end - v.start)
			v.derived.add(semconv.AttrGenAILatencyE2E)
		}
	default:
		v.end = wall(max(r.endAt, r.lastSend, r.added))
		if r.end != endExit {
			v.derived.add(spanEnd)
		}
	}
	if v.end < v.start {
		v.end = v.start
		v.derived.add(spanEnd)
	}
}

// deriveUnstamped marks a time that ends with a message that the front end was not
// seen to stamp.
func (v *view) deriveUnstamped(at receipt, name string) {
	switch {
	case v.r.bySteps || v.r.end == endStepped:
		v.derive(methodSteps, name)
	case at.at == 0:
		v.derive(methodSend, name)
	case !at.stamped:
		v.derive(methodReceipt, name)
	}
}

// requestOutcome tells apart what looks alike on the wire.
func (c *Correlator) requestOutcome(v *view) string {
	r, x := v.r, v.r.ex
	// The client left, and not after r had come to its own end.
	gone := x != nil && x.ended && x.outcome == signal.OutcomeDisconnect && r.endAt >= x.endAt-slack
	switch r.end {
	case endFinished:
		switch r.finish {
		case signal.FinishAbort:
			if gone {
				return OutcomeDisconnect
			}
			return OutcomeAborted
		case signal.FinishError:
			return OutcomeError
		}
		if c.stoppedBefore(r) {
			return OutcomeStopString
		}
		return OutcomeCompleted
	case endExit:
		return OutcomeEngineExit
	case endDetached:
		return OutcomeInFlight
	case endStepped:
		v.derive(methodSteps, semconv.AttrInferspanOutcome)
		return OutcomeCompleted
	case endAborted:
	default:
		return OutcomeLost
	}
	var how signal.Outcome // of the exchange, as far as it tells something
	if x != nil && x.ended && x.status < 400 {
		how = x.outcome
	}
	switch {
	case gone:
		return OutcomeDisconnect
	case how == signal.OutcomeExit:
		return OutcomeEngineExit
	case how == signal.OutcomeComplete, how == signal.OutcomeDisconnect:
		// The front end ended r on its own, or was told to.
		stop := slices.Contains(x.finish, "stop") || slices.Contains(x.finish, "stop_sequence")
		abort := slices.Contains(x.finish, "abort") || slices.Contains(x.finish, "cancelled")
		if r.outputs > 0 && (stop || (r.param.HasStop && !abort)) {
			return OutcomeStopString
		}
		return OutcomeAborted
	case how == signal.OutcomeClosed:
		return OutcomeAborted
	}
	// Nothing tells but the engine's own messages.
	v.derived.add(semconv.AttrInferspanOutcome, semconv.AttrErrorType, spanEnd)
	if c.maybeStop(r) {
		return OutcomeStopString
	}
	return OutcomeAborted
}

// stoppedBefore: the front end had matched a stop string in r before r came to its
// end in the core, which had not yet been told: the response says so.
func (c *Correlator) stoppedBefore(r *request) bool {
	x := r.ex
	return r.finish == signal.FinishLength && r.param.HasStop && x != nil && x.ended && x.outcome == signal.OutcomeComplete &&
		len(x.reqs) == 1 && len(x.finish) == 1 && (x.finish[0] == "stop" || x.finish[0] == "stop_sequence")
}

// maybeStop: by the engine's messages alone, r's abort may be a stop string.
func (c *Correlator) maybeStop(r *request) bool {
	return r.end == endAborted && r.param.HasStop && r.outputs > 0 && r.endAt-max(r.lastSend, c.recvOf(r).at) <= stopWithin
}

// stopWithin is how soon after an output the abort of a stop string comes, where
// nothing but the engine's messages tells it from another abort. Seen: 0.3 to 5 ms.
const stopWithin = signal.Mono(10e6)

// stopAfter is how long after an output's delivery the abort for a stop string
// in it comes at the least: the front end reads the tokens and sends a message.
// Seen: from 0.2 ms on; of outputs delivered after the one with the stop string,
// nearly all within 0.07 ms.
const stopAfter = signal.Mono(100e3)

func (c *Correlator) recvOf(r *request) receipt {
	if m := r.core.eng.msgs.get(r.lastMsg); m != nil {
		return m.recv
	}
	return receipt{}
}

// findStop finds the output in which the front end matched the stop string:
// the core may have gone on until the abort reached it. The usage that the
// response reports settles it; without, it is the last output that had been
// delivered when the response ended and the abort arrived, and uncertain if there
// are several.
func (c *Correlator) findStop(v *view) {
	r := v.r
	if !r.param.HasStop {
		r.lastRecv = c.recvOf(r)
		v.stopGuess = true
		return
	}
	until := r.endAt
	if r.ex != nil && r.ex.outcome == signal.OutcomeComplete {
		until = min(until, r.ex.endAt)
	}
	n := min(r.outputs, recentOutputs)
	pick, certain := output{}, false
	for i := r.outputs - n + 1; i <= r.outputs; i++ {
		o := r.recent[i%recentOutputs]
		if r.ex != nil && len(r.ex.reqs) == 1 && r.ex.output.OK {
			if o.tokens+r.before.V == r.ex.output.V {
				pick, certain = o, true
				break
			}
			continue
		}
		recv := o.send
		if m := r.core.eng.msgs.get(o.msg); m != nil && r.core.eng.seen.Receipts {
			if recv = m.recv.at; recv == 0 {
				continue
			}
		}
		if recv <= until-stopAfter {
			pick = o
		}
	}
	if pick.send == 0 || r.endedLate {
		pick = r.recent[r.outputs%recentOutputs]
	}
	v.stopGuess = !certain && r.outputs > 1
	r.last, r.lastSend, r.lastMsg, r.tokens = pick.stamp, pick.send, pick.msg, pick.tokens
	if !certain && r.ex != nil && len(r.ex.reqs) == 1 && r.ex.output.OK {
		// The core was further ahead than outputs are kept: the count is known.
		r.tokens = r.ex.output.V - r.before.V
	}
	r.lastRecv = c.recvOf(r)
}
