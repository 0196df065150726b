package correlate

import (
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/trace"
)

// forwards appends the forward passes of the request's prefill, which list, the stages of
// which spans has those from at on, has. With overlap the pass of a chunk begins in the
// stage of the chunk before: the stage of all of them is its parent.
func (b *threadBuilder) forwards(spans []trace.Span, t *thread, list []placed, at int) []trace.Span {
	r := b.v.r
	if b.c.opt.Steps < StepsSpans || !b.c.stepsComplete(r) || t.kind != threadScheduler || t.pid != r.core.PID {
		return spans
	}
	for i := range r.steps.chunks {
		k := &r.steps.chunks[i]
		in := slices.IndexFunc(list, func(s placed) bool {
			return s.def.name == semconv.NamePrefillForward && s.start <= k.schedule && k.schedule < s.end
		})
		if in < 0 {
			continue
		}
		for _, x := range k.work.spans(&spans[at+in], r.off, k.schedule) {
			a := attrs(x.Attrs)
			putOpt(&a, semconv.AttrInferspanStepNumber, k.number)
			putOpt(&a, semconv.AttrInferspanStepTokens, k.tokens)
			putOpt(&a, semconv.AttrInferspanStepComputedTokens, k.computed)
			x.Attrs = a
			var f facts
			f.b = append(append(f.b, x.TraceID[:]...), x.ParentID[:]...)
			x.SpanID = f.str(semconv.NameInferspanForward).num(uint64(i)).spanID()
			spans = append(spans, x)
		}
	}
	return spans
}
