package sglang

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"inferspan/probes/python"
	"inferspan/probes/python/plan"
	"inferspan/tests/child"
)

// TestSchedulerPlans compiles the plans for a scheduler, with all that they are to read: they
// are near the bounds of what a plan can have. A launch is put off where that is exact.
func TestSchedulerPlans(t *testing.T) {
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in the path")
	}
	const env = "SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP="
	for _, c := range []struct {
		name, tp, env string
		putOff        bool
	}{
		{"alone", "1", "", true},
		{"one of two ranks", "2", "", false},
		{"prefills one after the other", "1", env + "Yes", false},
		{"prefills ahead of results", "1", env + "false", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(path, "testdata/scheduler.py", c.tp)
			if cmd.Env = os.Environ(); c.env != "" {
				cmd.Env = append(cmd.Env, c.env)
			}
			p := child.Start(t, cmd)
			p.Expect("ready")
			in, err := python.Open(p.PID())
			if errors.Is(err, os.ErrPermission) || errors.Is(err, python.ErrUnsupported) {
				t.Skipf("cannot read %s: %v", path, err)
			}
			if err != nil {
				t.Fatal(err)
			}
			peeker, err := NewPeeker(in)
			if err != nil {
				t.Fatal(err)
			}
			putOff := map[string]bool{}
			seen := 0
			compile := func(all []*plan.Plan) {
				for _, one := range all {
					prog, err := one.Compile(in)
					if err != nil {
						t.Fatal(err)
					}
					if len(prog.Dropped) > 0 {
						t.Errorf("plan %s leaves out %v", one.Name, prog.Dropped)
					}
					putOff[one.Name] = putOff[one.Name] || slices.Contains(prog.Slots, slotPutOff)
					seen++
					t.Logf("plan %s: %d ops", one.Name, prog.Plan.OpCount)
				}
			}
			for _, probe := range peeker.Probes() {
				for _, w := range probe.Watches {
					compile(w.Plans)
					for _, l := range w.Lighter {
						compile(l.Plans)
					}
				}
			}
			// Three levels of the launch, the outputs and those that are given up.
			if seen != 9 || putOff[planBatch] != c.putOff {
				t.Errorf("%d plans, put off: %v", seen, putOff)
			}
		})
	}
}
