package vllm

import (
	"bytes"
	"cmp"
	"slices"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/python/plan"
)

// maxOpenSteps bounds the steps that have begun and not ended: the engine has at
// most one for each pipeline stage, and one more.
const maxOpenSteps = 64

// openStep is a step that was scheduled and has not ended yet.
type openStep struct {
	number                                 int64
	at                                     signal.Mono
	running, waiting, deferred, free, pool signal.Opt[int64]
	silent                                 *silentStep // nil if not known
}

// steps is what is known of the steps of one core.
type steps struct {
	open    []openStep
	counted int64  // steps that began, where the engine does not number them
	ended   uint64 // address of the SchedulerOutput of the step that ended last
	endedNo int64  // its number
	listed  listing
	loads   loads
}

// scheduled: a step begins.
func (d *Decoder) scheduled(c *core, at signal.Mono, v reading, emit func(signal.Signal)) {
	s := &c.steps
	o := openStep{at: at}
	s.counted++
	var numbered bool
	if o.number, numbered = v.int(slotStep); !numbered {
		o.number = s.counted
	}
	o.running = known(v.int(slotRunning))
	o.waiting, o.deferred = queues(v)
	o.free, o.pool = d.blocks(v)
	if n := len(s.open); n > 0 && o.number <= s.open[n-1].number {
		s.open = s.open[:0] // the count began anew
	}
	d.list(c, o.number, at, v, emit)
	d.loading(c, at, o.number, v, emit)
	if n, ok := v.inFlight(); ok && n < int64(len(s.open)) {
		d.abandon(c, len(s.open)-int(n), !numbered, emit)
	}
	if len(s.open) == maxOpenSteps {
		d.abandon(c, 1, !numbered, emit)
	}
	s.open = append(s.open, o)
}

func known(n int64, ok bool) signal.Opt[int64] { return signal.Opt[int64]{V: n, OK: ok} }

// queues gives the requests that wait for their turn and those put off, as the
// engine counts them; see Peeker.waiting.
func queues(v reading) (waiting, deferred signal.Opt[int64]) {
	n, ok := v.int(slotWaiting)
	if !ok {
		return waiting, deferred
	}
	if holding, ok := v.int(slotHolding); ok {
		n += holding
		off, ok := v.int(slotDeferred)
		if !ok || off > n {
			return waiting, deferred
		}
		return signal.Some(n - off), signal.Some(off)
	}
	if !v.lacking(slotHolding) {
		return waiting, deferred
	}
	return signal.Some(n), known(v.int(slotSkipped))
}

// blocks gives the blocks of the KV cache in a capture, as kvBlocks does.
func (d *Decoder) blocks(v reading) (free, total signal.Opt[int64]) {
	f, freeOK := v.int(slotFree)
	pool, poolOK := v.int(slotPool)
	if freeOK && poolOK {
		free, total, _ = d.kvBlocks(&f, &pool)
	}
	return free, total
}

// newStep begins the signal of a step.
func (d *Decoder) newStep(c *core, detail signal.StepDetail, counted bool) *signal.Step {
	g := &d.stepSig
	*g = signal.Step{Core: c.id, Detail: detail, Counted: counted, Requests: g.Requests[:0]}
	d.names = d.names[:0]
	d.stats.Scheduled++
	return g
}

// abandon hands over the n oldest open steps, whose ends were not seen.
func (d *Decoder) abandon(c *core, n int, counted bool, emit func(signal.Signal)) {
	s := &c.steps
	for i := range n {
		g := d.newStep(c, signal.StepNoEnd, counted)
		begin(g, &s.open[i])
		d.silent(c, s.open[i].silent)
		emit(g)
	}
	s.open = append(s.open[:0], s.open[n:]...)
}

// begin fills in what was seen when a step began.
func begin(g *signal.Step, o *openStep) {
	g.Number, g.Schedule = signal.Some(o.number), o.at
	g.Running, g.Waiting, g.Deferred, g.FreeBlocks, g.Blocks = o.running, o.waiting, o.deferred, o.free, o.pool
}

// updated: a step has ended. Each front end's outputs are stamped: the first
// stamp of a step counts.
func (d *Decoder) updated(c *core, at signal.Mono, v reading, cut bool, emit func(signal.Signal)) {
	s := &c.steps
	output := v.value(slotOutput)
	if output == nil || output.Tag != capture.TagAddr {
		d.stats.Other++ // not called for a step
		return
	}
	// The step that ends is the oldest of those under way.
	current, numbered := v.int(slotStep)
	if !numbered {
		current = s.counted
	}
	others, sure := v.inFlight()
	if x := v.value(slotHeldBack); x != nil && x.Tag == capture.TagMissing && x.Missing == capture.MissingType {
		others++ // an object, not None
	}
	number := current - others
	if !sure && len(s.open) > 0 {
		number, sure = s.open[0].number, true
	}
	if output.Addr == s.ended && (!sure || number == s.endedNo) {
		return
	}
	next := sure && number == s.endedNo+1
	s.ended, s.endedNo = output.Addr, number
	d.loadsEnded(c, at, v)
	if sure && numbered && d.endByClock(c, number, at, emit) {
		return
	}
	for len(s.open) > 0 && sure && s.open[0].number < number {
		d.abandon(c, 1, !numbered, emit)
	}
	g := d.newStep(c, signal.StepNoBeginning, !numbered)
	switch {
	case len(s.open) > 0 && sure && s.open[0].number == number:
		begin(g, &s.open[0])
		g.Detail = signal.StepSeen
		s.open = append(s.open[:0], s.open[1:]...)
	case sure && numbered:
		g.Number = signal.Some(number)
	}
	g.Update = at
	g.FreeAfter = known(v.int(slotFree))
	g.Partial = cut
	d.stepLists(c, v)
	if next {
		d.abortedInside(c, g.Finished, cmp.Or(g.Schedule, g.Update), emit)
	}
	d.promptsInside(c, v, cmp.Or(g.Schedule, g.Update), emit)
	d.stepRequests(c, v)
	emit(g)
	d.outputsInside(c, v, at, emit)
}

// stepLists reads what a SchedulerOutput says of a step besides its requests.
func (d *Decoder) stepLists(c *core, v reading) {
	g := &d.stepSig
	g.Tokens = known(v.int(slotTokens))
	d.preempted, g.PreemptedKnown = d.idList(v, slotPreempted, d.preempted[:0])
	g.Preempted = orNil(d.preempted)
	for _, id := range g.Preempted {
		if q := c.find(id); q != nil {
			q.again, q.lost = q.done, q.skips != c.skips
		}
	}
	d.finished, _ = d.idList(v, slotFinished, d.finished[:0])
	g.Finished = orNil(d.finished)
}

// idList reads a set of request ids, which have no order there: sorted, so that
// the same set gives the same list. known is false if there is none, or not all.
func (d *Decoder) idList(v reading, s slot, to [][]byte) (ids [][]byte, known bool) {
	items, known, ok := v.list(s, 1)
	if !ok {
		return to, false // None in versions that do not use it
	}
	for i := range items {
		if !items[i].IsStr() {
			known = false
			continue
		}
		to = append(to, d.keep(items[i].Str))
	}
	slices.SortFunc(to, bytes.Compare)
	return to, known
}

func orNil(ids [][]byte) [][]byte {
	if len(ids) == 0 {
		return nil
	}
	return ids
}

// keep copies a name to where it stays until the next step.
func (d *Decoder) keep(s string) []byte {
	from := len(d.names)
	d.names = append(d.names, s...)
	return d.names[from:len(d.names):len(d.names)]
}

// stepRequests reads the requests of a step and what each got.
//
// The tokens by request come in the order of the batch: first the requests that
// were running, then the others. The counts of tokens computed before have the
// same order, those that were running first and those that are back after a
// preemption behind them; new requests have their own.
func (d *Decoder) stepRequests(c *core, v reading) {
	g := &d.stepSig
	items, whole, ok := v.list(slotScheduled, 2)
	if !ok {
		g.Partial = true
		c.skips++
		return
	}
	fresh, wholeFresh, freshOK := v.list(slotNew, 2)
	back, wholeBack, backOK := v.list(slotResumed, 1)
	entries := wholeFresh && freshOK && wholeBack && backOK
	for i := 0; i+1 < len(items); i += 2 {
		id, n := &items[i], &items[i+1]
		if !id.IsStr() || n.Tag != capture.TagInt || n.Int < 0 {
			whole = false // and the order is lost
			continue
		}
		g.Requests = append(g.Requests, signal.StepRequest{ID: d.keep(id.Str), Tokens: n.Int})
	}
	g.Partial = g.Partial || !whole
	if !entries {
		return
	}
	newOnes, resumed := 0, 0
	for i := range g.Requests {
		r := &g.Requests[i]
		r.Entry = signal.StepRunning
		for k := 0; k+1 < len(fresh); k += 2 {
			if fresh[k].Str == string(r.ID) {
				r.Entry = signal.StepNew
				if n := &fresh[k+1]; n.Tag == capture.TagInt && n.Int >= 0 {
					r.Computed = signal.Some(n.Int)
				}
				newOnes++
				break
			}
		}
		for k := range back {
			if r.Entry == signal.StepRunning && back[k].Str == string(r.ID) {
				r.Entry = signal.StepResumed
				resumed++
				break
			}
		}
	}
	counts, wholeCounts, countsOK := v.list(slotComputed, 1)
	if countsOK && wholeCounts && whole && len(counts) == len(g.Requests)-newOnes {
		at, atBack := 0, len(counts)-resumed
		for i := range g.Requests {
			r := &g.Requests[i]
			var n *plan.Value
			switch r.Entry {
			case signal.StepRunning:
				n = &counts[at]
				at++
			case signal.StepResumed:
				n = &counts[atBack]
				atBack++
			default:
				continue
			}
			if n.Tag == capture.TagInt && n.Int >= 0 {
				r.Computed = signal.Some(n.Int)
			}
		}
	}
	for i := range g.Requests {
		phase(c, &g.Requests[i])
	}
}

// phase tells what the tokens of a request in a step are.
func phase(c *core, r *signal.StepRequest) {
	q := c.find(r.ID)
	if q == nil || !r.Computed.OK {
		return
	}
	from, to := r.Computed.V, r.Computed.V+r.Tokens
	if r.Entry == signal.StepResumed && q.again < q.done {
		q.again = q.done // the preemption was not seen
	}
	switch {
	case from < q.again:
		r.Phase = signal.StepRecompute
	case !q.promptOK, q.lost:
	case from >= q.prompt:
		r.Phase = signal.StepDecode
	case to < q.prompt:
		r.Phase = signal.StepPrefillChunk
	default:
		r.Phase = signal.StepPrefillEnd
	}
	q.done, q.skips = to, c.skips
}
