package bpf_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/target"
)

// server is a helper that serves on a port.
type server struct {
	t    *testing.T
	cmd  *exec.Cmd
	port int
	host string
}

func startServer(t *testing.T, name, host string, args ...string) *server {
	t.Helper()
	needRoot(t)
	s := &server{t: t, cmd: helperCommand(name, args...), host: host}
	servers = append(servers, s)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		servers = slices.DeleteFunc(servers, func(x *server) bool { return x == s })
	})
	if _, err := fmt.Fscanf(out, "ready %d\n", &s.port); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// watch starts to look at the server's sockets.
func (s *server) watch(opts bpf.Options) *bpf.Objects {
	s.t.Helper()
	o := load(s.t, opts)
	attachTo(s.t, o, s.process())
	return o
}

// process describes the server as the target package would.
func (s *server) process() *target.Process {
	return &target.Process{PID: s.pid(), Role: target.RoleAPIServer, Ports: []int{s.port}}
}

// client is a connection to a server that remembers what was sent and received.
type client struct {
	net.Conn
	t              *testing.T
	sent, received bytes.Buffer
	in             *bufio.Reader
}

func (s *server) dial() *client { return s.dialBy(&net.Dialer{}) }

func (s *server) dialBy(d *net.Dialer) *client {
	s.t.Helper()
	conn, err := d.Dial("tcp", net.JoinHostPort(s.host, fmt.Sprint(s.port)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	c := &client{Conn: conn, t: s.t}
	c.in = bufio.NewReader(io.TeeReader(conn, &c.received))
	return c
}

func (c *client) localPort() uint16 { return uint16(c.LocalAddr().(*net.TCPAddr).Port) }

func (c *client) send(format string, args ...any) {
	c.t.Helper()
	s := fmt.Sprintf(format, args...)
	c.sent.WriteString(s)
	if _, err := io.WriteString(c.Conn, s); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads a whole response and returns its body.
func (c *client) answer() string {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(b)
}

// servers are those that run. Tests of this package run one after another.
var servers []*server

// settle waits until the servers have done what follows their last answer: a busy
// machine lets them run late, but then they are ready to run.
func settle() {
	for range 100 {
		time.Sleep(30 * time.Millisecond)
		if !slices.ContainsFunc(servers, (*server).busy) {
			return
		}
	}
}

// busy reports whether a thread of the server runs or is ready to.
func (s *server) busy() bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.pid()))
	for _, name := range stats {
		// The state follows the name in brackets.
		b, err := os.ReadFile(name)
		if i := bytes.LastIndexByte(b, ')'); err == nil && i >= 0 && i+2 < len(b) && b[i+2] == 'R' {
			return true
		}
	}
	return false
}

// ofClient picks the records of one connection.
func ofClient(rs []event.Record, c *client) []event.Record {
	var out []event.Record
	for _, r := range rs {
		if r.Kind == event.KindHTTP && r.HTTP.RemotePort == c.localPort() {
			out = append(out, r)
		}
	}
	return out
}

// stream is one direction of a connection, put together.
type stream struct {
	data    []byte // zero where nothing was copied
	copied  []bool
	skipped int
}

// assemble puts the records of one connection and direction together and checks
// that they agree with each other.
func assemble(t *testing.T, rs []event.Record, dir uint8) stream {
	t.Helper()
	var s stream
	var conn uint64
	for _, r := range rs {
		h := r.HTTP
		if conn != 0 && h.Conn != conn {
			t.Errorf("records of two connections, %d and %d", conn, h.Conn)
		}
		conn = h.Conn
		if h.Dir != dir {
			continue
		}
		if (int(h.Size) != len(r.Data)) != (h.Flags&event.HTTPCut != 0) || int(h.Size) < len(r.Data) {
			t.Errorf("size %d, %d bytes, flags %d", h.Size, len(r.Data), h.Flags)
		}
		if (h.Skipped != 0) != (h.SkippedLast != 0) || h.SkippedLast > r.Time {
			t.Errorf("%d skipped, the last at %d, record of %d", h.Skipped, h.SkippedLast, r.Time)
		}
		s.skipped += int(h.Skipped)
		end := int(h.Off) + int(h.Size)
		for len(s.data) < end {
			s.data, s.copied = append(s.data, 0), append(s.copied, false)
		}
		for i, b := range r.Data {
			at := int(h.Off) + i
			if s.copied[at] {
				t.Fatalf("byte %d comes twice", at)
			}
			s.data[at], s.copied[at] = b, true
		}
	}
	return s
}

// agrees checks that the copied bytes are those of want and returns how many are not copied.
func (s stream) agrees(t *testing.T, what string, want []byte) (missing int) {
	t.Helper()
	if len(s.data) != len(want) {
		t.Errorf("%s: the records end at byte %d, the stream at %d", what, len(s.data), len(want))
		return 0
	}
	for i, b := range s.data {
		if !s.copied[i] {
			missing++
		} else if b != want[i] {
			t.Fatalf("%s: byte %d differs", what, i)
		}
	}
	return missing
}

func (s stream) whole(t *testing.T, what string, want []byte) {
	t.Helper()
	if n := s.agrees(t, what, want); n != 0 {
		t.Errorf("%s: %d of %d bytes are not copied", what, n, len(want))
	}
}

func noLosses(t *testing.T, o *bpf.Objects) {
	t.Helper()
	if got := losses(t, o); got != ([event.LossReasons]uint64{}) {
		t.Errorf("losses %v", got)
	}
}
