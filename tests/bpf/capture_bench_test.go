package bpf_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inferspan/bpf"
	"inferspan/probes/python/plan"
)

// TestCaptureCost prints what a hit of watched and of other code costs in BPF and
// altogether. The program runs with real-time priority, so that what else runs on the
// machine is not counted; where that is not allowed, the numbers are larger.
func TestCaptureCost(t *testing.T) {
	if testing.Short() {
		t.Skip("prints, tests little")
	}
	eachPython(t, func(t *testing.T, path string) {
		prog := startPython(t, path, "100", "1")
		pid := prog.PID()
		threads(t, pid)
		const n = 50_000
		spin := func() time.Duration {
			start := time.Now()
			prog.do(fmt.Sprint("spin ", n))
			return time.Since(start) / n
		}
		spin()
		without := spin()
		o := load(t, bpf.Options{RingBytes: 64 << 20})
		c := collect(t, o)
		defer c.end()
		batch := plan.New("batch", plan.Func("__main__", "items"), 2)
		batch.Local("x").Items("x", 1024, 64)
		timed := plan.New("timed", plan.Func("__main__", "timed"), 2)
		timed.Local("x").EachPath("x", 1024, 64, "rid", "times.t20", "times.t30")
		interpreter(t, o, pid, clockProbe(append(stepPlans(), batch, timed)...))
		stats, err := bpf.EnableStats()
		if err != nil {
			t.Fatal(err)
		}
		defer stats.Close()
		each := func(f func()) (time.Duration, uint64) {
			before, err := o.Stats()
			if err != nil {
				t.Fatal(err)
			}
			f()
			after, err := o.Stats()
			if err != nil {
				t.Fatal(err)
			}
			runs := after["py_hit"].Runs - before["py_hit"].Runs
			return (after["py_hit"].Runtime - before["py_hit"].Runtime) / time.Duration(max(runs, 1)), runs
		}
		var with time.Duration
		unwatched, runs := each(func() { with = spin() })
		if runs < n {
			t.Errorf("%d hits of %d calls", runs, n)
		}
		one := make([]time.Duration, 0, 10)
		for range 10 {
			d, _ := each(func() { prog.do("steps 20") })
			one = append(one, d)
		}
		perCall := map[int]time.Duration{}
		for _, n := range []int{0, 1, 128} {
			perCall[n], _ = each(func() { prog.do(fmt.Sprintf("items %d 500", n)) })
		}
		perItem := map[int]time.Duration{}
		for _, n := range []int{1, 64, 512} {
			perItem[n], _ = each(func() { prog.do(fmt.Sprintf("timed %d 500", n)) })
		}
		t.Logf("%s: a str and two floats of an attribute of 1, 64 and 512 items: %v, %v, %v", path[strings.LastIndexByte(path, '/')+1:], perItem[1], perItem[64], perItem[512])
		t.Logf("%s: a capture of a dict of 0, 1 and 128 requests: %v, %v, %v", path[strings.LastIndexByte(path, '/')+1:], perCall[0], perCall[1], perCall[128])
		t.Logf("%s: a call %v, with the probe %v (%v in BPF); a capture of %d slots %v in BPF",
			path[strings.LastIndexByte(path, '/')+1:], without, with, unwatched, len(stepPlans()[0].Slots()), min1(one))
	})
}

func min1(d []time.Duration) time.Duration {
	m := d[0]
	for _, x := range d {
		m = min(m, x)
	}
	return m
}

// threads gives the main thread of a process real-time priority.
func threads(t *testing.T, pid int) {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(pid, &attr, 0); err != nil {
		t.Logf("no real-time priority: %v", err)
	}
	runtime.Gosched()
}
