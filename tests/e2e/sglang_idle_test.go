package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"inferspan/bpf"
	probes "inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	engines "inferspan/probes/engine"
	"inferspan/probes/engine/sglang"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// looks is a tracer whose programs can be kept from looking at anything, with their probes
// in place.
type looks struct {
	*bpf.Objects
	targets []lookTarget
	probes  []lookProbe
}

type lookTarget struct {
	pid   int
	role  bpf.Role
	ports []uint16
}

type lookProbe struct {
	pid          int
	addr         uint64
	probe, flags uint32
}

func (l *looks) SetTarget(pid int, role bpf.Role, ports ...uint16) error {
	l.targets = append(l.targets, lookTarget{pid, role, ports})
	return l.Objects.SetTarget(pid, role, ports...)
}

func (l *looks) SetProbe(pid int, addr uint64, probe, flags uint32) error {
	l.probes = append(l.probes, lookProbe{pid, addr, probe, flags})
	return l.Objects.SetProbe(pid, addr, probe, flags)
}

// set has the programs look, or not.
func (l *looks) set(t *testing.T, on bool) {
	t.Helper()
	for _, x := range l.targets {
		role := bpf.Role(0) // what is known of its connections stays
		if on {
			role = x.role
		}
		if err := l.Objects.SetTarget(x.pid, role, x.ports...); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range l.probes {
		err := l.Objects.RemoveProbe(x.pid, x.addr)
		if on {
			err = l.Objects.SetProbe(x.pid, x.addr, x.probe, x.flags)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSGLangIdle measures what probes add to a request of one token that comes to an idle
// server which polls.
func TestSGLangIdle(t *testing.T) {
	needSGLang(t)
	idleDifference(t, startWith(t, serveSGLang, nil))
}

// TestGPUSGLangIdle is TestSGLangIdle where a forward pass is launched and waited for, so that
// what is looked at behind the launch is beside it.
func TestGPUSGLangIdle(t *testing.T) {
	needGPUOf(t, "sglang-cuda-0.5.23", "engine-sglang-cuda")
	idleDifference(t, startWith(t, serveSGLangCUDA, []string{"CUDA_MODE=eager", "FAKE_CUDA_KERNEL_NS=100000"}))
}

// idleDifference measures how much later the response to a request of one token is that comes
// to an idle server, for what the probes look at: pairs of requests one after the other, of
// which one finds the programs do nothing, in random order. The traps are there for both, and
// their cost is put on top. It prints, since what it measures depends on the host.
func idleDifference(t *testing.T, e *engine) {
	eng, err := target.Finder{}.ByPID(t.Context(), e.pid)
	if err != nil {
		t.Fatal(err)
	}
	l := &looks{Objects: countedRuns(t)}
	costs, err := governor.Calibrate(l.Objects, bpf.ProgPyHit)
	if err != nil {
		t.Fatal(err)
	}
	for i := range eng.Processes {
		p := &eng.Processes[i]
		if taps, _ := probes.Plan(eng.Kind, p); len(taps) == 0 {
			continue
		}
		a, err := probes.Attach(l, eng.Kind, p)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		in, err := python.Open(p.PID)
		if err != nil {
			t.Fatal(err)
		}
		inside := sglangInside(t, p, in)
		if len(inside) == 0 {
			continue
		}
		x, err := probes.AttachInterpreter(l, p, in, pythonProbes(inside))
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		for _, s := range x.Report() {
			if !s.Attached {
				t.Fatalf("%s: %s", s.Callable, s.Reason)
			}
		}
	}
	l.set(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ask := func(n int) float64 {
		t.Helper()
		began := time.Now()
		if _, err := completionOf(ctx, e.url+"/generate", fmt.Appendf(nil, `{"text": "request %d of many", "sampling_params": {"max_new_tokens": 1}}`, n%7)); err != nil {
			t.Fatal(err)
		}
		return float64(time.Since(began)) / 1e3
	}
	for n := range 50 { // what compiles on first use
		ask(n)
	}
	const pairs = 1000
	order := rand.New(rand.NewPCG(1, 2))
	stats := func() map[string]bpf.ProgramStats {
		all, err := l.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	var later, without []float64
	spent := map[string]*inProgram{}
	for n := range pairs {
		first := order.IntN(2) == 0
		var took [2]float64
		for k := range 2 {
			on := first == (k == 0)
			l.set(t, on)
			ask(n) // the programs note anew who calls and which descriptors are of no interest
			before := stats()
			time.Sleep(5 * time.Millisecond) // what this has touched is to be in no cache
			i := map[bool]int{true: 1}[on]
			took[i] = ask(n)
			for name, x := range stats() {
				s := spent[name]
				if s == nil {
					s = &inProgram{}
					spent[name] = s
				}
				s.runs[i] += float64(x.Runs-before[name].Runs) / pairs
				s.time[i] += float64(x.Runtime-before[name].Runtime) / 1e3 / pairs
			}
		}
		later, without = append(later, took[1]-took[0]), append(without, took[0])
	}
	for _, name := range slices.Sorted(maps.Keys(spent)) {
		if s := spent[name]; s.runs[0]+s.runs[1] > 0.5 {
			t.Logf("%-22s %6.2f runs, %6.1f us a request; %6.2f runs, %6.1f us without", name, s.runs[1], s.time[1], s.runs[0], s.time[0])
		}
	}
	each := (spent[string(bpf.ProgPyHit)].runs[1] + spent[string(bpf.ProgWireSend)].runs[1])
	mid := median(later)
	var off []float64
	for _, x := range later {
		off = append(off, math.Abs(x-mid))
	}
	// Of a median, by the median distance from it (1.48 for a standard deviation, and sqrt(pi/2)).
	spread := 1.48 * median(off) * math.Sqrt(math.Pi/2) / math.Sqrt(pairs)
	trap := each * float64(costs.Emulated) / 1e3
	t.Logf("%d pairs of requests: %.0f us without, later by %.1f us (standard error %.1f us), and by %.1f us of %.1f traps: %.1f us",
		pairs, median(without), mid, spread, trap, each, mid+trap)
	if each < 9.9 || each > 10.1 {
		t.Errorf("%.2f traps a request, want 10", each)
	}
}

// inProgram is how often a program ran for a request, and for how long in all, us: when it
// had nothing to look at, and when it had.
type inProgram struct{ runs, time [2]float64 }

func median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// sglangInside returns what is put into the interpreter of a process.
func sglangInside(t *testing.T, p *target.Process, in *python.Interp) []engines.Probe {
	t.Helper()
	switch p.Role {
	case target.RoleCore:
		peeker, err := sglang.NewPeeker(in)
		if err != nil {
			t.Fatal(err)
		}
		return peeker.Probes()
	case target.RoleAPIServer:
		list, err := sglang.FrontProbes(in)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	return nil
}
