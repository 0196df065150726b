package httptap

import (
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

const (
	// maxConns bounds the connections followed at a time. An idle one costs
	// about 300 bytes.
	maxConns = 4096
	// maxOpen bounds the requests in flight on one connection. httptools and
	// h11 answer pipelined requests one at a time; clients rarely send two.
	maxOpen = 64
)

type connKey struct {
	pid uint32
	id  uint64
}

// conn is one connection.
type conn struct {
	connKey
	engine       signal.EngineID
	lport, rport uint16
	midstream    bool
	ignored      reason
	seq          uint32 // of the next exchange
	rd, wr       stream
	pending      []*exchange // requests without a complete response, oldest first
	reading      *exchange   // whose body is being read
	newer, older *conn
	scrub        [2]scrubState
}

// stream is one direction of a connection.
type stream struct {
	state  streamState
	placed bool   // next is known
	next   uint64 // offset that follows what was seen
	buf    []byte // beginning of a head
	began  uint64 // time of the first byte of the head
}

// drop empties the buffer; one that grew large is not kept for an idle connection.
func (s *stream) drop() {
	s.buf = s.buf[:0]
	if cap(s.buf) > 4<<10 {
		s.buf = nil
	}
}

type streamState uint8

const (
	atHead streamState = iota
	inBody
	astray // position unknown: wait for a head at the start of a socket call
)

// exchange is one request with its response.
type exchange struct {
	seq uint32

	at, done uint64 // of the request; done 0: not complete
	headOnly bool   // HEAD: the response has no body
	connect  bool   // CONNECT
	req      framing
	reqEnded bool // no more of the request will be read

	first, last uint64 // writes of the response
	status      int
	responded   bool // the head of the final response was written
	ended       bool
	resp        framing
	gap         bool
	chunks      int64
	bytes       int64
	call        uint64 // time of the latest write counted in chunks
	before      struct {
		last          uint64
		chunks, bytes int64
	} // the latest gap
	foreign bool // set by the sink: what follows the gap is another response

	parsed *parsed
	blank  [2]blanker // of the request's body and of the response's
}

func (t *tap) conn(r *event.Record) *conn {
	k := connKey{r.PID, r.HTTP.Conn}
	if c := t.conns[k]; c != nil {
		if c != t.newest {
			t.unlink(c)
			t.link(c)
		}
		return c
	}
	open := r.HTTP.Flags&event.HTTPMidstream != 0
	c := &conn{connKey: k, lport: r.HTTP.LocalPort, rport: r.HTTP.RemotePort, midstream: open || r.HTTP.Off > 0}
	c.rd.placed, c.wr.placed = !open, !open
	if c.midstream {
		c.rd.state, c.wr.state = astray, astray
	}
	if c.midstream || r.HTTP.Dir != event.HTTPRead {
		c.seq = t.seq // it can have been followed before
	}
	if !t.sink.open(c) {
		t.count[reasonProcess]++
		return nil
	}
	if len(t.conns) >= t.max {
		t.count[reasonEvicted]++
		t.forget(t.oldest, signal.OutcomeDetached)
	}
	t.conns[k] = c
	t.link(c)
	return c
}

func (t *tap) link(c *conn) {
	c.older, c.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = c
	} else {
		t.oldest = c
	}
	t.newest = c
}

func (t *tap) unlink(c *conn) {
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		t.newest = c.older
	}
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		t.oldest = c.newer
	}
}

// forget ends the exchanges of a connection and drops it.
func (t *tap) forget(c *conn, o signal.Outcome) {
	for len(c.pending) > 0 {
		t.end(c, c.pending[0], o, t.now)
	}
	t.unlink(c)
	delete(t.conns, c.connKey)
	t.seq = max(t.seq, c.seq)
}

// forgetAll forgets the connections that match, the least recently used first.
func (t *tap) forgetAll(match func(*conn) bool, o signal.Outcome) {
	for c := t.oldest; c != nil; {
		next := c.newer
		if match(c) {
			t.forget(c, o)
		}
		c = next
	}
}

func (t *tap) newExchange() *exchange {
	if n := len(t.spare); n > 0 {
		x := t.spare[n-1]
		t.spare = t.spare[:n-1]
		*x = exchange{}
		return x
	}
	return new(exchange)
}

// release keeps the memory of an exchange that nothing refers to any more.
func (t *tap) release(x *exchange) {
	if x.ended && x.reqEnded && len(t.spare) < maxOpen {
		t.spare = append(t.spare, x)
	}
}
