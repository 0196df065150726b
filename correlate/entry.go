package correlate

import (
	"strconv"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// emitExchange exports an entry span with the requests below it.
func (c *Correlator) emitExchange(x *exchange) {
	if !x.live {
		return
	}
	c.forgetExchange(x)
	for _, r := range x.reqs {
		if !r.done || r.waiting {
			// Only an eviction, a new use of the name or the end of the stream
			// comes here: nothing more will be known.
			r.waiting = false
			if !r.done {
				r.end, r.endAt, r.done = endLost, max(r.added, r.lastSend), true
				r.core.gone.add(r.id)
				if r.steps != nil {
					r.steps.endHoles = r.core.steps.holes
				}
			}
			c.countFirst(r)
			if r.end == endFinished {
				c.countFinished(r)
			}
		}
		c.claimTokenizingsOf(r)
	}
	for _, r := range x.reqs {
		c.forget(r)
	}
	if !c.offset(&x.off, &x.offOK) {
		c.own.evicted("no_clock")
		return
	}
	views := make([]view, len(x.reqs))
	for i, r := range x.reqs {
		c.offset(&r.off, &r.offOK)
		views[i] = c.view(r)
		if views[i].outcome == OutcomeStopString || r.end == endFinished {
			c.countFinished(r)
		}
		c.own.request("engine_request", views[i].outcome, views[i].partial)
	}
	t, up, remote := x.context()
	tree := &trace.Tree{Spans: make([]trace.Span, 1, 1+4*len(views))}
	root := c.entrySpan(x, views)
	root.TraceID, root.ParentID, root.RemoteParent = t, up, remote
	if remote {
		root.TraceState = x.traceState
	}
	f := x.facts()
	f.b = append(f.b, t[:]...)
	root.SpanID = f.spanID()
	for i := range views {
		tree.Spans = x.eng.rules.spans(c, tree.Spans, &views[i], parent{trace: t, span: root.SpanID, state: root.TraceState})
	}
	tree.Spans[0] = root
	if c.opt.Content.event() && (x.body.Messages != "" || x.content != "") {
		var a attrs
		a.text(semconv.AttrGenAIInputMessages, x.body.Messages)
		a.text(semconv.AttrGenAIOutputMessages, x.content)
		tree.Logs = []trace.Log{{
			TraceID: t, SpanID: root.SpanID, EventName: semconv.EventGenAIClientInferenceOperationDetails,
			Time: root.End, Attrs: a, Resource: root.Resource,
		}}
	}
	c.sink(tree)
}

// entrySpan builds the entry span but for its ids.
func (c *Correlator) entrySpan(x *exchange, views []view) trace.Span {
	var derived, partial marks
	b := &x.body
	a := make(attrs, 0, 28)
	a.put(semconv.AttrGenAISpanKind, x.op.kind)
	a.put(semconv.AttrGenAIOperationName, x.op.name)
	model := x.eng.model
	if b.Model.OK {
		model = b.Model.V
	} else if model != "" {
		derived.add(semconv.AttrGenAIRequestModel)
	}
	a.text(semconv.AttrGenAIRequestModel, model)
	putOpt(&a, semconv.AttrGenAIRequestChoiceCount, b.N)
	putOpt(&a, semconv.AttrGenAIRequestTemperature, b.Temperature)
	putOpt(&a, semconv.AttrGenAIRequestTopP, b.TopP)
	putOpt(&a, semconv.AttrGenAIRequestTopK, b.TopK)
	putOpt(&a, semconv.AttrGenAIRequestMaxTokens, b.MaxTokens)
	stream := b.Stream
	if !stream.OK && !x.op.pooling {
		switch {
		case b.Parsed && !b.Truncated:
			stream = signal.Some(false) // not asked for
		case x.first != 0 && x.status < 300:
			stream = signal.Some(x.streamed)
			derived.add(semconv.AttrGenAIRequestIsStream)
		}
	}
	putOpt(&a, semconv.AttrGenAIRequestIsStream, stream)
	x.eng.rules.entryIDs(&a, x, stream)
	finish := x.finish
	// Of a long stream the reasons of some choices may not have been seen.
	if x.whole(views) {
		if all := finishOf(views); len(finish) < max(len(views), 1) && len(all) > 0 {
			finish = all
			derived.add(semconv.AttrGenAIResponseFinishReasons)
		}
	} else if n := x.eng.rules.choices(x, views); n.OK && int64(len(finish)) < n.V || !n.OK && x.streamed {
		finish = nil
	}
	a.list(semconv.AttrGenAIResponseFinishReasons, finish)
	in, out := x.usage(views, &derived)
	putOpt(&a, semconv.AttrGenAIUsageInputTokens, in)
	putOpt(&a, semconv.AttrGenAIUsageOutputTokens, out)
	if in.OK && (out.OK || x.op.pooling) {
		a.put(semconv.AttrGenAIUsageTotalTokens, in.V+out.V)
	}
	x.eng.rules.entryRest(c, &a, x, views, stream, &derived)
	if c.opt.Content.span() {
		a.text(semconv.AttrGenAIInputMessages, b.Messages)
		a.text(semconv.AttrGenAIOutputMessages, x.content)
	}

	s := trace.Span{Name: x.op.name, Kind: trace.KindInternal, Start: int64(x.begin) + x.off, End: int64(x.endAt) + x.off, Resource: x.eng.resource(x.key.PID)}
	if model != "" {
		s.Name += " " + model
	}
	if c.opt.ServerKind {
		s.Kind = trace.KindServer
	}
	// The entry span covers its requests: after a disconnect the engine goes on
	// until it is told, and the two clocks differ by a little.
	for i := range views {
		if views[i].start < s.Start {
			if s.Start-views[i].start > 1e6 {
				derived.add(spanStart)
			}
			s.Start = views[i].start
		}
		s.End = max(s.End, views[i].end)
	}

	outcome, code, msg, errType := x.verdict(views)
	s.Code, s.Message = code, msg
	if x.status > 0 {
		a.put(semconv.AttrHTTPResponseStatusCode, int64(x.status))
	}
	a.text(semconv.AttrErrorType, errType)
	a.put(semconv.AttrURLPath, x.path)
	a.put(semconv.AttrInferspanOutcome, outcome)

	if x.outcome == signal.OutcomeDetached || x.outcome == 0 {
		partial.add(PartialEnd)
		derived.add(spanEnd)
	}
	if len(views) == 0 && x.left == 0 && x.status >= 200 && x.status < 300 && outcome == OutcomeCompleted {
		partial.add(PartialRequest)
	}
	// Of a stream the middle is only counted, by design; its beginning and end tell enough.
	if x.gap && !x.streamed {
		partial.add(PartialResponse)
	}
	if x.losses != c.losses {
		partial.add(PartialLost)
	}
	if x.evicted || x.left > 0 {
		partial.add(PartialEvicted)
	}
	a.list(semconv.AttrInferspanDerived, derived.of(a, nil))
	a.list(semconv.AttrInferspanPartial, partial)
	s.Attrs = a
	c.own.request("entry", outcome, partial)
	c.countUsage(x, model, in, out)
	return s
}

// verdict says how the exchange ended.
func (x *exchange) verdict(views []view) (outcome string, code trace.Code, msg, errType string) {
	exited, aborted := 0, 0
	for i := range views {
		switch views[i].outcome {
		case OutcomeEngineExit:
			exited++
		case OutcomeAborted:
			aborted++
		}
	}
	switch {
	case x.status >= 400:
		msg = "HTTP " + strconv.Itoa(x.status)
		if x.errType != "" {
			msg += ": " + x.errType
		}
		if x.errMessage != "" {
			msg += ": " + x.errMessage
		}
		outcome = OutcomeRejected
		if x.status >= 500 {
			outcome = OutcomeError
			if exited > 0 {
				outcome = OutcomeEngineExit
			}
		}
		return outcome, trace.StatusError, msg, strconv.Itoa(x.status)
	case x.outcome == signal.OutcomeDisconnect:
		if len(views) == 0 {
			if x.first == 0 {
				return OutcomeDisconnect, trace.StatusError, "client disconnected before the response began", OutcomeDisconnect
			}
			return OutcomeDisconnect, trace.StatusError, "client disconnected", OutcomeDisconnect
		}
		n := signal.Opt[int64]{OK: x.whole(views)}
		for i := range views {
			n.V += views[i].tokens.V
			n.OK = n.OK && views[i].tokens.OK
		}
		return OutcomeDisconnect, trace.StatusError, "client disconnected" + after(n), OutcomeDisconnect
	case x.outcome == signal.OutcomeExit:
		return OutcomeEngineExit, trace.StatusError, "the API server exited", OutcomeEngineExit
	case x.outcome == signal.OutcomeClosed:
		if exited > 0 {
			return OutcomeEngineExit, trace.StatusError, "the engine exited", OutcomeEngineExit
		}
		return OutcomeError, trace.StatusError, "the server closed the connection before the end of the response", OutcomeError
	case x.outcome == signal.OutcomeDetached:
		return OutcomeInFlight, trace.StatusUnset, "", ""
	case x.outcome != signal.OutcomeComplete:
		return OutcomeLost, trace.StatusUnset, "", ""
	case exited > 0:
		return OutcomeEngineExit, trace.StatusError, "the engine exited", OutcomeEngineExit
	case x.errType != "":
		// An error inside a stream whose status line had long been sent.
		msg = x.errType
		if x.errMessage != "" {
			msg += ": " + x.errMessage
		}
		return OutcomeError, trace.StatusError, msg, x.errType
	case aborted > 0 && aborted == len(views):
		return OutcomeAborted, trace.StatusError, "aborted", OutcomeAborted
	}
	return OutcomeCompleted, trace.StatusUnset, "", ""
}

// whole: views are all requests that x led to.
func (x *exchange) whole(views []view) bool {
	n := x.eng.rules.choices(x, views)
	return n.OK && int64(len(views)) >= n.V
}

// finishOf gives the finish reasons of the engine's requests, nil unless all have one.
func finishOf(views []view) []string {
	var f []string
	for i := range views {
		switch v := &views[i]; {
		case v.outcome == OutcomeStopString:
			f = append(f, "stop")
		case v.r.end == endFinished && v.r.finishReason != "" && !v.r.pooling:
			f = append(f, v.r.finishReason)
		default:
			return nil
		}
	}
	return f
}

// usage is what the response reports, else what the engine counted.
func (x *exchange) usage(views []view, derived *marks) (in, out signal.Opt[int64]) {
	in, out = x.input, x.output
	if len(views) == 0 || x.left > 0 {
		return in, out
	}
	whole := x.whole(views)
	if !in.OK && (whole || x.op.name == operationChat || x.body.Inputs == 1 && !x.body.MoreInputs) {
		// Candidates of one prompt share its id, and count it once.
		seen := map[string]bool{}
		in.OK = true
		for i := range views {
			r := views[i].r
			p := r.prompt
			if !p.OK {
				p = r.corePrompt
			}
			in.OK = in.OK && p.OK && r.external != ""
			if !seen[r.external] {
				seen[r.external] = true
				in.V += p.V
			}
		}
		if in.OK {
			derived.add(semconv.AttrGenAIUsageInputTokens, semconv.AttrGenAIUsageTotalTokens)
		}
	}
	if !out.OK && !x.op.pooling && whole {
		out.OK = true
		for i := range views {
			out.OK = out.OK && views[i].tokens.OK
			out.V += views[i].tokens.V
		}
		if out.OK {
			derived.add(semconv.AttrGenAIUsageOutputTokens, semconv.AttrGenAIUsageTotalTokens)
		}
	}
	return in, out
}
