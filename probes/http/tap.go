// Package httptap turns the socket calls of an HTTP/1 server into exchanges: one
// request with its response. It also takes secrets out of such records
// (Scrubber) and blanks what users wrote and models answered (Redactor).
//
// All three follow every connection byte by byte with the same machine (tap).
// Nothing here blocks, reads a clock or starts a goroutine; none of the types is
// safe for concurrent use.
package httptap

import (
	"bytes"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// reason says why bytes did not become an exchange.
type reason uint8

const (
	reasonNone     reason = iota
	reasonProcess         // of a process that belongs to no engine
	reasonTLS             // connections, from here on
	reasonHTTP2           //
	reasonNotHTTP         //
	reasonHead            // malformed or too long a head
	reasonUpgraded        // after 101 or CONNECT
	reasonPipeline        // more than maxOpen requests in flight
	reasonOrphan          // a response to no request that we saw
	reasonEvicted         // connections forgotten for lack of room
	reasonContent         // contents left out for lack of room
	numReasons
)

var reasonNames = [numReasons]string{
	"", "http_unknown_process", "http_tls", "http_http2", "http_not_http", "http_bad_head",
	"http_upgraded", "http_pipeline_full", "http_orphan_response", "http_conns_full", "http_content_full",
}

// sink gets the parts of the messages on all connections, in order. Slices alias
// the record: a sink may rewrite them in place.
type sink interface {
	// open is called for a connection's first record; false leaves it out.
	open(c *conn) bool
	// headBytes are bytes of a head, which may turn out not to be complete;
	// first is set for those it begins with.
	headBytes(c *conn, dir uint8, b []byte, first bool)
	// headGap: bytes are missing where a head was or may have been.
	headGap(c *conn, dir uint8)
	request(c *conn, x *exchange, h *head)
	requestBody(c *conn, x *exchange, b []byte)
	// requestEnd: the last byte was read at x.done, 0 if that is not known.
	requestEnd(c *conn, x *exchange)
	response(c *conn, x *exchange, h *head)
	responseBody(c *conn, x *exchange, b []byte)
	// gap: n bytes of the body were not seen, in calls socket calls; 0 if records
	// were lost, or a call was copied in part.
	gap(c *conn, x *exchange, dir uint8, n uint64, calls uint32)
	// lost are bytes of a chunked body after a gap, with their framing, to the end
	// of the record.
	lost(c *conn, x *exchange, dir uint8, b []byte)
	// stray are bytes that belong to no message, or to an unknown place in one.
	stray(c *conn, dir uint8, b []byte)
	// end comes once for each exchange.
	end(c *conn, x *exchange, o signal.Outcome, at uint64)
}

// tap follows connections and hands the parts of their messages to a sink.
type tap struct {
	sink           sink
	max            int
	conns          map[connKey]*conn
	newest, oldest *conn
	now            uint64
	seq            uint32 // above those of all connections forgotten
	count          [numReasons]uint64
	h              head
	spare          []*exchange
}

func newTap(s sink) tap {
	return tap{sink: s, max: maxConns, conns: make(map[connKey]*conn)}
}

// put takes one record; those of other kinds are ignored, but for an exit, which
// ends the exchanges of its process.
func (t *tap) put(r *event.Record) {
	t.now = r.Time
	switch r.Kind {
	case event.KindExit:
		t.forgetAll(func(c *conn) bool { return c.pid == r.PID }, signal.OutcomeExit)
	case event.KindHTTP:
		switch r.HTTP.Dir {
		case event.HTTPRead, event.HTTPWrite:
			if c := t.conn(r); c != nil {
				t.move(c, r)
			}
		case event.HTTPClose:
			if c := t.conns[connKey{r.PID, r.HTTP.Conn}]; c != nil {
				t.close(c, r)
			}
		}
	}
}

func (t *tap) close(c *conn, r *event.Record) {
	peer := r.HTTP.Flags&(event.HTTPEOF|event.HTTPReset) != 0
	o := signal.OutcomeClosed
	if peer {
		o = signal.OutcomeDisconnect
	}
	// The record says how much was written in all.
	if c.ignored == reasonNone && c.wr.placed && (r.HTTP.Off > c.wr.next || r.HTTP.Skipped > 0) {
		t.missed(c, event.HTTPWrite, max(r.HTTP.Off, c.wr.next)-c.wr.next, r.HTTP.Skipped, r.HTTP.SkippedLast)
	}
	if len(c.pending) > 0 {
		x := c.pending[0]
		if !peer && x.responded && x.resp.kind == bodyClose {
			t.end(c, x, signal.OutcomeComplete, t.now)
		}
	}
	t.forget(c, o)
}

// ignore gives a connection up: from here on its bytes are stray.
func (t *tap) ignore(c *conn, why reason) {
	for len(c.pending) > 0 {
		t.end(c, c.pending[0], signal.OutcomeDetached, t.now)
	}
	c.ignored = why
	c.reading, c.rd.buf, c.wr.buf = nil, nil, nil
	t.count[why]++
}

// move handles a read or a write.
func (t *tap) move(c *conn, r *event.Record) {
	h, b := &r.HTTP, r.Data
	if c.ignored != reasonNone {
		t.sink.stray(c, h.Dir, b)
		return
	}
	s := &c.rd
	if h.Dir == event.HTTPWrite {
		s = &c.wr
	}
	switch {
	case !s.placed:
		s.placed = true
	case h.Off > s.next:
		t.missed(c, h.Dir, h.Off-s.next, h.Skipped, h.SkippedLast)
	case h.Off < s.next:
		t.adrift(c, h.Dir)
	}
	s.next = h.Off + uint64(len(b))
	if h.Dir == event.HTTPRead {
		t.read(c, b)
	} else {
		t.write(c, b)
	}
	if n := h.Size - uint32(len(b)); h.Flags&event.HTTPCut != 0 && h.Size > uint32(len(b)) {
		s.next += uint64(n)
		if c.ignored == reasonNone {
			t.missed(c, h.Dir, uint64(n), 0, t.now)
		}
	}
}

// missed accounts for n bytes that were not copied or got lost, in calls of
// which the latest was at last (0 if not known).
func (t *tap) missed(c *conn, dir uint8, n uint64, calls uint32, last uint64) {
	if dir == event.HTTPRead {
		x := c.reading
		if c.rd.state != inBody {
			c.rd.state, c.rd.buf = astray, nil
			t.sink.headGap(c, dir)
			return
		}
		t.sink.gap(c, x, dir, n, calls)
		if done, over := x.req.skip(n); done {
			x.done = last
			if over {
				x.done = 0
			}
			t.requestEnd(c, x)
			if over {
				c.rd.state = astray
				t.sink.headGap(c, dir)
			}
		}
		return
	}
	if len(c.pending) > 0 {
		c.pending[0].gap = true
	}
	if c.wr.state != inBody {
		c.wr.state, c.wr.buf = astray, nil
		t.sink.headGap(c, dir)
		return
	}
	x := c.pending[0]
	x.before.last, x.before.chunks, x.before.bytes = x.last, x.chunks, x.bytes
	x.bytes += int64(n)
	x.chunks += int64(calls)
	x.last = max(x.last, last)
	t.sink.gap(c, x, dir, n, calls)
	if done, over := x.resp.skip(n); done {
		t.end(c, x, signal.OutcomeComplete, x.last)
		if over {
			c.wr.state = astray
			t.sink.headGap(c, dir)
		}
	}
}

// adrift: the stream goes on at a place that was passed already, so that nothing
// is known about where its messages lie.
func (t *tap) adrift(c *conn, dir uint8) {
	if dir == event.HTTPRead {
		if x := c.reading; x != nil {
			t.sink.gap(c, x, dir, 0, 0)
			t.requestEnd(c, x)
		}
		c.rd.state, c.rd.buf = astray, nil
	} else {
		if len(c.pending) > 0 {
			x := c.pending[0]
			x.gap = true
			t.sink.gap(c, x, dir, 0, 0)
		}
		c.wr.state, c.wr.buf = astray, nil
	}
	t.sink.headGap(c, dir)
}

// false when the connection was given up.
func (t *tap) gather(c *conn, dir uint8, b []byte) (whole, rest []byte, ok bool) {
	s := &c.rd
	if dir == event.HTTPWrite {
		s = &c.wr
	}
	had := len(s.buf)
	if had == 0 {
		if i := bytes.Index(b, headEnd); i >= 0 {
			n := i + len(headEnd)
			t.sink.headBytes(c, dir, b[:n], true)
			return b[:n], b[n:], true
		}
	}
	from := max(0, had-len(headEnd)+1)
	s.buf = append(s.buf, b[:min(len(b), maxHead+1-had)]...)
	if dir == event.HTTPRead && !beginsRequest(s.buf) || dir == event.HTTPWrite && !beginsResponse(s.buf) {
		t.ignore(c, reasonHead)
		return nil, b, false
	}
	n := len(s.buf)
	i := bytes.Index(s.buf[from:], headEnd)
	if i >= 0 {
		n = from + i + len(headEnd)
	}
	t.sink.headBytes(c, dir, b[:n-had], had == 0)
	rest = b[n-had:]
	switch {
	case i >= 0:
		return s.buf[:n], rest, true
	case n > maxHead:
		t.ignore(c, reasonHead)
		return nil, rest, false
	}
	return nil, rest, true
}

// end ends the exchange x, which is pending.
func (t *tap) end(c *conn, x *exchange, o signal.Outcome, at uint64) {
	for i := range c.pending {
		if c.pending[i] == x {
			c.pending = append(c.pending[:i], c.pending[i+1:]...)
			break
		}
	}
	x.ended = true
	if o == signal.OutcomeComplete {
		c.wr.state = atHead
	} else {
		// The connection is going away: nothing more will be read of it.
		x.reqEnded = true
		if c.reading == x {
			c.reading, c.rd.state = nil, astray
		}
	}
	t.sink.end(c, x, o, at)
	t.release(x)
}
