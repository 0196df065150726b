package term

import (
	"strings"

	sc "inferspan/correlate/semconv"
	"inferspan/correlate/trace"
)

// isEngineRequest: the span is a request in an engine, vLLM's or SGLang's.
func isEngineRequest(s *trace.Span) bool {
	return s.Name == sc.NameLLMRequest || isSGLang(s)
}

// Ends of a span in inferspan.derived.
const (
	spanStart = "span.start"
	spanEnd   = "span.end"
)

func isSGLang(s *trace.Span) bool { return s.Attr(sc.AttrRID) != nil }

// readEngine reads the request in an engine that is the first of the spans; those
// below it follow.
func readEngine(spans []trace.Span) engineRequest {
	var e engineRequest
	if isSGLang(&spans[0]) {
		e = readSGLang(spans)
	} else {
		s := &spans[0]
		e = engineRequest{
			prompt: intAttr(s, sc.AttrGenAIUsagePromptTokens), cached: intAttr(s, sc.AttrGenAIUsageCacheReadInputTokens),
			output: intAttr(s, sc.AttrGenAIUsageCompletionTokens),
			ttft:   intAttr(s, sc.AttrGenAILatencyTimeToFirstToken), queue: intAttr(s, sc.AttrGenAILatencyTimeInQueue),
			prefill: intAttr(s, sc.AttrGenAILatencyTimeInModelPrefill), decode: intAttr(s, sc.AttrGenAILatencyTimeInModelDecode),
			e2e: intAttr(s, sc.AttrGenAILatencyE2E), preemptions: intAttr(s, sc.AttrGenAIRequestPreemptionCount).v,
		}
	}
	if e.decode.ok && e.output.ok && e.output.v > 1 {
		e.tpot = known(e.decode.v / (e.output.v - 1))
	}
	return e
}

// readSGLang reads the request and its stages. Its attributes about the time in the
// model are of the front end and hold the queue, too: the stages are better. Of
// several ranks the one that took longest counts.
func readSGLang(spans []trace.Span) engineRequest {
	s := &spans[0]
	e := engineRequest{
		prompt: intAttr(s, sc.AttrGenAIUsagePromptTokens), cached: intAttr(s, sc.AttrGenAIUsageCachedTokens),
		output: intAttr(s, sc.AttrGenAIUsageCompletionTokens),
		ttft:   secondsAttr(s, sc.AttrGenAILatencyTimeToFirstToken), e2e: secondsAttr(s, sc.AttrGenAILatencyE2E),
	}
	if !e.e2e.ok {
		// It did not come to its own end, or the version keeps no times.
		e.e2e, e.e2eSpan = known(s.End-s.Start), true
	}
	var queue, prefill, decode opt // of the thread under way
	var thread trace.SpanID
	node := false // a node that only decodes: it queues before that
	preempted := int64(0)
	end := func() {
		e.queue.most(queue)
		e.prefill.most(prefill)
		e.decode.most(decode)
		e.preemptions = max(e.preemptions, preempted)
		queue, prefill, decode, preempted = opt{}, opt{}, opt{}, 0
	}
	for i := range spans[1:] {
		x := &spans[1+i]
		if isEngineRequest(x) {
			break
		}
		if x.ParentID == s.SpanID {
			end()
			thread, node = x.SpanID, strings.HasPrefix(textAttr(x, sc.AttrThreadLabel), "Decode ")
		}
		for _, ev := range x.Events {
			if ev.Name == sc.EventRetract {
				preempted++
			}
		}
		if x.ParentID != thread {
			continue // a part of another stage
		}
		took := known(x.End - x.Start)
		switch {
		case x.Name == sc.NamePrefillWaiting, node && x.Name == sc.NameDecodeWaiting:
			queue.add(took)
		case x.Name == sc.NamePrefillForward:
			prefill.add(took)
		case x.Name == sc.NameDecodeWaiting, x.Name == sc.NameDecodeForward:
			decode.add(took)
		}
	}
	end()
	return e
}

func secondsAttr(s *trace.Span, key string) opt {
	if v, ok := s.Attr(key).(float64); ok {
		return known(int64(v*1e9 + 0.5))
	}
	return opt{}
}
