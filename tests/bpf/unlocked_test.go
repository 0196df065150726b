package bpf_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
)

// TestUnlocked captures calls that are made without the interpreter's lock, by
// several threads, beside the probe on messages at the same place: each has the frames
// of its own thread.
func TestUnlocked(t *testing.T) { unlocked(t, false) }

// TestUnlockedBehind is TestUnlocked where the look is taken when the message has gone.
func TestUnlockedBehind(t *testing.T) { unlocked(t, true) }

func unlocked(t *testing.T, behind bool) {
	const calls, threads = 200, 5
	driver := compileStub(t)
	eachPython(t, func(t *testing.T, path string) {
		cmd := exec.Command(path, "testdata/unlocked.py", filepath.Join(filepath.Dir(driver), "libzmq.so"))
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var problem strings.Builder
		cmd.Stderr = &problem
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			stdin.Close()
			cmd.Process.Kill()
			cmd.Wait()
		}()
		lines := bufio.NewScanner(stdout)
		if !lines.Scan() {
			cmd.Wait()
			if strings.Contains(problem.String(), "_ctypes") {
				t.Skipf("%s has no ctypes", path)
			}
			t.Fatal(problem.String())
		}
		pid := cmd.Process.Pid
		o := load(t, bpf.Options{})
		p := plan.New("dispatch", plan.Func("__main__", "dispatch"), 2)
		p.Local("batch").Value("batch")
		p.Frame(plan.Func("__main__", "send"), 1).Local("n").Value("n")
		proc := process(t, pid, target.RoleCore)
		i, err := attach.AttachInterpreter(o, proc, openPython(t, pid), []attach.PythonProbe{
			{ZMQ: "zmq_msg_send", Behind: behind, Watches: []attach.Watch{{Caller: plan.Func("__main__", "send"), Plans: []*plan.Plan{p}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer i.Close()
		s := i.Report()[0]
		if strings.Contains(path, "3.10") {
			if s.Attached || !strings.Contains(s.Reason, "does not say which thread is which") {
				t.Errorf("Python 3.10: attached %v, %q", s.Attached, s.Reason)
			}
			return
		}
		own := behind && runtime.GOARCH == "amd64" // elsewhere no instruction is known to be cheap
		if !s.Attached || s.Shared == own || own && s.Stepped {
			t.Fatalf("%s: %+v", path, s)
		}
		attachTo(t, o, proc)
		got := collect(t, o)
		fmt.Fprintf(stdin, "go %d\n", calls)
		if !lines.Scan() {
			t.Fatal("the program ended")
		}
		seen := map[string]int{}
		var captured []event.Record
		for _, r := range got.end() {
			if r.Kind == event.KindCapture { // and what the other probe sees of the messages
				captured = append(captured, r)
			}
		}
		for _, m := range decoded(t, i, captured) {
			if b, n := m["batch"], m["n"]; b.IsStr() {
				seen[fmt.Sprint(b.Str, " ", n.Int)]++
			} else {
				t.Errorf("a capture of %v", m)
			}
		}
		if len(seen) != calls*threads {
			t.Errorf("%s: %d different captures, want %d", path, len(seen), calls*threads)
		}
		for k, n := range seen {
			if n != 1 {
				t.Errorf("%s: %q came %d times", path, k, n)
			}
		}
		if u, err := i.Use(0); err != nil || u.Hits != calls*threads {
			t.Errorf("%d hits, %v", u.Hits, err)
		}
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
}
