package correlate

import (
	"fmt"
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// The documented operations. SGLang's native API, embeddings, scores and rerank have
// none: their request is the root.
var (
	sglChat       = operation{"chat", "LLM", semconv.SpanSGLangEntryChat, false, "", true}
	sglCompletion = operation{"text_completion", "LLM", semconv.SpanSGLangEntryTextCompletion, false, "", true}
)

var sglangOperations = map[string]*operation{
	"/v1/chat/completions": &sglChat,
	"/v1/messages":         &sglChat,
	"/v1/responses":        &sglChat,
	"/v1/completions":      &sglCompletion,
}

func (*sglangRules) operation(path string) *operation { return sglangOperations[path] }

// choices, and prompts sent at once, are requests of their own, of which the response
// names one.
func (*sglangRules) choices(x *exchange, views []view) signal.Opt[int64] {
	const most = 1 << 30 // more than a server takes
	if x.op.name != operationChat && (x.body.Inputs == 0 || x.body.MoreInputs) {
		return signal.Opt[int64]{}
	}
	n := x.body.N.V
	for i := range views {
		n = max(n, views[i].r.param.N.V)
	}
	return signal.Some(min(max(n, 1), most) * min(max(x.body.Inputs, 1), most))
}

// entryIDs adds what the response is called. The id is that of the request in the engine.
func (*sglangRules) entryIDs(a *attrs, x *exchange, stream signal.Opt[bool]) {
	streams := stream.OK && stream.V
	if streams && x.op == &sglChat {
		a.text(semconv.AttrGenAIRequestID, x.resp)
	}
	a.text(semconv.AttrGenAIResponseID, x.resp)
	if stream.OK && !streams {
		putOpt(a, semconv.AttrGenAIResponseModel, x.model)
	}
}

// entryRest adds what only SGLang's entry spans have.
func (*sglangRules) entryRest(c *Correlator, a *attrs, x *exchange, views []view, stream signal.Opt[bool], derived *marks) {
	cached := x.cached
	whole := len(views) > 0 && x.left == 0 && x.whole(views)
	if !cached.OK && whole {
		cached.OK = true
		for i := range views {
			cached.OK = cached.OK && views[i].r.cached.OK
			cached.V += views[i].r.cached.V
		}
		if cached.OK {
			derived.add(semconv.AttrGenAIUsageCacheReadInputTokens)
		}
	}
	putOpt(a, semconv.AttrGenAIUsageCacheReadInputTokens, cached)
	if x.outcome == signal.OutcomeComplete {
		a.put(semconv.AttrGenAILatencyE2E, float64(x.endAt-x.begin)/1e9)
	}
	streams := stream.OK && stream.V
	if !x.whole(views) {
		a.list(semconv.AttrInferspanUnavailable, x.unknownChoices(*a, views, streams))
	}
	if !streams {
		return
	}
	// An increment is what the engine gave to the stream at once. With several requests
	// below one stream, some of them may be the engine's own.
	if e := x.eng; len(views) == 1 && whole && e.interval.OK && views[0].r.firstOK {
		a.put(semconv.AttrGenAIResponseTokensStreamed, views[0].r.outputs*e.interval.V)
	}
	if x.op == &sglChat {
		c.toolCalls(a, x, derived)
	}
}

// unknownChoices names what is left out since the requests of other choices are not known.
func (x *exchange) unknownChoices(a attrs, views []view, streams bool) (out []string) {
	if len(views) == 0 || x.outcome != signal.OutcomeComplete || x.status >= 400 {
		return nil
	}
	why := ": how many prompts it had was not seen"
	if n := x.eng.rules.choices(x, views); n.OK {
		why = fmt.Sprintf(": %d of %d requests is known", len(views), n.V)
	}
	for _, n := range []string{semconv.AttrGenAIResponseFinishReasons, semconv.AttrGenAIUsageInputTokens, semconv.AttrGenAIUsageOutputTokens, semconv.AttrGenAIUsageCacheReadInputTokens} {
		if !slices.ContainsFunc(a, func(x trace.Attr) bool { return x.Key == n }) {
			out = append(out, n+why+", and the response was not seen to state it")
		}
	}
	if streams {
		out = append(out, semconv.AttrGenAIResponseTokensStreamed+why)
	}
	return out
}

// toolCalls says which tools a streamed chat was offered and asked for.
func (c *Correlator) toolCalls(a *attrs, x *exchange, derived *marks) {
	if x.body.Tools > 0 || x.body.Parsed && !x.body.Truncated {
		a.put(semconv.AttrGenAIRequestHasToolCalls, x.body.Tools > 0)
	}
	switch n := x.toolCalls; {
	case n.OK:
		a.put(semconv.AttrGenAIRequestToolCallDetected, n.V > 0)
	case len(x.calls) > 0 || slices.Contains(x.finish, "tool_calls"):
		a.put(semconv.AttrGenAIRequestToolCallDetected, true)
	case len(x.finish) == int(max(x.body.N.V, 1)) && !slices.ContainsFunc(x.finish, func(f string) bool { return f != "stop" }):
		// Had one been asked for, the reason would be another.
		a.put(semconv.AttrGenAIRequestToolCallDetected, false)
		derived.add(semconv.AttrGenAIRequestToolCallDetected)
	}
	putOpt(a, semconv.AttrGenAIRequestToolCallsCount, x.toolCalls)
	for _, call := range x.calls {
		a.text(semconv.ToolCallName(call.Choice, call.Index), call.Name)
		if c.opt.Content.span() {
			a.text(semconv.ToolCallArguments(call.Choice, call.Index), call.Arguments)
		}
	}
}
