package correlate

import (
	"cmp"
	"fmt"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Levels of Options.Steps.
const (
	StepsOff   = 0 // requests as without steps
	StepsRefs  = 1 // and the steps of each request, as attributes
	StepsSpans = 2 // and a span for each step of its prefill
)

// stepTrack follows the steps of one core.
type stepTrack struct {
	ever   bool // a step was seen
	seen   bool // the last one, after which the next may follow
	number signal.Opt[int64]
	update signal.Mono
	losses uint64 // those of the correlator at the last step
	holes  uint64 // moves when steps, or requests of a step, were not seen
	missed uint64
	base   signal.Opt[int64] // the latest one when the core was looked at, before probes showed any

	duration, run, gap, requests histogram
	skew                         [len(skewOf)]histogram // of the ranks' launches
	tokens                       [len(stepKinds)]histogram
	iterations                   uint64 // steps that gave tokens
	preemptions                  uint64
	preemptionsKnown             bool
	generated, prompt            uint64 // of requests known by steps only
	promptKnown                  bool
}

// stepKinds are the kinds in the metrics; those of a request's part in a step
// tell more.
var stepKinds = [...]string{"prefill", "decode", "resumed", "unknown"}

const (
	kindPrefill = iota
	kindDecode
	kindResumed
	kindUnknown
)

func kindOf(p signal.StepPhase) (metric int, record trace.StepKind) {
	switch p {
	case signal.StepPrefillChunk:
		return kindPrefill, trace.StepPrefillChunk
	case signal.StepPrefillEnd:
		return kindPrefill, trace.StepPrefill
	case signal.StepDecode:
		return kindDecode, trace.StepDecode
	case signal.StepRecompute:
		return kindResumed, trace.StepResumed
	}
	return kindUnknown, trace.StepUnknown
}

// requestSteps is what the steps say of one request.
type requestSteps struct {
	count       int64
	first, last signal.Opt[int64]
	fromStart   bool // the first step seen is the request's first
	sched       signal.Mono
	// The first step is known by its dispatch only.
	schedIsDispatch bool
	dispatched      int64       // steps seen by their dispatch
	update          signal.Mono // of the last step
	gave            int64       // steps that gave tokens
	firstGave       signal.Mono // end of the first of them
	maybe           int64       // steps of which it is not known whether they gave tokens
	several         bool        // a decode step computed several tokens (drafts): how many it gave is not known
	chunks          []chunk
	moreChunks      bool // than are kept
	preempted       []signal.Mono
	preemptions     int64
	holes           uint64 // of the core, when the first step was seen
	endHoles        uint64 // when the request ended
}

// chunk is a step of a request's prefill.
type chunk struct {
	number           signal.Opt[int64]
	schedule, update signal.Mono // of one seen by its dispatch, that may stand for schedule
	dispatched       bool
	atDispatch       bool // schedule is
	tokens, computed signal.Opt[int64]
	work             *stepWork // nil if not seen
}

// maxChunks bounds the prefill steps kept of a request: a prompt of a million
// tokens in chunks of 2048 has 512.
const maxChunks = 1024

func (c *Correlator) step(s *signal.Step) {
	e := c.engine(s.Core.Engine)
	e.seen.Steps = true
	co := e.core(s.Core)
	t := &co.steps
	schedule, dispatch, update := max(s.Schedule, 0), max(s.Dispatch, 0), max(s.Update, 0)
	if update != 0 && schedule > update {
		schedule = 0
	}
	if update != 0 && dispatch > update {
		dispatch = 0
	}
	// About when it began.
	began := cmp.Or(schedule, dispatch)
	consecutive := c.follow(t, s)
	work := e.workOf(s)
	gap := signal.Opt[int64]{}
	if consecutive && t.update != 0 && schedule != 0 {
		gap = signal.Some(int64(schedule - t.update))
	}
	busy := false
	var kinds [len(stepKinds)]int64
	counted, gave := !s.Partial, false
	for i := range s.Requests {
		q := &s.Requests[i]
		k, _ := kindOf(q.Phase)
		kinds[k] += max(q.Tokens, 0)
		counted = counted && q.Tokens >= 0
		gave = gave || q.Phase == signal.StepPrefillEnd || q.Phase == signal.StepDecode
		r := c.stepRequest(co, q, cmp.Or(began, update))
		busy = busy || q.Entry == signal.StepRunning || q.Entry == signal.StepResumed || (r != nil && r.arrivalSeen && r.added < t.update)
		if r != nil {
			c.requestStep(r, s, q, began, update, work)
		}
	}
	c.shareStep(co, s)
	for _, id := range s.Preempted {
		if r := co.find(string(id)); r != nil && r.steps != nil {
			r.steps.preemptions++
			if len(r.steps.preempted) < c.opt.EventLimit {
				r.steps.preempted = append(r.steps.preempted, cmp.Or(began, update))
			}
		}
	}
	t.preemptions += uint64(len(s.Preempted))
	t.preemptionsKnown = t.preemptionsKnown || s.PreemptedKnown
	if gave {
		t.iterations++
	}
	switch {
	case update == 0:
	case s.Method == signal.StepByDispatch:
		if dispatch != 0 {
			t.run.add(stepBounds, float64(update-dispatch)/1e9)
		}
	case schedule != 0:
		t.duration.add(stepBounds, float64(update-schedule)/1e9)
	}
	if gap.OK && busy {
		t.gap.add(gapBounds, max(float64(gap.V)/1e9, 0))
	}
	for k, n := range kinds {
		if n > 0 && counted {
			t.tokens[k].add(countBounds, float64(n))
		}
	}
	if n := len(s.Requests); n > 0 && !s.Partial {
		t.requests.add(countBounds, float64(n))
	}
	co.m.stepState(s)
	c.finishedBySteps(co, s.Finished)
	if c.opt.StepRecords {
		c.stepRecord(co, s, schedule, dispatch, update, gap, consecutive && !busy, work)
	} else if work != nil && (work.workers || work.ranks) {
		c.hold(co, s, work, nil)
	}
	t.number, t.update, t.seen, t.ever, t.losses = s.Number, update, true, true, c.losses
}

// follow notes what was missed between the last step and s, and reports whether
// s is known to be the next one.
func (c *Correlator) follow(t *stepTrack, s *signal.Step) bool {
	consecutive := t.seen
	switch {
	case !t.ever:
		if t.base.OK && s.Number.OK && !s.Counted {
			c.missedFirst(t, s, s.Number.V-t.base.V-1)
		}
	case !t.seen:
	case t.number.OK && s.Number.OK:
		d := s.Number.V - t.number.V
		if consecutive = d == 1; !consecutive {
			t.holes++
			// Numbers that jump further, or back, are those of another count.
			if d > 1 && d < maxMissed {
				t.missed += uint64(d - 1)
			}
		}
	case t.losses != c.losses:
		consecutive = false
		t.holes++
	}
	empty := s.Tokens.OK && s.Tokens.V == 0 || (s.Running.OK && s.Running.V == 0 && s.Waiting.OK && s.Waiting.V == 0)
	if s.Partial && !empty {
		t.holes++
	}
	return consecutive
}

// maxMissed bounds the steps that are taken for missed between two that were seen.
const maxMissed = 1 << 20

// missedFirst notes the n steps before s, the first one seen, that were made after the
// core was looked at.
func (c *Correlator) missedFirst(t *stepTrack, s *signal.Step, n int64) {
	if n <= 0 || n >= maxMissed {
		return
	}
	t.missed += uint64(n)
	t.holes++
	c.addNote(cmp.Or(s.Schedule, s.Update), fmt.Sprintf("steps of process %d made before its probes were in, and not seen: %d", s.Core.PID, n))
}

// find returns the request of that id, running or just over.
func (co *core) find(id string) *request {
	if r := co.reqs[id]; r != nil {
		return r
	}
	return co.over[id]
}

// stepRequest returns the request of a step, nil if the step is none of its.
func (c *Correlator) stepRequest(co *core, q *signal.StepRequest, at signal.Mono) *request {
	if r := co.reqs[string(q.ID)]; r != nil {
		return r
	}
	if r := co.over[string(q.ID)]; r != nil {
		return r
	}
	if _, gone := co.gone.ids[string(q.ID)]; gone {
		return nil
	}
	if r := co.eng.running(co, string(q.ID)); r != nil {
		return r
	}
	return c.newRequest(co, string(q.ID), at) // seen for the first time in mid-flight
}

func (c *Correlator) requestStep(r *request, s *signal.Step, q *signal.StepRequest, began, update signal.Mono, work *stepWork) {
	if r.done && cmp.Or(update, began) > r.endAt {
		return // scheduled before its end was known
	}
	n := r.steps
	if n == nil {
		n = &requestSteps{first: s.Number, holes: r.core.steps.holes}
		// A request that was seen before has had its first step if it had outputs.
		n.fromStart = q.Entry == signal.StepNew && r.outputs <= 1
		if n.fromStart {
			n.sched, n.schedIsDispatch = began, s.Schedule <= 0
		}
		r.steps = n
	}
	n.count++
	if s.Method == signal.StepByDispatch {
		n.dispatched++
	}
	n.last = s.Number
	if update != 0 {
		n.update = update
	}
	switch q.Phase {
	case signal.StepPrefillChunk:
		n.chunk(s, q, began, update, work)
		if update != 0 && r.outputs == 0 && c.opt.Precision >= 2 {
			c.keep(r, semconv.EventPrefill, update, func(*attrs) {})
		}
	case signal.StepPrefillEnd:
		n.chunk(s, q, began, update, work)
		n.give(update)
	case signal.StepDecode:
		n.several = n.several || q.Tokens > 1
		n.give(update)
	default:
		// A step after a preemption gives a token when it has caught up.
		n.maybe++
	}
}

func (n *requestSteps) chunk(s *signal.Step, q *signal.StepRequest, began, update signal.Mono, work *stepWork) {
	if len(n.chunks) >= maxChunks {
		n.moreChunks = true
		return
	}
	by := s.Method == signal.StepByDispatch
	n.chunks = append(n.chunks, chunk{
		number: s.Number, schedule: began, update: update, dispatched: by, atDispatch: by && s.Schedule <= 0,
		tokens: notNegative(signal.Some(q.Tokens)), computed: notNegative(q.Computed), work: work,
	})
}

func (n *requestSteps) give(update signal.Mono) {
	n.gave++
	if n.firstGave == 0 {
		n.firstGave = update
	}
}

// stepsComplete: all steps of r were seen.
func (c *Correlator) stepsComplete(r *request) bool {
	n := r.steps
	if n == nil || !n.fromStart || n.moreChunks || n.holes != n.endHoles || r.losses != c.losses {
		return false
	}
	if r.end != endFinished && r.end != endAborted && r.end != endStepped {
		return false
	}
	// A step that gave tokens and an output come together.
	gave := r.core.eng.rules.stepsOf(r.outputs, r.tokens)
	if r.checks.OK {
		gave = 1 + r.checks.V // a step gives as many tokens as drafts stood, and one
	}
	return !r.core.eng.seen.Outputs || (n.gave <= gave && gave <= n.gave+n.maybe)
}

// stepRecord hands over a step.
func (c *Correlator) stepRecord(co *core, s *signal.Step, schedule, dispatch, update signal.Mono, gap signal.Opt[int64], idle bool, work *stepWork) {
	if !c.clock.ok {
		return
	}
	wall := func(m signal.Mono) int64 {
		if m == 0 {
			return 0
		}
		return c.clock.wall(m)
	}
	rec := trace.Step{
		Resource: co.eng.resource(co.PID), EngineIndex: co.Index, Number: known(s.Number), Counted: s.Counted,
		Start: wall(schedule), Dispatch: wall(dispatch), End: wall(update), Gap: known(gap), Idle: idle,
		Tokens: known(s.Tokens), Partial: s.Partial,
		Running: known(s.Running), Waiting: known(s.Waiting),
		Blocks: known(s.Blocks), FreeBlocks: known(s.FreeBlocks), FreeAfter: known(s.FreeAfter),
	}
	if s.Method == signal.StepByDispatch {
		rec.Method = methodDispatch
	}
	if work != nil && !work.workers && !work.ranks {
		rec.Forward = []trace.Forward{work.passes[0].record(c.clock)}
	}
	if len(s.Requests) > 0 {
		rec.Requests = make([]trace.StepRequest, len(s.Requests))
	}
	for i := range s.Requests {
		q := &s.Requests[i]
		_, kind := kindOf(q.Phase)
		x := trace.StepRequest{Tokens: known(notNegative(signal.Some(q.Tokens))), Computed: known(q.Computed), Kind: kind}
		if r := co.find(string(q.ID)); r != nil {
			x.ID, x.RequestID = r.id, r.external
		} else {
			x.ID = string(q.ID)
		}
		rec.Requests[i] = x
	}
	for _, id := range s.Preempted {
		rec.Preempted = append(rec.Preempted, string(id))
	}
	if work != nil && (work.workers || work.ranks) {
		c.hold(co, s, work, &rec)
		return
	}
	c.sink(&trace.Tree{Steps: []trace.Step{rec}})
}

func known(v signal.Opt[int64]) trace.Int { return trace.Int{V: v.V, OK: v.OK} }

// forget: what comes next is not the step after the last one.
func (t *stepTrack) forget() {
	t.seen = false
	t.holes++
}

// prefillTokens are the tokens of each prefill step, nil if some are not known.
func (n *requestSteps) prefillTokens() []int64 {
	out := make([]int64, len(n.chunks))
	for i := range n.chunks {
		if !n.chunks[i].tokens.OK {
			return nil
		}
		out[i] = n.chunks[i].tokens.V
	}
	return out
}

// stepRefs adds the references to r's steps, or says why there are none.
func (c *Correlator) stepRefs(v *view, a *attrs) {
	r := v.r
	if c.opt.Steps < StepsRefs {
		return
	}
	if !c.stepsComplete(r) {
		why := cmp.Or(r.lostDetail(signal.DetailSteps), r.lessOf(signal.DetailSteps))
		if why == "" && r.core.eng.seen.Steps && (r.end == endFinished || r.end == endAborted) {
			why = reasonSteps
			if r.steps == nil {
				why = reasonNoStep
			}
		}
		if why != "" && !r.unseen {
			v.unavailable.add(semconv.AttrInferspanStepsCount + ": " + why)
		}
		return
	}
	n := r.steps
	putOpt(a, semconv.AttrInferspanStepsFirst, n.first)
	putOpt(a, semconv.AttrInferspanStepsLast, n.last)
	a.put(semconv.AttrInferspanStepsCount, n.count)
	switch {
	case n.dispatched == n.count:
		a.put(semconv.AttrInferspanStepsMethod, methodDispatch)
	case n.dispatched > 0:
		a.put(semconv.AttrInferspanStepsMethod, "mixed")
	}
	if t := n.prefillTokens(); len(t) > 0 {
		a.put(semconv.AttrInferspanStepsPrefillTokens, t)
	}
}

// chunkSpans appends a child of prefill for each step of it that was seen whole.
// Stamps of one happening differ by microseconds: the prefill's own count.
func (c *Correlator) chunkSpans(spans []trace.Span, r *request, prefill *trace.Span) []trace.Span {
	if r.steps == nil {
		return spans
	}
	for i := range r.steps.chunks {
		k := &r.steps.chunks[i]
		if k.schedule == 0 || k.update == 0 || !k.number.OK {
			continue
		}
		const stamps = 1e6
		start, end := int64(k.schedule)+r.off, int64(k.update)+r.off
		if start < prefill.Start-stamps || end > prefill.End+stamps {
			continue
		}
		start, end = max(start, prefill.Start), min(end, prefill.End)
		if end < start {
			continue
		}
		a := make(attrs, 0, 16)
		a.put(semconv.AttrInferspanStepNumber, k.number.V)
		putOpt(&a, semconv.AttrInferspanStepTokens, k.tokens)
		putOpt(&a, semconv.AttrInferspanStepComputedTokens, k.computed)
		if k.dispatched {
			a.put(semconv.AttrInferspanStepMethod, methodDispatch)
		}
		if k.atDispatch {
			a.put(semconv.AttrInferspanDerived, []string{spanStart})
		}
		k.work.attrs(&a)
		var f facts
		f.b = append(append(f.b, prefill.TraceID[:]...), prefill.SpanID[:]...)
		span := trace.Span{
			TraceID: prefill.TraceID, SpanID: f.str(semconv.NameInferspanPrefillChunk).num(uint64(i)).spanID(), ParentID: prefill.SpanID, TraceState: prefill.TraceState,
			Name: semconv.NameInferspanPrefillChunk, Kind: trace.KindInternal, Start: start, End: end, Attrs: a, Resource: prefill.Resource,
		}
		spans = append(spans, span)
		spans = append(spans, k.work.spans(&span, r.off, 0)...)
	}
	return spans
}
