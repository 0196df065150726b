package correlate

import (
	"cmp"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
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
	checks        signal.Opt[int64] // signal.Output.Checks
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

// model is the name that r asked for, an adapter's own or that of the model; "" if it is
// not known which.
func (r *request) model() string {
	if r.adapter == "" && !r.adapterSeen && r.core.eng.lora.V {
		return ""
	}
	return cmp.Or(r.adapter, r.core.eng.model)
}
