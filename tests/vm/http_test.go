package vm

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/target"
)

// ways are the pairs of system calls by which a server reads and writes. What is
// written comes in pieces, which some calls take as they are.
var ways = map[string]struct {
	read  func(fd int, b []byte) (int, error)
	write func(fd int, pieces ...[]byte) error
}{
	"read-write": {
		unix.Read,
		func(fd int, p ...[]byte) error { _, err := unix.Write(fd, bytes.Join(p, nil)); return err },
	},
	"readv-writev": {
		func(fd int, b []byte) (int, error) { return unix.Readv(fd, [][]byte{b[:7], {}, b[7:]}) },
		func(fd int, p ...[]byte) error { _, err := unix.Writev(fd, p); return err },
	},
	"recvfrom-sendto": {
		func(fd int, b []byte) (int, error) { n, _, err := unix.Recvfrom(fd, b, 0); return n, err },
		func(fd int, p ...[]byte) error { return unix.Send(fd, bytes.Join(p, nil), unix.MSG_NOSIGNAL) },
	},
	"recvmsg-sendmsg": {
		func(fd int, b []byte) (int, error) {
			n, _, _, _, err := unix.RecvmsgBuffers(fd, [][]byte{b[:5], b[5:]}, nil, 0)
			return n, err
		},
		func(fd int, p ...[]byte) error {
			_, err := unix.SendmsgBuffers(fd, p, nil, nil, unix.MSG_NOSIGNAL)
			return err
		},
	},
}

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	streamEnd  = "0\r\n\r\n"
	events     = 40
)

// streamEvent is an event of a stream, in a chunk of its own.
func streamEvent(i int) string { return fmt.Sprintf("46\r\ndata: %062d\n\n\r\n", i) }

// server is a helper: it reads requests by the system calls that its argument
// names, and answers each with a stream of events.
func server() {
	way := ways[os.Args[1]]
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
	}
	l, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
	die(err)
	die(unix.Bind(l, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}))
	die(unix.Listen(l, 8))
	name, err := unix.Getsockname(l)
	die(err)
	fmt.Printf("ready %d\n", name.(*unix.SockaddrInet6).Port)
	b := make([]byte, 64<<10)
	for {
		fd, _, err := unix.Accept(l)
		die(err)
		for have := 0; ; {
			// As servers with an event loop do: no read is under way while the
			// server waits.
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err == unix.EINTR {
				continue
			}
			n, err := way.read(fd, b[have:])
			if n <= 0 || err != nil {
				break
			}
			if have += n; !whole(b[:have]) {
				continue
			}
			have = 0
			die(way.write(fd, []byte(streamHead[:20]), nil, []byte(streamHead[20:])))
			for i := range events {
				die(way.write(fd, []byte(streamEvent(i))))
			}
			die(way.write(fd, []byte(streamEnd)))
		}
		die(unix.Close(fd))
	}
}

// whole reports whether b holds a request with its body.
func whole(b []byte) bool {
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err == nil
}

// exchange makes a request and returns it with the response.
func exchange(t *testing.T, c net.Conn, body string) (request, response string) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	request = fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(streamHead)+events*len(streamEvent(0))+len(streamEnd))
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return request, string(b)
}

// TestHTTP checks the records of an exchange on a connection that was open before
// the server was watched, and of one on a new connection.
func TestHTTP(t *testing.T) {
	o := load(t, bpf.Options{})
	for way := range ways {
		cmd := exec.Command("/proc/self/exe", way)
		cmd.Env = append(os.Environ(), helperEnv+"=server")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		var port int
		if _, err := fmt.Fscanf(out, "ready %d\n", &port); err != nil {
			t.Fatal(err)
		}
		dial := func() net.Conn {
			c, err := net.Dial("tcp", fmt.Sprintf("[::1]:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		old := dial()
		exchange(t, old, "before")
		attachTo(t, o, &target.Process{PID: cmd.Process.Pid, Role: target.RoleAPIServer, Ports: []int{port}})
		request, response := exchange(t, old, "old")
		old.Close()
		rs := records(t, o, 3)
		checkExchange(t, way+", an open connection", rs, event.HTTPMidstream, request, response)

		fresh := dial()
		request, response = exchange(t, fresh, strings.Repeat("b", 50_000))
		fresh.Close()
		rs = records(t, o, 3)
		checkExchange(t, way+", a new connection", rs, 0, request, response)
	}
	wantLosses(t, o, [event.LossReasons]uint64{})
}

// checkExchange checks the records of one exchange and the end of its connection:
// the request whole, the response but for its middle.
func checkExchange(t *testing.T, name string, rs []event.Record, flags uint8, request, response string) {
	t.Helper()
	got := map[uint8][]byte{event.HTTPRead: make([]byte, len(request)), event.HTTPWrite: make([]byte, len(response))}
	var copied, skipped int
	for i, r := range rs {
		h := r.HTTP
		if r.Kind != event.KindHTTP || h.Conn != rs[0].HTTP.Conn || h.Flags&^event.HTTPEOF != flags {
			t.Errorf("%s: record %+v, want flags %d", name, r, flags)
			return
		}
		skipped += int(h.Skipped)
		if h.Dir == event.HTTPClose {
			if i != len(rs)-1 || h.Flags&event.HTTPEOF == 0 || int(h.Off) != len(response) {
				t.Errorf("%s: record %d of %d: %+v, want the end of the connection last", name, i, len(rs), h)
			}
			continue
		}
		off := int(h.Off)
		if h.Dir == event.HTTPWrite {
			copied += len(r.Data)
		}
		if off+len(r.Data) > len(got[h.Dir]) || int(h.Size) != len(r.Data) {
			t.Errorf("%s: record %+v is out of bounds", name, h)
			return
		}
		copy(got[h.Dir][off:], r.Data)
	}
	if !bytes.Equal(got[event.HTTPRead], []byte(request)) {
		t.Errorf("%s: the request differs", name)
	}
	// By the rule of bpf/include/limits.h: the writes that begin within the first
	// 1024 bytes, and the last four.
	head := len(streamHead)
	for head < 1024 {
		head += len(streamEvent(0))
	}
	tail := 3*len(streamEvent(0)) + len(streamEnd)
	want := []byte(response)
	clear(want[head : len(want)-tail])
	if !bytes.Equal(got[event.HTTPWrite], want) || copied != head+tail {
		t.Errorf("%s: %d bytes of the response copied, want the first %d and the last %d", name, copied, head, tail)
	}
	if n := (len(want) - head - tail) / len(streamEvent(0)); skipped != n {
		t.Errorf("%s: %d writes left out, want %d", name, skipped, n)
	}
	if len(rs) == 0 || rs[len(rs)-1].HTTP.Dir != event.HTTPClose {
		t.Errorf("%s: %d records without the end of the connection", name, len(rs))
	}
}
