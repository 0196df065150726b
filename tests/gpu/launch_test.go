package gpu

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
	"inferspan/probes/target"
	"inferspan/tests/child"
	"inferspan/tests/gpu/rig"
)

// launcher is a running apps/launch.c.
type launcher struct {
	*child.Process
	t *testing.T
}

const (
	launches = 200
	rounds   = 6 // with launches each, for a line of input
)

func startLauncher(t *testing.T, env ...string) *launcher {
	t.Helper()
	return startApp(t, "launch", launches, env...)
}

// startApp starts an app that does n of something for a line of input.
func startApp(t *testing.T, name string, n int, env ...string) *launcher {
	t.Helper()
	cmd := rig.Traced(t, name, append(env, "FAKE_CUDA_KERNEL_NS=100")...)
	cmd.Args = append(cmd.Args, fmt.Sprint(n))
	l := &launcher{child.Start(t, cmd), t}
	l.Expect("ready")
	return l
}

// attached puts the probes of a mode into a process until the test ends.
func attached(t *testing.T, pid int, mode cuda.Mode) (*bpf.Objects, *cuda.Probes) {
	t.Helper()
	objs, err := bpf.Load(bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objs.Close() })
	p, err := cuda.Attach(objs, &target.Process{PID: pid}, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return objs, p
}

// launch has it launch, and returns what a launch cost, in ns.
func (l *launcher) launch() int {
	l.t.Helper()
	n, err := strconv.Atoi(l.Do(""))
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// counted reads what is on the ring and returns the kernels of the latest record.
func counted(t *testing.T, objs *bpf.Objects) (kernels uint64) {
	t.Helper()
	rd := objs.Reader()
	rd.SetDeadline(time.Now().Add(300 * time.Millisecond))
	var r event.Record
	for rd.Read(&r) == nil {
		if r.Kind == event.KindGPU {
			kernels = r.GPU.Counts[event.GPUKernels]
		}
	}
	return kernels
}

// TestLevels: where the driver is reached by another function than the one that it
// exports, kernels are counted at the runtime, and what is missing then is said; where it
// is not, that is settled too and costs no more.
func TestLevels(t *testing.T) {
	for _, alias := range []bool{false, true} {
		t.Run(fmt.Sprintf("alias %v", alias), func(t *testing.T) {
			var env []string
			if alias {
				env = []string{"FAKE_CUDA_ALIAS=1"}
			}
			l := startLauncher(t, env...)
			objs, p := attached(t, l.PID(), cuda.All)
			if says, err := p.Settle(); len(says) > 0 || err != nil {
				t.Errorf("before any launch: %q, %v", says, err)
			}
			l.launch()
			want := uint64(launches * rounds)
			seen := counted(t, objs)
			if alias && seen != 0 || !alias && seen != want {
				t.Errorf("%d kernels of %d before it is settled", seen, want)
			}
			says, err := p.Settle()
			if err != nil || (len(says) == 1 && strings.Contains(says[0], "cuLaunchKernel")) != alias {
				t.Errorf("settled: %q, %v", says, err)
			}
			l.launch()
			if now := counted(t, objs); now-seen != want {
				t.Errorf("%d kernels counted after that, want %d", now-seen, want)
			}
			if says, err := p.Settle(); len(says) > 0 || err != nil {
				t.Errorf("again: %q, %v", says, err)
			}
		})
	}
}

// TestLaunches: launches are counted from one call to the next, also where that is done at
// the runtime.
func TestLaunches(t *testing.T) {
	for _, env := range []string{"FAKE_CUDA_ALIAS=0", "FAKE_CUDA_ALIAS=1"} {
		t.Run(env, func(t *testing.T) {
			l := startLauncher(t, env)
			objs, p := attached(t, l.PID(), cuda.Sampled)
			var last uint64
			for i, on := range []bool{false, true, true, false, true, false} {
				if err := p.Launches(on); err != nil {
					t.Fatal(err)
				}
				l.launch()
				now, want := counted(t, objs), uint64(0)
				if on {
					want = launches * rounds
				}
				if i == 1 && env == "FAKE_CUDA_ALIAS=1" {
					want = 0 // it is not known yet
				}
				if now-last != want {
					t.Errorf("%d, counting launches %v: %d kernels, want %d", i, on, now-last, want)
				}
				last = now
				if _, err := p.Settle(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestLaunchCost prints what a launch costs by mode, untraced before and after each.
func TestLaunchCost(t *testing.T) {
	l := startLauncher(t)
	objs, err := bpf.Load(bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer objs.Close()
	for _, mode := range []cuda.Mode{cuda.Graph, cuda.All} {
		before := l.launch()
		p, err := cuda.Attach(objs, &target.Process{PID: l.PID()}, mode)
		if err != nil {
			t.Fatal(err)
		}
		during := l.launch()
		comparing := ""
		if mode == cuda.All {
			comparing = fmt.Sprintf(" (%d while it is compared with the runtime's)", during)
			if _, err := p.Settle(); err != nil {
				t.Fatal(err)
			}
			during = l.launch()
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		after := l.launch()
		t.Logf("--cuda %s: a launch takes %d ns untraced, %d traced%s, %d untraced", mode, before, during, comparing, after)
		// Detached, nothing is left of it: far from what a trap costs here is enough.
		if mode == cuda.All && during < before {
			t.Logf("a launch with a trap was faster than one without: the host is too busy to tell")
		}
	}
}
