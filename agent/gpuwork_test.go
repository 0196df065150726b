package agent

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
	"inferspan/probes/attach/governor"
	"inferspan/probes/note"
	"inferspan/probes/target"
	"inferspan/tests/child"
	"inferspan/tests/gpu/rig"
)

// startApp starts a program of the rig (tests/gpu/rig/apps) that does n of something for a
// line of input, and returns a function that has it do so.
func startApp(t *testing.T, name string, n int) (pid int, do func()) {
	t.Helper()
	cmd := rig.Traced(t, name, "FAKE_CUDA_KERNEL_NS=100")
	cmd.Args = append(cmd.Args, strconv.Itoa(n))
	app := child.Start(t, cmd)
	app.Expect("ready")
	return app.PID(), func() { app.Do("") }
}

// TestGPUWorkGoverned: where launches come so fast that their traps cost more than the
// budget, less is looked at, and the notes say what is missing and why; calm ones are all
// looked at, and so are all without a budget.
func TestGPUWorkGoverned(t *testing.T) {
	for _, c := range []struct {
		name   string
		app    string
		per    int // for a line
		pause  time.Duration
		asked  cuda.Mode
		budget float64
		want   cuda.Mode
		within time.Duration // at most, where less is to be looked at
	}{
		{"calm", "launch", 2, 100 * time.Millisecond, cuda.All, 0.01, cuda.All, 6 * time.Second},
		{"busy", "launch", 200, 0, cuda.All, 0.01, cuda.Graph, 2 * time.Minute},
		{"busy without a budget", "launch", 200, 0, cuda.All, math.Inf(1), cuda.All, 6 * time.Second},
		{"graphs", "steps", 10, 0, cuda.Graph, 0.01, cuda.Off, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			pid, do := startApp(t, c.app, c.per)
			objs, err := bpf.Load(bpf.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer objs.Close()
			p := &inside{tracer: objs, notes: make(chan *event.Record, maxNotes), opt: LiveOptions{CUDA: c.asked, Budget: governor.Budget{Work: c.budget, Wait: math.MaxInt64}}}
			g := p.gpuWork(&target.Process{PID: pid})
			defer g.close()
			g.govern(nil)
			if g.governor == nil {
				t.Fatal("the cost of a trap could not be measured")
			}
			t.Logf("a trap costs %+v", g.costs)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					case <-time.After(c.pause):
						do()
					}
				}
			}()
			defer func() {
				close(stop)
				<-stopped
			}()
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for end := time.Now().Add(c.within); time.Now().Before(end); <-tick.C {
				g.look(context.Background())
				if c.want != c.asked && g.mode == c.want {
					break
				}
			}
			g.look(context.Background())
			if g.mode != c.want {
				t.Errorf("%s is looked at after %v, want %s; %s", g.mode, c.within, c.want, g.reason)
			}
			var notes []note.Probe
			for len(p.notes) > 0 {
				r := <-p.notes
				if note.Kind(r.Note) != note.KindProbe {
					continue // of kernels
				}
				n, err := note.Get[note.Probe](r)
				if err != nil {
					t.Fatal(err)
				}
				notes = append(notes, n)
			}
			steps := slices.Index(cuda.Modes, c.asked) - slices.Index(cuda.Modes, c.want)
			if len(notes) != 1+steps || !notes[0].Active || notes[0].Source != string(c.asked) || notes[0].Lacks != "" {
				t.Fatalf("notes %+v, want %d", notes, 1+steps)
			}
			if last := notes[steps]; steps > 0 && (last.Active != (c.want != cuda.Off) || !strings.Contains(last.Reason, "% of a core") || last.Active && last.Lacks == "") {
				t.Errorf("the last note is %+v", last)
			}
			for _, n := range notes {
				t.Logf("%+v", n)
			}
		})
	}
}

// A process that makes steps and never calls the driver says so, unless others do its work.
func TestGPUWorkSilent(t *testing.T) {
	for _, c := range []struct {
		role    target.Role
		workers bool
		active  bool
	}{{target.RoleCore, false, false}, {target.RoleCore, true, true}, {target.RoleWorker, true, false}} {
		p := &inside{notes: make(chan *event.Record, maxNotes)}
		p.workers.Store(c.workers)
		g := p.gpuWork(&target.Process{PID: 1, Role: c.role})
		g.probes, g.done, g.silent = &cuda.Probes{}, true, true
		for range 2 {
			g.tell(context.Background())
		}
		if len(p.notes) != 1 {
			t.Fatalf("%d notes of the same, want 1", len(p.notes))
		}
		if n, err := note.Get[note.Probe](<-p.notes); err != nil || n.Active != c.active || (n.Reason == "") != c.active {
			t.Errorf("%+v: %+v, %v", c, n, err)
		}
	}
}

// TestTurns: a turn is a second of ten, whatever looks come in between, and however late.
func TestTurns(t *testing.T) {
	var x turns
	from := time.Now()
	for _, c := range []struct {
		at   float64
		want bool
	}{
		{0, true}, {0.001, true}, {0.4, true}, {0.6, false}, {0.96, false}, {2, false}, {9.5, false},
		{9.95, true}, {9.96, true}, {10.96, false}, {12, false}, // from the beginning of a turn
		{25, true}, {25.4, true}, {31, false}, {34.9, true}, // it was not asked for a while
	} {
		if got := x.count(from.Add(time.Duration(c.at * float64(time.Second)))); got != c.want {
			t.Errorf("at %v s: %v, want %v", c.at, got, c.want)
		}
	}
	// The probes were in when the next look was due.
	x.begun = from.Add(46 * time.Second)
	for at, want := range map[time.Duration]bool{46_001: true, 47_000: false} {
		if got := x.count(from.Add(at * time.Millisecond)); got != want {
			t.Errorf("at %v ms: %v, want %v", int64(at), got, want)
		}
	}
}
