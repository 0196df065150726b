package correlate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Values of inferspan.outcome.
const (
	OutcomeCompleted  = "completed"
	OutcomeDisconnect = "client_disconnect"
	OutcomeAborted    = "aborted"     // through the API, or by the server
	OutcomeStopString = "stop_string" // ended by the front end, which matched a stop string
	OutcomeEngineExit = "engine_exit"
	OutcomeRejected   = "rejected" // HTTP 4xx
	OutcomeError      = "error"
	OutcomeInFlight   = "in_flight" // still running when we stopped looking
	OutcomeLost       = "lost"      // how it ended was not seen
)

// Values of inferspan.partial.
const (
	PartialArrival  = "arrival"      // not seen arriving: attached in mid-flight, or lost
	PartialOutputs  = "outputs"      // the first outputs were not seen
	PartialEnd      = "end"          // not seen ending
	PartialRequest  = "request"      // of an entry span: an engine request was to be expected and not seen
	PartialResponse = "response"     // of an entry span: bytes of the response were not seen
	PartialLost     = "lost_records" // records were lost meanwhile
	PartialEvicted  = "evicted"      // given up: a bound on state was reached
)

// Names in inferspan.derived that stand for the times of the span itself.
const (
	spanStart = "span.start"
	spanEnd   = "span.end"
	spanEvent = "event." // and the event's name
)

// marks collects inferspan.derived or inferspan.partial.
type marks []string

func (m *marks) add(names ...string) {
	for _, n := range names {
		if !slices.Contains(*m, n) {
			*m = append(*m, n)
		}
	}
}

// attrs collects attributes in the order in which they are documented.
type attrs []trace.Attr

func (a *attrs) put(key string, value any) { *a = append(*a, trace.Attr{Key: key, Value: value}) }

func (a *attrs) text(key, value string) {
	if value != "" {
		a.put(key, value)
	}
}

func (a *attrs) list(key string, value []string) {
	if len(value) > 0 {
		a.put(key, value)
	}
}

func putOpt[T any](a *attrs, key string, v signal.Opt[T]) {
	if v.OK {
		a.put(key, v.V)
	}
}

// between is b - a, if both are known and in that order.
func between(a, b signal.Mono) signal.Opt[int64] {
	if a <= 0 || b < a {
		return signal.Opt[int64]{}
	}
	return signal.Some(int64(b - a))
}

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

// view works out what can be said of r.
func (c *Correlator) view(r *request) view {
	v := view{r: r}
	v.outcome = c.requestOutcome(&v)
	if v.outcome == OutcomeStopString {
		c.findStop(&v)
	}
	e := r.core.eng

	if !r.arrivalSeen && !(r.peeked && r.arrival != 0) {
		v.partial.add(PartialArrival)
	}
	if r.outputs > 0 && !r.firstOK {
		v.partial.add(PartialOutputs)
	}
	if r.end == endDetached || r.end == endLost || r.end == endEvicted {
		v.partial.add(PartialEnd)
	}
	if r.losses != c.losses {
		v.partial.add(PartialLost)
	}
	if r.evicted {
		v.partial.add(PartialEvicted)
	}

	switch {
	case r.firstOK || (r.outputs == 0 && r.arrivalSeen && !r.bySteps):
		v.tokens = signal.Some(r.tokens)
	case r.before.OK:
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
	if pick.send == 0 {
		pick = r.recent[r.outputs%recentOutputs]
	}
	v.stopGuess = !certain && r.outputs > 1
	r.last, r.lastSend, r.lastMsg, r.tokens = pick.stamp, pick.send, pick.msg, pick.tokens
	r.lastRecv = c.recvOf(r)
}

// status says in words how the request ended.
func (v *view) status() (trace.Code, string) {
	switch v.outcome {
	case OutcomeDisconnect:
		return trace.StatusError, "client disconnected" + after(v.tokens)
	case OutcomeAborted:
		return trace.StatusError, "aborted" + after(v.tokens)
	case OutcomeEngineExit:
		return trace.StatusError, "the engine exited" + after(v.tokens)
	case OutcomeError:
		return trace.StatusError, "the engine reported an error"
	}
	return trace.StatusUnset, ""
}

func after(tokens signal.Opt[int64]) string {
	switch {
	case !tokens.OK:
		return ""
	case tokens.V == 0:
		return " before the first token"
	case tokens.V == 1:
		return " after 1 token"
	}
	return " after " + strconv.FormatInt(tokens.V, 10) + " tokens"
}

// parent is where a request's spans hang.
type parent struct {
	trace  trace.TraceID
	span   trace.SpanID
	remote bool
	state  string
}

// requestSpans appends llm_request and its stages.
func (c *Correlator) requestSpans(spans []trace.Span, v *view, p parent) []trace.Span {
	r := v.r
	e := r.core.eng
	res := e.resource(r.core.PID)
	var f facts
	f.b = append(f.b, p.trace[:]...)
	id := f.str("llm_request").str(r.id).num(uint64(r.core.PID)).num(uint64(r.added)).num(uint64(len(spans))).spanID()

	common := func(a *attrs) {
		a.text(semconv.AttrGenAIRequestID, r.external)
		a.text(semconv.AttrGenAIRequestModelName, e.model)
	}
	where := func(a *attrs) {
		a.put(semconv.AttrGenAIEngineIndex, int64(r.core.Index))
		a.text(semconv.AttrGenAIPDRole, e.pdRole)
	}

	a := make(attrs, 0, 28)
	common(&a)
	putOpt(&a, semconv.AttrGenAIRequestTemperature, r.param.Temperature)
	putOpt(&a, semconv.AttrGenAIRequestTopP, r.param.TopP)
	putOpt(&a, semconv.AttrGenAIRequestMaxTokens, r.param.MaxTokens)
	putOpt(&a, semconv.AttrGenAIRequestN, r.param.N)
	prompt := r.prompt
	if !prompt.OK {
		prompt = r.corePrompt
	}
	putOpt(&a, semconv.AttrGenAIUsagePromptTokens, prompt)
	putOpt(&a, semconv.AttrGenAIUsageCompletionTokens, v.tokens)
	putOpt(&a, semconv.AttrGenAIUsageCacheReadInputTokens, r.cached)
	putOpt(&a, semconv.AttrGenAILatencyE2E, v.e2e)
	putOpt(&a, semconv.AttrGenAILatencyTimeInQueue, v.queue)
	putOpt(&a, semconv.AttrGenAILatencyTimeToFirstToken, v.ttft)
	putOpt(&a, semconv.AttrGenAILatencyTimeInModelPrefill, v.prefill)
	putOpt(&a, semconv.AttrGenAILatencyTimeInModelDecode, v.decode)
	putOpt(&a, semconv.AttrGenAILatencyTimeInModelInference, v.inference)
	putOpt(&a, semconv.AttrGenAILatencyTimeInTokenize, v.tokenize)
	putOpt(&a, semconv.AttrGenAILatencyTimeInDetokenize, v.detokenize)
	if r.kv != nil {
		a.put(semconv.AttrGenAILatencyTimeInKVTransfer, r.kv.ns)
		if !r.kv.exact {
			v.derive(cmp.Or(r.kv.method, methodPeek), semconv.AttrGenAILatencyTimeInKVTransfer)
		}
	}
	if n, derived := r.preemptionCount(); n.OK && n.V > 0 {
		a.put(semconv.AttrGenAIRequestPreemptionCount, n.V)
		if derived {
			v.derive(methodSteps, semconv.AttrGenAIRequestPreemptionCount)
		}
	}
	where(&a)
	code, msg := v.status()
	if code == trace.StatusError {
		a.put(semconv.AttrErrorType, v.outcome)
	}
	a.put(semconv.AttrInferspanOutcome, v.outcome)
	a.text(semconv.AttrInferspanFinishReason, r.finishReason)
	a.text(semconv.AttrInferspanCorrelation, r.corr)
	a.put(semconv.AttrInferspanRequestInternalID, r.id)
	if r.child.OK {
		a.put(semconv.AttrInferspanRequestChildIndex, int64(r.child.V))
	}
	c.stepRefs(v, &a)
	c.addSilentEvents(v)
	events := c.finishEvents(r, v)
	v.derived = v.derived.of(a, events)
	a.list(semconv.AttrInferspanDerived, v.derived)
	a.list(semconv.AttrInferspanDerivedMethods, v.methods.methodsOf(v.derived))
	c.noteUnavailable(v, func(name string) bool {
		return slices.ContainsFunc(a, func(x trace.Attr) bool { return x.Key == name })
	})
	a.list(semconv.AttrInferspanUnavailable, v.unavailable)
	a.list(semconv.AttrInferspanPartial, v.partial)

	spans = append(spans, trace.Span{
		TraceID: p.trace, SpanID: id, ParentID: p.span, RemoteParent: p.remote, TraceState: p.state,
		Name: semconv.NameLLMRequest, Kind: trace.KindInternal, Start: v.start, End: v.end,
		Attrs: a, Events: events, DroppedEvents: r.dropped, Code: code, Message: msg, Resource: res,
	})
	if c.opt.Precision < 1 || !r.firstOK {
		return spans
	}
	// stage reports whether the times are known and lie within the request.
	stage := func(name string, from, to signal.Mono, derived ...string) bool {
		s, t := int64(from)+r.off, int64(to)+r.off
		if from <= 0 || t < s || s < v.start || t > v.end {
			return false
		}
		sa := make(attrs, 0, 5)
		common(&sa)
		where(&sa)
		sa.list(semconv.AttrInferspanDerived, derived)
		spans = append(spans, trace.Span{
			TraceID: p.trace, SpanID: childID(p.trace, id, name), ParentID: id, TraceState: p.state,
			Name: name, Kind: trace.KindInternal, Start: s, End: t, Attrs: sa, Resource: res,
		})
		return true
	}
	queued, sched, derived := r.scheduled()
	var start, end []string
	if derived {
		start, end = []string{spanStart}, []string{spanEnd}
	}
	var gave []string
	if r.bySteps {
		gave = []string{spanEnd}
	}
	if stage(semconv.NameWait, queued, sched, append(start, end...)...) && r.kv != nil {
		wait := spans[len(spans)-1]
		sa := make(attrs, 0, 8)
		common(&sa)
		where(&sa)
		if s, ok := r.kv.span(r, &wait, sa); ok {
			spans = append(spans, s)
		}
	}
	if e.pdRole != "consumer" && stage(semconv.NamePrefill, sched, r.first, append(start, gave...)...) && c.opt.Steps >= StepsSpans {
		prefill := spans[len(spans)-1]
		spans = c.chunkSpans(spans, r, &prefill)
	}
	if e.pdRole != "producer" && !r.pooling {
		var both []string
		if r.bySteps {
			both = []string{spanStart, spanEnd}
		}
		stage(semconv.NameDecode, r.first, r.last, both...)
	}
	return spans
}

// of drops the marks of what is not there.
func (m marks) of(a attrs, events []trace.Event) marks {
	return slices.DeleteFunc(m, func(name string) bool {
		if event, ok := strings.CutPrefix(name, spanEvent); ok {
			return !slices.ContainsFunc(events, func(x trace.Event) bool { return x.Name == event })
		}
		return name != spanStart && name != spanEnd && !slices.ContainsFunc(a, func(x trace.Attr) bool { return x.Key == name })
	})
}

// methodsOf keeps the methods of the marks that are left.
func (m marks) methodsOf(derived marks) []string {
	return slices.DeleteFunc(m, func(s string) bool {
		name, _, _ := strings.Cut(s, ": ")
		return !slices.Contains(derived, name)
	})
}

// emitAlone exports a request without an entry span.
func (c *Correlator) emitAlone(r *request) {
	c.claimTokenizingsOf(r)
	c.forget(r)
	r.ex, r.corr = nil, ""
	if !c.offset(&r.off, &r.offOK) {
		c.own.evicted("no_clock")
		return
	}
	v := c.view(r)
	if v.outcome == OutcomeStopString {
		c.countFinished(r)
	}
	var p parent
	if t, s, ok := parseTraceparent(r.traceParent); ok {
		p = parent{trace: t, span: s, remote: true}
	} else {
		var f facts
		p.trace = f.str("request").str(r.id).num(uint64(v.start)).num(uint64(r.core.PID)).traceID()
	}
	c.own.request("engine_request", v.outcome, v.partial)
	c.countUsageAlone(&v)
	c.sink(&trace.Tree{Spans: c.requestSpans(make([]trace.Span, 0, 4), &v, p)})
}
