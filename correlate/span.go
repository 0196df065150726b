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
	PartialStages   = "stages"       // of the span of a thread: what it did was not seen
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

// spans appends llm_request and its stages.
func (vllmRules) spans(c *Correlator, spans []trace.Span, v *view, p parent) []trace.Span {
	r := v.r
	e := r.core.eng
	res := e.resource(r.core.PID)
	var f facts
	f.b = append(f.b, p.trace[:]...)
	id := f.str("llm_request").str(r.id).num(uint64(r.core.PID)).num(uint64(r.added)).num(uint64(len(spans))).spanID()

	common := func(a *attrs) {
		a.text(semconv.AttrGenAIRequestID, r.external)
		a.text(semconv.AttrGenAIRequestModelName, r.model())
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
	if r.kv != nil && r.kv.unseen {
		v.unavailable.add(semconv.AttrGenAILatencyTimeInKVTransfer + ": the beginning of the transfer was not seen")
	} else if r.kv != nil {
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
	c.gpuAttrs(v, &a)
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
	if v.outcome == OutcomeStopString || r.end == endFinished {
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
	if spans := r.core.eng.rules.spans(c, make([]trace.Span, 0, 4), &v, p); len(spans) > 0 {
		c.sink(&trace.Tree{Spans: spans})
	}
}
