// Package bpftest has what tests of the BPF programs share, on this host and in guests:
// a process that calls a stand-in for libzmq by command, and the way from the programs'
// records to a test.
package bpftest

import (
	"bytes"
	"errors"
	"fmt"
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
	"inferspan/tests/child"
)

// Driver is a process that uses the stand-in for libzmq by command; the commands are in
// tests/bpf/testdata/driver.c. It ends with the test.
type Driver struct {
	*child.Process
	t testing.TB
}

// Start starts a driver.
func Start(t testing.TB, cmd *exec.Cmd) *Driver {
	t.Helper()
	d := &Driver{child.Start(t, cmd), t}
	d.Expect("ready")
	return d
}

// OK gives a command that is answered with "ok".
func (d *Driver) OK(format string, args ...any) {
	d.t.Helper()
	if got := d.Do(format, args...); got != "ok" {
		d.t.Fatalf("driver answers %q to %q", got, fmt.Sprintf(format, args...))
	}
}

// Pattern is the content of the driver's frames.
func Pattern(size, seed int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i/256 + seed)
	}
	return b
}

// Process describes a running process as the target package would.
func Process(t testing.TB, pid int, role target.Role) *target.Process {
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

// FlushInterval is that of the objects that Load gives.
const FlushInterval = 5 * time.Millisecond

// Load loads the programs until the test ends.
func Load(t testing.TB, opts bpf.Options) *bpf.Objects {
	t.Helper()
	opts.FlushInterval = FlushInterval
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

// Attach attaches to a process of vLLM until the test ends.
func Attach(t testing.TB, o *bpf.Objects, p *target.Process) *attach.Process {
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

// Patience is how long tests wait for records: for those that must come, and, when
// these have come, for more.
type Patience struct{ For, Quiet time.Duration }

// Records reads all records that are on the ring, at least n of them.
func (p Patience) Records(t testing.TB, o *bpf.Objects, n int) []event.Record {
	t.Helper()
	var out []event.Record
	end := time.Now().Add(p.For)
	for {
		deadline := time.Now().Add(p.Quiet)
		if len(out) < n {
			deadline = end
		}
		o.Reader().SetDeadline(deadline)
		var r event.Record
		err := o.Reader().Read(&r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if len(out) < n {
				lost, err := o.Losses()
				t.Fatalf("%d records within %v, want %d: %+v, losses %v %v, %d bytes unread", len(out), p.For, n, out, lost, err, o.Reader().Unread())
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

// Losses returns the totals of losses.
func Losses(t testing.TB, o *bpf.Objects) [event.LossReasons]uint64 {
	t.Helper()
	l, err := o.Losses()
	if err != nil {
		t.Fatal(err)
	}
	return l
}
