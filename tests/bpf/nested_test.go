package bpf_test

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/target"
)

// TestNestedNamespaces runs the agent in a PID namespace of its own and the
// target in one below it, as when both are in containers of a node that is
// itself a container.
func TestNestedNamespaces(t *testing.T) {
	needRoot(t)
	const inside = "INFERSPAN_TEST_NESTED"
	if os.Getenv(inside) == "" {
		outside := startDriver(t, compileStub(t)) // a process that the agent does not see
		cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("in the namespace: %v\n%s", err, out)
		}
		outside.OK("send %d 100 1 0 16", lmsg)
		return
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	path := compileStub(t)
	for name, flags := range map[string]uintptr{"same namespace": 0, "a namespace below": syscall.CLONE_NEWPID} {
		cmd := exec.Command(path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		d := startDriverCommand(t, cmd)
		o := load(t, bpf.Options{})
		attachTo(t, o, process(t, d.PID(), target.RoleCore))
		d.OK("send %d 300 5 0 16", lmsg)
		d.OK("recv %d 301 6 0 16", lmsg)
		rs := records(t, o, 2)
		for i, r := range rs {
			if int(r.PID) != d.PID() || int(r.TID) != d.PID() || !bytes.Equal(r.Data, pattern(300+i, 5+i)) {
				t.Errorf("%s: record of %d/%d, want process %d", name, r.PID, r.TID, d.PID())
			}
		}
		d.Signal(syscall.SIGKILL)
		rs = records(t, o, 1)
		if len(rs) != 1 || rs[0].Kind != event.KindExit || int(rs[0].PID) != d.PID() || rs[0].Code != uint32(syscall.SIGKILL) {
			t.Errorf("%s: records %+v, want the exit of %d", name, rs, d.PID())
		}
	}
}
