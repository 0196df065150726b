package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// endKind says what ended a request in the engine.
type endKind uint8

const (
	endNone     endKind = iota
	endFinished         // an output with a finish reason
	endAborted          // an abort by the front end
	endExit             // the core's process ended
	endDetached         // we stopped looking
	endLost             // its end was not seen
	endEvicted          // a bound on state was reached
	endStepped          // the scheduler has it no more; how it ended was not seen
)

// request is one request inside an engine core.
type request struct {
	id, external, resp string
	core               *core
	client             int
	child              signal.Opt[int]
	pid                uint32            // of its front end, 0 if not known
	stream             signal.Opt[bool]  // the client gets outputs as they come
	room               signal.Opt[int64] // of a request that is prefilled elsewhere
	level              int               // trace level
	pooling            bool
	arrivalSeen        bool // seen arriving in the core
	traceParent        string
	adapter            string
	adapterSeen        bool // it is known which it is, if any
	param              signal.Param
	prompt             signal.Opt[int64] // from the request
	corePrompt         signal.Opt[int64] // from the core
	cached             signal.Opt[int64]
	loaded             signal.Opt[int64] // of these, what a KV connector had

	arrival signal.Wall
	began   signal.Mono // time when it was first seen
	added   signal.Mono // receipt in the core, or first seen
	off     int64       // wall - mono, from when it began
	offOK   bool

	queued, sched signal.Mono // the engine's stamps
	first, last   signal.Mono // stamps of the first and the last output
	outputs       int64
	firstOK       bool // the first output seen is the request's first
	tokens        int64
	preempted     int64
	firstSend     signal.Mono
	lastSend      signal.Mono
	firstMsg      uint64
	lastMsg       uint64
	firstRecv     receipt
	lastRecv      receipt
	ttftCounted   bool
	recent        [recentOutputs]output // of requests with stop strings
	finish        signal.Finish
	finishReason  string
	refused       bool // its end came without what the engine counted of it

	// What was read from memory of a request that had not been seen arriving.
	outline   bool // what it asks for is not known
	peeked    bool
	there     signal.Mono       // when it was last looked at
	unseen    bool              // it was over before anything of it was seen but that look
	fresh     bool              // it had no output then
	started   bool              // QUEUED came with its first output
	before    signal.Opt[int64] // tokens that were generated before those counted here
	preBefore signal.Opt[int64] // preemptions likewise
	lookedAt  signal.Mono       // when these were read
	unstamped bool              // an output had no credible stamp

	steps      *requestSteps // nil: no step with it was seen
	gpu        *gpuTime      // nil: no step with it was seen where GPU work is
	bySteps    bool          // its outputs are worked out from its steps
	kv         *transfer     // nil: it did not wait for remote KV blocks
	way        *way          // nil: nothing was seen of it
	failure    *signal.Failure
	tokenize   timeIn
	detokenize detokenizing

	end        endKind
	endAt      signal.Mono
	waiting    bool        // ended, and something of it not seen yet
	forWork    bool        // that is its part of the work of GPUs
	endedLate  bool        // it had ended by the time that was seen, after its latest output
	settleFrom signal.Mono // since when what the rules ask for is waited for
	done       bool
	doneAt     signal.Mono
	evicted    bool
	counted    bool // in the metrics of finished requests
	// durationCounted: with its time from beginning to end.
	durationCounted bool
	losses          uint64

	ex   *exchange
	corr string

	events  []trace.Event
	decodes int // DECODE events among events
	dropped int

	links[request]
}

// mostTokens bounds counts of tokens of a request that an engine states.
const mostTokens = 1 << 32

// output is an output of a request that may turn out to be its last.
type output struct {
	stamp, send signal.Mono
	msg         uint64
	n           int64 // outputs of the request up to here
	tokens      int64 // its tokens up to here
	preempted   int64 // its preemptions up to here
}

// recentOutputs is how many outputs are kept of a request with stop strings: the
// front end finds the stop, so the core may be this many steps ahead. Of a request
// seen from its middle they are kept too, until what was read from memory comes.
const recentOutputs = 8

func (c *Correlator) requestAdded(s *signal.RequestAdded) {
	e := c.engine(s.Core.Engine)
	e.seen.Requests = e.seen.Requests || s.Known
	co := e.core(s.Core)
	r := e.running(co, s.ID)
	switch {
	case r != nil && !s.Known:
		return // nothing new
	case r != nil && (r.arrivalSeen || r.outputs > 0):
		// The id is in use again: the end of the former request was not seen.
		c.endRequest(r, endLost, s.At)
		r = nil
	}
	if r == nil {
		r = c.newRequest(co, s.ID, s.At)
	}
	r.added, r.arrivalSeen = s.At, s.Known
	c.describe(r, s)
	if r.arrivalSeen && !r.pooling {
		e.untokenized = append(e.untokenized, r)
	}
}

// describe notes what a request asks for, and looks for its exchange.
func (c *Correlator) describe(r *request, s *signal.RequestAdded) {
	e := r.core.eng
	e.unindex(r)
	r.external, r.resp, r.child, r.client = s.ExternalID, s.ResponseID, s.Child, s.Client
	r.pooling, r.prompt, r.param, r.traceParent = s.Pooling, s.PromptTokens, s.Param, s.TraceParent
	r.adapter, r.adapterSeen, r.outline = s.Adapter, !s.AdapterUnknown, s.Outline
	r.pid, r.stream, r.room = s.PID, s.Stream, s.Room
	r.arrival = s.Arrival
	if r.offOK && r.arrival != 0 && int64(r.arrival) > int64(r.added)+r.off {
		// Nothing reaches the core before it arrived at the front end: the wall
		// clock was set since the last sample.
		r.off = int64(r.arrival) - int64(r.added)
	}
	if r.resp != "" {
		e.byResp[r.resp] = append(e.byResp[r.resp], r)
		if r.ex == nil {
			c.claimByID(r)
		}
	}
}

func (c *Correlator) newRequest(co *core, id string, at signal.Mono) *request {
	if c.reqs.n >= c.opt.MaxRequests {
		c.own.evicted("request")
		old := c.reqs.head
		old.evicted = true
		if !old.done || old.waiting {
			c.endRequest(old, endEvicted, c.now)
		}
		c.release(old)
	}
	r := &request{id: id, core: co, client: -1, began: c.now, added: at, level: c.opt.TraceLevel, losses: c.losses, off: c.clock.off, offOK: c.clock.ok}
	c.reqs.push(r)
	co.reqs[id] = r
	delete(co.over, id)
	co.gone.remove(id)
	return r
}

// stepOutput is the hot path: one call per message, one pass of the loop per
// request and step, without allocation once a request has begun.
func (c *Correlator) stepOutput(s *signal.StepOutput) {
	e := c.engine(s.Core.Engine)
	e.seen.Outputs = true
	co := e.core(s.Core)
	co.m.step(s)
	if s.Stats != nil {
		e.seen.Stats = true
	} else if len(s.Outputs) > 0 && !e.seen.Stats {
		e.bare++
	}
	stamp := s.Stamp
	if !plausible(stamp, c.now) {
		stamp = 0
	}
	seq, undelivered := e.msgs.add(s)
	for _, r := range undelivered {
		c.requestUndelivered(r)
	}
	for i := range s.Outputs {
		o := &s.Outputs[i]
		r := co.reqs[string(o.ID)]
		if r == nil {
			if _, gone := co.gone.ids[string(o.ID)]; gone {
				c.own.droppedOutputs++
				continue
			}
			if r = e.running(co, string(o.ID)); r == nil {
				r = c.newRequest(co, string(o.ID), s.At) // seen for the first time in mid-flight
			}
		}
		c.output(co, r, s, o, stamp, seq)
	}
}

// plausible: a stamp read from a message is a time that has passed.
func plausible(stamp, now signal.Mono) bool { return stamp > 0 && stamp <= now+second }

func (c *Correlator) output(co *core, r *request, s *signal.StepOutput, o *signal.Output, stamp signal.Mono, seq uint64) {
	r.outputs++
	n := max(o.NumTokens, 0)
	r.tokens += int64(n)
	co.m.generated += uint64(n)
	preempted := r.preempted
	if len(o.Events) > 0 {
		c.engineEvents(co, r, o.Events)
	}
	if stamp != 0 && stamp < r.lookedAt {
		r.countedBefore(int64(n), r.preempted-preempted)
	}
	if r.outputs == 1 {
		c.firstOutput(co, r, s, o, stamp, seq)
	}
	r.last, r.lastSend, r.lastMsg = stamp, s.At, seq
	if r.param.HasStop || !r.firstOK {
		r.recent[r.outputs%recentOutputs] = output{stamp, s.At, seq, r.outputs, r.tokens, r.preempted}
		r.unstamped = r.unstamped || stamp == 0
	}
	if c.opt.Precision >= 2 {
		c.tokenEvent(r, stamp, o)
	}
	if o.Finish != signal.FinishNone {
		r.finish, r.finishReason = o.Finish, o.FinishReason
		r.refused = o.Finish == signal.FinishAbort && !o.PromptTokens.OK && !o.Total.OK
		if o.Failure != nil {
			f := *o.Failure
			r.failure = &f
		}
		c.endRequest(r, endFinished, s.At)
	}
}

func (c *Correlator) firstOutput(co *core, r *request, s *signal.StepOutput, o *signal.Output, stamp signal.Mono, seq uint64) {
	// With its statistics on, the engine sends QUEUED with the first output. One
	// without it is a later one, whose predecessors were not seen. With them off it
	// is the first of a request seen from its beginning, unless the steps say that
	// one was missed.
	whole, missed := r.arrivalSeen || r.fresh, false
	if n := r.steps; n != nil {
		whole, missed = whole || n.fromStart, n.gave > max(co.eng.rules.stepsOf(1, int64(o.NumTokens)), 1)
	}
	if n := o.Total.V - int64(max(o.NumTokens, 0)); o.Total.OK && n >= 0 && n < mostTokens {
		// The engine counts, so that what was before is known.
		whole, missed = n == 0, false
		if n > 0 && !r.before.OK {
			r.before = signal.Some(n)
		}
	}
	r.firstOK = r.started || (whole && !missed && !co.eng.events())
	if o.CachedTokens.OK {
		r.cached = o.CachedTokens
	}
	if o.ExternalTokens.OK {
		r.loaded = o.ExternalTokens
	}
	if o.PromptTokens.OK {
		r.corePrompt = o.PromptTokens
	}
	if !r.firstOK {
		return
	}
	r.first, r.firstSend, r.firstMsg = stamp, s.At, seq
	co.m.cached += uint64(max(o.CachedTokens.V, 0))
	switch {
	case o.PromptTokens.OK:
		co.m.prompt += uint64(max(o.PromptTokens.V, 0))
	case r.prompt.OK:
		co.m.prompt += uint64(max(r.prompt.V, 0))
	}
	if m := co.eng.msgs.get(seq); m != nil && o.Finish == signal.FinishNone {
		if m.recv.at != 0 {
			c.requestDelivered(r, seq, m.recv)
		} else {
			m.waiters = append(m.waiters, r)
		}
	}
}

func (c *Correlator) engineEvents(co *core, r *request, events []signal.EngineEvent) {
	for _, ev := range events {
		switch ev.Kind {
		case signal.EventQueued:
			co.eng.seen.Events = true
			if !plausible(ev.At, c.now) {
				continue
			}
			r.started = r.started || r.outputs == 1
			if r.queued == 0 {
				r.queued = ev.At
				c.stateEvent(r, ev)
			}
		case signal.EventScheduled:
			// Preempted requests are scheduled again: the first time counts, and
			// only if it is known to be the first.
			if r.sched == 0 && r.queued != 0 && r.outputs == 1 && plausible(ev.At, c.now) {
				r.sched = ev.At
			}
		case signal.EventPreempted:
			r.preempted++
			co.m.preemptions++
			c.stateEvent(r, ev)
		}
	}
}

func (c *Correlator) requestAborted(s *signal.RequestAborted) {
	e := c.engine(s.Core.Engine)
	co := e.core(s.Core)
	for _, id := range s.IDs {
		r := e.running(co, id)
		if r == nil {
			co.gone.add(id) // its outputs may still come
			continue
		}
		if !e.rules.abortEnds() {
			c.closing = append(c.closing, closing{r, s.At, endAborted})
			continue
		}
		at := s.At
		if s.Late {
			r.endedLate = true
			at = min(at, r.lastSeen())
		}
		c.endRequest(r, endAborted, at)
	}
}

// endRequest ends a request in the engine. Its tree may have to wait.
func (c *Correlator) endRequest(r *request, kind endKind, at signal.Mono) {
	if r.done && !r.waiting {
		return
	}
	co := r.core
	if co.reqs[r.id] == r {
		delete(co.reqs, r.id)
	}
	co.gone.add(r.id)
	if r.end == endNone {
		r.end, r.endAt = kind, at
		if r.live {
			co.over[r.id] = r
		}
		if r.steps != nil {
			r.steps.endHoles = co.steps.holes
			r.endBySteps()
		}
	}
	r.done, r.doneAt, r.waiting = true, c.now, false
	if kind == endFinished {
		if m := co.eng.msgs.get(r.lastMsg); m != nil {
			if m.recv.at == 0 {
				m.waiters = append(m.waiters, r)
				r.waiting = true
				c.waiting = append(c.waiting, r)
				return
			}
			c.requestDelivered(r, r.lastMsg, m.recv)
		}
	}
	work := (kind == endFinished || kind == endStepped) && r.awaitsWork()
	if kind == endFinished && !co.eng.rules.settled(r) || work {
		r.waiting, r.forWork, r.settleFrom = true, work, c.now
		c.waiting = append(c.waiting, r)
		return
	}
	c.requestDone(r)
}

// requestDelivered: the message of that number, with r's first or last output, has arrived.
func (c *Correlator) requestDelivered(r *request, seq uint64, at receipt) {
	if !r.live {
		return
	}
	if seq == r.firstMsg && r.firstRecv.at == 0 {
		r.firstRecv = at
		c.countFirst(r)
	}
	if r.done && seq == r.lastMsg && r.lastRecv.at == 0 {
		r.lastRecv = at
	}
	if r.waiting && seq == r.lastMsg {
		c.settle(r)
	}
}

// requestUndelivered: a message with r's first or last output left the window.
func (c *Correlator) requestUndelivered(r *request) {
	if r.live && r.waiting {
		c.settle(r)
	}
}

// requestDone: all that will be known of r inside the engine is known.
func (c *Correlator) requestDone(r *request) {
	if !r.live {
		return
	}
	c.countFirst(r)
	// Of one with stop strings the response may say that it ended before.
	if r.end == endFinished && !(r.param.HasStop && r.finish == signal.FinishLength) || r.end == endStepped {
		c.countFinished(r)
	}
	if r.ex != nil {
		c.tryEmit(r.ex)
		return
	}
	if r.end == endAborted || r.end == endExit {
		c.claimCutShort(r)
		if r.ex != nil {
			c.tryEmit(r.ex)
			return
		}
	}
	if c.mayBeClaimed(r) || c.awaitsText(r) {
		c.held = append(c.held, r)
		return
	}
	c.emitAlone(r)
}

// releaseHeld exports the requests that no exchange can claim any more.
func (c *Correlator) releaseHeld() {
	if len(c.held) == 0 {
		return
	}
	held := c.held
	c.held = nil
	for _, r := range held {
		switch {
		case !r.live || r.ex != nil:
		case c.mayBeClaimed(r) || c.awaitsText(r):
			c.held = append(c.held, r)
		default:
			c.emitAlone(r)
		}
	}
}

// release exports r now, with its exchange if that is over too.
func (c *Correlator) release(r *request) {
	if !r.live {
		return
	}
	if r.ex != nil {
		if r.ex.ended {
			c.emitExchange(r.ex)
			return
		}
		// The exchange goes on: it keeps its identity, the request leaves first.
		r.ex.left++
		i := slices.Index(r.ex.reqs, r)
		r.ex.reqs = slices.Delete(r.ex.reqs, i, i+1)
	}
	c.emitAlone(r)
}

// forget drops r from all state.
func (c *Correlator) forget(r *request) {
	c.reqs.remove(r)
	if r.way != nil {
		c.kept -= r.way.kept
		r.way.kept = 0
	}
	e := r.core.eng
	if r.core.reqs[r.id] == r {
		delete(r.core.reqs, r.id)
	}
	if r.core.over[r.id] == r {
		delete(r.core.over, r.id)
	}
	e.unindex(r)
}

func (e *engine) unindex(r *request) {
	if r.resp == "" {
		return
	}
	list := e.byResp[r.resp]
	if i := slices.Index(list, r); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(e.byResp, r.resp)
	} else {
		e.byResp[r.resp] = list
	}
}

// model is the name that r asked for, an adapter's own or that of the model; "" if it is
// not known which.
func (r *request) model() string {
	if r.adapter == "" && !r.adapterSeen && r.core.eng.lora.V {
		return ""
	}
	return cmp.Or(r.adapter, r.core.eng.model)
}
