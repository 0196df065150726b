package correlate

import (
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// sglangRules are those of SGLang: the tree that its own tracing gives, and its
// documented metrics.
type sglangRules struct {
	sglangMetrics
}

// abortEnds: the scheduler answers an abort with a last output, which says what
// became of the request.
func (*sglangRules) abortEnds() bool { return false }

// idleEnds: those that wait for the other part of disaggregated serving are not counted.
func (*sglangRules) idleEnds() bool { return false }

// stepsOf: a client that does not stream gets the tokens of many steps in one output. One that
// asks for none has a prefill all the same.
func (*sglangRules) stepsOf(outputs, tokens int64) int64 { return max(tokens, min(outputs, 1)) }

func (*sglangRules) hasEvents() bool { return false }

// settled: the front end has stamped the end, no other rank is at it, and the scheduler has
// said all that it has to say, which may be behind the message that the front end works
// on. Else what the engine has to say comes within moments, or not at all.
func (*sglangRules) settled(r *request) bool {
	return r.way != nil && r.way.finished != 0 && !r.core.eng.severalRanks() && !slices.ContainsFunc(r.way.threads, func(t thread) bool {
		return t.kind == threadScheduler && len(t.stages) > 0 && t.complete == 0
	})
}

// severalRanks: several schedulers work on one request.
func (e *engine) severalRanks() bool {
	n := 0
	for i := range e.procs {
		p := &e.procs[i]
		if p.tensorRank.OK || p.pipelineRank.OK {
			for _, q := range e.procs[:i] {
				if (q.tensorRank.OK || q.pipelineRank.OK) && q.dataRank == p.dataRank {
					n++
				}
			}
		}
	}
	return n > 0
}

func (*sglangRules) view(c *Correlator, r *request) view {
	v := view{r: r}
	v.outcome = c.requestOutcome(&v)
	if v.outcome == OutcomeStopString {
		c.findStop(&v)
	}
	w := r.way
	if w == nil {
		w = &way{}
	}
	open := r.open()
	if !r.arrivalSeen && w.created == 0 && !(r.peeked && r.arrival != 0) {
		v.partial.add(PartialArrival)
	}
	if r.outputs > 0 && !r.firstOK {
		v.partial.add(PartialOutputs)
	}
	v.cut(c, open && w.finished == 0)
	switch {
	case r.firstOK || (r.outputs == 0 && r.arrivalSeen):
		v.tokens = signal.Some(r.tokens)
	case r.before.OK && r.end != endStepped:
		v.tokens = signal.Some(r.before.V + r.tokens)
	}
	if v.tokens.OK && (open || r.losses != c.losses) {
		v.derived.add(semconv.AttrGenAIUsageCompletionTokens)
	}
	w.times(&v)
	return v
}

// times works out the span's times and those in it: the front end's stamps, or what
// comes next to them.
func (w *way) times(v *view) {
	r := v.r
	start := w.created
	if start == 0 {
		start = r.added
		for i := range w.threads {
			if t := w.threads[i].from; t != 0 {
				start = min(start, t)
			}
		}
		v.derived.add(spanStart)
	}
	end := w.finished
	if end == 0 {
		end = max(r.endAt, r.lastSend, r.added)
		for i := range w.threads {
			end = max(end, w.threads[i].to)
		}
		v.derived.add(spanEnd)
	}
	if end < start {
		end = start
		v.derived.add(spanEnd)
	}
	v.start, v.end = int64(start)+r.off, int64(end)+r.off

	first, finished := signal.Mono(0), w.finished
	if r.way != nil {
		first = r.firstToken()
	}
	firstStamped := first != 0
	if !firstStamped && r.firstOK && r.tokens > 0 {
		first = r.firstSend
	}
	if finished == 0 && r.end == endFinished {
		finished = r.lastSend
	}
	put := func(to *signal.Opt[int64], from, till signal.Mono, name string) {
		*to = between(from, till)
		sent := !firstStamped && (from == first || till == first) || w.finished == 0 && till == finished
		if to.OK && sent {
			v.derive(methodSend, name)
		}
	}
	put(&v.ttft, w.created, first, semconv.AttrGenAILatencyTimeToFirstToken)
	put(&v.e2e, w.created, finished, semconv.AttrGenAILatencyE2E)
	put(&v.decode, first, finished, semconv.AttrGenAILatencyTimeInModelDecode)
	put(&v.prefill, w.dispatched, first, semconv.AttrGenAILatencyTimeInModelPrefill)
	put(&v.inference, w.dispatched, finished, semconv.AttrGenAILatencyTimeInModelInference)
}
