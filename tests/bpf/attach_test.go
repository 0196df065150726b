package bpf_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/elf"
	"inferspan/probes/procfs"
	"inferspan/probes/target"
)

// codeAt reads the bytes at a function of the stand-in library in a process.
func codeAt(t *testing.T, pid int, symbol string, n int) []byte {
	t.Helper()
	maps, err := procfs.FS{}.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if !strings.Contains(m.Path, "libzmq") || !m.Exec() {
			continue
		}
		f, err := os.Open(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		e, err := elf.New(f)
		if err != nil {
			t.Fatal(err)
		}
		fn, err := e.Func(symbol)
		if err != nil {
			t.Fatal(err)
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		b := make([]byte, n)
		if _, err := mem.ReadAt(b, int64(m.Start+fn.Offset-m.Offset)); err != nil {
			t.Fatal(err)
		}
		return b
	}
	t.Fatalf("process %d does not map libzmq", pid)
	return nil
}

// TestOtherProcesses checks that processes that map the same library run without
// a breakpoint, and that the code of the target is as before after Close.
func TestOtherProcesses(t *testing.T) {
	needRoot(t)
	path := compileStub(t)
	core, other := startDriver(t, path), startDriver(t, path)
	child, err := strconv.Atoi(core.Do("fork")) // as an engine's worker is
	if err != nil {
		t.Fatal(err)
	}
	o := load(t, bpf.Options{})
	symbols := []string{"zmq_msg_send", "zmq_msg_recv"}
	original := map[string][]byte{}
	for _, s := range symbols {
		original[s] = codeAt(t, core.PID(), s, 16)
	}
	a := attachTo(t, o, process(t, core.PID(), target.RoleCore))
	for _, s := range symbols {
		if bytes.Equal(codeAt(t, core.PID(), s, 16), original[s]) {
			t.Errorf("%s of the target has no breakpoint", s)
		}
		for name, pid := range map[string]int{"an unrelated process": other.PID(), "a forked worker": child} {
			if !bytes.Equal(codeAt(t, pid, s, 16), original[s]) {
				t.Errorf("%s of %s has a breakpoint", s, name)
			}
		}
	}
	other.OK("send %d 100 1 0 16", lmsg)
	if rs := records(t, o, 0); len(rs) != 0 {
		t.Errorf("%d records of a process that is not watched", len(rs))
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if !bytes.Equal(codeAt(t, core.PID(), s, 16), original[s]) {
			t.Errorf("%s of the target has changed after Close", s)
		}
	}
	core.OK("send %d 100 1 0 16", lmsg)
	if rs := records(t, o, 0); len(rs) != 0 {
		t.Errorf("%d records after Close", len(rs))
	}
}

// TestAttachErrors checks that an attachment that cannot be made says why, and
// leaves nothing behind.
func TestAttachErrors(t *testing.T) {
	needRoot(t)
	path := compileStub(t)
	o := load(t, bpf.Options{})
	for _, tt := range []struct {
		name string
		make func(p *target.Process)
		is   error
		says string
	}{
		{"a worker", func(p *target.Process) { p.Role = target.RoleWorker }, attach.ErrNothing, "worker"},
		{"no library", func(p *target.Process) { p.ZMQ = nil }, nil, "does not map libzmq"},
		{"a library without the functions", func(p *target.Process) {
			p.ZMQ = &target.Library{Path: "/driver", MapFile: path}
		}, elf.ErrNoSymbol, "zmq_msg_send"},
		{"not a library", func(p *target.Process) {
			p.ZMQ = &target.Library{Path: "/driver.c", MapFile: "testdata/driver.c"}
		}, elf.ErrFormat, "driver.c"},
		{"another process by now", func(p *target.Process) { p.Start-- }, attach.ErrExited, ""},
		{"gone", func(p *target.Process) { p.PID = 1 << 21 }, attach.ErrExited, ""},
	} {
		d := startDriver(t, path)
		p := process(t, d.PID(), target.RoleCore)
		tt.make(p)
		before := len(descriptors())
		a, err := attach.Attach(o, "vllm", p)
		if a != nil || err == nil || (tt.is != nil && !errors.Is(err, tt.is)) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want an error that is %v and says %q", tt.name, err, tt.is, tt.says)
		}
		if after := len(descriptors()); after != before {
			t.Errorf("%s: %d descriptors before, %d after", tt.name, before, after)
		}
	}
}

// TestExitWhileAttaching kills the process at any moment of the attachment: the
// result is an attachment that ends by itself, or ErrExited.
func TestExitWhileAttaching(t *testing.T) {
	needRoot(t)
	path := compileStub(t)
	o := load(t, bpf.Options{})
	attached, exited := 0, 0
	for i := range 16 {
		cmd := exec.Command(path)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		p := process(t, cmd.Process.Pid, target.RoleCore)
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Duration(i) * 8 * time.Millisecond)
			cmd.Process.Kill()
			cmd.Wait()
		}()
		a, err := attach.Attach(o, "vllm", p)
		switch {
		case err == nil:
			attached++
			<-a.Done()
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		case errors.Is(err, attach.ErrExited):
			exited++
		default:
			t.Errorf("attaching to a process that is being killed: %v", err)
		}
		<-done
		in.Close()
	}
	t.Logf("%d attached in time, %d had exited", attached, exited)
}
