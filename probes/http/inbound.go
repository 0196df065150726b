package httptap

import "inferspan/bpf/event"

// read hands on the parts of requests that b has.
func (t *tap) read(c *conn, b []byte) {
	s := &c.rd
	switch {
	case s.state == astray:
		if wholeHead(b, true) {
			s.state = atHead
		}
	case s.state == inBody && c.reading.req.lost() && !c.reading.req.resync(b):
		// Only after an answer can the next request follow.
		if (c.reading.responded || c.reading.ended) && wholeHead(b, true) {
			t.requestEnd(c, c.reading)
		}
	}
	for len(b) > 0 && c.ignored == reasonNone {
		switch s.state {
		case atHead:
			b = t.readHead(c, b)
		case inBody:
			b = t.readBody(c, b)
		case astray:
			t.sink.stray(c, event.HTTPRead, b)
			return
		}
	}
	if len(b) > 0 {
		t.sink.stray(c, event.HTTPRead, b)
	}
}

func (t *tap) readHead(c *conn, b []byte) []byte {
	if len(c.rd.buf) == 0 {
		n := 0
		for n < len(b) && (b[n] == '\r' || b[n] == '\n') {
			n++ // servers skip empty lines before a request
		}
		t.sink.headBytes(c, event.HTTPRead, b[:n], true)
		if b = b[n:]; len(b) == 0 {
			return nil
		}
		if !beginsRequest(b) {
			t.ignore(c, foreign(b))
			return b
		}
		c.rd.began = t.now
	}
	whole, rest, ok := t.gather(c, event.HTTPRead, b)
	if !ok || whole == nil {
		return rest
	}
	h := &t.h
	if !h.parse(whole, true) {
		t.ignore(c, reasonHead)
		return rest
	}
	if len(c.pending) >= maxOpen {
		t.ignore(c, reasonPipeline)
		return rest
	}
	x := t.newExchange()
	x.seq, x.at = c.seq, c.rd.began
	x.headOnly, x.connect = string(h.method) == "HEAD", string(h.method) == "CONNECT"
	switch {
	case h.chunked:
		x.req = framing{kind: bodyChunked}
	case h.length > 0:
		x.req = lengthFraming(h.length)
	}
	c.seq++
	c.pending = append(c.pending, x)
	c.reading = x
	c.rd.state = inBody
	t.sink.request(c, x, h)
	c.rd.drop()
	if x.req.kind == bodyNone {
		x.done = t.now
		t.requestEnd(c, x)
	}
	return rest
}

// gather collects a head over records. whole is nil until it is complete; ok is

func foreign(b []byte) reason {
	const preface = "PRI * HTTP/2.0"
	switch n := min(len(b), len(preface)); {
	case b[0] == 0x16: // TLS: a handshake record
		return reasonTLS
	case string(b[:n]) == preface[:n]:
		return reasonHTTP2
	}
	return reasonNotHTTP
}

func (t *tap) readBody(c *conn, b []byte) []byte {
	x := c.reading
	n, kind, done := x.req.next(b)
	switch {
	case n == 0 && x.req.lost():
		t.sink.lost(c, x, event.HTTPRead, b)
		return nil
	case kind == spanBody:
		t.sink.requestBody(c, x, b[:n])
	case kind == spanExtra:
		t.sink.stray(c, event.HTTPRead, b[:n])
	}
	if done {
		x.done = t.now
		t.requestEnd(c, x)
	}
	return b[n:]
}

func (t *tap) requestEnd(c *conn, x *exchange) {
	x.reqEnded = true
	c.reading = nil
	c.rd.state = atHead
	t.sink.requestEnd(c, x)
	t.release(x)
}
