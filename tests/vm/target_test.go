package vm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/procfs"
	"inferspan/probes/target"
)

// patience is how long an emulated machine on a busy host may take for what a
// real one does at once.
const patience = 60 * time.Second

// driver is a process that calls the stand-in library by command; the commands are
// in tests/bpf/testdata/driver.c.
type driver struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface{ Write([]byte) (int, error) }
	out *bufio.Reader
}

// startDriver starts a driver with one of the builds of the library: "ret", whose
// functions have return instructions, or "tail", whose receive ends in a jump.
func startDriver(t *testing.T, build string) *driver {
	t.Helper()
	needGuest(t)
	d := &driver{t: t, cmd: exec.Command(filepath.Join(stubDir, build, "driver"))}
	d.cmd.Stderr = os.Stderr
	in, err := d.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.in, d.out = in, bufio.NewReader(out)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.cmd.Process.Kill()
		d.cmd.Wait()
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

// ok gives a command that is answered with "ok".
func (d *driver) ok(format string, args ...any) {
	d.t.Helper()
	fmt.Fprintf(d.in, format+"\n", args...)
	if got := d.line(); got != "ok" {
		d.t.Fatalf("driver answers %q to %q", got, fmt.Sprintf(format, args...))
	}
}

// process describes the driver as the target package would an engine core.
func (d *driver) process() *target.Process {
	d.t.Helper()
	stat, err := procfs.FS{}.Stat(d.pid())
	if err != nil {
		d.t.Fatal(err)
	}
	maps, err := procfs.FS{}.Maps(d.pid())
	if err != nil {
		d.t.Fatal(err)
	}
	p := &target.Process{PID: d.pid(), Start: stat.Start, Role: target.RoleCore}
	for _, m := range maps {
		if strings.Contains(m.Path, "libzmq") && m.Exec() {
			p.ZMQ = &target.Library{Path: m.Path, MapFile: procfs.FS{}.MapFile(d.pid(), m), Dev: m.Dev, Ino: m.Ino}
		}
	}
	return p
}

// pattern is the content of the driver's frames.
func pattern(size, seed int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i/256 + seed)
	}
	return b
}

func load(t *testing.T, opts bpf.Options) *bpf.Objects {
	t.Helper()
	needGuest(t)
	opts.FlushInterval = 5 * time.Millisecond
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

func attachTo(t *testing.T, o *bpf.Objects, p *target.Process) *attach.Process {
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

// records reads from the ring until it is quiet, but waits for n records.
func records(t *testing.T, o *bpf.Objects, n int) []event.Record {
	t.Helper()
	var out []event.Record
	end := time.Now().Add(patience)
	for {
		deadline := time.Now().Add(50 * time.Millisecond)
		if len(out) < n {
			deadline = end
		}
		o.Reader().SetDeadline(deadline)
		var r event.Record
		err := o.Reader().Read(&r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if len(out) < n {
				lost, err := o.Losses()
				t.Fatalf("%d records within %v, want %d: %+v, losses %v %v, %d bytes unread", len(out), patience, n, out, lost, err, o.Reader().Unread())
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

func wantLosses(t *testing.T, o *bpf.Objects, want [event.LossReasons]uint64) {
	t.Helper()
	got, err := o.Losses()
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("losses %v, want %v", got, want)
	}
}
