package correlate

import (
	"strconv"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

const usageMetricVLLM = semconv.MetricIDVLLMGenAILLMUsageTokens

func (vllmRules) corePoints(f families, e *engine, co *core) {
	m, t := &co.m, &co.steps
	res := e.resource(co.PID)
	index := strconv.Itoa(co.Index)
	put := func(id string, v float64, source string, extra ...string) {
		f.add(id, v, res, append([]string{dimCallType, dimRPCType, index, e.model}, extra...)...)
		if source != "" {
			f.add(semconv.MetricIDOwnValueSource, 1, res, index, semconv.MetricByID(id).Name, source)
		}
	}
	// By steps: what an engine without messages would have said.
	silent := e.mute()
	switch {
	case e.seen.Outputs:
		put(semconv.MetricIDVLLMVLLMIterCount, float64(m.iterations), "")
		put(semconv.MetricIDVLLMGenAIVLLMPromptTokens, float64(m.prompt), "")
		put(semconv.MetricIDVLLMGenAIVLLMGenerationTokens, float64(m.generated), "")
	case silent:
		put(semconv.MetricIDVLLMVLLMIterCount, float64(t.iterations), sourceSteps)
		if t.promptKnown {
			put(semconv.MetricIDVLLMGenAIVLLMPromptTokens, float64(t.prompt), sourceSteps)
		}
		put(semconv.MetricIDVLLMGenAIVLLMGenerationTokens, float64(t.generated), sourceSteps)
	}
	if e.seen.Outputs || silent {
		source := ""
		if silent {
			source = sourceSteps
		}
		put(semconv.MetricIDVLLMGenAILLMFirstTokenSeconds, m.first.sum, source)
		put(semconv.MetricIDVLLMGenAIServerTimePerOutputToken, m.perToken.sum, source)
		put(semconv.MetricIDVLLMGenAIServerRequestDuration, m.duration.sum, source)
		put(semconv.MetricIDVLLMGenAIVLLMRequestDecodeTimeSeconds, float64(m.decode)/1e9, source)
	}
	switch {
	case e.seen.Events:
		put(semconv.MetricIDVLLMGenAIVLLMNumPreemptions, float64(m.preemptions), "")
		put(semconv.MetricIDVLLMGenAIVLLMRequestQueueTimeSeconds, float64(m.queue)/1e9, "")
		put(semconv.MetricIDVLLMGenAIVLLMRequestPrefillTimeSeconds, float64(m.prefill)/1e9, "")
		put(semconv.MetricIDVLLMGenAIVLLMRequestInferenceTimeSeconds, float64(m.inference)/1e9, "")
	case t.ever && (e.silent() || silent):
		if t.preemptionsKnown {
			put(semconv.MetricIDVLLMGenAIVLLMNumPreemptions, float64(t.preemptions), sourceSteps)
		}
		if e.seen.Requests { // else it is not known when they were queued
			put(semconv.MetricIDVLLMGenAIVLLMRequestQueueTimeSeconds, float64(m.queue)/1e9, sourceSteps)
		}
		put(semconv.MetricIDVLLMGenAIVLLMRequestPrefillTimeSeconds, float64(m.prefill)/1e9, sourceSteps)
		put(semconv.MetricIDVLLMGenAIVLLMRequestInferenceTimeSeconds, float64(m.inference)/1e9, sourceSteps)
	}
	for _, s := range m.success {
		put(semconv.MetricIDVLLMGenAIVLLMRequestSuccess, float64(s.n), "", s.reason)
	}
	if m.n.OK {
		put(semconv.MetricIDVLLMGenAIVLLMRequestParamsN, float64(m.n.V), "")
	}
	if m.maxTokens.OK {
		put(semconv.MetricIDVLLMGenAIVLLMRequestParamsMaxTokens, float64(m.maxTokens.V), "")
	}
	gauge(&m.gauges, &m.peek, &m.stepped, func(g *gauges) signal.Opt[int64] { return g.running }, func(v int64, source string) {
		put(semconv.MetricIDVLLMGenAIVLLMNumRequestsRunning, float64(v), source)
	})
	gauge(&m.gauges, &m.peek, &m.stepped, func(g *gauges) signal.Opt[int64] { return g.waiting }, func(v int64, source string) {
		put(semconv.MetricIDVLLMGenAIVLLMNumRequestsWaiting, float64(v), source)
	})
	gauge(&m.gauges, &m.peek, &m.stepped, func(g *gauges) signal.Opt[float64] { return g.usage }, func(v float64, source string) {
		put(semconv.MetricIDVLLMGenAIVLLMKVCacheUsagePerc, v, source)
	})
	if m.prefixQueries.OK {
		put(semconv.MetricIDVLLMGenAIVLLMPrefixCacheQueries, float64(m.prefixQueries.V), "")
	}
	if m.prefixHits.OK {
		put(semconv.MetricIDVLLMGenAIVLLMPrefixCacheHits, float64(m.prefixHits.V), "")
	}
}

// gauge gives the value of the best source that has one. Looks at the memory go
// before steps: an idle core has no steps, but a state.
func gauge[T any](engine, peek, steps *gauges, get func(*gauges) signal.Opt[T], put func(T, string)) {
	for _, s := range []struct {
		g      *gauges
		source string
	}{{engine, ""}, {peek, sourcePeek}, {steps, sourceSteps}} {
		if v := get(s.g); v.OK {
			put(v.V, s.source)
			return
		}
	}
}
