package governor

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"

	"inferspan/bpf"
	"inferspan/probes/attach"
)

// RunTime is what the program for interpreter probes takes for a call that it only
// counts; what it captures it measures itself. Measured on a 3 GHz server core.
const RunTime = 600 * time.Nanosecond

// Costs is what a hit costs the target.
type Costs struct {
	Emulated time.Duration // the trap, at an instruction that the kernel emulates
	Stepped  time.Duration // at one that is executed and traps again, as returns are on x86-64
	Run      time.Duration // of the program, on top
}

// Calibrate measures what a hit of program costs: a function of this process is
// called without a probe, with one at its entry, and with one at its return. The
// program finds that this process is no target and ends; Run is RunTime. It takes some
// 20 ms.
func Calibrate(t attach.Tracer, program bpf.Program) (Costs, error) {
	fail := func(err error) (Costs, error) { return Costs{}, fmt.Errorf("measuring a trap: %w", err) }
	own, err := attach.Own(uint64(probedPC()))
	if err != nil {
		return fail(err)
	}
	without := perCall()
	c := Costs{Run: RunTime}
	for _, at := range []struct {
		off uint64
		to  *time.Duration
	}{{own.Entry, &c.Emulated}, {own.Return, &c.Stepped}} {
		l, err := own.Executable.Uprobe("probed", t.Program(program), &link.UprobeOptions{Address: at.off, PID: os.Getpid()})
		if err != nil {
			return fail(fmt.Errorf("attaching: %w", err))
		}
		with := perCall()
		if err := l.Close(); err != nil {
			return fail(fmt.Errorf("detaching: %w", err))
		}
		*at.to = max(0, with-without)
	}
	return c, nil
}

// perCall times calls; the median of rounds keeps out what else the host did.
func perCall() time.Duration {
	const rounds, calls = 15, 50
	var times []time.Duration
	for range rounds {
		start := time.Now()
		for range calls {
			probed()
		}
		times = append(times, time.Since(start)/calls)
	}
	slices.Sort(times)
	return times[rounds/2]
}
