package bpf_test

import (
	"sync/atomic"
	"testing"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/python/plan"
)

// lighterProbe is a probe on time.monotonic whose lighter plans read one value, and then
// nothing that is there.
func lighterProbe() attach.PythonProbe {
	of := func(slots ...string) *plan.Plan {
		p := plan.New("inner", plan.Func("__main__", "inner"), 2)
		for _, s := range slots {
			p.Local("x").Value(s)
		}
		return p
	}
	p := clockProbe(of("x", "again"))
	p.Watches[0].Lighter = [][]*plan.Plan{{of("x")}, {plan.New("none", plan.Func("__main__", "no_such_function"), 2)}}
	return p
}

// TestLighten has a probe read less and more again: hits find the one or the other, the
// report says which, and a level that cannot be had changes nothing.
func TestLighten(t *testing.T) {
	prog := startPython(t, onePython(t), "1", "1")
	o := load(t, bpf.Options{})
	i := interpreter(t, o, prog.PID(), lighterProbe())
	numbers := map[uint32]bool{}
	expect := func(when string, level, slots int, less string) {
		t.Helper()
		r := i.Report()[0]
		if w := r.Watches[0]; r.Level != level || r.Less != less || w.Level != level || len(w.Plans) != 1 || len(w.Plans[0].Slots) != slots {
			t.Errorf("%s: report %+v", when, r)
		}
		numbers[r.Watches[0].Plans[0].Plan] = true
		prog.do("nested")
		for n, m := range decoded(t, i, records(t, o, 3)) {
			if want := []int64{2, 6, 3}[n]; m["x"].Int != want || len(m) != slots {
				t.Errorf("%s: capture %d: %v, want %d and %d slots", when, n, m, want, slots)
			}
		}
	}
	lighten := func(level int, why string) {
		t.Helper()
		if err := i.Lighten(0, level, why); err != nil {
			t.Fatal(err)
		}
	}
	expect("at first", 0, 2, "")
	lighten(1, "too dear")
	expect("less", 1, 1, "too dear")
	if err := i.Lighten(0, 2, "still"); err == nil {
		t.Error("plans of no function are in use")
	}
	expect("as it was", 1, 1, "too dear")
	lighten(0, "")
	expect("whole again", 0, 2, "")
	if len(numbers) != 3 {
		t.Errorf("plans %v: each is to have a number of its own", numbers)
	}
	lighten(1, "too dear")
	if err := i.Detach(0, "out"); err != nil {
		t.Fatal(err)
	}
	if err := i.Reattach(0); err != nil {
		t.Fatal(err)
	}
	expect("out and in", 1, 1, "too dear")
	prog.do("replace")
	if changed, err := i.Refresh(); err != nil || !changed {
		t.Errorf("Refresh: %v, %v", changed, err)
	}
	expect("another function", 1, 1, "too dear")
}

// TestLightenLosesNothing changes what is read while the program calls.
func TestLightenLosesNothing(t *testing.T) {
	prog := startPython(t, onePython(t), "1", "1")
	o := load(t, bpf.Options{})
	i := interpreter(t, o, prog.PID(), lighterProbe())
	const changes = 20
	stop, ended := make(chan struct{}), make(chan struct{})
	var changed atomic.Int32
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := i.Lighten(0, n%2, ""); err != nil {
				t.Error(err)
				return
			}
			changed.Add(1)
		}
	}()
	const calls = 100
	rounds := 0
	for ; (rounds < 3 || changed.Load() < changes) && !t.Failed(); rounds++ {
		for range calls {
			prog.do("nested")
		}
		if rs := records(t, o, 3*calls); len(rs) != 3*calls {
			t.Errorf("%d captures of %d calls, after %d changes", len(rs), 3*calls, changed.Load())
		}
	}
	close(stop)
	<-ended
	t.Logf("%d changes in %d calls", changed.Load(), 3*calls*rounds)
}
