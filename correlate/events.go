package correlate

import (
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Events of precision 2. A span holds at most EventLimit of them: state changes
// (WAIT, PREFILL, PREEMPTED) are kept before DECODE events, and of those the
// first; a state change that comes when the span is full takes the place of the
// last DECODE. What is left out is counted in the span's DroppedEvents.

// stateEvent notes a state change that the engine stamped.
func (c *Correlator) stateEvent(r *request, ev signal.EngineEvent) {
	if c.opt.Precision < 2 || !plausible(ev.At, c.now) {
		return
	}
	name := semconv.EventWait
	if ev.Kind == signal.EventPreempted {
		name = semconv.EventPreempted
	}
	c.keep(r, name, ev.At, func(*attrs) {})
}

// tokenEvent notes what a step gave to r: the first output is its prefill.
func (c *Correlator) tokenEvent(r *request, stamp signal.Mono, o *signal.Output) {
	if stamp == 0 || (o.NumTokens == 0 && !o.Pooled) {
		return
	}
	name := semconv.EventDecode
	if r.outputs == 1 {
		switch {
		case r.firstOK:
			name = semconv.EventPrefill
		case !r.core.eng.seen.Events:
			return // it may be either
		}
	}
	c.keep(r, name, stamp, func(a *attrs) {
		if c.opt.Content.span() && len(o.Tokens) > 0 {
			a.put(semconv.AttrGenAITokenIDs, slices.Clone(o.Tokens))
			if texts := c.texts(o.Tokens); texts != nil {
				a.put(semconv.AttrGenAITokenTexts, texts)
			}
		}
		if o.NumTokens > 0 {
			a.put(semconv.AttrGenAITokenCount, int64(o.NumTokens))
		}
		if r.param.Logprobs && len(o.Logprobs) > 0 {
			a.put(semconv.AttrGenAITokenLogprobs, slices.Clone(o.Logprobs))
		}
	})
}

// keep adds an event within the limit. Its time is monotonic until the span is built.
func (c *Correlator) keep(r *request, name string, at signal.Mono, fill func(*attrs)) {
	if !r.core.eng.rules.hasEvents() {
		return
	}
	if len(r.events) >= c.opt.EventLimit {
		r.dropped++
		if name == semconv.EventDecode || r.decodes == 0 {
			return
		}
		for i := len(r.events) - 1; i >= 0; i-- {
			if r.events[i].Name == semconv.EventDecode {
				r.events = slices.Delete(r.events, i, i+1)
				r.decodes--
				break
			}
		}
	}
	var a attrs
	a.put(semconv.AttrGenAIEngineIndex, int64(r.core.Index))
	fill(&a)
	if name == semconv.EventDecode {
		r.decodes++
	}
	r.events = append(r.events, trace.Event{Name: name, Time: int64(at), Attrs: a})
}

// texts gives the text of every token, nil unless all are known.
func (c *Correlator) texts(ids []int64) []string {
	if c.opt.TokenText == nil {
		return nil
	}
	out := make([]string, len(ids))
	for i, id := range ids {
		t, ok := c.opt.TokenText(id)
		if !ok {
			return nil
		}
		out[i] = t
	}
	return out
}

// finishEvents puts the events in order of time and converts their times. Those
// after the output that turned out to be the last are dropped.
func (c *Correlator) finishEvents(r *request, v *view) []trace.Event {
	ev := r.events
	end := v.end - r.off
	if v.outcome == OutcomeStopString {
		end = min(end, int64(r.last))
	}
	ev = slices.DeleteFunc(ev, func(e trace.Event) bool { return e.Time > end || e.Time < v.start-r.off })
	slices.SortStableFunc(ev, func(a, b trace.Event) int {
		switch {
		case a.Time < b.Time:
			return -1
		case a.Time > b.Time:
			return 1
		}
		return 0
	})
	for i := range ev {
		ev[i].Time += r.off
	}
	c.own.droppedEvents += uint64(r.dropped)
	return ev
}
