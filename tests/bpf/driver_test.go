package bpf_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/procfs"
	"inferspan/probes/target"
)

// driver is a process that uses the stand-in for libzmq by command.
type driver struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startDriver(t testing.TB, path string) *driver {
	t.Helper()
	return startDriverCommand(t, exec.Command(path))
}

func startDriverCommand(t testing.TB, cmd *exec.Cmd) *driver {
	t.Helper()
	d := &driver{t: t, cmd: cmd}
	var err error
	if d.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	if got := d.line(); got != "ready" {
		t.Fatalf("driver answers %q", got)
	}
	return d
}

func (d *driver) pid() int { return d.cmd.Process.Pid }

func (d *driver) line() string {
	d.t.Helper()
	s, err := d.out.ReadString('\n')
	if err != nil {
		d.t.Fatalf("driver: %v", err)
	}
	return strings.TrimSpace(s)
}

// do gives a command and returns the answer.
func (d *driver) do(format string, args ...any) string {
	d.t.Helper()
	fmt.Fprintf(d.in, format+"\n", args...)
	return d.line()
}

func (d *driver) ok(format string, args ...any) {
	d.t.Helper()
	if got := d.do(format, args...); got != "ok" {
		d.t.Fatalf("driver answers %q to %q", got, fmt.Sprintf(format, args...))
	}
}

// pattern is the content of the driver's frames.
func pattern(size, seed int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i/256 + seed)
	}
	return b
}

// process describes a running process as the target package would.
func process(t testing.TB, pid int, role target.Role) *target.Process {
	t.Helper()
	stat, err := procfs.FS{}.Stat(pid)
	if err != nil {
		t.Fatal(err)
	}
	p := &target.Process{PID: pid, Start: stat.Start, Role: role}
	maps, err := procfs.FS{}.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if strings.Contains(m.Path, "libzmq") && m.Exec() {
			p.ZMQ = &target.Library{Path: m.Path, MapFile: procfs.FS{}.MapFile(pid, m), Dev: m.Dev, Ino: m.Ino}
		}
	}
	return p
}

const flushInterval = 5 * time.Millisecond

func load(t testing.TB, opts bpf.Options) *bpf.Objects {
	t.Helper()
	needRoot(t)
	opts.FlushInterval = flushInterval
	o, err := bpf.Load(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func attachTo(t testing.TB, o *bpf.Objects, p *target.Process) *attach.Process {
	t.Helper()
	a, err := attach.Attach(o, "vllm", p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// records reads all records that are on the ring, at least n of them, within a second.
func records(t testing.TB, o *bpf.Objects, n int) []event.Record {
	t.Helper()
	var out []event.Record
	end := time.Now().Add(time.Second)
	for {
		deadline := time.Now().Add(3 * flushInterval)
		if len(out) < n {
			deadline = end
		}
		o.Reader().SetDeadline(deadline)
		var r event.Record
		err := o.Reader().Read(&r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if len(out) < n {
				t.Fatalf("%d records within a second, want %d", len(out), n)
			}
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Data = bytes.Clone(r.Data)
		out = append(out, r)
	}
}

func losses(t testing.TB, o *bpf.Objects) [event.LossReasons]uint64 {
	t.Helper()
	l, err := o.Losses()
	if err != nil {
		t.Fatal(err)
	}
	return l
}
