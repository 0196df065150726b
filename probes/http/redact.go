package httptap

import (
	"bytes"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// Redactor blanks what users wrote and models answered in the bodies of HTTP
// messages, in place and without changing lengths, so that recordings can be
// shared. Of JSON bodies and events it keeps what the grammar of fields names:
// keys, and values such as the model, ids, roles, parameters and token counts.
// Every other byte of a string becomes 'x' and every other number 0 with spaces
// after it. Other bodies, and all that has no known place after a gap, become 'x'
// altogether, so that a parser finds less there than in the original.
//
// Of heads it keeps the path and the values of the headers that a parser needs or
// that describe the software; all others become 'x', as do the values of query
// parameters.
//
// It must see the records of a connection in order.
type Redactor struct{ tap tap }

// NewRedactor returns a Redactor that has seen nothing yet.
func NewRedactor() *Redactor {
	r := new(Redactor)
	r.tap = newTap(r)
	return r
}

// Put blanks a record of kind HTTP; others are left alone.
func (r *Redactor) Put(rec *event.Record) { r.tap.put(rec) }

func (r *Redactor) open(*conn) bool                              { return true }
func (r *Redactor) requestEnd(*conn, *exchange)                  {}
func (r *Redactor) end(*conn, *exchange, signal.Outcome, uint64) {}
func (r *Redactor) stray(_ *conn, _ uint8, b []byte)             { fill(b) }
func (r *Redactor) requestBody(_ *conn, x *exchange, b []byte)   { x.blank[0].feed(b) }
func (r *Redactor) responseBody(_ *conn, x *exchange, b []byte)  { x.blank[1].feed(b) }

// sharedHeaders are those whose values may be shared.
var sharedHeaders = map[string]bool{
	"accept": true, "accept-encoding": true, "accept-language": true, "allow": true, "cache-control": true, "connection": true,
	"content-encoding": true, "content-length": true, "content-type": true, "date": true, "expect": true, "host": true,
	"keep-alive": true, "retry-after": true, "server": true, "te": true, "traceparent": true, "tracestate": true,
	"trailer": true, "transfer-encoding": true, "upgrade": true, "user-agent": true, "vary": true, "x-request-id": true,
}

var sharedOnly = headRule{
	header: func(name []byte) bool { return !sharedHeaders[string(name)] },
	param:  func([]byte) bool { return true },
}

func (r *Redactor) headBytes(c *conn, dir uint8, b []byte, first bool) {
	st := c.scrubber(dir)
	if first {
		st.begin(dir)
	}
	st.scrub(b, &sharedOnly)
}

// headGap: what comes next may belong to a value.
func (r *Redactor) headGap(c *conn, dir uint8) { c.scrubber(dir).at = scrubSecret }

func (r *Redactor) request(c *conn, x *exchange, h *head) {
	c.scrub[0] = scrubState{}
	x.blank[0].start(h)
}

func (r *Redactor) response(c *conn, x *exchange, h *head) {
	c.scrub[1] = scrubState{}
	x.blank[1].start(h)
}

func (r *Redactor) gap(_ *conn, x *exchange, dir uint8, _ uint64, _ uint32) {
	if dir == event.HTTPRead {
		x.blank[0].kind = blankAll
	} else {
		x.blank[1].lose()
	}
}

func (r *Redactor) lost(_ *conn, x *exchange, dir uint8, b []byte) {
	// The end of a response is recognised by this; it tells nothing.
	if bytes.HasSuffix(b, []byte("0\r\n\r\n")) {
		b = b[:len(b)-5]
	}
	if dir == event.HTTPRead {
		x.blank[0].kind = blankAll
		fill(b)
		return
	}
	if x.blank[1].kind == blankJSON {
		x.blank[1].kind = blankAll
	}
	x.blank[1].feed(b)
}

func fill(b []byte) {
	for i := range b {
		b[i] = 'x'
	}
}

// blanker blanks one body.
type blanker struct {
	kind blankKind
	json jsonBlanker
	line lineBlanker
}

type blankKind uint8

const (
	blankAll blankKind = iota
	blankJSON
	blankEvents
)

func (k *blanker) start(h *head) {
	k.json.reset()
	k.line = lineBlanker{}
	switch {
	case len(h.contentEncoding) > 0:
		k.kind = blankAll
	case containsFold(h.contentType, "text/event-stream"):
		k.kind = blankEvents
	case len(h.contentType) == 0 || containsFold(h.contentType, "json"):
		k.kind = blankJSON
	default:
		k.kind = blankAll
	}
}

func (k *blanker) feed(b []byte) {
	switch k.kind {
	case blankJSON:
		k.json.feed(b)
	case blankEvents:
		k.events(b)
	default:
		fill(b)
	}
}

func (k *blanker) lose() {
	if k.kind == blankJSON {
		k.kind = blankAll
	}
	k.json.reset()
	k.line = lineBlanker{}
}

// lineBlanker is where in the lines of an event stream a body is.
type lineBlanker struct {
	at    linePlace
	from  int // prefixes that still match: a range of one of the lists below
	to    int
	n     int // bytes of the prefix
	cr    bool
	data  bool // the event has data already
	fresh bool // no byte of the data was seen yet
}

type linePlace uint8

const (
	lineField linePlace = iota
	lineData
	lineDone // data that begins like [DONE]
	lineEvent
	lineOther // of no known field: blanked
)

// lineFields and eventNames are sorted.
var (
	lineFields = []string{"data:", "event:"}
	eventNames = []string{
		"content_block_delta", "content_block_start", "content_block_stop", "error",
		"message_delta", "message_start", "message_stop", "ping",
		"response.completed", "response.content_part.added", "response.content_part.done", "response.created",
		"response.failed", "response.function_call_arguments.delta", "response.function_call_arguments.done",
		"response.in_progress", "response.incomplete", "response.output_item.added", "response.output_item.done",
		"response.output_text.delta", "response.output_text.done", "response.reasoning_part.added",
		"response.reasoning_part.done", "response.reasoning_text.delta", "response.reasoning_text.done",
	}
)

// narrow keeps of the sorted list[from:to], all of which have n bytes in common
// with what was read, those that go on with c.
func narrow(list []string, from, to, n int, c byte) (int, int) {
	for from < to && (len(list[from]) <= n || list[from][n] < c) {
		from++
	}
	end := from
	for end < to && len(list[end]) > n && list[end][n] == c {
		end++
	}
	return from, end
}

func (k *blanker) events(b []byte) {
	l := &k.line
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c == '\n' || c == '\r' {
			if c == '\n' && l.cr {
				l.cr = false
				continue
			}
			l.cr = c == '\r'
			if l.at == lineField && l.n == 0 {
				k.json.reset() // an empty line ends the event
				l.data = false
			}
			l.at, l.n = lineField, 0
			continue
		}
		l.cr = false
		switch l.at {
		case lineField:
			if l.n == 0 {
				l.from, l.to = 0, len(lineFields)
			}
			l.from, l.to = narrow(lineFields, l.from, l.to, l.n, c)
			if l.from == l.to {
				l.at = lineOther
				b[i] = 'x'
				continue
			}
			if l.n++; l.n < len(lineFields[l.from]) {
				continue
			}
			l.n = 0
			if lineFields[l.from] == "event:" {
				l.at, l.from, l.to = lineEvent, 0, len(eventNames)
				continue
			}
			if l.data {
				k.json.feed([]byte{'\n'})
			}
			l.at, l.fresh = lineData, !l.data
			l.data = true
		case lineData:
			if c == ' ' && l.fresh {
				continue
			}
			if c == '[' && l.fresh {
				l.at, l.n = lineDone, 1
				continue
			}
			l.fresh = false
			k.json.feed(b[i : i+1])
		case lineDone:
			if l.n >= len(sseDone) || sseDone[l.n] != c {
				b[i] = 'x'
				l.n = len(sseDone)
				continue
			}
			l.n++
		case lineEvent:
			if c == ' ' && l.n == 0 {
				continue
			}
			if l.from, l.to = narrow(eventNames, l.from, l.to, l.n, c); l.from == l.to {
				b[i] = 'x'
			}
			l.n++
		default:
			b[i] = 'x'
		}
	}
}

// jsonBlanker blanks one document. It reads like scanner, but judges every byte
// before it knows what follows: of a key it keeps what can still become a key of
// the grammar.
type jsonBlanker struct {
	state scanState
	inKey bool
	hex   uint8
	num   numState
	lit   string
	cur   node // of the value being read
	keep  int  // bytes of the scalar that may still be kept
	stack []level
	from  int // members that still match the key
	to    int
	n     int // bytes of the key
}

func (s *jsonBlanker) reset() { *s = jsonBlanker{stack: s.stack[:0], cur: nodeRoot} }

func (s *jsonBlanker) feed(b []byte) {
	for i := 0; i < len(b); {
		c := b[i]
		ok := true
		switch s.state {
		case scanString, scanEscape, scanHex:
			ok = s.text(&b[i])
		case scanNumber:
			n, more := s.num.step(c)
			if !more {
				if s.num.whole() {
					s.after()
					continue
				}
				ok = false
				break
			}
			s.num = n
			s.digit(&b[i])
		case scanLiteral:
			if ok = c == s.lit[0]; ok {
				if s.lit = s.lit[1:]; s.lit == "" {
					s.after()
				}
			}
		case scanBad:
			ok = false
		default:
			if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
				ok = s.structure(&b[i])
			}
		}
		if !ok {
			s.state = scanBad
			b[i] = 'x'
		}
		i++
	}
}

// text handles a byte of a string or key.
func (s *jsonBlanker) text(p *byte) bool {
	c := *p
	switch {
	case s.state == scanEscape:
		if !isEscape(c) {
			return false
		}
		s.state = scanString
		if c == 'u' {
			s.state, s.hex = scanHex, 4
		}
	case s.state == scanHex:
		if _, ok := hexValue(c); !ok {
			return false
		}
		if s.hex--; s.hex == 0 {
			s.state = scanString
		}
	case c < 0x20:
		return false
	case c == '"':
		if !s.inKey {
			s.after()
			return true
		}
		s.state, s.cur = scanColon, nodeNone
		m := s.members()
		// Of the keys that match, the shortest comes first.
		if s.from < s.to && len(m[s.from].key) == s.n {
			s.cur = m[s.from].n
		}
		return true
	case c == '\\':
		s.state = scanEscape
		if s.keep < len(`\u0000`) {
			s.keep = 0 // an escape is kept whole or not at all
		}
	}
	if s.inKey {
		m := s.members()
		for s.from < s.to && (len(m[s.from].key) <= s.n || m[s.from].key[s.n] < c) {
			s.from++
		}
		end := s.from
		for end < s.to && m[end].key[s.n] == c {
			end++
		}
		s.to = end
		s.n++
		if s.from == s.to {
			*p = 'x'
		}
		return true
	}
	if s.keep--; s.keep < 0 {
		*p = 'x'
	}
	return true
}

func (s *jsonBlanker) members() []member { return grammar[s.stack[len(s.stack)-1].n].members }

func (s *jsonBlanker) digit(p *byte) {
	if grammar[s.cur].keep&keepNumber == 0 {
		*p = ' '
	}
}

func (s *jsonBlanker) structure(p *byte) bool {
	c := *p
	switch s.state {
	case scanElem, scanValue:
		if c == ']' && s.state == scanElem {
			return s.pop(true)
		}
		if s.state == scanElem {
			s.cur = s.element()
		}
		return s.value(p)
	case scanKeyFirst, scanKey:
		if c == '}' && s.state == scanKeyFirst {
			return s.pop(false)
		}
		s.state, s.inKey, s.n = scanString, true, 0
		s.from, s.to = 0, len(s.members())
		return c == '"'
	case scanColon:
		s.state = scanValue
		return c == ':'
	case scanAfter:
		top := s.stack[len(s.stack)-1]
		switch {
		case c == ',' && top.array:
			s.cur, s.state = s.element(), scanValue
		case c == ',':
			s.state = scanKey
		default:
			return (c == ']' || c == '}') && s.pop(c == ']')
		}
		return true
	}
	return false
}

func (s *jsonBlanker) element() node { return grammar[s.stack[len(s.stack)-1].n].elem }

func (s *jsonBlanker) value(p *byte) bool {
	c := *p
	switch c {
	case '{', '[':
		if len(s.stack) >= maxDepth {
			return false
		}
		n := s.cur
		if grammar[n].array != (c == '[') {
			n = nodeNone
		}
		s.stack = append(s.stack, level{n, c == '['})
		s.state = scanKeyFirst
		if c == '[' {
			s.state = scanElem
		}
	case '"':
		s.state, s.inKey, s.keep = scanString, false, 0
		if grammar[s.cur].keep&keepWord != 0 {
			s.keep = maxWord
		}
	case 't':
		s.state, s.lit = scanLiteral, "rue"
	case 'f':
		s.state, s.lit = scanLiteral, "alse"
	case 'n':
		s.state, s.lit = scanLiteral, "ull"
	default:
		n, ok := numStart(c)
		if !ok {
			return false
		}
		s.state, s.num = scanNumber, n
		if grammar[s.cur].keep&keepNumber == 0 {
			*p = '0'
		}
	}
	return true
}

func (s *jsonBlanker) pop(array bool) bool {
	top := s.stack[len(s.stack)-1]
	if top.array != array {
		return false
	}
	s.stack = s.stack[:len(s.stack)-1]
	s.after()
	return true
}

func (s *jsonBlanker) after() {
	s.state = scanAfter
	if len(s.stack) == 0 {
		s.state = scanDone
	}
}
