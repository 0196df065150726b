package gpu

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
	"inferspan/probes/attach"
	"inferspan/probes/procfs"
	"inferspan/probes/target"
)

// TestComparedWhileCounted: calls of the runtime are not taken for such as do not reach the
// driver while calls of the driver do not count, nor is the first one after that.
func TestComparedWhileCounted(t *testing.T) {
	l := startLauncher(t)
	objs, err := bpf.Load(bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer objs.Close()
	on := func(library, symbol string, program bpf.Program) {
		t.Helper()
		lib, err := attach.OpenLibrary(mapped(t, l.PID(), library))
		if err != nil {
			t.Fatal(err)
		}
		defer lib.Close()
		put, err := lib.Attach(attach.Program{Program: objs.Program(program), Multi: objs.Multi(program)}, symbol, attach.Entry, &target.Process{PID: l.PID()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { bpf.CloseAll(put.Links) })
	}
	on("libcudart.so", "cudaLaunchKernel", bpf.ProgCUDARuntimeCompare)
	on("libcuda.so", "cuLaunchKernel", bpf.ProgCUDALaunch)
	compared := uint64(0)
	for i, counted := range []bool{false, true, false, true} {
		if err := objs.SetCUDA(l.PID(), counted); err != nil {
			t.Fatal(err)
		}
		l.launch()
		if counted {
			compared += launches*rounds - 1 // which is with the call before
		}
		s, err := objs.CUDA(l.PID())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := s.Levels[bpf.CUDAPairLaunch], (bpf.CUDALevels{Compared: compared}); got != want {
			t.Errorf("%d, counted %v: %+v, want %+v", i, counted, got, want)
		}
	}
}

// mapped is a library that a process maps.
func mapped(t *testing.T, pid int, name string) *target.Library {
	t.Helper()
	maps, err := procfs.FS{}.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if m.Exec() && strings.Contains(m.Path, name) {
			f, by, err := procfs.FS{}.OpenMapped(pid, m)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			return &target.Library{Path: m.Path, MapFile: by, Dev: m.Dev, Ino: m.Ino}
		}
	}
	t.Fatalf("process %d does not map %s", pid, name)
	return nil
}

// TestLaunchesGoOn: while the probes on launches go in and out of a process that launches
// all the time, all else is counted throughout, and launches stay at the driver.
func TestLaunchesGoOn(t *testing.T) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprintf("single uprobes %v", single), func(t *testing.T) {
			l := startLauncher(t)
			objs, err := bpf.Load(bpf.Options{SingleUprobes: single})
			if err != nil {
				t.Fatal(err)
			}
			defer objs.Close()
			p, err := cuda.Attach(objs, &target.Process{PID: l.PID()}, cuda.Sampled)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			var stop atomic.Bool
			lines, done := 0, make(chan struct{})
			go func() {
				defer close(done)
				for ; !stop.Load(); lines++ {
					l.launch()
				}
			}()
			turns := 0
			for ; turns < 3; turns++ {
				time.Sleep(100 * time.Millisecond)
				began := time.Now()
				if err := p.Launches(true); err != nil {
					t.Error(err)
				}
				in := time.Since(began)
				time.Sleep(200 * time.Millisecond)
				if says, err := p.Settle(); len(says) > 0 || err != nil {
					t.Errorf("settled: %q, %v", says, err)
				}
				began = time.Now()
				if err := p.Launches(false); err != nil {
					t.Error(err)
				}
				t.Logf("counting launches began in %v and ended in %v", in, time.Since(began))
			}
			time.Sleep(100 * time.Millisecond)
			stop.Store(true)
			<-done
			if says := p.Lacks(); len(says) > 0 {
				t.Errorf("launches are seen at the runtime: %q", says)
			}
			waits, epochs, counted := 0, map[uint32]bool{}, uint64(0)
			rd := objs.Reader()
			rd.SetDeadline(time.Now().Add(300 * time.Millisecond))
			var r event.Record
			for rd.Read(&r) == nil {
				if r.Kind != event.KindGPU {
					continue
				}
				g := &r.GPU
				waits++
				epochs[g.Epoch], counted = true, g.Counts[event.GPUKernels]
				if g.Continues() != g.Epoch-1 || (g.Flags&event.GPULaunches != 0) != (g.Epoch%2 == 0) {
					t.Fatalf("epoch %d has flags %#x", g.Epoch, g.Flags)
				}
			}
			if waits != lines*rounds || len(epochs) != 2*turns+1 || counted == 0 {
				t.Errorf("%d waits in %d epochs, want %d in %d; %d launches", waits, len(epochs), lines*rounds, 2*turns+1, counted)
			}
			began := time.Now()
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			t.Logf("all probes were taken out in %v", time.Since(began))
		})
	}
}
