package httptap

import (
	"bytes"
	"strings"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// Options of a Parser.
type Options struct {
	// Content asks for prompts and completions. They are given only where all of
	// the body was seen and it is no longer than MaxBody.
	Content bool
	// MaxBody is how many bytes of a JSON body are read, 0 for 256 KiB. Fields
	// beyond are unknown.
	MaxBody int
}

const (
	defaultMaxBody = 256 << 10
	// maxContent bounds the bytes of contents held at a time over all
	// connections; beyond it, contents are left out.
	maxContent = 32 << 20
	// maxTail bounds the end of a cut document that is searched for usage. The
	// BPF program keeps at most 1 KiB of a late write.
	maxTail = 4 << 10
)

// Parser turns HTTP records into signal.ExchangeBegin, ExchangeFirst and
// ExchangeEnd, one of each at most per request, in this order. Every request
// with a readable head becomes an exchange, whatever its path; bodies are read
// only for POST requests with JSON to the paths of inference APIs.
//
//   - A request whose head was not seen whole is no exchange, nor are the bytes
//     of a connection that was open before, up to the first whole request head
//     at the start of a read.
//   - ExchangeBegin comes when the request was read, and before that if the
//     response begins or the connection ends (then Done is 0).
//   - ExchangeFirst comes when the status and the response id are known, or when
//     it is clear that there is no id. Interim responses (100) do not count.
//   - Chunks counts the write calls that moved bytes of the body: those copied,
//     without the ones that moved only a head or chunk framing, and all those
//     that the kernel only counted. With vLLM that is one per event, [DONE]
//     included. With Gap it can miss calls and count some that were framing only.
//   - Bytes counts the final response as it is on the wire, with head and framing.
//   - FinishReasons lists the reasons that were seen, in the order of the choices.
//     The Responses API has none: there it is the reason of incomplete_details, or
//     else the status.
//   - An upgrade (101) or tunnel (CONNECT) is complete at the head of its
//     response; what follows on the connection is ignored.
//   - A response without a length that the server ends by closing is complete.
//     When the server went on to the next response of the connection, the one
//     before was complete, even if its end was not seen (Gap is set).
//   - Seq counts from 0 on a connection that was followed from its beginning; on
//     others it begins at any number, so that no two exchanges share a name.
//   - OutcomeDetached also ends exchanges on a connection that was given up:
//     there is no room for it, or what it carries is not HTTP/1.
type Parser struct {
	tap      tap
	opts     Options
	engineOf func(pid uint32) (signal.EngineID, bool)
	emit     func(signal.Signal)
	held     int // bytes of contents held
	spare    []*parsed

	begin signal.ExchangeBegin
	first signal.ExchangeFirst
	last  signal.ExchangeEnd
}

// parsed is what the parser knows about an exchange.
type parsed struct {
	p     *Parser
	id    signal.Exchange
	begin signal.ExchangeBegin
	begun bool
	first bool // ExchangeFirst was sent
	api   api

	json     scanner
	readBody bool // the body is JSON that we read
	req      requestFields
	seen     int64 // bytes of the request's body
	reqText  text

	kind     respKind
	respSeen int
	cut      bool // the document has a gap
	over     bool // longer than MaxBody
	resp     responseFields
	events   sse
	tail     []byte // end of a cut document
	sawEvent bool
	gap      bool // events are missing
	blind    bool // events are no longer believed
	foreign  bool // events of another response came
	respText text
	out      output
}

type respKind uint8

const (
	respOther respKind = iota
	respJSON
	respEvents
)

// text is content that is kept.
type text struct {
	b   []byte
	off bool // not wanted, or given up
}

// New returns a Parser that asks engineOf once per connection to which engine a
// process belongs; connections of others are left out.
func New(o Options, engineOf func(pid uint32) (signal.EngineID, bool)) *Parser {
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	p := &Parser{opts: o, engineOf: engineOf}
	p.tap = newTap(p)
	return p
}

// Put takes a record of kind HTTP, or an exit, which ends the exchanges of its
// process; others are ignored. Signals given to emit are valid during the call.
func (p *Parser) Put(r *event.Record, emit func(signal.Signal)) {
	p.emit = emit
	p.tap.put(r)
	p.emit = nil
}

// Detach ends all exchanges in flight with OutcomeDetached.
func (p *Parser) Detach(at signal.Mono, emit func(signal.Signal)) {
	p.emit = emit
	p.tap.now = uint64(at)
	p.tap.forgetAll(func(*conn) bool { return true }, signal.OutcomeDetached)
	p.emit = nil
}

// Dropped gives what did not become an exchange, or not fully, by reason: totals,
// in a fixed order, without those that are 0.
func (p *Parser) Dropped() []signal.LossCount {
	var l []signal.LossCount
	for i, n := range p.tap.count {
		if n > 0 {
			l = append(l, signal.LossCount{Reason: reasonNames[i], N: n})
		}
	}
	return l
}

func (p *Parser) open(c *conn) bool {
	id, ok := p.engineOf(c.pid)
	c.engine = id
	return ok
}

func (p *Parser) headBytes(*conn, uint8, []byte, bool) {}
func (p *Parser) headGap(*conn, uint8)                 {}
func (p *Parser) stray(*conn, uint8, []byte)           {}

func (p *Parser) request(c *conn, x *exchange, h *head) {
	q := p.newParsed()
	x.parsed = q
	q.id = signal.Exchange{Engine: c.engine, PID: c.pid, Conn: c.id, Seq: x.seq}
	path := h.target
	if i := bytes.IndexByte(path, '?'); i >= 0 {
		path = path[:i]
	}
	if i := bytes.Index(path, []byte("://")); i > 0 && path[0] != '/' {
		path = path[i+3:] // absolute form, as sent to a proxy
		if j := bytes.IndexByte(path, '/'); j >= 0 {
			path = path[j:]
		} else {
			path = []byte("/")
		}
	}
	q.begin = signal.ExchangeBegin{
		At: signal.Mono(x.at), Exchange: q.id,
		Method: string(h.method), Path: string(path),
		TraceParent: string(h.traceParent), TraceState: string(h.traceState), RequestID: string(h.requestID),
		UserAgent: string(h.userAgent), Host: string(h.host), ContentType: string(h.contentType),
		LocalPort: c.lport, RemotePort: c.rport, Midstream: c.midstream,
	}
	if q.begin.Method == "POST" {
		q.api = apiOf(q.begin.Path)
	}
	q.readBody = q.api != apiNone && len(h.contentEncoding) == 0 &&
		(len(h.contentType) == 0 || containsFold(h.contentType, "json"))
	q.reqText.off = !p.opts.Content || !q.readBody
}

func (p *Parser) requestBody(_ *conn, x *exchange, b []byte) {
	q := x.parsed
	if q == nil || q.begun {
		return
	}
	q.seen += int64(len(b))
	if !q.readBody || q.begin.Body.Truncated {
		return
	}
	if room := int64(p.opts.MaxBody) - (q.seen - int64(len(b))); int64(len(b)) > room {
		b = b[:max(room, 0)]
		q.begin.Body.Truncated = true
	}
	q.json.feed(b, &q.req)
	p.keep(&q.reqText, b)
}

func (p *Parser) requestEnd(_ *conn, x *exchange) {
	if q := x.parsed; q != nil {
		q.begin.Done = signal.Mono(x.done)
		p.sendBegin(x)
	}
}

func (p *Parser) sendBegin(x *exchange) {
	q := x.parsed
	if q.begun {
		return
	}
	q.begun = true
	body := signal.RequestBody{}
	if q.readBody {
		q.json.finish(&q.req)
		body = q.req.body(q.api)
		body.Truncated = q.begin.Body.Truncated
		body.Parsed = q.json.complete() && !body.Truncated
		q.resp.single = body.Parsed && body.N.V <= 1 && body.Inputs == 1
		if body.Parsed && !q.reqText.off {
			body.Messages = inputMessages(q.api, q.reqText.b)
		}
	}
	p.discard(&q.reqText)
	q.begin.BodyBytes = q.seen
	q.begin.Body = body
	p.begin = q.begin
	p.emit(&p.begin)
	q.begin.Body.Messages = ""
}

func (p *Parser) response(_ *conn, x *exchange, h *head) {
	q := x.parsed
	p.sendBegin(x)
	q.kind = respOther
	switch {
	case x.headOnly || len(h.contentEncoding) > 0:
	case containsFold(h.contentType, "text/event-stream"):
		q.kind = respEvents
	case q.api != apiNone && containsFold(h.contentType, "json"):
		q.kind = respJSON
	}
	single := q.resp.single
	q.resp.reset(q.api, q.kind == respEvents)
	q.resp.single = single
	q.json.reset()
	q.events.reset()
	q.respText.off = !p.opts.Content || q.api == apiNone || q.kind == respOther
	if q.kind == respOther || h.status == 204 || h.status == 304 || h.length == 0 {
		p.sendFirst(x)
	}
}

func (p *Parser) sendFirst(x *exchange) {
	q := x.parsed
	if q.first {
		return
	}
	q.first = true
	p.first = signal.ExchangeFirst{At: signal.Mono(x.first), Exchange: q.id, Status: x.status, ResponseID: q.responseID()}
	p.emit(&p.first)
}

func (q *parsed) responseID() string {
	if q.resp.id == "" && q.kind == respJSON {
		return q.resp.d.id
	}
	return q.resp.id
}

func (p *Parser) responseBody(_ *conn, x *exchange, b []byte) {
	q := x.parsed
	switch q.kind {
	case respEvents:
		if q.foreign {
			return
		}
		q.events.feed(b, q)
		x.foreign = q.foreign
		if q.resp.id != "" || q.sawEvent {
			p.sendFirst(x)
		}
	case respJSON:
		if q.cut {
			q.keepTail(b)
			return
		}
		q.respSeen += len(b)
		if q.over {
			q.keepTail(b)
			return
		}
		if room := p.opts.MaxBody - (q.respSeen - len(b)); len(b) > room {
			q.over = true
			q.keepTail(b[room:])
			b = b[:room]
		}
		q.json.feed(b, &q.resp)
		p.keep(&q.respText, b)
		if q.resp.d.id != "" {
			p.sendFirst(x)
		}
	}
}

func (p *Parser) gap(_ *conn, x *exchange, dir uint8, n uint64, calls uint32) {
	q := x.parsed
	if q == nil {
		return
	}
	if dir == event.HTTPRead {
		q.seen += int64(n)
		q.begin.Body.Truncated = true
		return
	}
	q.respText.off = true
	switch q.kind {
	case respEvents:
		q.events.lose(q)
		// What follows can be the answer to another request, if records of all
		// that is between were lost: it is believed if it has the id known
		// before. Events of the Messages API have none.
		q.gap = true
		q.blind = q.blind || q.resp.id == "" || q.api == apiMessages && calls == 0
	case respJSON:
		q.cut = true
		q.tail = q.tail[:0]
	}
}

// lost: the bytes have chunk framing among them. Around events it looks like
// lines of no interest; within one it spoils the JSON, and the event is dropped.
func (p *Parser) lost(c *conn, x *exchange, dir uint8, b []byte) {
	if dir == event.HTTPRead {
		if q := x.parsed; q != nil {
			q.begin.Body.Truncated = true
		}
		return
	}
	q := x.parsed
	q.respText.off = true
	if q.kind == respJSON {
		q.cut = true
	}
	p.responseBody(c, x, b)
}

func (p *Parser) end(_ *conn, x *exchange, o signal.Outcome, at uint64) {
	q := x.parsed
	p.sendBegin(x)
	all := o == signal.OutcomeComplete && !x.gap && !q.over
	if x.responded {
		if q.kind == respJSON {
			if q.cut || q.over {
				q.resp.commit(false)
				q.resp.suffix(&q.json, q.tail)
			} else {
				q.json.finish(&q.resp)
				all = all && q.json.complete()
				q.resp.commit(q.json.complete())
			}
		}
		p.sendFirst(x)
	}
	e := &p.last
	*e = signal.ExchangeEnd{
		At: signal.Mono(at), Exchange: q.id, First: signal.Mono(x.first), Outcome: o, Status: x.status,
		Streamed: q.kind == respEvents, Chunks: x.chunks, Bytes: x.bytes, Gap: x.gap,
		FinishReasons: e.FinishReasons[:0], Calls: e.Calls[:0],
	}
	if q.kind != respOther {
		r := &q.resp
		e.ResponseID, e.Model = r.id, r.model
		e.InputTokens, e.OutputTokens, e.CachedTokens = r.input, r.output, r.cached
		e.ToolCalls = r.toolCalls(all && r.errType == "")
		whole := all && !q.respText.off && r.errType == ""
		for _, c := range r.calls {
			call := signal.ToolCall{Choice: c.choice, Index: c.index, Name: c.name}
			if p.opts.Content && whole {
				call.Arguments = q.out.arguments(c.choice, c.index)
			}
			e.Calls = append(e.Calls, call)
		}
		e.ErrorType = r.errType
		for _, f := range r.finish {
			e.FinishReasons = append(e.FinishReasons, f.reason)
		}
		if p.opts.Content {
			e.ErrorMessage = r.errMessage
			if whole {
				e.Content = q.content()
			}
		}
	}
	reasons, calls := e.FinishReasons, e.Calls
	if len(reasons) == 0 {
		e.FinishReasons = nil
	}
	if len(calls) == 0 {
		e.Calls = nil
	}
	p.emit(e)
	e.FinishReasons, e.Calls = reasons, calls
	x.parsed = nil
	p.release(q)
}

// eventData, eventEnd and the rest get the events of a response.

func (q *parsed) eventData(b []byte) {
	q.json.feed(b, &q.resp)
	q.p.keep(&q.respText, b)
}

// choiceID: an id may be that of a choice of which no event was seen yet. SGLang gives each
// choice one of its own, hexadecimal digits; those that are of the response, as vLLM's,
// have a prefix.
func (q *parsed) choiceID(id string) bool {
	b := &q.begin.Body
	return b.Parsed && int64(len(q.resp.ids)) < max(b.N.V, 1)*max(b.Inputs, 1) && !strings.Contains(id+q.resp.id, "-")
}

func (q *parsed) eventEnd(done bool) {
	if id := q.resp.d.id; q.gap && id != "" && q.resp.id != "" && !q.resp.hasID(id) && !q.choiceID(id) {
		q.foreign = true
	}
	if !done && !q.blind && !q.foreign {
		q.json.finish(&q.resp)
		whole := q.json.complete()
		if !q.respText.off {
			if !whole || !q.out.event(q.api, q.respText.b, q.p) {
				q.respText.off = true
			}
		}
		q.resp.commit(whole)
		q.sawEvent = q.sawEvent || whole
	}
	q.p.trim(&q.respText)
	q.resp.drop()
	q.json.reset()
}

func (q *parsed) eventBroken() {
	q.resp.drop()
	q.json.reset()
	q.tail = q.tail[:0]
}

func (q *parsed) eventTail(b []byte) { q.keepTail(b) }

func (q *parsed) eventTailEnd() {
	if len(q.tail) > 0 && !q.blind && !q.foreign {
		q.resp.suffix(&q.json, q.tail)
		q.json.reset()
	}
	q.tail = q.tail[:0]
}

// keepTail keeps the last maxTail bytes of a document.
func (q *parsed) keepTail(b []byte) {
	if len(b) > maxTail {
		b = b[len(b)-maxTail:]
	}
	if n := len(q.tail) + len(b) - maxTail; n > 0 {
		q.tail = q.tail[:copy(q.tail, q.tail[n:])]
	}
	q.tail = append(q.tail, b...)
}

// keep appends content while there is room for it.
func (p *Parser) keep(t *text, b []byte) {
	if t.off {
		return
	}
	if p.held+len(b) > maxContent || len(t.b)+len(b) > p.opts.MaxBody {
		p.tap.count[reasonContent]++
		p.discard(t)
		t.off = true
		return
	}
	t.b = append(t.b, b...)
	p.held += len(b)
}

// trim empties the text, discard also gives its memory back.
func (p *Parser) trim(t *text) {
	p.held -= len(t.b)
	t.b = t.b[:0]
}

func (p *Parser) discard(t *text) {
	p.held -= len(t.b)
	t.b = nil
}

func (p *Parser) newParsed() *parsed {
	if n := len(p.spare); n > 0 {
		q := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return q
	}
	q := &parsed{p: p}
	q.json.reset()
	return q
}

func (p *Parser) release(q *parsed) {
	p.discard(&q.reqText)
	p.discard(&q.respText)
	p.held -= q.out.size
	if len(p.spare) >= maxOpen {
		return
	}
	q.resp.reset(apiNone, false)
	q.json.reset()
	q.events.reset()
	*q = parsed{p: p, json: q.json, resp: q.resp, events: q.events, tail: q.tail[:0], req: requestFields{word: word{b: q.req.word.b[:0]}}}
	p.spare = append(p.spare, q)
}
