package httptap

import (
	"bytes"

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

const defaultMaxBody = 256 << 10

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
	contents budget
	spare    []*parsed

	begin signal.ExchangeBegin
	first signal.ExchangeFirst
	last  signal.ExchangeEnd
}

// parsed is what the parser knows about an exchange.
type parsed struct {
	id    signal.Exchange
	begin signal.ExchangeBegin
	begun bool
	first bool // ExchangeFirst was sent
	api   api

	// Of the request's body.
	readBody bool // it is JSON that we read
	json     scanner
	fields   requestFields
	seen     int64 // bytes
	text     text

	answer answer
}

// New returns a Parser that asks engineOf once per connection to which engine a
// process belongs; connections of others are left out.
func New(o Options, engineOf func(pid uint32) (signal.EngineID, bool)) *Parser {
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	p := &Parser{opts: o, engineOf: engineOf, contents: budget{each: o.MaxBody}}
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
	count := p.tap.count
	count[reasonContent] = p.contents.refused
	var l []signal.LossCount
	for i, n := range count {
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
	q.text.off = !p.opts.Content || !q.readBody
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
	q.json.feed(b, &q.fields)
	p.contents.keep(&q.text, b)
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
		q.json.finish(&q.fields)
		body = q.fields.body(q.api)
		body.Truncated = q.begin.Body.Truncated
		body.Parsed = q.json.complete() && !body.Truncated
		if body.Parsed && !q.text.off {
			body.Messages = inputMessages(q.api, q.text.b)
		}
	}
	p.contents.discard(&q.text)
	q.begin.BodyBytes = q.seen
	q.begin.Body = body
	p.begin = q.begin
	p.emit(&p.begin)
	q.begin.Body.Messages = ""
}

func (p *Parser) response(_ *conn, x *exchange, h *head) {
	q := x.parsed
	p.sendBegin(x)
	kind := answerKindOf(q.api, x.headOnly, h)
	q.answer.begin(kind, q.api, &q.begin.Body, p.opts.Content)
	if kind == answerOther || h.status == 204 || h.status == 304 || h.length == 0 {
		p.sendFirst(x)
	}
}

func (p *Parser) sendFirst(x *exchange) {
	q := x.parsed
	if q.first {
		return
	}
	q.first = true
	p.first = signal.ExchangeFirst{At: signal.Mono(x.first), Exchange: q.id, Status: x.status, ResponseID: q.answer.id()}
	p.emit(&p.first)
}

func (p *Parser) responseBody(_ *conn, x *exchange, b []byte) {
	x.parsed.answer.feed(b)
	p.answered(x)
}

// answered comes after bytes of the answer.
func (p *Parser) answered(x *exchange) {
	a := &x.parsed.answer
	x.foreign = a.foreign
	if a.identified() {
		p.sendFirst(x)
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
	q.answer.skip(calls)
}

func (p *Parser) lost(_ *conn, x *exchange, dir uint8, b []byte) {
	if dir == event.HTTPRead {
		if q := x.parsed; q != nil {
			q.begin.Body.Truncated = true
		}
		return
	}
	x.parsed.answer.lost(b)
	p.answered(x)
}

func (p *Parser) end(_ *conn, x *exchange, o signal.Outcome, at uint64) {
	q := x.parsed
	p.sendBegin(x)
	all := o == signal.OutcomeComplete && !x.gap
	if x.responded {
		all = q.answer.finish() && all
		p.sendFirst(x)
	}
	e := &p.last
	*e = signal.ExchangeEnd{
		At: signal.Mono(at), Exchange: q.id, First: signal.Mono(x.first), Outcome: o, Status: x.status,
		Streamed: q.answer.kind == answerEvents, Chunks: x.chunks, Bytes: x.bytes, Gap: x.gap,
		FinishReasons: e.FinishReasons[:0], Calls: e.Calls[:0],
	}
	q.answer.fill(e, all)
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

func (p *Parser) newParsed() *parsed {
	if n := len(p.spare); n > 0 {
		q := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return q
	}
	q := &parsed{answer: answer{contents: &p.contents, limit: p.opts.MaxBody}}
	q.json.reset()
	return q
}

func (p *Parser) release(q *parsed) {
	p.contents.discard(&q.text)
	q.answer.release()
	if len(p.spare) >= maxOpen {
		return
	}
	q.json.reset()
	*q = parsed{json: q.json, fields: requestFields{word: word{b: q.fields.word.b[:0]}}, answer: q.answer}
	p.spare = append(p.spare, q)
}
