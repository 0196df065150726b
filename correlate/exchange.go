package correlate

import (
	"slices"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// operation is what an API path asks for.
type operation struct {
	name     string // gen_ai.operation.name
	kind     string // gen_ai.span.kind
	span     string // id of the span
	pooling  bool   // no tokens are generated
	idPrefix string // the response id is this and the x-request-id, if the client sent one
	ownID    bool   // no: it is the engine's own
}

// operationChat is the name of conversations, of which a request has one.
const operationChat = "chat"

// exchange is an HTTP request that gives an entry span.
type exchange struct {
	key         signal.Exchange
	eng         *engine
	op          *operation
	begin, sent signal.Mono // first and last byte of the request
	off         int64
	offOK       bool
	path        string
	traceParent string
	traceState  string
	body        signal.RequestBody

	resp      string // response id, "" if not known
	announced string // response id to be expected, from the request
	status    int
	first     signal.Mono

	ended         bool
	endAt         signal.Mono
	outcome       signal.Outcome
	streamed      bool
	model         signal.Opt[string]
	finish        []string
	input, output signal.Opt[int64]
	cached        signal.Opt[int64]
	toolCalls     signal.Opt[int64]
	calls         []signal.ToolCall
	errType       string
	errMessage    string
	content       string
	gap           bool
	losses        uint64

	reqs    []*request
	left    int // requests that were exported before
	evicted bool

	links[exchange]
}

func (c *Correlator) exchangeBegin(s *signal.ExchangeBegin) {
	e := c.engine(s.Exchange.Engine)
	op := e.rules.operation(s.Path)
	if op == nil || s.Method != "POST" {
		return
	}
	e.seen.Exchanges = true
	if old := e.exchanges[s.Exchange]; old != nil {
		if old.ended {
			return // a repeated name: the former has it until it is exported
		}
		old.end(s.At, 0)
		c.exchangeEnded(old)
		if old.live {
			c.emitExchange(old)
		}
	}
	if c.exs.n >= c.opt.MaxExchanges {
		c.own.evicted("exchange")
		old := c.exs.head
		old.evicted = true
		if !old.ended {
			old.end(c.now, 0)
		}
		c.emitExchange(old)
	}
	x := &exchange{
		key: s.Exchange, eng: e, op: op, begin: s.At, sent: s.Done, off: c.clock.off, offOK: c.clock.ok,
		path: s.Path, traceParent: s.TraceParent, traceState: s.TraceState, body: s.Body, losses: c.losses,
	}
	if !c.opt.Content.span() && !c.opt.Content.event() {
		x.body.Messages = ""
	}
	c.exs.push(x)
	e.exchanges[s.Exchange] = x
	if s.RequestID != "" && !op.ownID {
		x.announced = op.idPrefix + s.RequestID
		e.byID[x.announced] = append(e.byID[x.announced], x)
		c.claimKnown(x, x.announced)
	}
}

func (c *Correlator) exchangeFirst(s *signal.ExchangeFirst) {
	x := c.engine(s.Exchange.Engine).exchanges[s.Exchange]
	if x == nil || x.ended {
		return
	}
	x.first, x.status = s.At, s.Status
	c.learnID(x, s.ResponseID)
}

func (c *Correlator) exchangeEnd(s *signal.ExchangeEnd) {
	x := c.engine(s.Exchange.Engine).exchanges[s.Exchange]
	if x == nil || x.ended {
		return
	}
	if s.First != 0 {
		x.first = s.First
	}
	if s.Status != 0 {
		x.status = s.Status
	}
	x.streamed, x.model, x.input, x.output = s.Streamed, s.Model, s.InputTokens, s.OutputTokens
	x.cached, x.toolCalls, x.calls = s.CachedTokens, s.ToolCalls, slices.Clone(s.Calls)
	x.finish = slices.Clone(s.FinishReasons)
	x.errType, x.errMessage, x.gap = s.ErrorType, s.ErrorMessage, s.Gap
	if c.opt.Content.span() || c.opt.Content.event() {
		x.content = s.Content
	} else {
		x.errMessage = ""
	}
	c.learnID(x, s.ResponseID)
	x.end(s.At, s.Outcome)
	c.exchangeEnded(x)
}

func (x *exchange) end(at signal.Mono, o signal.Outcome) {
	x.ended, x.endAt, x.outcome = true, max(at, x.begin), o
}

// exchangeEnded exports x as soon as its requests allow it.
func (c *Correlator) exchangeEnded(x *exchange) {
	c.ended = append(c.ended, x)
	c.tryEmit(x)
	c.releaseHeld()
}

// learnID notes the response id and takes the requests that have it.
func (c *Correlator) learnID(x *exchange, id string) {
	if id == "" || x.resp == id {
		return
	}
	e := x.eng
	if x.resp != "" {
		e.dropID(x.resp, x)
	}
	x.resp = id
	if x.announced != id {
		e.byID[id] = append(e.byID[id], x)
	}
	c.claimKnown(x, id)
	c.releaseHeld()
}

func (e *engine) dropID(id string, x *exchange) {
	list := e.byID[id]
	if i := slices.Index(list, x); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(e.byID, id)
	} else {
		e.byID[id] = list
	}
}

// forgetExchange drops x from all state.
func (c *Correlator) forgetExchange(x *exchange) {
	c.exs.remove(x)
	e := x.eng
	if e.exchanges[x.key] == x {
		delete(e.exchanges, x.key)
	}
	if x.resp != "" {
		e.dropID(x.resp, x)
	}
	if x.announced != "" {
		e.dropID(x.announced, x)
	}
	if i := slices.Index(c.ended, x); i >= 0 {
		c.ended = slices.Delete(c.ended, i, i+1)
	}
}

// tryEmit exports x if it is over and nothing more is to be expected for it.
func (c *Correlator) tryEmit(x *exchange) {
	if !x.live || !x.ended {
		return
	}
	age := c.now - x.endAt
	if len(x.reqs) == 0 && x.left == 0 && x.mayHaveRequests() {
		wait := reorderWait
		if x.outcome == signal.OutcomeDisconnect {
			wait = abortWait
		}
		c.claimByOrder(x, age >= wait)
		if len(x.reqs) == 0 && age < wait && (x.eng.seen.Requests || x.eng.seen.Outputs) {
			return
		}
	}
	for i := 0; i < len(x.reqs); i++ {
		r := x.reqs[i]
		if r.done && !r.waiting {
			if c.awaitsText(r) {
				return
			}
			continue
		}
		seen := max(x.endAt, r.added, r.lastSend)
		if r.waiting || c.now-seen < silenceWait {
			return
		}
		c.endRequest(r, endLost, max(r.added, r.lastSend))
		if !x.live {
			return
		}
	}
	c.emitExchange(x)
}

// mayHaveRequests: not refused before it reached the engine.
func (x *exchange) mayHaveRequests() bool { return x.status < 400 || x.status >= 500 }

// parent of the entry span, from the client's traceparent.
func (x *exchange) context() (t trace.TraceID, p trace.SpanID, remote bool) {
	if t, p, ok := parseTraceparent(x.traceParent); ok {
		return t, p, true
	}
	return x.facts().traceID(), p, false
}

// facts identify an exchange. The wall time tells hosts and boots apart.
func (x *exchange) facts() *facts {
	var f facts
	return f.str("exchange").num(uint64(int64(x.begin) + x.off)).num(uint64(x.key.PID)).num(x.key.Conn).num(uint64(x.key.Seq))
}
