package httptap

import (
	"bytes"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// write hands on the parts of responses that b has.
func (t *tap) write(c *conn, b []byte) {
	s := &c.wr
	record := b
	if s.state != atHead && len(c.pending) > 0 {
		x := c.pending[0]
		unsure := s.state == astray || x.resp.lost() && !x.resp.resync(b)
		if unsure && wholeHead(b, false) {
			if x.responded && len(c.pending) > 1 {
				// The server answers in order: the end of the answer before
				// this one is among the bytes not seen.
				t.end(c, x, signal.OutcomeComplete, x.last)
			}
			if !c.pending[0].responded {
				s.state = atHead
			}
		}
	}
	for len(b) > 0 && c.ignored == reasonNone {
		switch s.state {
		case atHead:
			b = t.writeHead(c, b)
		case inBody:
			b = t.writeBody(c, b, record)
		case astray:
			t.sink.stray(c, event.HTTPWrite, b)
			return
		}
	}
	if len(b) > 0 {
		t.sink.stray(c, event.HTTPWrite, b)
	}
}

func (t *tap) writeHead(c *conn, b []byte) []byte {
	if len(c.wr.buf) == 0 {
		if len(c.pending) == 0 {
			t.count[reasonOrphan]++
			c.wr.state = astray
			return b
		}
		if !beginsResponse(b) {
			t.ignore(c, reasonHead)
			return b
		}
		c.wr.began = t.now
	}
	whole, rest, ok := t.gather(c, event.HTTPWrite, b)
	if !ok || whole == nil {
		return rest
	}
	h := &t.h
	if !h.parse(whole, false) {
		t.ignore(c, reasonHead)
		return rest
	}
	size := len(whole)
	if h.status < 200 && h.status != 101 {
		c.wr.drop()
		return rest // interim: the final response follows
	}
	x := c.pending[0]
	x.responded, x.status, x.bytes = true, h.status, int64(size)
	x.first, x.last = c.wr.began, t.now
	t.sink.response(c, x, h)
	c.wr.drop()
	if h.status == 101 || x.connect && h.status < 300 {
		t.end(c, x, signal.OutcomeComplete, t.now)
		t.ignore(c, reasonUpgraded)
		return rest
	}
	switch {
	case x.headOnly || h.status == 204 || h.status == 304:
	case h.chunked:
		x.resp = framing{kind: bodyChunked}
	case h.length >= 0:
		x.resp = lengthFraming(h.length)
	default:
		x.resp = framing{kind: bodyClose}
	}
	c.wr.state = inBody
	if x.resp.kind == bodyNone {
		t.end(c, x, signal.OutcomeComplete, t.now)
	}
	return rest
}

func (t *tap) writeBody(c *conn, b, record []byte) []byte {
	x := c.pending[0]
	x.last = t.now
	n, kind, done := x.resp.next(b)
	if n == 0 && x.resp.lost() {
		x.gap = true
		x.bytes += int64(len(b))
		t.body(x)
		t.sink.lost(c, x, event.HTTPWrite, b)
		if x.foreign {
			return t.endForeign(c, x, nil)
		}
		// The same sign by which the BPF program tells the end of a response.
		if bytes.HasSuffix(record, []byte("0\r\n\r\n")) {
			t.end(c, x, signal.OutcomeComplete, t.now)
		}
		return nil
	}
	x.bytes += int64(n)
	switch kind {
	case spanBody:
		t.body(x)
		t.sink.responseBody(c, x, b[:n])
		if x.foreign {
			return t.endForeign(c, x, b[n:])
		}
	case spanExtra:
		t.sink.stray(c, event.HTTPWrite, b[:n])
	}
	if done {
		t.end(c, x, signal.OutcomeComplete, t.now)
	}
	return b[n:]
}

// endForeign ends a response whose end was in the latest gap: what came after it
// turned out to belong to another one, whose request was lost.
func (t *tap) endForeign(c *conn, x *exchange, rest []byte) []byte {
	x.last, x.chunks, x.bytes = x.before.last, x.before.chunks, x.before.bytes
	t.end(c, x, signal.OutcomeComplete, x.last)
	c.wr.state = astray
	return rest
}

// body counts the writes with bytes of a body; the records of one write share a time.
func (t *tap) body(x *exchange) {
	if x.call != t.now {
		x.call = t.now
		x.chunks++
	}
}
