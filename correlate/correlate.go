// Package correlate turns the signals of the probes into finished span trees
// and metrics.
//
// It is pure: no I/O, no clock, no goroutine, no randomness. The same signals
// in the same order give the same trees, byte for byte, whether they come from
// a live engine or from a recording. Time passes only as the signals say.
//
// A tree is one API request: the entry span with the engine requests it led to.
// A value is what was seen, or it is named in inferspan.derived, or it is left
// out; a request that was not seen whole carries inferspan.partial.
//
// Entry spans get the resource of the API server process, the spans below them
// that of the engine core.
package correlate

import (
	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Policy says where request and response content goes. Token ids and texts are
// span data: they appear with ContentSpan and ContentSpanAndEvent.
type Policy uint8

// Content policies.
const (
	ContentNone Policy = iota
	ContentSpan
	ContentEvent
	ContentSpanAndEvent
)

func (p Policy) span() bool  { return p == ContentSpan || p == ContentSpanAndEvent }
func (p Policy) event() bool { return p == ContentEvent || p == ContentSpanAndEvent }

// Defaults of Options.
const (
	DefaultEventLimit   = 128     // OTEL_SPAN_EVENT_COUNT_LIMIT's default
	DefaultMaxRequests  = 16384   // about 1 kB each
	DefaultMaxExchanges = 16384   // about 1 kB each, without content
	DefaultMaxStages    = 1 << 20 // about 80 bytes each

	DefaultTraceLevel = 3 // SGLang's own
	MaxTraceLevel     = 4
)

// Options of a Correlator. The zero value is not the default: see NewOptions.
type Options struct {
	Precision  int    // vLLM. 0: llm_request; 1: and its stages; 2: and their events
	TraceLevel int    // SGLang, as its own tracing has them. 0: no spans but entry spans, 1 to 4: stages up to that level
	Content    Policy // see Policy
	EventLimit int    // events per span, at least 1; the rest is counted
	ServerKind bool   // entry spans are SERVER instead of INTERNAL

	Steps       int  // StepsOff, StepsRefs or StepsSpans: what requests tell of their steps
	StepRecords bool // the steps themselves are handed over too, in trees without spans

	// TokenText gives the text of a token; nil if no tokenizer is at hand. It
	// must be deterministic.
	TokenText func(id int64) (string, bool)

	// Bounds on state. When one is reached the oldest item is exported as it
	// is, marked evicted, and counted.
	MaxRequests  int
	MaxExchanges int
	MaxStages    int // of all requests together, with their marks
}

// NewOptions returns the defaults: precision 1, trace level 3, no content.
func NewOptions() Options {
	return Options{Precision: 1, TraceLevel: DefaultTraceLevel, EventLimit: DefaultEventLimit, MaxRequests: DefaultMaxRequests, MaxExchanges: DefaultMaxExchanges, MaxStages: DefaultMaxStages}
}

// Sink takes a finished tree and owns it. With Options.StepRecords it also takes
// trees that hold steps and no spans.
type Sink func(*trace.Tree)

// Times after which something expected is no longer waited for, in the
// signals' own time.
const (
	second = signal.Mono(1e9)

	// A front end reads a message within milliseconds; a blocked one within tens.
	deliveryWait = 1 * second
	// The abort of a request follows the client's disconnect within milliseconds.
	abortWait = 2 * second
	// Signals of other processes about an exchange that has ended.
	reorderWait = 1 * second
	// An engine request that gives no sign after its exchange has ended.
	silenceWait = 5 * second
	// An exchange whose request is longer than what is copied of it is heard of when its
	// response begins: the rest of the body is counted, and the count comes with what
	// is copied next.
	beginWait = 1 * second
	// A finished request whose exchange is still open, its response id unseen.
	claimWait = 60 * second
	// How often the waits are looked at.
	sweepEvery = second / 10
)

// Correlator is not safe for concurrent use.
type Correlator struct {
	opt  Options
	sink Sink // during Put

	now       signal.Mono // latest time of any signal
	start     int64       // wall time of the first signal, ns
	nextSweep signal.Mono
	clock     clock

	engines []*engine // in order of appearance

	reqs    list[request, *request] // live requests, in order of arrival
	held    []*request
	waiting []*request // finished, and something of them not seen yet
	closing []closing
	kept    int                       // stages and marks
	exs     list[exchange, *exchange] // live exchanges, in order of beginning
	ended   []*exchange

	losses   uint64      // moves when records were lost that could matter
	lastLoss signal.Mono // when it last did
	firstAt  signal.Mono // time of the first signal that has one
	notes    []Note
	own      ownMetrics
	gpus     []*gpu // in order of appearance
}

// New returns an empty Correlator. Values of o out of range are replaced by the defaults.
func New(o Options) *Correlator {
	d := NewOptions()
	if o.Precision < 0 || o.Precision > 2 {
		o.Precision = d.Precision
	}
	if o.Steps < StepsOff || o.Steps > StepsSpans {
		o.Steps = d.Steps
	}
	if o.EventLimit < 1 {
		o.EventLimit = d.EventLimit
	}
	if o.MaxRequests < 1 {
		o.MaxRequests = d.MaxRequests
	}
	if o.MaxExchanges < 1 {
		o.MaxExchanges = d.MaxExchanges
	}
	if o.MaxStages < 1 {
		o.MaxStages = d.MaxStages
	}
	if o.TraceLevel < 0 || o.TraceLevel > MaxTraceLevel {
		o.TraceLevel = d.TraceLevel
	}
	return &Correlator{opt: o}
}

// SetTraceLevel changes Options.TraceLevel for the requests that begin from now on,
// as the engine's own tracing does, and reports whether there is such a level.
func (c *Correlator) SetTraceLevel(level int) bool {
	if level < 0 || level > MaxTraceLevel {
		return false
	}
	c.opt.TraceLevel = level
	return true
}

// Put takes one signal and hands every tree that it completes to sink. Nothing
// of s is kept. What the agent itself says may be of a moment that the others have not come
// to yet, so that it does not move the time on.
func (c *Correlator) Put(s signal.Signal, sink Sink) {
	c.sink = sink
	switch s := s.(type) {
	case *signal.StepOutput:
		c.tick(s.At)
		c.stepOutput(s)
	case *signal.Delivered:
		c.tick(s.At)
		c.delivered(s)
	case *signal.Step:
		c.tick(max(s.Schedule, s.Update))
		c.step(s)
	case *signal.RequestAdded:
		c.tick(s.At)
		c.requestAdded(s)
	case *signal.RequestAborted:
		c.tick(s.At)
		c.requestAborted(s)
	case *signal.ExchangeBegin:
		c.tick(s.At)
		c.exchangeBegin(s)
	case *signal.ExchangeFirst:
		c.tick(s.At)
		c.exchangeFirst(s)
	case *signal.ExchangeEnd:
		c.tick(s.At)
		c.exchangeEnd(s)
	case *signal.Engine:
		c.tick(s.At)
		c.engineFacts(s)
	case *signal.CoreFailed:
		c.tick(s.At)
		c.coreEnded(c.engine(s.Core.Engine), s.Core.PID, s.At)
	case *signal.ProcessExit:
		c.tick(s.At)
		c.processExit(s)
	case *signal.RequestPeeked:
		c.requestPeeked(s)
	case *signal.EngineState:
		c.tick(s.At)
		c.engineState(s)
	case *signal.EngineConfig:
		c.engineConfig(s)
	case *signal.Tokenized:
		c.tick(s.At)
		c.tokenized(s)
	case *signal.Detokenized:
		c.tick(s.At)
		c.detokenized(s)
	case *signal.Stage:
		c.tick(s.At)
		c.stage(s)
	case *signal.Mark:
		c.tick(s.At)
		c.mark(s)
	case *signal.RequestTimes:
		c.tick(s.At)
		c.requestTimes(s)
	case *signal.GPUMark:
		c.tick(s.At)
		c.gpuMark(s)
	case *signal.RankLaunched:
		c.rankLaunched(s)
	case *signal.MessageTaken:
		c.tick(s.At)
		c.messageTaken(s)
	case *signal.GPUWait:
		c.tick(s.At)
		c.gpuWait(s)
	case *signal.KVTransfer:
		c.tick(s.End)
		c.kvTransfer(s)
	case *signal.CoreAwaited:
		c.engine(s.Engine).await(s.PID, true)
	case *signal.ProbeChange:
		c.probeChange(s)
	case *signal.GPUDevice:
		c.tick(s.At)
		c.gpuDevice(s)
	case *signal.GPUSamples:
		c.tick(s.At)
		c.gpuSamples(s)
	case *signal.GPUEvent:
		c.tick(s.At)
		c.gpuEvent(s)
	case *signal.GPUVisible:
		c.tick(s.At)
		c.gpuVisible(s)
	case *signal.GPUKernels:
		c.gpuKernels(s)
	case *signal.Clock:
		c.clock.set(s)
		c.tick(s.At)
	case *signal.Loss:
		c.loss(s)
	case *signal.Detach:
		c.tick(s.At)
		c.detach(s.At)
	}
	c.sink = nil
}

// Metrics returns the state of all metrics. The snapshot shares nothing with c
// but the resources, which do not change.
func (c *Correlator) Metrics() metric.Snapshot { return c.snapshot() }

// Seen says what has been seen of an engine so far: what a capability report
// needs to tell exact values from derived and unavailable ones.
type Seen struct {
	Requests  bool // requests arriving in a core
	Outputs   bool // outputs of a core
	Events    bool // state changes stamped by the engine (absent with its statistics off)
	Stats     bool // scheduler statistics
	Receipts  bool // deliveries to a front end
	Exchanges bool // HTTP exchanges

	Steps      bool // scheduler steps
	Peeks      bool // requests in flight, read from memory
	State      bool // the state of a core, read from memory
	Tokenize   bool // times of the tokenizer
	Detokenize bool // times of the detokenizer
	Transfers  bool // waits for remote KV blocks
	Stages     bool // stages of requests in threads of the engine
	Times      bool // stamps of a front end about its requests
}

// Seen reports on one engine; the zero value if it is not known.
func (c *Correlator) Seen(id signal.EngineID) Seen {
	for _, e := range c.engines {
		if e.id == id {
			return e.seen
		}
	}
	return Seen{}
}

// tick moves the time forward and gives up on what was waited for too long.
func (c *Correlator) tick(at signal.Mono) {
	if at > c.now {
		c.now = at
	}
	if c.firstAt == 0 {
		c.firstAt = at
	}
	if c.start == 0 && c.clock.ok {
		c.start = c.clock.wall(c.now)
	}
	if c.now >= c.nextSweep {
		c.nextSweep = c.now + sweepEvery
		c.sweep()
	}
}

// loss notes that records were lost. What is open now may lack parts.
func (c *Correlator) loss(s *signal.Loss) {
	for _, l := range s.Lost {
		if c.own.lost(s.Stage, l.Reason, l.N) && mattering[l.Reason] {
			c.losses++
			c.lastLoss = max(c.now, s.At)
		}
	}
}

// mattering are the reasons for which a record or a message that would have
// given a signal is missing. Others are normal: a long prompt is cut, and at
// attach messages and connections are under way.
var mattering = map[string]bool{
	"ring_full": true, "fault": true, "map_full": true, "unmatched": true, // kernel
	"message_missing_chunk": true, "message_missing_part": true, "message_memory": true, "message_malformed": true, "message_broken": true, // decode
}

// detach exports everything that is still open.
func (c *Correlator) detach(at signal.Mono) {
	for _, e := range c.engines {
		for _, co := range e.cores {
			c.shareOut(co, true)
		}
		c.letGo(e, len(e.held))
	}
	reqs := make([]*request, 0, c.reqs.n)
	for r := c.reqs.head; r != nil; r = r.next {
		reqs = append(reqs, r)
	}
	for _, r := range reqs {
		if r.waiting {
			r.waiting = false
			c.requestDone(r)
		} else if !r.done {
			c.endRequest(r, endDetached, at)
		}
	}
	c.waiting = nil
	for c.exs.head != nil {
		ex := c.exs.head
		if !ex.ended {
			ex.end(at, signal.OutcomeDetached)
		}
		c.claimByOrder(ex, true)
		c.emitExchange(ex)
	}
	for c.reqs.head != nil {
		c.emitAlone(c.reqs.head)
	}
	c.held, c.ended, c.closing = nil, nil, nil
	for _, e := range c.engines {
		e.untokenized, e.tokenizings = nil, nil
	}
}

// sweep looks after everything that waits for a signal that may never come.
func (c *Correlator) sweep() {
	// Deliveries: the list is in order of sending.
	n := 0
	for _, r := range c.waiting {
		switch {
		case !r.waiting:
		case c.now-max(r.lastSend, r.settleFrom) > deliveryWait:
			r.waiting = false
			c.requestDone(r)
		default:
			c.waiting[n] = r
			n++
		}
	}
	clear(c.waiting[n:])
	c.waiting = c.waiting[:n]

	c.closeUp()

	for _, e := range c.engines {
		for _, co := range e.cores {
			c.shareOut(co, false)
		}
		c.claimTokenizings(e, c.now-reorderWait, nil)
	}

	for i := 0; i < len(c.ended); {
		ex := c.ended[i]
		c.tryEmit(ex)
		if i < len(c.ended) && c.ended[i] == ex {
			i++
		}
	}
	c.releaseHeld()
}
