package governor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	"inferspan/probes/python"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
	"inferspan/tests/pythons"
)

// program reads the clock in a loop that waits or in one that works, as told.
const program = `
import sys, time
monotonic = time.monotonic
def waits(until):
    while monotonic() < until:
        pass
def works(until):
    n = 0
    while monotonic() < until:
        n += 1
    return n
while True:
    {"waits": waits, "works": works}[sys.argv[1]](monotonic() + 0.2)
`

// TestLive watches a loop that waits, which keeps its probe however often it
// reads the clock, and a hot caller that works, which loses it.
func TestLive(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("attaching needs root")
	}
	have := pythons.Find()["3.12"]
	if len(have) == 0 {
		t.Skip("no Python 3.12 on this machine")
	}
	for _, c := range []struct {
		does string
		out  bool
	}{{"waits", false}, {"works", true}} {
		t.Run(c.does, func(t *testing.T) {
			cmd := exec.Command(have[0], "-c", program, c.does)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				cmd.Process.Kill()
				cmd.Wait()
			}()
			o, err := bpf.Load(bpf.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			in := open(t, cmd.Process.Pid)
			p := &target.Process{PID: cmd.Process.Pid, NSPID: cmd.Process.Pid}
			ip, err := attach.AttachInterpreter(o, p, in, []attach.PythonProbe{{Callable: plan.Func("time", "monotonic")}})
			if err != nil {
				t.Fatal(err)
			}
			defer ip.Close()
			costs, err := governor.Calibrate(o, bpf.ProgPyHit)
			if err != nil {
				t.Fatal(err)
			}
			cost := costs.Emulated + costs.Run
			if cost <= 0 || cost > time.Millisecond || costs.Stepped <= 0 || costs.Stepped > time.Millisecond {
				t.Errorf("a hit costs %+v", costs)
			}
			t.Logf("a trap costs %v where the instruction is emulated, %v where it is executed", costs.Emulated, costs.Stepped)
			// Machines differ in what a trap costs by more than ten times: the budget for
			// waiting is set beside what was measured, the test is about telling the two apart.
			budget := governor.Budget{Work: governor.DefaultBudget.Work, Wait: 10 * cost}
			g := governor.New(ip, budget, costs, func(name, _ string) bool { return name == "waits" },
				governor.Probe{Number: ip.Report()[0].Probe, Detail: "steps"})
			var changes []governor.Change
			var seen governor.Window
			for range 6 {
				w, ch, err := g.Tick(int64(bpf.Monotonic()))
				if err != nil {
					t.Fatal(err)
				}
				if len(w) > 0 {
					seen = w[0]
				}
				if changes = append(changes, ch...); len(changes) > 0 {
					break
				}
				time.Sleep(500 * time.Millisecond)
			}
			t.Logf("a hit costs %v; last window: %d calls that wait, %d that work, %.0f %% of a core", cost, seen.Waiting, seen.Work, 100*seen.Share)
			if (len(changes) > 0) != c.out {
				t.Fatalf("changes %+v, want the probe taken out: %v", changes, c.out)
			}
			if attached := ip.Report()[0].Attached; attached == c.out {
				t.Errorf("attached %v after %+v", attached, changes)
			}
			if seen.Waiting+seen.Work == 0 {
				t.Error("no calls seen")
			}
		})
	}
}

// open waits for the interpreter to be far enough to be read.
func open(t *testing.T, pid int) *python.Interp {
	var err error
	for range 100 {
		var in *python.Interp
		if in, err = python.Open(pid); err == nil {
			if _, err = in.Path("__main__", "works"); err == nil {
				return in
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal(fmt.Errorf("%s: %w", filepath.Base(os.Args[0]), err))
	return nil
}
