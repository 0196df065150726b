package bpf_test

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
)

func TestKeepAlive(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	start := bpf.Monotonic()
	c := s.dial()
	body := strings.Repeat("x", 100<<10)
	for range 3 {
		c.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if got := c.answer(); got != fmt.Sprint(len(body)) {
			t.Fatalf("answer %q", got)
		}
		settle()
	}
	c.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	c.answer()
	c.send("GET /bytes?n=900 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	c.answer()
	settle()
	rs := ofClient(records(t, o, 5), c)
	assemble(t, rs, event.HTTPRead).whole(t, "requests", c.sent.Bytes())
	assemble(t, rs, event.HTTPWrite).whole(t, "responses", c.received.Bytes())
	closes := 0
	last := start
	for i, r := range rs {
		if int(r.PID) != s.pid() || r.HTTP.Flags&event.HTTPMidstream != 0 || int(r.HTTP.LocalPort) != s.port || r.Time < last {
			t.Errorf("record %d: %+v %+v", i, r.Header, r.HTTP)
		}
		last = r.Time
		if r.HTTP.Dir == event.HTTPClose {
			closes++
			if i != len(rs)-1 || r.HTTP.Flags != 0 {
				t.Errorf("record %d of %d is a close with flags %d", i, len(rs), r.HTTP.Flags)
			}
		}
	}
	if closes != 1 {
		t.Errorf("%d closes", closes)
	}
	noLosses(t, o)
}

func TestPipelining(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	c := s.dial()
	c.send("GET /bytes?n=3000 HTTP/1.1\r\nHost: a\r\n\r\nGET /stream?n=50 HTTP/1.1\r\nHost: a\r\n\r\nGET /bytes?n=10 HTTP/1.1\r\nHost: a\r\n\r\n")
	c.answer()
	c.answer()
	c.answer()
	c.Close()
	settle()
	rs := ofClient(records(t, o, 5), c)
	assemble(t, rs, event.HTTPRead).whole(t, "requests", c.sent.Bytes())
	w := assemble(t, rs, event.HTTPWrite)
	w.agrees(t, "responses", c.received.Bytes())
	// The head of each response is there, whatever was left out before it.
	for at := 0; ; {
		i := bytes.Index(c.received.Bytes()[at:], []byte("HTTP/1.1 200"))
		if i < 0 {
			break
		}
		for j := range 60 {
			if !w.copied[at+i+j] {
				t.Fatalf("byte %d of the response at %d is not copied", j, at+i)
			}
		}
		at += i + 1
	}
	noLosses(t, o)
}

// TestStream checks what is kept of a long chunked response: its head, its last
// four writes, and the count of the others.
func TestStream(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	c := s.dial()
	const events = 200
	for range 2 { // the second response begins anew
		c.received.Reset()
		c.send("GET /stream?n=%d HTTP/1.1\r\nHost: a\r\n\r\n", events)
		c.answer()
		settle()
		rs := ofClient(records(t, o, 6), c)
		var base uint64
		for i := range rs {
			if rs[i].HTTP.Dir == event.HTTPWrite {
				if base == 0 {
					base = rs[i].HTTP.Off + 1
				}
				rs[i].HTTP.Off -= base - 1
			}
		}
		w := assemble(t, rs, event.HTTPWrite)
		missing := w.agrees(t, "response", c.received.Bytes())
		var writes []event.Record
		for _, r := range rs {
			if r.HTTP.Dir == event.HTTPWrite {
				writes = append(writes, r)
			}
		}
		for i := range 1024 {
			if !w.copied[i] {
				t.Fatalf("byte %d of the head is not copied", i)
			}
		}
		// Each event is a write; the end of the body is one more.
		if got := len(writes) + w.skipped; got != events+1 && got != events+2 {
			t.Errorf("%d writes copied and %d skipped, want %d in sum", len(writes), w.skipped, events+1)
		}
		if missing == 0 || w.skipped < events/2 {
			t.Errorf("%d bytes missing, %d writes skipped: too much was copied", missing, w.skipped)
		}
		tail := writes[len(writes)-4:]
		if tail[0].HTTP.Skipped == 0 || tail[1].HTTP.Skipped+tail[2].HTTP.Skipped+tail[3].HTTP.Skipped != 0 {
			t.Errorf("the first of the last four writes carries the count: %+v", tail)
		}
		if tail[0].HTTP.SkippedLast >= tail[0].Time || !bytes.HasSuffix(tail[3].Data, []byte("0\r\n\r\n")) {
			t.Errorf("tail %+v", tail)
		}
		for i := 1; i < 4; i++ {
			if tail[i].Time <= tail[i-1].Time {
				t.Errorf("the held writes have times %d and %d", tail[i-1].Time, tail[i].Time)
			}
		}
	}
	noLosses(t, o)
}

func TestCaptureContent(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{CaptureContent: true})
	c := s.dial()
	c.send("GET /stream?n=300 HTTP/1.1\r\nHost: a\r\n\r\n")
	c.answer()
	settle()
	rs := ofClient(records(t, o, 300), c)
	assemble(t, rs, event.HTTPWrite).whole(t, "response", c.received.Bytes())
	noLosses(t, o)
}

// TestCaps checks that a request and a response are copied up to 256 KiB, that
// the rest is marked and counted, and that the next ones are whole again.
func TestCaps(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{CaptureContent: true})
	c := s.dial()
	const size = 600 << 10
	const limit = 256 << 10
	c.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("y", size))
	c.answer()
	second := c.sent.Len()
	c.send("GET /bytes?n=%d HTTP/1.1\r\nHost: a\r\n\r\n", size)
	c.answer()
	settle()
	big := c.received.Len()
	c.send("GET /bytes?n=10 HTTP/1.1\r\nHost: a\r\n\r\n")
	c.answer()
	settle()
	rs := ofClient(records(t, o, 20), c)
	r := assemble(t, rs, event.HTTPRead)
	r.agrees(t, "requests", c.sent.Bytes())
	for i := range c.sent.Len() {
		// The head of the large request counts towards its limit.
		if want := i < limit || i >= second; r.copied[i] != want {
			t.Fatalf("byte %d of the requests: copied %v", i, r.copied[i])
		}
	}
	if r.skipped == 0 {
		t.Error("no reads are counted as skipped")
	}
	w := assemble(t, rs, event.HTTPWrite)
	w.agrees(t, "responses", c.received.Bytes())
	copied := 0
	for i := range big {
		if w.copied[i] {
			copied++
		}
	}
	// The first answer, the head of the second, and of its last writes the ends.
	if copied < limit || copied > limit+6<<10 {
		t.Errorf("%d bytes of the responses are copied", copied)
	}
	for i := big; i < c.received.Len(); i++ {
		if !w.copied[i] {
			t.Fatalf("byte %d of the last response is not copied", i-big)
		}
	}
	if losses(t, o)[event.LossTruncated] == 0 {
		t.Error("nothing is counted as truncated")
	}
}

func TestDisconnect(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	for _, tt := range []struct {
		name  string
		end   func(c *client)
		flags uint8
	}{
		{"closed", func(c *client) { c.Close() }, event.HTTPEOF},
		{"reset", func(c *client) {
			c.Conn.(*net.TCPConn).SetLinger(0)
			c.Close()
		}, event.HTTPReset},
	} {
		c := s.dial()
		c.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
		settle()
		before := bpf.Monotonic()
		tt.end(c)
		settle()
		rs := ofClient(records(t, o, 2), c)
		last := rs[len(rs)-1]
		if last.HTTP.Dir != event.HTTPClose || last.HTTP.Flags != tt.flags || last.Time < before || last.Time > before+uint64(time.Second) {
			t.Errorf("%s: the last of %d records is %+v at %d, want a close with flags %d after %d", tt.name, len(rs), last.HTTP, last.Time, tt.flags, before)
		}
		for _, r := range rs[:len(rs)-1] {
			if r.HTTP.Dir == event.HTTPClose {
				t.Errorf("%s: two closes", tt.name)
			}
		}
	}
}

// TestMidstream checks connections that were open before the server was watched.
func TestMidstream(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	used, unused, streaming := s.dial(), s.dial(), s.dial()
	used.send("GET /bytes?n=10 HTTP/1.1\r\nHost: a\r\n\r\n")
	used.answer()
	streaming.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n0123456789")
	settle()
	o := s.watch(bpf.Options{})
	fresh := s.dial()
	for _, c := range []*client{used, unused, fresh} {
		c.sent.Reset()
		c.received.Reset()
		c.send("GET /bytes?n=20 HTTP/1.1\r\nHost: a\r\n\r\n")
		c.answer()
		c.send("GET /bytes?n=20 HTTP/1.1\r\nHost: a\r\n\r\n")
		c.answer()
	}
	streaming.received.Reset()
	streaming.send("0123456789") // a piece of a body
	settle()
	streaming.send("0123456789")
	streaming.answer()
	settle()
	streaming.sent.Reset()
	streaming.send("GET /bytes?n=20 HTTP/1.1\r\nHost: a\r\n\r\n")
	streaming.answer()
	settle()
	all := records(t, o, 8)
	for name, tt := range map[string]struct {
		c     *client
		flags uint8
	}{
		"used": {used, event.HTTPMidstream}, "unused": {unused, 0}, "fresh": {fresh, 0}, "streaming": {streaming, event.HTTPMidstream},
	} {
		rs := ofClient(all, tt.c)
		for _, r := range rs {
			if r.HTTP.Flags != tt.flags {
				t.Errorf("%s: flags %d, want %d", name, r.HTTP.Flags, tt.flags)
			}
		}
		assemble(t, rs, event.HTTPWrite).whole(t, name+": responses", tt.c.received.Bytes())
		if name != "streaming" {
			assemble(t, rs, event.HTTPRead).whole(t, name+": requests", tt.c.sent.Bytes())
			continue
		}
		// The body's pieces are left out and counted.
		r := assemble(t, rs, event.HTTPRead)
		if r.skipped < 1 || !bytes.HasSuffix(r.data, tt.c.sent.Bytes()) || r.copied[0] || !r.copied[20] {
			t.Errorf("streaming: %d skipped, stream %q", r.skipped, r.data)
		}
	}
	noLosses(t, o)
}

// TestMultipath checks a connection by multipath TCP, which Go's servers accept.
func TestMultipath(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	d := &net.Dialer{}
	d.SetMultipathTCP(true)
	c := s.dialBy(d)
	c.send("GET /bytes?n=20 HTTP/1.1\r\nHost: a\r\n\r\n")
	c.answer()
	if mp, err := c.Conn.(*net.TCPConn).MultipathTCP(); err != nil || !mp {
		t.Skip("the kernel does not do multipath TCP here")
	}
	settle()
	rs := ofClient(records(t, o, 2), c)
	assemble(t, rs, event.HTTPRead).whole(t, "request", c.sent.Bytes())
	assemble(t, rs, event.HTTPWrite).whole(t, "response", c.received.Bytes())
}

// TestOutgoing checks that what the server does as a client is not shown.
func TestOutgoing(t *testing.T) {
	other := startServer(t, "httpserver", "127.0.0.1")
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	c := s.dial()
	c.send("GET /fetch?from=127.0.0.1:%d/bytes%%3Fn=5000 HTTP/1.1\r\nHost: a\r\n\r\n", other.port)
	if got := c.answer(); got != string(pattern(5000, 0)) {
		t.Fatalf("answer of %d bytes", len(got))
	}
	settle()
	for _, r := range records(t, o, 2) {
		if int(r.PID) != s.pid() || r.HTTP.RemotePort != c.localPort() {
			t.Errorf("a record of another connection: %+v %+v", r.Header, r.HTTP)
		}
	}
}

// TestVector checks writes of several pieces, with more pieces than are looked at.
func TestVector(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	for _, pieces := range []int{3, 7, 12} {
		c := s.dial()
		c.send("GET /vector?n=%d HTTP/1.1\r\nHost: a\r\n\r\n", pieces)
		c.answer()
		settle()
		rs := ofClient(records(t, o, 2), c)
		w := assemble(t, rs, event.HTTPWrite)
		seen := c.received.Bytes()
		if pieces+1 > 8 {
			seen = seen[:len(seen)-100*(pieces+1-8)]
		}
		w.whole(t, fmt.Sprintf("%d pieces", pieces), seen)
		end := rs[len(rs)-1].HTTP
		if end.Dir != event.HTTPClose || int(end.Off) != c.received.Len() || (end.Skipped != 0) != (pieces+1 > 8) {
			t.Errorf("%d pieces: %+v, want a close at %d", pieces, end, c.received.Len())
		}
	}
}

// TestVectorSkipped checks that a write is counted once whose pieces find no room among
// those that are held until the response ends.
func TestVectorSkipped(t *testing.T) {
	s := startServer(t, "httpserver", "127.0.0.1")
	o := s.watch(bpf.Options{})
	c := s.dial()
	c.send("GET /vector?n=7&size=1000 HTTP/1.1\r\nHost: a\r\n\r\n")
	c.answer()
	settle()
	w := assemble(t, ofClient(records(t, o, 2), c), event.HTTPWrite)
	// The head and one piece are copied, the last four are held.
	if missing := w.agrees(t, "response", c.received.Bytes()); missing < 2000 || w.skipped != 1 {
		t.Errorf("%d bytes missing, %d calls skipped: want two pieces and more, and one call", missing, w.skipped)
	}
}

// askTwice sends two requests to a raw server, by a connection that is closed then.
func (s *server) askTwice(name string) *client {
	s.t.Helper()
	c := s.dial()
	for range 2 {
		c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if got := c.answer(); got != "ok" {
			s.t.Fatalf("%s: answer %q", name, got)
		}
	}
	c.Close()
	settle()
	return c
}

// TestSystemCalls checks each way to read with each way to write, over IPv6.
func TestSystemCalls(t *testing.T) {
	needRoot(t)
	o := load(t, bpf.Options{})
	for read := range rawReads {
		for write := range rawWrites {
			name := read + " and " + write
			s := startServer(t, "rawserver", "::1", read, write)
			attachTo(t, o, s.process())
			c := s.askTwice(name)
			rs := ofClient(records(t, o, 5), c)
			assemble(t, rs, event.HTTPRead).whole(t, name+": requests", c.sent.Bytes())
			assemble(t, rs, event.HTTPWrite).whole(t, name+": responses", c.received.Bytes())
			if last := rs[len(rs)-1].HTTP; last.Dir != event.HTTPClose || last.Flags != event.HTTPEOF {
				t.Errorf("%s: last record %+v, want a close", name, last)
			}
		}
	}
	noLosses(t, o)
}

// TestSignals checks connections that move as few bytes at a time as signals between threads
// do, and have descriptors of such signals: closed before, or replaced.
func TestSignals(t *testing.T) {
	for _, was := range []string{"reused", "replaced"} {
		s := startServer(t, "rawserver", "::1", "read", "eights", was)
		o := s.watch(bpf.Options{})
		for range 3 {
			c := s.askTwice(was)
			rs := ofClient(records(t, o, 4), c)
			// The descriptor as which it was accepted had no bytes before it was another one.
			rs = slices.DeleteFunc(rs, func(r event.Record) bool { return r.HTTP.Conn != rs[len(rs)-1].HTTP.Conn })
			assemble(t, rs, event.HTTPRead).whole(t, was+": requests", c.sent.Bytes())
			assemble(t, rs, event.HTTPWrite).agrees(t, was+": responses", c.received.Bytes())
		}
		noLosses(t, o)
	}
}

// TestOtherProtocol checks that an accepted connection that carries no HTTP is left alone.
func TestOtherProtocol(t *testing.T) {
	s := startServer(t, "rawserver", "::1", "read", "write")
	o := s.watch(bpf.Options{})
	c := s.dial()
	c.send("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f") // as ZeroMQ begins
	c.answer()
	c.send("GET / HTTP/1.1\r\n\r\n") // by chance in the middle
	c.answer()
	c.Close()
	settle()
	if rs := ofClient(records(t, o, 0), c); len(rs) != 0 {
		t.Errorf("%d records of it, the first %+v", len(rs), rs[0].HTTP)
	}
}
