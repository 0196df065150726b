package workload

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

// mono reads CLOCK_MONOTONIC, which Go's time package does not give out.
func mono() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // Linux always has this clock
	}
	return t.Nano()
}

// perRequest bounds one request: far beyond what the tiny model needs.
const perRequest = 120 * time.Second

// errLeft ends a connection that the client closed on purpose.
var errLeft = errors.New("left on purpose")

// conn is one connection of a client that speaks HTTP/1.1 by hand, so that it
// knows when each byte went out and came in.
type conn struct {
	net.Conn
	in *bufio.Reader
}

// play opens a connection, plays the session on it and fills in the entries. A
// fault is noted in the entry and ends the session; later entries stay unsent.
func play(ctx context.Context, addr string, s Session, log []Entry) {
	connect := mono()
	d := net.Dialer{Timeout: 10 * time.Second}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		for i := range log {
			log[i].Fault = fmt.Sprintf("connecting: %v", err)
		}
		return
	}
	c := &conn{Conn: nc, in: bufio.NewReaderSize(nc, 64<<10)}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for i := range log {
		log[i].ConnectMono = connect
		log[i].Port = nc.LocalAddr().(*net.TCPAddr).Port
	}
	c.SetDeadline(time.Now().Add(perRequest))
	if s.Pipelined {
		var all bytes.Buffer
		for i := range s.Requests {
			all.Write(encode(addr, &s.Requests[i]))
		}
		for i := range log {
			log[i].SendMono, log[i].SendWall = mono(), time.Now().UnixNano()
		}
		if _, err := c.Write(all.Bytes()); err != nil {
			log[0].Fault = fmt.Sprintf("sending: %v", err)
			return
		}
		for i := range log {
			log[i].SentMono = mono()
		}
	}
	for i := range s.Requests {
		c.SetDeadline(time.Now().Add(perRequest))
		e := &log[i]
		var err error
		if !s.Pipelined {
			err = c.send(addr, &s.Requests[i], e)
		}
		if err == nil {
			err = c.receive(&s.Requests[i], e)
		}
		if errors.Is(err, errLeft) {
			return
		}
		if err != nil {
			e.Fault = err.Error()
			return
		}
	}
}

// encode returns the request as bytes. A chunked body is cut into Pieces chunks.
func encode(addr string, r *Request) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: inferspan-workload\r\n", r.Method, r.Path, addr)
	for _, h := range r.Header {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	switch {
	case r.Body == nil:
		b.WriteString("\r\n")
	case r.Chunked:
		b.WriteString("Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
		for _, p := range pieces(r.Body, max(r.Pieces, 1)) {
			fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
		}
		b.WriteString("0\r\n\r\n")
	default:
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(r.Body))
		b.Write(r.Body)
	}
	return b.Bytes()
}

// pieces cuts b into n parts of about the same length.
func pieces(b []byte, n int) [][]byte {
	var out [][]byte
	for i := range n {
		if p := b[i*len(b)/n : (i+1)*len(b)/n]; len(p) > 0 {
			out = append(out, p)
		}
	}
	return out
}

func (c *conn) send(addr string, r *Request, e *Entry) error {
	parts := pieces(encode(addr, r), max(r.Pieces, 1))
	e.SendMono, e.SendWall = mono(), time.Now().UnixNano()
	for i, p := range parts {
		if i > 0 {
			time.Sleep(5 * time.Millisecond) // apart, so that the server reads them one by one
		}
		if _, err := c.Write(p); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
	e.SentMono = mono()
	return nil
}

func (c *conn) leave(e *Entry) error {
	e.LeftMono = mono()
	c.Close()
	return errLeft
}

func (c *conn) receive(r *Request, e *Entry) error {
	if r.Leave == LeaveEarly {
		time.Sleep(r.After)
		return c.leave(e)
	}
	if _, err := c.in.Peek(1); err != nil {
		return fmt.Errorf("waiting for the response: %w", err)
	}
	e.FirstMono = mono()
	resp, err := http.ReadResponse(c.in, &http.Request{Method: r.Method})
	if err != nil {
		return fmt.Errorf("reading the response: %w", err)
	}
	e.Status = resp.StatusCode
	body := &counter{r: resp.Body}
	if r.Stream && resp.StatusCode == http.StatusOK {
		err = c.events(r, e, body)
	} else {
		err = whole(e, body)
	}
	e.Bytes = body.n
	if err != nil {
		return err
	}
	e.LastMono, e.Complete = mono(), true
	return nil
}

// whole reads a body that is one JSON document, or none that concerns us.
func whole(e *Entry, body io.Reader) error {
	b, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("reading the body: %w", err)
	}
	if !e.Inference() && e.Path != "/generate" && e.Status == http.StatusOK {
		return nil
	}
	return e.note(b)
}

// events reads a stream of server-sent events.
func (c *conn) events(r *Request, e *Entry, body io.Reader) error {
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadBytes('\n')
		if data, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data: ")); ok {
			e.Events++
			if !bytes.Equal(data, []byte("[DONE]")) {
				if err := e.note(data); err != nil {
					return err
				}
			}
			if r.Leave == LeaveMid && e.Events >= r.Event {
				return c.leave(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the stream after %d events: %w", e.Events, err)
		}
	}
}

// counter counts the bytes read through it.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
